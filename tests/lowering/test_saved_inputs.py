"""What a forward keeps for its backward."""

import dynfix
import pytest
import torch
from dynfix.lowering.autograd.saved_statistics import unrounded
from torch import nn

from .harness import check_gradients, compiled, units

F = torch.nn.functional


@pytest.mark.parametrize("activation", [F.gelu, F.silu, torch.sigmoid], ids=lambda f: f.__name__)
def test_an_activation_keeps_its_input_alone(activation):
    """Not what its formula has between input and result, in float32."""
    gate, up = (torch.randn(40, 30, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    call = compiled(lambda gate, up: activation(gate) * up, gate, up)
    assert kept_bytes(lambda: call(gate, up)) <= 2 * 40 * 30 * 2


def test_what_an_activation_writes_over_is_kept_once():
    """With its input, the result of a norm, and the norm's: three of a size, of which two do."""
    given = (torch.randn(3, 4, 16, 16), torch.rand(4), torch.rand(4), torch.randn(4, 4, 1, 1))
    given = tuple(each.requires_grad_() for each in given)

    def norm_and_convolution(x, weight, bias, kernel):
        normal = F.batch_norm(x, None, None, weight, bias, training=True)
        return F.conv2d(F.silu(normal, inplace=True), kernel)

    call = compiled(norm_and_convolution, *given)
    assert kept_bytes(lambda: call(*given)) < 2.2 * 3 * 4 * 16 * 16 * 4


def test_a_bias_that_changes_before_the_backward():
    """Eager does not keep it; the copy that is kept has its old value."""
    net = nn.Sequential(nn.BatchNorm1d(4), nn.SiLU())
    x = torch.randn(50, 4, requires_grad=True)
    call = dynfix.compile(net)
    for _ in range(3):
        wanted, got = (gradient(each, net[0].bias, x) for each in (net, call))
        assert torch.allclose(got, wanted, atol=1e-6)


@pytest.mark.covering
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16])
@pytest.mark.parametrize(
    "shape, laid",
    [
        ((16, 6), lambda given: given[:, ::2]),
        ((16, 1), lambda given: given.expand(16, 3)),
        ((3, 16), lambda given: given.mT),
        ((16, 7), lambda given: given),
    ],
    ids=["gaps", "stretched", "turned", "a part"],
)
def test_a_small_or_narrow_input_of_another_layout(shape, laid, dtype, dynamic):
    """What is kept of it lies in memory as the backward reads it."""

    def distances(x, given):
        other = given if given.size(1) == 3 else given[:, 1:4]
        scale = other.float() + 1 if dtype == torch.bool else other[:1]
        return F.threshold(x, 0.1, 2.0), F.pairwise_distance(x * scale, other[:1].float())

    call = dynfix.compile(distances, dynamic=dynamic)
    for seed in range(3):
        torch.manual_seed(seed)
        given = laid((torch.randn(shape) * 2).to(dtype))
        x = torch.randn(16, 3, requires_grad=True)
        seeds = torch.randn(16, 3), torch.randn(16)
        (found,), (wanted,) = (
            torch.autograd.grad(f(x, given), x, seeds) for f in (call, distances)
        )
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.bfloat16])
def test_a_narrow_input_is_kept_as_it_was(dtype):
    """Not what it is in a wider type; the copy has its old values."""

    def scaled(given, x):
        return given.float() * x

    given, x = (torch.randn(60, 50) * 2).to(dtype), torch.randn(60, 1, requires_grad=True)
    call = compiled(scaled, given, x)
    assert kept_bytes(lambda: call(given, x)) <= 60 * 50 * dtype.itemsize + 60 * 4
    for _ in range(3):
        out, wanted = call(given, x), scaled(given, x)
        given.zero_()
        (got,) = torch.autograd.grad(out.square().sum(), x)
        assert torch.allclose(got, torch.autograd.grad(wanted.square().sum(), x)[0], atol=1e-4)
        given.copy_(torch.randn(60, 50) * 2)


