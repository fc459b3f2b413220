"""What earlier calls of a function saw change: numbers and sizes that the next recording must not
take for constants."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ...runtime.guards.guard import (
    Arg,
    ArrayContent,
    Attr,
    Equals,
    Guard,
    Item,
    Kwarg,
    Path,
    Tensor,
    TypeIs,
)

# Attributes of tensors, as torch's own compiler has them.
_MARKED_DYNAMIC = (
    "_dynamo_dynamic_indices",
    "_dynamo_weak_dynamic_indices",
    "_dynamo_unbacked_indices",
)
_MARKED_STATIC = "_dynamo_static_indices"
VALUES = 3  # that are assumed at one place, each in a recording of its own


@dataclasses.dataclass
class DynamicInputs:
    """`numbers`: paths of Python numbers. `sizes`: dims of tensors by path. `fixed`: dims that
    turned out to decide something, so that a recording stands for one size all the same.
    `contents`: of small tensors by path, as recordings compare them. `apart`: operators that run
    between graphs, each with its line. `arrays`: of NumPy, by path, that held something else."""

    numbers: set[Path] = dataclasses.field(default_factory=set)
    names: frozenset[str] = frozenset()  # keys whose numbers move, whatever was seen
    sizes: dict[Path, set[int]] = dataclasses.field(default_factory=dict)
    fixed: set[tuple[Path, int]] = dataclasses.field(default_factory=set)
    contents: dict[Path, Any] = dataclasses.field(default_factory=dict)
    assumed: dict[Any, list[Any]] = dataclasses.field(default_factory=dict)
    apart: set[tuple[str, str]] = dataclasses.field(default_factory=set)
    arrays: set[Path] = dataclasses.field(default_factory=set)

    def clear(self) -> None:
        self.numbers.clear()
        self.sizes.clear()
        self.fixed.clear()
        self.contents.clear()
        self.assumed.clear()
        self.apart.clear()
        self.arrays.clear()

    def moves(self, path: Path, value: Any) -> bool:
        """Whether the number there is to be traced."""
        if path in self.numbers:
            return True
        key = getattr(path, "arg", None)
        return type(value) is float and type(key) is str and key in self.names

    def may_assume(self, place: Any, value: Any) -> bool:
        """Whether few values were seen at the place, so that most calls have one of them."""
        seen = self.assumed.setdefault(place, [])
        if value not in seen:
            seen.append(value)
        return len(seen) <= (1 if isinstance(value, bool) else VALUES)

    def note_number(self, guard: Guard | None) -> None:
        """The guard failed: a number that a recording took for a constant is another one now."""
        if (
            guard is not None
            and isinstance(guard.check, Equals)
            and type(guard.check.arg) in (int, float)
        ):
            self.numbers.add(guard.path)

    def note_floats(
        self, guards: Sequence[Guard], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Floats that a recording took for constants and that are others now, whatever guard fails
        first: a learning rate moves beside all else."""
        call = _Call(guards, args, kwargs)
        for guard in guards:
            if isinstance(guard.check, Equals) and type(guard.check.arg) is float:
                found = call.found(guard.path)
                if type(found) is float and not guard.check.passes(found):
                    self.numbers.add(guard.path)

    def note_counters(
        self, guards: Sequence[Guard], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Integers that have moved by as much as one that is known to: counters of layers."""
        moved: dict[Path, int] = {}
        call = _Call(guards, args, kwargs)
        for guard in guards:
            if isinstance(guard.check, Equals) and type(guard.check.arg) is int:
                found = call.found(guard.path)
                if type(found) is int and found != guard.check.arg:
                    moved[guard.path] = found - guard.check.arg
        steps = {step for path, step in moved.items() if path in self.numbers}
        self.numbers.update(path for path, step in moved.items() if step in steps)

    def note_arrays(
        self, guards: Sequence[Guard], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Arrays that a recording took for constants and that hold something else now."""
        call = _Call(guards, args, kwargs)
        for guard in guards:
            if isinstance(guard.check, ArrayContent) and not guard.check.passes(
                call.found(guard.path)
            ):
                self.arrays.add(guard.path)

    def note_sizes(
        self, guards: Sequence[Guard], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Compare the sizes that a recording relies on with those of a call. An integer that was
        such a size and is what that is now moves with it: a length that an object keeps."""
        call = _Call(guards, args, kwargs)
        moved = set[tuple[int, int]]()
        for guard in guards:
            if isinstance(guard.check, Tensor):
                sizes = guard.check.arg.sizes
                moved |= self._note_tensor(guard.path, sizes, call.found(guard.path))
        for guard in guards if moved else ():
            if isinstance(guard.check, Equals) and type(guard.check.arg) is int:
                found = call.found(guard.path)
                if type(found) is int and (guard.check.arg, found) in moved:
                    self.numbers.add(guard.path)

    def _note_tensor(
        self, path: Path, sizes: tuple[int | None, ...], tensor: Any
    ) -> set[tuple[int, int]]:
        """What the sizes that moved were, and what they are."""
        if type(tensor) is not torch.Tensor or tensor.dim() != len(sizes):
            return set()
        dims = {
            dim: (size, tensor.shape[dim])
            for dim, size in enumerate(sizes)
            if size is not None and size != tensor.shape[dim]
        }
        self.sizes.setdefault(path, set()).update(dims)
        return set(dims.values())

    def fix(
        self,
        paths: Sequence[Path],
        places: "Mapping[int, Iterable[int]] | Iterable[tuple[int, int]]",
    ) -> None:
        """Dims of call inputs, by index, that no recording shall trace again."""
        if isinstance(places, Mapping):
            places = [(index, dim) for index, dims in places.items() for dim in dims]
        self.fixed.update((paths[index], dim) for index, dim in places)

    def dims(self, path: Path, tensor: torch.Tensor, dynamic: bool | None) -> frozenset[int]:
        """The dims of an input whose sizes are traced. 0 and 1 are constants always: code
        broadcasts, or skips, on them."""
        if dynamic is False or type(tensor) is not torch.Tensor:
            return frozenset()
        dims = (
            set(range(tensor.dim()))
            if dynamic and is_argument(path)
            else self.sizes.get(path, set())
        )
        for mark in _MARKED_DYNAMIC:
            dims = dims | set(getattr(tensor, mark, ()))
        dims = dims - set(getattr(tensor, _MARKED_STATIC, ()))
        return frozenset(
            dim
            for dim, size in enumerate(tensor.shape)
            if dim in dims and size > 1 and (path, dim) not in self.fixed
        )


class _Call:
    """What a call has at the paths of a recording's guards. A step is taken only from an object of
    the class that was recorded: reading another one may run code of the user's."""

    def __init__(
        self, guards: Sequence[Guard], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._call = args, kwargs
        self._classes = {
            guard.path: guard.check.arg for guard in guards if isinstance(guard.check, TypeIs)
        }
        self._values: dict[Path, Any] = {}

    def found(self, path: Path) -> Any:
        """None where the call has no such thing."""
        if path not in self._values:
            self._values[path] = self._read(path)
        return self._values[path]

    def _read(self, path: Path) -> Any:
        try:
            if path.base is None:
                return path.root(*self._call)
            base = self.found(path.base)
            expected = self._classes.get(path.base, type(base))
            return path.fetch(base) if type(base) is expected else None
        except Exception:  # another guard says so
            return None


def is_argument(path: Path) -> bool:
    """Whether the tensor is (in) an argument of the call, not the state of a module."""
    node: Path | None = path
    while isinstance(node, Item | Attr):
        node = node.base
    return isinstance(node, Arg | Kwarg)
