"""Work beside the user's, at the user's cost: a worker thread that takes at most a share of the
run.

Python has one interpreter lock, so a thread that compiles slows the thread that it serves. How much
is measured: by how much the rest of the process, in a slice of work, fell behind the pace that it
keeps while the worker rests. While the loss so far is more than `SHARE` of the run, it rests.
Nothing here knows torch.
"""

import atexit
import contextlib
import ctypes
import math
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

from . import compilers
from .diagnostics import log
from .environment.machine import MACHINE, Machine
from .errors import WorkerStopped

SHARE = 0.04  # of the time since the start may be lost
AHEAD = 2.5  # times as much may be lost until it is known what compiling gains
SLICE = 0.005  # seconds of work between two looks at the clock
REST = 0.02  # seconds of one rest
MIN_SLICES_BETWEEN_RESTS = 60  # slices of work between two rests, at least
IDLE = 0.3  # a process that falls below this part of its pace waits, for us or for something else


_STARTED = MACHINE.now()

exclusive = threading.RLock()
"""Held by who records a call for the worker to compile, and by the worker while it works."""


class Account:
    """What was lost and gained against a run that compiles nothing, in seconds."""

    torch_seconds = 1.0  # that importing torch took: how fast this machine is

    def __init__(
        self, started: float = _STARTED, share: float = SHARE, machine: Machine = MACHINE
    ) -> None:
        self.started, self.share, self.machine = started, share, machine
        self.lost = 0.0
        self.gained = 0.0
        self.expected = 0.0  # seconds that the run is known to take at least
        self.promised = 0.0  # seconds that are known to be gained
        self.settled = False  # whether it is known by now what compiling gains here

    def elapsed(self) -> float:
        """How long the run is by now."""
        return self.machine.now() - self.started

    def allows(self, seconds: float = 0.0) -> bool:
        """Whether `seconds` more may be lost now."""
        return self.missing(seconds) <= 0

    def may_finish(self) -> bool:
        """Whether what was recorded may be compiled now: it was paid for, the rest costs little."""
        return self._missing(0.0, self.share * AHEAD) <= 0

    def missing(self, seconds: float = 0.0) -> float:
        """By how many seconds the run is too short for `seconds` more to be lost."""
        return self._missing(seconds, self.share * (1.0 if self.settled else AHEAD))

    def _missing(self, seconds: float, share: float) -> float:
        if share <= 0.0:
            return math.inf
        needed = (self.lost + seconds - max(self.gained, self.promised) / 2) / share
        return needed - max(self.elapsed(), self.expected)


_kept: list[Account] = []


def keep(account: Account) -> None:
    """From now on this process keeps an account of what is lost."""
    _kept[:] = [account]


def is_affordable(imports: float) -> bool:
    """Whether a compiler may run for so many times what importing torch takes. On a core that is
    free it costs nothing, and where no account is kept nothing is counted."""
    if not _kept or not _kept[0].machine.is_crowded():
        return True
    return _kept[0].allows(imports * _kept[0].torch_seconds)


class Pace:
    """How fast the rest of the process runs: seconds of processor time for each second."""

    def __init__(self, machine: Machine = MACHINE) -> None:
        self.rate, self._machine = 0.0, machine
        self.mark()

    def mark(self) -> None:
        """A stretch begins."""
        self._wall, self._own = self._machine.now(), self._machine.thread_seconds()
        self._cpu = self._others_cpu()

    def lasts(self) -> float:
        """Seconds since the mark."""
        return self._machine.now() - self._wall

    def stretch(self) -> tuple[float, float]:
        """Seconds since the mark, and the rate in them."""
        wall = self.lasts()
        return wall, (self._others_cpu() - self._cpu) / wall if wall > 0 else 0.0

    def rested(self) -> bool:
        """Take the stretch for one without the worker. Whether the process waits for something."""
        _, rate = self.stretch()
        waits = self.rate > 0 and rate < IDLE * self.rate
        if not waits:
            self.rate = rate if self.rate == 0 else 0.7 * self.rate + 0.3 * rate
        return waits

    def lost(self, of_others: float = 0.0) -> float:
        """Seconds by which the process fell behind in a stretch of work, no more than the work
        itself took: this thread's, and `of_others`, processes that it started. Where no core is
        free, those that nobody waits for count as well. Negative where it was ahead, so that what
        other processes do evens out."""
        wall, rate = self.stretch()
        own = self._machine.thread_seconds() - self._own + of_others
        if self.rate == 0:
            return min(own, wall)
        most = wall if self._machine.is_crowded() else own
        return min(most, wall * max(-1.0, 1.0 - rate / self.rate))

    def _others_cpu(self) -> float:
        return self._machine.process_seconds() - self._machine.thread_seconds()


