"""The recorded program while it grows: a chain of torch-level fx graphs, cut where Python needed a
value."""

import dataclasses
import functools
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Graph

from ...lowering.autograd.result_views import ResultOrigin
from ...lowering.graph.graph_modules import graph_module
from ...lowering.graph.result_strides import (
    NOTED,
    asks_for_strides,
    copied_with_gaps,
    is_dense,
    name_of,
    overlaps,
    reads_by_strides,
)
from ...runtime.programs.steps import CALL_INPUT, HOST, Feed
from .opsets import overlaps_itself
from .values import Meta, Number, TracedTensor, Tracked

READ = "read"  # in the meta of a copy that is made because Python asks what it holds
LIBRARY = "library"  # in the meta of a call that no kernel stands for
LOOKS = "looks"  # in the meta of a node of a graph with such calls: the Meta of its plain tensor
RESHAPES = "reshapes"  # in the meta of a view that stands for another shape of the tensor itself


@functools.cache
def _node_name(target: str) -> str:
    """What `Graph` itself would call a node."""
    return Graph()._target_to_str(target)


@dataclasses.dataclass(eq=False)
class Segment:
    """A finished piece: its graph, where its inputs come from, how they look. `eager`: never
    compiled (data-dependent shape). `made`: how its results were made in eager; `uncounted`: of
    `writes`, those that eager's versions do not tell of."""

    module: torch.fx.GraphModule
    feeds: tuple[Feed, ...]
    metas: tuple[Meta | Number, ...]
    eager: bool
    ops: int
    writes: tuple[int, ...]
    random: bool
    histories: tuple[int, ...] = ()
    open: bool = False  # sizes that only the data of a call decides are inside
    made: tuple[ResultOrigin, ...] = ()
    uncounted: tuple[int, ...] = ()
    writes_inside: bool = False  # what may be compiled writes some tensor

    def writes_history(self) -> bool:
        """Whether a write of an input is part of its gradient history, and so of that of its base
        and of their views, which a program of functions cannot touch."""
        return bool(self.histories)

    def takes_lazy_numbers(self) -> bool:
        """Whether an input's numbers are not those in its memory, which kernels see alone: the
        imaginary part of a lazy conjugate has their negatives there."""
        return any(isinstance(meta, Meta) and meta.is_lazy for meta in self.metas)


def is_detach(node: torch.fx.Node) -> bool:
    """Whether it takes a tensor's values without its history."""
    data = node.target is getattr and node.args[1] == "data"
    return data or node.target in ("detach", torch.detach, torch.Tensor.detach)


