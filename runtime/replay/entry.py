"""A later call: the compiled graphs in order, outcomes compared, effects done again, the output
made."""

import dataclasses
import struct
from collections.abc import Callable
from typing import Any

import torch

from ..dispatch import MISS
from ..guard import GuardSet
from .recipes import Env, Recipe
from .steps import CALL_INPUT, HOST, Feed, Redo, Step
from .undo import Undo


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """What one recording left for later calls. `outcomes`: (steps that must have run, recipe, value
    seen); `effects`, `output`: what is done and given at the end; `aliases`: pairs of inputs that
    were one object; `distinct`: groups of inputs that were different ones; `fed`: the floats that
    Python makes for the graphs; `holds`: the condition on symbolic sizes, if there are any;
    `random`: whether torch's generators are drawn from; `devices`: where its tensors live."""

    steps: tuple[Step, ...]
    outcomes: tuple[tuple[int, Recipe, Any], ...]
    effects: tuple[Redo, ...]
    output: Recipe
    aliases: tuple[tuple[int, int], ...]
    distinct: tuple[tuple[int, ...], ...]
    fed: tuple[Recipe, ...]
    holds: Callable[[list[Any]], bool] | None
    random: bool
    devices: tuple[torch.device, ...]


class Entry:
    """A plan and the guards under which it stands for a call. `eager` is the user's own
    function."""

    def __init__(self, guards: GuardSet, plan: Plan, eager: Callable[..., Any]) -> None:
        self.guards, self.plan, self.eager = guards, plan, eager
        self.hits = 0
        self.stays_eager = False
        self.general = plan.holds is not None and any(d.type == "cuda" for d in plan.devices)
        self._checks: dict[int, list[tuple[Any, Any]]] = {}
        for after, recipe, expected in plan.outcomes:
            self._checks.setdefault(after, []).append((recipe, expected))
        # A program of this package writes its inputs last, so that one alone has nothing to undo.
        self._keeps = (
            len(plan.steps) > 1
            or any(after for after, _, _ in plan.outcomes)
            or any(getattr(step.program, "may_write_first", False) for step in plan.steps)
        )
        self._fed_by = self._only_inputs()

    def _only_inputs(self) -> tuple[int, ...] | None:
        """The inputs of the plan's one program, if nothing else of a call could have to be
        undone."""
        plan = self.plan
        if len(plan.steps) != 1 or plan.outcomes or plan.random or self._keeps:
            return None
        (step,) = plan.steps
        if step.program is None or any(feed.segment != CALL_INPUT for feed in step.feeds):
            return None
        return tuple(feed.index for feed in step.feeds)

    def run(self, inputs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call's result, or MISS when an outcome is one that this recording has not seen;
        nothing was done to the outside then."""
        if self.stays_eager:
            return self.eager(*args, **kwargs)
        plan = self.plan
        if not self._same_objects(inputs) or (plan.holds is not None and not plan.holds(inputs)):
            return MISS
        if self._fed_by is not None:
            return self._run_one(self._fed_by, inputs, args, kwargs)
        undo = Undo(plan.random, plan.devices)
        env = Env(inputs, len(plan.steps), undo.keep_generator)
        try:
            finished = self._steps(env, undo)
        except Exception:
            if not undo.can_go_back():
                raise
            undo.back()
            return self.eager(*args, **kwargs)
        if not finished:
            undo.back()
            return MISS
        return self._epilogue(env)

    def _run_one(
        self,
        fed_by: tuple[int, ...],
        inputs: list[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        program: Any = self.plan.steps[0].program
        try:
            outputs = program(*[inputs[index] for index in fed_by])
        except Exception:
            return self.eager(*args, **kwargs)
        env = Env(inputs, 1)
        env.outputs[0] = outputs
        return self._epilogue(env)

    def _same_objects(self, inputs: list[Any]) -> bool:
        """Whether what was one object is one, and what was told apart is not."""
        for a, b in self.plan.aliases:
            if inputs[a] is not inputs[b]:
                return False
        for group in self.plan.distinct:
            if len({id(inputs[index]) for index in group}) < len(group):
                return False
        return True

    def _steps(self, env: Env, undo: Undo) -> bool:
        for index, step in enumerate(self.plan.steps):
            if not self._agrees(index, env):
                return False
            if step.program is not None:
                env.outputs[index] = self._step(step, step.program, env, undo)
        return self._agrees(len(self.plan.steps), env)

    def _agrees(self, index: int, env: Env) -> bool:
        return all(
            same(recipe.make(env), expected) for recipe, expected in self._checks.get(index, ())
        )

    def _step(self, step: Step, program: Callable[..., Any], env: Env, undo: Undo) -> Any:
        tensors = [self._fed(feed, env) for feed in step.feeds]
        if self._keeps:
            for position in step.writes:
                undo.keep(tensors[position], position in step.histories)
        return program(*tensors)

    def _fed(self, feed: Feed, env: Env) -> Any:
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
        self.hits += 1
        return result


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
