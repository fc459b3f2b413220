"""Nodes of a torch-level graph that call what `torch.func` made of a function: `vmap`, `grad`,
`vjp`, `jvp`, `jacrev`, `jacfwd`. The function is a graph of its own."""

import dataclasses
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch import apis, eager_transforms
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_MAPPED = ("wrapped", "wrapped_with_chunks", "wrapper", "wrapper_fn")
_SPACES = (vars(apis), vars(eager_transforms))
DIRECT = (torch.func.vjp, torch.func.jvp)
_JACFWD = torch.func.jacfwd(torch.sin).__code__


def is_mapped(function: Any) -> bool:
    """Whether `function` is what `vmap(f)`, `grad(f)`, `jacrev(f)` and the like give."""
    if not isinstance(function, types.FunctionType) or "func" not in function.__code__.co_freevars:
        return False
    known = any(function.__globals__ is space for space in _SPACES)
    functional = "remove" in function.__code__.co_freevars  # `functionalize`
    return known and not functional and function.__code__.co_name in _MAPPED


def is_pullback(function: Any) -> bool:
    """Whether `function` is the second result of `vjp`."""
    if not isinstance(function, types.FunctionType):
        return False
    frees = function.__code__.co_freevars
    return function.__globals__ is vars(eager_transforms) and "flat_diff_primals" in frees


def applied_to(transform: Any, body: Callable[..., Any]) -> Callable[..., Any]:
    """The transform with `body` as the function that it transforms."""
    if transform in DIRECT:
        return functools.partial(transform, body)
    cells = tuple(
        types.CellType(body) if name == "func" else cell
        for name, cell in zip(transform.__code__.co_freevars, transform.__closure__, strict=True)
    )
    made = types.FunctionType(
        transform.__code__, transform.__globals__, transform.__name__, None, cells
    )
    made.__kwdefaults__ = transform.__kwdefaults__
    return made


def results_in(result: Any) -> list[Any]:
    """What a node of this kind gives: the tensors in a nested result, and the function of `vjp`."""
    leaves = pytree.tree_leaves(result)
    return [each for each in leaves if isinstance(each, torch.Tensor) or is_pullback(each)]


@dataclasses.dataclass(frozen=True, eq=False)
class Transformed:
    """`transform(body)(*args, **kwargs)`. body: a graph that takes `captured` tensors, then the
    tensors among its arguments, and gives the leaves of its result, laid out as `result`; `given`:
    how the leaves of args and kwargs are laid out. A call gives `results_in`, as a tuple."""

    transform: Any
    body: GraphModule
    given: pytree.TreeSpec
    result: pytree.TreeSpec
    __name__ = "transformed"

    def is_forward_mode(self) -> bool:
        """Whether derivatives are taken forward, here or in the body."""
        here = bool(self.transform is torch.func.jvp or self.transform.__code__ is _JACFWD)
        inside = (node.target for node in self.body.graph.nodes)
        return here or any(isinstance(f, Transformed) and f.is_forward_mode() for f in inside)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Transformed):
            return False
        return bool(self._described() == other._described())

    def __hash__(self) -> int:
        return hash(self.body.code)

    def _described(self) -> Any:
        closure = self.transform.__closure__ or ()
        names = self.transform.__code__.co_freevars
        options = [
            (name, repr(cell.cell_contents))
            for name, cell in zip(names, closure, strict=True)
            if name != "func"
        ]
        return self.transform.__code__, options, self.body.code, self.given, self.result

    def __call__(self, captured: Sequence[Any], *leaves: Any) -> tuple[Any, ...]:
        def body(*args: Any, **kwargs: Any) -> Any:
            inputs = pytree.tree_leaves((args, kwargs))
            tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
            return pytree.tree_unflatten(list(self.body(*captured, *tensors)), self.result)

        args, kwargs = pytree.tree_unflatten(list(leaves), self.given)
        return tuple(results_in(applied_to(self.transform, body)(*args, **kwargs)))


@dataclasses.dataclass(frozen=True)
class Indexed:
    """`tensor[index]` under a mode that says how."""

    mode: type[TorchFunctionMode]
    __name__ = "indexed"

    def __call__(self, tensor: torch.Tensor, index: Any) -> Any:
        with self.mode():
            return tensor[index]


@dataclasses.dataclass(frozen=True)
class PulledBack:
    """A call of the function that `vjp` gave; `given`: how the leaves of its arguments are laid
    out."""

    given: pytree.TreeSpec
    __name__ = "pulled_back"

    def __call__(self, function: Callable[..., Any], *leaves: Any) -> tuple[Any, ...]:
        args, kwargs = pytree.tree_unflatten(list(leaves), self.given)
        return tuple(results_in(function(*args, **kwargs)))
