"""Of a ReLU that is a result of the forward the backward keeps the result itself, as eager does,
not where it is zero: that would be one more kernel, and memory beside the result's."""

from typing import Any

import torch
from torch.fx import GraphModule, Node

_aten = torch.ops.aten


def with_results(forward: GraphModule, backward: GraphModule, returned: int) -> None:
    """Where the forward, after its `returned` results, saves what tells the zeros of one of them,
    let it save that result, and the backward ask it."""
    output = forward.graph.output_node()
    all_of: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    results, kept = all_of[:returned], all_of[returned:]
    given = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    tests = [(node, _tested(node)) for node in kept if node not in results]
    for node, result in tests:
        if result is None or result not in results or node.name not in given:
            continue
        old = given[node.name]
        place = given.setdefault(result.name, old)
        _ask(backward, old, place, node, result)
        if result in kept:
            kept.remove(node)
            backward.graph.erase_node(old)
        else:
            kept[kept.index(node)] = result
    if kept != all_of[returned:]:
        output.args = ((*results, *kept),)
        forward.graph.eliminate_dead_code()
        forward.recompile()
        backward.recompile()


def _tested(node: Any) -> Node | None:
    """The ReLU's result that the node asks for its zeros."""
    if not isinstance(node, Node) or node.target is not _aten.le.Scalar or node.args[1] != 0:
        return None
    source: Any = node.args[0]
    while source.target in (_aten.detach.default, _aten.alias.default):
        source = source.args[0]
    return source if source.target is _aten.relu.default else None


def _ask(backward: GraphModule, old: Node, place: Node, test: Node, result: Node) -> None:
    """In place of the argument `old` the test of the argument `place`, which is the result."""
    users = list(old.users)
    *_, last = backward.graph.find_nodes(op="placeholder")
    with backward.graph.inserting_after(last):
        asked = backward.graph.call_function(_aten.le.Scalar, (place, 0))
    asked.meta = dict(test.meta)
    for user in users:
        user.replace_input_with(old, asked)
    place.meta = dict(result.meta)
