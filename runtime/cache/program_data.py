"""A program as plain data, and back.

What its kernels are is said by the file in the cache that holds them; user's lines stand as places
in the recorded graph, whose own lines are put in when it is loaded.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..gpu.cuda_graphs import GraphedProgram
from ..programs.launch import Library, place_of
from ..programs.program import Extern, KernelStep, Program, Step
from . import disk_cache, gpu_launches
from .plain_data import Damaged, Decoder, Encoder, Unstorable, identifier

_FILE = re.compile(r"([0-9a-f]{64})(\.\w{1,80}\.so)")


def to_data(program: Any, origins: Sequence[str]) -> dict[str, Any]:
    """`origins`: those of the recorded graph. Raises Unstorable or Unnamed."""
    if isinstance(program, GraphedProgram) and program.beside is None:
        facts = (sorted(program.writes), program.returned, [*program.sized])
        graphed = [str(program.device), *facts]
        return {**to_data(program.program, origins), "graphed": graphed}
    if not isinstance(program, Program):
        raise Unstorable(f"a {type(program).__name__}")
    places = {origin: number for number, origin in reversed(list(enumerate(origins)))}
    encoder = Encoder(_launch)
    return {
        "name": program.name,
        "inputs": list(program.inputs),
        "steps": [encoder.encode(_placed(step, places)) for step in program.steps],
        "constants": {name: encoder.encode(one) for name, one in program.constants.items()},
    }


def _launch(launch: Any) -> list[Any]:
    place, on_gpu = place_of(launch), gpu_launches.to_data(launch)
    if on_gpu is not None:
        return on_gpu
    if place is None:
        raise Unstorable("a kernel is missing in the cache")
    return [place.file, place.name, place.big]


def _placed(step: Step, places: dict[str, int]) -> Step:
    """The step with numbers for its lines."""
    if not isinstance(step, KernelStep | Extern):
        return step
    found = tuple(places[origin] for origin in step.origins if origin in places)
    return dataclasses.replace(step, origins=found)  # type: ignore[arg-type]


def from_data(
    data: dict[str, Any], origins: Sequence[str], library: Callable[[str], Library] | None = None
) -> Program | GraphedProgram:
    """`library`: gives the kernels' libraries by their names, if not the cache. Raises Damaged,
    Unnamed, and what else damaged data leads to."""
    libraries = _Libraries(data["steps"], library or _stored_library)
    decoder = Decoder(libraries.kernel)
    steps = [_with_lines(decoder.decode(step), origins) for step in data["steps"]]
    inputs = [identifier(name) for name in data["inputs"]]
    constants = {identifier(name): decoder.decode(one) for name, one in data["constants"].items()}
    if not all(isinstance(one, torch.Tensor) for one in constants.values()):
        raise Damaged("a constant that is no tensor")
    program = Program(identifier(data["name"]), inputs, steps, constants)
    if "graphed" not in data:
        return program
    device, writes, returned, sized = data["graphed"]
    return GraphedProgram(program, torch.device(device), frozenset(writes), returned, sized)


def _with_lines(step: Any, origins: Sequence[str]) -> Step:
    if isinstance(step, KernelStep | Extern):
        lines = tuple(origins[place] for place in step.origins)  # type: ignore[call-overload]
        return dataclasses.replace(step, origins=lines)
    if not isinstance(step, Step):
        raise Damaged("an unknown step")
    return step


def libraries_of(data: dict[str, Any]) -> list[str]:
    """The libraries that the kernels of a program are in. Raises Unstorable for kernels of GPUs."""
    launches = _launches(data["steps"])
    if any(map(gpu_launches.is_launch, launches)):
        raise Unstorable("a kernel for GPUs")
    return sorted({file for file, _, _ in launches})


def _launches(steps: Sequence[Any]) -> list[Any]:
    place = [field.name for field in dataclasses.fields(KernelStep)].index("launch") + 1
    return [step[place] for step in steps if step[0] == KernelStep.__name__]


def library_path(file: str) -> Path:
    """Where the cache has a library of this name. Raises Damaged."""
    match = _FILE.fullmatch(file)
    path = disk_cache.get(*match.groups()) if match else None
    if path is None:
        raise Damaged(f"{file} is not in the cache")
    return path


def _stored_library(file: str) -> Library:
    return Library(library_path(file))


class _Libraries:
    """The libraries of one program, each loaded once, and its kernels for GPUs."""

    def __init__(self, steps: Sequence[Any], library: Callable[[str], Library]) -> None:
        self._library, self._loaded = library, dict[str, Library]()
        launches = filter(gpu_launches.is_launch, _launches(steps))
        self._launches = gpu_launches.Launches(list(launches))

    def kernel(self, data: list[Any]) -> Any:
        if gpu_launches.is_launch(data):
            return self._launches.launch(data)
        file, name, big = data
        if file not in self._loaded:
            self._loaded[file] = self._library(file)
        if type(big) is not bool:
            raise Damaged("a kernel's kind")
        return self._loaded[file].kernel(identifier(name), big)