def gradient(call, bias, x):
    out = call(x)
    with torch.no_grad():
        bias.add_(1)
    (found,) = torch.autograd.grad(out.square().sum(), x)
    with torch.no_grad():
        bias.sub_(1)
    return found


def kept_bytes(forward):
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.setdefault(tensor.data_ptr(), tensor), lambda tensor: tensor
    ):
        forward()
    return sum(t.numel() * t.element_size() for t in kept.values())


@pytest.mark.parametrize("more", [False, True], ids=["once", "kept besides"])
def test_a_relu_that_is_returned_is_kept_itself(more):
    """Not where it is zero, beside it."""

    def fn(x, w):
        out = torch.relu(x @ w)
        return (out, out * out.detach()) if more else out

    x, w = torch.randn(40, 30, requires_grad=True), torch.randn(30, 30, requires_grad=True)
    call = compiled(fn, x, w)
    check_gradients(fn, x, w)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda tensor: tensor):
        call(x, w)
    assert torch.bool not in [t.dtype for t in kept]


@pytest.mark.parametrize("part", [lambda y: y.t(), lambda y: y[:, 1:], lambda y: y.flatten()])
def test_the_zeros_of_a_part_of_a_relu_that_is_returned(part):
    def fn(x, weight):
        out = torch.relu(x)
        given = part(weight)
        return out, torch.where(part(out) <= 0, given, 2 * given)

    x, weight = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    call = dynfix.compile(fn)
    for _ in range(3):
        made = [each(x, weight) for each in (call, fn)]
        seeds = [torch.randn_like(each) for each in made[0]]
        found, wanted = (torch.autograd.grad(each, (x, weight), seeds) for each in made)
        for one, two in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, two)


def test_a_relu_written_before_the_backward_is_an_error_as_in_eager():
    x = torch.randn(40, 30, requires_grad=True)
    call = dynfix.compile(lambda x: torch.relu(x + 1))
    for each in (lambda x: torch.relu(x + 1), call, call, call):
        out = each(x)
        out.detach().add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_an_input_written_before_the_backward_of_what_is_not_made_of_it(dtype):
    def fn(x, y, bound):
        return torch.cumprod(x, 0), torch.maximum(bound, y)

    call = dynfix.compile(fn)
    for each in (fn, call, call, call):
        x, y = (torch.randn(33, 1, dtype=dtype, requires_grad=True) for _ in range(2))
        bound = torch.randn(1, dtype=dtype)
        first, _ = each(x, y, bound)
        bound.mul_(2)
        found = torch.autograd.grad(first.sum(), x)
        torch.testing.assert_close(found, torch.autograd.grad(fn(x, y, bound)[0].sum(), x))


EXTREMA = {
    "rows": lambda x: x.tanh().amax(-1),
    "logarithms": lambda x: x.log().amin(-1),
    "columns": lambda x: (x.sin() * 2).amax(0),
    "all": lambda x: x.pow(2.5).max(),
    "several": lambda x: x.pow(2.5).amax(-1) + x.tanh().sum(-1) + x.exp().amin(-1),
    "compared": lambda x: torch.where(x.tanh() == x.tanh().amax(-1, keepdim=True), x, 0.0).sum(-1),
}


