"""The stages from a core-ATen graph to a program, in order."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch.fx import GraphModule

from ..runtime.background_budget import checkpoint
from ..runtime.diagnostics import log
from ..runtime.errors import LoweringError
from ..runtime.gc_pause import gc_paused
from ..runtime.gpu.cuda_graphs import GraphedProgram, HostPrologue
from ..runtime.gpu.launch_triton import SequentialLaunch, made_of
from ..runtime.options import TARGET_NAMES, Options
from ..runtime.programs.program import Program
from .graph.attention_blocks import compile_attention
from .graph.control_flow import compile_bodies, is_choice
from .host_device_split import is_of_host, split_host_device
from .kernel_files import CheckedKernel
from .loops import legality, storage
from .loops.dump import dump
from .loops.ir import Batch, Buffer, Group, Nest
from .loops.kernel_graph import ExternCall, Item, Ref, Unit, leaves
from .loops.polynomials import Size, UnknownSize, hint
from .loops.storage import bytes_of, given_buffers, touched, written
from .lowerings.lower import lower_graph
from .passes import ATEN, LOOPS, passes_of
from .program_steps import Execution, Launch, Target, TargetKind, emit
from .recurrent_operators import NEVER_REPLAYED
from .stored_graphs import BACKWARD, watchers
from .targets.cpp.cpp_build import CPP, general_text
from .targets.cpp.cpp_target import printed
from .targets.extern import LIBRARY, placeable
from .targets.triton.triton_build import TRITON
from .written_kernels import folder_of

# What is in `watchers` sees the kernels of each unit, and may wrap what launches them.
Watcher = Callable[[Unit, dict[Group | Batch, Launch]], dict[Group | Batch, Launch]]


def compile_unit(
    graph: GraphModule, name: str, options: Options, returned: int = 0
) -> Program | GraphedProgram:
    """The program of a functional core-ATen graph; its first `returned` outputs are different
    tensor objects. Raises LoweringError or BuildError."""
    kind = _target_of(_device_types(graph), options)
    for each in passes_of(ATEN):
        graph = each.run(graph, returned)
    within = dataclasses.replace(options, cudagraphs=False)

    def compiled(body: GraphModule) -> Program | GraphedProgram:
        return compile_unit(body, f"{name}_body", within)

    compile_bodies(graph, compiled)
    if kind.execution is Execution.IN_ORDER:
        compile_attention(graph, compiled)
    try:
        return _compile(graph, name, options, returned, kind)
    except UnknownSize as question:
        log.info(
            "%s: loops over sizes that only a call knows are left to the library: %s",
            name,
            question,
        )
        return _compile(graph, name, options, returned, kind, symbolic_loops=False)


def _compile(
    graph: GraphModule,
    name: str,
    options: Options,
    returned: int,
    kind: TargetKind,
    *,
    symbolic_loops: bool = True,
) -> Program | GraphedProgram:
    with gc_paused():
        unit = lower_graph(graph, name, symbolic_loops, kind.execution is Execution.IN_ORDER)
        unit = unit.replace(returned=returned, consumes=name == BACKWARD)
        _check(unit, "lower", options)
        for each in passes_of(LOOPS, kind.execution):
            checkpoint()
            run = each.run if options.fusion or not each.fusion else each.unfused
            if run is not None:
                unit = run(unit)
                _check(unit, each.name, options)
    return finish(unit, target_of(unit, options), options)


def _device_types(graph: GraphModule) -> set[str]:
    values = [leaf for node in graph.graph.nodes for leaf in leaves(node.meta.get("val"))]
    return {value.device.type for value in values if isinstance(value, torch.Tensor)}


def finish(unit: Unit, target: Target, options: Options) -> Program | GraphedProgram:
    """Storage, kernels, program."""
    planned = _planned(unit, target, options)
    groups = [item for item in unit.items if isinstance(item, Group | Batch)]
    launches = target.build(unit, groups, planned.may_alias())
    if options.write_kernels:
        folder = folder_of(options.write_kernels)
        launches = folder.served(unit, launches, planned.may_alias())
    for watch in watchers:
        launches = watch(unit, launches)
    program = emit(unit, planned, launches)
    chooses = any(isinstance(item, ExternCall) and is_choice(item.target) for item in unit.items)
    if not options.cudagraphs or chooses:
        return program
    parts = split_host_device(unit)
    device = None if _is_recorded(unit) else _graph_device(parts.graphed)
    if device is None:
        return program
    changed = {buffer for item in unit.items for buffer in written(item)}
    beside, inputs = None, unit.inputs
    if parts.host is not None:
        inputs = parts.graphed.inputs
        graphed, host = (
            emit(part, _planned(part, target, options), launches)
            for part in (parts.graphed, parts.host)
        )
        handed = [parts.host.outputs[k] for k in range(len(parts.places), len(parts.host.outputs))]
        memory = tuple((r.shape, r.strides, r.dtype) for r in handed)
        beside = HostPrologue(graphed, host, parts.given, parts.taken, parts.places, memory)
    places = [k for k, ref in enumerate(inputs) if isinstance(ref, Ref) and ref.buffer in changed]
    sized = [k for k, ref in enumerate(inputs) if isinstance(ref, Ref) and _is_sized(ref)]
    return GraphedProgram(program, device, frozenset(places), unit.returned, sized, beside)


def _is_recorded(unit: Unit) -> bool:
    """Whether a call makes or reads a graph of eager's, which a replay of kernels would not."""
    calls = [item for item in unit.items if isinstance(item, ExternCall)]
    found = next((call for call in calls if call.target in NEVER_REPLAYED), None)
    if found is not None:
        why = "a recurrent layer is trained in it"
        log.warning("%s runs without a CUDA graph: %s: %s", unit.name, why, found.origin)
    return found is not None


