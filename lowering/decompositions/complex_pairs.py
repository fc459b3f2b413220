"""Arithmetic of complex numbers as that of their real and imaginary parts, which loops compute:
what stands between views of pairs as complex numbers (rotary embeddings) is one loop over pairs.

A complex value is known by its parts; where the library or the caller takes it as one, a loop puts
them side by side.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from ..graph.complex_numbers import LAZY

aten = torch.ops.aten
_Parts = tuple[Any, Any]  # nodes, or numbers
_TYPES = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_PAIRS, _JOINED = aten.view_as_real.default, aten.view_as_complex.default
_RESHAPED = (aten.view.default, aten._unsafe_view.default)
_NO_VIEWS = (aten.as_strided.default, aten.view.dtype, aten._neg_view.default, _PAIRS)
_BY_PART = (aten.neg.default, aten.sum.dim_IntList, aten.clone.default)
_CONJUGATES = (aten._conj.default, aten.conj_physical.default)


class _Builder:
    """Puts calls before a node, and works out what they give."""

    def __init__(self, graph: Graph, before: Node) -> None:
        self.graph, self.before = graph, before

    def __call__(self, target: Any, *args: Any) -> Node:
        return self._noted(target(*map_arg(args, _value)), target, args, {})

    def _noted(self, value: Any, target: Any, args: Any, kwargs: Any) -> Node:
        with self.graph.inserting_before(self.before):
            node = self.graph.call_function(target, args, kwargs)
        node.meta = {**self.before.meta, "val": value}
        return node

    def parts_of(self, pairs: Node) -> _Parts:
        return self(aten.select.int, pairs, -1, 0), self(aten.select.int, pairs, -1, 1)

    def side_by_side(self, parts: _Parts, like: torch.Tensor) -> Node:
        """The parts as the pairs of `like` lie in memory: views of them are placed by offsets."""
        places = like.new_empty(2, dtype=torch.int64), aten.arange.start_step, (0, 2, 1)
        first = self(aten.eq.Scalar, self._noted(*places, {"device": like.device}), 0)
        both = (self(aten.unsqueeze.default, part, -1) for part in parts)
        node = self(aten.where.self, first, *both)
        strides = (*(2 * step for step in like.stride()), 1)
        shape, moved = (*like.shape, 2), 2 * like.storage_offset()
        made = node.meta["val"].new_empty_strided(shape, strides)
        node.meta["val"] = made.as_strided(shape, strides, moved)
        return node

    def multiply(self, a: Any, b: Any) -> Any:
        if not isinstance(a, Node):
            a, b = b, a
        return self(aten.mul.Tensor, a, b) if isinstance(a, Node) else a * b

    def add(self, a: Any, b: Any) -> Node:
        return self(aten.add.Tensor, *((a, b) if isinstance(a, Node) else (b, a)))

    def subtract(self, a: Any, b: Any) -> Node:
        if isinstance(a, Node):
            return self(aten.sub.Tensor, a, b)
        return self(aten.add.Tensor, self(aten.neg.default, b), a)

    def viewed(self, target: Any, part: Any, *args: Any) -> Node:
        try:
            return self(target, part, *args)
        except RuntimeError:  # the parts lie otherwise than the numbers
            if target not in _RESHAPED:
                raise
            return self(target, self(aten.clone.default, part), *args)


def _product(make: _Builder, a: _Parts, b: _Parts) -> _Parts:
    """As the library's, whatever is zero, infinite or no number."""
    (a_re, a_im), (b_re, b_im) = a, b
    return (
        make.subtract(make.multiply(a_re, b_re), make.multiply(a_im, b_im)),
        make.add(make.multiply(a_re, b_im), make.multiply(a_im, b_re)),
    )


def _sum(make: _Builder, a: _Parts, b: _Parts) -> _Parts:
    return make.add(a[0], b[0]), make.add(a[1], b[1])


def _difference(make: _Builder, a: _Parts, b: _Parts) -> _Parts:
    return make.subtract(a[0], b[0]), make.subtract(a[1], b[1])


def _conjugate(make: _Builder, a: _Parts) -> _Parts:
    return a[0], make(aten.neg.default, a[1]) if isinstance(a[1], Node) else -a[1]


_ARITHMETIC: dict[Any, Callable[..., _Parts]] = {
    aten.mul.Tensor: _product,
    aten.add.Tensor: _sum,
    aten.sub.Tensor: _difference,
}


def pair_complex(gm: GraphModule) -> GraphModule:
    """Changes the graph in place, where a loop takes the place of more than one call."""
    found = dict[Node, None]()
    for node in gm.graph.nodes:
        if _has_parts(node) and all(n in found or _shows(n) for n in node.all_input_nodes):
            found[node] = None
    chosen = {node for group in _connected(found) if _pays(group) for node in group}
    if chosen:
        with torch.no_grad():
            _write_out(gm.graph, [node for node in found if node in chosen])
        gm.graph.eliminate_dead_code()
    return gm


