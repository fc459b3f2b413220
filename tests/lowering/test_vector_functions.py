"""Functions that vector loops compute themselves, against float64: how far from it, beside eager."""

import ctypes
import math
from pathlib import Path

import dynfix
import pytest
import torch
from dynfix.lowering.loops.kernel_graph import ExternCall
from dynfix.lowering.targets.cpp import cpp_target
from dynfix.runtime import build

from .harness import check, compiled, units

F = torch.nn.functional
TEMPLATES = Path(cpp_target.__file__).with_name("templates")
INF, NAN = math.inf, math.nan
RARE = [
    0.0,
    -0.0,
    1e-45,
    -1e-45,
    1e-40,
    -1e-40,
    1.0,
    2.0,
    -1.0,
    -3.0,
    3.4e38,
    -3.4e38,
    INF,
    -INF,
    NAN,
]


def close_to(*centres, step=2.0**-22):
    return [centre + number * step for centre in centres for number in range(-40, 40)]


def lgamma(x):
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return INF
    return math.lgamma(x)


def exp2(x):
    return NAN if math.isnan(x) else 0.0 if x < -1080 else INF if x > 1020 else math.pow(2, x)


def exp(x):
    return INF if x > 700 else math.exp(x)


def sigmoid(x):
    return 1 / (1 + exp(-x))


def one_plus_erf(x):
    return math.erfc(-x)


ZEROS = (-2.4570247382, -2.7476826467, -3.1435808884, -3.9552942849, -4.0391613968)
POINTS = {
    "lgamma": [
        *torch.linspace(-40, 60, 9001).tolist(),
        *torch.linspace(0.4, 3.6, 4001).tolist(),
        *torch.logspace(-44, 38, 2001).tolist(),
        *close_to(1.0, 2.0, 0.5, 1.5, 2.5, 3.5, *ZEROS),
    ],
    "exp2": [*torch.linspace(-152, 130, 20001).tolist(), *map(float, range(-151, 130))],
    "exp": torch.linspace(-105, 90, 20001).tolist(),
    "sigmoid": torch.linspace(-88, 88, 20001).tolist(),
    "one_plus_erf": torch.linspace(-8, 8, 20001).tolist(),
}
MEANING = {
    "lgamma": lgamma,
    "exp2": exp2,
    "exp": exp,
    "sigmoid": sigmoid,
    "one_plus_erf": one_plus_erf,
}
EAGER = {
    "lgamma": torch.lgamma,
    "exp2": torch.exp2,
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
}
LOOP = """
extern "C" void {0}(const float *x, float *made, int64_t n) {{
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) made[i] = op_{0}(x[i]);
}}
"""


@pytest.fixture(params=["native", "portable"])
def library(request, tmp_path, monkeypatch):
    """All of them, for this processor and for any."""
    if request.param == "portable" and "avx2" not in build.isa():
        pytest.skip("a flag of x86")
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path))
    source = "".join((TEMPLATES / f"{name}.h").read_text() for name in ("prelude", "lgamma"))
    loops = "".join(LOOP.format(name) for name in [*MEANING, "one_plus_erf_short", "sigmoid_short"])
    flags = () if request.param == "native" else ("-march=x86-64",)
    path = build.build_shared(source + loops, flags=flags, name="functions")
    return ctypes.CDLL(str(path))


def called(function, x):
    made = torch.full_like(x, 7)
    addresses = [ctypes.c_void_p(t.data_ptr()) for t in (x, made)]
    function(*addresses, ctypes.c_int64(len(x)))
    return made


def truth(name, x):
    return torch.tensor([MEANING[name](v) for v in x.double().tolist()], dtype=torch.float64)


def ulps(found, expected):
    """The distance in units of the last place that the exact number has in float."""
    size = expected.float().abs()
    unit = torch.nextafter(size, torch.tensor(INF)).double() - size.double()
    finite = size < 1e38
    return ((found.double() - expected).abs() / unit)[finite]


@pytest.mark.parametrize("name", EAGER)
def test_at_most_twice_as_far_as_eager(name, library):
    x = torch.tensor(POINTS[name])
    exact = truth(name, x)
    found = ulps(called(getattr(library, name), x), exact)
    assert found.max() <= 2 * ulps(EAGER[name](x), exact).max()
    apart = torch.ones_like(x, dtype=torch.bool)
    for zero in ZEROS if name == "lgamma" else ():  # what is left of a difference of equal numbers
        apart &= (x - zero).abs() > 1e-2
    most = 2.6 if name == "sigmoid" else 1.1
    assert ulps(called(getattr(library, name), x[apart].clone()), exact[apart]).max() < most


