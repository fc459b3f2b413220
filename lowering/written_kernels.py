"""`options={"write_kernels": folder}`, `dynrun --write-kernels folder`: each kernel as a source
that people read, and may edit. An edited one is used again wherever a graph has the kernel that it
was made of, once it gave what the original gives for a call's own inputs."""

import atexit
import dataclasses
import functools
import os
import re
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

import torch

from ..runtime.build import built_or, probe_flags
from ..runtime.diagnostics import warn_once
from ..runtime.errors import LoweringError
from ..runtime.gpu.launch_triton import made_of
from ..runtime.gpu.triton_kernels import TritonGroup
from . import kernel_files
from .kernel_files import FUNCTION, HEADER, INCLUDE, Argument, CheckedKernel, digest
from .loops.dump import dump
from .loops.ir import (
    Batch,
    Buffer,
    Group,
    Indirect,
    Op,
    Reduced,
    accesses,
    atoms,
    group_variables,
    indices_of,
    store_values,
)
from .loops.kernel_graph import Unit
from .loops.polynomials import Size, hint
from .loops.storage import written
from .program_steps import Launch
from .targets.cpp.cpp_target import common_header, own_declarations, printed
from .targets.plain_torch import HELPERS, Printer

Loops = Group | Batch
DIGITS = 12  # of the hash in a name
NAMED = 3  # operators that a name shows
TESTS = "test_kernels.py"
_TESTS = f'''\
"""Each kernel of this folder against eager: `python -m pytest {TESTS}`."""

from pathlib import Path

import pytest
from dynfix.lowering.kernel_files import compare_with_eager

KERNELS = sorted(Path(__file__).parent.glob("kernel_*.py"))


@pytest.mark.parametrize("path", KERNELS, ids=[path.stem for path in KERNELS])
def test_kernel_agrees_with_eager(path):
    assert not compare_with_eager(path)
'''


@functools.cache
def folder_of(path: str) -> "KernelFolder":
    """The folder, for this process."""
    return KernelFolder(Path(path))


