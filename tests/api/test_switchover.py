"""The compiled form has to earn its place: timed against eager, kept where it is faster, dropped
where it is not; the worker that builds it never shows."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import types

import dynfix
import pytest
import torch
import waiting
from dynfix.rewriter.frontend.background import Background
from dynfix.rewriter.frontend.switchover import (
    AGAIN,
    TIMED,
    WARM,
    ServingState,
    Switchover,
    stay_eager,
)
from dynfix.runtime import background_budget, compilers
from dynfix.runtime.background_budget import Account, Pace, Worker, exclusive
from dynfix.runtime.programs.dispatch import MISS
from simulated import Simulated

MAIN = "import sys; from dynfix.rewriter.dynrun.main import main; sys.argv[0] = 'dynrun'; sys.exit(main())"


@pytest.fixture
def machine():
    """Time passes where a test says so, whatever else this machine does."""
    return Simulated()


class Judge:
    def __init__(self):
        self.busy, self.total = False, 0.0

    def nothing_builds(self):
        return not self.busy

    def gained(self, seconds):
        self.total += seconds


class Guards:
    """Of any call. `seconds`: of asking them."""

    def __init__(self, machine):
        self.machine, self.seconds = machine, 0.0

    def match(self, args, kwargs):
        self.machine.work(self.seconds)
        return []


class Compiled:
    """An entry that takes `seconds` and counts its calls."""

    general = stays_eager = False

    def __init__(self, machine, seconds, give=lambda x: x * 2):
        self.machine, self.seconds, self.give, self.calls = machine, seconds, give, 0

    def run(self, inputs, args, kwargs):
        self.calls += 1
        self.machine.work(self.seconds)
        return self.give(*args)


def switchover(machine, eager_seconds):
    calls = []

    def eager(x):
        calls.append(x)
        machine.work(eager_seconds)
        return x * 2

    recording = types.SimpleNamespace(guard_set=Guards(machine))
    entry = Switchover(recording, eager, Judge(), machine=machine)
    return entry, calls


def call(entry, x):
    return entry.run([], (x,), {})


@pytest.mark.parametrize(("eager", "compiled", "state"), [
    (0.02, 0.0, ServingState.COMPILED),
    (0.0, 0.02, ServingState.EAGER),
])  # fmt: skip
def test_the_faster_one_stays(machine, eager, compiled, state):
    entry, _ = switchover(machine, eager)
    assert call(entry, 1) == 2 and entry.state is ServingState.WAITING
    program = Compiled(machine, compiled)
    entry.ready(program)
    for n in range(2 * TIMED + WARM + 1):
        assert call(entry, n) == 2 * n
    assert entry.state is state and entry.trials == 1
    assert (entry.judge.total > 0) == (state is ServingState.COMPILED)
    before = program.calls
    assert call(entry, 5) == 10
    assert program.calls == before + (state is ServingState.COMPILED)


def test_guards_are_a_part_of_the_compiled_calls_time(machine):
    entry, _ = switchover(machine, 0.01)
    entry.recording.guard_set.seconds = 0.03
    entry.ready(Compiled(machine, 0.0))
    for n in range(2 * TIMED + WARM + 1):
        assert call(entry, n) == 2 * n
    assert entry.state is ServingState.EAGER


def test_what_reaching_it_takes_is_a_part_of_the_compiled_calls_time(machine):
    entry, _ = switchover(machine, 0.01)
    entry.overhead = 0.008
    entry.ready(Compiled(machine, 0.004))
    for n in range(2 * TIMED + WARM + 1):
        assert call(entry, n) == 2 * n
    assert entry.state is ServingState.EAGER and entry.compiled_seconds == pytest.approx(0.012)
    assert entry.judge.total < 0


def test_what_is_hardly_ever_called_is_not_waited_for(machine):
    slow, other = switchover(machine, 0.0)[0], switchover(machine, 0.01)[0]
    slow.ready(Compiled(machine, 0.02))
    for n in range(60):
        call(slow, n)
    assert slow.state is ServingState.EAGER and stay_eager((slow,))
    call(other, 1)
    assert stay_eager((slow, other)) and not stay_eager((other,))
    call(other, 1)
    assert not stay_eager((slow, other))  # its kernels may come
    for n in range(60):
        call(slow, n)
    assert stay_eager((slow, other))
    other.ready(Compiled(machine, 0.0))
    while other.state is not ServingState.COMPILED:
        call(other, 1)
    for n in range(5000):
        call(slow, n)
    assert not stay_eager((slow, other))


def test_it_goes_back_when_it_has_become_slower(machine):
    entry, _ = switchover(machine, 0.01)
    program = Compiled(machine, 0.0)
    entry.ready(program)
    while entry.state is not ServingState.COMPILED:
        call(entry, 1)
    program.seconds = 0.03
    for _ in range(AGAIN + 2 * TIMED + WARM + 1):
        if entry.state is ServingState.EAGER:
            break
        program.seconds = 0.03 if entry.state is ServingState.TRIAL else 0.0
        assert call(entry, 3) == 6
    assert entry.state is ServingState.EAGER and entry.entry is None


def test_nothing_is_timed_while_something_is_built(machine):
    entry, calls = switchover(machine, 0.0)
    program = Compiled(machine, 0.0)
    entry.ready(program)
    entry.judge.busy = True
    for _ in range(20):
        call(entry, 1)
    assert program.calls == 0 and len(calls) == 20 and entry.state is ServingState.TRIAL


def test_a_miss_is_no_sample(machine):
    entry, _ = switchover(machine, 0.0)
    entry.ready(Compiled(machine, 0.0, give=lambda x: MISS))
    for _ in range(30):
        if call(entry, 1) is MISS:
            continue
    assert entry.state is ServingState.TRIAL


def test_processor_time_decides_where_no_core_is_free(machine):
    """The compiled calls wait for longer, and take less."""

    def compiled(x):
        machine.sleep(5.0)
        return x * 2

    entry, _ = switchover(machine, 0.01)
    machine.crowded = True
    entry.ready(Compiled(machine, 0.001, give=compiled))
    for n in range(2 * TIMED + WARM + 1):
        assert call(entry, n) == 2 * n
    assert entry.state is ServingState.COMPILED


class Slow(torch.autograd.Function):
    """The identity; its backward takes its time."""

    @staticmethod
    def forward(ctx, x, machine, seconds):
        ctx.machine, ctx.seconds = machine, seconds
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.machine.work(ctx.seconds)
        return grad, None, None


def test_the_backward_counts(machine):
    """Forward a little slower, backward much faster."""
    recording = types.SimpleNamespace(guard_set=Guards(machine))

    def eager(x):
        return {"loss": Slow.apply(x, machine, 0.04)}

    entry = Switchover(recording, eager, Judge(), machine=machine)

    def compiled(x):
        machine.work(0.001)
        return {"loss": Slow.apply(x, machine, 0.0)}

    entry.ready(Compiled(machine, 0.0, give=compiled))
    x = torch.ones(2, requires_grad=True)
    for _ in range(2 * TIMED + WARM + 1):
        call(entry, x)["loss"].sum().backward()
    assert entry.state is ServingState.COMPILED


def test_a_differentiated_gradient_keeps_it_in_eager(machine):
    recording = types.SimpleNamespace(guard_set=Guards(machine))
    eager = lambda x: (machine.work(0.01), x**3)[1]  # noqa: E731
    entry = Switchover(recording, eager, Judge(), machine=machine)
    entry.ready(Compiled(machine, 0.0, give=lambda x: x**3))
    x = torch.ones(2, requires_grad=True)
    for _ in range(2 * TIMED + WARM + 1):
        (grad,) = torch.autograd.grad(call(entry, x).sum(), x, create_graph=True)
        grad.sum().backward()
    assert entry.state is ServingState.EAGER


# -- the worker


def account(machine, share=background_budget.SHARE, lost=0.0):
    """Of a run that begins now."""
    made = Account(started=machine.now(), share=share, machine=machine)
    made.lost = lost
    return made


def ended(worker):
    """It was told to stop, and has."""
    worker.stop()
    waiting.join(worker._thread)


def test_an_error_ends_its_job_alone(machine, capsys):
    worker, done = Worker(account(machine)), []
    worker.submit(lambda: 1 / 0)
    worker.submit(lambda: sys.exit(3))
    worker.submit(lambda: done.append(1))
    waiting.until(lambda: done and not worker.busy)
    ended(worker)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("crowded", [False, True])
def test_it_rests_when_nothing_more_may_be_lost(machine, crowded):
    machine.crowded, machine.busy = crowded, 1.0
    of_run = account(machine, lost=1.0)
    worker = Worker(of_run)
    machine.work(background_budget.SLICE / 2)
    worker.checkpoint()
    assert not machine.slept  # its slice is not over
    machine.work(background_budget.SLICE)
    worker.checkpoint()
    assert set(machine.slept) == {background_budget.REST}
    most = background_budget.SHARE * background_budget.AHEAD
    assert 1.0 / most <= of_run.elapsed() < 1.1 / most
    rests = len(machine.slept)
    machine.work(background_budget.SLICE, background_budget.SLICE)
    worker.checkpoint()
    assert len(machine.slept) < rests + 20  # what it lost meanwhile


def test_a_worker_that_waits_lets_others_record_and_begins_what_comes_next(machine):
    worker, over, done, looks = Worker(account(machine)), [], [], []

    def wait():
        worker.wait(lambda: looks.append(1) or bool(over))
        done.append(worker.works)

    worker.submit(wait)
    waiting.until(lambda: not worker.works)
    assert worker.busy
    with exclusive:
        worker.do_in_next_wait(lambda: done.append("begun"))
        looks.clear()
        waiting.until(lambda: len(looks) > 3)
        assert not done  # while this thread records
    waiting.until(lambda: done == ["begun"])
    over.append(True)
    waiting.until(lambda: not worker.busy)
    assert done == ["begun", True]
    ended(worker)


def test_a_worker_that_waits_can_be_stopped_and_lets_go(machine):
    worker = Worker(account(machine))
    worker.submit(lambda: worker.wait(lambda: False))
    waiting.until(lambda: worker.busy and not worker.works)
    with exclusive:
        ended(worker)
    assert exclusive.acquire(blocking=False)
    exclusive.release()


def test_it_works_while_the_process_waits_for_something(machine):
    pace, machine.busy = Pace(machine), 1.0
    machine.sleep(1.0)
    assert not pace.rested() and pace.rate == 1.0
    pace.mark()
    machine.busy = 0.0
    machine.sleep(1.0)
    assert pace.rested() and pace.rate == 1.0


def test_lost_is_by_how_much_the_others_fell_behind(machine):
    pace, machine.busy = Pace(machine), 1.0
    machine.sleep(1.0)
    assert not pace.rested()
    for others, lost in ((1.0, 0.0), (0.75, 0.25), (0.0, 1.0)):
        pace.mark()
        machine.work(1.0, of_others=others)
        assert pace.lost() == lost
    pace.mark()
    machine.clock += 1.0
    machine.process += 0.25
    assert pace.lost() == 0.0  # another process works, on a core that is free
    assert pace.lost(of_others=0.5) == 0.5
    machine.crowded = True
    assert pace.lost() == 0.75  # which there is none of


def test_its_rest_ends_with_the_process(machine):
    worker = Worker(account(machine, lost=1e9))

    def job():
        while True:
            machine.work(background_budget.SLICE, background_budget.SLICE)
            background_budget.checkpoint()

    worker.submit(job)
    waiting.until(lambda: len(machine.slept) > 3)
    ended(worker)


def test_stopping_ends_a_compiler_that_runs(machine):
    worker, left = Worker(account(machine)), []

    def job():
        try:
            compilers.run(["sleep", str(2 * waiting.HANGS)])
        finally:
            left.append(set(compilers._running))

    worker.submit(job)
    waiting.until(lambda: compilers._running)
    (process,) = compilers._running
    # `nice` sets it, then execs
    waiting.until(lambda: os.getpriority(os.PRIO_PROCESS, process.pid) == 19)
    ended(worker)
    assert left == [set()] and process.poll() == -signal.SIGKILL


def test_a_fork_waits_for_a_checkpoint_and_the_child_builds_nothing(machine):
    worker, begun, stop = Worker(account(machine)), threading.Event(), threading.Event()

    def job():
        while not stop.is_set():
            begun.set()
            background_budget.checkpoint()

    worker.submit(job)
    assert begun.wait(waiting.HANGS)
    worker.before_fork()
    assert worker._working.locked()
    worker.after_fork(child=False)
    stop.set()
    waiting.until(lambda: not worker.busy)
    worker.before_fork()
    worker.after_fork(child=True)
    assert worker.busy and worker._thread is None


def test_fork_hooks_of_what_the_worker_imports_wait_for_the_fork_that_waits(machine, monkeypatch):
    registered = []
    monkeypatch.setattr(os, "register_at_fork", lambda **hooks: registered.append(hooks))
    worker, began, go_on = Worker(account(machine)), threading.Event(), threading.Event()

    def job():
        with background_budget.RestingFinder(worker):
            os.register_at_fork(before=len)
            began.set()
            go_on.wait(waiting.HANGS)
            os.register_at_fork(before=max, after_in_parent=min)

    worker.submit(job)
    assert began.wait(waiting.HANGS)
    fork = threading.Thread(target=worker.before_fork)
    fork.start()
    waiting.until(lambda: worker.fork_waits)
    go_on.set()
    waiting.join(fork)
    assert registered == [{"before": len}]
    worker.after_fork()
    assert registered == [{"before": len}, {"before": max, "after_in_parent": min}]
    ended(worker)


def test_an_import_that_waits_for_the_worker_ends_its_rest(machine, tmp_path, monkeypatch):
    """Both want one module; the worker, which has it half way, may lose no more time."""
    (tmp_path / "wanted_by_both.py").write_text(
        "from dynfix.runtime import background_budget as pacing\n"
        "for _ in range(8):\n"
        "    pacing._current.worker._machine.work(pacing.SLICE)\n"
        "    pacing.checkpoint()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    machine.crowded = True
    worker = Worker(account(machine, lost=1e9))

    def job():
        with background_budget.RestingFinder(worker):
            __import__("wanted_by_both")

    worker.submit(job)
    waiting.until(lambda: len(machine.slept) > 3)
    importer = threading.Thread(target=__import__, args=("wanted_by_both",))
    importer.start()
    waiting.join(importer)
    ended(worker)


def test_what_does_not_matter_is_left_alone(machine):
    load, of_run = waiting.Loading(), account(machine)
    background = Background(load, of_run)
    machine.clock += 1
    assert not background.wants("net", calls=3, seconds=50)  # too few
    assert not background.wants("net", calls=1000, seconds=0.01)  # too short
    assert not background.wants("net", calls=1000, seconds=2.0)  # it may not pay
    machine.clock += 999
    assert not background.wants("net", calls=1000, seconds=1.0)  # a thousandth of the run
    assert not background._asked
    machine.clock -= 998
    assert not background.wants("net", calls=1000, seconds=5.0)  # the compiler is loaded first
    load.end()
    waiting.until(background.nothing_builds)
    assert not background.wants("net", calls=1000, seconds=50)  # a recorded call takes too much
    machine.clock += 10
    assert background.wants("net", calls=1000, seconds=50)
    of_run.lost = 1e6
    assert not background.wants("net", calls=1000, seconds=50) and not background.may_record()
    ended(background.worker)


# -- whole scripts


def python(arguments, folder, **env):
    env = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True,
        timeout=waiting.HANGS,
    )  # fmt: skip


SCRIPT = """
    import torch, threading
    from torch import nn
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(64), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    total = 0.0
    for step in range({steps}):
        x = torch.randn(32, 16)
        loss = (net(x) - x[:, :4]).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        total += loss.item()
        {each}
    print(f"{{total:.3f}}", torch.rand(1).item())
