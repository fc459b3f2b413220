"""Joint graphs by our own tracer: as AOTAutograd's, which still traces what is unusual."""

import pytest
import torch
from dynfix.lowering import joint
from dynfix.lowering.autograd import joint_graphs
from dynfix.lowering.joint import compile_graph
from dynfix.runtime.options import Options
from torch.nn import functional as F


def mlp(x, w, b):
    return (F.gelu(F.linear(x, w, b)).square().mean(),)


def in_place(x, w, b):
    y = F.linear(x, w, b)
    y.mul_(2).relu_()
    return (y.softmax(-1), y.detach().sum())


def normalised(x, w, b):
    y = F.batch_norm(F.linear(x, w, b), x.new_zeros(5), x.new_ones(5), training=True)
    return (y.tanh(),)


def partly(x, w, b):
    """Of one input there is no gradient, and of one result."""
    return (x * 2, (w > 0).float(), w.amax(1) + b.detach())


def counted(x, w, b):
    """An input is written as a whole."""
    b.copy_(w.detach().sum(1))
    return (F.linear(x, w) * 3,)


PLAIN = (mlp, in_place, normalised, partly, counted)


def view_of_input(x, w, b):
    return (x.view(-1), F.linear(x, w, b))


def part_is_written(x, w, b):
    y = x * 1
    y[0].copy_(b[:4].sum())
    return (F.linear(y, w),)


def complex_inside(x, w, b):
    return (torch.fft.rfft(x).abs() @ w[:, :3].T,)


UNUSUAL = (view_of_input, part_is_written, complex_inside)


def inputs():
    torch.manual_seed(0)
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    return x, w, torch.randn(5)


def observed(program, given):
    made = program(*given)
    taken = [each for each in made if each.requires_grad]
    grads = torch.autograd.grad(
        taken, given[:2], [torch.ones_like(each) for each in taken], allow_unused=True
    )
    return [*made, *grads, given[2]]


def check(program):
    compiled = compile_graph(torch.fx.symbolic_trace(program), list(inputs()), Options())
    for _ in range(3):
        found, wanted = observed(compiled, inputs()), observed(program, inputs())
        for mine, theirs in zip(found, wanted, strict=True):
            if theirs is None:
                assert mine is None
                continue
            torch.testing.assert_close(mine, theirs)
            assert mine.stride() == theirs.stride() and mine.requires_grad == theirs.requires_grad


@pytest.fixture
def left(monkeypatch):
    """Joint graphs that AOTAutograd traces."""
    asked, theirs = [], joint_graphs._their_joint_graph

    def counting(*args, **kwargs):
        asked.append(args)
        return theirs(*args, **kwargs)

    monkeypatch.setattr(joint_graphs, "_their_joint_graph", counting)
    return asked


@pytest.mark.parametrize("program", PLAIN)
def test_plain_training_is_traced_here(program, left):
    check(program)
    assert not left


@pytest.mark.parametrize("program", UNUSUAL)
def test_what_is_unusual_is_left_to_aotautograd(program, left):
    check(program)
    assert left


def test_a_backward_names_the_lines_of_its_forward(monkeypatch):
    def program(x, w, b):
        return (torch.exp(F.linear(x, w, b)) + torch.sin(F.linear(x, w)),)

    gm = torch.fx.symbolic_trace(program)
    for node in gm.graph.nodes:
        node.meta["origin"] = f"line of {node.name}"
    graphs, compiled = {}, joint._compiled

    def seen(options, kept, kind, graph, returned):
        graphs[kind] = graph
        return compiled(options, kept, kind, graph, returned)

    monkeypatch.setattr(joint, "_compiled", seen)
    x, w, b = inputs()
    compile_graph(gm, [x, w, b], Options())(x, w, b)[0].sum().backward()
    nodes = graphs["backward"].graph.find_nodes(
        op="call_function", target=torch.ops.aten.mul.Tensor
    )
    assert {node.meta.get("origin") for node in nodes} == {"line of exp", "line of sin"}
