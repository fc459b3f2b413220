"""Gradients of results that are lazy conjugates or negatives: a backward is traced for gradients
with the same bit, and given resolved ones, whatever the user's are."""

from typing import Any

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten


def take_resolved(backward: GraphModule) -> None:
    """Rewrite the graph: of an input with a bit it makes the same numbers with the bit set."""
    places = [node for node in backward.graph.nodes if node.op == "placeholder"]
    for node in places:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        if value.is_conj():
            _with_bit(node, places[-1], aten.conj_physical.default, aten._conj.default)
        elif value.is_neg():
            _with_bit(node, places[-1], aten.neg.default, aten._neg_view.default)


def _with_bit(given: Node, last: Node, change: Any, lazily: Any) -> None:
    graph, value, users = given.graph, given.meta["val"], list(given.users)
    with graph.inserting_after(last):
        changed = graph.call_function(change, (given,))
    with graph.inserting_after(changed):
        made = graph.call_function(lazily, (changed,))
    plain = value.new_empty_strided(value.shape, value.stride())
    given.meta["val"], changed.meta["val"] = plain, change(plain)
    made.meta["val"] = lazily(changed.meta["val"])
    for user in users:
        user.replace_input_with(given, made)
