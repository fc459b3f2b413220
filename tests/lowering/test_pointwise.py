import math

import dynfix
import pytest
import torch
from dynfix.lowering.loops.kernel_graph import ExternCall

from .harness import UNFUSED, check, check_elements, check_gradients, compiled, units

F = torch.nn.functional
FLOAT_UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan tanh asin acos atan sinh cosh asinh acosh"
    " atanh erf erfc sigmoid sqrt rsqrt reciprocal floor ceil trunc round frac neg abs sign sgn"
    " relu isnan isinf isfinite signbit logical_not square erfinv lgamma digamma nan_to_num logit"
).split()
ACTIVATIONS = (
    "gelu silu elu selu leaky_relu hardtanh hardswish hardsigmoid softplus mish relu6 celu"
    " logsigmoid".split()
)
BINARY = (
    "add sub mul div maximum minimum eq ne lt le gt ge atan2 fmod remainder floor_divide"
    " logical_and logical_xor pow fmax fmin".split()
)
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    math.inf,
    -math.inf,
    math.nan,
    1e-40,
    3e38,
    -88.0,
    89.0,
    1e-7,
]


def values(dtype, count=67):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, generator=generator, dtype=torch.float64) * 3
    x[: len(SPECIAL)] = torch.tensor(SPECIAL, dtype=torch.float64)
    return x.to(dtype)


FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.covering
@pytest.mark.parametrize("options", [None, UNFUSED], ids=["fused", "unfused"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_unary(dtype, options):
    def fn(x):
        return tuple(getattr(torch, name)(x) for name in FLOAT_UNARY)

    check_elements(
        fn, values(dtype), names=FLOAT_UNARY, **({"options": options} if options else {})
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_activations(dtype):
    def fn(x):
        return (*tuple(getattr(F, name)(x) for name in ACTIVATIONS), F.gelu(x, approximate="tanh"))

    check_elements(fn, values(dtype), names=[*ACTIVATIONS, "gelu tanh"])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_binary(dtype):
    def fn(x, y):
        return tuple(getattr(torch, name)(x, y) for name in BINARY)

    x = values(dtype, 20)
    check_elements(fn, x.repeat_interleave(20), x.repeat(20), names=BINARY)


NUMERIC = [
    torch.tensor([]),
    torch.tensor([math.nan]),
    torch.tensor([[1.0, math.nan, -2.0], [0.5, 3.0, math.nan]]).t(),
    torch.tensor([3, -1, 0, 255]),
    torch.tensor([True, False, True]),
]


@pytest.mark.parametrize("x", NUMERIC, ids=["empty", "one", "transposed", "int64", "bool"])
def test_extrema_that_leave_nan_out_are_loops(x, monkeypatch):
    made = units(monkeypatch)
    check(lambda x: (torch.fmax(x, x.flip(0)), torch.fmin(x, x.flip(0))), x)
    calls = [item for unit in made for item in unit.items if isinstance(item, ExternCall)]
    assert not calls or not x.numel()


def test_gradients_of_extrema_that_leave_nan_out():
    x, y = torch.randn(2, 5, 7)
    x[1, 2] = y[0, 3] = math.nan
    check_gradients(lambda x, y: torch.fmax(x, y * 2) + torch.fmin(x, y), x, y)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_scalars(dtype):
    def fn(x):
        return (
            x + 1,
            x + 1.5,
            2 - x,
            x / 3,
            7 / x,
            x // 2,
            x % 3,
            x % -3,
            x**2,
            x**3,
            x**-1,
            x**0.5,
            x**-0.5,
            x**1.7,
            2**x,
            x.clamp(-1, 1),
            x.clamp(min=0.3),
            x.clamp_max(2),
            x > 0.1,
            x == 1,
            torch.add(x, x, alpha=0.3),
            torch.sub(x, 2, alpha=3),
            torch.where(x > 0, x, 1.0),
            torch.addcmul(x, x, x, value=0.5),
            torch.lerp(x, x * 2, 0.3),
            torch.threshold(x, 0.1, 20.0),
            F.softshrink(x),
        )

    check_elements(fn, values(dtype))


INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integers_wrap_and_divide_as_eager(dtype):
    info = torch.iinfo(dtype)
    edge = torch.tensor(
        [info.min, info.min + 1, -1 if info.min else 255, 0, 1, 2, 7, 8, 100, info.max], dtype=dtype
    )
    x, y = edge.repeat_interleave(10), edge.repeat(10)

    def fn(x, y):
        return (
            x + y,
            x - y,
            x * y,
            -x,
            abs(x),
            torch.sign(x),
            x & y,
            x | y,
            x ^ y,
            ~x,
            x << 3,
            x >> 3,
            x << (y % 7),
            x // 3,
            x // -3,
            x % 5,
            x % -5,
            torch.div(x, 7, rounding_mode="trunc"),
            torch.fmod(x, 3),
            x / y,
            x / 3,
            x > y,
            torch.maximum(x, y),
            x.clamp(2, 50),
            x**2,
            x**3,
            torch.sqrt(x),
            torch.exp(x),
            x + 1.5,
            x * True,
            x == 7,
            torch.logical_and(x, y),
            x.float(),
            x.bool(),
            x.to(torch.uint8),
            x.to(torch.int8),
            torch.floor(x),
            torch.where(x > y, x, 3),
        )

    check(fn, x, y)


def test_bool_arithmetic():
    x = torch.tensor([True, False, True, False])
    y = torch.tensor([True, True, False, False])

    def fn(x, y):
        return (
            x & y,
            x | y,
            x ^ y,
            ~x,
            x + y,
            x * y,
            x == y,
            x > y,
            x + 1,
            x * 2.5,
            x.float(),
            x.int() - y.int(),
            x / y,
            torch.maximum(x, y),
        )

    check(fn, x, y)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_casts(dtype):
    x = values(dtype)
    x = torch.cat(
        [x[torch.isfinite(x)].clamp(-100, 100), torch.tensor([0.6, -0.6, 126.9, 1e-3], dtype=dtype)]
    )

    def fn(x):
        kinds = (*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.bool)
        return (*tuple(x.to(kind) for kind in kinds), x.abs().to(torch.uint8))

    check(fn, x)


def test_float_to_half_rounds_to_even_and_keeps_nan():
    bits = torch.arange(0, 2**32, 65521, dtype=torch.int64).to(torch.int32)
    x = bits.view(torch.float32)
    check(lambda x: (x.bfloat16(), x.half(), x.double().bfloat16(), x.double().half()), x)


@pytest.mark.parametrize("other", FLOATS + INTS + [torch.bool], ids=str)
def test_promotion(other):
    tensors = [values(torch.float32, 20).clamp(-9, 9).nan_to_num(), torch.arange(20) % 5]
    y = (torch.arange(20) % 7).to(other)
    zero_dim = torch.tensor(3).to(other)

    def fn(x, n, y, s):
        return (
            x + y,
            n + y,
            x * s,
            n * s,
            y + 2,
            y + 2.5,
            s + x.half(),
            torch.where(x > 0, x, s),
            y / s,
            s * 2,
            x.bfloat16() * y,
        )

    check(fn, *tensors, y, zero_dim)


SHAPES = [
    ((5, 1, 7), (3, 1)),
    ((0, 3), (1, 3)),
    ((1,), (1, 1)),
    ((), (4,)),
    ((2, 0, 3), ()),
    ((17,), (17,)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_broadcast_and_empty_shapes(left, right):
    check(lambda x, y: (x + y, (x * y).exp(), x.sin()), torch.randn(left), torch.randn(right))


def test_layouts():
    x = torch.randn(6, 5, 4)
    layouts = [
        x,
        x.transpose(0, 2),
        x[::2, :, 1:],
        x[:1].expand(6, 5, 4),
        x.permute(1, 2, 0),
        x[:, ::5],
        x.flip(0),
    ]
    for one in layouts:
        check(lambda x: (x + 1, (x * 2).sum(1), x.transpose(0, 1).exp(), x.reshape(-1) * 2), one)


def test_channels_last():
    x = torch.randn(2, 5, 3, 4).contiguous(memory_format=torch.channels_last)
    check(lambda x: (x.relu() + 1, x.sum((2, 3)), (x * 2).mean(1)), x)


def test_large_one_dimensional():
    x = torch.rand(100_003) - 0.3
    check(lambda x: (F.gelu(x), x.sum(), x.max(), (x > 0).any(), x.tanh() * x.sigmoid()), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gelu_is_as_close_to_the_exact_function_as_eager(dtype):
    x = torch.cat([torch.linspace(-12, 12, 5000), torch.tensor([0.0, -0.0, 1e-30, 1e30])]).to(dtype)
    special = torch.tensor([torch.inf, -torch.inf, torch.nan], dtype=dtype)
    ideal = F.gelu(x.double())
    run = compiled(lambda x: F.gelu(x), x)
    found, eager = ((made.double() - ideal).abs() for made in (run(x), F.gelu(x)))
    assert found.max() <= 2 * eager.max()
    assert (found <= 2 * eager + 4e-7 * x.double().abs()).all()
    expected = torch.tensor([torch.inf, torch.nan, torch.nan], dtype=dtype)  # inf * 0 is NaN
    found = compiled(lambda x: F.gelu(x), special)(special)
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("default", [torch.float32, torch.float64, torch.float32])
def test_quotients_of_integers_have_the_default_type(default):
    torch.set_default_dtype(default)
    try:
        check(lambda x, y: (x / y, x / 3, x.sqrt()), torch.arange(1, 9), torch.arange(2, 10))
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16])
def test_types_that_kernels_lack_go_to_the_library(dtype):
    def fn(x):
        narrow = (x * 2).to(dtype)
        return narrow, narrow.t().contiguous(), narrow.to(torch.float32) + 1

    x = torch.rand(4, 8) * 9
    for found, expected in zip(compiled(fn, x)(x), fn(x), strict=True):
        assert found.dtype == expected.dtype and found.stride() == expected.stride()
        assert torch.equal(found.float(), expected.float())


HALVES = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.float16)


def same_bits(found, expected):
    kind = torch.int16 if found.element_size() == 2 else torch.int32
    equal = found.view(kind) == expected.view(kind)
    assert (equal | (found.isnan() & expected.isnan())).all()


def test_every_number_of_float16_and_those_between():
    """By operations on whole numbers, which GCC vectorises."""
    same_bits(compiled(lambda x: x.float(), HALVES)(HALVES), HALVES.float())
    ends = HALVES.float().sort().values
    middle = (ends[:-1] + ends[1:]) / 2
    beside = (torch.nextafter(middle, torch.tensor(to)) for to in (-math.inf, math.inf))
    torch.manual_seed(0)
    bits = torch.randint(-(1 << 31), 1 << 31, (1 << 16,)).to(torch.int32).view(torch.float32)
    x = torch.cat([middle, *beside, bits, torch.tensor([-0.0, math.inf, -math.inf, math.nan])])
    same_bits(compiled(lambda x: x.half(), x)(x), x.half())
    same_bits(compiled(lambda x: x.half().float(), x)(x), x.half().float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8])
def test_masks_from_memory(dtype):
    mask, x = torch.rand(3, 70) > 0.5, torch.randn(3, 70).mul(9).to(dtype)

    def fn(mask, x):
        return (
            torch.where(mask, x, x + 1) * mask,
            mask & (x > 0),
            ~mask,
            (x * mask).sum(-1),
            mask + 1,
        )

    for found, expected in zip(compiled(fn, mask, x)(mask, x), fn(mask, x), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rests_of_divisions_are_exact(dtype):
    ends = [0.0, 1.0, 1.5, 2.5, 0.1, 1e-38, 1e-45, 3e38, 8388607.0, 2.0**24 + 2, 1e10, math.inf]
    special = torch.tensor([*ends, *(-x for x in ends), math.nan], dtype=dtype)
    wide = (torch.rand(2, 20_000, dtype=torch.float64) * 60 - 30).exp2()
    counts = (torch.rand(2, 20_000, dtype=torch.float64) * 2**25).floor() + 1
    random = torch.cat([wide * torch.randn(2, 20_000).sign(), counts], 1).to(dtype)
    a = torch.cat([special.repeat_interleave(len(special)), random[0]])
    b = torch.cat([special.repeat(len(special)), random[1]])

    def rest(x, y):
        return math.nan if math.isinf(x) or y == 0 else math.fmod(x, y)

    pairs = zip(a.tolist(), b.tolist(), strict=True)
    exact = torch.tensor([rest(*pair) for pair in pairs], dtype=torch.float64)
    found = compiled(lambda a, b: torch.fmod(a, b), a, b)(a, b)
    torch.testing.assert_close(found, exact.to(dtype), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.signbit() | exact.isnan(), exact.signbit() | exact.isnan())
    kept = ~torch.fmod(a, b).isnan() | exact.isnan()  # eager's vector form gives NaN for some
    a, b = a[kept], b[kept]
    check(lambda a, b: (a % b, a // b), a, b, rtol=0, atol=0)


@pytest.mark.parametrize("size", [(5,), (3, 4), (300,), (300, 7)], ids=str)
def test_unit_matrices_are_loops(monkeypatch, size):
    """torch's decomposition counts in types that the CPU does not."""
    made = units(monkeypatch)
    check(lambda x: x * 2 + torch.eye(*size), torch.randn(size[0], size[-1]))
    check(lambda x: x.long() + torch.eye(*size, dtype=torch.int64), torch.randn(size[0], size[-1]))
    assert not any(isinstance(item, ExternCall) for unit in made for item in unit.items)


@pytest.mark.covering
@pytest.mark.parametrize("wide", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_by_way_of_integers(dtype, wide):
    """NaN, infinities and what is too large become the smallest integer, -0.5 becomes 0."""

    def fn(x):
        back = x.to(wide).to(dtype)
        return torch.copysign(torch.ones_like(back), back), back * 0.25, (x.to(wide) + 1).to(dtype)

    check_elements(fn, torch.cat([values(dtype), values(dtype) * 1e9]))


def test_steps_of_a_stencil_are_stored(monkeypatch):
    """Five reads of a step, through what is inlined, would compute it five times; two do not."""
    made = units(monkeypatch)

    def step(x):
        return x + 0.1 * (x.roll(1, 0) + x.roll(-1, 0) + x.roll(1, 1) + x.roll(-1, 1) - 4 * x)

    check(lambda x: step(step(x)), torch.randn(64, 48))
    check(lambda x: (lambda y: y + y.roll(1, 0))((x * x + 1).exp()), torch.randn(64, 48))
    assert [sum(len(item.nests) for item in unit.items) for unit in made] == [2, 1]


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bound", [0.3, 1.1, -0.7])
def test_bounds_and_steps_of_half_types(dtype, bound):
    """Numbers are rounded to the type first, as in eager: they may then equal an element."""

    def fn(x):
        wide = torch.tensor(bound, dtype=torch.float64)
        tests = x <= bound, x > bound, x == bound, bound >= x, x != wide, x < wide * 1
        return (
            *tests,
            x % bound,
            torch.fmod(x, bound),
            F.hardshrink(x, abs(bound)),
            x.where(x > bound, 9),
        )

    x = torch.cat([torch.arange(-3, 3, 0.01), torch.tensor([bound, -bound, 0.0, torch.nan])])
    call = dynfix.compile(fn)
    for _ in range(3):
        for found, expected in zip(call(x.to(dtype)), fn(x.to(dtype)), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


ROUNDED = {
    "add": lambda x: x + 0.1,
    "alpha": lambda x: x.add(0.3, alpha=0.1),
    "sub": lambda x: 0.1 - x,
    "chain": lambda x: (x * 0.1 + 0.3) * 0.7 - 1 / 3,
    "number in memory": lambda x: x - torch.tensor(0.1, dtype=torch.float64),
    "first factor": lambda x: torch.tensor(0.1) * x,
    "second factor": lambda x: x * torch.tensor(0.1),
    "divided": lambda x: torch.tensor(0.1) / x,
    "divisor": lambda x: x / torch.tensor(0.1),
    "power": lambda x: x.abs() ** 1.7,
    "base": lambda x: 1.3**x,
    "whole numbers": lambda x: x * torch.arange(0, 37 * len(x), 37),
    "divided by whole numbers": lambda x: (x / torch.arange(1, len(x) + 1)) * 1000,
    "angle": lambda x: torch.atan2(torch.arange(len(x)), x),
}


@pytest.mark.covering
@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
@pytest.mark.parametrize("name", ROUNDED)
def test_numbers_beside_half_types_are_rounded_where_eager_rounds_them(name, dtype):
    x = torch.arange(65536).to(torch.uint16).view(dtype)
    x = x[(x.abs() > 1e-4) & (x.abs() < 1e4)]
    call = dynfix.compile(lambda x: ROUNDED[name](x), fullgraph=True)
    for _ in range(2):
        found, expected = call(x), ROUNDED[name](x)
    differ = (found != expected) & ~(found.isnan() & expected.isnan())
    assert differ.sum() <= len(x) // 1000  # of powers and quotients, whose last bit is not theirs
    few = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(found, expected, rtol=few, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "function", [torch.sgn, lambda x: x.view(-1).sgn(), lambda x: x.view(-1).sgn() + x.view(-1)]
)
def test_gradients_of_signs_behind_views(function):
    call = dynfix.compile(function, options={"strict": True})
    for _ in range(3):
        x = torch.randn(5, 3, requires_grad=True)
        found, expected = call(x), function(x)
        torch.testing.assert_close(found, expected)
        ours, theirs = (torch.autograd.grad(each.sum(), x)[0] for each in (found, expected))
        torch.testing.assert_close(ours, theirs)


def test_a_gradient_of_zero_where_what_comes_is_infinite():
    def fn(x):
        return torch.sqrt(F.softshrink(x, 0.3).abs())

    call = dynfix.compile(fn)
    x = torch.tensor([-1.0, -0.3, -0.0, 0.2, float("nan"), 2.0], requires_grad=True)
    for _ in range(3):
        found, expected = call(x), fn(x)
        torch.testing.assert_close(found, expected, equal_nan=True)
        ours, theirs = (torch.autograd.grad(each.sum(), x)[0] for each in (found, expected))
        torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_which_of_two_zeros_stays(dtype):
    """Bit by bit as in eager, but for the last elements, where eager's loops have another rule."""
    zeros = torch.tensor([0.0, -0.0], dtype=dtype)
    a, b = zeros[torch.arange(128) % 2], zeros[torch.arange(128) // 2 % 2]

    def extrema(a, b):
        both = torch.maximum(a, b), torch.minimum(a, b), a.clamp(b), a.clamp(max=b), a.clamp(b, b)
        numbers = torch.relu(a), a.clamp(0.0), a.clamp(-0.0, 0.0), a.clamp(max=-0.0)
        return *both, *numbers, torch.fmax(a, b), torch.fmin(a, b), F.hardtanh(a, 0.0, 1.0)

    for found, expected in zip(compiled(extrema, a, b)(a, b), extrema(a, b), strict=True):
        assert torch.equal(found[:96].signbit(), expected[:96].signbit())


def test_which_of_two_zeros_stays_where_memory_is_folded_into():
    a, b, at = torch.zeros(8), torch.full((8,), -0.0), torch.arange(8)

    def folded(a, b, at):
        return a.scatter_reduce(0, at, b, "amax"), b.scatter_reduce(0, at, a, "amin")

    for found, expected in zip(compiled(folded, a, b, at)(a, b, at), folded(a, b, at), strict=True):
        assert torch.equal(found.signbit(), expected.signbit())
