"""`dynrun` on scripts that use torch: what is compiled, what is left alone, and that the output is
python's."""

import os
import subprocess
import sys
import textwrap
import types

import forked
import pytest
import torch
from dynfix.rewriter import catalogue
from dynfix.rewriter.forms.calls import known_calls
from dynfix.rewriter.running import intercept, summary
from dynfix.rewriter.running.session import Session
from torch import nn

MAIN = (
    "import sys; from dynfix.rewriter.dynrun import main; sys.argv[0] = 'dynrun'; sys.exit(main())"
)


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


# -- what the descriptor lets pass, in this process


class Entry:
    def __init__(self, module):
        self.calls = 0
        self._dynfix_entry = self

    def __call__(self, module, /, *args, **kwargs):
        self.calls += 1
        return module._call_impl(*args, **kwargs)


class Recorded(Session):
    """Notes what would be compiled."""

    def __init__(self):
        super().__init__()
        self.entries = []

    def compile(self, model, **changes):
        self.entries.append((model, Entry(model)))
        return self.entries[-1][1]


@pytest.fixture
def session(monkeypatch):
    session = Recorded()
    calls = intercept.ModuleCalls(torch, session, eager_calls=1)
    monkeypatch.setattr(nn.Module, "_compiled_call_impl", calls)
    session.calls = calls
    return session


X = torch.ones(2, 3)


def test_only_the_outermost_module_from_its_second_call_on(session):
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    for _ in range(4):
        net(X)
    ((model, entry),) = session.entries
    assert model is net and entry.calls == 3


def test_called_once_with_each_of_a_few_shapes_is_left_alone(session):
    net = nn.Linear(3, 3)
    for n in range(1, 10):
        net(torch.ones(n, 3))
    for _ in range(20):
        nn.Linear(3, 3)(X)
    assert session.entries == []


def test_many_shapes_are_compiled_in_the_end(session):
    net = nn.Linear(3, 3)
    for n in range(1, intercept.MANY_SHAPES + 3):
        net(torch.ones(n, 3))
    assert [model for model, _ in session.entries] == [net]


def test_evaluation_after_training_is_another_signature(session):
    net = nn.Dropout()
    net(X)
    net.eval()
    net(X)
    with torch.no_grad():
        net(X)
    assert session.entries == []
    net(X)
    assert len(session.entries) == 1


def test_an_exception_leaves_the_next_call_outermost(session):
    net = nn.Linear(3, 3)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            net(torch.ones(2, 7))
    net(X)
    assert session.entries[0][1].calls == 2


class Block(nn.Module):
    def forward(self, x):
        return x + 1


@pytest.mark.parametrize("name", ["Block", "*.Block", "Bl*"])
def test_excluded_modules_stay_in_eager_with_what_they_call(session, name):
    session.exclude = (name,)
    check_untouched(session, Block_with(nn.Linear(3, 3)))
    nn.ReLU()(X), nn.ReLU()(X)
    session.tell_what_was_not_met()


def Block_with(inner):
    block = Block()
    block.register_forward_hook(lambda module, args, result: inner(result))
    return lambda: block(X)


def test_an_excluded_name_that_nothing_has_is_told(session, capsys):
    session.exclude = ("Blok",)
    Block()(X)
    session.tell_what_was_not_met()
    assert "dynrun: --exclude Blok: nothing" in capsys.readouterr().err


def test_excluded_modules_inside_break_the_graph():
    session = Session(keep=True, backend="eager")
    session.exclude = ("Block",)
    net = nn.Sequential(nn.ReLU(), Block(), nn.ReLU())
    compiled = session.compile(net)
    for _ in range(4):
        assert torch.equal(compiled(X), X + 1)
    ((_, entry),) = session.captured
    assert "Block.forward is disabled" in str(entry.recordings[0].sites)
    known_calls.DISABLED.discard(Block.forward)


@pytest.mark.parametrize(
    ("kinds", "module", "function"),
    [("auto", True, True), ("modules", True, False), ("decorated", False, True)],
)
def test_which_kinds_are_compiled(kinds, module, function):
    session = Recorded()
    session.kinds = kinds
    net, double = nn.ReLU(), lambda x: x * 2
    with intercept.Hooks(session, 0):
        net(X)
        compiled = torch.compile(double)
    assert (net in [model for model, _ in session.entries]) == module
    assert (double in [model for model, _ in session.entries]) == function
    assert function or torch.equal(compiled(X), X * 2)


def test_options_of_the_command_line_stand_before_a_mode_of_the_script():
    session = Session(options={"recompile_limit": 3})
    compiled = session.compile(lambda x: x + 1, mode="max-autotune")
    options = compiled._dynfix_entry.options
    assert options.recompile_limit == 3 and not options.max_autotune


