"""The program of a graph that holds calls which no kernel of ours stands for: of operators whose
results have sizes that data decides, on nested, sparse or wrapped tensors, of kernels of the
user's. These run as they are; what stands between them is compiled. Autograd goes through both.
"""

import dataclasses
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ...lowering.fake_tensor_mode import PacedFakeMode
from ...lowering.graph import graph_key
from ...lowering.graph.graph_modules import forward_of, graph_module
from ...lowering.graph.result_strides import NOTED
from ...runtime import diagnostics
from ...runtime.errors import DynfixError
from ...runtime.guards.guard import TensorMeta
from ...runtime.options import Options
from ...runtime.programs.steps import CALL_INPUT, Feed
from ..capture.numbers.symbolic import RecordedSymbols
from ..capture.segments import LIBRARY, LOOKS, Segment
from ..capture.values import Meta, Number, is_opaque
from ..source.live_source import NotRewritable
from ..tracing_ops.calls.effect_free_code import NotEffectFree, WrapperReads

FEWEST = 2  # operators that are worth a program
VERSIONS = 4  # of one part, by the sizes of what it takes

Compile = Callable[[Segment, Options, "list[Any] | None"], Callable[..., Any]]


def by_parts(segment: Segment, options: Options, compile_part: Compile) -> Callable[..., Any]:
    """The callable of a segment that writes nothing and enters no modes."""
    graph = segment.module.graph
    parts = {part.first: part for part in _parts(graph) if part.operators() >= FEWEST}
    if not parts:
        return forward_of(segment.module)
    looks = dict(zip(graph.find_nodes(op="placeholder"), segment.metas, strict=True))
    made: dict[Node, Node] = {}
    whole = Graph()
    inside = {node for part in parts.values() for node in part.nodes}
    for node in graph.nodes:
        if node in parts:
            program = PartProgram(parts[node].segment(looks), options, compile_part)
            given = tuple(made[each] for each in parts[node].taken)
            call = whole.call_function(program, given)
            for place, each in enumerate(parts[node].given):
                made[each] = whole.call_function(_item, (call, place))
        if node not in inside:
            made[node] = whole.node_copy(node, made.__getitem__)
    return forward_of(graph_module(segment.module, whole))


def _item(results: Sequence[Any], place: int) -> Any:
    return results[place]


