"""The smallest part of a graph that is still compiled wrongly, by delta debugging (Zeller and
Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002)."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from .differences import copy_of

SECONDS = 120.0  # of search; the smallest part so far stands then
Part = tuple[GraphModule, list[Any]]
Fails = Callable[[GraphModule, Sequence[Any]], bool]


def smallest(module: GraphModule, inputs: Sequence[Any], fails: Fails) -> Part | None:
    """A part of `module` and its inputs for which `fails` holds, of which no smaller one was found;
    None where not even the whole does."""
    values = _Values(module)
    with torch.set_grad_enabled(torch.is_grad_enabled()):
        values.run(*map(copy_of, inputs))
    nodes = [node for node in module.graph.nodes if node.op.startswith("call_")]
    end = time.monotonic() + SECONDS

    def is_bad(chosen: list[Node]) -> bool:
        if time.monotonic() > end:
            return False
        try:
            return fails(*part(chosen, values.seen))
        except Exception:  # no program by itself
            return False

    if not is_bad(nodes):
        return None
    return part(_reduced(nodes, is_bad), values.seen)


def _reduced(nodes: list[Node], is_bad: Callable[[list[Node]], bool]) -> list[Node]:
    pieces = 2
    while len(nodes) > 1:
        size = -(-len(nodes) // pieces)
        chunks = [nodes[at : at + size] for at in range(0, len(nodes), size)]
        rests = [[n for n in nodes if n not in chunk] for chunk in chunks]
        found = next((c for c in chunks if is_bad(c)), None)
        if found is not None:
            nodes, pieces = found, 2
            continue
        found = next((c for c in rests if len(chunks) > 2 and is_bad(c)), None)
        if found is not None:
            nodes, pieces = found, max(2, pieces - 1)
        elif size == 1:
            break
        else:
            pieces = min(len(nodes), 2 * pieces)
    return nodes


class _Values(torch.fx.Interpreter):
    """Runs a graph in eager and keeps a copy of what each node gave, before it is written."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.seen: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        self.seen[n] = pytree.tree_map(copy_of, result)
        return result


def part(chosen: Sequence[Node], seen: dict[Node, Any]) -> Part:
    """The graph of `chosen` alone, and what the nodes that it stands on gave. Raises ValueError
    where one of those gave several tensors, or an autocast is entered and not left."""
    names = [getattr(node.target, "__name__", "") for node in chosen]
    if names.count("_enter_autocast") != names.count("_exit_autocast"):
        raise ValueError("the part leaves autocast on, or off")
    graph = Graph()
    inputs: list[Any] = []
    inside = set(chosen)
    outside = list(dict.fromkeys(n for c in chosen for n in c.all_input_nodes if n not in inside))
    made: dict[Node, Any] = {}
    for node in outside:
        value = seen[node]
        if isinstance(value, torch.Tensor):
            made[node] = graph.placeholder(f"x{len(inputs)}")
            inputs.append(value)
        elif any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value)):
            raise ValueError(f"{node} gave several tensors")
    for node in chosen:
        made[node] = _copied(graph, node, made, seen)
    given = [made[n] for n in chosen if _leaves(n, inside)]
    graph.output(tuple(given))
    return GraphModule({}, graph), inputs


def _copied(graph: Graph, node: Node, made: dict[Node, Any], seen: dict[Node, Any]) -> Node:
    def of(argument: Node) -> Any:
        return made[argument] if argument in made else seen[argument]

    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), of)
    copied = graph.create_node(node.op, node.target, args, kwargs)
    copied.meta = {k: node.meta[k] for k in ("origin", "stack_trace") if k in node.meta}
    return copied


def _leaves(node: Node, inside: set[Node]) -> bool:
    """Whether a result of the part: used outside, or nowhere."""
    return not node.users or any(user not in inside for user in node.users)
