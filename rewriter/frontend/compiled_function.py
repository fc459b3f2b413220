"""From a call with new guards to a compiled entry: the stage list, and the object that a compiled
function is."""

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from ...lowering import stored_graphs
from ...lowering.autograd.double_backward import Differentiable
from ...lowering.stored_recordings import Loaded, StoredRecording, StoredRecordings
from ...runtime import diagnostics
from ...runtime.background_budget import exclusive
from ...runtime.environment.supported_torch import warn_if_untested
from ...runtime.errors import BuildError, GraphBreakError
from ...runtime.guards.guard import Arg, GuardState, Kwarg, Obj, Path, is_transformed, is_watched
from ...runtime.options import Options
from ...runtime.programs.dispatch import Dispatcher
from ...runtime.programs.entry import CacheEntry
from ...runtime.signals import code_of_the_user, reach_the_user
from ...runtime.warning_filters import suppress_warnings
from .. import catalogue
from ..capture import current, lookahead, places, uncapturable
from ..capture.dynamic_inputs import DynamicInputs
from ..capture.numbers import traced_arrays
from ..capture.numbers.symbolic import RecordedSymbols
from ..capture.recording import Failed, Recording, finish
from ..capture.repeatable import Again, Generators
from ..capture.trace import Recorder
from ..graph_breaks import split_function
from ..graph_breaks.split_benchmark import PartTrial, SplitTrial, is_dropped
from ..instrument import emit
from ..tracing_ops.calls import call_ops
from . import compile_logs, recording_store, segment_programs, stances
from .background import Background
from .compiled_versions import Variants, forget_places
from .deferred_compile import Deferred, guards_already_stale
from .first_calls import FirstCall
from .inliner import Inliner
from .module_class import awaits_shapes
from .retrace import Attempt, Changed, Rerecordings
from .segment_programs import ForeignProgram, ask_ahead, compile_segment, timed
from .switchover import ServingState, Switchover, are_all, stay_eager
from .thread_modes import under_modes_of_caller
from .warning_origins import named

_live: "weakref.WeakSet[CompiledFunction]" = weakref.WeakSet()
watchers: list[Callable[["CompiledFunction"], None]] = []
"""Who is told of each compiled function; its parts are reached from it."""

_recording_lock = threading.RLock()
FAILURES_KEPT = 2
MORE_VARIANTS = 4  # times as many of a part as of a function


def _loaded(recorder: Recorder, value: Any, path: Path) -> Any:
    """An argument of the call."""
    given = recorder.known.loaded(value, path)
    captures = recorder.options.capture_numpy
    return traced_arrays.of_argument(recorder, given) if captures else given


