"""Builds the C++ kernels of a unit into one library."""

from pathlib import Path

from ...runtime.build import build_shared, probe_flags
from ...runtime.errors import BuildError
from ...runtime.launch import Library
from ..ir import Group
from ..program_steps import Launch
from ..unit import Unit
from .cpp import FLAGS, library_source, print_kernel


class CppTarget:
    """Loops on the CPU."""

    arena = True

    def build(self, unit: Unit, groups: list[Group]) -> dict[Group, Launch]:
        if not groups:
            return {}
        kernels = {group: print_kernel(group) for group in groups}
        source = library_source(kernels.values(), groups, probe_flags().vector_math)
        library = Library(_build(source, unit.name))
        return {group: (library.kernel(k.name, k.big), k.buffers) for group, k in kernels.items()}


def _build(source: str, name: str) -> Path:
    """The library; a compiler that fails on its own optimiser (GCC 12 does, on some vector code) is
    asked for less."""
    try:
        return build_shared(source, flags=FLAGS, name=name)
    except BuildError as error:
        if "internal compiler error" not in str(error):
            raise
        return build_shared(source, flags=(*FLAGS, "-O1"), name=name)
