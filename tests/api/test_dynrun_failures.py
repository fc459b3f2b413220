"""Whatever fails around a script leaves it running in eager, with a line on stderr; its filters make
errors of warnings."""

import os
import signal
import subprocess
import sys
import textwrap

import forked
import pytest

pytest.importorskip("torch")

MAIN = "import sys; from dynfix.rewriter.dynrun.main import main; sys.argv[0] = 'dynrun'; sys.exit(main())"
SCRIPT = """
    import sys, warnings
    import torch
    from torch import nn
    {setup}
    warnings.simplefilter("error")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(6):
        loss = net(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        print(f"{{loss.item():.4f}}")
"""
BROKEN = """if "dynfix" in sys.modules:
        from dynfix.rewriter.dynrun import session
        def broken(*args, **changes): raise OSError("planted")
        session.Session.compile_calls = session.Session.compile_step = broken
"""
FULL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))"


def run(arguments, folder, setup="", **env):
    (folder / "script.py").write_text(textwrap.dedent(SCRIPT.format(setup=setup)))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **env}
    start = subprocess.run if setup == FULL_DISK else forked.run  # which writes to files
    done = start([sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    return run(["script.py"], tmp_path_factory.mktemp("python"))


@pytest.mark.parametrize(
    ("setup", "env", "said"),
    [
        (BROKEN, {}, "Sequential runs in eager: it cannot be compiled: OSError: planted"),
        pytest.param(BROKEN + "    sys.stderr = None", {}, "", marks=pytest.mark.slow),
        ("", {"PATH": "/nowhere", "CXX": "", "CC": ""}, "compiler"),
        pytest.param(FULL_DISK, {}, "runs in eager", marks=pytest.mark.slow),
        pytest.param("", {"DYNFIX_CACHE_DIR": "/dev/null/x"}, "cache", marks=pytest.mark.slow),
    ],
    ids=["broken", "no stderr", "no compiler", "disk full", "no cache folder"],
)
def test_a_failure_leaves_the_script_in_eager(tmp_path, wanted, setup, env, said):
    env = {"DYNFIX_CACHE_DIR": str(tmp_path / "cache"), **env}
    arguments = ["-c", MAIN, "--eager-calls", "1", "script.py"]
    status, out, error = run(arguments, tmp_path, setup, **env)
    assert (status, out) == wanted[:2], error
    lines = error.splitlines()
    assert all(line.startswith("dynrun: ") for line in lines) and len(lines) <= 2, error
    assert said in error and bool(said) == bool(lines), error


INTERRUPTED = """
    import os, signal, time
    import torch
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    net, x = torch.nn.Linear(64, 64), torch.randn(512, 64)
    while "execs" not in globals():
        net(x)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(9)
"""
EXECS = """
import sys
from dynfix.rewriter.dynrun import session
def execs_for_ever(builder, stored):
    sys.modules["__main__"].execs = True
    while True:
        exec("import colorsys")
        del sys.modules["colorsys"]
session._load_compiler = execs_for_ever
"""


def test_an_interrupt_while_the_worker_is_busy_ends_by_the_signal(tmp_path):
    (tmp_path / "script.py").write_text(textwrap.dedent(INTERRUPTED))
    command = [sys.executable, "-c", EXECS + MAIN, "--overhead", "1000000", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == -signal.SIGINT, done.stderr
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"


CAUGHT = """
    import logging, sys, traceback
    import torch
    logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
    class Net(torch.nn.Module):
        def forward(self, x):
            if len(x) == 3:
                raise ValueError("three")
            return x.relu()
    net = Net()
    for size in (2, 2, 2, 3):
        try:
            net(torch.ones(size))
        except ValueError as error:
            frames = traceback.extract_tb(error.__traceback__)
            print([frame.name for frame in frames if "/torch/" not in frame.filename])
    logging.info("the end")
"""


def test_what_a_script_logs_and_catches_is_its_own(tmp_path):
    (tmp_path / "script.py").write_text(textwrap.dedent(CAUGHT))
    command = [sys.executable, "-c", MAIN, "--eager-calls", "1", "script.py"]
    env = {**os.environ, "DYNFIX_CACHE_DIR": str(tmp_path / "cache")}
    done = forked.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout == "['<module>', '_call', 'forward']\nINFO:root:the end\n", done.stderr