def _is_sized(ref: Ref) -> bool:
    """Whether only a call knows its sizes or strides."""
    return any(not isinstance(size, int) for size in (*ref.shape, *ref.strides))


def _planned(unit: Unit, target: Target, options: Options) -> storage.Storage:
    planned = storage.plan(unit, target.arena, placeable(unit), LIBRARY)
    if options.verify_ir and (found := storage.overlaps(unit, planned)):
        raise LoweringError(f"live buffers share memory: {', '.join(found[:5])}")
    return planned


def _graph_device(unit: Unit) -> torch.device | None:
    """The GPU that everything in the unit runs on; None, and a line that says why, if there are
    several devices."""
    used = {buffer for item in unit.items for buffer in _used(item, unit)} - unit.constants.keys()
    devices = {unit.layouts[buffer].device for buffer in used}
    if len(devices) == 1 and next(iter(devices)).type == "cuda":
        (device,) = devices
        return device if device.index is not None else torch.device("cuda", 0)
    if any(device.type == "cuda" for device in devices):
        names = ", ".join(sorted(map(str, devices)))
        log.warning("%s runs without a CUDA graph: it works on %s", unit.name, names)
    return None


def _used(item: Item, unit: Unit) -> Iterable[Buffer]:
    """What the item reads and stores; what a call makes that works on the host alone, too, since it
    makes that at every call. (Attention on a GPU leaves numbers on the host beside its result.)"""
    if isinstance(item, ExternCall) and not is_of_host(item, unit):
        return item.reads()
    return touched(item)


TARGETS = [CPP, TRITON]


def register(kind: TargetKind) -> None:
    """Let another target build the kernels of graphs on its devices, and of those whose options
    name it."""
    TARGETS.append(kind)
    TARGET_NAMES.add(kind.name)


def target_of(unit: Unit, options: Options) -> Target:
    devices = {layout.device.type for layout in unit.layouts.values()}
    return _target_of(devices, options).make(options)


def _target_of(devices: set[str], options: Options) -> TargetKind:
    """The target that the options name, or else the last one that was registered for a device of
    the graph's. Raises LoweringError where the one that is named takes no tensors of a device."""
    for kind in reversed(TARGETS):
        if kind.name == options.target:
            if foreign := devices & _devices() - kind.devices - {"cpu"}:
                raise LoweringError(f"the target {kind.name} takes no tensors on {min(foreign)}")
            return kind
    return next((kind for kind in reversed(TARGETS) if kind.devices & devices), CPP)


