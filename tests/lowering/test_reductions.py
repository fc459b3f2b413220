import math

import dynfix
import pytest
import torch
from dynfix.runtime.diagnostics import DynfixWarning
from grids import grid

from .harness import UNFUSED, check, compiled

F = torch.nn.functional
KINDS = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def pair(result):
    return result[0], result[1]


def make(dtype, *shape):
    x = torch.randn(shape) * 3
    return x.to(dtype) if dtype.is_floating_point else (x.abs() * 3).to(dtype)


SHAPES = [(7, 33), (3, 4, 5), (1, 1), (40, 1), (1, 40), (64, 70)]


@pytest.mark.parametrize(
    "dtype, shape, options",
    grid(
        lambda dtype, shape, options: (
            (shape == (7, 33) or dtype == torch.float32)
            and (not options or (shape == (7, 33) and dtype in (torch.float32, torch.uint8)))
        ),
        KINDS,
        SHAPES,
        [None, UNFUSED],
    ),
)
def test_reductions(dtype, shape, options):
    def fn(x):
        found = [
            x.sum(),
            x.sum(0),
            x.sum(-1, keepdim=True),
            x.any(),
            x.all(0),
            x.any(-1),
            x.sum((0, 1)),
            (x != 0).sum(0),
        ]
        found += [x.amax(0), x.amin(-1), x.max(), x.min(), x.amax((0, -1), keepdim=True)]
        if dtype is not torch.bool:
            found += [
                *pair(x.max(0)),
                *pair(x.min(-1)),
                x.argmax(),
                x.argmin(0),
                x.argmax(-1, keepdim=True),
                (x[:5] / 3 if dtype.is_floating_point else x).prod(0),
            ]
        if dtype.is_floating_point:
            found += [
                x.mean(),
                x.mean(0),
                x.mean(-1),
                x.var(-1, correction=0),
                x.std(0, correction=0),
                x.logsumexp(-1),
            ]
            found += [
                x.softmax(-1),
                x.softmax(0),
                x.log_softmax(-1),
                x.norm(),
                x.norm(dim=0),
                *pair(torch.var_mean(x, -1, correction=0)),
            ]
        return tuple(found)

    rtol = 3e-2 if dtype == torch.bfloat16 else None
    check(
        fn,
        make(dtype, *shape),
        rtol=rtol,
        atol=1e-2 if rtol else None,
        **({"options": options} if options else {}),
    )


def test_nan_wins_and_the_first_position_of_ties_counts():
    x = torch.tensor(
        [[1.0, 5, 5, 2], [3, math.nan, 4, math.nan], [-math.inf] * 4, [math.inf, 1, math.inf, 0]]
    )
    check(
        lambda x: (
            x.amax(1),
            x.amin(0),
            x.argmax(1),
            x.argmin(1),
            x.argmax(),
            *pair(x.max(1)),
            *pair(x.min(0)),
            x.max(),
            x.sum(1),
        ),
        x,
    )


def test_reductions_of_nothing():
    x = torch.empty(0, 3)
    check(lambda x: (x.sum(), x.sum(0), x.sum(1), x.prod(0), x.any(0), x.all(), x.mean(0)), x)
    with pytest.raises(Exception, match=r"dim|reduc|identity"):
        check(lambda x: x.amax(0), x)


def test_long_sums_are_as_exact_as_eager():
    x = torch.rand(1 << 20) + 1
    exact = x.double().sum()
    call = check(
        lambda x: (x.sum(), x.view(1024, 1024).sum(0), x.view(1024, 1024).mean(1)),
        x,
        rtol=1e-6,
        atol=1e-6,
    )
    found = call(x)
    assert abs(found[0].double() - exact) <= 2 * abs(x.sum().double() - exact) + 1e-7 * exact
    columns = x.view(1024, 1024).double().sum(0)
    assert (found[1].double() - columns).abs().max() <= 2 * (
        x.view(1024, 1024).sum(0).double() - columns
    ).abs().max()


def test_variance_of_numbers_far_from_zero():
    x = torch.randn(16, 512) + 10_000
    call = check(lambda x: x.var(-1), x, rtol=1e-4, atol=1e-4)
    exact = x.double().var(-1)
    assert (call(x).double() - exact).abs().max() <= 3 * (
        x.var(-1).double() - exact
    ).abs().max() + 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-30, 1e19, 1e38])
