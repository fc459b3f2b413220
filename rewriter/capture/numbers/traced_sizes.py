"""Sizes that may differ at the next call: numbers that remember which tensor they were read from
and what was computed of them. Integers that the call is given and that move are treated alike.

A recording whose inputs have sizes that earlier calls saw change is *dynamic*. In it, what Python
reads of a tensor's sizes is a traced number with a `Form`: the graph gets the number as a node
(`node_of`), and after the call `symbolic` finds the expression in the inputs' sizes that it stands
for.
"""

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.fx

from ....runtime.programs.recipes import Env, Recipe
from ....runtime.programs.steps import CALL_INPUT
from .. import opsets
from ..segments import SegmentBuilder
from ..stops import RecordingStopped
from ..values import Meta, Number, TracedTensor
from .scalars import plain, size_form, traced

ARITHMETIC = frozenset(
    {
        operator.add,
        operator.sub,
        operator.mul,
        operator.floordiv,
        operator.mod,
        operator.neg,
        operator.truediv,
        operator.pow,
    }
)


OPEN = "open_size"  # in the meta of a node that gives a size which data decides
EXPONENTS = (2, 0.5, -0.5, -1)
LARGEST = 2**31  # sizes and given integers above are constants; a product of two stays in 64 bits


class SizeForm:
    """A number that follows from sizes. `seen`: its value in the recorded call. `symbol`: its
    symbolic value, once that is known."""

    def __init__(self, seen: Any) -> None:
        self.seen = seen
        self.symbol: Any = None
        self.compute: Callable[[list[Any]], Any] | None = None

    bounded = True  # whether no call can give more than LARGEST
    open = False  # whether the data of a call decides it, so that no expression stands for it

    def make(self, segment: SegmentBuilder, origin: str) -> torch.fx.Node:
        """A new node of `segment` that gives the number."""
        raise NotImplementedError


class Read(SizeForm):
    """`value.method(*arguments)`: a size, a stride, whether it is contiguous."""

    def __init__(
        self, seen: Any, value: TracedTensor, meta: Meta, method: str, arguments: tuple[Any, ...]
    ) -> None:
        super().__init__(seen)
        self.value, self.meta, self.method, self.arguments = value, meta, method, arguments
        self.gone = False  # the tensor was inside of a function that is over

    def make(self, segment: SegmentBuilder, origin: str) -> torch.fx.Node:
        if self.gone:
            raise RecordingStopped
        tensor = segment.node(self.value, self.meta)
        return segment.call("call_method", self.method, (tensor, *self.arguments), {}, origin)


class OpenRead(Read):
    """The same of a tensor that data gives its size."""

    open = True


class InputNumber(SizeForm):
    """An integer that the call was given, call input `index`."""

    bounded = False

    def __init__(self, seen: int, index: int) -> None:
        super().__init__(seen)
        self.value = TracedTensor(CALL_INPUT, None, index, Number(seen))

    def make(self, segment: SegmentBuilder, origin: str) -> torch.fx.Node:
        return segment.node(self.value, self.value.meta)


class Computed(SizeForm):
    """Arithmetic on forms and constants."""

    def __init__(self, seen: Any, function: Callable[..., Any], parts: tuple[Any, ...]) -> None:
        super().__init__(seen)
        self.function, self.parts = function, parts
        self.open = any(isinstance(part, SizeForm) and part.open for part in parts)

    def make(self, segment: SegmentBuilder, origin: str) -> torch.fx.Node:
        parts = tuple(
            node_of(part, segment, origin) if isinstance(part, SizeForm) else part
            for part in self.parts
        )
        return segment.call("call_function", self.function, parts, {}, origin)


def node_of(form: SizeForm, segment: SegmentBuilder, origin: str) -> torch.fx.Node:
    """The node of `form` in `segment`, made where it is first asked for. It is no operator: a graph
    of sizes alone is empty."""
    if form not in segment.sizes:
        ops = segment.ops
        node = segment.sizes[form] = form.make(segment, origin)
        node.meta[OPEN if form.open else "size"] = form
        segment.ops = ops
    return segment.sizes[form]


def leave(body: Any) -> None:
    """A function that has a graph of its own is over, and with it the tensors that it made."""
    for form in body.sizes:
        if isinstance(form, Read) and form.value.home == body.index:
            form.gone = True


