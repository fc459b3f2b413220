"""Which calls of modules `dynrun` takes and which it lets pass, in this process; the summary of
them."""

import sys
import types

import pytest
import torch
from dynfix.rewriter import catalogue
from dynfix.rewriter.dynrun import intercept, summary
from dynfix.rewriter.dynrun.session import Session
from dynfix.rewriter.frontend.background import Background
from dynfix.rewriter.frontend.compiled_function import CompiledFunction
from dynfix.rewriter.frontend.config import make_options
from dynfix.rewriter.tracing_ops.calls import known_calls
from dynfix.runtime.cache.run_history import COMPILED, EAGER, MET, RECORDED, SiteFacts
from torch import nn
from torch.nn import functional as F


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

    compile_calls = compile


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


class Twice(nn.Module):
    """Its own call changes what `nn.Module.__call__` is given."""

    def __init__(self, breaks):
        super().__init__()
        self.breaks, self.calls = breaks, 0

    def __call__(self, x):
        self.calls += 1
        return super().__call__(x * 2)

    def forward(self, x):
        return x + (id(self) > 0 if self.breaks else 1)


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("around", [False, True])
def test_what_a_class_does_in_its_own_call_is_done_once(breaks, around):
    net = Twice(breaks)
    called = nn.Sequential(net) if around else net
    session = Session(keep=True, backend="eager")
    with intercept.Hooks(session, 0):
        for _ in range(6):
            assert torch.equal(called(X), X * 2 + 1)
    ((_, entry),) = session.captured
    assert net.calls == 6 and entry.recordings


@pytest.mark.parametrize("name", ["__call__", "_call_impl"])
def test_calls_of_modules_are_counted_by_who_rebinds_their_method(name, monkeypatch):
    net, counted, original = nn.Sequential(nn.ReLU()), [], getattr(nn.Module, name)

    def counting(module, *args):
        counted.append(type(module).__name__)
        return original(module, *args)

    with intercept.Hooks(Session(backend="eager"), 0):
        for _ in range(3):
            net(X)
        monkeypatch.setattr(nn.Module, name, counting)
        for _ in range(3):
            net(X)
    assert counted == ["Sequential", "ReLU"] * 3


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


def test_a_sharded_module_is_compiled_itself(session):
    # as `fully_shard` changes the class of a module: its hooks are torch's, its forward is not
    sharded = type("FSDPLinear", (nn.Linear,), {"__module__": "torch.distributed.fsdp"})
    net = sharded(3, 3)
    for _ in range(3):
        assert torch.equal(net(X), F.linear(X, net.weight, net.bias))
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


def test_nobody_looks_at_calls_where_everything_went_back_to_eager(session):
    class Watching:
        always = False

        def sleeps(self):
            return False

        def share(self):
            return 1.0

    session.calls._watch = watch = Watching()
    nets = [nn.Linear(3, 3), nn.Linear(3, 3)]
    for net in nets:
        net(X), net(X)
    entries = [entry for _, entry in session.entries]
    assert watch.always and len(entries) == 2
    for entry, eager, left in ((entries[0], True, True), (entries[1], True, False)):
        for each in entries:
            each.is_eager = lambda: False
        entry.is_eager = lambda eager=eager: eager
        for _ in range(intercept.LOOKED_AT):
            nets[entries.index(entry)](X)
        assert watch.always is left
    assert session.calls._find(nets[1]).excluded


WHY = (
    "args[0].__dict__['_modules']['0'].__dict__['_modules']['head'].__dict__['merged'] (model.py:9)"
    " was False, is True"
)


def test_the_summary_names_places_and_ways_out():
    def site(code):
        return catalogue.BreakSite(catalogue.REASONS[code], "model.py", 7, "x.item()")

    recording = types.SimpleNamespace(
        segments=[1, 2], sites=(site("DYN101"), site("DYN001")), compile_times={"capture": 1.5}
    )
    entry = types.SimpleNamespace(
        all_recordings=[recording], recompiles=["x is 2", WHY], switchovers=[]
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


def facts(state, seconds):
    return SiteFacts(state, 100, seconds, 0.2, 0.1)


@pytest.mark.parametrize(
    ("learnt", "gained", "lost", "said"),
    [
        ({}, 0.0, 0.0, "nothing was compiled: the run was too short, or too light"),
        ({"a.py:1-2": facts(MET, 20.0)}, 0.0, 0.4, "which cost 0.4 s: the run was too short for"),
        ({"a.py:1-2": facts(MET, 20.0)}, 0.0, 0.0, "run of this command begins at once with a.py:1-2"),
        ({"m.Net": facts(MET, 0.2)}, 0.0, 0.0, "the run was too short, or too light"),
        ({"m.Net": facts(RECORDED, 9.0)}, 0.0, 1.0, "the run ended before the kernels of Net served"),
        ({"m.Net": facts(EAGER, 9.0)}, 0.0, 1.0, "nothing was gained, which cost 1.0 s: eager is as"),
        ({"m.Net": facts(COMPILED, 9.0)}, 5.0, 1.5, "about 3.5 s faster than python: 5.0 s gained"),
        ({"m.Net": facts(COMPILED, 9.0)}, 1.0, 1.5, "about 0.5 s slower than python: 1.0 s gained"),
    ],
)  # fmt: skip
def test_the_summary_says_what_was_gained_or_why_nothing_was(learnt, gained, lost, said):
    background = Background(lambda stored: None)
    background.account.gained, background.account.lost = gained, lost
    background.met = lambda: learnt
    first, verdict = summary.summary([], background).splitlines()
    assert "0 functions" in first and said in verdict


class Image:
    """No tensor."""


class Transform(nn.Module):
    def forward(self, image, *more, **named):
        return image


class Holder(Transform):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))


@pytest.mark.parametrize(
    ("make", "given", "entered"),
    [
        (Transform, lambda: (Image(),), False),
        (Transform, lambda: ([Image(), {"a": (1, "b", None)}],), False),
        (Transform, lambda: (), False),
        (Transform, lambda: (Image(), X), True),
        (Transform, lambda: ([{"image": X}],), True),
        (Holder, lambda: (Image(),), True),
        (lambda: nn.Sequential(Transform(), Transform()), lambda: (Image(),), False),
    ],
)
def test_a_transform_of_data_is_no_model(session, make, given, entered):
    module, image = make(), Image()
    for _ in range(5):
        module(*(given() or (image,)))
    assert bool(session.entries) is entered


def test_in_the_middle_of_a_run_nothing_is_said_of_graph_breaks(capsys, recwarn):
    compiled = CompiledFunction(lambda x: x, make_options(backend="eager"))
    site = catalogue.BreakSite(catalogue.REASONS["DYN101"], "model.py", 7, "x.item()")
    compiled.background = Background(lambda stored: None)
    compiled.tell(site)
    assert capsys.readouterr() == ("", "") and not recwarn.list
    compiled.background = None
    with pytest.warns(UserWarning, match="is not one graph"):
        compiled.tell(site)
