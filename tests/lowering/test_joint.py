import dynfix
import pytest
import torch
from dynfix.lowering import joint
from dynfix.lowering.decompositions import decompose
from dynfix.lowering.joint import compile_graph
from dynfix.lowering.loops.kernel_graph import ExternCall
from dynfix.runtime.errors import BuildError
from dynfix.runtime.options import Options
from torch._dispatch.python import enable_python_dispatcher
from torch.fx import symbolic_trace

from .harness import CHECKED, UNFUSED, assert_same, check, check_gradients, compiled, units

F = torch.nn.functional


def mlp(x, w1, b1, w2, b2, g, b):
    h = F.gelu(F.linear(x, w1, b1))
    return F.linear(F.layer_norm(h, (24,), g, b), w2, b2).log_softmax(-1)


def mlp_inputs():
    shapes = [(6, 12), (24, 12), (24,), (5, 24), (5,), (24,), (24,)]
    return [torch.randn(shape) for shape in shapes]


@pytest.mark.parametrize("options", [CHECKED, UNFUSED], ids=["fused", "unfused"])
def test_forward_and_backward_of_an_mlp(options):
    check_gradients(mlp, *mlp_inputs(), options=options)


def test_rounding_of_half_types_does_not_depend_on_fusion():
    x, y = torch.randn(300).bfloat16(), torch.randn(300).bfloat16()

    def fn(x, y):
        return ((x + y) * x - y) / (y * y + 1) + x * 0.3

    found = compiled(fn, x, y)(x, y)
    assert torch.equal(found, compiled(fn, x, y, options=UNFUSED)(x, y))
    assert torch.equal(found, fn(x, y))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: (x * y).sum(),
        lambda x, y: torch.softmax(x @ y.t(), -1),
        lambda x, y: F.silu(x) * y + x[:, :1],
        lambda x, y: torch.cat([x, y], 1).std(1),
        lambda x, y: torch.stack([x, y]).max(0)[0],
        lambda x, y: F.rms_norm(x, (10,)) * y.t().contiguous().t(),
        lambda x, y: torch.where(x > y, x, y).pow(3).mean(0),
        lambda x, y: (x[::2, 1:] * y[1::2, :-1], F.pad(x, (1, 2)), y.flip(0)),
        lambda x, y: torch.einsum("ab,cb->ac", x, y).tanh(),
        lambda x, y: F.dropout(x, 0.4, True) + F.dropout(y, 0.2, True),
        lambda x, y: x.view(4, 2, 10).transpose(0, 1).reshape(2, 40) + y.view(2, 40),
        lambda x, y: (x.cumsum(0), y.sort(1)[0], torch.gather(x, 1, y.argsort(1))),
    ],
)
def test_gradients(fn):
    check_gradients(fn, torch.randn(8, 10), torch.randn(8, 10))


def test_the_statistics_of_a_batch_norm_are_not_rounded_for_its_backward():
    """Of two values each, whose gradients cancel out."""
    torch.manual_seed(0)
    x = torch.randn(2, 64).mul(5).bfloat16().requires_grad_()
    fn = compiled(lambda x: (F.batch_norm(x, None, None, training=True),), x)
    seed = torch.randn(2, 64).bfloat16()
    (found,) = torch.autograd.grad(fn(x)[0], x, seed)
    wide = x.detach().double().requires_grad_()
    made = F.batch_norm(wide, None, None, training=True)
    (exact,) = torch.autograd.grad(made, wide, seed.double())
    torch.testing.assert_close(found.double(), exact, rtol=1e-2, atol=1e-4)


def test_convolution_and_batch_norm_in_training_update_running_statistics():
    def fn(x, w, g, b, mean, var):
        return F.relu(F.batch_norm(F.conv2d(x, w, padding=1), mean, var, g, b, training=True))

    args = [torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3), torch.rand(4), torch.rand(4)]
    ours, theirs = ([torch.zeros(4), torch.ones(4)] for _ in range(2))
    call = compiled(fn, *args, *ours)
    for _ in range(3):
        assert_same(call(*args, *ours), fn(*args, *theirs), 1e-4, 1e-5)
        assert_same(ours, theirs, 1e-4, 1e-5)


def test_inputs_written_in_place():
    def fn(x, y):
        x.add_(1)
        y[0].copy_(x.sum())
        x.mul_(y[1])
        return x * 2, y.sum()

    call = None
    ours, theirs = ([torch.arange(4.0), torch.arange(6.0)] for _ in range(2))
    call = compiled(fn, *[a.clone() for a in ours])
    for _ in range(3):
        assert_same(call(*ours), fn(*theirs))
        assert_same(ours, theirs)


