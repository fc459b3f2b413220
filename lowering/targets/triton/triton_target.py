"""Triton target: a group of the loop IR as one or more kernels, with their launch parameters."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from ....runtime.gpu.triton_kernels import TritonGroup, TritonKernel
from ...loops.ir import Batch, Buffer, Group, Load, group_variables, part_height, store_values
from ...loops.polynomials import hint, is_known
from ..triton_pointwise import pointwise_tiles
from .triton_axes import absorb_inner
from .triton_ops import POINTERS
from .triton_print import KernelPrinter
from .triton_products import ProductPrinter, product_tiles
from .triton_split import cut
from .triton_tile import Device, Tile, part_tiles, reach, row_tiles

NAME = "fused"
_CALLED = hashlib.sha256(Path(__file__).with_name("triton_math.py").read_bytes()).hexdigest()
HEADER = f"""\
import triton
import triton.language as tl

from dynfix.lowering.targets.triton import triton_math as m  # {_CALLED[:16]}, part of its binary


"""


def global_buffers(group: Group | Batch) -> tuple[Buffer, ...]:
    """Buffers in memory, in order of first use."""
    found: dict[Buffer, None] = {}
    for nest in group.nests:
        loads = [value.buffer for value in store_values(nest) if isinstance(value, Load)]
        for buffer in [*loads, *(store.buffer for store in nest.stores)]:
            if buffer.scope == "global":
                found.setdefault(buffer)
    return tuple(found)


def print_group(
    group: Group, device: Device | None = None, private: frozenset[Buffer] = frozenset()
) -> TritonGroup:
    """The kernels of a group. Raises LoweringError for what Triton cannot express.

    Kernel arguments count the group's `global_buffers`, then its scratch. private: buffers that
    nothing else reads.
    """
    device = device or Device()
    pieces = cut(group, device)
    places = {buffer: k for k, buffer in enumerate((*global_buffers(group), *pieces.scratch))}
    users = Counter(buffer for piece in pieces.groups for buffer in global_buffers(piece))
    own = frozenset(buffer for buffer in private if users[buffer] == 1)
    variants = tuple(_variants(piece, places, device, own) for piece in pieces.groups)
    return TritonGroup(
        group.name, variants, tuple((b.dtype, b.size) for b in pieces.scratch), HEADER
    )


def tiles(group: Group, device: Device) -> list[Tile]:
    """What one program may hold, the likeliest best first."""
    height = part_height(group.nests)
    if height is not None:
        return part_tiles(group, hint(height))
    if any(nest.multiplies for nest in group.nests):
        return product_tiles(group)
    group = absorb_inner(group)
    if any(nest.inner for nest in group.nests):
        return row_tiles(group, device)
    return pointwise_tiles(group, device)


def _variants(
    group: Group, places: dict[Buffer, int], device: Device, private: frozenset[Buffer]
) -> tuple[TritonKernel, ...]:
    printed = [print_kernel(group, tile, places, private) for tile in tiles(group, device)]
    return tuple({(kernel.text, kernel.warps): kernel for kernel in printed}.values())


def print_kernel(
    group: Group, tile: Tile, places: dict[Buffer, int], private: frozenset[Buffer] = frozenset()
) -> TritonKernel:
    """One kernel, named after its text; `places`: each buffer's position among the group's buffers
    and scratch."""
    multiplies = any(nest.multiplies for nest in tile.nests)
    printer = (ProductPrinter if multiplies else KernelPrinter)(NAME, tile, private)
    variables = group_variables(group)
    renamed = {var.name: f"n{k}" for k, var in enumerate(variables)}
    text = with_names(printer.print(renamed), renamed)
    name = f"{NAME}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    params = tuple(printer.params)
    made = TritonKernel(
        name=name,
        text=text.replace(f"def {NAME}(", f"def {name}("),
        arguments=tuple(places[buffer] for buffer in params),
        types=tuple(POINTERS[buffer.dtype] for buffer in params),
        sizes=tuple(max(hint(buffer.size), 1) for buffer in params),
        programs=0 if 0 in group.space else tile.programs,
        warps=tile.warps,
    )
    if not variables:
        return made
    wider = dataclasses.replace(tile, wide=True)
    return dataclasses.replace(
        made,
        numbers=tuple(var.hint for var in variables),
        grid=with_names(tile.grid, renamed),
        reach=with_names(
            ", ".join(sorted({str(n) for n in reach(group) if not is_known(n)})), renamed
        ),
        wide=tile.wide,
        wider=None if tile.wide else print_kernel(group, wider, places, private),
    )


def with_names(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), text)
