"""Nodes of a joint graph that compute the same thing become one, before it is partitioned.

The partitioner has a pass that does this (`fx_graph_cse`), but it loads the whole of Inductor for
one helper: more than all else that a first compilation loads.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch._functorch import config, partitioners
from torch._functorch.compile_utils import get_aten_target
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_flatten

from ..decompositions.pool_offsets import PLACES, keep_offsets
from ..decompositions.random_numbers import UNIFORM
from . import seeded_calls
from .raising_calls import as_any_other, without_repeated

_OURS_AND_TORCHS = frozenset(("aten", "prims", "dynfix"))

_default_op_list: Any = getattr(partitioners, "get_default_op_list", None)


def _op_list() -> Any:
    """What the partitioner may compute again: numbers made of a seed, too, and places in planes."""
    made = _default_op_list()
    for known in (made.recomputable_ops, made.fusible_ops):
        known.update(each.overloadpacket for each in (UNIFORM, PLACES))
    return made


if _default_op_list is not None:
    partitioners.get_default_op_list = _op_list


def partition(joint: GraphModule, inputs: Any, **settings: Any) -> tuple[GraphModule, GraphModule]:
    """torch's partition by minimum cut, after our pass over equal nodes instead of its own."""
    keep_offsets(joint)
    if config.cse:
        joint.graph.eliminate_dead_code()
        joint.graph = without_duplicates(joint.graph)
    seeded_calls.hide(joint)
    with config.patch(cse=False), as_any_other(joint.graph):
        parts = min_cut_rematerialization_partition(joint, inputs, **settings)
    without_repeated(parts[1].graph)
    seeded_calls.show(parts)
    return parts


def without_duplicates(graph: Graph) -> Graph:
    """A copy of `graph` in which a node stands for those after it with the same target and
    arguments, and for its clones. Outputs, inputs, and what shares their memory, stay apart; so do
    random numbers, and nodes with a write between them."""
    new, copies = Graph(), dict[Node, Node]()
    first = dict[Any, Node]()
    returned = set(_storages(graph.find_nodes(op="output")[0].all_input_nodes))
    given = set(_storages(graph.find_nodes(op="placeholder")))
    for node in graph.nodes:
        if _writes(node):
            first.clear()
        key = None if set(_storages([node])) & returned else _key(node, copies)
        found = first.get(key) if key is not None else None
        if found is None and key is not None and _is_like_its_source(node, given):
            found = copies[node.args[0]]
        copies[node] = found or new.node_copy(node, copies.__getitem__)
        if key is not None:
            first.setdefault(key, copies[node])
    return new


def _is_like_its_source(node: Node, given: set[int]) -> bool:
    """Whether the node is a clone, with the same strides, of what nobody writes. Views of it are
    placed by what their offsets are beyond its own, which have to be the same, too."""
    if node.target is not torch.ops.aten.clone.default or not isinstance(node.args[0], Node):
        return False
    source, made = node.args[0].meta.get("val"), node.meta.get("val")
    return (
        isinstance(source, torch.Tensor)
        and isinstance(made, torch.Tensor)
        and source.layout == made.layout == torch.strided
        and source.stride() == made.stride()
        and (source.is_conj(), source.is_neg()) == (made.is_conj(), made.is_neg())
        and str(source.storage_offset()) == str(made.storage_offset())
        and not set(_storages([node.args[0]])) & given
    )


def _key(node: Node, copies: dict[Node, Node]) -> Any:
    """Equal for nodes that compute the same thing; None for one that stays by itself. Types are
    part of it, since 1 == 1.0."""
    if node.op != "call_function" or _is_its_own(node):
        return None
    leaves, spec = tree_flatten((node.args, node.kwargs))
    leaves = [copies[leaf] if isinstance(leaf, Node) else leaf for leaf in leaves]
    if not all(_is_comparable(leaf) for leaf in leaves):
        return None
    return node.target, str(spec), tuple((type(leaf), repr(leaf), leaf) for leaf in leaves)


def _is_its_own(node: Node) -> bool:
    """Whether another call may give something else: it draws random numbers, gives memory as it
    lies there, or runs what a user wrote."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        draws = torch.Tag.nondeterministic_seeded in target.tags
        users = target.namespace not in _OURS_AND_TORCHS
        return draws or users or get_aten_target(node) is torch.ops.aten.empty
    return isinstance(target, torch._ops.HigherOrderOperator)


def _is_comparable(leaf: Any) -> bool:
    kinds = Node | int | float | complex | str | None | torch.dtype | torch.device
    return isinstance(leaf, kinds | torch.layout | torch.memory_format)


def _storages(nodes: list[Node]) -> Iterator[int]:
    for node in nodes:
        for value in tree_flatten(node.meta.get("val"))[0]:
            if isinstance(value, torch.Tensor) and value.layout == torch.strided:
                yield value.untyped_storage()._cdata


def _writes(node: Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable
