"""The compiled form has to earn its place: timed against eager, kept where it is faster, dropped
where it is not; the worker that builds it never shows."""

import os
import subprocess
import sys
import textwrap
import threading
import time
import types

import dynfix
import pytest
import torch
from dynfix.rewriter import switchover as switchover_module
from dynfix.rewriter.background import Background
from dynfix.rewriter.switchover import AGAIN, TIMED, WARM, State, Switchover
from dynfix.runtime import compilers, pacing
from dynfix.runtime.dispatch import MISS
from dynfix.runtime.pacing import Account, Worker

MAIN = (
    "import sys; from dynfix.rewriter.dynrun import main; sys.argv[0] = 'dynrun'; sys.exit(main())"
)


@pytest.fixture(autouse=True)
def free_cores(monkeypatch):
    """Time is the clock's, whatever else this machine does."""
    monkeypatch.setattr(switchover_module, "is_crowded", lambda: False)


class Judge:
    def __init__(self):
        self.busy, self.total = False, 0.0

    def quiet(self):
        return not self.busy

    def gained(self, seconds):
        self.total += seconds


class Guards:
    """Of any call. `seconds`: of asking them."""

    seconds = 0.0

    def match(self, args, kwargs):
        time.sleep(self.seconds)
        return []


class Compiled:
    """An entry that takes `seconds` and counts its calls."""

    general = stays_eager = False

    def __init__(self, seconds, give=lambda x: x * 2):
        self.seconds, self.give, self.calls = seconds, give, 0

    def run(self, inputs, args, kwargs):
        self.calls += 1
        time.sleep(self.seconds)
        return self.give(*args)


def switchover(eager_seconds):
    calls = []

    def eager(x):
        calls.append(x)
        time.sleep(eager_seconds)
        return x * 2

    recording = types.SimpleNamespace(guard_set=Guards())
    entry = Switchover(recording, eager, Judge())
    return entry, calls


def call(entry, x):
    return entry.run([], (x,), {})


@pytest.mark.parametrize(("eager", "compiled", "state"), [
    (0.02, 0.0, State.COMPILED),
    (0.0, 0.02, State.EAGER),
])  # fmt: skip
def test_the_faster_one_stays(eager, compiled, state):
    entry, _ = switchover(eager)
    assert call(entry, 1) == 2 and entry.state is State.WAITING
    program = Compiled(compiled)
    entry.ready(program)
    for n in range(2 * TIMED + WARM + 1):
        assert call(entry, n) == 2 * n
    assert entry.state is state and entry.trials == 1
    assert (entry.judge.total > 0) == (state is State.COMPILED)
    before = program.calls
    assert call(entry, 5) == 10
    assert program.calls == before + (state is State.COMPILED)


def test_guards_are_a_part_of_the_compiled_calls_time():
    entry, _ = switchover(0.01)
    entry.recording.guard_set.seconds = 0.03
    entry.ready(Compiled(0.0))
    for n in range(2 * TIMED + WARM + 1):
        assert call(entry, n) == 2 * n
    assert entry.state is State.EAGER


def test_it_goes_back_when_it_has_become_slower():
    entry, _ = switchover(0.01)
    program = Compiled(0.0)
    entry.ready(program)
    while entry.state is not State.COMPILED:
        call(entry, 1)
    program.seconds = 0.03
    for _ in range(AGAIN + 2 * TIMED + WARM + 1):
        if entry.state is State.EAGER:
            break
        program.seconds = 0.03 if entry.state is State.TRIAL else 0.0
        assert call(entry, 3) == 6
    assert entry.state is State.EAGER and entry.entry is None


def test_nothing_is_timed_while_something_is_built():
    entry, calls = switchover(0.0)
    program = Compiled(0.0)
    entry.ready(program)
    entry.judge.busy = True
    for _ in range(20):
        call(entry, 1)
    assert program.calls == 0 and len(calls) == 20 and entry.state is State.TRIAL


def test_a_miss_is_no_sample():
    entry, _ = switchover(0.0)
    entry.ready(Compiled(0.0, give=lambda x: MISS))
    for _ in range(30):
        if call(entry, 1) is MISS:
            continue
    assert entry.state is State.TRIAL


class Slow(torch.autograd.Function):
    """The identity; its backward sleeps."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(ctx.seconds)
        return grad, None


def test_the_backward_counts():
    """Forward a little slower, backward much faster."""
    recording = types.SimpleNamespace(guard_set=Guards())

    def eager(x):
        return {"loss": Slow.apply(x, 0.04)}

    entry = Switchover(recording, eager, Judge())

    def compiled(x):
        time.sleep(0.001)
        return {"loss": Slow.apply(x, 0.0)}

    entry.ready(Compiled(0.0, give=compiled))
    x = torch.ones(2, requires_grad=True)
    for _ in range(2 * TIMED + WARM + 1):
        call(entry, x)["loss"].sum().backward()
    assert entry.state is State.COMPILED


def test_a_differentiated_gradient_keeps_it_in_eager():
    recording = types.SimpleNamespace(guard_set=Guards())
    entry = Switchover(recording, lambda x: (time.sleep(0.01), x**3)[1], Judge())
    entry.ready(Compiled(0.0, give=lambda x: x**3))
    x = torch.ones(2, requires_grad=True)
    for _ in range(2 * TIMED + WARM + 1):
        (grad,) = torch.autograd.grad(call(entry, x).sum(), x, create_graph=True)
        grad.sum().backward()
    assert entry.state is State.EAGER


# -- the worker


def wait(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_an_error_ends_its_job_alone(capsys):
    worker, done = Worker(Account(share=100)), []
    worker.submit(lambda: 1 / 0)
    worker.submit(lambda: sys.exit(3))
    worker.submit(lambda: done.append(1))
    wait(lambda: done and not worker.busy)
    worker.stop()
    assert capsys.readouterr() == ("", "")


def test_it_rests_when_nothing_more_may_be_lost():
    account = Account(started=time.perf_counter(), share=0.0)
    account.lost = 1.0
    worker, seen = Worker(account), []

    def job():
        for _ in range(1000):
            end = time.perf_counter() + pacing.SLICE
            while time.perf_counter() < end:
                pass
            pacing.checkpoint()
            seen.append(1)

    worker.submit(job)
    end = time.perf_counter() + 0.4  # this thread is busy: not idle, which would let it work
    while time.perf_counter() < end:
        sum(range(100))
    assert len(seen) < 20
    start = time.perf_counter()
    worker.stop()
    assert time.perf_counter() - start < 1 and not worker._thread.is_alive()


def test_stopping_ends_a_compiler_that_runs():
    worker, left = Worker(Account(share=100)), []

    def job():
        try:
            compilers.run(["sleep", "60"])
        finally:
            left.append(set(compilers._running))

    worker.submit(job)
    wait(lambda: compilers._running)
    (process,) = compilers._running
    wait(lambda: os.getpriority(os.PRIO_PROCESS, process.pid) == 19)  # `nice` sets it, then execs
    start = time.perf_counter()
    worker.stop()
    assert time.perf_counter() - start < 2 and not worker._thread.is_alive()
    assert left == [set()] and process.poll() is not None


def test_a_fork_waits_for_a_checkpoint_and_the_child_builds_nothing():
    worker, stop = Worker(Account(share=1e9)), threading.Event()

    def job():
        while not stop.is_set():
            time.sleep(0.001)
            pacing.checkpoint()

    worker.submit(job)
    time.sleep(0.1)
    worker.before_fork()
    assert worker._working.locked()
    worker.after_fork(child=False)
    stop.set()
    wait(lambda: not worker.busy)
    worker.before_fork()
    worker.after_fork(child=True)
    assert worker.busy and worker._thread is None


def test_fork_hooks_of_what_the_worker_imports_wait_for_the_fork_that_waits(monkeypatch):
    registered = []
    monkeypatch.setattr(os, "register_at_fork", lambda **hooks: registered.append(hooks))
    worker, began, go_on = Worker(Account(share=1e9)), threading.Event(), threading.Event()

    def job():
        with pacing.RestingFinder(worker):
            os.register_at_fork(before=len)
            began.set()
            go_on.wait(10)
            os.register_at_fork(before=max, after_in_parent=min)

    worker.submit(job)
    assert began.wait(10)
    fork = threading.Thread(target=worker.before_fork)
    fork.start()
    wait(lambda: worker.fork_waits)
    go_on.set()
    fork.join(10)
    assert registered == [{"before": len}]
    worker.after_fork()
    assert registered == [{"before": len}, {"before": max, "after_in_parent": min}]
    worker.stop()


def test_an_import_that_waits_for_the_worker_ends_its_rest(tmp_path, monkeypatch):
    """Both want one module; the worker, which has it half way, may lose no more time."""
    (tmp_path / "wanted_by_both.py").write_text(
        "from dynfix.runtime import pacing\nimport time\n"
        "for _ in range(8):\n    time.sleep(0.006)\n    pacing.checkpoint()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    account = Account(started=time.perf_counter(), share=0.0)
    account.lost = 1e6
    worker, began = Worker(account), threading.Event()

    def job():
        began.set()
        with pacing.RestingFinder(worker):
            __import__("wanted_by_both")

    monkeypatch.setattr(pacing, "is_crowded", lambda: True)
    worker.submit(job)
    assert began.wait(10)
    time.sleep(0.1)
    start = time.perf_counter()
    __import__("wanted_by_both")
    assert time.perf_counter() - start < 10
    worker.stop()


def test_what_does_not_matter_is_left_alone(monkeypatch):
    monkeypatch.setattr(pacing, "is_crowded", lambda: False)
    loaded = []
    now = time.perf_counter()
    account = Account(started=now - 10)
    background = Background(lambda stored: loaded.append(1), account)
    assert not background.wants(calls=3, seconds=50)  # too few
    assert not background.wants(calls=1000, seconds=0.01)  # too short
    assert not background.wants(calls=1000, seconds=50)  # all that it takes is more than 0.4 s
    account.started = now - 1000
    assert not background.wants(calls=1000, seconds=1.0)  # a thousandth of the run
    assert not background._asked
    assert not background.wants(calls=1000, seconds=50)  # the compiler is loaded first
    wait(lambda: loaded and background.quiet())
    assert background.wants(calls=1000, seconds=50)
    account.lost = 1e6
    assert not background.wants(calls=1000, seconds=50) and not background.may_record()
    background.worker.stop()


# -- whole scripts


def python(arguments, folder, **env):
    env = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True,
        timeout=120,
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


@pytest.mark.slow
def test_switching_changes_no_result_and_no_random_number(tmp_path):
    """The compiler is loaded, the model recorded, built, tried and used while it trains."""
    switched = "if step % 100 == 99: time.sleep(0.01)"
    text = textwrap.dedent(SCRIPT.format(steps=2500, each=switched)).replace(
        "import torch,", "import time, torch,"
    )
    (tmp_path / "script.py").write_text(text)
    show = "import logging; logging.basicConfig(); logging.getLogger('dynfix').setLevel('DEBUG'); "
    wanted = python(["script.py"], tmp_path)
    own = ["--overhead", "1000", "--compile", "modules"]
    got = python(["-c", show + MAIN, *own, "script.py"], tmp_path)
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


def test_a_trial_is_charged_with_its_first_calls():
    entry, _ = switchover(0.001)
    program = Compiled(0.05)
    entry.ready(program)
    for n in range(2 * TIMED + WARM + 1):
        assert call(entry, n) == 2 * n
    assert -entry.judge.total > 0.04 * (TIMED + WARM)


def test_a_run_without_a_free_core_is_charged_for_compilers(monkeypatch):
    monkeypatch.setattr(pacing, "is_crowded", lambda: True)
    account = Account()
    worker = Worker(account)
    code = "x = 0\nfor i in range(3000000): x += i"
    worker.submit(lambda: compilers.run([sys.executable, "-S", "-c", code]))
    wait(lambda: not worker.busy)
    worker.stop()
    assert account.lost > 0.05


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

        def build(self, job):
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
