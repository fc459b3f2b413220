"""A later call: the compiled segments in order, outcomes compared, effects done again, the output
made."""

import struct
from collections.abc import Callable
from typing import Any

import torch

from ...runtime.dispatch import MISS
from ...runtime.replay.host_generators import restorer
from ...runtime.replay.recipes import Env
from .recording import Recording
from .segments import Feed, Segment
from .values import CALL_INPUT, HOST, Meta, version_of


class Undo:
    """What must be put back when a call is not finished here: written inputs, the random
    generators."""

    def __init__(self, random: bool, devices: tuple[torch.device, ...]) -> None:
        self._generators: dict[int, Callable[[], None] | None] = {}
        self._histories: list[tuple[torch.Tensor, int]] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        self._cpu = torch.random.get_rng_state() if random else None
        self._cuda = (
            [(d, torch.cuda.get_rng_state(d)) for d in devices if d.type == "cuda"]
            if random
            else []
        )

    def keep_generator(self, owner: Any) -> None:
        """A host generator is about to be asked."""
        if id(owner) not in self._generators:
            self._generators[id(owner)] = restorer(owner)

    def keep(self, tensor: torch.Tensor, historied: bool) -> None:
        """The tensor is about to be written, as part of its gradient history or not."""
        version = version_of(tensor)
        self._copies.append((tensor, tensor.detach().clone(), version))
        if historied:
            self._histories.append((tensor, version))

    def can_go_back(self) -> bool:
        """Whether no gradient history was written: it could not be put back."""
        return all(version_of(tensor) == version for tensor, version in self._histories)

    def back(self) -> None:
        with torch.no_grad():
            # a tensor kept twice was written before the second time
            for tensor, copy, version in reversed(self._copies):
                if version_of(tensor) != version:
                    tensor.detach().copy_(copy)
        if self._cpu is not None:
            torch.random.set_rng_state(self._cpu)
        for restore in self._generators.values():
            if restore is not None:
                restore()
        for device, rng in self._cuda:
            torch.cuda.set_rng_state(rng, device)


def _always(inputs: list[Any]) -> bool:
    return True


class Entry:
    """A recording with its compiled segments. `eager` is the user's own function."""

    def __init__(
        self,
        recording: Recording,
        programs: tuple[Callable[..., Any], ...],
        eager: Callable[..., Any],
    ) -> None:
        self.recording, self.programs, self.eager = recording, programs, eager
        self.guards = recording.guard_set
        self.hits = 0
        self.stays_eager = False
        self._random = any(segment.random for segment in recording.segments)
        self._devices = tuple(
            {
                meta.device
                for segment in recording.segments
                for meta in segment.metas
                if isinstance(meta, Meta)
            }
        )
        self._checks: dict[int, list[tuple[Any, Any]]] = {}
        for after, recipe, expected in recording.outcomes:
            self._checks.setdefault(after, []).append((recipe, expected))
        on_gpu = any(device.type == "cuda" for device in self._devices)
        self.general = recording.symbols is not None and on_gpu
        self._sizes_hold = recording.symbols.holds if recording.symbols is not None else _always
        # A program of this package writes its inputs last, so that one alone has nothing to undo.
        self._keeps = len(programs) > 1 or any(
            getattr(program, "may_write_first", False) for program in programs
        )

    def run(self, inputs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call's result, or MISS when an outcome is one that this recording has not seen;
        nothing was done to the outside then."""
        if self.stays_eager:
            return self.eager(*args, **kwargs)
        if not self._same_objects(inputs) or not self._sizes_hold(inputs):
            return MISS
        undo = Undo(self._random, self._devices)
        env = Env(inputs, len(self.programs), undo.keep_generator)
        try:
            finished = self._segments(env, undo)
        except Exception:
            if not undo.can_go_back():
                raise
            undo.back()
            return self.eager(*args, **kwargs)
        if not finished:
            undo.back()
            return MISS
        return self._epilogue(env)

    def _same_objects(self, inputs: list[Any]) -> bool:
        """Whether what was one object is one, and what was told apart is not."""
        for a, b in self.recording.aliases:
            if inputs[a] is not inputs[b]:
                return False
        for group in self.recording.distinct:
            if len({id(inputs[index]) for index in group}) < len(group):
                return False
        return True

    def _segments(self, env: Env, undo: Undo) -> bool:
        for index, (segment, program) in enumerate(
            zip(self.recording.segments, self.programs, strict=True)
        ):
            if not self._agrees(index, env):
                return False
            if segment.ops:
                self._segment(index, segment, program, env, undo)
        return self._agrees(len(self.programs), env)

    def _agrees(self, index: int, env: Env) -> bool:
        return all(
            same(recipe.make(env), expected) for recipe, expected in self._checks.get(index, ())
        )

    def _segment(
        self, index: int, segment: Segment, program: Callable[..., Any], env: Env, undo: Undo
    ) -> None:
        tensors = [self._fed(feed, env) for feed in segment.feeds]
        if self._keeps:
            for position in segment.writes:
                undo.keep(tensors[position], position in segment.histories)
        env.outputs[index] = program(*tensors)

    def _fed(self, feed: Feed, env: Env) -> Any:
        if feed.segment == CALL_INPUT:
            return env.inputs[feed.index]
        if feed.segment == HOST:
            return torch.tensor(
                self.recording.fed[feed.index].make(env), dtype=torch.float64, device="cpu"
            )
        return env.outputs[feed.segment][feed.index]

    def _epilogue(self, env: Env) -> Any:
        result = self.recording.output.make(env)
        for effect in self.recording.effects:
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
