"""Recorded graphs as bytes for another process of this installation, and back. Only what a key can
be taken of (`graph_key`) travels: the other side takes the key again, and compares."""

import io
import pickle
from typing import Any

from torch.fx import Graph, GraphModule, Node

from ...runtime.cache.named_functions import Unnamed, by_text, text_of
from .graph_modules import graph_module


def to_bytes(gm: GraphModule, around: Any) -> bytes:
    """A graph whose tensors are all placeholders, and plain values that go with it. Raises Unnamed
    or pickle.PicklingError for what stands for nothing in another process."""
    places = {node: place for place, node in enumerate(gm.graph.nodes)}
    nodes = [
        (node.op, node.name, node.target, node.args, node.kwargs, dict(node.meta))
        for node in places
    ]
    out = io.BytesIO()
    _Writer(out, places).dump((nodes, around))
    return out.getvalue()


def from_bytes(data: bytes) -> tuple[GraphModule, Any]:
    """The graph and the values. Only for what this process was given by its parent."""
    made: list[Node] = []
    reader = _Reader(io.BytesIO(data), made)
    nodes, around = reader.load()
    graph = Graph()
    for op, name, target, args, kwargs, meta in nodes:
        args, kwargs = reader.in_graph(args), reader.in_graph(kwargs)
        node = graph.create_node(op, target, args, kwargs, name)
        node.meta = meta
        made.append(node)
    return graph_module({}, graph), around


class _Place:
    """Of a node in a graph that is not made yet."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Writer(pickle.Pickler):
    """Functions go by name, nodes by their place."""

    def __init__(self, file: Any, places: dict[Node, int]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._places = places

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, Node):
            return self._places[value]
        if callable(value) and not isinstance(value, type):
            return text_of(value)
        if isinstance(value, type) and value.__module__.partition(".")[0] not in _OURS:
            raise Unnamed(f"{value} is a class of the user's")
        return None


_OURS = ("builtins", "torch", "dynfix")


class _Reader(pickle.Unpickler):
    def __init__(self, file: Any, made: list[Node]) -> None:
        super().__init__(file)
        self._made = made

    def persistent_load(self, reference: Any) -> Any:
        return _Place(reference) if isinstance(reference, int) else by_text(reference)

    def in_graph(self, value: Any) -> Any:
        """With nodes for their places."""
        if isinstance(value, _Place):
            return self._made[value.number]
        if isinstance(value, list | tuple):
            parts = [self.in_graph(each) for each in value]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        if isinstance(value, dict):
            return {key: self.in_graph(each) for key, each in value.items()}
        if isinstance(value, slice):
            return slice(*map(self.in_graph, (value.start, value.stop, value.step)))
        return value
