"""Which calls are those of `torch.lstm`, `gru`, `rnn_tanh` and `rnn_relu` that become one operator
each way (`recurrent_operators`, which is loaded for the first of them)."""

import importlib
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..recurrent_functions import kind_of_function

_ARGUMENTS = (
    9  # of torch's functions: (input, state, weights, ...), or with batch sizes after input
)


def as_operator(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A call of one of torch's recurrent functions as a call of the operator; any other call, and
    one under autocast, which looks into the function, as it is."""
    kind = kind_of_function().get(target) if callable(target) else None
    if kind is None or kwargs or len(args) != _ARGUMENTS or torch._C._is_any_autocast_enabled():
        return target, args, kwargs
    packed = isinstance(args[3], list | tuple)  # the weights, after the batch sizes
    batch_sizes = args[1] if packed else None
    state, weights, *settings = args[2:] if packed else args[1:]
    settings = [*settings, False] if packed else settings  # batch_first
    states = list(state) if isinstance(state, list | tuple) else [state]
    given = (kind, args[0], batch_sizes, states, list(weights), *settings)
    operators = importlib.import_module("..recurrent_operators", __package__)
    return operators.RNN, given, {}


def keep_rnns(gm: GraphModule, examples: Sequence[Any] = ()) -> GraphModule:
    """The graph with its recurrent layers as operators; itself where there is none."""
    nodes = list(gm.graph.nodes)
    if not any(_is_recurrent(node) for node in nodes) or any(_is_autocast(node) for node in nodes):
        return gm
    gm = GraphModule(gm, torch.fx.Graph(), gm.__class__.__name__)
    gm.graph.output(gm.graph.graph_copy(_graph_of(nodes), {}))
    for node in gm.graph.nodes:
        if _is_recurrent(node):
            node.target, node.args, node.kwargs = as_operator(node.target, node.args, node.kwargs)
    gm.recompile()
    return gm


MAX_OPERATORS_A_LAYER = 12  # operators for each layer


def trains_for_the_most_part(gm: GraphModule, requires_grad: Iterable[bool]) -> bool:
    """Whether the graph, called with such inputs, trains recurrent layers and does little else.
    These record a graph of eager's either way: the whole of it is recorded in less time than a
    program around that takes."""
    called = [node for node in gm.graph.nodes if node.op.startswith("call")]
    layers = sum(map(_is_recurrent, called))
    others = sum(node.target not in _ALONG for node in called) - layers
    return layers > 0 and others <= MAX_OPERATORS_A_LAYER * layers and any(requires_grad)


_ALONG = frozenset((operator.getitem, torch.zeros))


def _graph_of(nodes: list[Node]) -> torch.fx.Graph:
    return nodes[0].graph


def _is_recurrent(node: Node) -> bool:
    return node.op == "call_function" and node.target in kind_of_function()


def _is_autocast(node: Node) -> bool:
    return node.target is torch.amp.autocast_mode._enter_autocast
