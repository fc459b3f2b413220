"""What the backward keeps of inputs and results: themselves only where eager would keep them, too.

A partition may save an input or a result and compute again, in the backward, what eager saved of
it. A program that writes that tensor before the backward, as one that counts in a buffer does,
would then be refused by autograd. Of what is small, as a normalisation's bias, and of what is
narrow, as a mask, a copy is kept instead.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ..graph.backward_slice import needed
from ..graph.effect_tokens import inputs_of
from ..opinfo import having

aten = torch.ops.aten
_CAST = aten._to_copy.default
_COMPARING = {aten.eq, aten.ne}
_EXACT = {getattr(aten, name) for name in having("same_bits")}


def keep_results(
    joint: GraphModule, results: Sequence[Any], gradients: list[bool]
) -> frozenset[str]:
    """Forbid the partitioner to compute again what is made of inputs and results that eager would
    not save: of those that nothing reads for the gradients alone. `results`: the forward's;
    `gradients`: which inputs get one. What these are in another dtype, as parameters under
    autocast, may be computed again: all of them twice would be too much memory. Returns the names
    of what is small: of it, `with_copies` saves copies."""
    given = inputs_of(joint)
    made = [node for node in results if isinstance(node, Node)]
    own = dict.fromkeys(node for node in map(viewed, made) if node.op == "call_function")
    used = needed(made)
    late = {node for node in joint.graph.nodes if node.op != "output"} - used
    small = set()
    for place, casts in [*zip(given, gradients, strict=False), *((node, False) for node in own)]:
        users = _readers(place, casts)
        if users & late or _is_log_softmax(_readers(place, casts or place in own)):
            continue
        if (_is_small(place, users) or _is_narrow(place, users)) and _has_no_gaps(place):
            small.add(place.name)
            continue
        for user in users:
            user.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)
    return frozenset(small)


def _readers(place: Node, casts: bool) -> set[Node]:
    """What computes with a node's memory; of casts of it in their place, if asked for."""
    views = [place, *_views(place, casts)]
    users = {user for view in views for user in view.users if user not in views}
    return {user for user in users if _computes(user)}


def keep_compared(joint: GraphModule) -> None:
    """Forbid the partitioner to compute again what is compared for equality, as gradients of
    extrema do with what these were found in: another loop's vectors may give other last bits, and
    then nothing is equal."""
    exact = dict[Node, bool]()
    for node in joint.graph.nodes:
        target = getattr(node.target, "overloadpacket", None)
        made = node.op == "call_function" and target not in _EXACT
        exact[node] = not made and all(exact[each] for each in node.all_input_nodes)
        if target in _COMPARING:
            for each in map(viewed, node.all_input_nodes):
                if not exact[each]:
                    each.meta["recompute"] = CheckpointPolicy.MUST_SAVE  # below a checkpoint, too


def keep_complex(joint: GraphModule, results: Sequence[Any]) -> None:
    """Forbid the partitioner to compute again what results need of complex numbers: no loop takes
    that along, it is a call of the library."""
    for node in needed([node for node in results if isinstance(node, Node)]):
        values = [each.meta.get("val") for each in node.all_input_nodes]
        of_complex = any(isinstance(x, torch.Tensor) and x.is_complex() for x in values)
        if of_complex and viewed(node) is node:
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)


def with_copies(forward: GraphModule, returned: int, small: frozenset[str]) -> None:
    """Where the forward, after its `returned` results, saves one of the inputs named, or a view of
    one, let it save a copy, if that lies in memory as the backward was told."""
    output = forward.graph.output_node()
    saved: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    for place, node in enumerate(saved[returned:], start=returned):
        if isinstance(node, Node) and viewed(node).name in small and _has_no_gaps(node):
            saved[place] = _copy(forward, node, output)
    output.args = (tuple(saved),)


def _copy(forward: GraphModule, node: Node, before: Node) -> Node:
    with forward.graph.inserting_before(before):
        copy = forward.graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta = {**node.meta, "val": node.meta["val"].clone()}
    return copy


def _has_no_gaps(node: Node) -> bool:
    """Whether a copy has the strides of what the node gives."""
    value = node.meta["val"]
    copy = value.clone()
    return [str(step) for step in value.stride()] == [str(step) for step in copy.stride()]


def viewed(node: Node) -> Node:
    """What the node is a view of, through others."""
    target = node.target
    while isinstance(target, torch._ops.OpOverload) and target.is_view:
        node = node.all_input_nodes[0]
        target = node.target
    return node


def _is_small(place: Node, users: set[Node]) -> bool:
    """Whether a copy of the input costs nothing beside what is made of it."""
    value = place.meta.get("val")
    if not isinstance(value, torch.Tensor) or any(_writes(user) for user in place.users):
        return False
    count = value.numel()
    made = [_elements(user) for user in users]
    return isinstance(count, int) and bool(made) and all(8 * count <= size for size in made)


def _is_narrow(place: Node, users: set[Node]) -> bool:
    """Whether all that is made of the input is the same in wider types, as of a mask or of bytes: a
    copy of it costs less to keep."""
    value = place.meta.get("val")
    if not isinstance(value, torch.Tensor) or any(_writes(user) for user in place.users):
        return False
    made = [user.meta["val"] for user in users if user.target is _CAST]
    wider = all(2 * value.dtype.itemsize <= each.dtype.itemsize for each in made)
    return len(made) == len(users) > 0 and wider


def _writes(user: Node) -> bool:
    return user.target is torch.ops.aten.copy_.default


def _elements(node: Node) -> int:
    """How many elements the node has at the recorded sizes, 0 if that is not known."""
    value = node.meta.get("val")
    count = value.numel() if isinstance(value, torch.Tensor) else 0
    return count if isinstance(count, int) else count.node.hint or 0


def _computes(node: Node) -> bool:
    kept = isinstance(node.meta.get("val"), torch.Tensor | tuple | list)
    return kept and not _writes(node)


def _is_log_softmax(users: set[Node]) -> bool:
    """Whether the users are the maximum and what it is taken from: a loss would have to write
    another tensor as large as its logits."""
    maxima = {user for user in users if user.target is torch.ops.aten.amax.default}
    rest = users - maxima
    return len(maxima) == len(rest) == 1 and all(
        user.target is torch.ops.aten.sub.Tensor and user.args[1] in maxima for user in rest
    )


def _views(node: Node, casts: bool) -> Iterator[Node]:
    """The views of a node's memory, and views of those; casts of it, too, if asked for."""
    for user in node.users:
        target = user.target
        if isinstance(target, torch._ops.OpOverload) and (
            target.is_view or (casts and target is _CAST)
        ):
            yield user
            yield from _views(user, casts)
