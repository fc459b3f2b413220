"""Draws of the library in place of those that decide where each number goes by how a tensor lies in
memory."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

aten = torch.ops.aten


@cache
def _follow_memory() -> bool:
    """Whether the library draws in the order of memory on the CPU: its way for Intel's processors
    goes along the axes."""
    # a graph is traced, with the operator below
    with _disable_current_modes(), torch._C._DisablePythonDispatcher():
        made = torch.empty(5, 7, device="cpu")
        generator = torch.Generator().manual_seed(0)
        turned = made.t().bernoulli_(0.5, generator=generator).tolist()
        along = made.view(7, 5).bernoulli_(0.5, generator=generator.manual_seed(0)).tolist()
    return bool(turned != along)


def _drawn(like: torch.Tensor, p: float) -> Any:
    """What `bernoulli_` makes of a tensor that lies as `like`; out of place the operator goes along
    the axes."""
    steps = [_known(step) for step in like.stride()]
    order = sorted(range(like.dim()), key=lambda axis: -steps[axis])
    along = like.device.type == "cpu" and not _follow_memory()
    if order == [*range(like.dim())] or along:
        return aten.bernoulli.p(like, p)
    back = [order.index(axis) for axis in range(like.dim())]
    return aten.bernoulli.p(like.permute(order), p).permute(back)


def _known(step: Any) -> int:
    return step.node.hint if isinstance(step, torch.SymInt) else step  # type: ignore[no-any-return]


def dropout(drawn: Callable[..., Any] | None) -> Callable[..., Any]:
    """The library's draw of a mask and a product, which joins what is around it; its kernel goes
    over the elements twice more. drawn: for other devices."""

    def dropped(x: torch.Tensor, p: float, train: bool | None) -> Any:
        if x.device.type != "cpu":
            return drawn(x, p, train) if drawn is not None else NotImplemented
        if train is False or not 0.0 < p < 1.0 or not x.is_floating_point():
            return NotImplemented
        mask = _drawn(torch.empty_like(x, dtype=torch.bool), 1.0 - p)
        return x * mask * (1.0 / (1.0 - p)), mask

    return dropped


def _bernoulli_(x: torch.Tensor, p: float = 0.5, *, generator: Any = None) -> torch.Tensor:
    if generator is not None:
        return x.copy_(aten.bernoulli.p(x, p, generator=generator))
    return x.copy_(_drawn(torch.empty_like(x), p))


_IN_PLACE: Any = aten.bernoulli_.float
for _key in (torch._C.DispatchKey.AutogradCPU, torch._C.DispatchKey.AutogradCUDA):
    _IN_PLACE.py_impl(_key)(_bernoulli_)