def _devices() -> set[str]:
    return set().union(*(kind.devices for kind in TARGETS))


def _check(unit: Unit, stage: str, options: Options) -> None:
    if not options.verify_ir:
        return
    groups = [group for item in unit.items for group in _groups(item)]
    legality.check(groups, stage)
    unknown = legality.undefined_variables(unit.variables, groups)
    if unknown:
        raise LoweringError(f"after {stage}: no call can tell {', '.join(unknown)}")
    nests = [nest for group in groups for nest in group.nests]
    missing = list(legality.coverage_problems(nests, _needed(unit)))
    if missing:
        raise LoweringError(f"after {stage}: {'; '.join(missing[:5])}")


def _groups(item: Item) -> tuple[Group, ...]:
    if isinstance(item, ExternCall):
        return ()
    if isinstance(item, Nest):
        return (Group("nest", item.space, (item,)),)
    return item.groups if isinstance(item, Batch) else (item,)


def _needed(unit: Unit) -> dict[Buffer, Size]:
    """Buffers that the nests have to fill: those allocated here and read or returned, which no
    extern call makes; and how many elements, since a result may have gaps."""
    given = given_buffers(unit)
    made = {b for item in unit.items if isinstance(item, ExternCall) for b in item.writes()}
    used = {b for item in unit.items for b in storage.touched(item)} | unit.outputs_buffers()
    counts = {b: (unit.layouts[b].count, b.size) for b in used - given - made}
    return {b: min(both, key=hint) for b, both in counts.items()}


Facts = TypeVar("Facts", bound="KernelFacts")


@dataclasses.dataclass
class KernelFacts:
    """What is said of one kernel: its source, the user's lines, the bytes that a call moves.
    `general`: the source without names and comments, equal for kernels that do the same."""

    name: str
    target: str
    code: str
    general: str
    origins: list[str]
    loops: int
    read: int
    written: int
    on_gpu: bool

    @classmethod
    def of(cls: type[Facts], unit: Any, group: Any, launch: Any, buffers: Any) -> Facts:
        on_gpu = any(unit.layouts[b].device.type == "cuda" for b in buffers if b in unit.layouts)
        outputs = written(group)
        inputs = [b for b in touched(group) if b not in outputs]
        target, code, general = _texts(group, launch, on_gpu)
        return cls(
            name=group.name,
            target=target,
            code=code,
            general=general,
            origins=list(dict.fromkeys(o for nest in group.nests for o in nest.origins)),
            loops=len(group.nests),
            read=sum(int(hint(bytes_of(b))) for b in inputs),
            written=sum(int(hint(bytes_of(b))) for b in outputs),
            on_gpu=on_gpu,
        )

    def __str__(self) -> str:
        moved = f"reads {self.read:,} bytes, writes {self.written:,}"
        head = f"{self.name}: {self.loops} loop{'s' * (self.loops != 1)}, {moved}"
        return "\n  ".join((head, *self.origins))


def _texts(group: Any, launch: Any, on_gpu: bool) -> tuple[str, str, str]:
    """Target, source and general source of a kernel."""
    if isinstance(launch, CheckedKernel):
        return "edited", launch.text, _general(launch.text)
    prepared = [one.group for one in map(made_of, _in_turn(launch)) if one is not None]
    kernels = [kernel for each in prepared for (kernel,) in each.variants]
    if kernels:
        general = (_general(k.text.replace(k.name, "KERNEL")) for k in kernels)
        grids = (f"{k.grid or k.programs} programs, {k.warps} warps" for k in kernels)
        return "triton", "\n\n".join(k.text for k in kernels), "\n".join((*general, *grids))
    if on_gpu or not hasattr(group, "nests"):
        return "library", dump(group), _general(dump(group))
    kernel = printed(group)
    return "cpp", kernel.source, general_text(group, kernel)


def _in_turn(launch: Any) -> list[Any]:
    return [one for one, _ in launch.steps] if isinstance(launch, SequentialLaunch) else [launch]


def _general(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