class KernelFolder:
    """Holds `kernel_NAME.py` for each kernel: what it takes, and eager; beside it the source."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._met: set[str] = set()
        atexit.register(self._tell_unused)

    def served(
        self, unit: Unit, launches: dict[Loops, Launch], may_meet: Container[Buffer]
    ) -> dict[Loops, Launch]:
        """The launches of a unit, edited kernels in their places; others are written."""
        found = {}
        for loops, (launch, buffers) in launches.items():
            make = functools.partial(self._made, unit, loops, launch, buffers, may_meet)
            found[loops] = built_or(launch, "a kernel is not written", make), buffers
        return found

    def _made(self, *given: Any) -> Callable[..., None]:
        kernel = WrittenKernel(*given)
        return self._served(kernel) if kernel.source else kernel.launch

    def _served(self, kernel: "WrittenKernel") -> Callable[..., None]:
        self._met.add(kernel.name)
        module, source = self.path / f"{kernel.name}.py", self.path / kernel.file
        if not self._is_edited(module, source):
            self._write(kernel, module, source)
            return kernel.launch
        try:
            edited = kernel.load(source)
        except Exception as error:  # whatever is wrong with it, there is the original
            lines = str(error).splitlines() or [type(error).__name__]
            why = next((line for line in lines if "error" in line.lower()), lines[0])
            self._leave(kernel, f"it cannot be built: {why}")
            return kernel.launch
        tell = functools.partial(self._leave, kernel)
        text = source.read_text(encoding="utf-8")
        return CheckedKernel(kernel.launch, edited, text, kernel.memory, kernel.roundings, tell)

    @staticmethod
    def _is_edited(module: Path, source: Path) -> bool:
        try:
            said = kernel_files.constant(module.read_text(encoding="utf-8"), "WRITTEN")
            return bool(said != digest(source.read_text(encoding="utf-8")))
        except (OSError, ValueError, SyntaxError):
            return source.exists() and module.exists()

    def _write(self, kernel: "WrittenKernel", module: Path, source: Path) -> None:
        texts = {source: kernel.source, module: kernel.module(), self.path / TESTS: _TESTS}
        if source.suffix == ".cpp":
            texts[self.path / HEADER] = common_header()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for path, text in texts.items():
                if not path.exists() or path.read_text(encoding="utf-8") != text:
                    made = path.with_name(f".{path.name}.{os.getpid()}")
                    made.write_text(text, encoding="utf-8")
                    made.replace(path)
        except OSError as error:
            why = f"kernels are not written to {self.path}: {error.strerror}"
            warn_once("write_kernels", why, str(self.path))

    def _leave(self, kernel: "WrittenKernel", why: str) -> None:
        what = f"{kernel.file} is left out, and the original runs: {why}"
        warn_once("write_kernels", what, kernel.name, (str(self.path / kernel.file), 1))

    def _tell_unused(self) -> None:
        """Edited kernels that no graph of this process has."""
        unused = [
            name
            for module in sorted(self.path.glob("kernel_*.py"))
            if (name := module.stem) not in self._met
            for source in (self.path / f"{name}.cpp", self.path / f"triton_{name}.py")
            if source.exists() and self._is_edited(module, source)
        ]
        if unused:
            what = f"edited kernels that no graph has any more, in {self.path}: {', '.join(unused)}"
            warn_once("write_kernels", what, "unused")


class WrittenKernel:
    """One kernel as text. Its name is that of what it computes: the same in every run, wherever its
    lines stand. No source: it is not one kernel."""

    def __init__(
        self,
        unit: Unit,
        loops: Loops,
        launch: Callable[..., None],
        buffers: tuple[Buffer, ...],
        may_meet: Container[Buffer],
    ) -> None:
        self.loops, self.launch, self.buffers, self._unit = loops, launch, buffers, unit
        self._different = tuple(dict.fromkeys(buffers))  # a batch may take one several times
        self._variables = group_variables(loops)
        self._written = written(loops)
        self._names = self._new_names()
        prepared = made_of(launch)
        self._group = None if prepared is None else _without_texts(prepared.group)
        self._device = unit.layouts[buffers[0]].device if buffers else torch.device("cpu")
        self.name = self._name("cpp" if prepared is None else "triton")
        self._threaded = False
        if prepared is not None:
            self.source, self.file = _triton_text(prepared.group), f"triton_{self.name}.py"
        else:
            self.source, self.file = self._cpp_text(may_meet), f"{self.name}.cpp"

    def _new_names(self) -> dict[str, str]:
        """For buffers and sizes, names that do not depend on what else the graph has."""
        found: dict[str, str] = {}
        reads = {b for nest in self.loops.nests for b in nest.reads}
        for buffer in self._different:
            role = "input" if buffer not in self._written else "output"
            role = "updated" if role == "output" and buffer in reads else role
            found[buffer.name] = f"{role}{sum(n.startswith(role) for n in found.values())}"
        touched_ = (x.buffer for nest in self.loops.nests for x in accesses(nest))
        for buffer in dict.fromkeys(b for b in touched_ if b.name not in found):
            found[buffer.name] = f"local{sum(n.startswith('local') for n in found.values())}"
        found |= {var.name: f"size{k}" for k, var in enumerate(self._variables)}
        return found | {self.loops.name: FUNCTION, f"{self.loops.name}_one": f"{FUNCTION}_one"}

    def _renamed(self, text: str) -> str:
        return re.sub(r"\b[A-Za-z_]\w*", lambda w: self._names.get(w[0], w[0]), text)

    def _name(self, target: str) -> str:
        groups = self.loops.groups if isinstance(self.loops, Batch) else (self.loops,)
        lines = "\n".join(map(dump, groups)).splitlines()
        text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
        shapes = [(b.dtype, str(b.size)) for b in self.buffers]
        hashed = digest(self._renamed(f"{target} {shapes} {text}"))[:DIGITS]
        values = [value for nest in self.loops.nests for value in store_values(nest)]
        kinds = {v.name: None for v in values if isinstance(v, Op)}
        kinds |= {v.kind: None for v in values if isinstance(v, Reduced)}
        return "_".join(("kernel", *[*kinds][:NAMED], hashed))

    def _cpp_text(self, may_meet: Container[Buffer]) -> str:
        if self._device.type != "cpu" or made_of(self.launch) is not None:
            return ""
        kernel = printed(self.loops, may_meet)
        self._threaded = kernel.big
        one = self.loops.groups[:1] if isinstance(self.loops, Batch) else (self.loops,)
        declared = own_declarations(one, probe_flags().vector_math)
        parts = (INCLUDE.rstrip(), *declared, self._comment("//"), kernel.source)
        return self._renamed("\n\n".join(filter(None, parts))) + "\n"

    def _comment(self, sign: str) -> str:
        return "\n".join(f"{sign} {argument_text(each)}" for each in self.arguments())

    def arguments(self) -> list[Argument]:
        below = min((a.bound for a in self._positions() if isinstance(a.bound, int)), default=0)
        return [self._argument(buffer, below) for buffer in self._different]

    def _positions(self) -> Iterator[Indirect]:
        for nest in self.loops.nests:
            values = (index for value in store_values(nest) for index in indices_of(value))
            for index in (*values, *(store.index for store in nest.stores)):
                yield from (each for each in atoms(index) if isinstance(each, Indirect))

    def _argument(self, buffer: Buffer, below: int) -> Argument:
        layout = self._unit.layouts.get(buffer)
        shape = () if layout is None else tuple(int(hint(n)) for n in layout.shape)
        strides = () if layout is None else tuple(int(hint(n)) for n in layout.strides)
        is_written, size = buffer in self._written, int(hint(buffer.size))
        positions = 0 if buffer.dtype.is_floating_point or is_written else below
        name = self._names[buffer.name]
        return Argument(name, buffer.dtype, shape, strides, size, is_written, positions)

    def load(self, source: Path) -> Callable[..., None]:
        """The edited source, built."""
        if self._group is not None:
            return kernel_files.triton_kernel(source, self._group, self._device)
        return kernel_files.cpp_kernel(source, self._threaded)

    @property
    def roundings(self) -> int:
        """By which two results may differ."""
        multiplies = any(nest.multiplies for nest in self.loops.nests)
        return kernel_files.TF32_ROUNDINGS if multiplies else kernel_files.MORE_ROUNDINGS

    def memory(self, args: tuple[Any, ...]) -> list[torch.Tensor]:
        """What a call's arguments have in the buffers that are written."""
        names = (var.name for var in self._variables)
        sizes = dict(zip(names, args[len(self.buffers) :], strict=True))
        return [
            kernel_files.memory_at(value, buffer.dtype, _number(buffer.size, sizes))
            for value, buffer in zip(args, self.buffers, strict=False)
            if buffer in self._written
        ]

    def module(self) -> str:
        """The module that runs it, and eager."""
        origins = dict.fromkeys(o for nest in self.loops.nests for o in nest.origins)
        lines = "\n".join(f"    {origin}" for origin in origins)
        lines = lines.replace("\\", "/").replace('"""', "'''")
        names = [f"    {argument!r}," for argument in self.arguments()]
        sizes = {self._names[var.name]: int(var.hint) for var in self._variables}
        group = "" if self._group is None else f"GROUP = {self._group!r}\n"
        call = (
            f"cpp_kernel(SOURCE, {self._threaded})"
            if self._group is None
            else "triton_kernel(SOURCE, GROUP, DEVICE)"
        )
        return _MODULE.format(
            name=self.name,
            lines=lines,
            file=self.file,
            helpers=", ".join(HELPERS),
            written=digest(self.source),
            arguments="\n".join(names),
            roundings=self.roundings,
            order=[self._different.index(buffer) for buffer in self.buffers],
            sizes=sizes,
            device=self._device.type,
            group=group,
            call=call,
            eager=self._eager(),
        )

    def _eager(self) -> str:
        given = (*(b.name for b in self._different), *(v.name for v in self._variables))
        names = ", ".join(self._names[name] for name in given)
        try:
            printer = Printer(self.loops)
        except LoweringError as error:
            return f'def eager({names}):\n    pytest.skip("{error}")'
        head, *rest = self._renamed(printer.source).splitlines()
        assert head
        return "\n".join((f"def eager({names}):", *rest))


