"""Graphs that AOTAutograd is not needed for: each is the one that it would give."""

import functools
import operator
from collections import Counter

import dynfix
import pytest
import torch
from dynfix.lowering.autograd.differentiation import leaf_gradients
from dynfix.lowering.decompositions.decompose import decompositions
from dynfix.lowering.fake_tensor_mode import PacedFakeMode
from dynfix.lowering.graph.inference_trace import inference_graph
from dynfix.lowering.joint import compile_graph
from dynfix.runtime.options import Options
from torch import nn
from torch._functorch import aot_autograd
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
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


def written_inputs(x, y):
    x.mul_(2)
    z = x + 1
    y.copy_(x.t()).clamp_(max=1)
    x += 1
    return (z * y,)


def statistics(x, y):
    mean, var = y[0].clone(), y[1].abs()
    return (F.batch_norm(x, mean, var, training=True), mean, var)


def in_other_dtypes(x, y):
    z = x.to(torch.bfloat16)
    z.add_(y)
    return (z, y.double().mul_(x))


def drawn(x, y):
    return (F.dropout(x) + torch.rand_like(y), torch.bernoulli(y.sigmoid()))


PLAIN = [
    *(in_place, views_before_and_after, rounded, layers, written_inputs, statistics),
    *(in_other_dtypes, drawn),
]


def graph_of(fn):
    return symbolic_trace(fn)


def aot_graph(gm, inputs):
    found = []

    def compiler(graph, _):
        found.append(graph)
        return aot_autograd.make_boxed_func(graph.forward)

    aot_autograd.aot_module_simplified(
        gm, inputs, fw_compiler=compiler, keep_inference_input_mutations=True
    )
    return found[0]


ONLY_NAMES = (operator.getitem, torch.ops.aten.detach.default, torch.ops.aten.alias.default)


def operators(gm):
    nodes = (node for node in gm.graph.nodes if node.op == "call_function")
    return Counter(str(node.target) for node in nodes if node.target not in ONLY_NAMES)


def check(gm, inputs, casts_are_kept=False):
    """The traced graph is AOTAutograd's; it and its kernels do what the torch-level graph does."""
    before = [each.detach().clone() for each in inputs]
    found, aot = inference_graph(gm, inputs, {}), aot_graph(gm, inputs)
    if casts_are_kept:  # as autocast does in eager: the gradients of both uses meet in bfloat16
        assert operators(found.graph) < operators(aot)
    else:
        assert operators(found.graph) == operators(aot)
    places = [node for node in aot.graph.nodes if node.op == "placeholder"]
    copies = aot.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    assert [*found.written] == sorted(places.index(copy.args[0]) for copy in copies)
    compiled = compile_graph(gm, inputs, Options(verify_ir=True))
    torch.testing.assert_close([each.detach() for each in inputs], before)
    for _ in range(3):
        run_alike(gm, torch.no_grad()(found.graph), inputs, {"rtol": 0, "atol": 0})
        run_alike(gm, compiled, inputs, {})


def run_alike(gm, run, inputs, within):
    given = [torch.randn_like(each) for each in inputs]
    wanted_in, got_in = ([*map(again, given, inputs)] for _ in range(2))
    with torch.random.fork_rng([]):
        wanted, state = gm(*wanted_in), torch.get_rng_state()
    got = run(*got_in)
    torch.testing.assert_close([*got], [*wanted], **within)
    torch.testing.assert_close(got_in, wanted_in, **within)
    for one, other in zip((*got, *got_in), (*wanted, *wanted_in), strict=True):
        assert one.stride() == other.stride() and one.requires_grad == other.requires_grad
    assert [one._version > 0 for one in got_in] == [one._version > 0 for one in wanted_in]
    assert torch.equal(torch.get_rng_state(), state)


def again(value, like):
    return value.detach().clone().requires_grad_(like.requires_grad)


