"""A later call: the compiled graphs in order, outcomes compared, effects done again, the output
made."""

import dataclasses
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import diagnostics
from ..errors import LostResult, UnexpectedResult
from ..guards.guard import GuardSet
from ..signals import is_of_a_handler
from . import finished_programs, printed
from .dispatch import MISS
from .recipes import Apply, ConstRecipe, Env, Input, Recipe
from .steps import CALL_INPUT, HOST, Feed, GraphStep, Redo
from .undo import Undo


@dataclasses.dataclass(frozen=True, eq=False)
class ReplayPlan:
    """What one recording left for later calls. `outcomes`: (steps that must have run, recipe, value
    seen); `effects`, `output`: what is done and given at the end; `aliases`: pairs of inputs that
    were one object; `distinct`: groups of inputs that were different ones; `fed`: the floats that
    Python makes for the graphs; `holds`: the condition on symbolic sizes, if there are any;
    `random`: whether torch's generators are drawn from; `devices`: where its tensors live."""

    steps: tuple[GraphStep, ...]
    outcomes: tuple[tuple[int, Recipe, Any], ...]
    effects: tuple[Redo, ...]
    output: Recipe
    aliases: tuple[tuple[int, int], ...]
    distinct: tuple[tuple[int, ...], ...]
    fed: tuple[Recipe, ...]
    holds: Callable[[list[Any]], bool] | None
    random: bool
    devices: tuple[torch.device, ...]


FAILURES = 4  # calls that a program leaves to eager, one in so many, after which it is given up
PRINTED = 1  # calls after which what one does in Python is worth a function of its own