def _write_out(graph: Graph, chosen: list[Node]) -> None:
    parts, shared = dict[Node, _Parts](), _returned_twice(graph)
    for node in chosen:
        make, target, first = _Builder(graph, node), node.target, node.args[0]

        def parts_of(operand: Any, make: _Builder = make) -> _Parts:
            if not isinstance(operand, Node):
                return complex(operand).real, complex(operand).imag
            if not _value(operand).is_complex():
                return operand, 0.0
            if operand not in parts:
                parts[operand] = _parts_of_operand(make, operand)
            return parts[operand]

        if target is _PAIRS and _memory(node) in shared:
            continue
        if target is _JOINED:
            parts[node] = make.parts_of(first)  # type: ignore[arg-type]
        elif target is _PAIRS:
            node.replace_all_uses_with(make.side_by_side(parts_of(first), _value(first)))
        elif target in _CONJUGATES:
            parts[node] = _conjugate(make, parts_of(first))
        elif target in _ARITHMETIC:
            parts[node] = _ARITHMETIC[target](make, *map(parts_of, node.args))
        else:
            re, im = (make.viewed(target, part, *node.args[1:]) for part in parts_of(first))
            parts[node] = re, im
        if _is_new(node):  # for whoever takes it whole
            whole = make(_JOINED, make.side_by_side(parts[node], _value(node)))
            parts[whole] = parts[node]
            node.replace_all_uses_with(whole)


def _returned_twice(graph: Graph) -> set[int]:
    """Memory of several results: a view of one, as its imaginary part, stays one."""
    returned = Counter(map(_memory, graph.output_node().all_input_nodes))
    return {memory for memory, count in returned.items() if count > 1 and memory}


def _memory(node: Node) -> int:
    value = _value(node)
    plain = isinstance(value, torch.Tensor) and value.layout == torch.strided
    return int(value.untyped_storage()._cdata) if plain else 0


def _parts_of_operand(make: _Builder, operand: Node) -> _Parts:
    if LAZY in operand.meta:
        plain = make(aten.conj_physical.default, operand)
        return _conjugate(make, make.parts_of(make(_PAIRS, plain)))
    return make.parts_of(make(_PAIRS, operand))


def _value(node: Any) -> Any:
    return node.meta.get("val")


def _shows(operand: Node) -> bool:
    """Whether memory has the numbers as they are."""
    value = _value(operand)
    return not isinstance(value, torch.Tensor) or not (value.is_conj() or value.is_neg())


def _has_parts(node: Node) -> bool:
    """Whether the node gives complex numbers, or takes them, whose parts can be had apart."""
    target, value = node.target, _value(node)
    if node.op != "call_function" or not isinstance(value, torch.Tensor):
        return False
    if value.device.type != "cpu" or any(type(n) is int and n == 0 for n in value.shape):
        return False
    if target is _PAIRS:
        return value.dtype in _TYPES.values()
    if value.dtype not in _TYPES or value.is_neg():
        return False
    if target in _ARITHMETIC:
        return not node.kwargs and all(_fits(arg, value.dtype) for arg in node.args)
    if target in _BY_PART:
        return not node.kwargs and not value.is_conj()
    return target in _CONJUGATES or target is _JOINED or _is_view(node)


def _fits(operand: Any, result: torch.dtype) -> bool:
    if isinstance(operand, Node):
        value = _value(operand)
        return isinstance(value, torch.Tensor) and value.dtype in (result, _TYPES[result])
    return isinstance(operand, int | float | complex)


def _is_view(node: Node) -> bool:
    target, source = node.target, node.args[0]
    view = isinstance(target, OpOverload) and target.is_view and target not in _NO_VIEWS
    if not isinstance(source, Node) or node.kwargs or not (view or target in _RESHAPED):
        return False
    return bool(_value(source).is_complex())


def _is_new(node: Node) -> bool:
    target = node.target
    return target in _ARITHMETIC or target in _BY_PART or target is aten.conj_physical.default


def _connected(nodes: Iterable[Node]) -> Iterator[list[Node]]:
    """The nodes in groups of those that hang together."""
    group = {node: [node] for node in nodes}
    for node in nodes:
        for source in node.all_input_nodes:
            if source in group and group[source] is not group[node]:
                other = group[source]
                group[node] += other
                group.update(dict.fromkeys(other, group[node]))
    yield from {id(each): each for each in group.values()}.values()


def _pays(group: Sequence[Node]) -> bool:
    """Whether something is computed, and that is not a lone call between complex numbers."""
    computing = sum(node.target in _ARITHMETIC for node in group)
    return computing > 1 or (computing == 1 and any(n.target in (_PAIRS, _JOINED) for n in group))
