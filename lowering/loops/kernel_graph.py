"""What the stages pass on: one graph as loop nests and extern calls over named buffers."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import torch

from . import sizes
from .ir import Batch, Buffer, Group, Load, Nest, Value
from .polynomials import Size, Var, at_least, hint
from .sizes import Index
from .symint import SizeVariable

Shape = tuple[Size, ...]


@dataclasses.dataclass(frozen=True)
class Ref:
    """A strided tensor over a buffer, as in torch: every view is one."""

    buffer: Buffer
    shape: Shape
    strides: Shape
    offset: Size = 0

    @property
    def dtype(self) -> torch.dtype:
        return self.buffer.dtype

    @property
    def numel(self) -> Size:
        return prod(self.shape)

    def index(self, coordinates: Sequence[Index]) -> Index:
        """Where the element at `coordinates` is; leading coordinates that the tensor lacks and
        sizes of 1 broadcast."""
        own = coordinates[len(coordinates) - len(self.shape) :]
        strides = [
            0 if size == 1 else stride
            for size, stride in zip(self.shape, self.strides, strict=True)
        ]
        return sizes.linear(own, strides, self.offset)

    def load(self, coordinates: Sequence[Index], mask: Value | None = None) -> Load:
        return Load(self.buffer, self.index(coordinates), mask)

    def over(self, buffer: Buffer) -> "Ref":
        return dataclasses.replace(self, buffer=buffer)


@dataclasses.dataclass(frozen=True)
class Symbol:
    """A number, or a tensor of sizes, that no size variable describes, by its variable's name."""

    name: str


@dataclasses.dataclass(frozen=True)
class ExternCall:
    """`result = target(*args, **kwargs)`. Arguments nest lists and tuples; tensors in them are
    `Ref`s, run-time numbers sizes or `Symbol`s."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any  # Ref, Symbol, None or a tuple of them
    origin: str
    aliases: bool = False  # a result shares storage with an argument

    def reads(self) -> Iterator[Buffer]:
        return (ref.buffer for ref in leaves((self.args, self.kwargs)) if isinstance(ref, Ref))

    def writes(self) -> Iterator[Buffer]:
        return (ref.buffer for ref in leaves(self.result) if isinstance(ref, Ref))

    def replace(self, change: Callable[[Ref], Ref]) -> "ExternCall":
        """The call with its tensors changed."""
        args, kwargs, result = (
            mapped(tree, change) for tree in (self.args, self.kwargs, self.result)
        )
        return dataclasses.replace(self, args=args, kwargs=kwargs, result=result)


Item = Nest | Group | Batch | ExternCall


# What kernels compute with; tensors of others (complex, floats of 8 bits) go to the library.
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
KERNEL_DTYPES = frozenset((*_FLOATS, *_INTEGERS))
KERNEL_DEVICES = frozenset({"cpu", "cuda"})


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a buffer is allocated: the shape and strides of the tensor that was computed into it."""

    shape: Shape
    strides: Shape
    device: torch.device

    @property
    def count(self) -> Size:
        """Elements of the tensor."""
        return prod(self.shape)


@dataclasses.dataclass(frozen=True)
class Unit:
    """One graph. `items` are in an order that respects data flow. `inputs`: Ref, Symbol, or None
    for an unused input. `variables`: of its sizes, in an order in which each can be computed.
    `returned`: how many of the outputs, the first ones, the caller tells apart as objects.
    `consumes`: inputs may be held by the program alone."""

    name: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    items: tuple[Item, ...]
    layouts: dict[Buffer, Layout]
    constants: dict[Buffer, torch.Tensor]
    variables: tuple[SizeVariable | Var, ...] = ()
    returned: int = 0
    consumes: bool = False

    def replace(self, **changes: Any) -> "Unit":
        return dataclasses.replace(self, **changes)

    def given_buffers(self) -> set[Buffer]:
        """Inputs and constants."""
        return {ref.buffer for ref in self.inputs if isinstance(ref, Ref)} | set(self.constants)

    def outputs_buffers(self) -> frozenset[Buffer]:
        return frozenset(ref.buffer for ref in leaves(self.outputs) if isinstance(ref, Ref))

    def extern_buffers(self) -> frozenset[Buffer]:
        calls = [item for item in self.items if isinstance(item, ExternCall)]
        return frozenset(buffer for call in calls for buffer in (*call.reads(), *call.writes()))


def leaves(tree: Any) -> Iterator[Any]:
    """Everything that is not a list, tuple, dict or slice below `tree`."""
    if isinstance(tree, list | tuple):
        for item in tree:
            yield from leaves(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from leaves(item)
    else:
        yield tree


def mapped(tree: Any, change: Callable[[Ref], Ref]) -> Any:
    """The tree with its tensors changed."""
    if isinstance(tree, list | tuple):
        return type(tree)(mapped(item, change) for item in tree)
    if isinstance(tree, dict):
        return {key: mapped(item, change) for key, item in tree.items()}
    return change(tree) if isinstance(tree, Ref) else tree


def extent(shape: Shape, strides: Shape) -> Size:
    """Elements from the first to the last of a strided tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def is_dense(shape: Shape, strides: Shape) -> bool:
    """Whether a strided tensor fills its extent exactly once, in some order of its axes."""
    expected: Size = 1
    axes = [(stride, size) for size, stride in zip(shape, strides, strict=True) if size != 1]
    for stride, size in sorted(axes, key=lambda axis: (hint(axis[0]), hint(axis[1]))):
        if stride != expected:
            return False
        expected *= size
    return True


def is_distinct(shape: Shape, strides: Shape) -> bool:
    """Whether no two elements of a strided tensor share memory, for certain."""
    axes = [(step, size) for size, step in zip(shape, strides, strict=True) if size != 1]
    reach: Size = 0  # from the first to the last element of the axes so far
    for step, size in sorted(axes, key=lambda axis: (hint(axis[0]), hint(axis[1]))):
        if not at_least(step, reach + 1):
            return False
        reach += step * (size - 1)
    return True