class CacheEntry:
    """A plan and the guards under which it stands for a call. `eager` is the user's own
    function."""

    def __init__(self, guards: GuardSet, plan: ReplayPlan, eager: Callable[..., Any]) -> None:
        self.guards, self.plan, self.eager = guards, plan, eager
        self.hits = 0
        self.stays_eager = False
        self.failures = 0  # of the program, at calls that eager did
        self.general = plan.holds is not None and any(d.type == "cuda" for d in plan.devices)
        self._checks: dict[int, list[tuple[Any, Any]]] = {}
        for after, recipe, expected in plan.outcomes:
            self._checks.setdefault(after, []).append((recipe, expected))
        self._compares_late = any(after for after, _, _ in plan.outcomes)
        # A program of this package writes its inputs last, so that one alone has nothing to undo.
        self._keeps = (
            len(plan.steps) > 1
            or self._compares_late
            or any(getattr(step.program, "may_write_first", False) for step in plan.steps)
        )
        self._same_objects = printed.same_objects(plan.aliases, plan.distinct)
        self._program = _direct(plan.steps[0].program) if plan.steps else None
        self._fed = self._only_inputs()
        self._writes = any(step.writes for step in plan.steps)
        tell = getattr(self._program, "when_native", None)
        if tell is not None and self._fed is not None:
            tell(self._serve_by)
        self._finish: printed.Finish = self._walked

    def _only_inputs(self) -> Callable[[list[Any]], Sequence[Any]] | None:
        """What picks the inputs of the plan's one program, if nothing else of a call could have to
        be undone."""
        plan = self.plan
        if len(plan.steps) != 1 or plan.random:
            return None
        if any(after or not _asks_inputs(asked) for after, asked, _ in plan.outcomes):
            return None
        (step,) = plan.steps
        if step.program is None or any(feed.segment != CALL_INPUT for feed in step.feeds):
            return None
        if self._keeps and step.writes:
            return None
        return _picks([feed.index for feed in step.feeds])

    def serves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether its guards, and what is asked of the inputs besides, hold for the call."""
        inputs = None if self.stays_eager else self.guards.match(args, kwargs)
        if inputs is None or not self._holds(inputs):
            return False
        asked = (pair for pair in self._checks.get(0, ()) if _asks_inputs(pair[0]))
        return all(same(recipe.make(Env(inputs, 0)), expected) for recipe, expected in asked)

    def _holds(self, inputs: list[Any]) -> bool:
        if self._same_objects is not None and not self._same_objects(inputs):
            return False
        return self.plan.holds is None or self.plan.holds(inputs)

    def run(self, inputs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call's result, or MISS when an outcome is one that this recording has not seen;
        nothing was done to the outside then."""
        if self.stays_eager:
            return self.eager(*args, **kwargs)
        plan = self.plan
        if not self._holds(inputs):
            return MISS
        if self._fed is not None:
            try:
                if self._checks and not self._agrees(0, Env(inputs, 0)):
                    return MISS
            except Exception as error:
                return self._redone(error, args, kwargs)
            return self._run_one(self._fed(inputs), inputs, args, kwargs)
        undo = Undo(plan.random, plan.devices)
        env = Env(inputs, len(plan.steps), undo.keep_generator)
        try:
            finished = self._steps(env, undo)
        except Exception as error:
            if not undo.can_go_back():
                raise
            undo.back()
            ours = isinstance(error, UnexpectedResult) or is_of_a_handler(error)
            if self._compares_late and not ours:
                return MISS  # what it would have compared may say that the call is another one
            return self._redone(error, args, kwargs)
        if not finished:
            undo.back()
            return MISS
        result = self._epilogue(env)
        self.hits += 1
        return result

    def _run_one(
        self,
        fed: Sequence[Any],
        inputs: list[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if self._writes:
            finished_programs.begin()
        try:
            outputs = self._program(*fed)  # type: ignore[misc]
        except Exception as error:
            if self._writes and finished_programs.is_done():
                if is_of_a_handler(error):
                    raise
                self._give_up(error)
                why = f"the call failed behind its writes, and runs in eager from now on: {error}"
                raise LostResult(f"{why}; what it has written stays written") from error
            return self._redone(error, args, kwargs)
        result = self._finish(inputs, (outputs,))
        self.hits += 1
        if self.hits == PRINTED:
            self._finish = printed.finish(self.plan.output, self.plan.effects) or self._finish
        return result

    def _redone(self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call in eager, which raises what is an error of the user's. What is none and comes
        again and again is the program's. A signal handler's is raised as it is."""
        if is_of_a_handler(error):
            raise error
        if isinstance(error, UnexpectedResult):
            self._give_up(error)
        result = self.eager(*args, **kwargs)
        self.failures += 1
        if self.failures >= FAILURES and self.failures * FAILURES > self.hits:
            self._give_up(error)
        return result

    def _give_up(self, error: Exception) -> None:
        self.stays_eager = True
        diagnostics.warn_once("program", f"call runs in eager: {error}", str(error))

    def _serve_by(self, program: Callable[..., Any]) -> None:
        self._program = program

    def _walked(self, inputs: list[Any], outputs: Sequence[Any]) -> Any:
        env = Env(inputs, 0)
        env.outputs = list(outputs)
        return self._epilogue(env)

    def _steps(self, env: Env, undo: Undo) -> bool:
        for index, step in enumerate(self.plan.steps):
            if not self._agrees(index, env):
                return False
            if step.program is not None:
                env.outputs[index] = self._step(step, step.program, env, undo)
        return self._agrees(len(self.plan.steps), env)

    def _agrees(self, index: int, env: Env) -> bool:
        for recipe, expected in self._checks.get(index, ()):
            if not same(recipe.make(env), expected):
                return False
        return True

    def _step(self, step: GraphStep, program: Callable[..., Any], env: Env, undo: Undo) -> Any:
        tensors = [self._value(feed, env) for feed in step.feeds]
        if self._keeps:
            for position in step.writes:
                undo.keep(tensors[position], position in step.histories)
        return program(*tensors)

    def _value(self, feed: Feed, env: Env) -> Any:
        if feed.segment == CALL_INPUT:
            return env.inputs[feed.index]
        if feed.segment == HOST:
            return torch.as_tensor(
                self.plan.fed[feed.index].make(env), dtype=torch.float64, device="cpu"
            )
        return env.outputs[feed.segment][feed.index]

    def _epilogue(self, env: Env) -> Any:
        result = self.plan.output.make(env)
        for effect in self.plan.effects:
            effect.run(env)
        return result


def _asks_inputs(asked: Recipe) -> bool:
    """Whether the recipe looks at inputs alone: asked twice in one call, it says the same."""
    if isinstance(asked, Apply):
        return all(map(_asks_inputs, asked.arguments))
    return isinstance(asked, Input | ConstRecipe)


def _direct(program: Any) -> Any:
    """What a program of another backend calls, without the frame between."""
    return program.program if getattr(program, "may_write_first", False) else program


def _picks(indices: list[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """What gives the items at `indices`."""
    if len(indices) > 1:
        return operator.itemgetter(*indices)
    return lambda inputs: [inputs[index] for index in indices]


def same(value: Any, expected: Any) -> bool:
    """Whether an outcome is the one that was recorded: exact type and value; NaN equals NaN, -0.0
    differs from 0.0."""
    if type(value) is not type(expected):
        return False
    if isinstance(value, list | tuple):
        return len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(value, float):
        return struct.pack("d", value) == struct.pack("d", expected) or (
            value != value and expected != expected
        )
    return bool(value == expected)
