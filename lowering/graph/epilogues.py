"""Products and convolutions whose activation the GPU's library applies before it writes the
result."""

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ..lowerings.lower_products import DEVICES, wants_alignment

aten = torch.ops.aten
_EIGHT = 8  # channels at a time: what the library's kernels for half types take
_RESHAPES = frozenset((aten.view.default, aten.reshape.default, aten.unsqueeze.default))


def join_activations(gm: GraphModule) -> GraphModule:
    """The graph with `relu(addmm(bias, a, b))` and `relu(convolution(x, w) + bias [+ z])` as one
    call each on GPUs: the same values, NaN included, without another pass over them."""
    graph: Graph = gm.graph
    for node in list(graph.nodes):
        before = node.args[0] if node.target is aten.relu.default else None
        if not isinstance(before, Node):
            continue
        with graph.inserting_before(node):
            made = _product(graph, before) or _convolution(graph, before)
        if made is not None:
            made.meta.update(node.meta)
            node.replace_all_uses_with(made)
            graph.erase_node(node)
            _erase(graph, before)
    return gm


def _erase(graph: Graph, node: Node) -> None:
    """The node, and what it alone was made of."""
    given = node.all_input_nodes
    if node.op == "call_function" and not node.users:
        graph.erase_node(node)
        for each in given:
            _erase(graph, each)


def _product(graph: Graph, node: Node) -> Node | None:
    if not _is_simple(node):
        return None
    return graph.call_function(aten._addmm_activation.default, node.args)


def _is_simple(node: Node) -> bool:
    """Whether the node is a product with a vector added to each row, which one node reads, in a
    type that the library's epilogues know."""
    value: Any = node.meta.get("val")
    if node.target is not aten.addmm.default or node.kwargs or len(node.users) != 1:
        return False
    if value.device.type not in DEVICES or not value.dtype.is_floating_point:
        return False
    bias: Any = node.args[0]
    narrow = value.dtype is not torch.float64 and bias.meta["val"].dim() == 1
    return narrow and not wants_alignment(node)


# ---- convolutions


def _convolution(graph: Graph, node: Node) -> Node | None:
    found = _biased(node)
    if found is not None:
        (x, weight, settings), bias = _settings(found[0]), found[1]
        given = (x, weight, bias, *settings)
        return graph.call_function(aten.cudnn_convolution_relu.default, given)
    return _with_sum(graph, node)


def _with_sum(graph: Graph, node: Node) -> Node | None:
    """With another tensor added; by kernels of one point alone, since others get slower by it."""
    if not _is_sum(node):
        return None
    for one, other in (node.args, node.args[::-1]):
        found = _biased(one)
        if found is None or not _alike(node, one, other) or not _of_one_point(found[0]):
            continue
        (x, weight, settings), bias = _settings(found[0]), found[1]
        also = _biased(other)
        if also is not None:  # both biases at once
            other, total = also[0], graph.call_function(aten.add.Tensor, (bias, also[1]))
            total.meta.update(bias.meta)
            bias = total
        given = (x, weight, other, 1, bias, *settings)
        return graph.call_function(aten.cudnn_convolution_add_relu.default, given)
    return None


def _alike(total: Node, *given: Any) -> bool:
    """Whether the sum's operands are tensors that lie in memory as it does."""
    value: Any = total.meta["val"]
    values = [each.meta.get("val") for each in given if isinstance(each, Node)]
    return len(values) == len(given) and all(
        isinstance(each, torch.Tensor)
        and (each.dtype, each.shape, each.stride()) == (value.dtype, value.shape, value.stride())
        for each in values
    )


def _is_sum(node: Any) -> bool:
    """Whether the node is a sum that one node reads."""
    plain = isinstance(node, Node) and node.target is aten.add.Tensor and not node.kwargs
    return plain and len(node.users) == 1


def _biased(node: Any) -> tuple[Node, Node] | None:
    """Of `convolution(…) + bias`, which one node reads, both, where the library has a call for
    it."""
    if not _is_sum(node):
        return None
    made, shaped = node.args
    if not (isinstance(made, Node) and isinstance(shaped, Node)):
        return None
    bias = _vector(shaped)
    if bias is None or len(made.users) != 1 or not _is_known(made):
        return None
    value: Any = made.meta["val"]
    wide = (value.shape[1], *(1,) * (value.dim() - 2))
    vector: Any = bias.meta["val"]
    fits = vector.dtype is value.dtype and vector.stride() == (1,)
    return (made, bias) if fits and tuple(shaped.meta["val"].shape) == wide else None


def _vector(node: Node) -> Node | None:
    """The vector that the node is in another shape."""
    while node.target in _RESHAPES and isinstance(node.args[0], Node):
        node = node.args[0]
    value = node.meta.get("val")
    return node if isinstance(value, torch.Tensor) and value.dim() == 1 else None


def _is_known(node: Node) -> bool:
    """Whether the node is a convolution of images in half precision, without a bias, in
    channels-last order, for which the library's fused kernels are fast."""
    if node.target is not aten.convolution.default or node.args[2] is not None:
        return False
    made: Any = node.meta["val"]
    weight: Any = node.args[1].meta["val"]  # type: ignore[union-attr]
    half = made.dtype in (torch.bfloat16, torch.float16)
    if made.device.type not in DEVICES or not half or made.dim() != 4:
        return False
    if node.args[6] or node.args[8] != 1 or not torch.backends.cudnn.enabled:  # transposed, groups
        return False
    known = all(isinstance(size, int) for size in (*made.shape, *weight.shape))
    even = known and weight.shape[0] % _EIGHT == weight.shape[1] % _EIGHT == 0
    return even and made.is_contiguous(memory_format=torch.channels_last)


def _of_one_point(node: Node) -> bool:
    weight: Any = node.args[1]
    return tuple(weight.meta["val"].shape[2:]) == (1, 1)


def _settings(node: Node) -> tuple[Any, Any, tuple[Any, ...]]:
    """Image, weight, and (stride, padding, dilation, groups)."""
    x, weight, _, stride, padding, dilation, _, _, groups = node.args
    return x, weight, (stride, padding, dilation, groups)
