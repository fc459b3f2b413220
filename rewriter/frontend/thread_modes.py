"""Modes of torch that belong to a thread, for work that another thread does for it."""

import contextlib
from collections.abc import Callable

import torch
from torch.utils._device import DeviceContext

from ...runtime.guards.guard_state import function_modes
from ...runtime.programs.autocast_state import DEVICES


def under_modes_of_caller(job: Callable[[], None]) -> Callable[[], None]:
    """`job`, under the grad mode, autocast and default device that the calling thread has now."""
    grad, cache = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
    casts = {
        device: torch.get_autocast_dtype(device)
        for device in DEVICES
        if torch.is_autocast_enabled(device)
    }

    places = [mode.device for mode in function_modes() if type(mode) is DeviceContext]

    def run() -> None:
        with contextlib.ExitStack() as stack:
            for place in places:
                stack.enter_context(torch.device(place))
            stack.enter_context(torch.set_grad_enabled(grad))
            for device, dtype in casts.items():
                stack.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=cache))
            job()

    return run