def check_untouched(session, call, times=3):
    for _ in range(times):
        call()
    assert session.entries == []


def test_wrappers_scripts_and_traces_pass(session):
    net = nn.Linear(3, 3)
    script = torch.jit.script(nn.Sequential(nn.Linear(3, 3)))
    graph = torch.fx.symbolic_trace(nn.Sequential(net))
    check_untouched(session, lambda: script(X))
    check_untouched(session, lambda: graph(X))
    check_untouched(session, lambda: torch.fx.symbolic_trace(nn.Sequential(net)))
    check_untouched(session, lambda: torch.func.vmap(net)(X))
    check_untouched(session, lambda: torch.jit.trace(net, X, check_trace=False))
    check_untouched(session, lambda: torch.export.export(net, (X,)))


def test_what_a_wrapper_holds_is_the_outermost(session):
    net = nn.Linear(3, 3)
    wrapper = nn.DataParallel(net)
    for _ in range(3):
        wrapper(X)
    assert [model for model, _ in session.entries] == [net]


def test_recomputation_saves_what_the_first_run_saved(session):
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    x = X.clone().requires_grad_()
    check_untouched(
        session,
        lambda: torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False).sum().backward(),
    )
    check_untouched(
        session,
        lambda: torch.utils.checkpoint.checkpoint(net, x, use_reentrant=True).sum().backward(),
        1,
    )


def test_what_torch_compile_made_is_not_compiled_again(session):
    net = nn.Linear(3, 3)
    session.calls.exclude(net)
    check_untouched(session, lambda: net(X))


def test_modules_are_not_kept_alive(session):
    import gc
    import weakref

    net = nn.Linear(3, 3)
    net(X)
    ref = weakref.ref(net)
    del net
    gc.collect()
    assert ref() is None


def test_the_oldest_modules_are_forgotten(session):
    nets = [nn.ReLU() for _ in range(intercept.KEPT + 10)]
    for net in nets:
        net(X)
    assert len(session.calls._known) == intercept.KEPT


def test_own_compiled_call_wins(session):
    net = nn.Linear(3, 3)
    net._compiled_call_impl = lambda x: x + 1
    check_untouched(session, lambda: net(X))
    assert torch.equal(net(X), X + 1)


def test_module_arguments_named_like_ours(session):
    class Net(nn.Module):
        def forward(self, *, module, args):
            return module + args

    net = Net()
    assert [int(net(module=1, args=2)) for _ in range(3)] == [3, 3, 3]


def test_a_debugger_sees_every_line(session):
    net = nn.Linear(3, 3)
    net(X), net(X)
    ((_, entry),) = session.entries
    before, called = sys.gettrace(), entry.calls
    sys.settrace(lambda *event: None)
    try:
        net(X)
    finally:
        sys.settrace(before)
    assert entry.calls == called


def test_the_second_question_has_the_answer_of_the_first(session):
    """torch reads the attribute twice: when calls stop being looked at between, too."""

    class Turning:
        always, turns = False, 0

        def sleeps(self):
            self.turns += 1
            return self.turns % 2 == 0

    session.calls._watch = Turning()
    net = nn.Linear(3, 3)
    for _ in range(9):
        assert net(X).shape == (2, 3)
    assert session.calls._watch.turns == 9


WHY = (
    "args[0].__dict__['_modules']['0'].__dict__['_modules']['head'].__dict__['merged'] (model.py:9)"
    " was False, is True"
)


def test_the_summary_names_places_and_ways_out():
    def site(code):
        return catalogue.Site(catalogue.REASONS[code], "model.py", 7, "x.item()")

    recording = types.SimpleNamespace(
        segments=[1, 2], sites=(site("DYN101"), site("DYN001")), compile_times={"capture": 1.5}
    )
    entry = types.SimpleNamespace(
        recordings=[recording], recompiles=["x is 2", WHY], switchovers=[]
    )
    text = summary.summary([("Net", entry)], None)
    first, *rest = text.splitlines()
    assert "1 function, 2 graphs, 2 breaks, 2 recompiles, 1.5 s of compiling" in first
    assert any("model.py:7" in line and "`dynfix rule DYN101`" in line for line in rest)
    assert any(
        "model.py:7" in line and "DYN001" in line and "dynfix rule" not in line for line in rest
    )
    assert "  recompiled Net: x is 2" in rest
    merged = next(line for line in rest if "merged" in line).replace("\\", "")
    assert merged == "  recompiled Net: args[0][0].head.merged (model.py:9) was False, is True"


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