def _import_waits() -> bool:
    """Whether another thread waits for a module that is being imported."""
    own = threading.get_ident()
    return any(
        frame.f_code.co_filename == "<frozen importlib._bootstrap>"
        and frame.f_code.co_name in ("acquire", "__enter__", "_lock_unlock_module")
        for thread, frame in sys._current_frames().items()
        if thread != own
    )


class Worker:
    """One daemon thread that does jobs in order. A job's errors end the job alone."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.seconds = 0.0
        self._pending = 0
        self._counting = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = False
        self._machine = account.machine
        self._pace = Pace(account.machine)
        self._thread: threading.Thread | None = None
        self._working = threading.Lock()  # not held while it rests: then the process may fork
        self.fork_waits = False
        self._slices = 0
        self.importing = self._waits = self._holds = False
        self._meanwhile: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.late_hooks: list[dict[str, Callable[[], Any]]] = []  # of os.register_at_fork

    def submit(self, job: Callable[[], None]) -> None:
        """Do `job` later. `busy` is True until no job is left."""
        with self._counting:
            self._pending += 1
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dynfix", daemon=True)
            self._thread.start()
            atexit.register(self.stop)  # now, so that it runs before torch takes itself down

    @property
    def busy(self) -> bool:
        """Whether a job is at hand or waits; in a forked child, always."""
        return self._pending > 0

    @property
    def works(self) -> bool:
        """Whether it does something, or is about to. Not while it waits for another process."""
        return self.busy and not self._waits

    def do_in_next_wait(self, job: Callable[[], None]) -> None:
        """Do a short `job` before those that were submitted, as soon as the one at hand waits."""
        self._meanwhile.put(job)

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Called by a job, until `is_over`, which takes a few milliseconds: others may record."""
        self._leave(waits=True)
        try:
            while True:
                self.checkpoint()
                if not self._meanwhile.empty() and self._enter(wait=False):
                    self._do(self._meanwhile.get())
                    self._leave(waits=True)
                elif is_over():
                    break
        finally:
            self._enter()

    def _enter(self, wait: bool = True) -> bool:
        """Begin to work: nobody records. False where somebody does, and this is not to wait."""
        while not exclusive.acquire(blocking=False):
            if not wait:
                return False
            self.checkpoint()
            self._machine.sleep(REST)
        self._holds, self._waits = True, False
        return True

    def _leave(self, waits: bool = False) -> None:
        self._waits = waits
        if self._holds:
            self._holds = False
            exclusive.release()

    def stop(self) -> None:
        """End at once: the job at hand is given up, compilers that run for it are ended."""
        self._stopping = True
        thread = self._thread
        if thread is None or not thread.is_alive() or thread is threading.current_thread():
            return
        compilers.end_compilers()
        self._jobs.put(_nothing)
        sys.unraisablehook = _without_stops(sys.unraisablehook)
        raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
        if not self.importing:
            raise_in(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(WorkerStopped))
        thread.join(timeout=2.0)  # C++ frames must not be cut off by the interpreter's end

    def before_fork(self) -> None:
        """Waits for a place where no lock is held that a child would find locked for ever."""
        if not self.is_current():
            self.fork_waits = True
            self._working.acquire()

    def after_fork(self, child: bool = False) -> None:
        """The process has forked; a child has no worker."""
        if self.is_current():
            return
        self.fork_waits = False
        self._working.release()
        if child:
            self._stopping, self._thread, self._pending, self._waits = True, None, 1, False
            return
        for hooks in self.late_hooks:
            os.register_at_fork(**hooks)
        self.late_hooks.clear()

    def ident(self) -> int | None:
        """Of its thread, once it runs."""
        return None if self._thread is None else self._thread.ident

    def is_current(self) -> bool:
        """Whether the calling thread is this worker."""
        return threading.current_thread() is self._thread

    def checkpoint(self) -> None:
        """Called by the work every few milliseconds: counts what it cost and rests if need be."""
        if self._stopping:
            raise WorkerStopped
        if self.fork_waits and not self.importing:
            self._working.release()
            while self.fork_waits:
                self._machine.sleep(0.001)
            self._working.acquire()
        if self._pace.lasts() >= SLICE:
            self._settle()
            self._rest()

    def _run(self) -> None:
        try:
            with contextlib.suppress(WorkerStopped):
                self._work()
        finally:
            with contextlib.suppress(RuntimeError):  # that it is not held: it was stopped anywhere
                while True:
                    exclusive.release()

    def _work(self) -> None:
        compilers.be_gentle()
        _current.worker = self
        self._first_look()
        while not self._stopping:
            job = self._jobs.get()
            start = self._machine.now()
            self._pace.mark()
            with self._working:
                try:
                    self._enter()
                    self._do(job)
                finally:
                    self._leave()
            self.seconds += self._machine.now() - start
            with self._counting:
                self._pending -= 1

    def _do(self, job: Callable[[], None]) -> None:
        try:
            job()
            self._settle()
        except WorkerStopped:
            pass
        except BaseException as error:  # even a SystemExit of some import must not reach the user
            log.debug("background work failed", exc_info=error)

    def _first_look(self) -> None:
        self._pace.mark()
        self._machine.sleep(2 * REST)
        self._pace.rested()

    def _settle(self) -> None:
        lost = self._pace.lost(compilers.take_seconds())
        self.account.lost = max(0.0, self.account.lost + lost)
        self._slices += 1
        self._pace.mark()

    def _rest(self) -> None:
        """Rest while nothing more may be lost; now and then also to see the pace without us."""
        while self._slices % MIN_SLICES_BETWEEN_RESTS == 0 or not self.account.may_finish():
            if self._stopping or self.fork_waits:
                return
            self._slices += 1
            self._machine.sleep(REST)
            waits = self._pace.rested() and not self._machine.is_crowded()
            self._pace.mark()
            if waits or (self.importing and _import_waits()):
                return


