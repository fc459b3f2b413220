"""Launches of Triton's kernels: calls without Triton's JIT binder."""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any

import torch

from ..build import building
from ..diagnostics import log
from ..errors import BuildError
from . import binary_store, tools, tuning
from .native_launch import launch_types, native_launch
from .triton_kernels import (
    ALIGNMENT,
    TritonGroup,
    TritonKernel,
    build,
    interpreted,
    load_source,
    target_of,
)

_INT32 = 2**31 - 1
_APART = 256  # bytes: where parts of one piece of memory begin, as tensors of their own would
_SIZES = 256  # sets of sizes remembered of a kernel, and of a group


Launch = Callable[..., None]


@dataclasses.dataclass(frozen=True)
class PreparedLaunch:
    """What a launch runs: the group, with the variants that were chosen alone."""

    group: TritonGroup
    device: torch.device


_made: dict[int, tuple[Launch, PreparedLaunch]] = {}  # by the identity of what launches


def made_of(launch: Launch) -> PreparedLaunch | None:
    """What the launch runs; None for one that `load_groups` did not make."""
    found = _made.get(id(launch))
    return found[1] if found is not None and found[0] is launch else None


@dataclasses.dataclass(frozen=True)
class SequentialLaunch:
    """Launches one after the other. `steps`: each with the positions of its buffers among the first
    `count` arguments; the numbers, which follow, go to all."""

    steps: tuple[tuple[Launch, tuple[int, ...]], ...]
    count: int

    def __call__(self, *arguments: Any) -> None:
        numbers = arguments[self.count :]
        for run, own in self.steps:
            run(*(arguments[k] for k in own), *numbers)


class _Kernel:
    """One kernel on one device: its binaries, and the launch."""

    def __init__(self, kernel: TritonKernel, header: str, device: torch.device) -> None:
        self.kernel, self.header, self.device = kernel, header, device
        self.binaries: dict[tuple[bool, ...], Any] = {}
        self.shape = _shape(kernel)
        self.sized: dict[tuple[int, ...], tuple[int, bool, tuple[bool, ...]]] = {}
        self.lock = threading.Lock()

    def prepare(self, kind: tuple[bool, ...] = ()) -> Any:
        """kind: whether the pointers are aligned, and which sizes are multiples of 16; as in the
        recorded call if empty."""
        kind = kind or (True, *(number % ALIGNMENT == 0 for number in self.kernel.numbers))
        with self.lock, torch.cuda.device(self.device):
            if kind not in self.binaries:
                with building(f"{self.kernel.name} could not be built"):
                    self.binaries[kind] = self._binary(kind)
            return self.binaries[kind]

    def _binary(self, kind: tuple[bool, ...]) -> Any:
        own = self.kernel
        given = self.header + own.text, own.name, own.types, own.warps, len(own.numbers), own.wide
        key = binary_store.key_of(self.device, kind, own.checks, own.options, *given)
        found = binary_store.find(key, self.device, functools.partial(self._built, kind))
        if found is None:
            made = self._built(kind)
            binary_store.keep(key, made)
            found = binary_store.load(made, self.device)
        return found

    def _built(self, kind: tuple[bool, ...]) -> Any:
        own = self.kernel
        function = getattr(load_source(self.header + own.text, own.name), own.name)
        tools.wait()
        target = target_of(self.device)
        return build(own, function, target, aligned=kind[0], even=kind[1:])

    def launch(self, pointers: Sequence[int], stream: int, numbers: tuple[int, ...] = ()) -> None:
        together, programs = 0, self.kernel.programs
        for pointer in pointers:
            together |= pointer
        kind: tuple[bool, ...] = (together % ALIGNMENT == 0,)
        if numbers:
            programs, far, even = self.sized.get(numbers) or self._note(numbers)
            if far:
                return self.wider().launch(pointers, stream, numbers)
            if not programs:
                return
            kind += even
        binary = self.binaries.get(kind) or self.prepare(kind)
        binary.run(
            programs,
            1,
            1,
            stream,
            binary.function,
            binary.packed_metadata,
            None,
            None,
            None,
            *pointers,
            *numbers,
        )

    def with_programs(self, numbers: tuple[int, ...]) -> tuple[Any, int]:
        """The binary for these sizes and aligned pointers, and its programs."""
        if not numbers:
            return self.prepare(), self.kernel.programs
        programs, far, even = self.sized.get(numbers) or self._note(numbers)
        return (
            self.wider().with_programs(numbers) if far else (self.prepare((True, *even)), programs)
        )

    def _note(self, numbers: tuple[int, ...]) -> tuple[int, bool, tuple[bool, ...]]:
        """The grid for these sizes, whether they need 64 bits, and which are multiples of 16."""
        if len(self.sized) >= _SIZES:
            self.sized.clear()
        programs, farthest = self.shape(*numbers)
        even = tuple(number % ALIGNMENT == 0 for number in numbers)
        found = programs, farthest > _INT32 and self.kernel.wider is not None, even
        self.sized[numbers] = found
        return found

    def wider(self) -> _Kernel:
        assert self.kernel.wider is not None
        return _load(self.header, self.kernel.wider, self.device)[1]


