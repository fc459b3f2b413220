"""Large results of which no gradient is asked: zeros for them are neither made nor read."""

from contextlib import nullcontext

import dynfix
import pytest
import torch
from dynfix.lowering import joint
from dynfix.lowering.autograd import missing_gradients
from dynfix.runtime.programs import result_memory


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """What counts as large; and a cache of its own."""
    monkeypatch.setattr(missing_gradients, "MIN_ZEROS_BYTES", 1 << 10)
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path))


@pytest.fixture
def zeros(monkeypatch):
    """Shapes of the zeros that are made."""
    found = []
    make = result_memory.zeros

    def made(shape, *how):
        found.append(shape)
        return make(shape, *how)

    monkeypatch.setattr(result_memory, "zeros", made)
    return found


@pytest.fixture
def backwards(monkeypatch):
    """What each backward that is compiled takes for zero."""
    found = []
    compile_unit = joint.compile_unit

    def compiled(graph, kind, *args):
        if kind == "backward":
            found.append(sum(node.name.startswith("tangents") for node in graph.graph.nodes))
        return compile_unit(graph, kind, *args)

    monkeypatch.setattr(joint, "compile_unit", compiled)
    return found


def model(x, w, labels):
    logits = x @ w
    return torch.nn.functional.cross_entropy(logits, labels), logits, (x * 2).exp()


def given():
    x, w = torch.randn(32, 16, requires_grad=True), torch.randn(16, 64, requires_grad=True)
    return x, w, torch.randint(64, (32,))


def chosen(results, which):
    return sum(results[k].square().sum() for k in which)


def checked(call, which):
    """Gradients with those of some results asked for, against eager's."""
    args = given()
    found, expected = (
        torch.autograd.grad(chosen(each(*args), which), args[:2], allow_unused=True)
        for each in (call, model)
    )
    torch.testing.assert_close(found, expected)


def test_a_loss_alone_needs_no_zeros(zeros, backwards):
    call = dynfix.compile(model, options={"strict": True})
    for _ in range(4):
        checked(call, (0,))
    assert not [shape for shape in zeros if len(shape) == 2][2:]  # before there is a program
    assert backwards == [1]


@pytest.mark.parametrize("order", [((0,), (0, 1)), ((0, 1), (0,)), ((1,), (0,), (0, 2), (2,))])
def test_later_calls_may_ask_for_others(order, backwards):
    call = dynfix.compile(model, options={"strict": True})
    for which in (*order, *order, (0, 1, 2), *order):
        checked(call, which)
    assert len(backwards) <= 2


def test_second_derivatives_and_several_backwards():
    call = dynfix.compile(model)
    for _ in range(3):
        args = given()
        for each in (call, model):
            loss, logits, _ = each(*args)
            (first,) = torch.autograd.grad(loss, args[0], create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), args[0], retain_graph=True)
            (third,) = torch.autograd.grad(logits.sum(), args[0])
            if each is call:
                kept = first, second, third
        torch.testing.assert_close(kept, (first, second, third))


def test_a_stored_program(monkeypatch):
    call = dynfix.compile(model, options={"strict": True})
    for _ in range(3):
        checked(call, (0,))
    torch._dynamo.reset()
    loaded = []
    load = missing_gradients.from_data
    monkeypatch.setattr(
        missing_gradients, "from_data", lambda *given: loaded.append(load(*given)) or loaded[-1]
    )
    monkeypatch.setattr(joint, "compile_unit", None)  # nothing is compiled again
    again = dynfix.compile(model, options={"strict": True})
    for which in ((0,), (0,), (0, 1), (0,), (1, 2)):
        checked(again, which)
    assert len(loaded) == 1


