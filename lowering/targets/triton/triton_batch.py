"""Kernels that are alike in one launch: each program finds its group by its number, and takes that
group's pointers and length. An optimizer's step over many parameters is one launch."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence

from ....runtime.gpu.triton_kernels import ALIGNMENT, TritonGroup, TritonKernel
from ...loops.batches import global_buffers as own_buffers
from ...loops.batches import length_of, like
from ...loops.ir import Batch, Buffer, Group, group_variables
from ...loops.polynomials import hint
from ...loops.storage import touched, written
from .triton_ops import POINTERS
from .triton_split import cut
from .triton_target import HEADER, global_buffers, print_kernel, tiles
from .triton_tile import INT32, Device, Tile

MOST_POINTERS = 120  # of one launch
MOST_GROUPS = 32
PROGRAM = "    pid = tl.program_id(0)\n"


def print_batch(batch: Batch, device: Device) -> TritonGroup | None:
    """The batch as launches of as many groups as one may take; None where a group needs another,
    several kernels, sizes of a call, or more than 32 bits."""
    one = like(batch.groups[0])
    even, odd = _by_vectors(batch.groups)
    lengths = [hint(length_of(group) or 0) for group in batch.groups]
    if group_variables(batch) or not _are_independent(batch):
        return None
    pieces = cut(one, device)
    if len(pieces.groups) > 1 or pieces.scratch or max(lengths) * 2 > INT32:
        return None
    tile = tiles(one, device)[0]
    kernel = print_kernel(one, tile, {b: k for k, b in enumerate(own_buffers([one])[0])})
    if PROGRAM not in kernel.text or tile.height:
        return None
    places = {buffer: k for k, buffer in enumerate(global_buffers(batch))}
    count = max(1, min(MOST_GROUPS, MOST_POINTERS // len(kernel.arguments)))
    variants = tuple(
        (_launch(kernel, tile, groups[k : k + count], places),)
        for groups in (even, odd)
        for k in range(0, len(groups), count)
    )
    return TritonGroup(batch.name, variants, (), HEADER)


def _by_vectors(groups: Sequence[Group]) -> tuple[list[Group], list[Group]]:
    """Those that are read in vectors, as a launch of these alone is, and the others."""
    even, odd = list[Group](), list[Group]()
    for group in groups:
        (odd if hint(length_of(group) or 0) % ALIGNMENT else even).append(group)
    return even, odd


def _are_independent(batch: Batch) -> bool:
    """Whether no group touches what another one writes: they run at once."""
    users = Counter(buffer for group in batch.groups for buffer in touched(group))
    return all(users[buffer] == 1 for group in batch.groups for buffer in written(group))


def _launch(
    kernel: TritonKernel, tile: Tile, groups: Sequence[Group], places: dict[Buffer, int]
) -> TritonKernel:
    """One launch of these groups."""
    lengths = [hint(length_of(group) or 0) for group in groups]  # 0 where all are the same
    buffers = [[own[k] for k in kernel.arguments] for own in own_buffers(groups)]
    block = tile.dims[0].block
    programs = [-(-length // block) if length else tile.programs for length in lengths]
    body = "\n".join([*_choice(kernel, lengths, programs), ""])
    names = [f"g{k}_p{i}" for k in range(len(groups)) for i in range(len(kernel.arguments))]
    text = f"{_inner(kernel)}\n\n@triton.jit\ndef batch({', '.join(names)}):\n{body}"
    name = f"batch_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    every = [buffer for own in buffers for buffer in own]
    return TritonKernel(
        name=name,
        text=text.replace("def batch(", f"def {name}("),
        arguments=tuple(places[buffer] for buffer in every),
        types=tuple(POINTERS[buffer.dtype] for buffer in every),
        sizes=tuple(max(hint(buffer.size), 1) for buffer in every),
        programs=sum(programs),
        warps=kernel.warps,
    )


def _inner(kernel: TritonKernel) -> str:
    """The kernel of one group, told its program's number."""
    text = kernel.text.replace(PROGRAM, "", 1)
    return text.replace(f"def {kernel.name}(", "def one(pid, ", 1)


def _choice(kernel: TritonKernel, lengths: Sequence[int], programs: Sequence[int]) -> Iterator[str]:
    """Lines that choose among the groups by the program's number, and call the kernel."""
    yield PROGRAM.rstrip("\n")
    many = range(len(kernel.arguments))
    yield from (f"    p{i} = g0_p{i}" for i in many)
    yield f"    first, length = 0, {lengths[0]}"
    start = 0
    for group, length in enumerate(lengths[1:], 1):
        start += programs[group - 1]
        yield f"    later = pid >= {start}"
        yield from (f"    p{i} = tl.where(later, g{group}_p{i}, p{i})" for i in many)
        yield f"    first = tl.where(later, {start}, first)"
        yield f"    length = tl.where(later, {length}, length)"
    given = [f"p{i}" for i in many] + ["length"] * len(kernel.numbers)
    yield f"    one(pid - first, {', '.join(given)})"