def test_one_plus_erf(library):
    x = torch.tensor(POINTS["one_plus_erf"])
    exact = truth("one_plus_erf", x)
    assert (called(library.one_plus_erf, x).double() - exact).abs().max() < 2.7e-7
    assert (called(library.one_plus_erf_short, x).double() - exact).abs().max() < 8e-7
    ends = torch.tensor([0.0, -0.0, -4.0, -1e30, 1e30, -INF, INF, NAN])
    expected = torch.tensor([1.0, 1.0, 0.0, 0.0, 2.0, 0.0, 2.0, NAN])
    torch.testing.assert_close(
        called(library.one_plus_erf, ends), expected, rtol=0, atol=2e-8, equal_nan=True
    )


def test_sigmoid_before_it_is_rounded(library):
    x = torch.tensor([*POINTS["sigmoid"], *RARE, 1e6, -1e6, 88.72, -88.72, -88.73])
    exact = truth("sigmoid", x)
    exact[x < -88.722] = 0  # where exp is infinite in float: so in eager
    found = called(library.sigmoid_short, x).double()
    torch.testing.assert_close(found, exact, rtol=2e-6, atol=1e-45, equal_nan=True)
    assert ((found - exact).abs() <= 1e-7).logical_or(x.isnan()).all()
    negative = torch.tensor([-4194304], dtype=torch.int32).view(torch.float32)  # x86's own NaN
    for name in ("sigmoid", "sigmoid_short"):
        assert called(getattr(library, name), negative).isnan().all()


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fn", [torch.sigmoid, F.silu, F.glu], ids=lambda fn: fn.__name__)
def test_gates_of_halves(fn, dtype):
    """As often as eager the half that is nearest, of all halves and with gradients."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    x = bits.view(dtype).view(256, 256)
    found, expected = compiled(lambda x: fn(x), x)(x), fn(x)
    torch.testing.assert_close(found, expected, equal_nan=True)
    finite = expected.isfinite()
    assert (found != expected)[finite].float().mean() < 2e-3
    y = torch.randn(64, 64, dtype=dtype)
    check(lambda y: fn(y * 3), y.requires_grad_())


@pytest.mark.parametrize("name", EAGER)
def test_rare_numbers(name, library):
    x = torch.tensor([*RARE, 128.0, 127.9999, -149.0, -149.5, -150.0, -126.5])
    found = called(getattr(library, name), x)
    torch.testing.assert_close(found, truth(name, x).float(), equal_nan=True)
    exact = x == x.floor()
    if name == "exp2":
        assert torch.equal(found[exact], truth(name, x)[exact].float())


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_is_no_further_from_float64_than_eager(approximate):
    x = torch.linspace(-12, 12, 100001)
    exact = F.gelu(x.double(), approximate=approximate)
    found = compiled(lambda x: F.gelu(x, approximate=approximate), x)(x)
    mine, eager = ((y.double() - exact).abs() for y in (found, F.gelu(x, approximate=approximate)))
    assert mine.max() <= 2 * eager.max() and mine.mean() <= 2 * eager.mean()
    x = torch.tensor([0.0, -0.0, 1e30, -1e30, INF, -INF, NAN, 1e-40])
    found = compiled(lambda x: F.gelu(x, approximate=approximate), x)(x)
    exact = F.gelu(x.double(), approximate=approximate).float()  # eager's has NaN for infinity
    torch.testing.assert_close(found, exact, equal_nan=True)


VECTORS = {fn.__name__: fn for fn in (torch.lgamma, torch.exp2, F.gelu)}


@pytest.mark.covering
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str
)
@pytest.mark.parametrize("name", VECTORS)
def test_types_layouts_and_sizes(name, dtype):
    fn = VECTORS[name]
    for shape in ((0,), (1,), (15,), (17, 3), (3, 257)):
        check(lambda x: fn(x), torch.randn(shape).to(dtype))
    check(lambda x: fn(x.t()[::2]) + 1, torch.randn(9, 70).to(dtype))
    call = dynfix.compile(lambda x: fn(x), dynamic=True)
    for length in (3, 40, 257):
        x = torch.randn(2, length).to(dtype)
        torch.testing.assert_close(call(x), fn(x))


def test_lgamma_of_doubles_is_the_library_s(monkeypatch):
    made = units(monkeypatch)
    check(lambda x: torch.lgamma(x) + 1, torch.randn(70).double(), rtol=0, atol=0)
    assert any(isinstance(item, ExternCall) for unit in made for item in unit.items)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32, torch.float64))
def test_roots_as_powers_are_eagers_at_minus_infinity_and_minus_zero(dtype):
    def fn(x):
        half = torch.full_like(x, 0.5)
        return x**0.5, x**-0.5, x**half, x**-half

    call, x = dynfix.compile(fn, fullgraph=True), torch.tensor([*RARE, *RARE]).to(dtype)
    for _ in range(2):
        for found, expected in zip(call(x), fn(x), strict=True):
            torch.testing.assert_close(found, expected, equal_nan=True)
            torch.testing.assert_close(1 / found, 1 / expected, equal_nan=True)
