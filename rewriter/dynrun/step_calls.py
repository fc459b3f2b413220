"""Training steps of the script while it runs. Its text was given drivers (`outline.step_driver`),
which ask here before each step whether it was done; most of the time the answer is no, and the
user's own statements run in their place.

Once a step is worth it, its function is recorded by a real call and built beside the script; then
its calls are timed against the statements in place, and the faster of the two stays. This module
loads no torch.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from ... import __getattr__ as public
from ...runtime import diagnostics
from ...runtime.diagnostics import log
from ...runtime.environment.machine import MACHINE, Machine
from ...runtime.signals import is_of_a_handler, reach_the_user
from ..frontend.background import SiteUse
from ..graph_breaks.step_protocol import FALLS, NOT_BOUND

if TYPE_CHECKING:
    from ..graph_breaks.step_texts import Start, TrainingStep

WRAPPERS = (
    "torch.nn.parallel.",
    "torch.distributed.",
)  # they do their work in hooks of autograd, which no graph has
SAMPLED = 16  # calls that are looked at one after another, before most are not
SAMPLE_INTERVAL_S = 0.05  # seconds between two that are looked at then
MAX_UNUSED_STARTS = 100  # starts that are looked at until the step has run once
MAX_ARRAY_BYTES = 1 << 16  # of an array that is compared from step to step
MAX_CONTAINER_ELEMENTS = 64  # elements of a container that are looked at
IN_PLACE: Any = type("InPlace", (), {"__repr__": lambda self: "IN_PLACE"})()
"""What serves a call of a step's function when the user's statements shall run."""


class StepSession(Protocol):
    """What is asked of the run."""

    background: Any

    def compile_step(self, fn: Any, place: str) -> Any: ...


class StepResult:
    """What a step left: the variables that it bound; how it leaves the loop or function, with the
    value of a `return`; or the error that it raised, at a line."""

    def __init__(self, how: int = FALLS, value: Any = None, bound: Any = ()) -> None:
        self.how, self.value, self.bound = how, value, dict(bound)
        self.error: BaseException | None = None
        self.line = 0
        self.asked = (-1, -1)  # number and start of who asked


class _Now(threading.local):
    """Of one thread: what the last question found, until it is taken, and when the step in place
    began."""

    result: StepResult | None = None
    given: StepResult | None = None  # the one that was taken
    site: StepSite | None = None
    first: StepSite | None = None  # whose first run is under way
    started = 0.0
    sample: Callable[[], None] | None = None


class Steps:
    """What drivers ask, under the name `outline.step_driver.DRIVER`."""

    def __init__(self, session: StepSession, eager_calls: int, machine: Machine = MACHINE) -> None:
        self._machine = machine
        self._session, self._eager_calls = session, max(1, eager_calls)
        self._sites: list[StepSite] = []
        self.starts: list[int] = []  # of each site the bits of those that have to ask
        self.compiled: list[bool] = []  # of each site whether anything but the statements may serve
        self._unseen: list[int] = []  # and so many steps to come that need not be looked at
        self.now = _Now()
        self.watch: Callable[[int, str, bool], None] | None = None  # told of begins and ends
        self._somebody_elses: Callable[[], bool] | None = None  # until torch is there
        self._claimed: dict[int, tuple[weakref.ref[Any], StepSite]] = {}

    def register(self, step: TrainingStep) -> int:
        """The number of a step that was found in a text."""
        self._sites.append(StepSite(step))
        self.starts.append(-1)
        self.compiled.append(False)
        self._unseen.append(0)
        return len(self._sites) - 1

    def torch_is_there(self, somebody_elses: Callable[[], bool]) -> None:
        """torch was loaded; `somebody_elses` says whether what is called now belongs to somebody
        who traces or records."""
        self._somebody_elses = somebody_elses
        if self._session.background is not None:
            self._session.background.uses.append(self.uses)

    def claims(self, module: Any) -> bool:
        """Whether the calls of a module, in training, are a step's."""
        if self.now.first is not None and module.training:
            return True  # it may turn out to be one
        known = self._claimed.get(id(module))
        if known is None or known[1].excluded or not module.training:
            return False
        return known[0]() is module

    def pays_in_background(self, module: Any, seconds: float) -> bool:
        """Whether other calls than a step's, which took so long in eager, are worth compiling where
        time does not decide: not before they took what compiling the step did."""
        known = self._claimed.get(id(module))
        if known is None or known[0]() is not module or known[1].excluded:
            return True
        return seconds >= known[1].cost > 0

    # -- what drivers ask, in this order

    def enter(self, number: int, index: int, given: tuple[Any, ...]) -> None:
        """A step could begin here, with these variables. Never raises."""
        now, site = self.now, self._sites[number]
        now.result = now.first = None
        if self.watch is not None:
            self.watch(number, site.place, False)
        if site.excluded or self._somebody_elses is None or sys.gettrace() is not None:
            return
        if site.chosen is None:
            now.first = site.note_start(index, given, sys._getframe(1).f_globals)
        elif index == site.chosen:
            now.site, now.sample = site, None
            if site.compiled is None and self._session.background is None:
                with reach_the_user():  # the compiler may have to be loaded
                    self._serve(number, index, given, sys._getframe(1).f_globals)
            else:
                self._serve(number, index, given, sys._getframe(1).f_globals)

    def _serve(self, number: int, index: int, given: tuple[Any, ...], names: Any) -> None:
        now, site = self.now, self._sites[number]
        try:
            result = self._done(site, given, names)
            if result is not None:
                result.asked, now.result = (number, index), result
        except Exception as error:
            if is_of_a_handler(error):
                raise
            site.fail(error)
        self.compiled[number] |= site.compiled is not None
        now.started = self._machine.now()
        if self.watch is not None and now.result is not None:
            self.watch(number, site.place, True)

    def passed(self) -> None:
        """A variable of the step is not bound: the statements say so."""
        self.now.result = None

    def served(self, number: int, index: int) -> bool:
        """Whether the step was done that was asked for here; what the statements would have done is
        in the next answers. Asked where `now.result` is something, which it is no more."""
        now = self.now
        now.given, now.result = now.result, None
        return now.given is not None and now.given.asked == (number, index)

    def failed(self) -> bool:
        """Whether it raised."""
        return self._given().error is not None

    def has(self, name: str) -> bool:
        """Whether it bound a variable."""
        return name in self._given().bound

    def take(self, name: str) -> Any:
        """The value of a variable that it bound."""
        return self._given().bound.pop(name)

    def line(self) -> int:
        """The line where it raised."""
        return self._given().line

    def error(self) -> BaseException:
        """What it raised."""
        result, self.now.given = self._given(), None
        assert result.error is not None
        return result.error

    def left(self) -> int:
        """How it leaves the loop or the function."""
        return self._given().how

    def value(self) -> Any:
        """What it returns."""
        return self._given().value

    def leave(self, number: int) -> None:
        """The statements in place have run to their end."""
        if self.watch is not None:
            self.watch(number, self._sites[number].place, True)
        unseen = self._unseen[number]
        if unseen:
            self._unseen[number] = unseen - 1
            if unseen == 1:
                self._look(number)
            return
        now, site = self.now, self._sites[number]
        now.first = None
        if site.excluded or self._somebody_elses is None:
            return
        if site.chosen is None:
            self._choose(site, sys._getframe(1))
            self._look(number)
        elif now.site is site:
            now.site = None
            site.sampled += 1
            site.calls += 1
            site.seconds += self._machine.now() - now.started
            if now.sample is not None:
                now.sample()
            elif site.sampled > SAMPLED and site.compiled is None and self._session.background:
                self._look_away(number)

    def _look_away(self, number: int) -> None:
        """The next steps are not looked at, since that costs each some microseconds."""
        site = self._sites[number]
        steps = min(10000, int(SAMPLE_INTERVAL_S * site.calls / max(site.seconds, 1e-6)))
        if steps > 1:
            site.calls += steps
            site.seconds *= site.calls / (site.calls - steps)
            self._unseen[number], self.starts[number] = steps, 0

    def _look(self, number: int) -> None:
        site = self._sites[number]
        self.starts[number] = 0 if site.chosen is None else 1 << site.chosen

    # -- a step

    def _choose(self, site: StepSite, frame: Any) -> None:
        try:
            for module in site.choose(frame):
                self._claimed[id(module)] = weakref.ref(module), site
            background = self._session.background
            if background is not None and background.is_known_as_eager(site.place):
                site.exclude("it did not pay in earlier runs")
        except Exception as error:
            if is_of_a_handler(error):
                raise
            site.exclude(f"{type(error).__name__}: {error}")

    def _given(self) -> StepResult:
        result = self.now.given
        assert result is not None
        return result

    def _done(
        self, site: StepSite, given: tuple[Any, ...], names: dict[str, Any]
    ) -> StepResult | None:
        assert self._somebody_elses is not None
        if self._somebody_elses() or sys.modules["torch"].is_anomaly_enabled():
            return None
        if site.compiled is None:
            site.note_changes(given)
            if not self._is_due(site):
                return None
            site.compiled = self._session.compile_step(site.function(names), site.place)
            site.compiled.note_moving(site.moving_numbers, site.moving_arrays)
            site.entry = site.compiled
        elif site.compiled.is_eager():
            site.exclude("eager is as fast, or it cannot be captured")
            return None
        return site.run(given, self.now)

    def _is_due(self, site: StepSite) -> bool:
        background = self._session.background
        if background is None:
            return site.calls >= self._eager_calls
        return bool(background.wants(site.place, site.calls, site.seconds))

    def uses(self) -> Iterator[SiteUse]:
        """The steps that have run so far."""
        for site in self._sites:
            if site.chosen is not None and site.calls:
                entry = site.entry
                yield SiteUse(site.place, site.calls, site.seconds, entry, site.excluded)


