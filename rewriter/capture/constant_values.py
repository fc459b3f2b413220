"""Tensors that hold the same numbers in every call that the guards let through: made of constants
alone. What Python reads of them decides nothing."""

from typing import Any

import torch
import torch.fx

from . import opsets
from .nested import tensors_in


def are(recorder: Any, args: Any) -> bool:
    """Whether all tensors of a host read are constant: nothing from outside the graph went into
    them, nothing random, and nothing was written in this recording."""
    if any(segment.written for segment in recorder.segments):
        return False
    values = [recorder.tracker.get(tensor) for tensor in tensors_in(args)]
    return bool(values) and all(
        tracked is not None and tracked.value.home >= 0 and _is_constant(tracked.value.node)
        for tracked in values
    )


def as_array(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """`t.numpy()` of a constant tensor. Whoever writes into the array writes into the tensor: that
    is looked for at the end of the recording (`written`)."""
    recorder.arrays_of.append((args[0], args[0].clone()))
    return func(*args, **kwargs)


def written(recorder: Any) -> bool:
    """Whether an array of a constant tensor was written."""
    return any(not torch.equal(tensor, copy) for tensor, copy in recorder.arrays_of)


def _is_constant(node: torch.fx.Node) -> bool:
    todo, met = [node], set()
    while todo:
        step = todo.pop()
        if step in met:
            continue
        met.add(step)
        name = step.target if isinstance(step.target, str) else step.target.__name__
        if step.op not in ("call_function", "call_method") or opsets.draws(name):
            return False
        if "empty" in name or isinstance(step.target, type):
            return False
        todo += step.all_input_nodes
    return True
