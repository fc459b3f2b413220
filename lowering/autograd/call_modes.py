"""The modes and generators of a call, for it to be made again under them."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch


def cuda_state(tensors: tuple[Any, ...]) -> Any:
    device = next((t.device for t in tensors if isinstance(t, torch.Tensor) and t.is_cuda), None)
    return None if device is None else (device, torch.cuda.get_rng_state(device))


def autocasts() -> tuple[Callable[[], Any], ...]:
    """Makers of the autocast contexts that are in force."""
    return tuple(
        functools.partial(torch.autocast, kind, torch.get_autocast_dtype(kind))
        for kind in ("cpu", "cuda")
        if torch.is_autocast_enabled(kind)
    )


@contextlib.contextmanager
def generators(rng: Any, cuda: Any) -> Iterator[None]:
    """The random generators as they were, and back."""
    if rng is None:
        yield
        return
    now = torch.random.get_rng_state()
    torch.random.set_rng_state(rng)
    if cuda is not None:
        device, state = cuda
        cuda_now = torch.cuda.get_rng_state(device)
        torch.cuda.set_rng_state(state, device)
    try:
        yield
    finally:
        torch.random.set_rng_state(now)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda_now, device)