def _without_stops(show: Callable[[Any], Any]) -> Callable[[Any], None]:
    """A hook that says nothing of a Stopped that met a callback of the interpreter."""

    def unraisable(what: Any) -> None:
        if not isinstance(what.exc_value, WorkerStopped):
            show(what)

    return unraisable


def _nothing() -> None:
    """The last job: wakes a worker that waits for one."""


class _Current(threading.local):
    worker: Worker | None = None


_current = _Current()


def checkpoint() -> None:
    """A place where background work may rest. Nothing on every other thread."""
    worker = _current.worker
    if worker is not None:
        worker.checkpoint()


def wait(is_over: Callable[[], bool]) -> None:
    """`Worker.wait`; on every other thread alike, but that others record as it is."""
    worker = _current.worker
    if worker is not None:
        worker.wait(is_over)
    else:
        while not is_over():
            pass


def in_background() -> bool:
    """Whether this is a worker's thread."""
    return _current.worker is not None


def imports() -> contextlib.AbstractContextManager[None]:
    """Inside, a worker's imports rest as its work does."""
    worker = _current.worker
    return contextlib.nullcontext() if worker is None else RestingFinder(worker)


class RestingFinder(contextlib.AbstractContextManager[None]):
    """A checkpoint before each import of a worker: first in `sys.meta_path` while it imports.

    A fork that waits for the imports has begun already: a library's hooks for its end, without
    those for its beginning, would fail. They are registered after it.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def _register(self, **hooks: Any) -> None:
        if self.worker.is_current() and self.worker.fork_waits:
            self.worker.late_hooks.append(hooks)
        else:
            self._register_at_fork(**hooks)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        checkpoint()

    def __enter__(self) -> None:
        self._before, self.worker.importing = self.worker.importing, True
        self._register_at_fork, os.register_at_fork = os.register_at_fork, self._register
        sys.meta_path.insert(0, self)

    def __exit__(self, *error: object) -> None:
        self.worker.importing = self._before
        os.register_at_fork = self._register_at_fork
        if self in sys.meta_path:
            sys.meta_path.remove(self)
