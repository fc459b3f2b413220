"""Gradients at bounds that a half type rounds, and where an input is NaN."""

import dynfix
import pytest
import torch
from dynfix.lowering.decompositions.decompose import decompositions
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

HALVES = torch.bfloat16, torch.float16
BOUNDS = 0.1, 0.3, -0.7, 1 / 3


def _check(f, *inputs):
    compiled = dynfix.compile(f, fullgraph=True)
    for _ in range(3):
        found = []
        for call in (f, compiled):
            given = [x.clone().requires_grad_() for x in inputs]
            made = call(*given)
            found.append([made, *torch.autograd.grad(made.sum(), given)])
        for mine, theirs in zip(found[1], found[0], strict=True):
            few = 8 * torch.finfo(mine.dtype).eps
            torch.testing.assert_close(mine, theirs, equal_nan=True, rtol=few, atol=0)


@pytest.mark.parametrize("dtype", (*HALVES, torch.float32))
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_thresholds(dtype, bound, device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    at = torch.tensor(bound, dtype=dtype)
    x = torch.stack((at, *(at.nextafter(at.new_tensor(end)) for end in (-9, 9)))).repeat(13)
    _check(lambda x: F.threshold(x, bound, 2.0), x.to(device))


def test_thresholds_of_halves_are_rounded_where_the_devices_kernels_have_it():
    table, aten = decompositions(), torch.ops.aten
    for device, bound in (("cpu", 0.1), ("cuda", 0.10009765625)):
        with FakeTensorMode():
            x = torch.empty(4, dtype=torch.bfloat16, device=device)
        for f in (
            lambda x: aten.threshold(x, 0.1, 2.0),
            lambda x: aten.threshold_backward(x, x, 0.1),
        ):
            graph = make_fx(f, decomposition_table=table, tracing_mode="fake")(x).graph
            (compared,) = graph.find_nodes(op="call_function", target=aten.le.Scalar)
            assert compared.args[1] == bound


@pytest.mark.covering
@pytest.mark.parametrize("dtype", (*HALVES, torch.float32))
@pytest.mark.parametrize("eps", (None, 0.1, 0.3))
def test_logits(dtype, eps):
    at = torch.tensor([eps or 0.2, 1 - (eps or 0.2)], dtype=dtype)
    x = torch.cat([at, *(at.nextafter(at.new_tensor(end)) for end in (-9, 9)), at.new_ones(1)])
    _check(lambda x: torch.logit(x, eps), x.repeat(9))


def test_gradients_of_logit_at_zero():
    _check(torch.logit, torch.tensor([0.0, -0.0, 1.0]).repeat(9))


def test_gradients_of_hardsigmoid_in_float64():
    _check(F.hardsigmoid, torch.randn(33, dtype=torch.float64))


@pytest.mark.covering
@pytest.mark.parametrize("beta", (0.0, 0.3, 1.0))
@pytest.mark.parametrize("reduction", ("none", "mean", "sum"))
def test_smooth_l1_keeps_nan(beta, reduction):
    x = torch.tensor([float("nan"), float("inf"), 0.1, -0.2, beta, 3.0, -0.0]).repeat(5)
    _check(lambda x, y: F.smooth_l1_loss(x, y, beta=beta, reduction=reduction), x, x.new_zeros(35))


@pytest.mark.parametrize("weighted", (False, True))
@pytest.mark.parametrize("types", ((torch.float32, torch.float16), (torch.bfloat16, torch.float32)))
def test_logits_and_targets_of_two_types(types, weighted):
    """The loss has the type of the targets."""
    logits, target = torch.linspace(-3, 3, 33, dtype=types[0]), torch.rand(33).to(types[1])
    weight = torch.rand(33).to(types[1]) if weighted else None

    def loss(x, y):
        return F.binary_cross_entropy_with_logits(x, y, weight)

    compiled, wanted = dynfix.compile(loss, fullgraph=True), loss(logits, target)
    for _ in range(3):
        torch.testing.assert_close(compiled(logits, target), wanted, rtol=4e-3, atol=1e-3)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", (*HALVES, torch.float32, torch.float64))
@pytest.mark.parametrize("reduction", ("none", "mean", "sum"))
def test_soft_margins_keep_small_gradients(dtype, reduction):
    x = torch.arange(-8, 40, 0.25)
    compiled = dynfix.compile(F.soft_margin_loss, fullgraph=True)
    for _ in range(2):
        found = []
        for call, kind in ((compiled, dtype), (F.soft_margin_loss, torch.float64)):
            given = x.to(kind).requires_grad_()
            made = call(given, given.new_ones(()).expand_as(given), reduction=reduction)
            found.append(torch.autograd.grad(made.sum(), given)[0].double())
        few, least = 8 * torch.finfo(dtype).eps, torch.finfo(dtype).smallest_normal
        torch.testing.assert_close(*found, rtol=few, atol=4 * least)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_target_of_a_wider_type_leaves_the_type_of_the_loss(reduction):
    signs = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
    _check(lambda x: F.soft_margin_loss(x, signs, reduction=reduction), torch.randn(3))


def test_blocks_with_a_number_of_a_wider_type():
    _check(lambda x: torch.block_diag(x, torch.tensor(2.0, dtype=torch.float64)), torch.randn(3, 3))


def _all_halves(dtype):
    return torch.arange(1 << 16).to(torch.uint16).view(dtype)


def _few_apart(mine, theirs, dtype):
    """Whether they differ by what a half type rounds once or twice, wherever there are numbers."""
    few = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(mine, theirs, rtol=few, atol=few * few, equal_nan=True)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("bound", (0.2, 1 / 3, 1.0009))
def test_a_bound_that_is_no_half_shrinks_as_it_is_given(dtype, bound):
    numbers = _all_halves(dtype)
    compiled = dynfix.compile(F.softshrink, fullgraph=True)
    for shift in range(3):
        found = []
        for call in (compiled, F.softshrink):
            x = numbers.roll(shift).nan_to_num(1.0).requires_grad_()  # of NaN eager's parts differ
            made = call(x, bound)
            found.append((made, *torch.autograd.grad(made, x, torch.full_like(x, 1.5))))
        torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("eps", (0.0001, 0.0009, 0.3337))
def test_bounds_of_logits_round_as_eagers(dtype, eps):
    """The upper one may round to 1, of which the logit is infinite."""
    x = _all_halves(dtype)
    compiled = dynfix.compile(torch.logit, fullgraph=True)
    for _ in range(3):
        mine, theirs = compiled(x, eps), torch.logit(x, eps)
        assert torch.equal(mine.isinf(), theirs.isinf())
        torch.testing.assert_close(mine, theirs, rtol=0.1, atol=0.02, equal_nan=True)
    whole = torch.arange(2)
    torch.testing.assert_close(
        dynfix.compile(torch.logit)(whole, 0.1), torch.logit(whole, 0.1), rtol=1e-5, atol=0
    )


@pytest.mark.covering
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("number", (0.3337, 1.0009, -2.0007))
def test_numbers_beside_halves_round_first(dtype, number):
    """Those that have no axes, too; the logarithm of what rounds to 1 is nothing."""
    x, one = _all_halves(dtype), torch.tensor(number)
    x = x[x.isfinite() & (x.abs() > 1e-4) & (x.abs() < 1e4)]
    calls = (
        lambda x, n: torch.hypot(x, n),
        lambda x, n: torch.atan2(x, n) + torch.atan2(n, x),
        lambda x, n: torch.logaddexp(x, n),
        lambda x, n: torch.logaddexp2(n, x),
        lambda x, n: torch.xlogy(x, n),
        lambda x, _: torch.xlogy(x, number),
        lambda x, n: torch.special.xlog1py(x, n * n),
    )
    for call in calls:
        compiled = dynfix.compile(call, fullgraph=True)
        for _ in range(3):
            mine, theirs = compiled(x, one), call(x, one)
            assert mine.dtype is theirs.dtype
            _few_apart(mine, theirs, dtype)
    same = torch.full((33,), number, dtype=dtype)
    whole = dynfix.compile(lambda x, n: torch.div(n, x, rounding_mode="trunc"), fullgraph=True)
    for _ in range(3):
        assert torch.equal(whole(same, one), torch.ones_like(same))


@pytest.mark.parametrize("dtype", (*HALVES, torch.float32))
def test_norms_of_one_element_square_nothing(dtype):
    x = torch.tensor([1e-30, 3e38, -2.0, 0.0]).to(dtype).unsqueeze(1)
    x = x[x.isfinite()].unsqueeze(1)
    _check(lambda x: torch.linalg.vector_norm(x, dim=1), x)
    _check(lambda x: torch.linalg.vector_norm(x, dim=(0, 1), keepdim=True)[0], x[:1])


@pytest.mark.covering
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(6, 3), (2, 3, 4, 5), (3,)])
def test_classes_that_are_no_targets_may_have_infinite_weights(shape, reduction):
    """As those have that are found by counting."""
    weight = torch.tensor([1.0, float("inf"), 2.0])

    def loss(x, target):
        given = F.cross_entropy(x, target, weight, reduction=reduction, ignore_index=0)
        return given + F.nll_loss(x, target, weight, reduction=reduction)

    call = dynfix.compile(loss)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(shape, requires_grad=True)
        target = 2 * torch.randint(0, 2, x.select(min(x.dim(), 2) - 1, 0).shape)
        target.view(-1)[0] = 2
        made = [each(x, target) for each in (call, loss)]
        torch.testing.assert_close(*made)
        gradients = [torch.autograd.grad(each.sum(), x)[0] for each in made]
        assert gradients[1].isfinite().all()
        torch.testing.assert_close(*gradients)


def test_margins_that_are_no_numbers_count_for_nothing():
    call = dynfix.compile(F.multilabel_margin_loss)
    for _ in range(3):
        x, target = torch.randn(4, 5, requires_grad=True), torch.tensor([[1, 3, -1, 0, 0]] * 4)
        with torch.no_grad():
            x[0, 0] = float("nan")
        (found, wanted) = (each(x, target) for each in (call, F.multilabel_margin_loss))
        torch.testing.assert_close(found, wanted)