def test_results_that_are_inputs_or_views():
    x, y = torch.randn(4, 6), torch.randn(6)

    def fn(x, y):
        z = x + y
        return x, x.t(), z, z[1], z.view(-1), z, y[None].expand(4, 6)

    call = compiled(fn, x, y)
    for _ in range(3):
        found, expected = call(x, y), fn(x, y)
        assert_same(found, expected)
        assert found[0] is x
        assert found[1].data_ptr() == x.data_ptr()
        assert found[3].data_ptr() == found[2].data_ptr() + 24
        x, y = x * 2, y - 1


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_random_operators_follow_the_generator(p):
    def fn(x):
        noise = torch.rand_like(x) + torch.randn_like(x)
        return F.dropout(x, p, True) * noise, torch.bernoulli(x.sigmoid())

    x = torch.randn(4, 8)
    call = compiled(fn, x)
    for seed in range(3):
        torch.manual_seed(seed)
        found, after = call(x), torch.rand(1)
        torch.manual_seed(seed)
        assert_same(found, fn(x))
        assert torch.equal(after, torch.rand(1))


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "shape", [(0,), (1,), (7, 33), (2, 5, 6, 7)], ids=lambda shape: "x".join(map(str, shape))
)
def test_a_dropout_is_a_draw_and_a_product(shape, dtype, monkeypatch):
    """The same elements as eager's, and the same state of the generator afterwards."""
    made = units(monkeypatch)
    x = torch.randn(shape).to(dtype)
    x = x.to(memory_format=torch.channels_last) if x.dim() == 4 else x
    call = dynfix.compile(lambda x: F.dropout(x * 2, 0.3))
    for turn in range(3):
        results = []
        for fn in (call, lambda x: F.dropout(x * 2, 0.3)):
            torch.manual_seed(turn)
            leaf = x.clone().requires_grad_()
            y = fn(leaf)
            y.backward(torch.ones_like(y))
            results.append((y.detach(), leaf.grad, torch.rand(3)))
        torch.testing.assert_close(*results)
        assert results[0][0].stride() == results[1][0].stride()
    items = [item for unit in made for item in unit.items if isinstance(item, ExternCall)]
    assert not any(item.target is torch.ops.aten.native_dropout.default for item in items)


def test_two_forwards_before_their_backwards():
    x1, x2 = (torch.randn(5, 7, requires_grad=True) for _ in range(2))

    def fn(x):
        return torch.softmax(F.gelu(x * 2), -1).exp()

    call = compiled(fn, x1)
    first, second = call(x1), call(x2)
    first.sum().backward()
    second.sum().backward()
    for x in (x1, x2):
        other = x.detach().clone().requires_grad_()
        fn(other).sum().backward()
        torch.testing.assert_close(x.grad, other.grad)


def test_results_of_earlier_calls_stay_as_they_were():
    def fn(x):
        h = (x @ x).exp()
        return h.sum(1), (h @ x).sin()

    call = compiled(fn, torch.randn(6, 6) / 3)
    inputs = [torch.randn(6, 6) / 3 for _ in range(4)]
    results = [call(x) for x in inputs]
    for x, result in zip(inputs, results, strict=True):
        assert_same(result, fn(x))


def test_result_used_twice_and_backward_of_a_view():
    def fn(x):
        y = x.exp()
        return y, y.transpose(0, 1)

    ours, theirs = (torch.arange(6.0).view(2, 3).requires_grad_() for _ in range(2))
    for x, call in ((ours, compiled(fn, ours)), (theirs, fn)):
        a, b = call(x)
        (a.sum() + (b * b).sum() + (a * 2).sum()).backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_embedding_indices_and_bounds():
    table, ids = torch.randn(10, 6), torch.randint(0, 10, (3, 4))

    def fn(table, ids):
        return (
            F.embedding(ids, table),
            table[ids, 0],
            table.index_select(0, ids[0]),
            table[:, ids[0] % 6],
            table[ids[:, :2]],
        )

    call = check(fn, table, ids)
    with pytest.raises(IndexError, match="out of range"):
        call(table, ids + 10)
    check_gradients(lambda t: F.embedding(torch.tensor([[1, 2], [2, 9]]), t).tanh(), table)


def test_factories_and_triangles():
    def fn(x):
        mask = torch.ones(5, 5, dtype=torch.bool).tril(-1)
        positions = torch.arange(2, 17, 3)
        return (
            mask,
            positions,
            torch.full((2, 3), 7),
            torch.zeros_like(x),
            torch.arange(5) + x,
            x.triu(1),
            torch.eye(3),
            x.repeat(2, 3),
        )

    check(fn, torch.randn(5, 5))