class StepSite:
    """One step: where it begins, what was seen of it, and its compiled function."""

    def __init__(self, step: TrainingStep) -> None:
        self.step = step
        self.chosen: int | None = None
        self.excluded = False
        self.calls = self.sampled = 0
        self.seconds = 0.0
        self.compiled: Any = None
        self.entry: Any = None  # what it was compiled to, also where it is excluded by now
        self.cost = 0.0  # seconds of the longest call, which was recorded and compiled
        self._noted = 0
        self._numbers: dict[int, Any] = {}
        self._arrays: dict[int, bytes] = {}
        self.moving_numbers: set[int] = set()  # its variables that change from call to call
        self.moving_arrays: set[int] = set()
        self._clean: dict[int, tuple[Any, ...]] = {}  # starts without a history in what is given

    @property
    def start(self) -> Start:
        start = self.step.starts[self.chosen or 0]
        assert start is not None
        return start

    @property
    def place(self) -> str:
        """`train.py:12-19`."""
        first, last = self.start.lines
        return f"{os.path.basename(self.step.file)}:{first}-{last}"

    def exclude(self, why: str) -> None:
        """From now on the statements run in place, and modules are compiled for themselves."""
        log.debug("the training step at %s stays in eager: %s", self.step.file, why)
        self.excluded, self.compiled = True, None
        self._clean.clear()

    def fail(self, error: Exception) -> None:
        """It could not be compiled: said once."""
        why = f"{type(error).__name__}: {error}"
        message = f"the training step at {self.place} runs in eager: it cannot be compiled: {why}"
        diagnostics.warn_once("internal", message, self.place)
        self.exclude(why)

    def note_changes(self, given: tuple[Any, ...]) -> None:
        """Before it is compiled: which numbers, and which arrays of NumPy, change."""
        numbers = {at: one for at, one in enumerate(given) if type(one) in (int, float)}
        arrays = {at: one.tobytes() for at, one in enumerate(given) if _is_small_array(one)}
        self.moving_numbers |= _changed(self._numbers, numbers)
        self.moving_arrays |= _changed(self._arrays, arrays)
        self._numbers, self._arrays = numbers, arrays

    def note_start(
        self, index: int, given: tuple[Any, ...], names: dict[str, Any]
    ) -> StepSite | None:
        """The first time the step runs: whether it could begin here. None where it never came to
        its end."""
        self._noted += 1
        if self._noted > MAX_UNUSED_STARTS:
            self.exclude("it does not reach its end")
            return None
        start = self.step.starts[index]
        outer = [names[name] for name in start.outer if name in names] if start else []
        if not any(map(_has_history, (*given, *outer))):
            self._clean[index] = given
        return self

    def choose(self, frame: Any) -> list[Any]:
        """The first time the step has run, in `frame`: the last start of those that could be, with
        the clearing of gradients before it. Gives the modules that it uses."""
        if not self._clean:
            self.exclude("it differentiates tensors that were made before it")
            return []
        index = max(self._clean)
        while index - 1 in self._clean and _clears(self.step.starts[index - 1]):
            index -= 1
        given, self.chosen = self._clean[index], index
        self._clean.clear()
        modules = list(_modules((*given, *_globals_of(self.start.text, frame))))
        if any(type(module).__module__.startswith(WRAPPERS) for module in modules):
            self.exclude("a wrapper of torch.distributed does its work in hooks")
            return []
        return [] if self.step.only_updates else modules

    def function(self, names: dict[str, Any]) -> types.FunctionType:
        """The step as a function with the user's globals."""
        make: Any = public("step_function")
        return make(self.step, self.start, names)  # type: ignore[no-any-return]

    def run(self, given: tuple[Any, ...], now: _Now) -> StepResult | None:
        """Do the step; None where the statements shall run."""
        start = time.perf_counter()
        try:
            result = self.compiled(*given)
        except BaseException as error:
            return self._raised(error)
        finally:
            self.cost = max(self.cost, time.perf_counter() - start)
        if result is IN_PLACE:
            now.sample = self.compiled.sample()
            return None
        how, value, variables = result
        pairs = zip(self.start.back, variables, strict=bool(variables))
        bound = {name: one for name, one in pairs if not _is_unbound(one)}
        return StepResult(how, value, bound)

    def _raised(self, error: BaseException) -> StepResult:
        """The variables that were bound until then, and the line."""
        result = StepResult()
        result.error, result.line = error, self.start.lines[0]
        tb = error.__traceback__
        while tb is not None and not self._is_own(tb.tb_frame.f_code):
            tb = tb.tb_next
        if tb is not None:
            result.line, found = tb.tb_lineno, tb.tb_frame.f_locals
            kept = {name: found[name] for name in self.start.back if name in found}
            result.bound = {name: one for name, one in kept.items() if not _is_unbound(one)}
        result.error = error.with_traceback(tb.tb_next if tb is not None else None)
        return result

    def _is_own(self, code: types.CodeType) -> bool:
        step = self.step
        return (code.co_filename, code.co_firstlineno) == (step.file, self.start.first_line)