_MODULE = '''\
"""A kernel of these lines:

{lines}

Its code, to be read and edited, is in
{file}.
Where a graph that is compiled with this folder as `write_kernels` has this kernel, the edited code
is used, if it gives for the first call's inputs what the original gives.
Delete both files to have them written anew.
"""

from pathlib import Path

import pytest
import torch
from dynfix.lowering.kernel_files import Argument, cpp_kernel, triton_kernel
from dynfix.lowering.targets.plain_torch import {helpers}
from dynfix.runtime.gpu.triton_kernels import TritonGroup, TritonKernel

SOURCE = Path(__file__).with_name("{file}")
WRITTEN = (  # the code's SHA-256, as long as nobody edits it
    "{written}"
)
DEVICE = "{device}"
ARGUMENTS = [
{arguments}
]
ORDER = {order}  # in which the kernel takes them
ROUNDINGS = {roundings}  # by which a result may differ from eager's
SIZES = {sizes!r}  # those that only a call knows, as they were
{group}

def build():
    """The kernel: called with memory for the arguments in `ORDER`, then with the sizes."""
    return {call}


{eager}
'''


def argument_text(argument: Argument) -> str:
    """`input0: float32 8 x 16, strides 16, 1, read`."""
    dtype = str(argument.dtype).removeprefix("torch.")
    shape = " x ".join(map(str, argument.shape)) or "one number"
    how = "written" if argument.written else "read"
    strides = f", strides {', '.join(map(str, argument.strides))}" if argument.strides else ""
    return f"{argument.name}: {dtype} {shape}{strides}, {how}"


def _number(size: Size, sizes: dict[str, Any]) -> int:
    """A size in a call."""
    return size if isinstance(size, int) else int(eval(str(size), {"__builtins__": {}}, sizes))


def _without_texts(group: TritonGroup) -> TritonGroup:
    """Its kernels by number: a name that is made of their text is another one for other lines."""
    variants = tuple(
        tuple(
            dataclasses.replace(kernel, name=f"{FUNCTION}{number}", text="", wider=None)
            for kernel in kernels
        )
        for number, kernels in enumerate(group.variants)
    )
    return dataclasses.replace(group, name=FUNCTION, variants=variants, header="")


def _triton_text(group: TritonGroup) -> str:
    texts = [
        kernels[0].text.replace(kernels[0].name, f"{FUNCTION}{number}")
        for number, kernels in enumerate(group.variants)
    ]
    return group.header + "\n\n".join(texts)