@pytest.mark.parametrize("fn", PLAIN, ids=lambda fn: fn.__name__)
@torch.no_grad()
def test_the_graph_is_aot_autograds(fn):
    inputs = torch.randn(8, 8)[:, :].contiguous(), torch.randn(8, 8)
    check(graph_of(fn), (inputs[0][:4], inputs[1]) if fn is layers else inputs)


@torch.no_grad()
def test_a_norm_with_given_statistics_writes_nothing():
    gm = graph_of(lambda x, y: (F.batch_norm(x, y[0], y[1]),))
    inputs = torch.randn(4, 8), torch.rand(2, 8)
    for table in ({}, decompositions(), decompositions(implicit=False)):
        assert inference_graph(gm, inputs, table).written == ()


@torch.no_grad()
def test_operators_in_place_on_lists():
    graph = torch.fx.Graph()
    x, y, z = (graph.placeholder(name) for name in "xyz")
    graph.call_function(torch._foreach_add_, ([x, y], [y, z]), {"alpha": 0.5})
    graph.call_function(torch._foreach_mul_, ([y, z], 2))
    graph.output((graph.call_method("exp", (y,)),))
    gm = torch.fx.GraphModule(nn.Module(), graph)
    check(gm, [torch.randn(4, 3) for _ in range(3)])
    graph.find_nodes(op="call_function", target=torch._foreach_mul_)[0].args = ([y, y], 2)
    gm.recompile()
    assert inference_graph(gm, [torch.randn(4, 3) for _ in range(3)], {}) is None


def training_step(graph, x, w, moments, autocast):
    """forward, backward and update; the loss."""
    call = graph.call_function
    entered = call(_enter_autocast, ("cpu", torch.bfloat16, True, True)) if autocast else None
    hidden = call(torch.relu, (call(torch.matmul, (x, w)),))
    hidden = hidden if autocast else call(F.dropout, (hidden, 0.25))  # whose kernel rounds once
    loss = graph.call_method("mean", (call(torch.square, (call(torch.matmul, (hidden, w)),)),))
    if autocast:
        call(_exit_autocast, (entered,))
    gradients = call(leaf_gradients, ([loss], None, [w], False, False))
    gradient = call(operator.getitem, (gradients, 0))
    call(torch._C._set_grad_enabled, (False,))
    graph.call_method("lerp_", (moments, gradient, 0.5))
    graph.call_method("sub_", (w, moments))
    call(torch._C._set_grad_enabled, (True,))
    return graph.call_method("detach", (loss,))


@pytest.mark.parametrize("autocast", [False, True])
def test_a_training_step_is_traced_once(autocast):
    graph = torch.fx.Graph()
    x, w, moments = (graph.placeholder(name) for name in ("x", "w", "moments"))
    graph.output((training_step(graph, x, w, moments, autocast),))
    gm = torch.fx.GraphModule(nn.Module(), graph)
    inputs = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True), torch.zeros(4, 4)
    check(gm, inputs, casts_are_kept=autocast)
    assert inputs[1].grad is None and inputs[1].grad_fn is None


def test_modes_are_put_back_when_tracing_fails():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch._C._set_grad_enabled, (False,))
    graph.call_function(_enter_autocast, ("cpu", torch.bfloat16, True, True))
    graph.output((graph.call_method("item", (x,)),))
    inputs = (torch.randn(()),)
    assert inference_graph(torch.fx.GraphModule(nn.Module(), graph), inputs, {}) is None
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def test_results_with_a_history_are_left_to_aot_autograd():
    graph = torch.fx.Graph()
    x, w, moments = (graph.placeholder(name) for name in ("x", "w", "moments"))
    loss = training_step(graph, x, w, moments, autocast=False)
    graph.output((graph.call_function(torch.mul, (loss, w)),))
    inputs = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True), torch.zeros(4, 4)
    gm = torch.fx.GraphModule(nn.Module(), graph)
    assert inference_graph(gm, inputs, {}) is None