def test_variance_of_numbers_near_the_limits(dtype, scale):
    x = (torch.rand(6, 70, dtype=torch.float64) * scale).to(dtype)
    check(lambda x: (x.std(-1), x.std(0), x.var(-1), x.var(0, correction=0)), x, rtol=1e-2, atol=0)


def test_norms_whose_variance_overflows():
    x = torch.randn(4, 70) * 1e30
    check(lambda x: torch.nn.functional.layer_norm(x, (70,)), x, rtol=1e-4, atol=1e-4)


def test_softmax_of_extreme_rows():
    x = torch.tensor(
        [[1e30, 1, 2], [-math.inf, 0, 1], [-math.inf] * 3, [math.nan, 1, 2], [88.8, 89, 90]]
    )
    check(lambda x: (x.softmax(-1), x.log_softmax(-1), x.softmax(0), x.logsumexp(1)), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_normalisations(dtype):
    def fn(x, w, b):
        rms = x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype) * w
        image = x.view(4, 6, 4, 4)
        return (
            F.layer_norm(x, (16,), w, b),
            rms,
            F.group_norm(image, 3),
            F.layer_norm(x, (16,)),
            F.rms_norm(x, (16,), w),
        )

    x, w, b = (
        torch.randn(24, 16, dtype=dtype),
        torch.randn(16, dtype=dtype),
        torch.randn(16, dtype=dtype),
    )
    check(
        fn,
        x,
        w,
        b,
        rtol=2e-2 if dtype == torch.bfloat16 else 1e-5,
        atol=2e-2 if dtype == torch.bfloat16 else 1e-5,
    )


def test_masked_softmax_and_losses():
    x, target = torch.randn(12, 50), torch.randint(0, 50, (12,))
    target[3] = -100

    def fn(x, target):
        causal = torch.ones(12, 50).tril().bool()
        scores = x.masked_fill(~causal, float("-inf"))
        smooth = F.cross_entropy(x, target, label_smoothing=0.1)
        return (
            scores.softmax(-1),
            F.cross_entropy(x, target),
            smooth,
            F.nll_loss(x.log_softmax(-1), target),
            F.mse_loss(x, x * 2),
        )

    call = check(fn, x, target, rtol=1e-5, atol=1e-6)
    call(x, target)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_huber_loss_of_two_dtypes_is_in_that_of_its_input(reduction):
    def loss(x, target):
        return torch.nn.functional.huber_loss(x, target, reduction)

    x, target = torch.randn(4, 5, dtype=torch.bfloat16), torch.randn(4, 5)
    torch.testing.assert_close(compiled(loss, x, target)(x, target), loss(x, target))


@pytest.mark.covering
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]
)
@pytest.mark.parametrize("shape, dim", [((5, 70), 0), ((3, 7, 9, 33), 1), ((100, 65), 0)], ids=str)
def test_positions_in_columns(dtype, shape, dim):
    x = (torch.rand(shape) * 20).to(dtype)
    if dtype.is_floating_point:
        x.view(-1)[::37] = torch.nan
        x[..., 0] = -torch.inf

    def fn(x):
        if dtype == torch.bool:
            return x.int().argmax(dim), x.int().argmin(dim)
        largest = x.max(dim)
        smallest = x.min(dim)[1]
        return x.argmax(dim), x.argmin(dim), largest[0], largest[1], smallest, x.amax(dim)

    check(fn, x)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(3, 1), (2, 1, 1)])
def test_norms_along_last_axes_of_one_element(dtype, shape, recwarn):
    def fn(x):
        first = x[..., 0]
        return torch.norm(x, dim=-1) + first, torch.linalg.vector_norm(x, 3, dim=(-1,)) * first

    call = dynfix.compile(fn, fullgraph=True)
    for _ in range(3):
        ours = torch.randn(shape).to(dtype).requires_grad_()
        theirs = ours.detach().clone().requires_grad_()
        for found, expected in zip(call(ours), fn(theirs), strict=True):
            torch.testing.assert_close(found, expected)
            found.sum().backward()
            expected.sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert not [each for each in recwarn if issubclass(each.category, DynfixWarning)]