def _shape(kernel: TritonKernel) -> Callable[..., tuple[int, int]]:
    """The grid and the farthest reach of a call, by its sizes."""
    names = ", ".join(f"n{k}" for k in range(len(kernel.numbers)))
    made = eval(f"lambda {names}: ({kernel.grid or 0}, max({kernel.reach or 0}, 0))")
    return made  # type: ignore[no-any-return]


# ---- launching


def load_groups(
    groups: Sequence[TritonGroup], device: torch.device, tune: bool = False
) -> list[Launch]:
    """A function for each group that takes its buffers and runs its kernels on the device's current
    stream.

    tune: time every variant on buffers of its own, once for all processes, and take the fastest.
    Under TRITON_INTERPRET=1 `device` may be the CPU. Raises BuildError if Triton rejects a kernel.
    """
    if device.type == "cpu":
        if not interpreted():
            raise BuildError("Triton kernels for CPU tensors run under TRITON_INTERPRET=1 only")
        first = [[(kernels[0], None) for kernels in group.variants] for group in groups]
        return _known([_interpreter_launch(group) for group in groups], groups, first, device)
    pick = _fastest if tune else _likeliest
    chosen = [[pick(group, kernels, device) for kernels in group.variants] for group in groups]
    _prepare_all([kernel for kernels in chosen for _, kernel in kernels])
    launches = [
        _device_launch(group, kernels, device)
        for group, kernels in zip(groups, chosen, strict=True)
    ]
    return _known(launches, groups, chosen, device)


def _known(
    launches: list[Launch],
    groups: Sequence[TritonGroup],
    chosen: Sequence[Sequence[tuple[TritonKernel, Any]]],
    device: torch.device,
) -> list[Launch]:
    for launch, group, kernels in zip(launches, groups, chosen, strict=True):
        alone = tuple((own,) for own, _ in kernels)
        _made[id(launch)] = (
            launch,
            PreparedLaunch(dataclasses.replace(group, variants=alone), device),
        )
    return launches


Chosen = tuple[
    TritonKernel, _Kernel
]  # a group's own variant, and what runs it (shared by equal kernels)
_kernels: dict[tuple[object, ...], _Kernel] = {}


def _load(header: str, kernel: TritonKernel, device: torch.device) -> Chosen:
    key = (
        kernel.text,
        kernel.types,
        kernel.programs,
        kernel.grid,
        kernel.warps,
        kernel.contracts,
        device,
    )
    return kernel, _kernels.setdefault(key, _Kernel(kernel, header, device))


def _likeliest(group: TritonGroup, kernels: Sequence[TritonKernel], device: torch.device) -> Chosen:
    return _load(group.header, kernels[0], device)


def _prepare_all(kernels: Sequence[_Kernel]) -> None:
    """Build in parallel: much of it is ptxas, a process of its own."""
    wanted = list(
        {kernel: None for kernel in kernels if kernel.kernel.programs or kernel.kernel.numbers}
    )
    if not wanted:
        return
    with _pool(len(wanted)) as pool:
        list(pool.map(_Kernel.prepare, wanted))


def _pool(jobs: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=min(8, jobs, os.cpu_count() or 1))


def _device_launch(group: TritonGroup, kernels: Sequence[Chosen], device: torch.device) -> Launch:
    index = device.index if device.index is not None else torch.cuda.current_device()
    steps = [(kernel, own.arguments) for own, kernel in kernels if own.programs or own.numbers]
    count = max((len(own.numbers) for own, _ in kernels), default=0)
    current, stream_of = (
        torch._C._cuda_getDevice,
        torch._C._cuda_getCurrentRawStream,
    )  # half of torch.cuda's cost

    def run(arguments: tuple[Any, ...]) -> None:
        buffers, numbers = arguments[: len(arguments) - count], arguments[len(arguments) - count :]
        scratch = [torch.empty(size, dtype=dtype, device=device) for dtype, size in group.scratch]
        pointers = [buffer.data_ptr() for buffer in (*buffers, *scratch)]
        stream = stream_of(index)
        for kernel, own in steps:
            kernel.launch([pointers[k] for k in own], stream, numbers)

    def launch(*arguments: Any) -> None:
        if current() == index:
            return run(arguments)
        with torch.cuda.device(index):
            run(arguments)

    native = _sized(group, steps, index, launch, count) if count else None
    return native or _native(group, steps, index, launch)


Steps = Sequence[tuple[_Kernel, tuple[int, ...]]]


def _sized(group: TritonGroup, steps: Steps, device: int, slow: Launch, count: int) -> Launch:
    """One native call for each set of sizes, made when they first come."""
    plans: dict[tuple[int, ...], Launch] = {}

    def plan(numbers: tuple[int, ...]) -> Launch:
        if len(plans) >= _SIZES:
            plans.clear()
        sized = [step for step in steps if step[0].shape(*numbers)[0]]
        made = _native(group, sized, device, lambda *given: slow(*given, *numbers), numbers)
        plans[numbers] = made
        return made

    types = launch_types()
    if types is not None:
        return types.Sized(plans, plan, count)  # type: ignore[no-any-return]

    def launch(*arguments: Any) -> None:
        cut = len(arguments) - count
        numbers = arguments[cut:]
        (plans.get(numbers) or plan(numbers))(*arguments[:cut])

    return launch


