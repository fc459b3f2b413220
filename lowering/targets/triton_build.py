"""The Triton target as the pipeline sees it: groups of a unit in, callables out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from ...runtime.launch_triton import load_groups
from ..ir import Batch, Buffer, Group
from ..program_steps import Launch
from ..stages.storage import given_buffers, touched
from ..unit import Unit
from .cpp_build import CppTarget
from .triton import global_buffers, print_group
from .triton_tile import Device


class TritonTarget:
    """Kernels for GPUs; a group over CPU tensors goes to C++, or to Triton's interpreter where that
    is on.

    tune: time every variant of a kernel and keep the fastest.
    """

    # kernels take tensors: addresses of another device's memory would have to be planned on it
    arena = False

    def __init__(self, tune: bool = False, interpret: bool = False) -> None:
        self.tune, self.interpret = tune, interpret

    def build(self, unit: Unit, groups: list[Group | Batch]) -> dict[Group | Batch, Launch]:
        """Raises LoweringError for what Triton cannot express, BuildError for what it rejects."""
        placed: dict[torch.device, list[Group | Batch]] = {}
        for group in groups:
            placed.setdefault(_device(unit, group), []).append(group)
        built: dict[Group | Batch, Launch] = {}
        for device, own in placed.items():
            if device.type == "cpu" and not self.interpret:
                built |= CppTarget().build(unit, own)
            else:
                alone = [group for group in own if isinstance(group, Group)]
                built.update(self._build(unit, alone, device).items())
        return built

    def _build(
        self, unit: Unit, groups: Sequence[Group], device: torch.device
    ) -> dict[Group, Launch]:
        properties, private = describe(device), private_buffers(unit)
        printed = [print_group(group, properties, private) for group in groups]
        launches = load_groups(printed, device, self.tune)
        return {
            group: (launch, global_buffers(group))
            for group, launch in zip(groups, launches, strict=True)
        }


def describe(device: torch.device) -> Device:
    """What the heuristics want to know of a device."""
    if device.type == "cpu":
        return Device()
    properties = torch.cuda.get_device_properties(device)
    return Device(properties.multi_processor_count, getattr(properties, "warp_size", 32))


def private_buffers(unit: Unit) -> frozenset[Buffer]:
    """Buffers that one item alone touches, and that the graph does not return."""
    users = Counter(buffer for item in unit.items for buffer in touched(item))
    return (
        frozenset(b for b, n in users.items() if n == 1)
        - unit.outputs_buffers()
        - given_buffers(unit)
    )


def _device(unit: Unit, group: Group | Batch) -> torch.device:
    return unit.layouts[global_buffers(group)[0]].device
