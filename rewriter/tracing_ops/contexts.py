"""`with` while recording: torch's grad-mode contexts pass by the recorder's mode, autocast becomes
nodes, Python's own run rewritten."""

import contextlib
import threading
import types
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ...runtime.guards.guard import Obj
from .. import catalogue
from ..capture import current
from ..capture.effects import SideEffect
from ..capture.trace import Recorder
from .lookup import is_stable, owner_of, python_method

_GRAD_MODES = (torch.no_grad, torch.enable_grad, torch.set_grad_enabled)
_WITHOUT_CLASSES: Any = (torch._C.DisableTorchFunctionSubclass, torch._C.DisableTorchFunction)
_FOR_TORCHS_COMPILER = ("DynamoConfigPatchProxy",)  # what it sets concerns that alone
_LOCKS: Any = type(threading.Lock()), type(threading.RLock())
_LABELS = (torch.profiler.record_function, torch.autograd.profiler.record_function)


def enter(rec: Recorder, manager: Any) -> Any:
    """The context manager that the `with` statement should enter."""
    if isinstance(manager, _GRAD_MODES):
        return manager
    if isinstance(manager, torch.autocast):
        return _Autocast(rec, manager)
    if isinstance(manager, torch.inference_mode) and (
        manager.mode or not torch.is_inference_mode_enabled()
    ):
        return _Inference(rec, manager)
    if isinstance(manager, contextlib.nullcontext):
        return manager
    if isinstance(manager, torch.device):
        return manager  # its mode hands on each factory with the device, to the recorder
    if isinstance(manager, _LABELS) or type(manager).__name__ in _FOR_TORCHS_COMPILER:
        return _Unseen(rec, manager)
    if type(manager).__name__ == "TransformGetItemToIndex":
        return _Indexing(rec, manager)
    if isinstance(manager, _LOCKS):
        return _Locked(rec, manager)
    if isinstance(manager, _WITHOUT_CLASSES):
        return torch._C.DisableTorchFunctionSubclass()  # else the recorder's mode would be off, too
    if isinstance(manager, TorchFunctionMode) and not is_stable(type(manager)):
        return _Rewritten(rec, manager)
    if python_method(rec, manager, "__enter__") and python_method(rec, manager, "__exit__"):
        return _Rewritten(rec, manager)
    rec.stop(catalogue.UNSUPPORTED, f"the context manager {type(manager).__name__}")
    return manager


_ENTERED_BY_CALL: frozenset[Any] = frozenset(
    getattr(cls, name)
    for cls in (torch.autocast, torch.inference_mode, *_LABELS, *_LOCKS)
    for name in ("__enter__", "__exit__")
)


def takes_method(function: Any) -> bool:
    """Whether this enters or leaves, by a call as ExitStack makes it, what `with` enters above."""
    kinds = types.FunctionType | types.MethodDescriptorType
    return isinstance(function, kinds) and function in _ENTERED_BY_CALL


