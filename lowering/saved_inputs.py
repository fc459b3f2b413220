"""What the backward keeps of an input: itself only where eager would keep it, too.

A partition may save an input and compute again, in the backward, what eager saved of it. A program
that writes that input before the backward, as one that counts in a buffer does, would then be
refused by autograd.
"""

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy


def keep_results(joint: GraphModule, gradients: list[bool]) -> None:
    """Forbid the partitioner to compute again what is made of inputs that eager would not save.
    Inputs with a gradient, parameters above all, are written after the backward, and stay free."""
    places = [node for node in joint.graph.nodes if node.op == "placeholder"]
    late = _following(place for place in places if str(place.target).startswith("tangents"))
    for place, has_gradient in zip(places, gradients, strict=False):
        views = [place, *_views(place)]
        users = {user for view in views for user in view.users if user not in views}
        users = {user for user in users if _computes(user)}
        if has_gradient or users & late:
            continue
        for user in users:
            user.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)


def _computes(node: Node) -> bool:
    kept = isinstance(node.meta.get("val"), torch.Tensor | tuple | list)
    return kept and node.target is not torch.ops.aten.copy_.default


def _following(nodes: Iterator[Node]) -> set[Node]:
    found, waiting = set[Node](), list(nodes)
    while waiting:
        node = waiting.pop()
        fresh = [user for user in node.users if user not in found and user.op != "output"]
        found.update(fresh)
        waiting += fresh
    return found


def _views(node: Node) -> Iterator[Node]:
    """The views of a node's memory, and views of those."""
    for user in node.users:
        target = user.target
        if isinstance(target, torch._ops.OpOverload) and target.is_view:
            yield user
            yield from _views(user)