def test_scatters_and_slices():
    def fn(x, y):
        a = x.clone()
        a[1:5:2].copy_(y[:2])
        b = x.clone()
        b[:, 3].fill_(5)
        c = x.clone().masked_fill_(x > 0, -1)
        d = torch.zeros_like(x).scatter(1, torch.tensor([[0], [1], [2], [3], [4], [5]]), y)
        e = torch.zeros(6, 7).index_put((torch.tensor([1, 1, 3]),), y[:3], accumulate=True)
        return (
            a,
            b,
            c,
            d,
            e,
            torch.roll(x, 2, 1),
            x.unfold(1, 3, 2),
            torch.diagonal(x),
            x.split(2, 1)[1] * 2,
        )

    check(fn, torch.randn(6, 7), torch.randn(6, 7))


def test_joins_inside_of_expressions():
    def rotate(x, cos, sin):
        half = torch.cat((-x[..., 4:], x[..., :4]), -1)
        return (
            x * cos + half * sin,
            torch.cat((x, cos, sin), 0).exp(),
            torch.cat((x[:2], x[2:3], x), 0).sum(0),
            torch.cat((x, x), 1),
        )

    check_gradients(rotate, torch.randn(6, 8), torch.randn(6, 8), torch.randn(6, 8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_joins_of_nothing(dtype):
    def fn(x, y):
        return torch.cat([x]), torch.cat([x, y]), torch.cat([x, y])[:, None] * 2

    check(fn, torch.ones(0, dtype=dtype), torch.ones(0, dtype=dtype))


def test_operators_without_a_lowering_are_called():
    def fn(x):
        q, r = torch.linalg.qr(x)
        v, i = x.topk(2)
        return (
            (q @ r),
            v,
            i,
            torch.fft.fft(x).real,
            x.cumprod(1),
            x.nonzero().shape[0] * x if False else x.median(),
        )

    check(fn, torch.randn(5, 5), rtol=1e-4, atol=1e-5)


def test_grad_mode_and_autocast_nodes():
    graph = torch.fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    graph.call_function(torch._C._set_grad_enabled, (False,))
    y = graph.call_function(torch.mul, (x, 2))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    entered = graph.call_function(
        torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, None)
    )
    z = graph.call_function(torch.matmul, (x, w))
    graph.call_function(torch.amp.autocast_mode._exit_autocast, (entered,))
    graph.output((y, z))
    args = [torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)]
    call = compile_graph(torch.fx.GraphModule(torch.nn.Module(), graph), args, CHECKED)
    for _ in range(3):
        y, z = call(*args)
        assert not y.requires_grad and z.requires_grad
        with torch.autocast("cpu", torch.bfloat16):
            expected = args[0] @ args[1]
        assert_same([y, z.detach()], [(args[0] * 2).detach(), expected.detach()])
        found = torch.autograd.grad(z.float().sum(), args)
        assert_same(found, torch.autograd.grad(expected.float().sum(), args))


def test_a_transformer_block_from_ids_to_loss():
    def block(table, wq, wk, wv, wo, w1, w2, g, ids, target):
        x = F.embedding(ids, table)
        h = F.rms_norm(x, (16,), g)
        q, k, v = (F.linear(h, w).view(2, 7, 4, 4).transpose(1, 2) for w in (wq, wk, wv))
        q = q * 0.5 + torch.cat((-q[..., 2:], q[..., :2]), -1) * 0.1
        x = x + F.linear(
            F.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .reshape(2, 7, 16),
            wo,
        )
        h = F.layer_norm(x, (16,), g)
        x = x + F.dropout(F.linear(F.silu(F.linear(h, w1)), w2), 0.1, True)
        logits = F.linear(x, table)
        return F.cross_entropy(logits.view(-1, 20), target.view(-1)), logits

    weights = [torch.randn(20, 16)] + [torch.randn(16, 16) / 4 for _ in range(4)]
    weights += [torch.randn(32, 16) / 4, torch.randn(16, 32) / 5, torch.rand(16)]
    target = torch.randint(0, 20, (2, 7))
    target[0, 3] = -100
    check_gradients(block, *weights, torch.randint(0, 20, (2, 7)), target)


def test_inference_mode_and_no_grad():
    args = mlp_inputs()
    with torch.no_grad():
        check(mlp, *args, rtol=1e-5, atol=1e-6)


def test_large_loops_use_threads_and_release_the_lock():
    x = torch.randn(300, 1000)

    def fn(x):
        return F.gelu(x), x.softmax(-1), x.sum(0)

    check(fn, x, rtol=1e-5, atol=1e-5)


def test_calls_from_several_threads():
    from concurrent.futures import ThreadPoolExecutor

    def fn(x):
        return torch.softmax((x @ x).tanh(), -1) + x.sum(0)

    inputs = [torch.randn(40, 40) for _ in range(16)]
    call = compiled(fn, inputs[0])
    with ThreadPoolExecutor(4) as pool:
        for x, found in zip(inputs, pool.map(call, inputs), strict=True):
            assert_same(found, fn(x), 1e-5, 1e-5)


