"""Programs lowered and printed for a GPU that is not there: inputs are fake tensors, nothing is
built or run.

`lowered` gives the units (inference, or forward and backward), `Figures.of` what they cost:

* kernels that are launched, and calls of the library;
* bytes: what kernels and calls read and write, over what the program has to (its inputs and
  outputs once). A row that a kernel does not hold counts once for each loop that reads it;
* sectors: see `printed_accesses`; of the worst access.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from dynfix.lowering import joint, pipeline
from dynfix.lowering.fake_tensor_mode import PacedFakeMode
from dynfix.lowering.loops.axes import axes_of
from dynfix.lowering.loops.ir import Batch, Buffer, Group, IndexValue, Load
from dynfix.lowering.loops.kernel_graph import ExternCall, Ref, Unit, leaves
from dynfix.lowering.loops.polynomials import hint
from dynfix.lowering.loops.storage import plan
from dynfix.lowering.program_steps import emit
from dynfix.lowering.targets.extern import LIBRARY, placeable
from dynfix.lowering.targets.triton.triton_batch import print_batch
from dynfix.lowering.targets.triton.triton_build import private_buffers
from dynfix.lowering.targets.triton.triton_split import cut
from dynfix.lowering.targets.triton.triton_target import (
    global_buffers,
    print_group,
    tiles,
)
from dynfix.lowering.targets.triton.triton_tile import Device
from dynfix.runtime.gpu.triton_kernels import TritonGroup
from dynfix.runtime.options import Options
from printed_accesses import worst
from torch import fx
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.proxy_tensor import make_fx

GPU = Device()  # an H200
CUDA, META = 1, 14  # places among the devices of c10


@contextlib.contextmanager
def _device_guard() -> Iterator[None]:
    """Operators may say which GPU is the current one, which a build of torch without CUDA refuses:
    as on the meta device, nothing happens then."""
    library = next(Path(torch.__file__).parent.glob("lib/libc10.*"))
    table = (ctypes.c_void_p * 15).in_dll(
        ctypes.CDLL(str(library)), "_ZN3c104impl26device_guard_impl_registryE"
    )
    before, table[CUDA] = table[CUDA], table[CUDA] or table[META]
    try:
        yield
    finally:
        table[CUDA] = before


def _order_of_result(
    image: torch.Tensor, weight: torch.Tensor, backend: Any
) -> torch.memory_format:
    """A GPU's convolutions give channels-last results where image or weight are so."""
    found = [suggest_memory_format(given) for given in (image, weight)]
    return next((f for f in found if f != torch.contiguous_format), torch.contiguous_format)


class _Whole(fx.Tracer):
    def is_leaf_module(self, module, name):
        return False


def lowered(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[Unit]:
    """The units of a function, or of a module with its parameters, of inputs like these (of any
    device). Where one of them requires a gradient, those of forward and backward."""
    graph, parameters = _traced(function, inputs)
    units: list[Unit] = []

    def finish(unit, target, options):
        units.append(unit)
        groups = [item for item in unit.items if isinstance(item, Group | Batch)]
        launches = {group: (lambda *given: None, global_buffers(group)) for group in groups}
        return emit(unit, plan(unit, False, placeable(unit), LIBRARY), launches)

    grads = any(given.requires_grad for given in (*inputs, *parameters))
    examples = _alike((*inputs, *parameters), "cpu" if grads else "cuda")
    with (
        mock.patch.object(pipeline, "finish", finish),
        mock.patch.object(joint.tools, "begin"),
        mock.patch.object(torch._C, "_conv_determine_backend_memory_format", _order_of_result),
        torch.set_grad_enabled(grads),
        _device_guard(),
    ):
        if not grads:
            joint.compile_graph(graph, examples, Options())
            return units
        # The backward is lowered when it is needed; for streams it asks the driver of a GPU. So
        # this is memory of the host, which nobody touches: the launches do nothing.
        call = joint.compile_graph(graph, examples, Options(target="triton"))
        result = call(*examples)
        wanted = [given for given in examples if given.requires_grad]
        torch.autograd.grad(result, wanted, torch.empty_like(result))
    return units


def _alike(inputs: Sequence[torch.Tensor], device: str) -> list[torch.Tensor]:
    with contextlib.nullcontext() if device == "cpu" else PacedFakeMode():
        made = [
            torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=device)
            for given in inputs
        ]
    for example, given in zip(made, inputs, strict=True):
        example.requires_grad_(given.requires_grad)
    return made


def _traced(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor]
) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """Its graph, of torch's functions, or of ATen's where it asks for sizes; and its parameters."""
    try:
        return _with_parameters(function)
    except (fx.proxy.TraceError, RuntimeError):
        return make_fx(function, pre_dispatch=True)(*inputs), []


def _with_parameters(function: Callable[..., Any]) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """Its graph with parameters and buffers as further inputs, and these."""
    root = function if isinstance(function, torch.nn.Module) else torch.nn.Module()
    graph = _Whole().trace(function)
    places = [node for node in graph.nodes if node.op == "placeholder"]
    made: dict[str, fx.Node] = {}
    given = []
    for node in list(graph.nodes):
        if node.op != "get_attr":
            continue
        if node.target not in made:
            after = [*places, *made.values()][-1]
            with graph.inserting_after(after):
                made[node.target] = graph.placeholder(node.target.replace(".", "_"))
            given.append(_attribute(root, node.target))
        node.replace_all_uses_with(made[node.target])
        graph.erase_node(node)
    return fx.GraphModule(torch.nn.Module(), graph), given