class Part:
    """Nodes that follow each other and are compiled. `taken`, `given`: the nodes whose values come
    from outside, and those that are needed there."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes, inside = nodes, set(nodes)
        self.first = nodes[0]
        sources = (each for node in nodes for each in node.all_input_nodes)
        self.taken = [each for each in dict.fromkeys(sources) if each not in inside]
        self.given = [node for node in nodes if not inside.issuperset(node.users)]

    def operators(self) -> int:
        return sum(node.target is not _ITEM for node in self.nodes)

    def segment(self, looks: dict[Node, Meta | Number]) -> Segment:
        graph, made = Graph(), dict[Node, Node]()
        for node in self.taken:
            made[node] = graph.placeholder(node.name)
        for node in self.nodes:
            made[node] = graph.node_copy(node, made.__getitem__)
        graph.output(tuple(made[node] for node in self.given))
        metas = tuple(looks.get(node) or node.meta[LOOKS] for node in self.taken)
        draws = any("draws" in node.meta for node in self.nodes)
        module, feeds = graph_module({}, graph), _as_inputs(len(metas))
        return Segment(module, feeds, metas, False, len(self.nodes), (), draws)


_ITEM = operator.getitem


def _as_inputs(count: int) -> tuple[Feed, ...]:
    return tuple(Feed(CALL_INPUT, index) for index in range(count))


def _parts(graph: Graph) -> Iterator[Part]:
    """In order. What leaves a part is a tensor that is known to be a plain one."""
    run: list[Node] = []
    for node in graph.nodes:
        if _is_compiled(node):
            run.append(node)
        elif node.op != "placeholder" and run:
            yield Part(run)
            run = []


def _is_compiled(node: Node) -> bool:
    """Whether a node may stand in a part: it takes and gives plain tensors."""
    if node.op not in ("call_function", "call_method") or node.meta.get(LIBRARY):
        return False
    sources = [each for each in node.all_input_nodes if each.op != "placeholder"]
    if node.target is _ITEM and sources and LOOKS not in sources[0].meta:
        return LOOKS in node.meta and _is_compiled(sources[0])
    if not all(isinstance(each.meta.get(LOOKS), Meta) for each in sources):
        return False
    several = node.users and all(each.target is _ITEM for each in node.users)
    return LOOKS in node.meta or bool(several)


Fits = Callable[[Sequence[Any]], bool]
Program = Callable[..., Any]


class Versions:
    """Something that is compiled for each kind of tensors that it meets, up to some number; `plain`
    serves the others."""

    def __init__(self, segment: Segment, plain: Program) -> None:
        self._segment, self._plain = segment, plain
        self._versions: list[tuple[Fits, Program]] = []
        self._lock = threading.Lock()

    def __call__(self, *given: Any) -> Any:
        for fits, program in self._versions:
            if fits(given):
                return program(*given)
        with self._lock:  # another thread may have built it meanwhile
            found = (program for fits, program in self._versions if fits(given))
            program = next(found, None) or self._another(given)
        return program(*given)

    def _another(self, given: Sequence[Any]) -> Callable[..., Any]:
        """A version for what is given now; `plain` where that fails, from now on."""
        if len(self._versions) >= VERSIONS:
            return self._plain
        fits, build = self._version(given)
        try:
            program = build()
        except Exception as error:
            known = isinstance(error, DynfixError)
            why = str(error) if known else f"{type(error).__name__}: {error}"
            place = next(filter(None, graph_key.origins_of(self._segment.module)), "a graph")
            diagnostics.log.debug("a part of a graph runs in eager", exc_info=error)
            said = f"{place}: a part of the graph runs in eager, for it cannot be compiled: {why}"
            diagnostics.warn_once("part", said, why)
            program = self._plain
        self._versions.append((fits, program))
        return program

    def _version(self, given: Sequence[Any]) -> tuple[Fits, Callable[[], Program]]:
        """Which tensors it serves, and what builds it."""
        raise NotImplementedError


class PartProgram(Versions):
    """One part, compiled for the sizes that it meets: for those of the recorded call first, then
    with symbols for those that turn out to move."""

    __name__ = "part"

    def __init__(self, segment: Segment, options: Options, compile_part: Compile) -> None:
        super().__init__(segment, forward_of(segment.module))
        self._options, self._compile = options, compile_part
        self._seen: list[Any] = []

    def _version(self, given: Sequence[Any]) -> tuple[Fits, Callable[[], Program]]:
        moving = [_moving(each, now) for each, now in zip(self._seen, given, strict=False)]
        self._seen = self._seen or [_sizes(each) for each in given]
        dims = {at: found for at, found in enumerate(moving) if found}
        fits = _matching(given, moving)
        if not dims:
            return fits, lambda: self._compile(self._of(given), self._options, None)
        numbers = {at: given[at] for at in dims if not isinstance(given[at], torch.Tensor)}
        tensors = {at: found for at, found in dims.items() if at not in numbers}
        symbols = RecordedSymbols(tensors, numbers)

        def build() -> Program:
            segment = self._of(given)
            symbols.analyse((segment,), ())
            program = self._compile(segment, self._options, symbols.examples(0, segment))
            symbols.close()
            return program

        return (lambda now: fits(now) and symbols.holds(list(now))), build

    def _of(self, given: Sequence[Any]) -> Segment:
        """The segment with the tensors that are given now."""
        looks = tuple(Meta.of(x) if isinstance(x, torch.Tensor) else Number(x) for x in given)
        segment = dataclasses.replace(self._segment, metas=looks)
        if looks != self._segment.metas:  # strides were noted of the recorded sizes
            graph = Graph()
            graph.output(graph.graph_copy(segment.module.graph, {}))
            for node in graph.nodes:
                node.meta.pop(NOTED, None)
            segment = dataclasses.replace(segment, module=graph_module({}, graph))
        return segment


class WrappedProgram(Versions):
    """A graph on tensors whose classes wrap others, by `__tensor_flatten__`: AOTAutograd traces it
    down to what they wrap, and that is compiled."""

    __name__ = "wrapped"

    def __init__(
        self, segment: Segment, options: Options, plain: Program, compile_graph: Any
    ) -> None:
        super().__init__(segment, plain)
        self._options, self._compile = options, compile_graph

    def _version(self, given: Sequence[Any]) -> tuple[Fits, Callable[[], Program]]:
        opaque = [each for each in given if isinstance(each, torch.Tensor) and is_opaque(each)]
        if not opaque or not all(map(_is_wrapper, opaque)):
            return _always, lambda: self._plain
        try:
            reads = [WrapperReads(kind) for kind in set(map(type, opaque))]
        except (NotEffectFree, NotRewritable) as error:
            diagnostics.log.debug("operators on wrapped tensors run as they are: %s", error)
            return _always, lambda: self._plain

        def build() -> Program:
            mode = PacedFakeMode(allow_non_fake_inputs=True)
            with torch.inference_mode(False):
                fakes = [_fake(each, mode) for each in given]
            program: Program = self._compile(self._segment, self._options, fakes)
            return program

        alike = _alike(given)
        return lambda now: all(each.hold() for each in reads) and alike(now), build


def _always(given: Sequence[Any]) -> bool:
    return True


def _is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether it can be traced down to what it wraps, and what its class says of it stays."""
    if tensor.layout is not torch.strided or not is_traceable_wrapper_subclass(tensor):
        return False
    try:
        hash(tensor.__tensor_flatten__()[1])
    except TypeError:  # a list, which may be written to
        return False
    return True