def _changed(before: dict[int, Any], now: dict[int, Any]) -> set[int]:
    return {at for at in before.keys() & now.keys() if before[at] != now[at]}


def _is_small_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and value.nbytes <= MAX_ARRAY_BYTES


def _clears(start: Start | None) -> bool:
    return start is not None and start.clears


def _is_unbound(value: Any) -> bool:
    return type(value) is str and value == NOT_BOUND


def _has_history(value: Any, depth: int = 2) -> bool:
    """Whether a tensor, also in a list or dict, was made of what gets a gradient."""
    if isinstance(value, list | tuple | dict) and depth:
        parts = list(value.values() if isinstance(value, dict) else value)[:MAX_CONTAINER_ELEMENTS]
        return any(_has_history(part, depth - 1) for part in parts)
    if isinstance(value, sys.modules["torch"].nn.Module):  # which may keep what its calls made
        kept = [each for each in vars(value).values() if isinstance(each, list)][
            :MAX_CONTAINER_ELEMENTS
        ]
        return any(_has_history(part) for part in kept)
    return getattr(value, "grad_fn", None) is not None if _is_tensor(value) else False


def _is_tensor(value: Any) -> bool:
    return isinstance(value, sys.modules["torch"].Tensor)


def _globals_of(text: str, frame: Any) -> Iterator[Any]:
    """What the names in a text mean at a frame."""
    known = frame.f_globals
    for name in set(_words(text)):
        if name in known:
            yield known[name]


def _words(text: str) -> list[str]:
    return "".join(each if each.isidentifier() or each.isdigit() else " " for each in text).split()


def _modules(values: tuple[Any, ...]) -> Iterator[Any]:
    """Modules among the values, and among their attributes."""
    kind = sys.modules["torch"].nn.Module
    for value in values:
        if isinstance(value, kind):
            yield value
        elif hasattr(value, "__dict__") and not isinstance(value, type | types.ModuleType):
            yield from (
                each
                for each in list(vars(value).values())[:MAX_CONTAINER_ELEMENTS]
                if isinstance(each, kind)
            )
