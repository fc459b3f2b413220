"""Calls that have another form for what they are given, which is known while a graph is traced."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from ..decompositions.bags import bags
from ..decompositions.products_of_rows import product
from .graph_modules import with_calls

_FUNCTIONS: dict[Any, Any] = {F.embedding_bag: bags, torch.prod: product}
_METHODS: dict[Any, Any] = {"prod": product}


def write_out_calls(gm: GraphModule, examples: Sequence[Any]) -> GraphModule:
    """The graph with such calls as functions that look at what they are given; itself without
    any."""
    return with_calls(gm, _form_of)


def _form_of(node: Node) -> Any:
    if node.op == "call_function":
        return _FUNCTIONS.get(node.target)
    return _METHODS.get(node.target) if node.op == "call_method" else None