def test_symbolic_sizes_run_through_extern_calls():
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    fake = mode.from_tensor(torch.randn(5, 4), symbolic_context=context)
    gm = symbolic_trace(lambda x: (x.exp().sum(1), F.gelu(x) * x.shape[0]))
    call = compile_graph(gm, [fake], Options())
    for rows in (5, 9, 3):
        x = torch.randn(rows, 4)
        assert_same(call(x), (x.exp().sum(1), F.gelu(x) * rows), 1e-5, 1e-6)


@pytest.mark.parametrize("shape", [(10,), (4, 10), (1, 10)])
def test_a_margin_loss_of_a_vector_is_a_number(shape):
    target = torch.randint(0, 9, shape)

    def losses(x):
        loss = F.multilabel_margin_loss
        return loss(x, target, reduction="none"), loss(x, target)

    check_gradients(losses, torch.randn(shape))


def test_errors_name_the_operator_and_its_origin(monkeypatch):
    from dynfix.lowering.lowerings import registry
    from dynfix.runtime.errors import LoweringError

    def broken(ctx, node, *args):
        raise ValueError("planted")

    monkeypatch.setitem(registry.LOWERINGS, torch.ops.aten.sin.default, broken)
    gm = symbolic_trace(lambda x: x.sin())
    for node in gm.graph.nodes:
        node.meta["stack_trace"] = (
            '  File "/home/me/model.py", line 41, in forward\n    y = x.sin()'
        )
    with pytest.raises(LoweringError, match=r"aten\.sin.*model\.py:41.*y = x\.sin\(\).*planted"):
        compile_graph(gm, [torch.randn(3)], Options())


@pytest.mark.filterwarnings("ignore")
def test_a_backward_that_cannot_be_built_leaves_calls_to_eager(monkeypatch):
    made = joint.compile_unit

    def compile_unit(graph, kind, *given):
        if kind == "backward":
            raise BuildError("the compiler gave up")
        return made(graph, kind, *given)

    monkeypatch.setattr(joint, "compile_unit", compile_unit)
    compiled = dynfix.compile(lambda x: (x.sin() * x * 0.375).sum(0))
    for size in (3, 3, 5, 7):
        inputs = [torch.linspace(0, 1, size).requires_grad_() for _ in range(2)]
        compiled(inputs[0]).backward()
        (inputs[1].sin() * inputs[1] * 0.375).sum(0).backward()
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_labels_behind_the_first_negative_one_do_not_count(reduction):
    target = torch.tensor([[0, 1, -1, 2], [3, -1, 1, 0], [-1, 0, 1, 2], [1, 0, 3, 2]])

    def fn(x):
        return torch.nn.functional.multilabel_margin_loss(x, target, reduction=reduction)

    for _ in range(3):
        check_gradients(fn, torch.randn(4, 4))


def test_a_decomposition_is_replaced_after_it_was_used():
    torch.library.define("dynfix_tests::stepped", "(Tensor x) -> Tensor")
    torch.library.impl("dynfix_tests::stepped", "CompositeImplicitAutograd", lambda x: x)
    step, zero = torch.ops.dynfix_tests.stepped.default, torch.zeros(())
    step.py_impl(torch._C.DispatchKey.CompositeImplicitAutograd)(lambda x: x + 1)
    with enable_python_dispatcher():
        assert step(zero) == 1
        decompose.replace_decomposition(step, lambda plain: lambda x: plain(x) * 5)
        assert step(zero) == 5


def test_a_graph_of_the_host_wakes_no_gpu(monkeypatch):
    def woken(*args):
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", woken)
    x = torch.randn(3, requires_grad=True)
    torch.testing.assert_close(compiled(lambda x: x.sin() * 2, x)(x), x.sin() * 2)


def test_a_leaf_that_is_only_written_has_no_gradient():
    def fn(x, y):
        x.detach().fill_(1)
        return y.clamp(-3, 3)

    def used(x, y):
        x.detach().mul_(2)
        return x * y

    def beside_a_constant(x, y):
        x.detach().fill_(1)
        return (
            y.clamp(-3, 3) + torch.linalg.inv(x.detach() @ x.detach().mT + 3 * torch.eye(3)).sum()
        )

    for function in (fn, used, beside_a_constant):
        call = dynfix.compile(function)
        for _ in range(3):
            x, y = torch.randn(3, 1, requires_grad=True), torch.randn(3, 5, requires_grad=True)
            x2, y2 = (t.detach().clone().requires_grad_() for t in (x, y))
            ours, theirs = call(x, y).sum(), function(x2, y2).sum()
            found = torch.autograd.grad(ours, [x, y], allow_unused=True)
            expected = torch.autograd.grad(theirs, [x2, y2], allow_unused=True)
            assert (found[0] is None) == (expected[0] is None)
            torch.testing.assert_close(found, expected)
            assert torch.equal(x, x2)
