"""From a call with new guards to a compiled entry: the stage list, and the object that a compiled
function is."""

import functools
import threading
import time
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..lowering import joint
from ..lowering.aot_eager import aot_eager
from ..lowering.double_backward import Differentiable
from ..lowering.fakes import PacedFakeMode
from ..runtime import backends, report
from ..runtime.dispatch import Dispatcher
from ..runtime.errors import RecompileError, RecompileLimitError
from ..runtime.guard import Arg, GuardState, Kwarg, Obj
from ..runtime.options import Options
from . import catalogue, emit, stances
from .background import Background
from .capture import current, places
from .capture.moving import Moving
from .capture.recording import Recording, finish
from .capture.replay import Entry
from .capture.segments import Segment
from .capture.symbolic import Symbols
from .capture.trace import Recorder
from .forms import call_ops, known_calls
from .forms.operators import Forms
from .live_source import NotRewritable
from .switchover import State, Switchover

_recording_lock = threading.RLock()
_live: "weakref.WeakSet[CompiledFunction]" = weakref.WeakSet()
FAILURES_KEPT = 2


class Rewriter:
    """What the recorder needs of the rewriter: calls, rewritten functions, callbacks."""

    NotRewritable = NotRewritable
    call = staticmethod(call_ops.call)
    construct = staticmethod(call_ops.construct)
    is_rewritten = staticmethod(emit.is_rewritten)

    @staticmethod
    def rewrite(fn: types.FunctionType) -> types.FunctionType:
        return emit.rewrite(fn, Forms)

    @staticmethod
    def made_in_call(obj: Any) -> bool:
        """Whether a function is a closure or lambda that rewritten code made."""
        return isinstance(obj, types.FunctionType) and emit.is_rewritten(obj.__code__)

    @staticmethod
    def callback(rec: Recorder, fn: Any) -> Callable[..., Any]:
        """`fn` for C code that calls back: it runs as called from rewritten source."""
        return lambda *args, **kwargs: call_ops.call(rec, fn, args, kwargs)


places.use(emit.is_rewritten)


