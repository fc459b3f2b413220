"""Operators that are called for their effect alone. Those that torch keeps in order by tokens
(`_linalg_check_errors`, which raises) become plain calls, which a program makes in the order of the
graph."""

import contextlib
import operator
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._higher_order_ops.effects import with_effects
from torch.fx import GraphModule, Node
from torch.fx.node import has_side_effect

# What torch does not keep by itself, or not in every version.
for _check in ("_assert_async", "_linalg_check_errors"):
    has_side_effect(getattr(torch.ops.aten, _check).default)
_TOKENS = ("prims::_make_token", "prims::_sink_tokens")


def inside_graphs() -> contextlib.AbstractContextManager[Any]:
    """AOTAutograd gives graphs that make their tokens, not graphs that take and return them."""
    patch: Any = functorch_config.patch
    return patch(unlift_effect_tokens=True)  # type: ignore[no-any-return]


def inputs_of(joint: GraphModule) -> list[Node]:
    """A joint graph's inputs but for tokens."""
    places = (node for node in joint.graph.nodes if node.op == "placeholder")
    return [node for node in places if not any(_takes(user, node) for user in node.users)]


def _takes(user: Node, token: Node) -> bool:
    return user.target is with_effects and user.args[0] is token


def is_made(node: Any) -> bool:
    """Whether the node is a token that an effect gives."""
    got = isinstance(node, Node) and node.target is operator.getitem
    source: Any = node.args[0] if got else None
    return got and source.target is with_effects and node.args[1] == 0


def without_tokens(gm: GraphModule) -> None:
    """Rewrite the graph, which makes its tokens itself."""
    effects = [node for node in gm.graph.nodes if node.target is with_effects]
    if not all(isinstance(node.args[1], torch._ops.OpOverload) for node in effects):
        return
    tokens = [node for node in gm.graph.nodes if _schema_name(node) in _TOKENS]
    ends = [node for node in tokens if node.args]
    for node in (*ends, *reversed(effects)):
        if node.target is with_effects:
            _call_plainly(gm.graph, node)
        gm.graph.erase_node(node)
    for node in tokens:
        if node not in ends:
            gm.graph.erase_node(node)


def _schema_name(node: Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else str(schema.name)


def _call_plainly(graph: torch.fx.Graph, node: Node) -> None:
    """Put the operator's own call before the node, and its results where the node's are read."""
    target: Any = node.args[1]
    several = len(target._schema.returns) > 1
    with graph.inserting_before(node):
        call = graph.call_function(target, node.args[2:], node.kwargs)
    call.meta.update(node.meta)
    values = node.meta["val"]
    call.meta["val"] = tuple(values[1:]) if several else values[1]
    for user in list(node.users):
        place: Any = user.args[1]
        if place > 0 and several:
            user.args = (call, place - 1)
        else:
            user.replace_all_uses_with(call) if place else None
            graph.erase_node(user)