def _attribute(root: Any, name: str) -> Any:
    for part in name.split("."):
        root = getattr(root, part)
    return root


@dataclasses.dataclass(frozen=True)
class Figures:
    """What a program costs. bytes, sectors: over what is needed at least, to two places."""

    kernels: int
    externs: int
    bytes: float
    sectors: float

    @classmethod
    def of(cls, units: Sequence[Unit]) -> Figures:
        externs = [item for unit in units for item in unit.items if isinstance(item, ExternCall)]
        printed = [made for unit in units for made in printed_groups(unit)]
        moved = sum(_moved(unit) for unit in units) / max(sum(map(_least, units)), 1)
        texts = [variants[0] for _, group in printed for variants in group.variants]
        sectors = worst(texts)
        return cls(len(texts), len(externs), round(moved, 2), round(sectors, 2))


def printed_groups(unit: Unit) -> Iterator[tuple[Group | Batch, TritonGroup]]:
    private = private_buffers(unit)
    for item in unit.items:
        if isinstance(item, ExternCall):
            continue
        made = print_batch(item, GPU) if isinstance(item, Batch) else None
        if made is not None:
            yield item, made
            continue
        for group in _groups(item):
            yield group, print_group(group, GPU, private)


def _groups(item: Group | Batch) -> tuple[Group, ...]:
    return item.groups if isinstance(item, Batch) else (item,)


# ---- bytes


def _moved(unit: Unit) -> int:
    """Bytes that kernels and calls of the library read and write."""
    calls = [item for item in unit.items if isinstance(item, ExternCall)]
    refs = [leaf for call in calls for leaf in leaves((call.args, call.kwargs, call.result))]
    total = sum(hint(ref.numel) * ref.dtype.itemsize for ref in refs if _is_ref(ref))
    private = private_buffers(unit)
    groups = [g for item in unit.items if not isinstance(item, ExternCall) for g in _groups(item)]
    return total + sum(_of_group(group, private) for group in groups)


def _of_group(group: Group, private: frozenset[Buffer]) -> int:
    """What its kernels touch: those that take a buffer, which need not have one of their own."""
    pieces, printed = cut(group, GPU), print_group(group, GPU, private)
    buffers = (*global_buffers(group), *pieces.scratch)
    total = 0
    for piece, variants in zip(pieces.groups, printed.variants, strict=True):
        total += _of_piece(piece, {buffers[k] for k in variants[0].arguments})
    return total


def _is_ref(leaf: Any) -> bool:
    return isinstance(leaf, Ref)


def _of_piece(group: Group, given: set[Buffer]) -> int:
    tile = tiles(group, GPU)[0]
    passes = [tile.nests] if tile.persistent or tile.height else [(nest,) for nest in tile.nests]
    touched = (_touched(nests, what) for nests in passes for what in ("loads", "stores"))
    return sum(size for each in touched for buffer, size in each.items() if buffer in given)


def _touched(nests: Sequence[Any], what: str) -> Counter[Buffer]:
    """Bytes of each buffer in memory that the nests load, or store."""
    every = (access for nest in nests for access in getattr(nest, what))
    places = {
        (access.buffer, access.index, _points(access))
        for access in every
        if getattr(access, "buffer", None) is not None and access.buffer.scope == "global"
    }
    found: Counter[Buffer] = Counter()
    for buffer, _, points in places:
        found[buffer] = min(found[buffer] + points, hint(buffer.size))
    return Counter({buffer: n * buffer.dtype.itemsize for buffer, n in found.items()})


def _points(access: Any) -> int:
    """At how many points it may be elsewhere."""
    value = access if isinstance(access, Load) else IndexValue(access.index)
    return prod(hint(axis.size) for axis in axes_of(value))


def _least(unit: Unit) -> int:
    """Bytes of the inputs that are read, and of the outputs."""
    given, read = unit.given_buffers(), Counter[Buffer]()
    for item in unit.items:
        if isinstance(item, ExternCall):
            for ref in leaves((item.args, item.kwargs)):
                if _is_ref(ref):
                    read[ref.buffer] = max(read[ref.buffer], hint(ref.numel) * ref.dtype.itemsize)
            continue
        for group in _groups(item):
            for buffer, size in _touched(group.nests, "loads").items():
                read[buffer] = max(read[buffer], size)
    outputs = {ref.buffer for ref in leaves(unit.outputs) if _is_ref(ref)} - given
    changed = {b for item in unit.items for b in _written(item)} & given
    whole = sum(hint(buffer.size) * buffer.dtype.itemsize for buffer in outputs | changed)
    return whole + sum(size for buffer, size in read.items() if buffer in given)


def _written(item: Any) -> set[Buffer]:
    if isinstance(item, ExternCall):
        return set(item.writes())
    return {buffer for group in _groups(item) for nest in group.nests for buffer in nest.writes}