class CompiledFunction:
    """A function with its recordings. Calls try the entries' guards; one that none serves is
    recorded, in eager, and compiled at its end.

    `recordings`: what was captured, in order; a call that could not be captured is there with its
    sites and no segments.
    """

    def __init__(self, fn: Callable[..., Any], options: Options) -> None:
        self.fn, self.options = fn, options
        self.recordings: list[Recording | Failed] = []
        self.background: Background | None = None  # who builds, if not the call itself
        self.recompiles: list[str] = []  # why a call was recorded that entries did not serve
        self.switchovers: list[Switchover] = []
        self._stays_eager = self._called = False
        self._failures = 0
        self._limit_told = False
        self._moving = Moving()
        self._dispatcher = Dispatcher(self._record, options.recompile_limit)
        _tell_missing(options)
        _live.add(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        active = current.recorder()
        if active is not None:
            active.stop(
                catalogue.OPAQUE_CALL, "a compiled function is called by code that is not rewritten"
            )
        if stances.state.now.name == "force_eager":
            return self.fn(*args, **kwargs)
        if self._stays_eager and not self._dispatcher.entries:
            return self.fn(*args, **kwargs)
        return self._dispatcher(args, kwargs)

    def is_eager(self) -> bool:
        """Whether eager serves every call, and no recording is to come."""
        entries = self._dispatcher.entries
        tried = all(getattr(entry, "state", None) is State.EAGER for entry in entries)
        return tried and (self._stays_eager or bool(entries))

    def reset(self) -> None:
        """Forget every recording."""
        self._dispatcher.clear()
        self.recordings.clear()
        self._stays_eager, self._failures, self._limit_told = False, 0, False
        self._moving.clear()

    def _record(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Serve the call in eager while recording it; at its end, compile."""
        if (
            self._stays_eager
            or self._stance_forbids()
            or (self.background is not None and not self.background.may_record())
            or self._at_limit(args, kwargs)
            or not _recording_lock.acquire(blocking=False)
        ):
            return self.fn(*args, **kwargs)
        start = time.perf_counter()
        try:
            return self._recorded(args, kwargs)
        finally:
            _recording_lock.release()
            if self.background is not None:
                self.background.recorded(time.perf_counter() - start)

    def _stance_forbids(self) -> bool:
        """Whether `set_stance` asks for eager here. Raises RecompileError if it asks for that."""
        stance = stances.state.now.name
        if stance == "fail_on_recompile":
            name = getattr(self.fn, "__qualname__", repr(self.fn))
            raise RecompileError(f"{name} would be recorded under the stance 'fail_on_recompile'")
        first, self._called = not self._called, True
        return stance == "eager_on_recompile" or (first and stance.endswith("eager_then_compile"))

    def _at_limit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if len(self._dispatcher.entries) < self.options.recompile_limit:
            return False
        if self._limit_told and not self.options.fullgraph:
            return True
        self._limit_told = True
        name = getattr(self.fn, "__qualname__", repr(self.fn))
        why = "; ".join(str(failure) for failure in self._dispatcher.explain_miss(args, kwargs)[:2])
        message = (
            f"{name} was compiled {self.options.recompile_limit} times (recompile_limit); new"
            f" variants run in eager. Last: {why}"
        )
        if self.options.fullgraph:
            raise RecompileLimitError(message)
        report.warn_once("recompile_limit", message, name)
        return True

    def _recorded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        start = time.perf_counter()
        self._note_moving(args, kwargs)
        ambient = GuardState.now()
        recorder = Recorder(self.options, Rewriter, self._moving)
        try:
            result = self._run(recorder, args, kwargs)
        except Exception as error:
            recorder.strip(error)
            self._raised()
            raise
        if recorder.failure is not None:
            raise recorder.failure
        recording = self._finished(recorder, result, args, kwargs, ambient)
        result = recorder.strip(result)
        if recording is None:
            self._failed(recorder)
            return result
        recording.compile_times["capture"] = time.perf_counter() - start
        if self.background is None:
            self._compile(recording)
        else:
            self._compile_beside(recording, self.background)
        return result

    def _run(self, recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = current.install(recorder)
        try:
            with recorder:
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
        given = tuple(recorder.known.loaded(value, Arg(i)) for i, value in enumerate(args))
        named = {name: recorder.known.loaded(value, Kwarg(name)) for name, value in kwargs.items()}
        return call_ops.call_root(recorder, self.fn, given, named)

    def _note_moving(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Numbers and sizes that an entry took for constants and that are others now: the next
        recording traces them."""
        failures = self._dispatcher.explain_miss(args, kwargs)
        if self._dispatcher.entries:
            self.recompiles += [str(failure) for failure in failures[:1]] or ["another outcome"]
        for failure in failures:
            self._moving.note_number(failure.guard)
        self._moving.left = self.options.recompile_limit - len(self._dispatcher.entries)
        for recording in self._captured():
            self._moving.note_sizes(recording.guards, args, kwargs)

    def _captured(self) -> list[Recording]:
        return [recording for recording in self.recordings if isinstance(recording, Recording)]

    def _finished(
        self,
        recorder: Recorder,
        result: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        ambient: Any,
    ) -> Recording | None:
        try:
            return (
                finish(recorder, result, len(args), tuple(kwargs), ambient)
                if recorder.active
                else None
            )
        except Exception as error:
            self._internal(error, "finishing the recording")
            return None

    def _raised(self) -> None:
        """The user's own error: nothing to compile. A function that raises again and again is not
        recorded for ever."""
        self._failures += 1
        self._stays_eager = self._failures >= 4 * FAILURES_KEPT

    def _failed(self, recorder: Recorder) -> None:
        """This call ran in eager. The next may be recordable (lazy initialisation); after a few the
        function stays eager."""
        self._failures += 1
        sites = (*recorder.sites, *((recorder.stopped,) if recorder.stopped else ()))
        self.recordings.append(Failed(sites))
        if recorder.stopped is not None:
            name = getattr(self.fn, "__qualname__", repr(self.fn))
            report.warn_once(
                "stopped",
                f"{name} runs in eager: {recorder.stopped}",
                f"{recorder.stopped.file}:{recorder.stopped.line}",
            )
        self._stays_eager = self._failures >= FAILURES_KEPT

    def _compile(self, recording: Recording) -> None:
        self.recordings.append(recording)
        entry = self._entry(recording)
        if entry is not None:
            self._dispatcher.add(entry)

    def _compile_beside(self, recording: Recording, background: Background) -> None:
        """Eager serves the calls of this recording until it is compiled, and after, if it is
        faster."""
        self.recordings.append(recording)
        name = getattr(self.fn, "__qualname__", repr(self.fn))
        switchover = Switchover(recording, self.fn, background, name)
        self.switchovers.append(switchover)
        self._dispatcher.add(switchover)

        def build() -> None:
            entry = self._entry(recording)
            if entry is None:
                switchover.give_up()
            else:
                switchover.ready(entry)

        background.build(build)

    def _entry(self, recording: Recording) -> Entry | None:
        """The recording with its compiled segments; None, and a message, if that failed."""
        start = time.perf_counter()
        try:
            programs = self._programs(recording)
        except Exception as error:
            self._internal(error, "compiling")
            self.recordings[self.recordings.index(recording)] = Failed(recording.sites)
            return None
        recording.compile_times["backend"] = time.perf_counter() - start
        entry = Entry(recording, programs, self.fn)
        for program in programs:
            inner = program.program if isinstance(program, _Foreign) else program
            if isinstance(inner, Differentiable):
                inner.when_seen = functools.partial(self._double_backward, entry)
        return entry

    def _double_backward(self, entry: Entry) -> None:
        """A gradient through this entry is differentiated: from now on its calls run in eager."""
        entry.stays_eager = True
        name = getattr(self.fn, "__qualname__", repr(self.fn))
        report.warn_once(
            "double-backward",
            f"{name} runs in eager where its gradients are differentiated (create_graph=True)",
            name,
        )

    def _programs(self, recording: Recording) -> tuple[Callable[..., Any], ...]:
        """The compiled segments. A recording whose sizes cannot be symbols stands for one size."""
        if recording.symbols is not None:
            try:
                return self._symbolic(recording, recording.symbols)
            except Exception as error:
                report.log.debug(
                    "%s is compiled for one size: %s", getattr(self.fn, "__qualname__", ""), error
                )
                self._moving.fix(recording.guard_set.inputs, recording.symbols.dynamic)
                recording.make_static()
        options = stances.state.now.options(self.options)
        return tuple(compile_segment(segment, options) for segment in recording.segments)

    def _symbolic(self, recording: Recording, symbols: Symbols) -> tuple[Callable[..., Any], ...]:
        recording.outcomes = tuple(symbols.analyse(recording.segments, recording.outcomes))
        for other in self._captured():
            if other is not recording and recording.reads_same(other):
                symbols.check_against(other.segments, recording.segments)
        programs = tuple(
            compile_segment(
                segment, stances.state.now.options(self.options), symbols.examples(number, segment)
            )
            for number, segment in enumerate(recording.segments)
        )
        symbols.close()
        self._moving.fix(recording.guard_set.inputs, symbols.settled_dims())
        return programs

    def _internal(self, error: Exception, doing: str) -> None:
        if self.options.strict:
            raise error
        self._stays_eager = True
        name = getattr(self.fn, "__qualname__", repr(self.fn))
        report.log.debug("%s of %s failed", doing, name, exc_info=error)
        report.warn_once(
            "internal",
            f"{name} runs in eager: {doing} failed: {type(error).__name__}: {error}",
            name,
        )


def _tell_missing(options: Options) -> None:
    """What was asked for and is not there is said, once."""
    if options.cudagraphs:
        report.warn_once(
            "cudagraphs", "CUDA graphs are not used yet: kernels are launched one by one"
        )


class Failed:
    """A call that was not captured: its sites, and nothing else."""

    segments: tuple[Segment, ...] = ()
    guards: tuple[Any, ...] = ()
    graphs: tuple[Any, ...] = ()

    def __init__(self, sites: tuple[catalogue.Site, ...]) -> None:
        self.sites = sites
        self.compile_times: dict[str, float] = {}


def compile_segment(
    segment: Segment, options: Options, example_inputs: list[Any] | None = None
) -> Callable[..., Any]:
    """The callable of one segment, by the chosen backend; one with data-dependent shapes runs as it
    is."""
    if segment.eager or not segment.ops:
        return segment.module
    if example_inputs is None:
        with torch.inference_mode(False), PacedFakeMode(allow_non_fake_inputs=True):
            example_inputs = [meta.fake() for meta in segment.metas]
    program = backends.lookup(options.backend)(segment.module, example_inputs, options)
    if options.backend == "eager":
        return _Foreign(program)
    program = Differentiable(program, segment.module, segment.random)
    return program if options.backend in ("native", "aot_eager") else _Foreign(program)


class _Foreign:
    """A program of another backend: it may write its inputs before it raises, so a call that fails
    is not redone."""

    may_write_first = True

    def __init__(self, program: Callable[..., Any]) -> None:
        self.program = program

    def __call__(self, *tensors: Any) -> Any:
        return self.program(*tensors)


def _eager_backend(
    gm: torch.fx.GraphModule, example_inputs: Any, options: Options
) -> Callable[..., Any]:
    return gm


backends.register_builtin("native", joint.compile_graph)
backends.register_builtin("aot_eager", aot_eager)
backends.register_builtin("eager", _eager_backend)


def make_compiled(fn: Callable[..., Any], options: Options) -> CompiledFunction:
    """A compiled function over `fn`, a Python function that takes everything as arguments."""
    return CompiledFunction(fn, options)


def reset_all() -> None:
    """Forget every recording of every compiled function."""
    for compiled in list(_live):
        compiled.reset()


def graph_break() -> None:
    """End the current segment of the recording at work, if any."""
    recorder = current.recorder()
    if recorder is not None:
        recorder.breaks(catalogue.EXPLICIT, "")
        recorder.cut()


def disable(fn: Any) -> Any:
    """Keep calls of `fn` out of every recording."""
    known_calls.DISABLED.add(fn)
    return fn


def allow_in_graph(fn: Any) -> Any:
    """Record a call of `fn` as one node, without looking inside."""
    known_calls.INLINED.add(fn)
    return fn