@pytest.mark.covering
@pytest.mark.parametrize("columns", [5, 12, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", EXTREMA)
def test_extrema_are_found_again(name, dtype, columns):
    """The gradient compares them with what they were found in: the last bits of a library's
    functions differ between the loops of two kernels."""
    fn = EXTREMA[name]
    x = (torch.randperm(1090 * columns).view(1090, columns) / (1200 * columns) + 0.05).to(dtype)
    x = x.requires_grad_()
    call = compiled(fn, x)
    for _ in range(2):
        found = torch.autograd.grad(call(x).sum(), x)[0]
        assert not found.isnan().any()
        if dtype is not torch.bfloat16:
            expected = torch.autograd.grad(fn(x).sum(), x)[0]
            off = ~torch.isclose(found, expected, rtol=1e-4, atol=1e-5)
            assert off.sum() <= 2 * columns  # neighbours that eager's last bits make equal


def test_what_is_made_of_complex_numbers_is_kept(monkeypatch):
    made = units(monkeypatch)
    check_gradients(lambda x: torch.fft.rfft(x).abs() ** 2, torch.randn(8, 50))
    calls = [(unit.name, str(getattr(item, "target", ""))) for unit in made for item in unit.items]
    assert ("forward", "aten.abs.default") in calls
    assert ("backward", "aten.abs.default") not in calls
    check_gradients(lambda x: torch.view_as_complex(x).angle().sin(), torch.randn(8, 50, 2))
    check_gradients(lambda x: (torch.view_as_complex(x) ** 2).real.exp(), torch.randn(8, 50, 2))


@pytest.mark.parametrize("by_user", [False, True])
def test_statistics_that_the_user_rounds_are_read_rounded(by_user):
    """They may have been on another device."""
    backward, forward = torch.ops.aten.native_batch_norm_backward, torch.ops.aten.native_batch_norm
    graph, cast = torch.fx.Graph(), torch.ops.aten._to_copy.default
    exact = graph.placeholder("exact")
    rounded = graph.call_function(cast, (exact,), {"dtype": torch.bfloat16})
    read = graph.call_function(cast, (rounded,), {"dtype": torch.float32})
    result = graph.call_function(torch.ops.aten.rsqrt.default, (read,))
    graph.output((result,))
    exact.meta["val"] = read.meta["val"] = torch.empty(3)
    read.meta["original_aten"] = backward.default
    rounded.meta["original_aten"] = None if by_user else forward.default
    unrounded(torch.fx.GraphModule(torch.nn.Module(), graph))
    assert result.args[0] is (read if by_user else exact)


@pytest.mark.parametrize(
    "made_of",
    [
        lambda y: torch.frexp(y).mantissa,
        lambda y: torch.sin(y + 1),
        lambda y: F.gelu(y.cumsum(0)[:, :7]),
        lambda y: torch.sigmoid(y.bfloat16()).float(),
        lambda y: F.softmax(y - 3, -1),
    ],
    ids="frexp sin gelu sigmoid softmax".split(),
)
def test_a_result_written_before_the_backward_of_what_is_made_of_it(made_of):
    """Eager kept something else of it."""

    def fn(x, more):
        y = torch.cat([x, more], 1)
        return y, made_of(y)

    call = dynfix.compile(fn, fullgraph=True)
    for _ in range(3):
        x, grads = torch.randn(6, 9, requires_grad=True), []
        given = torch.randn(6, 9)
        for each in (call, fn):
            more = given.clone()
            y, z = each(x, more)
            y.mul_(2)
            more.mul_(2)
            grads += torch.autograd.grad(z.square().sum(), x)
        torch.testing.assert_close(*grads, atol=1e-2, rtol=1e-2)


def test_a_result_that_eager_keeps_is_not_written_before_the_backward():
    def fn(x):
        y = x @ torch.ones(9, 9)
        return y, torch.sin(y)

    y, z = compiled(fn, torch.randn(6, 9, requires_grad=True))(
        torch.randn(6, 9, requires_grad=True)
    )
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        z.sum().backward()


def test_a_program_that_gives_but_views_leaves_another_its_backward():
    """Of which the history of its results comes first."""

    def fn(x):
        y = x[:, [0, 0]]
        z = F.softmin(y, 1)
        torch.combinations(y.flatten()[:4])  # the graph breaks
        z.mT.add_(3)
        return y.tensor_split(2)[1]

    call = dynfix.compile(fn)
    for _ in range(5):
        x = torch.randn(6, 1, 3, 5, requires_grad=True)
        grads = [torch.autograd.grad(each(x).square().sum(), x)[0] for each in (call, fn)]
        assert torch.equal(*grads)


def test_logits_that_are_returned_are_kept_without_their_logarithms():
    x, labels = torch.randn(20, 500, requires_grad=True), torch.randint(500, (40,))

    def fn(x, labels):
        logits = torch.cat([x, x])
        return logits, F.cross_entropy(logits.float(), labels)

    call = compiled(fn, x, labels)
    assert kept_bytes(lambda: call(x, labels)[1]) < 1.2 * 40 * 500 * 4