class SegmentBuilder:
    """Grows one fx graph. Values of other segments and call inputs come in as placeholders when
    they are first used."""

    def __init__(self, index: int, eager: bool = False) -> None:
        self.index, self.eager = index, eager
        self.graph = Graph()
        self.outputs: list[TracedTensor] = []
        self.copied: set[TracedTensor] = set()  # outputs that a later segment writes
        self._copies: dict[TracedTensor, torch.fx.Node] = {}
        self._detached: set[TracedTensor] = set()  # of these, whose copies are detached
        self.written: set[TracedTensor] = set()
        self.made: dict[Any, TracedTensor] = {}  # what nodes gave
        self.historied: set[TracedTensor] = set()  # written while gradients are recorded
        self.writes_inside = False  # by what may be compiled
        self.ops = 0
        self.random = False
        self.open = False
        self.plain = True  # no transform's tensors pass through it
        self.sizes: dict[Any, torch.fx.Node] = {}
        self._nodes: dict[TracedTensor, torch.fx.Node] = {}
        self._imports: list[tuple[TracedTensor, Meta | Number]] = []
        self._last_placeholder: torch.fx.Node | None = None
        self._arguments = 0

    def node(self, value: TracedTensor, meta: Meta | Number) -> torch.fx.Node:
        """The node of `value` here; an import is made if it comes from elsewhere, described by
        `meta`."""
        if value.home == self.index:
            return value.node  # type: ignore[no-any-return]
        if value not in self._nodes:
            self._imports.append((value, meta))
            self._nodes[value] = self._placeholder(f"arg{len(self._imports) - 1}")
        return self._nodes[value]

    def argument(self) -> torch.fx.Node:
        """A placeholder for what a body is given, after those for what it takes from around it."""
        self._arguments += 1
        return self.graph.placeholder(f"given{self._arguments}")

    def taken(self) -> list[tuple[TracedTensor, "Meta | Number"]]:
        """What comes from elsewhere, in the order of the placeholders."""
        return list(self._imports)

    def imported(self, placeholder: torch.fx.Node) -> TracedTensor:
        """What the placeholder stands for."""
        return next(value for value, node in self._nodes.items() if node is placeholder)

    def origins(self, values: Iterable[TracedTensor]) -> set[TracedTensor]:
        """What comes from elsewhere of these, and what the views among them are views of here."""
        found = {value for value in values if value.home != self.index}
        given = {node: value for value, node in self._nodes.items()}
        for value in values:
            node = value.node if value.home == self.index else None
            while isinstance(node, torch.fx.Node) and node not in given:
                fresh = node in self.made and self.made[node].fresh
                node = None if fresh else next(iter(node.all_input_nodes), None)
            if node is not None:
                found.add(given[node])
        return found

    def users(self, value: TracedTensor) -> list[torch.fx.Node]:
        """The nodes that take a value from elsewhere."""
        node = self._nodes.get(value)
        return [] if node is None else list(node.users)

    def imports(self) -> list[tuple[TracedTensor, torch.fx.Node]]:
        """The values from elsewhere, and their nodes here."""
        return list(self._nodes.items())

    def _placeholder(self, name: str) -> torch.fx.Node:
        first = next(iter(self.graph.nodes), None)
        where = (
            self.graph.inserting_after(self._last_placeholder)
            if self._last_placeholder
            else (self.graph.inserting_before(first) if first else self.graph.inserting_after(None))
        )
        with where:
            self._last_placeholder = self.graph.placeholder(name)
        return self._last_placeholder

    def call(self, kind: str, target: Any, args: Any, kwargs: Any, origin: str) -> torch.fx.Node:
        named = target if isinstance(target, str) else target.__name__
        node = self.graph.create_node(kind, target, name=_node_name(named))
        node.args, node.kwargs = args, kwargs  # looked through once, not in Python as well
        node.meta["origin"] = node.meta["stack_trace"] = origin
        self.ops += 1
        return node

    def call_library(self, target: Any) -> None:
        """Have the last call of `target` run as it is."""
        node = next(node for node in reversed(self.graph.nodes) if node.target is target)
        node.meta[LIBRARY] = self.open = True

    def library_writes(self, value: TracedTensor) -> None:
        """A call of the library writes the value: it has memory of its own, which a compiled part
        may give to equal values in one."""
        self.writes_inside |= bool(self.historied)
        made: TracedTensor | None = value
        while made is not None:
            if made.home == self.index:
                made.node.meta[LIBRARY] = True
            made = made.base or made.beside

    def export(self, value: TracedTensor) -> int:
        """Index of `value` among the segment's outputs."""
        if value not in self.outputs:
            self.outputs.append(value)
        return self.outputs.index(value)

    def imports_from(self, segments: "list[SegmentBuilder]") -> tuple[Feed, ...]:
        """Where the placeholders' values come from; makes them outputs there."""
        return tuple(
            Feed(value.home, value.index)
            if value.home in (CALL_INPUT, HOST)
            else Feed(value.home, segments[value.home].export(value))
            for value, _ in self._imports
        )

    def _given(self, value: TracedTensor) -> torch.fx.Node:
        if value in self.copied:
            return self._copy(value)
        whole = value.beside
        if whole in self.copied and _detaches(value.node, whole.node):
            self._detached.add(whole)
            return self.graph.call_method("detach", (self._copy(whole),))
        return value.node  # type: ignore[no-any-return]

    def _copy(self, value: TracedTensor) -> torch.fx.Node:
        """What later segments write; one for all that ask."""
        if value not in self._copies:
            self._copies[value] = self._copied(value)
        return self._copies[value]

    def _copied(self, value: TracedTensor) -> torch.fx.Node:
        meta = value.meta
        if isinstance(meta, Meta) and not (
            overlaps(meta.size, meta.stride) or is_dense(meta.size, meta.stride)
        ):
            return self.graph.call_function(copied_with_gaps, (value.node,))
        return self.graph.call_method("clone", (value.node,))

    def note_strides(self, value: TracedTensor) -> None:
        """Have the value lie in memory as it does now, or what it is a view of."""
        made = value
        while (below := made.base or made.beside) is not None:
            made = below
        if made.fresh and made.home == self.index and isinstance(made.meta, Meta):
            made.node.meta[NOTED] = made.meta.stride, made.meta.dtype

    def finish(self, feeds: tuple[Feed, ...]) -> Segment:
        """Close the graph. Call only after every later segment has asked for its imports."""
        for value in list(self.outputs):
            whole = value.base or (value.beside if value.is_view else None)
            if whole is not None and whole.home == self.index and _is_stretched(value):
                self.export(whole)  # a write of the view is one of what it is a view of
        for value in self.outputs:
            self.note_strides(value)
        for node in self.graph.nodes:
            asks = self.written and asks_for_strides(node)  # through a view, or a copy
            operand = node.args[0] if node.args and (asks or reads_by_strides(node)) else None
            if operand in self.made:
                self.note_strides(self.made[operand])
        for node, value in self.made.items() if self.open else ():
            if type(value.meta) is Meta:
                node.meta[LOOKS] = value.meta
        self.graph.output(tuple(map(self._given, self.outputs)))
        module = graph_module({}, self.graph)
        writes = tuple(i for i, (value, _) in enumerate(self._imports) if value in self.written)
        return Segment(
            module,
            feeds,
            tuple(meta for _, meta in self._imports),
            self.eager,
            self.ops,
            writes,
            self.random,
            tuple(i for i, (value, _) in enumerate(self._imports) if value in self.historied),
            self.open,
            self._made(),
            tuple(i for i in writes if not self._imports[i][0].counted),
            self.writes_inside,
        )

    def writes_are_lost(self, tensor: torch.Tensor, tracked: Tracked | None) -> bool:
        """Whether functionalisation has another result of the write. Elements share memory of the
        tensor, of its base, or of a view on the way (one row of what `expand` stretched): it writes
        each by itself, and adds up or orders what comes to one place. Behind `unfold` it has zeros
        for what no window covers, and of `unsafe_chunk` it makes no views."""
        if any(map(overlaps_itself, (tensor, tensor._base))):
            return True
        here = tracked is not None and tracked.value.home == self.index
        node = tracked.value.node if tracked is not None and here else None
        while isinstance(node, torch.fx.Node):
            made, source = self.made.get(node), node.args[0] if node.args else None
            if made is not None and not made.is_view:
                part = node.target is operator.getitem and isinstance(source, torch.fx.Node)
                return part and name_of(source).startswith("unsafe_")  # type: ignore[arg-type]
            meta = None if made is None else made.meta
            if isinstance(meta, Meta) and overlaps(meta.size, meta.stride):
                return True
            if name_of(node).partition(".")[0] == "unfold":
                return True
            node = source
        return False

    def _made(self) -> tuple[ResultOrigin, ...]:
        """How the results were made, tensors of their own before views."""
        places: dict[TracedTensor | None, int] = {
            v: place for place, v in enumerate(self.outputs) if v not in self.copied
        }
        found = [
            ResultOrigin(place, False, None)
            for place, value in enumerate(self.outputs)
            if value in self._detached and not value.meta.requires_grad
        ]
        found += [
            ResultOrigin(place, value.is_view, places.get(value.base))
            for place, value in enumerate(self.outputs)
            if value in places
            if value.is_writable and isinstance(value.meta, Meta) and not value.meta.requires_grad
        ]
        return tuple(sorted(found, key=lambda one: one.is_view))


def _detaches(node: torch.fx.Node, source: torch.fx.Node) -> bool:
    return node.target == "detach" and node.args[0] is source


def _is_stretched(value: TracedTensor) -> bool:
    """Whether elements of a result with a history share memory."""
    meta = value.meta
    return isinstance(meta, Meta) and meta.requires_grad and overlaps(meta.size, meta.stride)