def test_a_stored_program_that_would_run_again_on_what_was_written_since():
    program = lambda x: ((x * 2).sin().sum(), x * 2)  # noqa: E731  -- keeps nothing of x
    call = dynfix.compile(program)
    for _ in range(3):
        x = torch.randn(32, 64, requires_grad=True)
        call(x)[0].backward()
    torch._dynamo.reset()
    again = dynfix.compile(program)
    for n in range(2):
        x = torch.randn(32, 64, requires_grad=True)
        results = again(x)
        with torch.no_grad():
            x.zero_()
        with pytest.raises(RuntimeError, match="was written before") if n else nullcontext():
            sum(map(torch.sum, results)).backward()


def test_what_only_zeros_are_made_of_is_left_out():
    graph = torch.fx.Graph()
    mode = torch._subclasses.FakeTensorMode()
    aten = torch.ops.aten

    def node(made, shape):
        made.meta["val"] = mode.from_tensor(torch.empty(shape))
        return made

    saved = node(graph.placeholder("saved"), (4, 8))
    one = node(graph.placeholder("tangents_1"), (4, 8))
    two = node(graph.placeholder("tangents_2"), (4, 8))
    product = node(graph.call_function(aten.mul.Tensor, (one, saved)), (4, 8))
    turned = node(graph.call_function(aten.permute.default, (product, [1, 0])), (8, 4))
    back = node(graph.call_function(aten.permute.default, (turned, [1, 0])), (4, 8))
    total = node(graph.call_function(aten.add.Tensor, (back, two)), (4, 8))
    power = node(graph.call_function(aten.exp.default, (one,)), (4, 8))
    graph.output((total, power))
    made = torch.fx.GraphModule(torch.nn.Module(), graph)
    missing_gradients._take_for_zero(made, 2, frozenset({0}))
    targets = [n.target for n in made.graph.nodes if n.op == "call_function"]
    assert targets == [aten.full.default, aten.exp.default]
    a, b = torch.randn(2, 4, 8)
    torch.testing.assert_close(made(a, b), (b, torch.ones(4, 8)))


def test_small_zeros_lie_as_the_gradient_that_they_stand_for():
    """Of a result that has gaps between its rows, next to uninitialised memory."""

    def program(x):
        return x.chunk(2, 1)

    compiled = dynfix.compile(program)
    for seed in range(4):
        found = []
        for each in (compiled, program):
            torch.manual_seed(seed)
            x = torch.randn(3, 4, requires_grad=True)
            torch.full((64,), torch.nan)  # let go of at once
            each(x)[0].abs().sum().backward()
            found.append(x.grad)
        assert torch.equal(*found)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y, s: torch._foreach_mul([x, y], 2.0),
        lambda x, y, s: torch._foreach_add([x * 2, y], [y, x], alpha=3),
        lambda x, y, s: [x * s, (y * 2).sin()],
    ],
)
def test_one_of_several_results_leads_where_eagers_does(call):
    compiled = dynfix.compile(lambda *args: tuple(call(*args)))
    for _ in range(3):
        args = [torch.randn(5), torch.randn(5), torch.randn(())]
        for result in (0, 1):
            found = []
            for each in (compiled, call):
                given = [x.clone().requires_grad_() for x in args]
                made = each(*given)[result]
                found.append(torch.autograd.grad(made.sum(), given, allow_unused=True))
            for mine, theirs in zip(*found, strict=True):
                assert (mine is None) == (theirs is None)
                if mine is not None:
                    torch.testing.assert_close(mine, theirs)


def test_views_of_one_tensor_beside_numbers_that_nobody_reads():
    def fn(x, y):
        part = x.sin()
        (y * 2).uniform_()
        return part.view(-1), part.view(-1), y.abs()

    compiled = dynfix.compile(fn)
    for turn in range(4):
        found = []
        for call in (compiled, fn):
            torch.manual_seed(turn)
            x, y = torch.randn(4, requires_grad=True), torch.randn(3, requires_grad=True)
            one, two, _ = call(x, y)
            found.append(torch.autograd.grad([one, two], [x], [torch.arange(4.0), one.detach()]))
        torch.testing.assert_close(*found)