class CompiledFunction:
    """A function with its recordings. Calls try the entries' guards; one that none serves is
    recorded, in eager, and compiled at its end.

    `recordings`: what was captured, in order; a call that could not be captured is there with its
    sites and no segments.
    """

    switchover_kind = Switchover
    may_be_cut = True  # where it breaks
    seconds_to_reach = 0.0  # of a call, before this is called, where eager would serve

    def __init__(
        self,
        fn: Callable[..., Any],
        options: Options,
        family: "split_function.SplitGroup | None" = None,
        depth: int = 0,
    ) -> None:
        warn_if_untested()
        self.fn, self.options, self.name = fn, options, getattr(fn, "__qualname__", repr(fn))
        self.eager = fn  # what serves a call that is neither compiled nor recorded
        self._family, self._depth = family, depth
        self._opened: Callable[..., Any] | None = None
        self.recordings: list[Recording | Failed | StoredRecording] = []
        self.background: Background | None = None  # who builds, if not the call itself
        self.recompiles: list[str] = []  # why a call was recorded that entries did not serve
        self.switchovers: list[Switchover] = []
        self._stays_eager = self._called = self._in_one = False
        self._failures = self._missed = 0
        self.stopped_at: tuple[places.Reached, ...] | None = None  # of the last failed recording
        self.beside: places.Reached | None = None  # of a part: the break before or behind it
        self.moving = DynamicInputs()
        self._rerecordings = Rerecordings(self.name)
        self._first = FirstCall(fn, options)
        self._stored = None if family is not None else StoredRecordings(fn, options)
        most = options.recompile_limit // (1 if family is None else MORE_VARIANTS)
        self._variants = Variants(self.name, options, most)
        self._dispatcher = Dispatcher(self._record, options.recompile_limit)
        _live.add(self)
        for watch in watchers if family is None else ():
            watch(self)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        active = current.recorder()
        if active is not None:
            why = "a compiled function is called from code that is not traced"
            active.stop(catalogue.OPAQUE_CALL, why)
        if stances.state.now.name == "force_eager" or is_watched():
            return self.eager(*args, **kwargs)
        if self._stays_eager and not self._dispatcher.entries:
            return self._uncaptured(args, kwargs)
        if current.family() is None:
            return self._served(args, kwargs)
        before = current.open_family(None)
        try:
            return self._served(args, kwargs)
        finally:
            current.open_family(before)

    def _served(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """By an entry, or by a recording; anew where patterns changed the functions for such a
        call."""
        if self.background is not None and are_all(self._dispatcher.entries, ServingState.WAITING):
            return self.eager(*args, **kwargs)  # guards need not be asked
        due = self._rerecordings
        changed = due.changed_for(args, kwargs) if due.due else None
        if changed is not None:
            return self._record(args, kwargs, changed)
        if self._dispatcher.resting and self._may_rest():
            self._dispatcher.resting -= 1
            return self.fn(*args, **kwargs)
        return self._dispatcher(args, kwargs)

    def _may_rest(self) -> bool:
        """Whether eager may serve a call that an entry might serve."""
        return not self.options.fullgraph and stances.state.now.name == "default"

    def _uncaptured(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """In eager; in parts, if the function could be cut where it breaks."""
        return (self._opened or self.eager)(*args, **kwargs)

    def entry_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CacheEntry | None:
        """The compiled entry whose guards, and relations between sizes, hold for such a call."""
        compiled = (one for one in self._dispatcher.entries if isinstance(one, CacheEntry))
        return next((one for one in compiled if one.serves(args, kwargs)), None)

    @property
    def parts(self) -> tuple["CompiledFunction", ...]:
        """Itself, and what it calls since it runs in parts."""
        return (self, *getattr(self._opened, "members", ()))

    @property
    def all_recordings(self) -> list[Any]:
        """Its own, and those of its parts."""
        return [made for each in self.parts for made in each.recordings]

    def is_eager(self) -> bool:
        """Whether eager serves every call, and no recording is to come."""
        entries = self._dispatcher.entries
        tried = stay_eager(entries) if entries else self._stays_eager
        return tried and (self._opened is None or is_dropped(self._opened))

    def reset(self) -> None:
        """Forget every recording."""
        self._stays_eager, self._failures, self._opened = False, 0, None
        known: Any = self._dispatcher, self.recordings, self._variants, self.moving
        for each in (*known, self._rerecordings):
            each.clear()

    def _record(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], changed: Changed | None = None
    ) -> Any:
        """Serve the call in eager while recording it; at its end, compile. `changed`: functions
        that patterns rewrote, after an earlier recording."""
        if self._stays_eager:
            return self._uncaptured(args, kwargs)
        if changed is None and self._take_stored(args, kwargs):
            return self._dispatcher(args, kwargs)
        first, self._called = not self._called, True
        if (
            stances.forbid_recording(self.name, first, lambda: self._why_missed(args, kwargs))
            or awaits_shapes(args)
            or is_transformed()
            or (self.background is not None and not self._pays(self.background))
            or (self._is_alone() and self._first.is_wasted())
            or self._variants.at_limit(self._dispatcher, self.recordings, args, kwargs)
            or not self._begin_alone()
        ):
            return self.eager(*args, **kwargs)
        start = time.perf_counter()
        try:
            with reach_the_user():
                return self._recorded(args, kwargs, changed)
        finally:
            _recording_lock.release()
            if self.background is not None:
                exclusive.release()
                self.background.recorded(time.perf_counter() - start)

    def _take_stored(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether an earlier process recorded such a call: its entry serves from now on."""
        if self._stored is None or not self._may_be_stored():
            return False
        found = self._stored.load(args, kwargs, self.eager)
        if found is not None:
            self.take_over(self._stored, [found])
        return found is not None

    def take_over(self, stored: StoredRecordings, found: Iterable[Loaded]) -> None:
        """Calls are served by what was loaded, too."""
        self._stored = stored
        for recording, entry in found:
            self.recordings.append(recording)
            self._when_differentiated(entry)
            self._dispatcher.add(entry)
            self._called = True

    def _may_be_stored(self) -> bool:
        """Whether nothing but calls is asked for: who watches what is recorded or compiled is to
        see it in each process."""
        watched = (watchers, emit.watchers, stored_graphs.watchers, *segment_programs.watchers())
        return (
            os.environ.get("DYNFIX_STORED_RECORDINGS", "1") != "0"
            and self.background is None
            and not any(watched)
            and not compile_logs.shown()
            and stances.state.now == stances.Stance()
            and len(self._dispatcher.entries) < self.options.recompile_limit
            and not is_transformed()
        )

    def _begin_alone(self) -> bool:
        """Whether nobody else records; nor compiles in the background, where this one may wait."""
        if not _recording_lock.acquire(blocking=False):
            return False
        if self.background is None or exclusive.acquire(blocking=False):
            return True
        _recording_lock.release()
        return False

    def _pays(self, background: Background) -> bool:
        """Whether a call may be recorded now. Where others are served already, not before those
        that are not have taken so long that one more recording is worth it: the last batch of an
        epoch is not."""
        if self.recordings:
            self._missed += 1
            seconds = max((each.eager_seconds for each in self.switchovers), default=0.0)
            if not background.pays(self._missed, seconds):
                return False
        return background.may_record()

    def _is_alone(self) -> bool:
        return self.background is None and self._family is None

    def _recorded(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], changed: Changed | None
    ) -> Any:
        start, ambient, generators = time.perf_counter(), GuardState.now(), Generators()
        self._missed = 0
        self._note_moving(args, kwargs)
        recorder = self._recorder(changed, args)
        try:
            with code_of_the_user():
                result = self._run(recorder, args, kwargs)
        except Exception as error:
            recorder.strip(error)
            if recorder.failure_raised and recorder.failure is not None:
                raise recorder.failure from None  # code of the user's may have caught it
            self._raised()
            raise
        recording = self._finished(recorder, result, args, kwargs, ambient)
        result = recorder.strip(result)
        if recorder.failure is not None:
            raise recorder.failure
        attempt = self._attempt(args, kwargs, ambient, generators.again(recorder))
        if changed is not None:
            recording = self._rerecordings.of_due(changed, recorder, recording, result, attempt)
        elif recording is None:
            self._failed(recorder)
        else:
            recording = self._bettered(recorder, recording, result, attempt)
            if recording is None or self._is_one_of_many(recorder, recording):
                return result
        if recording is not None:
            recording.compile_times["capture"] = time.perf_counter() - start
            self._compile(recording, args, kwargs)
        if self._is_alone() and lookahead.is_worth(recorder, recording, args, kwargs):
            self._look_ahead(args, kwargs, generators.again(recorder))
        return result

    def _look_ahead(self, args: Any, kwargs: Any, again: Again) -> None:
        """Record what such a call does from now on, unless that would be noticed."""
        ambient = GuardState.now()
        recorder: Any = self._recorder(None, args, lookahead.AheadRecorder)
        try:
            with again(), lookahead.unnoticed(recorder):
                result = self._run(recorder, args, kwargs)
                recording = self._finished(recorder, result, args, kwargs, ambient)
                result = recorder.strip(result)
            attempt = self._attempt(args, kwargs, ambient, again)
            better = recording and self._bettered(recorder, recording, result, attempt)
            if better is not None:
                self._compile(better, args, kwargs)
        except (Exception, lookahead.Abandoned) as error:
            diagnostics.log.debug("the next call is not recorded ahead: %r", error)

    def _recorder(
        self, changed: Changed | None, args: tuple[Any, ...], kind: type[Recorder] = Recorder
    ) -> Recorder:
        rewriter = Inliner if changed is None else changed.rewriter(Inliner)
        recorder = kind(self.options, rewriter, self.moving)
        recorder.home = places.definition_of(self.fn, args)
        if self._in_one:
            recorder.bucket = None
        if changed is not None:
            recorder.rewritings = changed.looks(recorder)
        return recorder

    def _bettered(
        self, recorder: Recorder, recording: Recording, result: Any, attempt: Attempt
    ) -> Recording | None:
        """The recording, or a better one that patterns made; None where none serves later calls.
        Raises under `fullgraph=True` where it breaks, unless the next call may not."""
        made = self._rerecordings.better(recorder, recording, result, attempt)
        better = made or recording
        delayed = recording in (each for each, _ in self._rerecordings.due)
        if self.options.fullgraph and better.sites and not delayed:
            raise GraphBreakError(f"fullgraph=True, but the graph breaks here:\n{better.sites[0]}")
        if made is not None or recorder.unfit is None:
            return better
        if delayed:
            self.recordings.append(Failed(recording.sites))
        else:
            self._failed(recorder)
        return None

    def _attempt(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], ambient: Any, again: Again
    ) -> Attempt:
        """The call once more."""

        def attempt(changed: Changed) -> tuple[Recorder, Recording | None, Any]:
            recorder = self._recorder(changed, args)
            with again(), suppress_warnings():
                other = self._run(recorder, args, kwargs)
            recording = self._finished(recorder, other, args, kwargs, ambient)
            return recorder, recording, recorder.strip(other)

        return attempt

    def _run(self, recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = current.install(recorder)
        try:
            with recorder, named():
                return recorder.safely(
                    lambda: self._traced_call(recorder, args, kwargs),
                    lambda: self.fn(*args, **kwargs),
                )
        finally:
            current.install(before)

    def _traced_call(
        self, recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        recorder.known.register(self.fn, Obj(self.fn, getattr(self.fn, "__qualname__", "fn")))
        loaded = functools.partial(_loaded, recorder)
        given = tuple(loaded(value, Arg(i)) for i, value in enumerate(args))
        named = {name: loaded(value, Kwarg(name)) for name, value in kwargs.items()}
        return call_ops.call_root(recorder, self.fn, given, named)

    def _why_missed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The guard that did not hold, with the line that relies on it."""
        failures = self._dispatcher.explain_miss(args, kwargs)
        seen = "another outcome" if self._dispatcher.entries else "no call was recorded"
        return str(failures[0]) if failures else seen

    def _note_moving(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Numbers and sizes that an entry took for constants and that are others now: the next
        recording traces them."""
        failures = self._dispatcher.explain_miss(args, kwargs)
        if self._dispatcher.entries:
            why = self._why_missed(args, kwargs)
            self.recompiles.append(why)
            compile_logs.recompiles(self.name, why)
        waiting = self._rerecordings.unfit(self.recordings)
        failures += [f for each in waiting if (f := each.guard_set.explain(args, kwargs))]
        for failure in failures:
            self.moving.note_number(failure.guard)
        for recording in (*self._captured(StoredRecording), *self._captured(), *waiting):
            self.moving.note_floats(recording.guards, args, kwargs)
            self.moving.note_counters(recording.guards, args, kwargs)
            self.moving.note_sizes(recording.guards, args, kwargs)
            self.moving.note_arrays(recording.guards, args, kwargs)

    def _captured(self, kind: type[Any] = Recording) -> list[Any]:
        return [recording for recording in self.recordings if isinstance(recording, kind)]

    @suppress_warnings()
    def _finished(
        self, recorder: Recorder, result: Any, args: Any, kwargs: Any, ambient: Any
    ) -> Recording | None:
        try:
            if not recorder.active:
                return None
            return finish(recorder, result, len(args), tuple(kwargs), ambient)
        except GraphBreakError:  # under fullgraph=True
            raise
        except Exception as error:
            self._internal(error, "finishing the recording")
            return None

    def _raised(self) -> None:
        """The user's own error: nothing to compile. A function that raises again and again is not
        recorded for ever."""
        self._failures += 1
        self._stays_eager = self._failures >= 4 * FAILURES_KEPT

    def _failed(self, recorder: Recorder) -> None:
        """This call ran in eager. After a few, the function is cut where the recording ended."""
        if recorder.parted and not self._in_one:
            self._in_one = True  # it may be that alone which ended the recording
            return
        self._failures += 1
        self.stopped_at = recorder.stopped_at
        stopped = recorder.stopped or recorder.unfit
        sites = (*recorder.sites, *filter(None, [stopped]))
        self.recordings.append(Failed(sites))
        compile_logs.breaks(self.name, sites)
        if stopped is not None:
            self.tell(stopped)
        enough = self._failures >= FAILURES_KEPT or self._family is not None
        if enough and not self._stays_eager:
            self._stays_eager = True
            if recorder.cuttable and self.may_be_cut:
                self._cut(recorder.stopped_at)

    def tell(self, site: catalogue.BreakSite) -> None:
        """Say that a recording ended at `site`; not in the middle of a run that goes on as well
        without, whose summary does so."""
        if self.background is not None:
            diagnostics.log.debug("%s is not one graph: %s", self.name, site)
            return
        if site.reason is not catalogue.PARALLEL_UNIT:  # about which nothing is to be done
            message = f"{self.name} is not one graph: {site}"
            place = site.file, site.line
            diagnostics.warn_once("stopped", message, f"{site.file}:{site.line}", place)

    def _is_one_of_many(self, recorder: Recorder, recording: Recording) -> bool:
        """Whether no entry is made of a recording, since ever more would follow."""
        waits, decision = self._variants.waits(recording), self._variants.cut(recorder, recording)
        if waits:
            self.recordings.append(recording)
        elif decision is not None:
            self.recordings.append(Failed((*recorder.sites, decision.site)))
            self.tell(decision.site)
            self._dispatcher.clear()
            self._stays_eager = True
            if recorder.cuttable and self.may_be_cut:
                self._cut(decision.reached)
        return waits or decision is not None

    def open(self) -> None:
        """Run as it is from the first call on; what it calls is compiled."""
        self._depth = split_function.DEEPEST
        self.cut_at(None, split_function.SplitGroup(self._member, CompiledFunction))

    def _cut(self, stopped_at: tuple[places.Reached, ...]) -> None:
        """From now on the function runs in parts."""
        family = self._family or split_function.SplitGroup(self._member, CompiledFunction)
        self.stopped_at = stopped_at
        family.note(stopped_at)
        self.cut_at(split_function.place_in(self.fn, stopped_at), family)

    def _member(
        self, fn: Callable[..., Any], family: "split_function.SplitGroup", depth: int
    ) -> "CompiledFunction":
        """A part, or a callee. A part in a loop meets every layer: it may have more variants."""
        limit = MORE_VARIANTS * self.options.recompile_limit
        options = self.options.replace(recompile_limit=limit)
        member = CompiledFunction(fn, options, family, depth)
        member.background = self.background
        return member

    def cut_at(self, place: places.Reached | None, family: "split_function.SplitGroup") -> None:
        """Run in parts, cut at `place`, or in halves where it is not known."""
        self._stays_eager = True
        try:
            self._opened = split_function.split(self.fn, place, family, self._depth)
        except Exception as error:
            self._internal(error, "cutting the function")
        if self._opened is not None and self.background is not None and self._family is None:
            self._opened = SplitTrial(
                self._opened, self.eager, self.background, family.members, self.name
            )
            self.switchovers.append(self._opened)

    def _compile(self, recording: Recording, args: Any, kwargs: Any) -> None:
        self.recordings.append(recording)
        compile_logs.breaks(self.name, recording.sites)
        compile_logs.guards(self.name, recording.guards)
        if self.background is not None:
            self._compile_in_background(recording, self.background)
        elif self.options.backend == "native" and guards_already_stale(recording, args, kwargs):
            self._dispatcher.add(Deferred(recording, self._entry, self._dispatcher, self.eager))
            self._first.outlived(self.recordings)
        elif (entry := self._entry(recording)) is not None:
            self._dispatcher.add(entry)
            self._first.served(self.recordings, self.moving)
            key = None if self._stored is None else self._stored.key
            if self._stored is not None and key is not None and self._may_be_stored():
                recording_store.store(self._stored, key, self.fn, recording, entry)

    def _compile_in_background(self, recording: Recording, background: Background) -> None:
        """Eager serves the calls of this recording until it is compiled, and after, if it is
        faster."""
        judge = background if self._family is None else PartTrial(background)
        switchover = self.switchover_kind(recording, self.eager, judge, self.name)
        switchover.overhead = self.seconds_to_reach
        self.switchovers.append(switchover)
        self._dispatcher.add(switchover)

        def ask() -> None:
            if recording.symbols is None:
                ask_ahead(recording.segments, stances.state.now.options(self.options))

        def build() -> None:
            entry = self._entry(recording)
            if entry is None:
                switchover.give_up()
            else:
                switchover.ready(entry)

        background.build(under_modes_of_caller(build), under_modes_of_caller(ask))

    @reach_the_user()
    def _entry(self, recording: Recording) -> CacheEntry | None:
        """The recording with its compiled segments; None, and a message, if that failed."""
        start = time.perf_counter()
        try:
            programs = self._programs(recording)
            entry = recording.entry(timed(recording.segments, programs), self.eager)
        except Exception as error:
            # what cannot be built is no operator's fault
            final = self.options.fullgraph or isinstance(error, BuildError)
            if final or not uncapturable.mark_uncapturable(self.moving.apart, recording):
                self._internal(error, "compiling")
            self.recordings[self.recordings.index(recording)] = Failed(recording.sites)
            return None
        recording.compile_times["backend"] = time.perf_counter() - start
        self._when_differentiated(entry)
        return entry

    def _when_differentiated(self, entry: CacheEntry) -> None:
        for step in entry.plan.steps:
            program: Any = step.program
            inner = program.program if isinstance(program, ForeignProgram) else program
            if isinstance(inner, Differentiable):
                inner.when_seen = functools.partial(self.double_backward, entry)

    def double_backward(self, entry: CacheEntry) -> None:
        """A gradient through this entry is differentiated: from now on its calls run in eager."""
        entry.stays_eager = True
        why = (
            f"{self.name} runs in eager where its gradients are differentiated (create_graph=True)"
        )
        diagnostics.warn_once("double-backward", why, self.name)

    def _programs(self, recording: Recording) -> tuple[Callable[..., Any], ...]:
        """The compiled segments. A recording whose sizes cannot be symbols stands for one size."""
        if recording.symbols is not None:
            try:
                return self._symbolic(recording, recording.symbols)
            except Exception as error:
                diagnostics.log.debug("%s is compiled for one size: %s", self.name, error)
                self.moving.fix(recording.guard_set.inputs, recording.symbols.dynamic)
                recording.make_static()
        options = stances.state.now.options(self.options)
        segments = recording.segments
        ask_ahead(segments, options)
        return tuple(compile_segment(segment, options, None, segments) for segment in segments)

    def _symbolic(
        self, recording: Recording, symbols: RecordedSymbols
    ) -> tuple[Callable[..., Any], ...]:
        recording.outcomes = tuple(symbols.analyse(recording.segments, recording.outcomes))
        for other in self._captured():
            if other is not recording and recording.reads_same(other):
                symbols.check_against(other.segments, recording.segments)
        options, segments = stances.state.now.options(self.options), recording.segments
        programs = tuple(
            compile_segment(segment, options, symbols.examples(number, segment), segments)
            for number, segment in enumerate(segments)
        )
        symbols.close()
        self.moving.fix(recording.guard_set.inputs, symbols.settled_dims())
        return programs

    def _internal(self, error: Exception, doing: str) -> None:
        if self.options.strict:
            raise error
        self._stays_eager = True
        if self.options.fullgraph:
            raise GraphBreakError(f"fullgraph=True, but {doing} failed: {error}") from error
        diagnostics.log.debug("%s of %s failed", doing, self.name, exc_info=error)
        why = f"{self.name} runs in eager: {doing} failed: {type(error).__name__}: {error}"
        diagnostics.warn_once("internal", why, self.name)


def reset_all() -> None:
    """Forget every recording of every compiled function."""
    for compiled in list(_live):
        compiled.reset()
    forget_places()