def _native(
    group: TritonGroup, steps: Steps, device: int, slow: Launch, numbers: tuple[int, ...] = ()
) -> Launch:
    """The same by one native call; `slow` where there is none, and for pointers that are not
    aligned."""
    if not steps:
        return slow
    built = [(*kernel.with_programs(numbers), own, kernel.kernel.waits) for kernel, own in steps]

    def again(*arguments: Any) -> None:
        slow(*arguments[: len(arguments) - len(group.scratch)])

    fast = native_launch(built, numbers, device, again, binary_store.triton_version())
    if fast is None or not group.scratch:
        return fast or slow
    sizes = [-(-size * dtype.itemsize // _APART) * _APART for dtype, size in group.scratch]
    (*places, total), where = accumulate(sizes, initial=0), torch.device("cuda", device)

    def launch(*arguments: Any) -> None:
        memory = torch.empty(total, dtype=torch.uint8, device=where)
        start = memory.data_ptr()
        fast(*arguments, *[start + place for place in places])

    return launch


def _interpreter_launch(group: TritonGroup) -> Launch:
    first = [kernels[0] for kernels in group.variants]
    functions = [
        getattr(load_source(group.header + kernel.text, kernel.name), kernel.name)
        for kernel in first
    ]

    shapes = [_shape(kernel) for kernel in first]

    def launch(*arguments: Any) -> None:
        scratch = [torch.empty(size, dtype=dtype) for dtype, size in group.scratch]
        for kernel, function, shape in zip(first, functions, shapes, strict=True):
            count = len(arguments) - len(kernel.numbers)
            every, numbers = [*arguments[:count], *scratch], arguments[count:]
            programs = shape(*numbers)[0] if numbers else kernel.programs
            if programs:
                function[(programs,)](*(every[k] for k in kernel.arguments), *numbers)

    return launch


# ---- choosing by time


def _fastest(group: TritonGroup, kernels: Sequence[TritonKernel], device: torch.device) -> Chosen:
    """The variant that runs fastest on buffers of its own."""
    if len(kernels) == 1 or not (kernels[0].programs or kernels[0].numbers):
        return _load(group.header, kernels[0], device)
    texts = [f"{kernel.warps} {kernel.programs} {kernel.text}" for kernel in kernels]
    name = (kernels[0].name, torch.cuda.get_device_name(device), *texts)
    number = tuning.choice(name, len(kernels), lambda: _times(group, kernels, device))
    return _load(group.header, kernels[number], device)


def _times(
    group: TritonGroup, kernels: Sequence[TritonKernel], device: torch.device
) -> dict[int, float]:
    """Milliseconds of each variant that builds and fits. Raises BuildError if none does."""
    loaded = [_load(group.header, kernel, device)[1] for kernel in kernels]
    with _pool(len(loaded)) as pool:
        fit = list(pool.map(_fits, loaded))
    buffers = memory_of(kernels[0], device)
    pointers = [buffer.data_ptr() for buffer in buffers]
    with torch.cuda.device(device):
        stream = torch.cuda.current_stream().cuda_stream
    launches = {
        number: _timed(kernel, pointers, stream, kernels[0].numbers)
        for number, kernel in enumerate(loaded)
        if fit[number]
    }
    if not launches:
        raise BuildError(f"no variant of {kernels[0].name} could be built")
    times = tuning.interleaved(launches, device)
    del buffers
    return times


def _timed(
    kernel: _Kernel, pointers: Sequence[int], stream: int, numbers: tuple[int, ...]
) -> Callable[[], None]:
    """A launch, native where it can be, as that of a group is."""
    slow = functools.partial(kernel.launch, pointers, stream, numbers)
    index = kernel.device.index
    index = torch.cuda.current_device() if index is None else index
    built = [(*kernel.with_programs(numbers), tuple(range(len(pointers))), False)]
    version = binary_store.triton_version()
    fast = native_launch(built, numbers, index, lambda *_: slow(), version)
    return slow if fast is None else functools.partial(fast, *pointers)


def _fits(kernel: _Kernel) -> bool:
    try:
        kernel.prepare()
        return True
    except BuildError as error:
        log.info("a variant of %s is left out: %s", kernel.kernel.name, error)
        return False


def memory_of(kernel: TritonKernel, device: torch.device) -> list[torch.Tensor]:
    """Real memory for every argument of the kernel."""
    kinds = [_DTYPES[kind] for kind in kernel.types]
    return tuning.filled(list(zip(kernel.sizes, kinds, strict=True)), device)


_DTYPES = {
    "*fp64": torch.float64,
    "*fp32": torch.float32,
    "*fp16": torch.float16,
    "*bf16": torch.bfloat16,
    "*i64": torch.int64,
    "*i32": torch.int32,
    "*i16": torch.int16,
    "*i8": torch.int8,
    "*u8": torch.uint8,
    "*i1": torch.bool,
}
