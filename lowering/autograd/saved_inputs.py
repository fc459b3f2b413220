"""What the backward keeps of an input: itself only where eager would keep it, too.

A partition may save an input and compute again, in the backward, what eager saved of it. A program
that writes that input before the backward, as one that counts in a buffer does, would then be
refused by autograd.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ..graphs.effect_tokens import inputs_of
from ..graphs.needed_nodes import needed

_CAST = torch.ops.aten._to_copy.default


def keep_results(joint: GraphModule, results: Sequence[Any], gradients: list[bool]) -> None:
    """Forbid the partitioner to compute again what is made of inputs that eager would not save: of
    those that nothing reads for the gradients alone. `results`: the forward's; `gradients`: which
    inputs get one. What these are in another dtype, as parameters under autocast, may be computed
    again: all of them twice would be too much memory."""
    used = needed(node for node in results if isinstance(node, Node))
    late = {node for node in joint.graph.nodes if node.op != "output"} - used
    for place, has_gradient in zip(inputs_of(joint), gradients, strict=False):
        views = [place, *_views(place, has_gradient)]
        users = {user for view in views for user in view.users if user not in views}
        users = {user for user in users if _computes(user)}
        if users & late or _is_log_softmax(users):
            continue
        for user in users:
            user.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)


def _computes(node: Node) -> bool:
    kept = isinstance(node.meta.get("val"), torch.Tensor | tuple | list)
    return kept and node.target is not torch.ops.aten.copy_.default


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
