"""The Triton target as the pipeline sees it: groups of a unit in, callables out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from itertools import chain

import torch

from ....runtime.gpu.launch_triton import SequentialLaunch, load_groups
from ....runtime.gpu.triton_kernels import TritonGroup
from ....runtime.options import Options
from ...loops.ir import Batch, Buffer, Group
from ...loops.kernel_graph import Unit
from ...loops.storage import given_buffers, touched
from ...program_steps import Execution, Launch, TargetKind
from ..cpp.cpp_build import CppTarget
from .triton_batch import print_batch
from .triton_target import global_buffers, print_group
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

    def build(
        self, unit: Unit, groups: list[Group | Batch], may_meet: Container[Buffer] = ()
    ) -> dict[Group | Batch, Launch]:
        """Raises LoweringError for what Triton cannot express, BuildError for what it rejects."""
        placed: dict[torch.device, list[Group | Batch]] = {}
        for group in groups:
            placed.setdefault(_device(unit, group), []).append(group)
        built: dict[Group | Batch, Launch] = {}
        for device, own in placed.items():
            if device.type == "cpu" and not self.interpret:
                built |= CppTarget().build(unit, own, may_meet)
            else:
                built |= self._build(unit, own, device)
        return built

    def _build(
        self, unit: Unit, groups: Sequence[Group | Batch], device: torch.device
    ) -> dict[Group | Batch, Launch]:
        properties, private = describe(device), private_buffers(unit)
        printed: dict[Group | Batch, TritonGroup] = {}
        apart: list[Batch] = []
        for group in groups:
            if isinstance(group, Group):
                printed[group] = print_group(group, properties, private)
            elif (made := print_batch(group, properties)) is not None:
                printed[group] = made
            else:
                apart.append(group)
                printed.update((g, print_group(g, properties, private)) for g in group.groups)
        launches = load_groups(list(printed.values()), device, self.tune)
        built = {
            group: (launch, global_buffers(group))
            for group, launch in zip(printed, launches, strict=True)
        }
        return built | {batch: _in_turn(batch, built) for batch in apart}


def _made(options: Options) -> TritonTarget:
    return TritonTarget(tune=options.max_autotune, interpret=options.target == "triton")


TRITON = TargetKind("triton", frozenset({"cuda"}), Execution.PARALLEL, _made)


def _in_turn(batch: Batch, built: dict[Group | Batch, Launch]) -> Launch:
    """A launch of the batch's groups one after the other."""
    buffers = global_buffers(batch)
    places = {buffer: k for k, buffer in enumerate(buffers)}
    steps = tuple(
        (built[group][0], tuple(places[buffer] for buffer in built[group][1]))
        for group in batch.groups
    )
    return SequentialLaunch(steps, len(buffers)), buffers  # alike groups have the same sizes


def describe(device: torch.device) -> Device:
    """What the heuristics want to know of a device."""
    if device.type == "cpu":
        return Device()
    properties = torch.cuda.get_device_properties(device)
    return Device(properties.multi_processor_count, getattr(properties, "warp_size", 32))


def private_buffers(unit: Unit) -> frozenset[Buffer]:
    """Buffers that one item alone touches, of a batch one group, since these may run one after
    the other; and that the graph does not return."""
    apart = (item.groups if isinstance(item, Batch) else (item,) for item in unit.items)
    users = Counter(buffer for item in chain.from_iterable(apart) for buffer in touched(item))
    return (
        frozenset(b for b, n in users.items() if n == 1)
        - unit.outputs_buffers()
        - given_buffers(unit)
    )


def _device(unit: Unit, group: Group | Batch) -> torch.device:
    """A loop that only asks whether positions are in range may have no memory."""
    places = (layout.device for layout in unit.layouts.values())
    return next((unit.layouts[buffer].device for buffer in global_buffers(group)), next(places))
