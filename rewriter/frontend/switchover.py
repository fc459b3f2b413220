"""One recording of a function whose compiled form has to earn its place.

Eager serves its calls while it is built. Then a few calls of both kinds are timed in turn, with
their backward; the compiled form stays where it was faster, and is timed once more later.
"""

import contextlib
import statistics
import threading
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Protocol

import torch

from ...runtime import diagnostics
from ...runtime.environment.machine import MACHINE, Machine
from ...runtime.programs.dispatch import MISS

WARM = 2  # compiled calls before a trial, which are counted but not compared
TIMED = 6  # calls of each kind in a trial
AGAIN = 60  # compiled calls, after which the second and last trial is held
FASTER = 0.97  # of eager's time: what is not below this is no gain at first
SELDOM = 50  # one call of so many: what is called less is not waited for
AS_FAST = 1.0  # of eager's time: what is not below this in the second trial goes back


class ServingState(Enum):
    """What serves the calls of one recording."""

    WAITING = "waits for its kernels"
    TRIAL = "is timed"
    COMPILED = "compiled"
    EAGER = "eager"


class TimedEntry(Protocol):
    """What is timed: `runtime.programs.entry.CacheEntry`, say."""

    @property
    def general(self) -> bool: ...

    @property
    def stays_eager(self) -> bool: ...

    def run(self, inputs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


class SwitchTimer(Protocol):
    """Who keeps the account of time."""

    def nothing_builds(self) -> bool:
        """Whether a timing means something now: nothing is built."""
        ...

    def gained(self, seconds: float) -> None:
        """A call took that much less than it would have in eager (or more: negative)."""
        ...


class Switchover:
    """An entry of a dispatcher around `recording`, which gets its compiled `entry` later."""

    def __init__(
        self,
        recording: Any,
        eager: Callable[..., Any],
        judge: SwitchTimer,
        name: str = "",
        machine: Machine = MACHINE,
    ) -> None:
        self.recording, self.eager, self.judge = recording, eager, judge
        self.name, self._machine = name, machine
        self.general = False
        self.state = ServingState.WAITING
        self.entry: TimedEntry | None = None
        self.calls = self.trials = 0
        self.compiled_calls = 0
        self.eager_seconds = self.compiled_seconds = 0.0
        self.overhead = 0.0  # seconds that reaching the compiled form takes, which eager does not
        self._times: dict[bool, list[Sample]] = {True: [], False: []}
        self._lock = threading.Lock()
        self._warm: list[Sample] = []
        self._clock = machine.now

    @property
    def guards(self) -> Any:
        """The recording's, which may lose its symbolic sizes while it is compiled."""
        return self.recording.guard_set

    def ready(self, entry: TimedEntry) -> None:
        """The kernels are there: the trial begins with the next call."""
        self.general = entry.general
        self._times = {True: [], False: []}
        self._warm = []
        machine = self._machine
        self._clock = machine.process_seconds if machine.is_crowded() else machine.now
        self.entry = entry
        self.state = ServingState.TRIAL

    def give_up(self) -> None:
        """Eager serves every later call; what was built is dropped."""
        self.state, self.entry = ServingState.EAGER, None

    def run(self, inputs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As `Entry.run`."""
        entry = self.entry
        self.calls += 1
        if self.state is ServingState.COMPILED and entry is not None:
            return self._compiled(entry, inputs, args, kwargs)
        if self.state is ServingState.TRIAL and entry is not None and self.judge.nothing_builds():
            return self._tried(entry, inputs, args, kwargs)
        return self.eager(*args, **kwargs)

    def _compiled(
        self, entry: TimedEntry, inputs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.compiled_calls += 1
        if self.is_due_again():
            self.ready(entry)
        self.judge.gained(self.eager_seconds - self.compiled_seconds)
        return entry.run(inputs, args, kwargs)

    def is_due_again(self) -> bool:
        """Whether the compiled form, which serves, is to be timed once more."""
        return self.compiled_calls == AGAIN and self.trials == 1

    def _tried(
        self, entry: TimedEntry, inputs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if entry.stays_eager:
            self.give_up()
            return self.eager(*args, **kwargs)
        times = self._times
        taken = {kind: len(samples) for kind, samples in times.items()}
        if min(taken.values()) >= TIMED:
            self._decide(times)
            return self.run(inputs, args, kwargs)
        warming = len(self._warm) < WARM
        compiled = warming or _next_kind(taken)
        on_gpu = any(isinstance(value, torch.Tensor) and value.is_cuda for value in inputs)
        sample = Sample(self._machine.now if on_gpu else self._clock, on_gpu)
        if compiled:
            self.guards.match(args, kwargs)  # which eager does not ask: a part of its time
            result = entry.run(inputs, args, kwargs)
        else:
            result = self.eager(*args, **kwargs)
        if result is not MISS:
            self.timed(sample, result, self._warm if warming else times[compiled])
        return result

    def timed(self, sample: "Sample", result: Any, samples: "list[Sample]") -> None:
        """A call gave `result`: its sample goes to the others."""
        sample.forward(result)
        samples.append(sample)

    def _decide(self, times: "dict[bool, list[Sample]]") -> None:
        with self._lock:
            if times is not self._times or self.state is not ServingState.TRIAL:
                return  # another thread was here
            self._judge(times)

    def _judge(self, times: "dict[bool, list[Sample]]") -> None:
        self.trials += 1
        every = (*self._warm, *times[True], *times[False])
        differentiated = any(sample.differentiated for sample in every)
        eager, compiled = (_typical(times[kind]) for kind in (False, True))
        compiled += self.overhead
        self.eager_seconds, self.compiled_seconds = eager, compiled
        for sample in (*self._warm, *times[True]):
            self.judge.gained(eager - sample.seconds - self.overhead)
        limit = FASTER if self.trials == 1 else AS_FAST
        if differentiated or compiled > limit * eager:
            self.give_up()
        else:
            self.state = ServingState.COMPILED
        diagnostics.log.debug(
            "%s: eager %.3f ms, compiled %.3f ms: %s",
            self.name,
            1e3 * eager,
            1e3 * compiled,
            self.state.value,
        )


def are_all(entries: tuple[Any, ...], state: ServingState) -> bool:
    """Whether there are entries, and each is a switchover in that state."""
    return bool(entries) and all(getattr(entry, "state", None) is state for entry in entries)


def stay_eager(entries: tuple[Any, ...]) -> bool:
    """Whether eager was as fast for those that serve calls: the others are hardly ever asked."""
    tried = [each for each in entries if isinstance(each, Switchover)]
    asked = [each.calls for each in tried if each.state is ServingState.EAGER]
    return (
        len(tried) == len(entries)
        and bool(asked)
        and all(
            each.state is ServingState.EAGER
            or (each.state is not ServingState.COMPILED and SELDOM * each.calls < max(asked))
            for each in tried
        )
    )


def _next_kind(taken: Mapping[bool, int]) -> bool:
    """Eager, compiled, compiled, eager, …: neither kind profits from its place."""
    return (taken[True] + taken[False]) % 4 in (1, 2)


def _typical(samples: "list[Sample]") -> float:
    """The mean of the faster half: what other processes do only ever adds."""
    return statistics.fmean(sorted(sample.seconds for sample in samples)[: TIMED // 2])


class Sample:
    """The time of one call: its forward, and its share of a backward pass: from the moment when the
    first result's gradient is there to the end of the pass."""

    def __init__(self, clock: Callable[[], float], on_gpu: bool = False) -> None:
        self.differentiated = False
        self.seconds = 0.0
        self._clock, self._on_gpu = clock, on_gpu
        self._start = self._now()

    def forward(self, result: Any) -> None:
        """The call gave `result`."""
        self.stop()
        node = first_node(result)
        if node is not None:
            self._handle = node.register_prehook(self._backward_begins)

    def stop(self) -> None:
        """The call is over."""
        self.seconds = self._now() - self._start

    def _now(self) -> float:
        if self._on_gpu:
            torch.cuda.synchronize()
        return self._clock()

    def _backward_begins(self, grads: Any) -> None:
        self._handle.remove()
        self.differentiated |= torch.is_grad_enabled()
        self._start = self._now()
        with contextlib.suppress(RuntimeError):  # a backward of another kind: it is not timed
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)

    def _backward_ends(self) -> None:
        self.seconds += self._now() - self._start


def first_node(result: Any, depth: int = 3) -> Any:
    """The autograd node of the first tensor in a result that has one."""
    if isinstance(result, torch.Tensor):
        return result.grad_fn
    parts = (
        result.values()
        if isinstance(result, Mapping)
        else result
        if isinstance(result, tuple | list)
        else ()
    )
    if depth:
        for part in list(parts)[:8]:
            node = first_node(part, depth - 1)
            if node is not None:
                return node
    return None
