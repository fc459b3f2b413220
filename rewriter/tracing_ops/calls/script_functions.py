"""Functions that TorchScript compiled: one node where they only compute, opaque else."""

from typing import Any

import torch

from ... import catalogue
from ...capture import opsets
from ...capture.nested import plain_in
from ...capture.trace import Recorder
from . import custom_functions

_QUIET = frozenset(
    "prim::Constant prim::ListConstruct prim::ListUnpack prim::TupleConstruct prim::TupleUnpack"
    " prim::NumToTensor prim::device prim::dtype".split()
)


def takes(function: Any) -> bool:
    return isinstance(function, torch.jit.ScriptFunction)


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if all(map(_is_pure, _nodes(function.inlined_graph))):
        return custom_functions.as_node(rec, function, args, kwargs)
    rec.stop(catalogue.OPAQUE_CALL, f"the TorchScript function {function.name}")
    return rec.once(function, plain_in(args), plain_in(kwargs))


def _nodes(graph: Any) -> list[Any]:
    return list(graph.nodes())


def _is_pure(node: Any) -> bool:
    """Whether a node of its graph computes a tensor, without control flow, writes or draws."""
    kind = node.kind()
    if kind in _QUIET:
        return True
    name = kind.partition("::")[2]
    return kind.startswith("aten::") and not name.endswith("_") and not opsets.draws(name)