def call_method(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    manager, *error = args
    if function.__name__ == "__exit__":
        entered = next((each for each in reversed(rec.entered) if each[0] is manager), None)
        if entered is None:
            rec.stop(catalogue.UNSUPPORTED, f"{type(manager).__name__} was entered elsewhere")
            return rec.once(function, args, kwargs)
        rec.entered.remove(entered)
        return entered[1].__exit__(*error)
    entering = enter(rec, manager)
    rec.entered.append((manager, entering))
    return entering.__enter__()


def takes_lock(function: Any) -> bool:
    return isinstance(owner_of(function), _LOCKS) and function.__name__ in ("acquire", "release")


def call_lock(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args or kwargs:
        rec.stop(catalogue.OPAQUE_CALL, f"{function.__name__}() that may fail")
        return rec.once(function, args, kwargs)
    return _Locked(rec, function.__self__).done(function.__name__)


class _Autocast:
    """Enters the real autocast and records the pair of nodes that AOTAutograd knows."""

    def __init__(self, rec: Recorder, manager: torch.autocast) -> None:
        self._rec, self._manager = rec, manager
        self._node: Any = None

    def __enter__(self) -> Any:
        manager = self._manager
        if self._rec.active:
            state = (manager.device, manager.fast_dtype, manager._enabled, manager._cache_enabled)
            self._node = self._rec.segment.call(
                "call_function",
                torch.amp.autocast_mode._enter_autocast,
                state,
                {},
                self._rec.origin(),
            )
            self._rec.open_contexts += 1
        return manager.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> Any:
        result = self._manager.__exit__(*error)
        if self._node is not None and self._rec.active:
            self._rec.segment.call(
                "call_function",
                torch.amp.autocast_mode._exit_autocast,
                (self._node,),
                {},
                self._rec.origin(),
            )
            self._rec.open_contexts -= 1
        return result


class _Inference:
    """Inference mode; to the graph, grad mode off. What is made inside and leaves the call is made
    an inference tensor by its recipe. `inference_mode(False)` is grad mode on."""

    def __init__(self, rec: Recorder, manager: torch.inference_mode) -> None:
        self._rec, self._manager = rec, manager

    def __enter__(self) -> None:
        self._before = torch.is_grad_enabled()
        self._manager.__enter__()
        self._note(not self._manager.mode)

    def __exit__(self, *error: Any) -> None:
        self._manager.__exit__(*error)
        self._note(self._before)

    def _note(self, enabled: bool) -> None:
        rec = self._rec
        if rec.active:
            target = torch._C._set_grad_enabled
            rec.segment.call("call_function", target, (enabled,), {}, rec.origin())


class _Indexing:
    """Indices are taken by an operator of torch's that vmap knows; the recorder is asked to see to
    it, since it would not see what the mode itself calls."""

    def __init__(self, rec: Recorder, manager: Any) -> None:
        self._rec, self._manager = rec, manager

    def __enter__(self) -> Any:
        self._before, self._rec.index_mode = self._rec.index_mode, self._manager
        return self._manager

    def __exit__(self, *error: Any) -> Any:
        self._rec.index_mode = self._before


class _Unseen:
    """A label for the profiler: entered, and no part of the graph."""

    def __init__(self, rec: Recorder, manager: Any) -> None:
        self._rec, self._manager = rec, manager

    def __enter__(self) -> Any:
        with self._rec.paused():
            return self._manager.__enter__()

    def __exit__(self, *error: Any) -> Any:
        with self._rec.paused():
            return self._manager.__exit__(*error)


class _Locked:
    """A lock, taken now, and at later calls for what is done to the outside while it is held."""

    def __init__(self, rec: Recorder, lock: Any) -> None:
        self._rec, self._lock = rec, lock

    def __enter__(self) -> Any:
        return self.done("acquire")

    def __exit__(self, *error: Any) -> None:
        self.done("release")

    def done(self, name: str) -> Any:
        result = self._rec.once(getattr(self._lock, name))
        if self._rec.active:
            function = getattr(type(self._lock), name)
            self._rec.effects.append(SideEffect(function, (self._lock,)))
        return result


class _Rewritten:
    """A context manager whose methods are Python: they run rewritten."""

    def __init__(self, rec: Recorder, manager: Any) -> None:
        self._rec, self._manager = rec, manager

    def __enter__(self) -> Any:
        return self._run("__enter__")

    def __exit__(self, *error: Any) -> Any:
        return self._run("__exit__", *error)

    def _run(self, name: str, *args: Any) -> Any:
        if not self._rec.active:
            return getattr(type(self._manager), name)(self._manager, *args)
        return self._rec.call(getattr(type(self._manager), name), (self._manager, *args), {})


def takes(function: Any) -> bool:
    """Whether this enters or leaves a mode of the user's that sees each function of torch's."""
    return function is TorchFunctionMode.__enter__ or function is TorchFunctionMode.__exit__


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mode, *error = args
    if function is TorchFunctionMode.__enter__:
        rec.once(function, (_WatchedMode(rec, mode),))
        return mode
    return rec.once(function, (mode, *error), kwargs)


class _WatchedMode(TorchFunctionMode):
    """Stands on torch's stack for a mode of the user's: what that does runs rewritten, and what the
    recorder does itself it is not told."""

    def __init__(self, rec: Recorder, mode: TorchFunctionMode) -> None:
        super().__init__()
        self._rec, self._mode = rec, mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer: Any = type(self._mode).__torch_function__
        given = (func, types, args, kwargs or {})
        if not self._rec.active:
            return answer(self._mode, *given)
        if current.recorder() is not self._rec:
            return func(*args, **(kwargs or {}))
        return self._rec.call(answer, (self._mode, *given), {})


def takes_maker(function: Any) -> bool:
    """Whether this makes what `contextlib.contextmanager` gives."""
    return function is contextlib._GeneratorContextManager


def make(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`_GeneratorContextManager(func, args, kwds)` over the rewritten generator function."""
    generator, *rest = args
    if isinstance(generator, types.FunctionType) and not rec.rewriter.made_in_call(rec, generator):
        if rec.rewriter.is_rewritten(generator.__code__):
            generator = rec.rewriter.original_of(generator)
            rec.known.register(generator, Obj(generator, generator.__qualname__))
        generator = rec.rewriter.rewrite(generator)
    return function(generator, *rest, **kwargs)
