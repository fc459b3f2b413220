"""A call that leaves the outside such that its own recording no longer stands for it (a window made
at the first call, a cache) is recorded a second time at once, for what it left.

That second run must not be noticed: what it stores in objects is put back, and whatever else would
change something outside, or is not understood, abandons it before it happens.
"""

import contextlib
import copyreg
import dataclasses
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch

from ...lowering.fake_tensor_mode import DispatchMode
from ...runtime.warning_filters import suppress_warnings
from ..tracing_ops.items import delete_item, set_item
from .dynamic_inputs import is_argument
from .nested import tensors_in
from .recording import Recording
from .repeatable import Generators
from .trace import Recorder
from .values import storage_of, writes_of


class Abandoned(BaseException):
    """The second run would be noticed. No handler of the user's takes it for an error of theirs."""


class _Stores(list[Any]):
    """Effects that can be put back: `AheadRecorder.before_change` came before each."""

    def __init__(self, abandon: Callable[[], NoReturn]) -> None:
        super().__init__()
        self._abandon = abandon

    def append(self, effect: Any) -> None:
        if effect.function not in (setattr, delattr, object.__setattr__, set_item, delete_item):
            self._abandon()
        super().append(effect)


class AheadRecorder(Recorder):
    """A recorder for a call that nobody asked for."""

    def __init__(self, options: Any, *parts: Any) -> None:
        super().__init__(dataclasses.replace(options, fullgraph=False), *parts)
        self.abandoned = False  # it stays so if code of the user's catches what abandons it
        me: Any = weakref.proxy(self)  # no cycle: what the call was given is let go with it
        self.effects = _Stores(lambda: me.abandon())
        self._kept: dict[int, tuple[Any, Any]] = {}

    def before_change(self, *owner: Any) -> None:
        holders = _holders(*owner) if owner else None
        if holders is None:
            self.abandon()
        for holder in holders:
            self._kept.setdefault(id(holder), (holder, holder.copy()))

    def abandon(self) -> NoReturn:
        self.abandoned = True
        raise Abandoned

    def safely(self, watched: Callable[[], Any], plain: Callable[[], Any]) -> Any:
        try:
            return watched()
        except Exception as error:  # what Python itself does here may be noticed
            if isinstance(error, StopIteration) or self._ran_user_code(error):
                raise
            self.abandon()

    def put_back(self) -> None:
        """Every object holds again what it held."""
        for array, check in reversed(self.known.arrays):  # of those that overlap, the first knows
            if not check.passes(array):
                array[...] = check.content()
        for holder, held in self._kept.values():
            if isinstance(holder, list):
                holder[:] = held
            elif not _holds(holder, held):
                holder.clear()
                holder.update(held)

    def opaque(self, function: Any, args: Any, kwargs: Any) -> Any:
        """What runs in there is proved to compute, or said to."""
        before = sys.getprofile()
        sys.setprofile(None)
        try:
            return super().opaque(function, args, kwargs)
        finally:
            sys.setprofile(before)

    def continue_past_break(self, reason: Any, detail: str) -> bool:
        return False

    def stop(self, reason: Any, detail: str, place: Any = None) -> None:
        if self.active:
            self.abandon()


def _holders(owner: Any) -> list[Any] | None:
    """The containers in which a store to `owner` may change something, where that is known."""
    if type(owner) in (list, dict):
        return [owner]
    attributes = getattr(owner, "__dict__", None)
    module = isinstance(owner, torch.nn.Module)
    plain: object = torch.nn.Module.__setattr__ if module else object.__setattr__
    if type(attributes) is not dict or isinstance(owner, torch.Tensor | dict | list):
        return None
    if type(owner).__setattr__ is not plain or copyreg._slotnames(type(owner)):  # type: ignore[attr-defined]
        return None
    return [attributes, *(attributes[name] for name in _TABLES if module)]


_TABLES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


def _holds(holder: Any, held: Any) -> bool:
    """Whether a dict or set holds the very objects, in that order."""
    if isinstance(holder, set):
        return bool(holder == held)
    same = len(holder) == len(held) and list(holder) == list(held)
    return same and all(holder[key] is value for key, value in held.items())


