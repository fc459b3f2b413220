"""`dynrun --verify`: a graph that is compiled wrongly ends the run, with a file that shows it."""

import runpy
import threading
import time
import warnings
from pathlib import Path

import dynfix
import pytest
import torch
from drawing import Drawing
from dynfix.lowering import stored_graphs
from dynfix.lowering.lowerings import lower
from dynfix.lowering.lowerings.registry import LOWERINGS
from dynfix.rewriter.dynrun import differences, session
from dynfix.rewriter.dynrun.verified_calls import STATUS, Verification
from dynfix.rewriter.frontend import segment_programs

aten = torch.ops.aten
assert lower  # which registers the lowerings


def work(x, w, written):
    """Every operator that a wrong lowering is planted for, in one graph."""
    h = torch.tanh(x @ w)
    h = torch.where(h > 0.1, h, h * 0.5).sin() + torch.relu(x)
    h = torch.maximum(h, x.exp() - 1).cumsum(-1)
    top = h.amax(-1, keepdim=True) + h.abs().sum(0)
    written.neg_()
    return top, (h * top).mean(-1)


def swapped(context, node, condition, first, second):
    return WHERE(context, node, condition, second, first)


def instead(overload):
    """A lowering of `overload` for an operator with more arguments."""
    lowering = LOWERINGS[overload]
    return lambda context, node, x, *rest: lowering(context, node, x)


WHERE = LOWERINGS[aten.where.self]
PLANTED = {
    "tanh": (aten.tanh.default, LOWERINGS[aten.sigmoid.default]),
    "where": (aten.where.self, swapped),
    "only in the backward": (aten.cos.default, LOWERINGS[aten.sin.default]),
    "written": (aten.neg.default, LOWERINGS[aten.abs.default]),
    "relu": (aten.relu.default, LOWERINGS[aten.abs.default]),
    "maximum": (aten.maximum.default, LOWERINGS[aten.minimum.default]),
    "exp": (aten.exp.default, LOWERINGS[aten.exp2.default]),
    "cumsum": (aten.cumsum.default, instead(aten.neg.default)),
    "amax": (aten.amax.default, LOWERINGS[aten.mean.dim]),
    "abs": (aten.abs.default, LOWERINGS[aten.neg.default]),
    "sum": (aten.sum.dim_IntList, LOWERINGS[aten.amax.default]),
}
QUICK = ("only in the backward", "written")


def inputs():
    torch.manual_seed(0)
    x, w = torch.randn(6, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)
    return x, w, torch.randn(3)


@pytest.fixture
def run(tmp_path, monkeypatch):
    run = Verification(3, str(tmp_path / "repro.py"))
    monkeypatch.setattr(segment_programs, "observers", [run.observe])
    monkeypatch.setattr(
        stored_graphs, "stored_graph", lambda *_: None
    )  # no key names what is planted
    return run


def called(compiled, times=3):
    for _ in range(times):
        result = compiled(*inputs())
    return result


def test_right_graphs_pass(run):
    called(dynfix.compile(work, fullgraph=True), 5)
    assert (run.graphs, run.compared, run.left_out) == (1, 3, 0)


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in PLANTED],
)
def test_a_wrong_lowering_is_found_and_its_file_fails_alone(run, monkeypatch, capsys, name):
    overload, wrong = PLANTED[name]
    with monkeypatch.context() as planted:
        planted.setitem(LOWERINGS, overload, wrong)
        with pytest.raises(SystemExit) as ended:
            called(dynfix.compile(work, fullgraph=True))
        assert ended.value.code == STATUS
        said = capsys.readouterr().err
        assert "test_verify.py:" in said and "differs from eager" in said
        assert "shows it, in 1 operator\n" in said and len(said.splitlines()) == 2
        segment_programs.observers.clear()
        with pytest.raises(AssertionError, match="differs from eager"):
            runpy.run_path(run.path)
    runpy.run_path(run.path)
    assert "gives eager's results" in capsys.readouterr().out


