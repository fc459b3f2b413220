"""`torch.autograd.Function.apply`: one node, where forward and backward only compute."""

import dataclasses
import types
from typing import Any

import torch

from ....runtime.guards.guard import Attr, Is, Obj
from ... import catalogue
from ...capture import current
from ...capture.nested import concretize, plain_in, tensors_in
from ...capture.trace import Recorder
from ...source.live_source import NotRewritable
from ..lookup import owner_of
from . import effect_free_code


def is_apply(function: Any) -> bool:
    owner = owner_of(function)
    return (
        isinstance(owner, type)
        and issubclass(owner, torch.autograd.Function)
        and getattr(function, "__name__", "") == "apply"
    )


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    cls = function.__self__
    try:
        reads = effect_free_code.ConstantReads()
        reads.of_class(cls)
    except (effect_free_code.NotEffectFree, NotRewritable) as loud:
        if not kwargs and not _has_history(args):
            return _without_history(rec, cls, args)
        rec.stop(catalogue.OPAQUE_CALL, f"{cls.__qualname__}.apply: {loud}")
        return rec.once(function, plain_in(args), plain_in(kwargs))
    _guard_parts(rec, cls)
    reads.guard(rec)
    target = TensorsOf(function)
    result = as_node(rec, target, args, kwargs)
    if not target.constants:
        return result
    for tensor in tensors_in(args):  # what numbers it gives may follow from sizes
        concretize(tuple(tensor.shape))
    return tuple(target.constants.get(place, part) for place, part in enumerate(result))


def _guard_parts(rec: Recorder, cls: Any) -> None:
    for name in effect_free_code.PARTS:
        path = Attr(Obj(cls, cls.__qualname__), name)
        rec.known.guard(path, Is(getattr(cls, name)))


def _has_history(args: tuple[Any, ...]) -> bool:
    """Whether the call makes a node of autograd."""
    if not torch.is_grad_enabled():
        return False
    return any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)


class _Context:
    """What `forward` is given where nothing goes backward: it keeps what it is told."""

    def __init__(self, inputs: int) -> None:
        self.needs_input_grad = (False,) * inputs
        self.saved_tensors: tuple[Any, ...] = ()
        self.dirty: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    save_for_forward = save_for_backward

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """It makes no difference."""

    def mark_dirty(self, *tensors: Any) -> None:
        self.dirty = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """It makes no difference."""

    if hasattr(torch.autograd.function.FunctionCtx, "set_output_grad_dtype"):  # torch 2.14

        def set_output_grad_dtype(self, *dtypes: torch.dtype | None) -> None:
            """It makes no difference."""


def _without_history(rec: Recorder, cls: Any, args: tuple[Any, ...]) -> Any:
    """`forward` is a function as any other, run without grad mode."""
    _guard_parts(rec, cls)
    ctx = _Context(len(args))
    two_steps = cls.setup_context is not torch.autograd.function._SingleLevelFunction.setup_context
    with torch.no_grad():
        if two_steps:
            result = rec.call(cls.forward, args, {})
            rec.call(cls.setup_context, (ctx, args, result), {})
        else:
            result = rec.call(cls.forward, (ctx, *args), {})
        if isinstance(result, tuple):
            return tuple(_not_an_input(part, args, ctx) for part in result)
        return _not_an_input(result, args, ctx)


def _not_an_input(part: Any, args: tuple[Any, ...], ctx: _Context) -> Any:
    """An input that is given back is another object, unless it was written."""
    if not isinstance(part, torch.Tensor) or any(part is tensor for tensor in ctx.dirty):
        return part
    return part.view_as(part) if any(part is arg for arg in args) else part


def as_node(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One node that runs the function itself."""
    before = current.install(None)
    try:
        with torch._C.DisableTorchFunction():
            is_named = isinstance(function, types.FunctionType | Called)
            named = function if is_named else Called(function)
            return rec.opaque(named, args, kwargs)
    finally:
        if rec.active:
            current.install(before)


@dataclasses.dataclass(frozen=True)
class Called:
    """Calls `function`. The text of a graph has no name for a bound method of C; two recordings are
    compared by what they call, so those of one function are equal."""

    function: Any

    @property
    def __name__(self) -> str:
        owner = getattr(self.function, "__self__", None) or self.function
        return str(getattr(owner, "__name__", "") or getattr(owner, "name", "function"))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@dataclasses.dataclass(frozen=True)
class TensorsOf(Called):
    """Calls `function`, and gives None for the constants in its result: `constants`, by place, of
    the call that was recorded."""

    constants: dict[int, Any] = dataclasses.field(default_factory=dict, compare=False)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        result = self.function(*args, **kwargs)
        if not isinstance(result, tuple) or not any(map(_is_plain_constant, result)):
            return result
        places = enumerate(result)
        self.constants.update({at: part for at, part in places if _is_plain_constant(part)})
        return tuple(None if _is_plain_constant(part) else part for part in result)


def _is_plain_constant(value: Any) -> bool:
    return isinstance(value, int | float | str)
