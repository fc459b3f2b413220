"""Guards laid out for matching: one step for each distinct path, parents first, so that a shared
prefix is read once.

This is the Python engine; `guard_native` walks the same plan in C++.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from .access_paths import Arg, Kwarg, Path
from .guard_checks import Check
from .guard_state import GuardState


@dataclasses.dataclass
class GuardStep:
    """Read `path` from the value of step `base` (-1: a root), then run `checks` on it."""

    path: Path
    base: int
    checks: list[Check]


@dataclasses.dataclass(frozen=True)
class Guard:
    """One condition for reusing a recording. origin: the source line that made it,
    'model.py:41'."""

    path: Path
    check: Check
    origin: str | None = None


def _place(path: Path, steps: list[GuardStep], index: dict[Path, int]) -> int:
    """The step of `path`, made (with the steps of its bases) if need be."""
    chain: list[Path] = []
    node: Path | None = path
    while node is not None and node not in index:
        chain.append(node)
        node = node.base
    for node in reversed(chain):
        base = -1 if node.base is None else index[node.base]
        index[node] = len(steps)
        steps.append(GuardStep(node, base, []))
    return index[path]


def _verify(
    steps: list[GuardStep], nargs: int, kwnames: tuple[str, ...], indices: list[int], inputs: int
) -> None:
    for i in indices:
        if not 0 <= i < inputs:
            raise IndexError(f"there is no input {i}: {inputs} inputs")
    for step in steps:
        if isinstance(step.path, Arg) and not 0 <= step.path.arg < nargs:
            raise IndexError(
                f"there is no {step.path.source}: the call has {nargs} positional arguments"
            )
        if isinstance(step.path, Kwarg) and step.path.arg not in kwnames:
            raise IndexError(
                f"there is no keyword argument {step.path.arg}: the call has {list(kwnames)}"
            )


@dataclasses.dataclass(frozen=True, eq=False)
class GuardPlan:
    """All that a match needs. distinct, disjoint and twins are indices into `inputs`, which are
    step numbers."""

    steps: tuple[GuardStep, ...]
    inputs: tuple[int, ...]
    nargs: int
    kwnames: tuple[str, ...]
    distinct: tuple[int, ...]
    disjoint: tuple[int, ...]
    twins: tuple[int, ...]
    state: GuardState

    @classmethod
    def of(
        cls,
        guards: Sequence[Guard],
        inputs: Sequence[Path],
        nargs: int,
        kwnames: tuple[str, ...],
        distinct: Sequence[int],
        disjoint: Sequence[int],
        twins: Sequence[int],
        state: GuardState,
    ) -> "GuardPlan":
        """Lay out `guards` (duplicates dropped) and `inputs`. Raises IndexError for a distinct,
        disjoint or twin index without input."""
        steps: list[GuardStep] = []
        index: dict[Path, int] = {}
        for guard in guards:
            checks = steps[_place(guard.path, steps, index)].checks
            if guard.check not in checks:
                checks.append(guard.check)
        places = tuple(_place(path, steps, index) for path in inputs)
        _verify(steps, nargs, kwnames, [*distinct, *disjoint, *twins], len(places))
        return cls(
            tuple(steps),
            places,
            nargs,
            tuple(kwnames),
            tuple(distinct),
            tuple(disjoint),
            tuple(twins),
            state,
        )

    def match(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "list[Any] | None":
        """The input values in order, or None. Whatever a read or a check raises (an Exception) is a
        non-match."""
        try:
            if len(args) != self.nargs or tuple(kwargs) != self.kwnames or not self.state.holds():
                return None
            values = self.walk(args, kwargs)
            if values is None:
                return None
            inputs = [values[place] for place in self.inputs]
            if self.clashes(inputs) is not None:
                return None
        except Exception:
            return None
        return inputs

    def walk(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "list[Any] | None":
        """The value of every step, or None at the first check that fails. Raises what a read
        raises."""
        values: list[Any] = []
        for step in self.steps:
            value = (
                step.path.root(args, kwargs)
                if step.base < 0
                else step.path.fetch(values[step.base])
            )
            for check in step.checks:
                if not check.passes(value):
                    return None
            values.append(value)
        return values

    def clashes(self, inputs: Sequence[Any]) -> "tuple[str, int, int] | None":
        """The first two inputs that are one object, or overlap in memory, where they must not:
        (what, i, j)."""
        for i in self.distinct:
            for j, other in enumerate(inputs):
                if j != i and other is inputs[i]:
                    return "are one object", i, j
        if self.disjoint:
            return _overlapping(inputs, frozenset(self.disjoint), frozenset(self.twins))
        return None


_Reach = tuple[
    str, int, int
]  # address space, end, input: of the spans so far the one that reaches furthest


def _overlapping(
    inputs: Sequence[Any], written: frozenset[int], twins: frozenset[int]
) -> "tuple[str, int, int] | None":
    """The first written input, by address, whose span of bytes meets another's (views that
    interleave count, too)."""
    with torch._C.DisableTorchFunction():
        spans = sorted(
            (*_span(value), i)
            for i, value in enumerate(inputs)
            if i not in twins
            and (i in written or isinstance(value, torch.Tensor))
            and value.numel()
        )
    of_all: _Reach | None = None
    of_written: _Reach | None = None
    for space, start, end, i in spans:
        other = of_all if i in written else of_written
        if other is not None and other[0] == space and other[1] > start:
            return "overlap in memory", min(i, other[2]), max(i, other[2])
        of_all = _further(of_all, (space, end, i))
        if i in written:
            of_written = _further(of_written, (space, end, i))
    return None


def _further(reach: _Reach | None, new: _Reach) -> _Reach:
    return new if reach is None or reach[0] != new[0] or new[1] > reach[1] else reach


def _span(tensor: torch.Tensor) -> tuple[str, int, int]:
    """Address space (a device, or a storage without memory), first byte, end. Called with torch
    functions off."""
    storage = tensor.untyped_storage()
    base = storage.data_ptr()
    space = str(tensor.device) if base else f"{tensor.device} {storage._cdata}"
    item = tensor.element_size()
    start = base + int(tensor.storage_offset()) * item
    reach = sum(int((n - 1) * s) for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return space, start, start + (reach + 1) * item
