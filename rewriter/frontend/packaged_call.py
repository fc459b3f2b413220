"""One recorded version of a model as data: guards on the call's arguments, where its graphs' inputs
come from, and how its output is made. What belongs to the model is a weight or a constant."""

import inspect
import json
import re
from typing import Any

import torch

from ...runtime.cache.plain_data import Unstorable
from ...runtime.errors import PackageError
from ...runtime.guards.guard import Arg, ClassAttr, Guard, Kwarg, Path, Tensor
from ...runtime.package.call_data import CallEncoder
from ...runtime.programs.entry import ReplayPlan
from ...runtime.programs.recipes import ConstRecipe, Input, Recipe
from ...runtime.programs.size_functions import SizeFunction
from ...runtime.programs.steps import CALL_INPUT, Redo
from ..capture.numbers.traced_sizes import SizeOf
from ..capture.recording import Recording
from .packaged_weights import PackagedWeights

_NOT_OF_MODEL = object()
_STORES: tuple[Any, ...] = (setattr, object.__setattr__, dict.__setitem__)


class PackagedCall:
    """`owner`: what stands before the call's own arguments. `stores`: what the call leaves in
    objects of the model, by the place: (value, line). Raises PackageError for other effects."""

    def __init__(
        self,
        recording: Recording,
        owner: tuple[Any, ...],
        weights: PackagedWeights,
        signature: inspect.Signature | None,
    ) -> None:
        self.recording, self._owner, self._weights = recording, owner, weights
        self._parameters = [] if signature is None else list(signature.parameters)
        self._paths = recording.guard_set.inputs
        self._places: dict[int, int] = {}
        self._inputs: list[Any] = []
        self._encoder = CallEncoder(self._size_of, self._place, len(owner))
        self.constant = self._encoder.encode
        self.stores = self._stored()

    # ---- inputs

    def _is_given(self, path: Path) -> bool:
        """Whether the path leads from an argument of the call."""
        while path.base is not None:
            path = path.base
        return isinstance(path, Kwarg) or (isinstance(path, Arg) and path.arg >= len(self._owner))

    def _place(self, index: int) -> int:
        """The number of the recording's input in the package."""
        if index not in self._places:
            self._places[index] = len(self._inputs)
            self._inputs.append(self._input(self._paths[index]))
        return self._places[index]

    def _input(self, path: Path) -> list[Any]:
        if self._is_given(path):
            return self._encoder.encode(path)  # type: ignore[no-any-return]
        value = path.value(self._owner, {})
        if isinstance(value, torch.Tensor):
            return ["weight", self._weights.index(value, path.source)]
        return ["constant", self._written(path.source, value)]

    def _written(self, what: str, value: Any) -> Any:
        try:
            return self._encoder.encode(value)
        except Unstorable as reason:
            raise PackageError(f"{what} cannot be written to a file: {reason}") from reason

    def _size_of(self, recipe: Recipe) -> SizeFunction | None:
        if not isinstance(recipe, SizeOf) or self.recording.symbols is None:
            return None
        return self.recording.symbols.of_form(recipe.form)

    # ---- effects

    def _stored(self) -> dict[Any, tuple[Any, str]]:
        """Stores of constants into the model change nothing from the second call on, nor does one
        of what is there: `self.count += 1` of a buffer."""
        last: dict[Any, tuple[Any, Recipe, str]] = {}
        for effect in self.recording.effects:
            owner, name = self._target(effect)
            last[id(owner), name] = owner, effect.arguments[-1], effect.origin
        found = {}
        for place, (owner, recipe, origin) in last.items():
            held = (
                owner.get(place[1]) if isinstance(owner, dict) else getattr(owner, place[1], None)
            )
            if isinstance(recipe, ConstRecipe):
                found[place] = recipe.value, origin
            elif isinstance(recipe, Input) and self._of_model(recipe) is held:
                found[place] = held, origin
            else:
                raise PackageError(
                    f"{origin}: the call stores something new in {name!r}: keep it in a buffer,"
                    " or return it"
                )
        return found

    def _of_model(self, recipe: Input) -> Any:
        """What an input is, if it is the model's own."""
        path = self._paths[recipe.index]
        return _NOT_OF_MODEL if self._is_given(path) else path.value(self._owner, {})

    def _target(self, effect: Redo) -> tuple[Any, Any]:
        """The object of the model that is changed, and the name there."""
        called = getattr(effect.function, "__qualname__", repr(effect.function))
        if effect.function in _STORES and not effect.keywords:
            place, name, _ = effect.arguments
            given = isinstance(place, Input) and self._is_given(self._paths[place.index])
            if isinstance(name, ConstRecipe) and not given:
                if isinstance(place, ConstRecipe):
                    return place.value, name.value
                if isinstance(place, Input):
                    return self._of_model(place), name.value
        raise PackageError(f"{effect.origin}: the call has a side effect: {called}()")

    # ---- data

    def data(self, plan: ReplayPlan, programs: list[dict[str, Any] | None]) -> bytes:
        """The version with its `programs`. Raises Unstorable, PackageError."""
        recording, encode = self.recording, self._encoder.encode
        steps = [
            {
                "program": None,
                "origins": [],
                **(program or {}),
                "feeds": [self._feed(feed.segment, feed.index) for feed in segment.feeds],
                "writes": segment.writes,
                "histories": segment.histories,
            }
            for segment, program in zip(recording.segments, programs, strict=True)
        ]
        given = [index for index, path in enumerate(self._paths) if self._is_given(path)]
        for index in given:
            self._place(index)
        guards = recording.guard_set.plan
        symbols = recording.symbols
        found = {
            "output": self._written("what the call returns", plan.output),
            "nargs": guards.nargs - len(self._owner),
            "kwnames": guards.kwnames,
            "guards": [
                [encode(one.path), self._check(one), one.origin and _base_name(one.origin)]
                for one in self._guards()
            ],
            "aliases": self._aliases(),
            "distinct": self._distinct(),
            "disjoint": [self._places[i] for i in guards.disjoint if i in self._places],
            "twins": [self._places[i] for i in guards.twins if i in self._places],
            "state": encode(guards.state.values),
            "holds": None if symbols is None else encode(symbols.condition),
            "steps": steps,
            "outcomes": [
                [after, self._written("what decides the way of the call", recipe), encode(seen)]
                for after, recipe, seen in plan.outcomes
            ],
            "fed": [self._written("a number that Python makes", recipe) for recipe in plan.fed],
            "random": plan.random,
        }
        found |= {"inputs": self._inputs, "recipes": self._encoder.recipes}
        return json.dumps(found, separators=(",", ":"), allow_nan=False).encode()

    def _feed(self, segment: int, index: int) -> list[int]:
        return [segment, self._place(index) if segment == CALL_INPUT else index]

    def _guards(self) -> list[Guard]:
        """Those on the arguments. How their classes look up attributes belongs to the model."""
        return [
            guard
            for guard in self.recording.guards
            if self._is_given(guard.path) and not isinstance(guard.check, ClassAttr)
        ]

    def _check(self, guard: Guard) -> Any:
        source = self._named(guard.path.source)
        return self._written(f"{guard.origin}: the guard on {source}", guard.check)

    def _aliases(self) -> list[list[int]]:
        found = []
        for pair in self.recording.aliases:
            given = [self._is_given(self._paths[index]) for index in pair]
            if any(given) and not all(given):
                raise PackageError("an argument of an example is an object of the model's own")
            if all(given):
                found.append([self._places[index] for index in pair])
        return found

    def _distinct(self) -> list[list[int]]:
        groups = (
            [self._places[index] for index in group if self._is_given(self._paths[index])]
            for group in self.recording.distinct
        )
        return [group for group in groups if len(group) > 1]

    # ---- for people

    def described(self) -> dict[str, Any]:
        """Its inputs and guards as text, for the manifest."""
        tensors, guards = [], []
        for guard in self._guards():
            source, at = self._named(guard.path.source), _base_name(guard.origin or "")
            if isinstance(guard.check, Tensor):
                tensors.append({"name": source, "tensor": self._tensor(guard), "line": at})
            else:
                guards.append({"guard": f"{source}: {guard.check!r}", "line": at})
        symbols = self.recording.symbols
        sizes = [] if symbols is None else [symbols.condition.text]
        guards += [{"guard": self._named(text), "line": ""} for text in sizes]
        return {"inputs": tensors, "guards": guards}

    def _tensor(self, guard: Guard) -> str:
        """`float32[2, s0]`."""
        meta, symbols = guard.check.arg, self.recording.symbols
        place = self._paths.index(guard.path) if guard.path in self._paths else None
        reads = {} if symbols is None else symbols.condition.reads
        names: dict[Any, str] = {at: name for name, at in reads.items()}
        sizes = [
            str(size if size is not None else names.get((place, dim), "any"))
            for dim, size in enumerate(meta.sizes)
        ]
        return f"{str(meta.dtype).removeprefix('torch.')}[{', '.join(sizes)}]"

    def _named(self, text: str) -> str:
        def name(match: re.Match[str]) -> str:
            place = int(match[1]) - len(self._owner)
            known = 0 <= place < len(self._parameters)
            return self._parameters[place] if known else match[0]

        return re.sub(r"\bargs\[(\d+)\]", name, text)


def _base_name(origin: str) -> str:
    return origin.replace("\\", "/").rpartition("/")[2]
