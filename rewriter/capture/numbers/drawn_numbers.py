"""Comparisons of random numbers that come out alike whatever is drawn: `torch.rand([]) < rate` with
a rate of zero, as models have it that may leave out layers. Reading them decides nothing."""

import operator
from typing import Any

import torch
import torch.fx

_DRAWS = frozenset((torch.rand, torch.rand_like))  # numbers of [0, 1)
_COMPARED = {
    given: name
    for name in ("lt", "le", "gt", "ge")
    for given in (name, f"__{name}__", getattr(torch, name), getattr(operator, name))
}


def on_drawn_branch(recorder: Any, args: Any) -> bool:
    """Whether the one tensor that is read is such a comparison, made in this part of the call."""
    tracked = recorder.tracker.get(args[0]) if isinstance(args[0], torch.Tensor) else None
    if tracked is None or tracked.value.home < 0:
        return False
    compared: torch.fx.Node = tracked.value.node
    name = _COMPARED.get(compared.target)
    if name is None or compared.kwargs or len(compared.args) != 2:
        return False
    drawn, number = compared.args
    if type(number) is not int and type(number) is not float:
        return False
    if not isinstance(drawn, torch.fx.Node) or drawn.target not in _DRAWS or "out" in drawn.kwargs:
        return False
    written = {value.node for segment in recorder.segments for value in segment.written}
    if compared in written or drawn in written:
        return False
    return number < 0 or (number == 0 and name in ("lt", "ge"))
