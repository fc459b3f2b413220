"""Builds the C++ kernels of a unit: equal ones once, and many in several files at once."""

import os
import re
from collections.abc import Container, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from ....runtime.build import FLAGS, build_shared, build_shared_later, probe_flags
from ....runtime.errors import BuildError
from ....runtime.gc_pause import gc_paused
from ....runtime.programs.launch import Library
from ...loops.ir import Batch, Buffer, Group, accesses, group_variables
from ...loops.kernel_graph import Unit
from ...program_steps import Execution, Launch, TargetKind
from .cpp_target import CppKernel, library_source, printed

Loops = Group | Batch
FILE = 8  # kernels that are worth a compiler process of their own


class CppTarget:
    """Loops on the CPU."""

    arena = True

    def build(
        self, unit: Unit, groups: list[Loops], may_meet: Container[Buffer] = ()
    ) -> dict[Loops, Launch]:
        if not groups:
            return {}
        with gc_paused():
            kernels = {loops: printed(loops, may_meet) for loops in groups}
        texts = {group: general_text(group, kernel) for group, kernel in kernels.items()}
        first = dict(zip(reversed(texts.values()), reversed(texts), strict=True))
        names = {
            text: f"kernel_{number}" for number, text in enumerate(dict.fromkeys(texts.values()))
        }
        named = {
            first[text]: replace(
                kernels[first[text]], name=name, source=_with_origins(first[text], text, name)
            )
            for text, name in names.items()
        }
        libraries = _libraries(named, unit.name)
        return {
            group: (
                libraries[first[texts[group]]].kernel(names[texts[group]], kernel.big),
                kernel.buffers,
            )
            for group, kernel in kernels.items()
        }


CPP = TargetKind("cpp", frozenset({"cpu"}), Execution.IN_ORDER, lambda _: CppTarget())


def general_text(group: Loops, kernel: CppKernel) -> str:
    """The kernel's source with names by order of appearance and without origins: equal for kernels
    that do the same to other buffers."""
    buffers = {access.buffer.name for nest in group.nests for access in accesses(nest)}
    own = buffers.union(var.name for var in group_variables(group))
    renamed = {group.name: "KERNEL", f"{group.name}_one": "KERNEL_one"}

    def rename(found: re.Match[str]) -> str:
        word = found[0]
        if word in own:
            return renamed.setdefault(word, f"m{len(renamed)}")
        return renamed.get(word, word)

    lines = (line for line in kernel.source.splitlines() if not line.startswith("//"))
    return re.sub(r"\b[A-Za-z_]\w*", rename, "\n".join(lines))


def _with_origins(group: Loops, text: str, name: str) -> str:
    origins = dict.fromkeys(origin for nest in group.nests for origin in nest.origins)
    comments = [f"// {origin.replace(chr(92), '/')}" for origin in origins]
    return "\n".join([*comments, re.sub(r"\bKERNEL", name, text)])


def _libraries(kernels: dict[Loops, CppKernel], name: str) -> dict[Loops, Library]:
    """The library that holds each kernel."""
    groups = list(kernels)
    count = max(1, min(2 * (os.cpu_count() or 1), len(groups) // FILE))
    parts = [groups[start::count] for start in range(count)]
    sources = [_source(part, kernels) for part in parts]
    if count == 1:
        paths = [_build(sources[0], name)]
    else:
        waiting = [build_shared_later(source, flags=FLAGS, name=name) for source in sources]
        paths = [_built(one, source, name) for one, source in zip(waiting, sources, strict=True)]
    libraries = map(Library, paths)
    return {g: library for part, library in zip(parts, libraries, strict=True) for g in part}


def _source(loops: Sequence[Loops], kernels: dict[Loops, CppKernel]) -> str:
    groups = [g for one in loops for g in (one.groups[:1] if isinstance(one, Batch) else (one,))]
    return library_source((kernels[one] for one in loops), groups, probe_flags().vector_math)


def _built(waiting: "Future[Path]", source: str, name: str) -> Path:
    try:
        return waiting.result()
    except BuildError as error:
        return _with_less(error, source, name)


def _build(source: str, name: str) -> Path:
    try:
        return build_shared(source, flags=FLAGS, name=name)
    except BuildError as error:
        return _with_less(error, source, name)


def _with_less(error: BuildError, source: str, name: str) -> Path:
    """A compiler that fails on its own optimiser (GCC 12 does, on some vector code) is asked for
    less."""
    if "internal compiler error" not in str(error):
        raise error
    return build_shared(source, flags=(*FLAGS, "-O1"), name=name)
