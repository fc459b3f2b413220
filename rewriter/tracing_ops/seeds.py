"""torch's default random generator of the CPU while recording: what seeds it, or takes or sets its
state, runs between two graphs, at every call."""

import types
from typing import Any

import torch

from .. import catalogue
from ..capture.nested import concretize, plain_in
from ..capture.node_arguments import as_nodes
from ..capture.stops import RecordingStopped
from ..capture.trace import Recorder


def _manual_seed(seed: int) -> None:
    torch.manual_seed(seed)


# What stands in the graph for each, with one argument or none.
_ACTS = {
    torch.random.manual_seed: _manual_seed,
    torch.random.get_rng_state: torch.random.get_rng_state,
    torch.random.set_rng_state: torch.random.set_rng_state,
}


def takes(function: Any) -> bool:
    return isinstance(function, types.FunctionType) and _inner(function) in _ACTS


def _inner(function: Any) -> Any:
    """torch's own function: its compiler puts another one around it once it is loaded."""
    return getattr(function, "__wrapped__", function)


def is_fork(function: Any) -> bool:
    """`fork_rng`, which is Python around the others."""
    return function is torch.random.fork_rng


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    args = concretize((*args, *kwargs.values()))
    if not rec.active:
        return rec.once(function, args)
    rec.before_change()
    rec.breaks(catalogue.UNSUPPORTED, f"torch.{_inner(function).__name__}")
    with rec.paused():
        try:
            rec.cut(eager=True)
            given = as_nodes(rec, args)
        except RecordingStopped:
            return rec.once(function, plain_in(args))
        result = rec.once(function, args)
        act, origin = _ACTS[_inner(function)], rec.origin_text()
        node = rec.segment.call("call_function", act, given, {}, origin)
        rec.segment.random = True
        if isinstance(result, torch.Tensor):
            rec._bind_tensor(result, node)
        rec.cut()
    return result