"""


SETTLED = """
import builtins, logging, time
from dynfix.rewriter.frontend import background
from dynfix.runtime import compilers
from dynfix.runtime.cache.run_history import CommandHistory

logging.basicConfig()
logging.getLogger("dynfix").setLevel("DEBUG")
background.SHORT = 0.0
compilers.be_gentle = lambda: None  # a busy machine would let them starve
CommandHistory.expected = lambda self: 1e9  # whatever it costs is affordable
begun, start = [], background.Background.start
background.Background.start = lambda self: (begun.append(self), start(self))

def settled():
    while begun[0].worker.busy:
        time.sleep(0.001)

builtins.settled = settled
"""


@pytest.mark.slow
def test_switching_changes_no_result_and_no_random_number(tmp_path):
    """The compiler is loaded, the model recorded, built, tried and used while it trains."""
    text = textwrap.dedent(SCRIPT.format(steps=300, each="settled()"))
    (tmp_path / "script.py").write_text(text)
    alone = "import builtins, runpy; builtins.settled = int; runpy.run_path('script.py')"
    wanted = python(["-c", alone], tmp_path)
    own = ["--overhead", "1000", "--compile", "modules"]
    got = python(["-c", SETTLED + MAIN, *own, "script.py"], tmp_path)
    assert (got.returncode, got.stdout) == (0, wanted.stdout), got.stderr
    assert "Sequential: eager" in got.stderr, got.stderr
    assert "Traceback" not in got.stderr


@pytest.mark.parametrize(
    "end",
    [
        "import os; os.kill(os.getpid(), 2)",
        pytest.param("", marks=pytest.mark.slow),
        pytest.param("raise SystemExit(3)", marks=pytest.mark.slow),
    ],
)
def test_the_end_comes_at_once(tmp_path, end):
    """The script ends while the worker loads the compiler."""
    text = textwrap.dedent(SCRIPT.format(steps=150, each="")) + end + "\n"
    (tmp_path / "script.py").write_text(text)
    wanted = python(["script.py"], tmp_path)
    got = python(["-c", MAIN, "--overhead", "1000", "script.py"], tmp_path)
    assert (got.returncode, got.stdout) == (wanted.returncode, wanted.stdout)
    assert got.stderr == wanted.stderr or "KeyboardInterrupt" in got.stderr


def test_a_trial_is_charged_with_its_first_calls(machine):
    entry, _ = switchover(machine, 0.001)
    entry.ready(Compiled(machine, 0.05))
    for n in range(2 * TIMED + WARM + 1):
        assert call(entry, n) == 2 * n
    assert entry.judge.total == pytest.approx(-0.049 * (TIMED + WARM))


@pytest.mark.parametrize(("rate", "lost"), [(0.5, 1.0), (1.0, 0.0)])
def test_compilers_are_charged_by_what_the_run_fell_behind(machine, monkeypatch, rate, lost):
    monkeypatch.setattr(compilers, "take_seconds", lambda: 2.0)
    machine.crowded, machine.busy, of_run = True, 1.0, account(machine)
    worker = Worker(of_run)

    def job():
        machine.clock += 2.0
        machine.process += 2.0 * rate

    worker.submit(job)
    waiting.until(lambda: not worker.busy)
    ended(worker)
    assert of_run.lost == pytest.approx(lost, abs=1e-9)


def test_processor_time_of_compilers_beside_the_script_is_counted(machine):
    used, worker = [], Worker(account(machine))
    code = "x = 0\nfor i in range(1000000): x += i"

    def job():
        compilers.take_seconds()
        compilers.run([sys.executable, "-S", "-c", code])
        used.append(compilers.take_seconds())

    worker.submit(job)
    waiting.until(lambda: not worker.busy)
    ended(worker)
    assert used[0] > 0 and compilers.take_seconds() == 0


@pytest.mark.parametrize("enabled", (True, False))
def test_it_is_built_under_the_modes_of_its_call(enabled):
    """Which are a thread's own: a model that is only evaluated would be built with a backward, and
    one under autocast in float32, and on a default device on the host."""
    seen = []

    class Beside(Judge):
        def may_record(self):
            return True

        def recorded(self, seconds):
            pass

        def build(self, job, ask):
            thread = threading.Thread(target=job)
            thread.start()
            thread.join()

    def backend(gm, inputs):
        place = torch.empty(0).device.type
        seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), place))
        return gm

    fn = dynfix.compile(lambda x, w: x @ w, backend=backend)
    fn._dynfix_entry.background = Beside()
    x, w = torch.ones(2, 2), torch.ones(2, 2, requires_grad=True)
    device = "meta" if enabled else "cpu"
    with (
        torch.set_grad_enabled(enabled),
        torch.autocast("cpu", enabled=not enabled),
        torch.device(device),
    ):
        fn(x, w)
    assert seen == [(enabled, not enabled, device)]
