"""Batch norm's statistics as its backward takes them: as they were computed. Eager on the host
rounds them to the input's type for that, and so do torch's decompositions, which costs the
gradients of 16-bit floats most of their digits where they nearly cancel out."""

import torch
from torch.fx import GraphModule, Node

_cast = torch.ops.aten._to_copy.default
_FORWARD, _BACKWARD = "batch_norm", "aten.native_batch_norm_backward.default"


def unrounded(joint: GraphModule) -> None:
    """Have the backward read what was rounded for it alone, in place."""
    for node in joint.graph.find_nodes(op="call_function", target=_cast):
        rounded = node.args[0]
        if _origin(node) != _BACKWARD or not isinstance(rounded, Node):
            continue
        if rounded.target is not _cast or _FORWARD not in _origin(rounded):  # the user's own
            continue
        (exact,) = rounded.all_input_nodes
        if exact.meta["val"].dtype == node.meta["val"].dtype:
            node.replace_all_uses_with(exact)
            joint.graph.erase_node(node)


def _origin(node: Node) -> str:
    """The operator that was decomposed."""
    return str(node.meta.get("original_aten"))