def test_a_whole_training_step_is_compared(run, monkeypatch, capsys):
    monkeypatch.setitem(LOWERINGS, aten.sqrt.default, LOWERINGS[aten.exp.default])
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(net.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    compiled = dynfix.compile(step)
    with pytest.raises(SystemExit):
        for _ in range(4):
            compiled(torch.ones(3, 4))
    said = capsys.readouterr().err.splitlines()
    assert "optimizer.step(): output 0 differs from eager" in said[0] and len(said) == 2
    assert ".sqrt()" in Path(run.path).read_text()


def test_the_file_of_a_step_s_gradients_runs_alone(run, monkeypatch, capsys):
    net = torch.nn.Linear(4, 2)

    def step(x):
        net.zero_grad()
        loss = net(x).tanh().square().mean()
        loss.backward()
        return loss.detach()

    seed = LOWERINGS[aten.full_like.default]  # of the backward, which starts inside of the graph

    def doubled(ctx, node, x, value, **kwargs):
        return seed(ctx, node, x, 2 * value, **kwargs)

    compiled = dynfix.compile(step)
    with monkeypatch.context() as planted, pytest.raises(SystemExit):
        planted.setitem(LOWERINGS, aten.full_like.default, doubled)
        for _ in range(4):
            compiled(torch.ones(3, 4))
    assert "leaf_gradients(" in Path(run.path).read_text()
    runpy.run_path(run.path)
    assert "gives eager's results" in capsys.readouterr().out


def test_what_only_two_operators_together_show(run, capsys):
    def wrong_together(gm, example_inputs):
        names = {getattr(node.target, "__name__", node.target) for node in gm.graph.nodes}
        if {"sin", "exp"} <= names:
            return lambda *args: [result + 0.01 for result in gm(*args)]
        return gm.forward

    compiled = dynfix.compile(
        lambda x: (x.cos().sin() * 2 + x.relu().exp()).neg(), backend=wrong_together
    )
    with pytest.raises(SystemExit):
        called(lambda *args: compiled(args[0]))
    assert "in 2 operators" in capsys.readouterr().err


def graph(of):
    return torch.fx.symbolic_trace(of)


X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.mark.parametrize(
    ("eager", "compiled", "said"),
    [
        (lambda x: x + 1, lambda x: x + 1.001, "output 0 differs from eager: relative error"),
        (lambda x: x + 1, lambda x: (x + 1).double(), "its dtype is torch.float64, not"),
        (lambda x: x + 1, lambda x: (x + 1).detach(), "its requires_grad is False, not True"),
        (lambda x: x + 1, lambda x: (x + 1)[:2], "its shape is torch.Size([2, 4]), not"),
        (lambda x: x + 1, lambda x: (x.T.contiguous() + 1).T, "its strides are (1, 3), not (4, 1)"),
        (lambda x: x * 2, lambda x: x + x.detach(), "the gradient of input 0 differs"),
        (lambda x: x + 1, lambda x: (x + 1, x), "the number of outputs differs"),
        (lambda x: x > 0, lambda x: x >= 0.2, "output 0 differs from eager: 1 of 12 elements"),
        (lambda x: x.log(), lambda x: x.abs().log(), "NaN in 0 elements, not 6"),
        (
            lambda x: x.relu(),
            lambda x: (torch.rand(1), torch.relu(x))[1],
            "the state of generator 0",
        ),
        (lambda x: x + 1, lambda x: 1 / 0, "it raises ZeroDivisionError"),
    ],
)
def test_what_is_compared(eager, compiled, said):
    x = X.clone().requires_grad_()
    assert said in str(differences.differ(graph(eager), compiled, [x]))
    assert differences.differ(graph(eager), eager, [x]) is None
    assert torch.equal(x, X) and x.grad is None


def test_no_gradient_is_not_one_of_zeros():
    def eager(x, y):
        return x * 2 + y.detach()

    def zeros(x, y):
        return x * 2 + y.detach() + 0 * y

    given = [X.clone().requires_grad_(), X.clone().requires_grad_()]
    said = "the gradient of input 1 differs from eager: a tensor (3, 4), not None"
    assert said in str(differences.differ(graph(eager), zeros, given))
    said = "the gradient of input 1 differs from eager: None, not a tensor (3, 4)"
    assert said in str(differences.differ(graph(zeros), eager, given))


def test_strides_that_nobody_can_tell_are_no_difference():
    """Those of axes with one element, of empty tensors, and of gradients."""
    x = torch.randn(3, 1, 4, requires_grad=True)
    one = graph(lambda x: x + 1)
    assert (
        differences.differ(one, lambda x: (x.transpose(1, 2).contiguous() + 1).transpose(1, 2), [x])
        is None
    )
    assert differences.differ(one, lambda x: (x.T.contiguous() + 1).T, [torch.empty(0, 4)]) is None
    mean = graph(lambda x: (x * x).mean())
    assert (
        differences.differ(mean, lambda x: (x.T * x.T).mean(), [X.clone().requires_grad_()]) is None
    )


def test_a_write_of_an_input_is_compared():
    def eager(x, y):
        y.add_(x)
        return x * 1

    def wrong(x, y):
        y.add_(x * 1.1)
        return x * 1

    assert "input 1 after the call" in str(differences.differ(graph(eager), wrong, [X, X + 1], [1]))


def test_float64_follows_what_eager_draws():
    def drawn(x):
        noise = torch.randn_like(x) * torch.rand_like(x) + torch.multinomial(x.abs(), 4)
        return torch.nn.functional.dropout(x * noise, 0.3).sum(0)

    def written(x):
        return x.clone().normal_()

    found = differences.in_double(graph(drawn), [X], ())["output 0"]
    assert found.dtype == torch.float64
    wanted = differences.observe(drawn, [X])["output 0"]
    torch.testing.assert_close(found, wanted, check_dtype=False)
    assert not torch.equal(found, wanted.double())
    assert differences.in_double(graph(written), [X], ()) == {}


def test_autocast_in_a_graph_is_no_reason_for_a_warning():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    mode = graph.call_function(torch.amp._enter_autocast, ("cpu", torch.bfloat16, True, None))
    product = graph.call_function(torch.mm, (x, x))
    graph.call_function(torch.amp._exit_autocast, (mode,))
    graph.output((product,))
    module = torch.fx.GraphModule({}, graph)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = differences.in_double(module, [torch.eye(2)], [])
    assert found["output 0"].dtype == torch.float64


@pytest.mark.parametrize("drops", [False, True])
def test_another_thread_that_draws_is_no_difference(run, drops):
    """Nor is it given a number twice by the comparison of a graph that draws none."""
    compiled = dynfix.compile(lambda x: torch.nn.functional.dropout(x.sin(), 0.5, drops))
    xs = torch.arange(1600.0).view(4, 400)
    with Drawing() as other:
        for x in xs:
            compiled(x)
    assert run.compared + run.left_out == 3
    assert drops or other.drew_each_once()


def test_threads_that_compile_first_begin_one_verification(monkeypatch):
    begun, here = [], threading.Barrier(3)

    def begin(calls):
        time.sleep(0.05)
        begun.append(calls)

    def compiles():
        here.wait()
        made._watch_graphs()

    monkeypatch.setattr(session, "public", lambda name: begin)
    made = session.Session()
    made.verify = 2
    threads = [threading.Thread(target=compiles) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert begun == [2]


@pytest.mark.parametrize(
    ("graphs", "compared", "said"),
    [
        (2, 3, "3 calls of 2 graphs agree with eager"),
        (1, 0, "nothing was compared: 1 graph, and no later call was served by one"),
        (0, 0, "nothing was compared: no graph"),
    ],
)
def test_what_is_told_at_the_end(capsys, graphs, compared, said):
    run = Verification(8)
    run.graphs, run.compared = graphs, compared
    run.tell()
    assert capsys.readouterr().err == f"dynrun: --verify: {said}\n"


def test_rounding_is_no_difference():
    """In another order, or kept in float64 between, sums differ; float64 says by how little."""
    x = torch.randn(64, 4096) * 100

    def summed(x):
        return (x.sum(-1) - x[:, :7].sum(-1)).tanh()

    def in_another_order(x):
        return (x.flip(-1).cumsum(-1)[:, -1] - x[:, :7].sum(-1)).tanh()

    assert differences.differ(graph(summed), in_another_order, [x]) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_a_rounding_of_the_inputs_does_is_no_difference(dtype):
    """A sum that cancels, of which eager's own error is none by chance."""
    parts = torch.arange(1, 49, dtype=dtype) / 64
    x = torch.cat([parts, -parts.flip(0), torch.full((1,), 2**-12, dtype=dtype)])
    rounding = torch.finfo(dtype).eps
    for steps, agrees in ((8, True), (2048, False)):
        found = differences.differ(
            graph(lambda x: x.sum()), lambda x, n=steps: x.sum() + n * rounding, [x]
        )
        assert (found is None) == agrees
    count = x.expand(2, -1)
    assert differences.differ(graph(lambda x: x.sum(0) > 0), lambda x: x.sum(0) > 1, [count])
