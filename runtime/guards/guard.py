"""Guards: what must hold for a recorded program to stand for the call, and how its inputs are
fetched.

    guards = GuardSet([Guard(Attr(model, "eps"), Equals(1e-5), "model.py:41")], inputs=[Arg(0)],
    nargs=1, kwnames=()) guards.match((x,), {})   # [x], or None

This module is the public face of `paths`, `checks`, `tensor_meta` and `guard_state`.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from . import guard_native
from .access_paths import (
    Arg,
    AsTensor,
    Attr,
    Cell,
    DictKey,
    InstDict,
    Item,
    Kwarg,
    Obj,
    OnArray,
    Path,
    Referent,
    Stored,
    TypeOf,
)
from .guard_checks import (
    ABSENT,
    ArrayContent,
    Check,
    ClassAttr,
    Equals,
    HasIndex,
    HasKey,
    Is,
    Keys,
    Length,
    Members,
    Missing,
    Tensor,
    TypeIs,
)
from .guard_plan import Guard, GuardPlan, GuardStep
from .guard_state import GuardState, is_transformed, is_watched
from .tensor_meta import TensorMeta

__all__ = [
    "ABSENT",
    "Arg",
    "ArrayContent",
    "AsTensor",
    "Attr",
    "Cell",
    "Check",
    "ClassAttr",
    "DictKey",
    "Equals",
    "Guard",
    "GuardFailure",
    "GuardSet",
    "GuardState",
    "HasIndex",
    "HasKey",
    "InstDict",
    "Is",
    "Item",
    "Keys",
    "Kwarg",
    "Length",
    "Members",
    "Missing",
    "Obj",
    "OnArray",
    "Path",
    "Referent",
    "Stored",
    "Tensor",
    "TensorMeta",
    "TypeIs",
    "TypeOf",
    "is_transformed",
    "is_watched",
]


@dataclasses.dataclass(frozen=True)
class GuardFailure:
    """Why a GuardSet did not match. guard is None where the call's shape, the global state or
    aliasing of inputs differs."""

    message: str
    guard: Guard | None = None

    def __str__(self) -> str:
        """As the user would write the path: `args[0].layers[3].eps`."""
        return _ATTRIBUTE.sub(_as_written, self.message)


def _as_written(found: re.Match[str]) -> str:
    name = found[1]
    return f"[{name}]" if name.isdigit() else f".{name}"


_ATTRIBUTE = re.compile(r"\.__dict__(?:\['_(?:modules|parameters|buffers)'\])?\['(\w+)'\]")


class GuardSet:
    """The guards of one recording.

    inputs: the paths whose values `match` returns, in order. nargs, kwnames: how many positional
    arguments and which keyword arguments (in order) the call has. distinct: indices of inputs that
    must be different objects from every other input. disjoint: indices of tensor inputs that are
    written, whose memory must not overlap that of another tensor input. twins: indices of inputs
    that are another input's object, as the caller makes sure; they overlap with nothing. state: the
    global state that must hold; by default the one at construction. Raises IndexError for a
    distinct, disjoint or twin index without input, and for an argument that the call lacks.
    """

    def __init__(
        self,
        guards: Sequence[Guard],
        inputs: Sequence[Path],
        nargs: int,
        kwnames: tuple[str, ...] = (),
        *,
        distinct: Sequence[int] = (),
        disjoint: Sequence[int] = (),
        twins: Sequence[int] = (),
        state: GuardState | None = None,
    ) -> None:
        self.guards = tuple(guards)
        self.inputs = tuple(inputs)
        self.plan = GuardPlan.of(
            guards, inputs, nargs, kwnames, distinct, disjoint, twins, state or GuardState.now()
        )
        guard_native.attach(self, self.plan)

    match: guard_native.Match
    """`match(args: tuple, kwargs: dict)`: the input values in order, or None. Never raises an
    Exception for what guarded objects do."""

    def explain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GuardFailure | None:
        """The first thing that keeps `match` from matching, or None if it would match."""
        plan = self.plan
        if len(args) != plan.nargs:
            return GuardFailure(f"the call had {plan.nargs} positional arguments, has {len(args)}")
        if tuple(kwargs) != plan.kwnames:
            return GuardFailure(
                f"the call had keyword arguments {list(plan.kwnames)}, has {list(kwargs)}"
            )
        differing = plan.state.differences()
        if differing:
            return GuardFailure("; ".join(differing))
        return self._explain_walk(args, kwargs)

    def _explain_walk(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GuardFailure | None:
        values: list[Any] = []
        for step in self.plan.steps:
            base = None if step.base < 0 else values[step.base]
            try:
                value = step.path.root(args, kwargs) if step.base < 0 else step.path.fetch(base)
            except Exception as error:
                return self._unreadable(step.path, error)
            failed = next((check for check in step.checks if not _passes(check, value)), None)
            if failed is not None:
                return self._differs(step, failed, value)
            values.append(value)
        return self._explain_clash([values[place] for place in self.plan.inputs])

    def _explain_clash(self, inputs: list[Any]) -> GuardFailure | None:
        try:
            clash = self.plan.clashes(inputs)
        except Exception as error:
            return GuardFailure(
                f"the memory of the inputs cannot be compared: {type(error).__name__}: {error}"
            )
        if clash is None:
            return None
        what, i, j = clash
        return GuardFailure(f"{self.inputs[i].source} and {self.inputs[j].source} {what}")

    def _unreadable(self, path: Path, error: Exception) -> GuardFailure:
        guard = next((g for g in self.guards if _under(g.path, path)), None)
        return GuardFailure(
            f"{_place(path, guard)} cannot be read: {type(error).__name__}: {error}", guard
        )

    def _differs(self, step: GuardStep, check: Check, value: Any) -> GuardFailure:
        guard = next(g for g in self.guards if g.path is step.path and g.check == check)
        try:
            phrase = check.difference(value)
        except Exception as error:
            phrase = f"cannot be checked: {type(error).__name__}: {error}"
        return GuardFailure(f"{_place(step.path, guard)} {phrase}", guard)


def _passes(check: Check, value: Any) -> bool:
    try:
        return check.passes(value)
    except Exception:
        return False


def _under(path: Path | None, base: Path) -> bool:
    while path is not None and path is not base:
        path = path.base
    return path is base


def _place(path: Path, guard: Guard | None) -> str:
    return f"{path.source} ({guard.origin})" if guard is not None and guard.origin else path.source
