"""Signal handlers of the user's while this package works in their thread.

A handler runs wherever the program is, and may raise: a time limit, say. What it raises must reach
the user, but compiling goes on after any `Exception`, in this package and in torch. So it is
carried through as something that nobody catches. Code of the user's that runs meanwhile may catch
it as it is. What it computes is no part of what is recorded or traced. This module loads no torch.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Interrupted(BaseException):
    """Carries the `error` that a handler raised."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


_works = False  # whether the main thread is in a block that handlers shall reach the user from
_keys: Any = None  # by which torch dispatched where it entered the outermost one
_carries = False  # whether what handlers raise is carried through it


class _Carrier:
    """In the place of a handler; the same outside of a block."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: Any) -> None:
        try:
            with _unseen(_keys) if _works and _keys else contextlib.nullcontext():
                self.handler(number, frame)
        except Exception as error:
            if not _carries:
                raise
            raise Interrupted(error) from None


@contextlib.contextmanager
def _unseen(keys: Any) -> Iterator[None]:
    """No mode of this package, and none that torch traces by, sees what tensors do in the block;
    operators are dispatched by `keys`, not by those of a trace."""
    torch: Any = sys.modules["torch"]
    pop, push = torch._C._pop_torch_function_stack, torch._C._push_on_torch_function_stack
    found = [pop() for _ in range(torch._C._len_torch_function_stack())][::-1]
    own = __name__.partition(".")[0] + "."
    users = [mode for mode in found if not type(mode).__module__.startswith(own)]
    for mode in users:
        push(mode)
    try:
        with (
            torch.utils._python_dispatch._disable_current_modes(),
            torch._C._ForceDispatchKeyGuard(*keys),
        ):
            yield
    finally:
        for _ in users:
            pop()
        for mode in found:
            push(mode)


@contextlib.contextmanager
def reach_the_user() -> Iterator[None]:
    """What handlers raise in the block leaves it, whatever is caught inside. Nested blocks leave
    that to the outermost one; handlers run in the main thread alone."""
    global _works, _keys, _carries
    if _carries or threading.current_thread() is not threading.main_thread():
        yield
        return
    carriers: dict[int, tuple[_Carrier, Any]] = {}
    worked = _works
    try:
        try:
            if not _works:
                _keys = _dispatch_keys()
            _works = _carries = True
            _put(carriers)
            yield
        finally:
            _works, _carries = worked, False
            _take_back(carriers)
    except Interrupted as interrupted:
        raise interrupted.error from None


def _dispatch_keys() -> Any:
    """Those that torch includes and leaves out now; None without torch."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    of = torch._C
    return of._dispatch_tls_local_include_set(), of._dispatch_tls_local_exclude_set()


@contextlib.contextmanager
def code_of_the_user() -> Iterator[None]:
    """What handlers raise in the block may be caught there."""
    global _carries
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, _carries = _carries, False
    try:
        yield
    finally:
        _carries = before


def _put(carriers: dict[int, tuple[_Carrier, Any]]) -> None:
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        # the error of the default one nobody catches
        if callable(handler) and handler is not signal.default_int_handler:
            own = handler.handler if isinstance(handler, _Carrier) else handler
            carriers[number] = _Carrier(own), handler
            signal.signal(number, carriers[number][0])


def _take_back(carriers: dict[int, tuple[_Carrier, Any]]) -> None:
    for number, (carrier, handler) in carriers.items():
        if signal.getsignal(number) is carrier:  # a handler may have put another one there
            signal.signal(number, handler)


def is_of_a_handler(error: BaseException) -> bool:
    """Whether a handler raised it, wherever the program was: no reason to do anything again."""
    codes = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code not in codes:
        tb = tb.tb_next
    return tb is not None


def _code(handler: Any) -> Any:
    function = getattr(handler, "func", handler)  # of a partial
    function = getattr(function, "__func__", function)
    if not hasattr(function, "__code__") and callable(function):
        function = type(function).__call__
    return getattr(function, "__code__", None)