class SizeOf(Recipe):
    """A number that later calls compute from the sizes of their inputs."""

    sizes = True

    def __init__(self, form: SizeForm) -> None:
        self.form = form

    def make(self, env: Env) -> Any:
        if isinstance(env, SymbolicEnv):
            return self.form.symbol
        assert self.form.compute is not None
        return self.form.compute(env.inputs)


class SymbolicEnv(Env):
    """Stands for all later calls at once: sizes are symbols."""

    def __init__(self) -> None:
        super().__init__([], 0)


def of_call(function: Any, args: tuple[Any, ...]) -> SizeForm | None:
    """The form of arithmetic on traced sizes and plain numbers."""
    if function not in ARITHMETIC:
        return None
    parts = tuple(size_form(arg) or arg for arg in args)
    if not any(isinstance(part, SizeForm) for part in parts) or not all(map(_is_small, parts)):
        return None
    if function is operator.pow and parts[1] not in EXPONENTS:
        return None
    return Computed(function(*map(plain, args)), function, parts)


def _is_small(part: Any) -> bool:
    """A form, or a number with which sizes stay in 64 bits."""
    return (
        isinstance(part, SizeForm)
        or type(part) is float
        or (type(part) is int and abs(part) < LARGEST)
    )


def watched(rec: Any, func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """What `func` says of a tensor's sizes, in a dynamic recording. Raises Stopped."""
    result = func(*args, **kwargs)
    if name not in opsets.SIZED or not isinstance(args[0], torch.Tensor):
        return result
    if name == "get:shape" or (name == "size" and len(args) + len(kwargs) == 1):
        return torch.Size([size_of(rec, args[0], dim) for dim in range(len(result))])
    if name == "size":
        return size_of(rec, args[0], kwargs["dim"] if kwargs else args[1])
    if name in ("numel", "nelement"):
        return _number(rec, result, args[0], "numel", ())
    return _compared(rec, result, name, args, kwargs)


def size_of(rec: Any, tensor: torch.Tensor, dim: int) -> Any:
    """The size of `tensor` in `dim`, traced unless it is that of an input which does not change."""
    size = tensor.size(dim)
    return (
        size
        if _fixed(rec, tensor, dim % tensor.dim())
        else _number(rec, size, tensor, "size", (dim,))
    )


def _fixed(rec: Any, tensor: torch.Tensor, dim: int | None) -> bool:
    """Whether a size (dim None: any) is that of a call input's dim which is not dynamic."""
    value = rec.value(tensor)
    if value.home != CALL_INPUT or value.meta.size != tuple(tensor.shape):
        return False
    dims = rec.dynamic_inputs.get(value.index, ())
    return dim not in dims if dim is not None else not dims


def _number(
    rec: Any, seen: Any, tensor: torch.Tensor, method: str, arguments: tuple[Any, ...]
) -> Any:
    form = Read(seen, rec.value(tensor), Meta.of(tensor), method, arguments)
    node_of(form, rec.segment, rec.origin())
    return traced(seen, SizeOf(form), form, rec)


def _compared(rec: Any, result: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Strides and the like: part of what the recording stands for."""
    if (
        name in ("stride", "is_contiguous", "dim_order")
        and not kwargs
        and not _fixed(rec, args[0], None)
    ):
        form = Read(result, rec.value(args[0]), Meta.of(args[0]), name, tuple(args[1:]))
        node_of(form, rec.segment, rec.origin())
        rec.outcome(SizeOf(form), result)
        return result
    for tensor in (arg for arg in args if isinstance(arg, torch.Tensor)):
        rely_on(rec, tensor)
    return result


def rely_on(rec: Any, tensor: torch.Tensor, dims: Iterable[int] | None = None) -> None:
    """Sizes of the tensor, all or those of some dims, become part of what the recording stands
    for."""
    for dim in range(tensor.dim()) if dims is None else dims:
        if not _fixed(rec, tensor, dim):
            form = Read(tensor.size(dim), rec.value(tensor), Meta.of(tensor), "size", (dim,))
            node_of(form, rec.segment, rec.origin())
            rec.outcome(SizeOf(form), form.seen)
