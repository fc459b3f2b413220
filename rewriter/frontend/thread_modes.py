"""Modes of torch that belong to a thread, for work that another thread or process does for it; and
settings of the whole process, for another process alone."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._device import DeviceContext

from ...runtime.guards.guard_state import function_modes
from ...runtime.programs.autocast_state import DEVICES


@dataclasses.dataclass(frozen=True)
class Modes:
    """Grad mode, autocast and default device."""

    grad: bool
    cache: bool
    casts: Mapping[str, torch.dtype]
    places: tuple[Any, ...]

    @classmethod
    def now(cls) -> "Modes":
        """Of the calling thread."""
        casts = {
            device: torch.get_autocast_dtype(device)
            for device in DEVICES
            if torch.is_autocast_enabled(device)
        }
        places = [mode.device for mode in function_modes() if type(mode) is DeviceContext]
        cache = torch.is_autocast_cache_enabled()
        return cls(torch.is_grad_enabled(), cache, casts, tuple(places))

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, the calling thread has them."""
        with contextlib.ExitStack() as stack:
            for place in self.places:
                stack.enter_context(torch.device(place))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for device, dtype in self.casts.items():
                stack.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=self.cache))
            yield


def under_modes_of_caller(job: Callable[[], None]) -> Callable[[], None]:
    """`job`, under the modes that the calling thread has now."""
    modes = Modes.now()

    def run() -> None:
        with modes.entered():
            job()

    return run


_PRECISION = [(backend, "matmul") for backend in ("cuda", "mkldnn")]
_FLAGS = ("cudnn_benchmark", "cudnn_deterministic", "mkldnn_enabled", "mkldnn_deterministic")


def process_settings() -> tuple[Any, ...]:
    """What scripts set for their whole process and programs follow from."""
    C: Any = torch._C
    deterministic = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    read = getattr(C, "_get_fp32_precision_getter", None)
    precision = [] if read is None else [read(*place) for place in _PRECISION]
    flags = [getattr(C, f"_get_{name}", lambda: None)() for name in _FLAGS]
    return torch.get_default_dtype(), deterministic, warns, precision, flags


def set_process_settings(settings: tuple[Any, ...]) -> None:
    """Have this process as another one is."""
    C: Any = torch._C
    dtype, deterministic, warns, precision, flags = settings
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(deterministic, warn_only=warns)
    for place, value in zip(_PRECISION, precision, strict=False):
        C._set_fp32_precision_setter(*place, value)
    for name, value in zip(_FLAGS, flags, strict=True):
        if value is not None:
            getattr(C, f"_set_{name}", lambda value: None)(value)
