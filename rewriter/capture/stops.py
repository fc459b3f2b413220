"""How a recording ends: places in the user's code, stops, breaks, faults of the recorder itself."""

import collections
import contextlib
import dataclasses
import itertools
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from ...runtime.errors import GraphBreakError
from ...runtime.options import Options
from ...runtime.signals import is_of_a_handler
from .. import catalogue
from . import current, deep_calls
from .places import Reached, place_of, reached_lines
from .rewrites.branch_rewrites import Rewritings
from .values import TracedTensor

_T = TypeVar("_T")


class RecordingStopped(Exception):
    """Raised inside the recorder alone: the recording has ended, the operator at hand runs
    plainly."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """Where Python depends on a number, or the rest of the call on a shape, of which each value is
    another recording."""

    site: catalogue.BreakSite
    reached: tuple[Reached, ...]
    value: Any = None

    @property
    def at(self) -> tuple[str, int]:
        """File and line."""
        return self.site.file, self.site.line


@dataclasses.dataclass(slots=True)
class _Steps:
    """What the steps of one operator gave that are done for real, in order; `again`: of an operator
    that failed behind them, which goes on from there."""

    again: "collections.deque[Any]" = dataclasses.field(default_factory=collections.deque)
    done: list[Any] = dataclasses.field(default_factory=list)


class Unfailing:
    """What is known of the objects of a recording that has ended, where it is of no use any more:
    asking never fails."""

    def __init__(self, known: Any) -> None:
        self._known = known

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._known, name)
        if not callable(found):
            return found

        def ask(*args: Any) -> Any:
            try:
                return found(*args)
            except Exception:
                return args[0] if name == "loaded" else None

        return ask


_NO_KWARGS: dict[str, Any] = {}
MOST_OPERATORS = 20_000  # of one graph
_serials = itertools.count(1)


class StoppableMode(TorchFunctionMode):
    """A recording that can end at any moment while the call goes on. `sites` are its breaks;
    `stopped` says why it ended early, if it did."""

    def __init__(self, options: Options, rewriter: Any) -> None:
        super().__init__()
        self.options, self.rewriter = options, rewriter
        self.active = True
        self.serial = next(_serials)
        self.stopped: catalogue.BreakSite | None = None
        self.stopped_at: tuple[Reached, ...] = ()
        self.unfit: catalogue.BreakSite | None = None  # why it serves no later call as it is
        self.failure: GraphBreakError | None = None
        self.failure_raised = False  # in the user's code, which may catch it
        self.home: tuple[str, int, str] = ("<unknown>", 0, "")
        self._place: tuple[str, int, str] | None = None  # while one operator of the user's runs
        self.sites: list[catalogue.BreakSite] = []
        self.rewritings: Rewritings | None = Rewritings(rewriter.is_rewritten)
        self.marks: dict[str, Any] = {}  # of nodes inside of a checkpoint
        self.recomputed: dict[str, Any] = {}  # of these, those of the next node
        self.identity_asked = False
        self.of_user: Exception | None = None  # raised for what the user's code gave
        self.cuttable = True
        self.known: Any = None  # where objects come from
        self._steps: _Steps | None = None  # of the operator at hand
        self.open_shapes: set[TracedTensor] = set()
        self.arrays_of: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.arrays: dict[int, Any] = {}  # of NumPy's, from tensors, by identity
        self.memories: dict[int, Any] = {}  # of these: a tensor there, its version, the content
        self.in_form = False  # torch's form of a function of NumPy's runs
        self.constant_arrays: list[Any] = []  # that were computed with
        self.on_arrays: set[Any] = set()  # storages that are the memory of arrays from outside
        self.streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
        self.depth = 0  # functions inside each other
        self._room = deep_calls.Room()

    def __enter__(self) -> Any:
        self._room.give()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._room.take()

    def has_symbols(self) -> bool:
        """Whether sizes or integers are symbols, so that later calls may have others."""
        return False

    # -- places

    def place(self) -> tuple[str, int, str]:
        """File, line and source line of the user's code that is running; where the function stands
        if none is: the call is over, or has not begun."""
        if self._place is None:
            found = place_of(sys._getframe(1))
            self._place = found if found[1] else self.home
        return self._place

    def origin(self) -> str:
        file, line, _ = self.place()
        return f"{file}:{line}"

    def origin_text(self) -> str:
        file, line, text = self.place()
        return f"{file}:{line}: {text}"

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call as rewritten source does."""
        if not (self.active or self.repeats_steps()):
            return self.once(function, args, kwargs)
        ways = (
            lambda: self.rewriter.call(self, function, args, kwargs),
            lambda: function(*args, **kwargs),
        )
        return self.once(self.safely, ways)

    def decision(self, detail: str, value: Any = None) -> Decision:
        """One where the user's code is now."""
        site = self.site(catalogue.UNSUPPORTED, detail)
        return Decision(site, reached_lines(sys._getframe(1)), value)

    # -- ends

    def check_length(self, operators: int) -> None:
        """Raises Stopped where a graph gets too long to be compiled; the function stays as it is.
        A history as long, each node of which Python knows, overflows the stack when it is freed."""
        if operators >= MOST_OPERATORS:
            self.cuttable = False
            self.stop_here(catalogue.UNSUPPORTED, f"a graph of {operators} operators")

    def safely(self, watched: Callable[[], Any], plain: Callable[[], Any]) -> Any:
        """`watched()`, one operator of the user's. If it fails before anything was done (`once`),
        `plain()`, what Python itself does. When that raises too, the error is the user's own; when
        it does not, the fault was the recorder's, and the recording ends. What was done is not done
        again: then the operator takes the same steps once more, not recorded."""
        before, steps = self._steps, _Steps()
        self._steps, self._place = steps, None
        fault: Exception | None = None
        try:
            return watched()
        except RecordingStopped as stopped:
            if self._ran_user_code(stopped):
                raise
        except Exception as error:
            if not self._is_fault(error):
                raise
            fault = error
        finally:
            self._steps, self._place = before, None
        try:
            if steps.done:
                return self._finished(watched, plain, steps, fault)
            return self._plainly(plain, fault)
        finally:
            del fault  # whose traceback holds this frame

    def _plainly(self, plain: Callable[[], Any], fault: Exception | None) -> Any:
        if fault is None or not self.active:
            return plain()
        try:
            with self.paused():
                result = plain()
        except Exception as error:
            if (type(error), str(error)) != (type(fault), str(fault)):
                with contextlib.suppress(GraphBreakError):
                    self.fault(fault)  # what was done before the user's own error is not recorded
            raise
        self.fault(fault)
        return result

    def _finished(
        self,
        watched: Callable[[], Any],
        plain: Callable[[], Any],
        steps: "_Steps",
        fault: Exception | None,
    ) -> Any:
        """What the operator gives, of which `steps` are done."""
        if fault is not None:
            self.fault(fault)
        before, known = self._steps, self.known
        self._steps, self.known = _Steps(collections.deque(steps.done)), Unfailing(known)
        try:
            return watched()
        except RecordingStopped:
            return plain()
        except Exception as error:
            if not self._is_fault(error):
                raise
            return plain()
        finally:
            self._steps, self.known = before, known

    def once(self, function: Callable[..., _T], args: Any = (), kwargs: Any = _NO_KWARGS) -> _T:
        """`function(*args, **kwargs)`, which does something for real: it runs the user's code,
        changes an object or advances an iterator. What it raises is the user's own error."""
        steps = self._steps
        if steps is not None and steps.again:
            return steps.again.popleft()  # type: ignore[no-any-return]
        self._steps = None  # of what runs inside each operator has its own
        try:
            result = function(*args, **kwargs)
        finally:
            self._steps = steps
        if steps is not None:
            steps.done.append(result)
        return result

    def repeats_steps(self) -> bool:
        """Whether the operator at hand failed, and takes the steps again that it had taken."""
        return self._steps is not None and bool(self._steps.again)

    def _is_fault(self, error: Exception) -> bool:
        """Whether the error is the recorder's, or may be."""
        if isinstance(error, StopIteration | GraphBreakError):
            self.failure_raised |= error is self.failure
            return False
        return not self._ran_user_code(error)

    def performed(self, func: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
        """What an operator of torch gives. The user's error goes first, whatever was done before it
        was raised; one that the user's code catches is a graph break."""
        try:
            return func(*args, **kwargs)
        except Exception as error:
            with contextlib.suppress(GraphBreakError):
                self.stop(catalogue.UNSUPPORTED, f"{name} raised {type(error).__name__}")
            raise

    def by_c(self, function: Any, args: Any, kwargs: Any) -> Any:
        """What code written in C gives, which may call the user's: where that raised, it has run
        and is not to be run again."""
        try:
            return self.once(function, args, kwargs)
        except Exception as error:
            called = error.__traceback__ and error.__traceback__.tb_next
            called = called and called.tb_next  # below `once`
            if called is not None:
                with contextlib.suppress(GraphBreakError):
                    self.stop(catalogue.UNSUPPORTED, f"{function!r} raised, when some was done")
            raise

    def _ran_user_code(self, error: Exception) -> bool:
        """Whether the error, or what Python made it from (a StopIteration that left a generator),
        came through a frame of rewritten code, or what was done for real (`once`), below the
        operator that sees it."""
        if error is self.of_user:
            return True
        cause: BaseException | None = error
        seen: set[int] = set()
        while cause is not None and id(cause) not in seen:
            seen.add(id(cause))
            if any(
                frame.f_code in _REAL or self.rewriter.is_rewritten(frame.f_code)
                for frame, _ in traceback.walk_tb(cause.__traceback__)
            ):
                return True
            cause = cause.__cause__
        return False

    def stop(self, reason: catalogue.Reason, detail: str, place: Decision | None = None) -> None:
        """End the recording, here or for what was done at `place`; the call itself goes on in
        eager."""
        if not self.active:
            return
        self.active = False
        if current.recorder() is self:
            current.install(None)
        self.stopped = self.site(reason, detail) if place is None else place.site
        self.stopped_at = reached_lines(sys._getframe(1)) if place is None else place.reached
        self._refuse(self.stopped)

    def before_change(self, *owner: Any) -> None:
        """Something outside, `owner` if it is known, is about to be changed, or asked what it
        answers otherwise each time."""

    def stop_if_cut(
        self, reason: catalogue.Reason, detail: str, place: Decision | None = None
    ) -> None:
        """What cannot be recorded behind a graph break, and could be without."""
        if not self.continue_past_break(reason, detail):
            self.stop(reason, detail, place)

    def continue_past_break(self, reason: catalogue.Reason, detail: str) -> bool:
        """Whether the recording goes on past what cannot be recorded behind a graph break: if
        patterns take away every break so far. It serves no later call then, but tells what they may
        change."""
        if self.rewritings is None or not (self.rewritings.complete and self.rewritings.found()):
            return False
        if self.active and self.unfit is None:
            self.unfit = self.site(reason, detail)
            self.stopped_at = reached_lines(sys._getframe(1))
        return self.active

    def stop_here(self, reason: catalogue.Reason, detail: str) -> None:
        self.stop(reason, detail)
        raise RecordingStopped

    def site(self, reason: catalogue.Reason, detail: str) -> catalogue.BreakSite:
        try:
            place = self.place()
        except Exception:  # a place that cannot be told must not hide why the recording ended
            place = self.home
        return catalogue.BreakSite(reason, *place, detail, self.next_graph())

    def next_graph(self) -> int:
        """The index of the graph that begins where the running one is cut here."""
        return 0

    def decided(
        self,
        reason: catalogue.Reason,
        detail: str,
        optional: bool = False,
        assumed: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Whether this is a graph break. One that a pattern can take away is no failure yet: the
        call is recorded again. `optional`: it is one only if a pattern can. `assumed`: whether the
        value can be assumed, so that there is none."""
        kept = "the graph has sizes that depend on data" if self.open_shapes else ""
        if self.marks and torch.is_grad_enabled():
            kept = "the checkpoint's function runs again in the backward of the traced call"
        if self.rewritings is not None and not kept:
            with self.paused():
                kept = self.rewritings.try_patterns(sys._getframe(), not self.has_symbols())
            if not kept:
                self.sites.append(self.site(reason, detail))
                return True
        if optional or assumed():
            return False
        self.breaks(reason, f"{detail}; not rewritten: {kept}" if kept else detail)
        return True

    def breaks(self, reason: catalogue.Reason, detail: str) -> None:
        """A graph break: one more site; an error under `fullgraph=True`."""
        self.sites.append(self.site(reason, detail))
        self._refuse(self.sites[-1])

    def _refuse(self, site: catalogue.BreakSite) -> None:
        if self.options.fullgraph and self.failure is None:
            self.active = False
            current.install(None)
            self.failure = GraphBreakError(f"fullgraph=True, but the graph breaks here:\n{site}")
            raise self.failure

    def fault(self, error: Exception) -> None:
        if isinstance(error, GraphBreakError) or self.options.strict or is_of_a_handler(error):
            raise error
        # torch's own compiler, which some higher-order operators call, cannot take rewritten code:
        # neither parts of it
        self.cuttable = self.cuttable and not type(error).__module__.startswith("torch._dynamo")
        self.stop(catalogue.UNSUPPORTED, f"an internal error, {type(error).__name__}: {error}")

    # -- pauses

    @staticmethod
    @contextlib.contextmanager
    def off_stack() -> Iterator[None]:
        """The mode itself is out of the way: torch's own compiler refuses to work under one that it
        does not know."""
        count = torch._C._len_torch_function_stack()
        if not count or not isinstance(torch._C._get_function_stack_at(count - 1), StoppableMode):
            yield
            return
        with torch.overrides._pop_mode_temporarily():
            yield

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Nothing is recorded inside."""
        return self._installed(None)

    def resumed(self) -> contextlib.AbstractContextManager[None]:
        """The user's code inside, called by what runs while paused, is recorded."""
        return self._installed(self)

    @contextlib.contextmanager
    def _installed(self, recorder: "StoppableMode | None") -> Iterator[None]:
        before = current.install(recorder)
        try:
            yield
        finally:
            if self.active:
                current.install(before)


_REAL = (StoppableMode.once.__code__, StoppableMode.performed.__code__)
