"""Comparisons of random numbers that come out alike whatever is drawn: `torch.rand([]) < rate` with
a rate of zero, as models have it that may leave out layers. Reading them decides nothing."""

from typing import Any

import torch
import torch.fx

_DRAWS = frozenset(("rand", "rand_like"))  # numbers of [0, 1)


def decided(recorder: Any, args: Any) -> bool:
    """Whether the one tensor that is read is such a comparison, made in this part of the call."""
    tracked = recorder.tracker.get(args[0]) if isinstance(args[0], torch.Tensor) else None
    compared = tracked.value.node if tracked is not None and tracked.value.home >= 0 else None
    if compared is None or _name(compared) not in ("lt", "le", "gt", "ge") or compared.kwargs:
        return False
    drawn, number = (*compared.args, None, None)[:2]
    if not isinstance(drawn, torch.fx.Node) or _name(drawn) not in _DRAWS:
        return False
    if type(number) not in (int, float) or "out" in drawn.kwargs:
        return False
    written = {value.node for segment in recorder.segments for value in segment.written}
    if compared in written or drawn in written:
        return False
    return number < 0 or (number == 0 and _name(compared) in ("lt", "ge"))


def _name(node: torch.fx.Node) -> str:
    if node.op not in ("call_function", "call_method"):
        return ""
    return str(getattr(node.target, "__name__", node.target)).strip("_")