class _OwnWritesOnly(DispatchMode):  # type: ignore[no-untyped-call]
    """Abandons the run before an operator writes into memory that was there before it."""

    def __init__(self, abandon: Callable[[], NoReturn]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._abandon = abandon
        self._own: set[int] = set()

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tensors_in((args, kwargs))
        if any(map(_is_freed, given)):
            self._abandon()  # reading it would be the end of the process
        written = _written(func, args, kwargs)
        if any(storage_of(tensor) not in self._own for tensor in written):
            self._abandon()
        before = [writes_of(tensor) for tensor in written]
        result = func(*args, **kwargs)
        if "_foreach_" in func.name():  # which torch does not count inside of a mode
            for tensor, writes in zip(written, before, strict=True):
                if not tensor.is_inference() and writes_of(tensor) == writes:
                    torch.autograd.graph.increment_version(tensor)
        old = {storage_of(tensor) for tensor in given}
        self._own.update({storage_of(tensor) for tensor in tensors_in((result,))} - old)
        return result


def _is_freed(tensor: torch.Tensor) -> bool:
    """Whether the memory was taken away from under the tensor (`untyped_storage().resize_(0)`)."""
    if tensor.layout != torch.strided or not tensor.numel():
        return False
    return tensor.untyped_storage().nbytes() == 0


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that the operator writes into."""
    if "batch_norm" in func.name() and "functional" not in func.name():
        return tensors_in(args[3:5])  # running statistics, which older schemas do not mark
    written = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[index] if index < len(args) else kwargs.get(argument.name)
            written += tensors_in((given,))
    return written


def is_worth(recorder: Recorder, recording: Recording | None, args: Any, kwargs: Any) -> bool:
    """Whether the call was not recorded, or stored something so that its recording does not stand
    for it any more; what it stored in its arguments says nothing of the next one's."""
    if type(recorder) is not Recorder or torch._C._len_torch_dispatch_stack():
        return False
    if recording is None:
        return recorder.cuttable  # else torch's own compiler was at work
    if not all(map(is_argument, recorder.overwritten)):
        return True  # a number that it read is another one now
    return _keeps_state(recorder) and not recording.guards_hold(args, kwargs)


def _keeps_state(recorder: Recorder) -> bool:
    """Whether a module was written, or something that is no argument."""
    owners = [effect.owner for effect in recorder.effects]
    paths = [recorder.known.path_of(owner) for owner in owners]
    return any(isinstance(owner, torch.nn.Module) for owner in owners) or any(
        path is not None and not is_argument(path) for path in paths
    )


@contextlib.contextmanager
def _silent_finalizers() -> Iterator[None]:
    """Nothing is told of what abandons the run in a finalizer, where no error goes further."""
    before = sys.unraisablehook

    def hook(told: Any) -> None:
        if not isinstance(told.exc_value, Abandoned):
            before(told)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def _no_unseen_code(recorder: AheadRecorder) -> Iterator[None]:
    """Abandons the run before Python of the user's begins that no operator has called: special
    methods and functions that C code calls."""

    def hook(frame: types.FrameType, event: str, argument: Any) -> None:
        if event == "call" and recorder.active and not _is_seen(frame, recorder.rewriter):
            recorder.abandon()

    before = sys.getprofile()
    sys.setprofile(hook)
    try:
        yield
    finally:
        sys.setprofile(before)


def _is_seen(frame: types.FrameType, rewriter: Any) -> bool:
    code, outer = frame.f_code, frame.f_back
    if code.co_filename.startswith("<"):  # generated
        return True
    if not code.co_flags & inspect.CO_OPTIMIZED and outer is not None:  # the body of a class
        code = outer.f_code
    if rewriter.is_rewritten(code):
        return True
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _LIBRARIES


_OWN = __name__.partition(".")[0]
_LIBRARIES = sys.stdlib_module_names | {"numpy", "sympy", "torch", "torchgen", "triton", _OWN}


@contextlib.contextmanager
def unnoticed(recorder: AheadRecorder) -> Iterator[None]:
    """Inside, the call is made again without a trace."""
    writes, grad_mode = _OwnWritesOnly(recorder.abandon), torch.is_grad_enabled()
    generators = Generators()
    try:
        with (
            suppress_warnings(),
            _silent_finalizers(),
            torch.set_grad_enabled(grad_mode),
            writes,
            _no_unseen_code(recorder),
        ):
            yield
        if recorder.abandoned:
            raise Abandoned
    finally:
        recorder.put_back()
        if generators.drawn_by(recorder):  # though the call itself drew none
            generators.put_back()
