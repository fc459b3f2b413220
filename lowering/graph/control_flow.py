"""Nodes of a torch-level graph that choose or repeat a graph of their own: `torch.cond`,
`torch.while_loop`."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ...runtime.programs.program import expect


@dataclasses.dataclass(frozen=True, eq=False)
class Bodies:
    """Two graphs; each takes `captured` tensors of its own, then the operands, and gives a list of
    tensors."""

    first: GraphModule
    second: GraphModule

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._codes() == other._codes()

    def __hash__(self) -> int:
        return hash(self._codes())

    def _codes(self) -> tuple[str, str]:
        return self.first.code, self.second.code

    @property
    def graphs(self) -> tuple[GraphModule, GraphModule]:
        return self.first, self.second

    def through(self, change: Callable[[GraphModule], Any]) -> "Bodies":
        """The same choice between what `change` makes of the graphs."""
        return type(self)(change(self.first), change(self.second))

    def _functions(self, captured: int, own: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Both as functions of (operands, what the first captures, what the second does)."""
        first, second, end = self.first, self.second, own + captured

        def one(*given: Any) -> Any:
            return first(*given[own:end], *given[:own])

        def two(*given: Any) -> Any:
            return second(*given[end:], *given[:own])

        return one, two


def with_bodies(module: GraphModule) -> Iterator[GraphModule]:
    """The graph, and those that choices in it run, inner ones first."""
    for node in module.graph.nodes:
        if isinstance(node.target, Bodies):
            for body in node.target.graphs:
                yield from with_bodies(body)
    yield module


def chosen_in_truth(call: Callable[..., Any], function: Any, *given: Any, **named: Any) -> Any:
    """What `torch.cond` or `torch.while_loop` gives, by Python's `if` and `while`; `call` calls
    what they are given."""
    make = _looped if function is torch.while_loop else _taken
    return make(call, *given, **named)


def _taken(
    call: Callable[..., Any], pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()
) -> Any:
    result = call(true_fn if pred else false_fn, *operands)
    return _copied_operands(result, operands)


def _looped(call: Callable[..., Any], cond_fn: Any, body_fn: Any, carried_inputs: Any) -> Any:
    result = tuple(carried_inputs)
    while call(cond_fn, *result):
        result = tuple(call(body_fn, *result))
    return _copied_operands(result, carried_inputs)


def _copied_operands(result: Any, operands: Any) -> Any:
    """Copies of those results that are operands, or views of them."""
    tensors = (each for each in pytree.tree_leaves(operands) if isinstance(each, torch.Tensor))
    shared = {each.untyped_storage()._cdata for each in tensors}
    return pytree.tree_map_only(
        torch.Tensor,
        lambda each: each.clone() if each.untyped_storage()._cdata in shared else each,
        result,
    )


class Chosen(Bodies):
    """`torch.cond`: gives what the first graph gives where `test` holds, else the second's."""

    __name__ = "cond"

    def __call__(
        self, test: torch.Tensor, first: Sequence[Any], second: Sequence[Any], *operands: Any
    ) -> tuple[Any, ...]:
        one, two = self._functions(len(first), len(operands))
        given, places = _each_once((*operands, *first, *second))
        return tuple(
            torch.ops.higher_order.cond(
                test,
                lambda *a: tuple(one(*(a[i] for i in places))),
                lambda *a: tuple(two(*(a[i] for i in places))),
                given,
            )
        )


def _each_once(tensors: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[int]]:
    """The tensors that are different ones, and where each stands among them: torch's operator
    refuses one that it is given twice."""
    once = {id(each): each for each in tensors}
    order = list(once)
    return tuple(once.values()), [order.index(id(each)) for each in tensors]


def _given_once(operands: Sequence[Any], captured: Sequence[Any]) -> tuple[Any, ...]:
    """Copies of operands that are given twice."""
    given = [*map(id, captured), *map(id, operands)]
    return tuple(each.clone() if given.count(id(each)) > 1 else each for each in operands)


class Repeated(Bodies):
    """`torch.while_loop`: the operands, replaced by what the second graph gives as long as the
    first gives a true one."""

    __name__ = "while_loop"

    def __call__(
        self, first: Sequence[Any], second: Sequence[Any], *operands: Any
    ) -> tuple[Any, ...]:
        if not is_traced():
            while self.first(*first, *operands)[0]:
                operands = tuple(self.second(*second, *operands))
            return tuple(map(torch.clone, operands))
        own = len(operands)
        one, two = self._functions(len(first), own)
        captured, places = _each_once((*first, *second))

        def spread(given: tuple[Any, ...]) -> tuple[Any, ...]:
            return (*given[:own], *(given[own + place] for place in places))

        return tuple(
            torch.ops.higher_order.while_loop(
                lambda *a: one(*spread(a))[0],
                lambda *a: tuple(two(*spread(a))),
                _given_once(operands, captured),
                captured,
            )
        )


def is_traced() -> bool:
    """Whether this runs for a tracer or on fake tensors, which have no values."""
    return bool(_get_current_dispatch_mode_stack())


def is_choice(target: Any) -> bool:
    """Whether a call of a core-ATen graph runs graphs of its own, as its data decide."""
    known = torch.ops.higher_order
    return target is known.cond or target is known.while_loop


class CompiledBody(torch.nn.Module):
    """A graph of `cond` or `while_loop`, compiled. `layouts`: sizes, strides and dtypes of the
    tensors that it was compiled for; others are copied."""

    def __init__(self, program: Callable[[list[Any]], list[Any]], layouts: list[Any]) -> None:
        super().__init__()
        self.program, self.layouts = program, layouts

    def forward(self, *given: Any) -> tuple[Any, ...]:
        pairs = zip(given, self.layouts, strict=True)
        return tuple(self.program([expect(each, *layout) for each, layout in pairs]))


def compile_bodies(gm: GraphModule, compiled: Callable[[GraphModule], Any]) -> None:
    """Replace the graphs that choices in `gm` run by compiled ones, where all of their sizes are
    known."""
    for node in gm.graph.nodes:
        if not is_choice(node.target):
            continue
        for source in node.all_input_nodes:
            body: Any = getattr(gm, str(source.target), None) if source.op == "get_attr" else None
            layouts = _layouts(body) if isinstance(body, GraphModule) else None
            if layouts is not None:
                setattr(gm, str(source.target), CompiledBody(compiled(body), layouts))


def _layouts(body: GraphModule) -> list[Any] | None:
    """Sizes and strides of what the graph takes, if they are known and it gives several tensors."""
    places = [node for node in body.graph.nodes if node.op == "placeholder"]
    values = [node.meta.get("val") for node in places]
    known = all(isinstance(v, torch.Tensor) and not v._has_symbolic_sizes_strides for v in values)
    if not known or not isinstance(body.graph.output_node().args[0], tuple | list):
        return None
    made = (node for node in body.graph.nodes if node.op not in ("output", "get_attr"))
    if any("val" not in node.meta for node in made):
        return None
    return [(tuple(value.shape), value.stride(), value.dtype) for value in values]