def _fake(value: Any, mode: FakeTensorMode) -> Any:
    is_tensor = isinstance(value, torch.Tensor)
    return mode.from_tensor(value, static_shapes=True) if is_tensor else value


def _alike(given: Sequence[Any]) -> Fits:
    """Whether values are as these, in what their classes say of them too."""
    seen = [_look(each) for each in given]

    def fits(now: Sequence[Any]) -> bool:
        return all(look == _look(each) for look, each in zip(seen, now, strict=True))

    return fits


def _look(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    look = type(value), Meta.of(value)
    if not is_opaque(value):
        return look
    names, context = value.__tensor_flatten__()  # type: ignore[attr-defined]
    parts = tuple(_look(getattr(value, name)) for name in names)
    return *look, tuple(value.shape), value.stride(), parts, context


def _sizes(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else value


def _moving(seen: Any, now: Any) -> frozenset[int]:
    """The dims of a tensor whose sizes are others now, and no 0 or 1; of a number, whether it is
    another one."""
    if not isinstance(now, torch.Tensor):
        return frozenset({0}) if seen != now and now > 1 else frozenset()
    pairs = enumerate(zip(seen, now.shape, strict=False))
    return frozenset(dim for dim, (was, size) in pairs if was != size and size > 1)


def _matching(given: Sequence[Any], moving: list[frozenset[int]]) -> Callable[[Any], bool]:
    moving = moving or [frozenset()] * len(given)
    checks = [
        TensorMeta.of(each, dims).matches
        if isinstance(each, torch.Tensor)
        else (_is_number if dims else each.__eq__)
        for each, dims in zip(given, moving, strict=True)
    ]
    return lambda now: all(check(each) for check, each in zip(checks, now, strict=True))


def _is_number(value: Any) -> bool:
    return type(value) is int
