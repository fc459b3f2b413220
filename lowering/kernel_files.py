"""What the kernels of a folder that `write_kernels` names are made of: their sources built, inputs
like those of the recorded call, and how two results are compared. Written modules import this."""

import ast
import ctypes
import dataclasses
import hashlib
import importlib.util
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..runtime.build import FLAGS, build_shared
from ..runtime.gpu.launch_triton import load_groups
from ..runtime.gpu.triton_kernels import TritonGroup
from ..runtime.programs.launch import Library
from .targets.plain_torch import flat

Launch = Callable[..., None]
HEADER = "dynfix.h"
INCLUDE = f'#include "{HEADER}"\n'
FUNCTION = "kernel"
SEED = 7
ROUNDINGS = {torch.float16: 8, torch.bfloat16: 8}  # of a dtype by which two results may differ
MORE_ROUNDINGS = 1024
TF32_ROUNDINGS = 1 << 14  # of float32, where products are rounded to TF32


@dataclasses.dataclass(frozen=True)
class Argument:
    """A buffer of a kernel: the tensor that lies in it, and its `size` in elements. `below`: what
    its numbers are positions into, if they are."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size: int
    written: bool = False
    below: int = 0

    def example(self, generator: torch.Generator) -> torch.Tensor:
        """Random memory for it, on the CPU."""
        if self.dtype.is_floating_point:
            drawn = torch.rand(self.size, generator=generator, dtype=torch.float64) + 0.5
            return drawn.to(self.dtype)
        high = 2 if self.dtype == torch.bool else self.below or 4
        return torch.randint(0, high, (self.size,), generator=generator).to(self.dtype)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def cpp_kernel(path: str | Path, threaded: bool = False) -> Launch:
    """The function of a C++ file, built with the header beside it. Raises BuildError."""
    path = Path(path)
    text = path.read_text(encoding="utf-8")
    if INCLUDE in text:
        header = path.with_name(HEADER).read_text(encoding="utf-8")
        after = text[: text.index(INCLUDE) + len(INCLUDE)].count("\n") + 1
        text = text.replace(INCLUDE, f'{header}#line {after} "{path.name}"\n', 1)
    library = build_shared(text, flags=FLAGS, name=path.stem)
    return Library(library).kernel(FUNCTION, threaded)


def triton_kernel(path: str | Path, group: TritonGroup, device: torch.device | str) -> Launch:
    """What launches the functions of a Triton file as `group` says. Raises BuildError."""
    text = Path(path).read_text(encoding="utf-8")
    variants = tuple(
        tuple(dataclasses.replace(kernel, text=text) for kernel in kernels)
        for kernels in group.variants
    )
    group = dataclasses.replace(group, variants=variants, header="")
    return load_groups([group], torch.device(device))[0]


def differs(
    made: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], most: int = MORE_ROUNDINGS
) -> str:
    """How results differ by more than another order of the same operations explains (`most`
    roundings of a value, fewer of 16-bit floats); "" where they do not."""
    for number, (got, right) in enumerate(zip(made, wanted, strict=True)):
        if not right.dtype.is_floating_point:
            wrong = int((got != right).sum())
            if wrong:
                return f"result {number}: {wrong} of {right.numel()} elements"
            continue
        if not torch.equal(got.isnan(), right.isnan()):
            return f"result {number}: NaN in other elements"
        scale = right.double().nan_to_num(0.0, 0.0, 0.0).abs().max() if right.numel() else 0.0
        roundings = ROUNDINGS.get(right.dtype, most)
        limit = roundings * torch.finfo(right.dtype).eps * float(scale)
        error = torch.where(got == right, 0.0, (got.double() - right.double()).abs())
        worst = float(error.nan_to_num(0.0, math.inf).max()) if right.numel() else 0.0
        if worst > limit:
            return f"result {number}: off by {worst:.2e}, where values are up to {float(scale):.2e}"
    return ""


def compare_with_eager(path: str | Path) -> str:
    """How the kernel of a written module differs from eager, on random inputs like those of the
    recorded call; "" where it does not."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    generator = torch.Generator().manual_seed(SEED)
    right = [argument.example(generator) for argument in module.ARGUMENTS]
    made = [memory.to(module.DEVICE, copy=True) for memory in right]
    numbers = module.SIZES.values()
    module.eager(*right, *numbers)
    module.build()(*(made[place] for place in module.ORDER), *numbers)
    places = [place for place, argument in enumerate(module.ARGUMENTS) if argument.written]
    results, wanted = [made[place].cpu() for place in places], [right[place] for place in places]
    return differs(results, wanted, module.ROUNDINGS)


class CheckedKernel:
    """An edited kernel in the place of the original. The first call runs both, and says `tell` why
    the original goes on, if it does. `memory` gives what a call's arguments have in the buffers
    that are written; `text` is the edited source."""

    def __init__(
        self,
        original: Launch,
        edited: Launch,
        text: str,
        memory: Callable[[tuple[Any, ...]], list[torch.Tensor]],
        roundings: int,
        tell: Callable[[str], None],
    ) -> None:
        self._original, self._edited, self.text = original, edited, text
        self._memory, self._roundings, self._tell = memory, roundings, tell
        self._run: Launch | None = None

    def __call__(self, *args: Any) -> None:
        if self._run is not None:
            self._run(*args)
            return
        written = self._memory(args)
        before = [each.clone() for each in written]
        self._original(*args)
        wanted = [each.clone() for each in written]
        _copy(before, written)
        why = self._tried(args, written, wanted)
        if why:
            _copy(wanted, written)
            self._tell(why)
        self._run = self._original if why else self._edited

    def _tried(
        self, args: tuple[Any, ...], written: list[torch.Tensor], wanted: list[torch.Tensor]
    ) -> str:
        try:
            self._edited(*args)
        except Exception as error:
            return f"it raises {type(error).__name__}: {error}"
        return differs(written, wanted, self._roundings)


def _copy(from_: list[torch.Tensor], to: list[torch.Tensor]) -> None:
    for source, target in zip(from_, to, strict=True):
        target.copy_(source)


def memory_at(value: Any, dtype: torch.dtype, size: int) -> torch.Tensor:
    """The elements of a kernel's buffer, which is a tensor or the address of memory on the host."""
    if isinstance(value, torch.Tensor):
        return flat(value.detach())[:size]
    raw = (ctypes.c_char * (size * dtype.itemsize)).from_address(value)
    return torch.frombuffer(raw, dtype=dtype, count=size)


def constant(text: str, name: str) -> Any:
    """The literal that a module's text gives a name, without running it; None where there is
    none."""
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            return ast.literal_eval(statement.value)
    return None