def test_hooks_on_what_is_saved_are_left_to_aot_autograd():
    gm, inputs = graph_of(lambda x, y: (x * 2 + y,)), (torch.randn(4), torch.randn(4))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        assert inference_graph(gm, inputs, {}) is None


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


def statistics_in_part(x, y):
    return (F.batch_norm(x, y[0], y[1], training=True),)


def checked(x, y):
    torch._assert_async((x < 100).all())
    return (x + y,)


UNUSUAL = [
    *(written_through_a_view, read_through_a_view, beyond_its_memory, checked),
    *(statistics_in_part, lambda x, y: (x[0].mul_(2) + y,), lambda x, y: (x.data.mul_(2) + y,)),
    lambda x, y: (x + y.requires_grad_(),),
    *(lambda x, y: (x.add_(y),), lambda x, y: (x.view(-1), y + 1), lambda x, y: (x,)),
    lambda x, y: (x.t_() + y,),
    lambda x, y: ((x + y).requires_grad_(),),
    lambda x, y: (x.masked_select(y > 0),),
    lambda x, y: operator.itemgetter(0, 0)([x + y]),
    lambda x, y: torch.fft.fft(x).abs()[None],
]


@pytest.mark.parametrize("fn", UNUSUAL, ids=lambda fn: fn.__name__)
@torch.no_grad()
def test_what_is_unusual_is_left_to_aot_autograd(fn):
    inputs = torch.randn(4, 4), torch.rand(4, 4)
    assert inference_graph(graph_of(fn), inputs, {}) is None


def test_a_mode_that_the_graph_leaves_changed_is_left_to_aot_autograd():
    changing = torch.fx.GraphModule(nn.Module(), torch.fx.Graph())
    x, y = (changing.graph.placeholder(name) for name in "xy")
    changing.graph.call_function(torch._C._set_grad_enabled, (True,))
    changing.graph.output((changing.graph.call_function(torch.mul, (x, y)),))
    inputs = torch.randn(4, 4), torch.rand(4, 4)
    assert inference_graph(changing, inputs, {}) is not None
    with torch.no_grad():
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


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
def test_gradients_inside_a_call_without(backend):
    """What was made before has none, at every call."""

    def fn(x, y):
        before = x * 2
        with torch.enable_grad():
            inside = y.detach() + x
        return before, inside, x * 3

    call = dynfix.compile(fn, backend=backend, fullgraph=True)
    with torch.no_grad():
        for _ in range(5):
            x, y = torch.randn(4, requires_grad=True), torch.randn(4)
            assert [each.requires_grad for each in call(x, y)] == [False, True, False]
            for found, expected in zip(call(x, y), fn(x, y), strict=True):
                torch.testing.assert_close(found, expected)


def test_what_the_short_table_lacks_torch_writes_out_itself():
    full, short = decompositions(), decompositions(implicit=False)
    implicit = torch._C.DispatchKey.CompositeImplicitAutograd
    assert short.keys() < full.keys()
    for op in full.keys() - short.keys():
        by_c = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), implicit)
        assert by_c or implicit in op.py_kernels, op


def test_numbers_among_the_results_of_an_operator():
    """The library's attention on a GPU gives lengths, too."""
    graph = torch.fx.Graph()
    q = graph.placeholder("q")
    attention = torch.ops.aten._scaled_dot_product_flash_attention.default
    made = graph.call_function(attention, (q, q, q))
    mixed, length = (graph.call_function(operator.getitem, (made, k)) for k in (0, 4))
    graph.output((graph.call_function(torch.ops.aten.mul.Scalar, (mixed, length)),))
    with PacedFakeMode():
        q = torch.empty(2, 4, 16, 64, dtype=torch.float16, device="cuda")
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    traced = inference_graph(gm, [q], decompositions(("cuda",), implicit=False))
    (product,) = traced.graph.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Scalar)
    assert product.args[1] == 16
