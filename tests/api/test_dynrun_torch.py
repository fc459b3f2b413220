"""`dynrun` on scripts that use torch: what is compiled, what is left alone, and that the output is
python's."""

import os
import subprocess
import sys
import textwrap

import forked
import pytest

pytest.importorskip("torch")
MAIN = "import sys; from dynfix.rewriter.dynrun.main import main; sys.argv[0] = 'dynrun'; sys.exit(main())"


def python(arguments, folder, start=forked.run):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = start([sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


WANTED = {}


@pytest.fixture
def script(tmp_path):
    """`script(text)` gives a function that runs it under dynrun with options, and checks python's
    exit and output."""

    def write(text, start=forked.run):
        (tmp_path / "script.py").write_text(textwrap.dedent(text))
        if text not in WANTED:
            WANTED[text] = python(["script.py"], tmp_path, start)
        wanted = WANTED[text]

        def run(*options, start=forked.run):
            got = python(["-c", MAIN, *options, "script.py"], tmp_path, start)
            assert got[:2] == wanted[:2], got[2]
            return got[2], wanted[2]

        return run

    return write


TRAINING = """
    import torch
    from torch import nn
    torch.manual_seed(0)
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
        def forward(self, x):
            return self.inner(x) + x
    net, loss_of, x = Net(), nn.MSELoss(), torch.randn(5, 4)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for step in range(5):
        optimizer.zero_grad()
        loss = loss_of(net(x), x * 2)
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.4f}")
    net.eval()
    with torch.no_grad():
        for _ in range(3):
            print(f"{net(x).sum().item():.3f}", net(x).requires_grad)
    print(sorted(vars(net)), torch.nn.Module.__call__.__name__, list(net.state_dict()))
"""


@pytest.mark.parametrize(
    "options",
    [[], pytest.param(["--backend", "eager", "--eager-calls", "0"], marks=pytest.mark.slow)],
    ids=" ".join,
)
def test_training_and_evaluation(script, options):
    error, _ = script(TRAINING)(*options, start=subprocess.run)
    assert error == ""


def test_explain_and_emit_source(script, tmp_path):
    options = ["--compile", "modules", "--explain", "--emit-source", "out"]
    error, _ = script(TRAINING)("--backend", "eager", *options)
    lines = error.splitlines()
    assert lines[0] == "dynrun: 2 captured"
    assert lines[1].startswith("  Net (script.py:9, called at script.py:15): ")
    assert "0 breaks" in lines[1]
    (loss,) = (line for line in lines if "MSELoss" in line)
    assert loss.startswith("  MSELoss (called at script.py:15): ")
    (text,) = [file.read_text() for file in (tmp_path / "out").glob("__main__.Net.forward.*.py")]
    assert "script.py:" in text.splitlines()[0] and "__df.call(" in text


def test_a_step_and_its_module_are_not_both_compiled(script):
    """A few calls in evaluation are no reason to compile the model a second time."""
    run = script(TRAINING)
    lines = run("--backend", "eager", "--explain")[0].splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "dynrun", "  training step (script.py", "  Net",
    ]  # fmt: skip
    assert lines[0] == "dynrun: 1 captured"
    assert lines[2].startswith("  Net: eager outside of its training step")
    verified = run("--backend", "eager", "--verify")[0]
    assert "of 2 graphs agree" in verified


def test_torch_compile_in_the_script_is_ours(tmp_path):
    """Not compared with python: that would wait for Inductor."""
    text = """
        import torch
        @torch.compile(mode="max-autotune")
        def f(x):
            return x.sin() + 1
        net = torch.nn.Linear(2, 2)
        with torch.no_grad():
            net.weight.fill_(0.5), net.bias.fill_(1)
        g = torch.compile(net, backend="aot_eager", dynamic=False)
        h = torch.compile(backend=lambda gm, inputs: gm)(lambda x: x * 3)
        k = torch.compile(lambda x: x * 4, options={"epilogue_fusion": True})
        for _ in range(3):
            print(f(torch.zeros(2)).tolist(), g(torch.ones(1, 2)).tolist())
            print(h(torch.ones(1)).item(), k(torch.ones(1)).item())
        print(g._orig_mod is net, isinstance(g, torch.nn.Linear), f.__name__)
        net.compile()
        print(net(torch.ones(1, 2)).tolist())
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(text))
    status, out, error = python(
        ["-c", MAIN, "--backend", "eager", "--explain", "script.py"], tmp_path
    )
    assert (status, out) == (
        0,
        "[1.0, 1.0] [[2.0, 2.0]]\n3.0 4.0\n" * 3 + "True False f\n[[2.0, 2.0]]\n",
    ), error
    assert (
        "dynrun: 5 captured" in error
        and "  f (script.py:3): 1 recorded, 1 graphs, 0 breaks" in error.splitlines()
    )
    assert "options of torch.compile are Inductor's own" in error


def test_an_error_in_a_model_has_the_users_lines(script):
    error, wanted = script("""
        import torch
        class Net(torch.nn.Module):
            def forward(self, x):
                if x.shape[0] == 3:
                    raise ValueError("three")
                return x + 1
        net = Net()
        for n in (1, 1, 2, 3):
            print(net(torch.ones(n)))
    """)("--backend", "eager")

    def users(text):
        return [line.split(",")[1:] for line in text.splitlines() if "script.py" in line]

    assert (
        users(error) == users(wanted)
        and error.splitlines()[-1] == wanted.splitlines()[-1] == "ValueError: three"
    )
    assert "dynfix/rewriter" not in error and "rewriter" not in error


def test_disable_compiles_nothing(script):
    error, _ = script(TRAINING)("--disable", "--explain")
    assert error == "dynrun: 0 captured\n"


def test_forks_threads_and_exits_are_pythons(script):
    error, wanted = script(
        """
        import atexit, os, sys, threading
        import torch
        net = torch.nn.Linear(3, 2)
        with torch.no_grad():
            [p.fill_(0.5) for p in net.parameters()]
        def work(n):
            print(n, [net(torch.full((2, 3), float(n))).sum().item() for _ in range(3)], flush=True)
        def failing():
            raise ValueError("in a thread")
        atexit.register(print, "at exit")
        work(1)
        for target, args in ((work, (2,)), (failing, ())):
            thread = threading.Thread(target=target, args=args, name="T")
            thread.start(), thread.join()
        child = os.fork()
        if not child:
            work(3)
            os._exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        sys.exit("the last word")
    """,
        subprocess.run,
    )("--backend", "eager", "--eager-calls", "1", start=subprocess.run)
    assert error == wanted


def test_torch_is_loaded_by_the_script_not_before(script):
    error, _ = script(
        """
        import os, sys
        print("torch" in sys.modules)
        os.environ["OMP_NUM_THREADS"] = "1"
        import torch
        print(torch.__spec__.loader is torch.__loader__, "exec_module" in vars(torch.__loader__))
        print(torch.get_num_threads())
        print([type(f).__name__ for f in sys.meta_path if "dynfix" in type(f).__module__ and "editable" not in str(f)])
    """,
        subprocess.run,
    )(start=subprocess.run)
    assert error == ""


def test_modules_that_are_made_anew_stay_in_eager(script):
    error, _ = script("""
        import torch
        for i in range(30):
            loss_of = torch.nn.MSELoss()
            print([loss_of(torch.ones(2), torch.zeros(2) + i).item() for _ in range(3)])
    """)("--backend", "eager", "--eager-calls", "1", "--summary")
    assert "MSELoss runs in eager: the script makes it again and again" in error
    assert "dynrun: 8 functions, 8 graphs" in error


def test_compiling_leaves_no_threads_of_others(script):
    pytest.importorskip("tqdm")
    script("""
        import threading, torch
        layer = torch.nn.Linear(4, 4)
        for _ in range(3):
            layer(torch.ones(2, 4)).sum().backward()
        print([t.name for t in threading.enumerate() if not t.name.startswith("dynfix")])
    """)("--backend", "aot_eager", "--eager-calls", "1")


@pytest.mark.gpu
def test_random_numbers_on_a_gpu_are_pythons(script):
    script("""
        import torch
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(), torch.nn.Linear(64, 1)).cuda()
        for _ in range(8):
            loss = net(torch.rand(16, 64, device="cuda")).square().mean()
            loss.backward()
            print(f"{loss.item():.4f}", torch.rand(1, device="cuda").item())
    """)("--eager-calls", "1")


def test_kernels_are_told_to_draw_as_eager(script):
    error, wanted = script("""
        import dynfix, sys, torch
        net = torch.nn.Linear(4, 4)
        for _ in range(4):
            net(torch.ones(4))
        print("draws as eager:", dynfix.config.fallback_random, file=sys.stderr)
    """)("--eager-calls", "1")
    assert "draws as eager: True" in error and "draws as eager: False" in wanted


def test_a_library_that_asks_whether_there_is_torch(script):
    """As transformers does, before anybody imports it."""
    run = script(
        """
        import importlib.util
        assert importlib.util.find_spec("torch") is not None
        import torch
        net = torch.nn.Linear(3, 2)
        for _ in range(3):
            out = net(torch.ones(1, 3))
        print(out.shape)
        """,
        subprocess.run,
    )
    assert "1 captured" in run("--explain", start=subprocess.run)[0]
