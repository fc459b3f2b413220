"""Batch norms behind convolutions, in a torch-level graph for inference on GPUs: their factors go
into the weight, so that a library call can add the bias and another tensor, and apply `relu`,
before it writes the result (`epilogues.py`)."""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from ..lowerings.lower_products import DEVICES
from .graph_modules import graph_module

_SUMS = frozenset((operator.add, operator.iadd, torch.add, "add", "add_"))
_ACTIVATIONS = frozenset((F.relu, torch.relu, torch.relu_, "relu", "relu_"))
_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


def fold_norms(gm: GraphModule, examples: Sequence[Any]) -> GraphModule:
    """The graph with `batch_norm(conv2d(x, w))` as one convolution with weights that each call
    makes of both; itself where there is none, and where gradients may be asked for."""
    types = {each.dtype for each in examples if _on_gpu(each)}
    differentiable = torch.is_grad_enabled() and any(_requires_grad(each) for each in examples)
    # in half precision the library has such calls, and bfloat16 alone holds any factor
    if torch.bfloat16 not in types or torch.float16 in types or differentiable or _narrow():
        return gm
    if not any(map(_is_folded, gm.graph.nodes)):
        return gm
    gm = graph_module(gm, copy.deepcopy(gm.graph))
    for node in list(gm.graph.nodes):
        if _is_folded(node):
            _fold(gm, node)
    gm.recompile()
    return gm


def _on_gpu(example: Any) -> bool:
    return isinstance(example, torch.Tensor) and example.device.type in DEVICES


def _requires_grad(example: Any) -> bool:
    return isinstance(example, torch.Tensor) and example.requires_grad


def _narrow() -> bool:
    """Whether autocast makes half types that large factors do not fit in."""
    return any(
        torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) is torch.float16
        for kind in DEVICES
    )


def _is_folded(node: Node) -> bool:
    """Whether the node is a norm by stored statistics of the convolution just before, which nothing
    else reads, and which `relu` follows."""
    if node.op != "call_function" or node.target is not F.batch_norm:
        return False
    given = _named(_NORM, node)
    made = given.get("input")
    if given.get("training", False) is not False or not isinstance(made, Node):
        return False
    if not (isinstance(given["running_mean"], Node) and isinstance(given["running_var"], Node)):
        return False
    if made.target is not torch.conv2d or len(made.users) != 1 or node.prev is not made:
        return False
    return _leads_to_relu(node)


def _named(names: Sequence[str], node: Node) -> dict[str, Any]:
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _leads_to_relu(node: Node) -> bool:
    """Whether `relu` is applied to the node, or to a sum with it; one in place is known by the node
    that it writes."""
    sums = [user for user in node.users if user.target in _SUMS]
    sums += [each.args[0] for each in sums if isinstance(each.args[0], Node)]
    after = [*node.users, *(user for each in sums for user in each.users)]
    return any(user.target in _ACTIVATIONS for user in after)


def _fold(gm: GraphModule, node: Node) -> None:
    norm = _named(_NORM, node)
    convolution = norm["input"]
    called = _named(_CONVOLUTION, convolution)
    with gm.graph.inserting_before(node):
        facts = (called["weight"], called.get("bias"), norm["running_mean"], norm["running_var"])
        more = (norm.get("weight"), norm.get("bias"), norm.get("eps", 1e-5))
        pair = gm.graph.call_function(folded, (*facts, *more))
        weight, bias = (gm.graph.call_function(operator.getitem, (pair, k)) for k in (0, 1))
        called.update(weight=weight, bias=bias)
        made = gm.graph.call_function(torch.conv2d, (), called)
    for each in (pair, weight, bias, made):
        each.meta.update(node.meta)
    node.replace_all_uses_with(made)
    gm.graph.erase_node(node)
    gm.graph.erase_node(convolution)


def folded(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    scale: torch.Tensor | None,
    shift: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of a convolution that does what one of `weight`, (o, i, h, w), and `bias`
    does with a norm of the (o,) statistics behind it; of `weight`'s type."""
    factor = torch.rsqrt(variance.float() + eps)
    if scale is not None:
        factor = factor * scale.float()
    moved = (mean.float() if bias is None else mean.float() - bias.float()) * factor
    moved = -moved if shift is None else shift.float() - moved
    wide = weight.float() * factor.view(-1, 1, 1, 1)
    return wide.to(weight.dtype), moved.to(weight.dtype)
