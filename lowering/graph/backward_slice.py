"""What nodes of a graph are made of."""

from collections.abc import Callable, Iterable

from torch.fx import Node


def _inputs(node: Node) -> list[Node]:
    return node.all_input_nodes


def needed(nodes: Iterable[Node], made_of: Callable[[Node], Iterable[Node]] = _inputs) -> set[Node]:
    """The nodes, and all that they are made of. `made_of` gives what goes into one node."""
    found, todo = set[Node](), list(nodes)
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += made_of(node)
    return found
