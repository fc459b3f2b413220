"""Launches of Triton's kernels as plain data, and back: a kernel's source is said by its file in
the cache, which is checked when it is read."""

import marshal
import re
from collections.abc import Sequence
from typing import Any

import torch

from ..gpu.launch_triton import Launch, SequentialLaunch, load_groups, made_of
from ..gpu.triton_kernels import TOOL, TritonGroup, TritonKernel
from . import disk_cache
from .plain_data import Damaged, checked, identifier

GROUP, TURN = "triton", "turn"
_KEY = re.compile(r"[0-9a-f]{64}")
_TYPE = re.compile(r"\*?\w+")


def to_data(launch: Any) -> list[Any] | None:
    """None for a launch that is none of these."""
    if isinstance(launch, SequentialLaunch):
        steps = [[to_data(run), list(places)] for run, places in launch.steps]
        return None if any(run is None for run, _ in steps) else [TURN, launch.count, steps]
    made = made_of(launch)
    if made is None:
        return None
    group = made.group
    kernels = [_kernel_data(group.header, kernel) for (kernel,) in group.variants]
    scratch = [[str(dtype).removeprefix("torch."), size] for dtype, size in group.scratch]
    return [GROUP, str(made.device), group.name, len(group.header), kernels, scratch]


def _kernel_data(header: str, kernel: TritonKernel) -> list[Any]:
    text = header + kernel.text
    key = disk_cache.key(TOOL, text)
    disk_cache.put(key, ".py", text.encode())
    wider = None if kernel.wider is None else _kernel_data(header, kernel.wider)
    return [
        *(key, kernel.name, [*kernel.arguments], [*kernel.types], [*kernel.sizes]),
        *(kernel.programs, kernel.warps, [*kernel.numbers], kernel.grid, kernel.reach),
        *(kernel.wide, wider),
    ]


class Launches:
    """The launches of one program's kernels, made together: binaries are built side by side.
    Raises Damaged, BuildError."""

    def __init__(self, data: Sequence[Any]) -> None:
        groups: dict[bytes, list[Any]] = {}
        for one in data:
            groups |= {_name(group): group for group in _groups_in(one)}
        self._made: dict[bytes, Launch] = {}
        by_device: dict[str, list[bytes]] = {}
        for name, group in groups.items():
            by_device.setdefault(group[1], []).append(name)
        for device, names in by_device.items():
            made = [_group(groups[name]) for name in names]
            launches = load_groups(made, torch.device(device))
            self._made.update(zip(names, launches, strict=True))

    def launch(self, data: list[Any]) -> Launch:
        if data[0] == GROUP:
            return self._made[_name(data)]
        _, count, steps = data
        made = ((self.launch(run), tuple(map(_whole, places))) for run, places in steps)
        return SequentialLaunch(tuple(made), _whole(count))


def is_launch(data: Any) -> bool:
    return isinstance(data, list) and data[:1] in ([GROUP], [TURN])


def _name(group: list[Any]) -> bytes:
    """The same for what is equal: later versions of the format tell which objects are the same."""
    return marshal.dumps(group, 0)


def _groups_in(data: list[Any]) -> list[list[Any]]:
    if data[0] == GROUP:
        return [data]
    return [group for run, _ in data[2] for group in _groups_in(run)]


def _group(data: list[Any]) -> TritonGroup:
    _, _, name, length, kernels, scratch = data
    header = ""
    variants = []
    for kernel in kernels:
        header, made = _kernel(kernel, _whole(length))
        variants.append((made,))
    types = [(getattr(torch, dtype), _whole(size)) for dtype, size in scratch]
    if not all(isinstance(dtype, torch.dtype) for dtype, _ in types):
        raise Damaged("the type of a kernel's memory")
    return TritonGroup(identifier(name), tuple(variants), tuple(types), header)


def _kernel(data: list[Any], length: int) -> tuple[str, TritonKernel]:
    """The header of the kernel's file, and the kernel."""
    key, name, arguments, types, sizes, programs, warps, numbers, grid, reach, wide, wider = data
    source = disk_cache.read(key, ".py") if _KEY.fullmatch(key) else None
    if source is None or type(wide) is not bool or not all(map(_TYPE.fullmatch, types)):
        raise Damaged(f"a kernel, or its source {key}")
    text = source.decode()
    made = TritonKernel(
        *(identifier(name), text[length:], _numbers(arguments), tuple(types), _numbers(sizes)),
        *(_whole(programs), _whole(warps), _numbers(numbers)),
        *(grid and checked(grid), reach and checked(reach), wide),
        None if wider is None else _kernel(wider, length)[1],
    )
    return text[:length], made


def _numbers(data: list[Any]) -> tuple[int, ...]:
    return tuple(map(_whole, data))


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise Damaged(f"a number of a kernel: {number}")
    return number
