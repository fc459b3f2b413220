"""What must be put back when a call is not finished by the entry that began it."""

from collections.abc import Callable
from typing import Any

import torch

from .host_generators import restorer


def version_of(tensor: torch.Tensor) -> int:
    """The tensor's count of writes; tensors of inference mode have none."""
    return -1 if tensor.is_inference() else tensor._version


_Layout = tuple[torch.Size, tuple[int, ...], int | torch.SymInt]


def _layout(tensor: torch.Tensor) -> _Layout:
    return tensor.shape, tensor.stride(), tensor.storage_offset()


class Undo:
    """Written inputs and the random generators, as they were."""

    def __init__(self, random: bool, devices: tuple[torch.device, ...]) -> None:
        self._generators: dict[int, Callable[[], None] | None] = {}
        self._histories: list[tuple[torch.Tensor, int]] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor, _Layout, int]] = []
        self._cpu = torch.random.get_rng_state() if random else None
        self._cuda = (
            [(d, torch.cuda.get_rng_state(d)) for d in devices if d.type == "cuda"]
            if random
            else []
        )

    def keep_generator(self, owner: Any) -> None:
        """A host generator is about to be asked."""
        if id(owner) not in self._generators:
            self._generators[id(owner)] = restorer(owner)

    def keep(self, tensor: torch.Tensor, historied: bool) -> None:
        """The tensor is about to be written, as part of its gradient history or not."""
        version = version_of(tensor)
        self._copies.append((tensor, tensor.detach().clone(), _layout(tensor), version))
        if historied:
            self._histories.append((tensor, version))

    def can_go_back(self) -> bool:
        """Whether no gradient history was written: it could not be put back."""
        return all(version_of(tensor) == version for tensor, version in self._histories)

    def back(self) -> None:
        with torch.no_grad():
            # a tensor kept twice was written before the second time
            for tensor, copy, layout, version in reversed(self._copies):
                if _layout(tensor) != layout:  # `transpose_` and its like
                    tensor.as_strided_(*layout)
                if version_of(tensor) != version or not torch.equal(tensor, copy):
                    tensor.detach().copy_(copy)
        if self._cpu is not None:
            torch.random.set_rng_state(self._cpu)
        for restore in self._generators.values():
            if restore is not None:
                restore()
        for device, rng in self._cuda:
            torch.cuda.set_rng_state(rng, device)
