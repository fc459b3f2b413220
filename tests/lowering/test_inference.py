"""Inference that AOTAutograd is not needed for: the graph is the one that it would give."""

import functools
import operator
from collections import Counter

import dynfix
import pytest
import torch
from dynfix.lowering.graphs.inference_trace import inference_graph
from dynfix.lowering.joint import compile_graph
from dynfix.runtime.options import Options
from torch import nn
from torch._functorch import aot_autograd
from torch.fx import symbolic_trace
from torch.nn import functional as F


def in_place(x, y):
    z = x + y
    z.mul_(2).add_(y)
    z += 1
    return (z * z,)


def views_before_and_after(x, y):
    z = x * 2
    z.view(-1)  # which nothing reads once it is written
    z.add_(y)
    return (z.t() + 1, z.view(-1) * 2)


def rounded(x, y):
    z = (x * 10).to(torch.int64)
    z.mul_(3).remainder_(5)
    return (z, F.softmax(x.to(torch.float64), -1).clamp_(max=0.5))


def layers(x, y):
    q = F.layer_norm(x, (8,)).reshape(2, 2, 2, 4)
    made = F.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(4, 8)
    first, second = F.gelu(F.linear(made, y)).chunk(2, -1)
    return (torch.cat([first, second], 0).mT + 1, y.new_zeros(3))


PLAIN = [in_place, views_before_and_after, rounded, layers]


def graph_of(fn):
    return symbolic_trace(fn)


def called(fn, *inputs):
    return [fn(*inputs)] if isinstance(fn(*inputs), torch.Tensor) else [*fn(*inputs)]


def aot_graph(gm, inputs):
    found = []

    def compiler(graph, _):
        found.append(graph)
        return aot_autograd.make_boxed_func(graph.forward)

    aot_autograd.aot_module_simplified(gm, inputs, fw_compiler=compiler)
    return found[0]


def operators(gm):
    nodes = (node for node in gm.graph.nodes if node.op == "call_function")
    return Counter(str(node.target) for node in nodes if node.target is not operator.getitem)


@pytest.mark.parametrize("fn", PLAIN, ids=lambda fn: fn.__name__)
@torch.no_grad()
def test_the_graph_is_aot_autograds(fn):
    inputs = torch.randn(8, 8)[:, :].contiguous(), torch.randn(8, 8)
    inputs = (inputs[0][:4], inputs[1]) if fn is layers else inputs
    traced = inference_graph(graph_of(fn), inputs, {})
    assert operators(traced) == operators(aot_graph(graph_of(fn), inputs))
    compiled = compile_graph(graph_of(fn), inputs, Options(verify_ir=True))
    for _ in range(3):
        given = [torch.randn_like(each) for each in inputs]
        before = [each.clone() for each in given]
        wanted = fn(*before)
        for got in (traced(*given), compiled(*given)):
            torch.testing.assert_close([*got], [*wanted])
            assert [each.stride() for each in got] == [each.stride() for each in wanted]
        torch.testing.assert_close(given, before)


def written_through_a_view(x, y):
    z = x * 2
    z[0].add_(1)
    return (z + y,)


def read_through_a_view(x, y):
    z = x * 2
    part = z.view(-1)
    z.add_(y)
    return (part + 1,)


def beyond_its_memory(x, y):
    z = x * 2
    part = z[:2]
    part.add_(1)
    return (part.as_strided((4, 4), (4, 1)) + 1,)


def statistics(x, y):
    return (F.batch_norm(x, y[0], y[1], training=True),)


def grad_mode(x, y):
    torch._C._set_grad_enabled(True)
    z = x * 2
    torch._C._set_grad_enabled(False)
    return (z + y,)


def checked(x, y):
    torch._assert_async((x < 100).all())
    return (x + y,)


UNUSUAL = [
    *(written_through_a_view, read_through_a_view, beyond_its_memory, statistics, checked),
    *(lambda x, y: (x.add_(y),), lambda x, y: (x.view(-1), y + 1), lambda x, y: (x,)),
    lambda x, y: (x.t_() + y,),
    lambda x, y: ((x + y).requires_grad_() * 2,),
    lambda x, y: (x.masked_select(y > 0),),
    lambda x, y: operator.itemgetter(0, 0)([x + y]),
    lambda x, y: torch.fft.fft(x).abs()[None],
    lambda x, y: (torch.bernoulli(y) + x,),
    lambda x, y: (F.scaled_dot_product_attention(x[None], y[None], x[None], dropout_p=0.5),),
]


@pytest.mark.parametrize("fn", UNUSUAL, ids=lambda fn: fn.__name__)
@torch.no_grad()
def test_what_is_unusual_is_left_to_aot_autograd(fn):
    inputs = torch.randn(4, 4), torch.rand(4, 4)
    assert inference_graph(graph_of(fn), inputs, {}) is None


def test_a_mode_that_the_graph_changes_is_left_to_aot_autograd():
    gm = graph_of(lambda x, y: (x * 2 + y,))
    inputs = torch.randn(4, 4), torch.rand(4, 4)
    assert inference_graph(gm, inputs, {}) is not None
    with torch.no_grad():
        changing = torch.fx.GraphModule(gm, torch.fx.Graph())
        x, y = (changing.graph.placeholder(name) for name in "xy")
        changing.graph.call_function(torch._C._set_grad_enabled, (True,))
        made = changing.graph.call_function(torch.mul, (x, y))
        changing.graph.output((made,))
        assert inference_graph(changing, inputs, {}) is None


def test_gradients_and_autocast_are_left_to_aot_autograd():
    gm = graph_of(lambda x, y: (x @ y,))
    inputs = torch.randn(4, 4, requires_grad=True), torch.rand(4, 4)
    assert inference_graph(gm, inputs, {}) is None
    with torch.no_grad():
        assert inference_graph(gm, inputs, {}) is not None
        with torch.autocast("cpu", torch.bfloat16):
            assert inference_graph(gm, inputs, {}) is None


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_inference_is_traced_once(backend, monkeypatch):
    @functools.wraps(aot_autograd.aot_module_simplified)
    def refused(*args, **settings):
        raise AssertionError("AOTAutograd is asked")

    monkeypatch.setattr(aot_autograd, "aot_module_simplified", refused)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(16, 4))
    model.eval()
    compiled = dynfix.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(3, 8)
            torch.testing.assert_close(compiled(x), model(x))
