"""The stages from a core-ATen graph to a program, in order."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import GraphModule

from ..runtime.errors import LoweringError
from ..runtime.options import Options
from ..runtime.program import Program
from ..runtime.report import log
from . import legality, storage
from .collection import uncollected
from .inline import inline
from .ir import Group, Nest
from .lower import lower_graph
from .poly import Unknown
from .program_steps import Target, emit
from .schedule import schedule, schedule_unfused
from .simplify import simplify
from .sink import sink
from .storage import given_buffers
from .targets.cpp_build import CppTarget
from .targets.extern import placeable
from .targets.triton_build import TritonTarget
from .unit import Unit, leaves


@dataclasses.dataclass(frozen=True)
class Stage:
    """`run` maps a unit to a unit. fusion: left out when fusion is off."""

    name: str
    run: Callable[[Unit], Unit]
    fusion: bool = False
    unfused: Callable[[Unit], Unit] | None = None


STAGES = (
    Stage("simplify", simplify),  # before scheduling, so that equal loops compare equal
    Stage("inline", inline, fusion=True),
    Stage(
        "sink", sink, fusion=True
    ),  # after inlining, which leaves the copies that have several producers
    Stage("schedule", schedule, fusion=True, unfused=schedule_unfused),
)


def compile_unit(graph: GraphModule, name: str, options: Options) -> Program:
    """The program of a functional core-ATen graph. Raises LoweringError or BuildError."""
    if options.target == "triton" or _on_gpu(graph):
        return _compile(graph, name, options, symbolic_loops=False)
    try:
        return _compile(graph, name, options, symbolic_loops=True)
    except Unknown as question:
        log.info(
            "%s: loops over sizes that only a call knows are left to the library: %s",
            name,
            question,
        )
        return _compile(graph, name, options, symbolic_loops=False)


def _compile(graph: GraphModule, name: str, options: Options, symbolic_loops: bool) -> Program:
    with uncollected():
        unit = lower_graph(graph, name, symbolic_loops)
        _check(unit, "lower", options)
        for stage in STAGES:
            run = stage.run if options.fusion or not stage.fusion else stage.unfused
            if run is not None:
                unit = run(unit)
                _check(unit, stage.name, options)
    return finish(unit, target_of(unit, options), options)


def _on_gpu(graph: GraphModule) -> bool:
    values = [leaf for node in graph.graph.nodes for leaf in leaves(node.meta.get("val"))]
    return any(isinstance(value, torch.Tensor) and value.device.type == "cuda" for value in values)


def finish(unit: Unit, target: Target, options: Options) -> Program:
    """Storage, kernels, program."""
    planned = storage.plan(unit, target.arena, placeable(unit))
    if options.verify_ir and (found := storage.overlaps(unit, planned)):
        raise LoweringError(f"live buffers share memory: {', '.join(found[:5])}")
    groups = [item for item in unit.items if isinstance(item, Group)]
    return emit(unit, planned, target.build(unit, groups))


def target_of(unit: Unit, options: Options) -> Target:
    """The target that the options name, or the device's."""
    on_gpu = any(layout.device.type == "cuda" for layout in unit.layouts.values())
    if options.target == "triton" or (options.target is None and on_gpu):
        return TritonTarget(tune=options.max_autotune, interpret=options.target == "triton")
    if on_gpu:
        raise LoweringError("the C++ target cannot run on tensors of a GPU")
    return CppTarget()


def _check(unit: Unit, stage: str, options: Options) -> None:
    if not options.verify_ir:
        return
    groups = [
        item if isinstance(item, Group) else Group("nest", item.space, (item,))
        for item in unit.items
        if isinstance(item, Group | Nest)
    ]
    legality.check(groups, stage)
    unknown = legality.undefined_variables(unit.variables, groups)
    if unknown:
        raise LoweringError(f"after {stage}: no call can tell {', '.join(unknown)}")
    nests = [nest for group in groups for nest in group.nests]
    missing = list(legality.coverage_problems(nests, _needed(unit)))
    if missing:
        raise LoweringError(f"after {stage}: {'; '.join(missing[:5])}")


def _needed(unit: Unit) -> Iterator[Any]:
    """Buffers that the nests have to fill: those allocated here and read or returned, which no
    extern call makes."""
    given = given_buffers(unit)
    made = {b for item in unit.items if not isinstance(item, Group | Nest) for b in item.writes()}
    used = {b for item in unit.items for b in storage.touched(item)} | unit.outputs_buffers()
    return (b for b in used if b not in given and b not in made)
