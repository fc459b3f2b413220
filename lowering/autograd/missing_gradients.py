"""Backwards of results whose gradients nobody gives, such as the logits beside a loss.

Autograd makes zeros for them, as large as the result. A backward program of its own takes them for
zero instead, as eager, which does not go that way at all.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node

from ...runtime.cache.plain_data import Damaged, Decoder, Encoder
from ...runtime.errors import LoweringError
from ..graph.graph_modules import graph_module
from ..graph.raising_calls import drop_unneeded
from .direct_calls import program_in

aten = torch.ops.aten

MIN_ZEROS_BYTES = 1 << 20  # bytes of zeros below which a program of its own is not worth it
_TANGENTS = "tangents_"  # how AOTAutograd names gradients of results
_VIEWS = frozenset({aten.view, aten.reshape, aten._unsafe_view, aten.permute, aten.transpose})
_LINEAR = _VIEWS | {aten.t, aten.unsqueeze, aten.squeeze, aten.expand, aten.clone, aten.alias}
_LINEAR |= {aten._to_copy, aten.neg, aten.sum, aten.mm, aten.bmm, aten.mul, aten.slice_backward}


class _Now(threading.local):
    missing: frozenset[int] = frozenset()
    ahead = False


_now = _Now()


@contextmanager
def without(missing: frozenset[int]) -> Iterator[None]:
    """While a backward runs: which of the gradients that it takes were not given."""
    before, _now.missing = _now.missing, missing
    try:
        yield
    finally:
        _now.missing = before


@contextmanager
def ahead_of_calls() -> Iterator[None]:
    """Inside, backwards are compiled that nobody has asked for yet: not those that depend on which
    gradients are given."""
    before, _now.ahead = _now.ahead, True
    try:
        yield
    finally:
        _now.ahead = before


def missing() -> frozenset[int]:
    return _now.missing


class Zero(NamedTuple):
    """Which gradients a backward program takes for zero, and the layouts of all that it was traced
    for: (sizes, strides, dtype, device) each."""

    places: frozenset[int]
    layouts: tuple[tuple[Any, ...], ...]


class NotStored(LookupError):
    """A gradient was given that the one stored backward program takes for zero."""


class Backward:
    """The backward programs of one graph: `program(arguments)`, whose last are the gradients.

    `compile`: of a graph; `made`: the programs so far, by the gradients that they take for zero.
    Without `compile`, in a process that has loaded the programs, one that is not there raises
    NotStored.
    """

    _boxed_call = True

    def __init__(
        self,
        layouts: Sequence[tuple[Any, ...]],
        made: dict[frozenset[int], Any],
        compile: Callable[[frozenset[int]], Any] | None,
    ) -> None:
        self.layouts, self.made, self._compile = layouts, made, compile
        self.apart = frozenset(
            k for k, layout in enumerate(layouts) if _bytes(layout) >= MIN_ZEROS_BYTES
        )

    def __call__(self, arguments: list[Any]) -> Any:
        absent = _now.missing & self.apart
        zero = self.choose(absent)
        first = len(arguments) - len(self.layouts)
        for k in absent - zero:
            arguments[first + k] = _zeros(self.layouts[k])
        if not zero:
            return self.made[zero](arguments)
        kept = [each for n, each in enumerate(arguments) if n - first not in zero]
        arguments.clear()
        return self.made[zero](kept)

    def fits(self, absent: frozenset[int]) -> bool:
        """Whether there is a program that serves where `absent` are not given."""
        return any(zero <= absent for zero in self.made)

    def choose(self, absent: frozenset[int]) -> frozenset[int]:
        """The gradients that the program takes for zero which serves where `absent` are not given:
        a second program is for all that may come."""
        fits = [zero for zero in self.made if zero <= absent]
        if fits:
            return max(fits, key=len)
        zero = absent if not self.made else frozenset()
        if self._compile is None:
            raise NotStored("a stored backward takes for zero what a gradient was given for")
        self.made[zero] = self._compile(zero)
        return zero


def is_built(program: Any, absent: frozenset[int]) -> bool:
    """Whether a backward without the gradients `absent` makes no program."""
    program = program_in(program)
    built = not isinstance(program, Backward) or program.fits(absent & program.apart)
    return program is not None and built


def unread(program: Any) -> frozenset[int]:
    """The missing gradients that a backward program does not read, and that may lie as they will:
    of all others zeros are read."""
    if not _now.missing:
        return _now.missing
    program = program_in(program)
    return _now.missing & program.apart if isinstance(program, Backward) else frozenset()


def backward(graph: GraphModule, compile_: Callable[..., Any]) -> Any:
    """The program of a backward graph, `compile_(graph)`, or `Backward`, if some of its gradients
    are large and may be missing beside others: `compile_(graph, Zero)`."""
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    tangents = [node for node in places if node.name.startswith(_TANGENTS)]
    last = places[len(places) - len(tangents) :]
    layouts = [_layout(node.meta.get("val")) for node in tangents]
    if len(tangents) < 2 or tangents != last or None in layouts:
        return compile_(graph)
    known = [layout for layout in layouts if layout is not None]
    if max(map(_bytes, known)) < MIN_ZEROS_BYTES:
        return compile_(graph)
    if _now.ahead:
        raise LoweringError("which gradients are given is not known before a call")
    pristine = _copied(graph)

    def compiled(zero: frozenset[int]) -> Any:
        made = _copied(pristine)
        _take_for_zero(made, len(tangents), zero)
        return compile_(made, Zero(zero, tuple(known)) if zero else None)

    found = Backward(known, {}, compiled)
    found.choose(_now.missing & found.apart)
    return found


def _layout(value: Any) -> tuple[Any, ...] | None:
    """(sizes, strides, dtype, device) of a dense tensor of known sizes."""
    if type(value) is not torch._subclasses.FakeTensor or value.layout != torch.strided:
        return None
    numbers = tuple(value.shape), tuple(value.stride())
    if not all(type(n) is int for each in numbers for n in each):
        return None
    return *numbers, value.dtype, value.device


def _bytes(layout: tuple[Any, ...]) -> int:
    shape, _, dtype, _ = layout
    return int(torch.Size(shape).numel()) * int(dtype.itemsize)


def _zeros(layout: tuple[Any, ...]) -> torch.Tensor:
    shape, strides, dtype, device = layout
    return torch.empty_strided(shape, strides, dtype=dtype, device=device).zero_()


def _copied(graph: GraphModule) -> GraphModule:
    made = Graph()
    made.output(made.graph_copy(graph.graph, {}))
    return graph_module(graph, made)


# ---- as plain data


def to_data(zero: Zero) -> Any:
    return Encoder(_no_launch).encode((tuple(sorted(zero.places)), zero.layouts))


def from_data(data: Any, program: Any) -> Backward:
    """A stored program, alone. Raises Damaged."""
    places, layouts = Decoder(_no_launch).decode(data)
    return Backward(layouts, {frozenset(places): program}, None)


def _no_launch(data: Any) -> Any:
    raise Damaged("a kernel among layouts")


# ---- zeros in a graph


def _take_for_zero(graph: GraphModule, tangents: int, zero: frozenset[int]) -> None:
    """Rewrite the graph: it has no such inputs, and goes on without what was made of them alone."""
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    gone = [places[len(places) - tangents + k] for k in sorted(zero)]
    zeros = set(gone)
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or zeros.isdisjoint(node.all_input_nodes):
            continue
        other = _summand(node, zeros)
        if other is not None:
            node.replace_all_uses_with(other)
        elif _overload_packet(node) in _LINEAR and _is_plain(node):
            zeros.add(node)
    _write_out(graph.graph, zeros)
    drop_unneeded(graph.graph)
    for node in gone:
        graph.graph.erase_node(node)
    graph.recompile()


def _overload_packet(node: Node) -> Any:
    return getattr(node.target, "overloadpacket", None)


def _is_plain(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _summand(node: Node, zeros: set[Node]) -> Node | None:
    """What a sum is where the other summand is zero, if it lies as the sum does."""
    if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
        return None
    one, two = node.args
    if not (isinstance(one, Node) and isinstance(two, Node)):
        return None
    other = two if one in zeros else one
    return other if other not in zeros and _alike(other, node) else None


def _alike(one: Node, two: Node) -> bool:
    layouts = [_layout(node.meta.get("val")) for node in (one, two)]
    return layouts[0] is not None and layouts[0] == layouts[1]


def _write_out(graph: Graph, zeros: set[Node]) -> None:
    """Zeros that something else than other zeros is made of, where they are first used."""
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node in zeros:
        users = sorted((user for user in node.users if user not in zeros), key=order.__getitem__)
        if not users:
            continue
        value = node.meta["val"]
        with graph.inserting_before(users[0]):
            how = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
            made = graph.call_function(aten.full.default, (list(value.shape), 0), how)
        made.meta.update(node.meta, val=value.new_empty(value.shape))
        for user in users:
            user.replace_input_with(node, made)
