"""Signal handlers of the user's while this package works in their thread.

A handler runs wherever the program is, and may raise: a time limit, say. What it raises must reach
the user, but compiling goes on after any `Exception`, in this package and in torch. So it is
carried through as something that nobody catches. Code of the user's that runs meanwhile may catch
it as it is.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Interrupted(BaseException):
    """Carries the `error` that a handler raised."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


_carries = False  # whether the main thread is in a block that handlers shall reach the user from


class _Carrier:
    """In the place of a handler; the same outside of a block."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: Any) -> None:
        try:
            self.handler(number, frame)
        except Exception as error:
            if not _carries:
                raise
            raise Interrupted(error) from None


@contextlib.contextmanager
def reach_the_user() -> Iterator[None]:
    """What handlers raise in the block leaves it, whatever is caught inside. Nested blocks leave
    that to the outermost one; handlers run in the main thread alone."""
    global _carries
    if _carries or threading.current_thread() is not threading.main_thread():
        yield
        return
    carriers: dict[int, tuple[_Carrier, Any]] = {}
    try:
        try:
            _carries = True
            _put(carriers)
            yield
        finally:
            _carries = False
            _take_back(carriers)
    except Interrupted as interrupted:
        raise interrupted.error from None


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
