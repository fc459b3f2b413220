"""Accesses across the last axis are turned in blocks; positions made of axes are evaluated."""

import ctypes
import itertools
from pathlib import Path

import dynfix
import pytest
import torch
from dynfix.lowering.targets.cpp import cpp_build, cpp_target
from dynfix.runtime import build
from grids import grid
from torch.nn import functional as F

from .harness import check, check_gradients, compiled


@pytest.fixture
def sources(monkeypatch):
    """The C++ of every library that is built."""
    found = []
    build = cpp_build.build_shared
    monkeypatch.setattr(
        cpp_build, "build_shared", lambda text, **rest: found.append(text) or build(text, **rest)
    )
    return found


def kernels(sources):
    return "".join(text[text.index('extern "C" int64_t') :] for text in sources)


def make(shape, dtype):
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape).to(dtype)


@pytest.mark.covering
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.bool],
    ids=str,
)
@pytest.mark.parametrize("shape", [(64, 128), (33, 70), (200, 131), (8, 300)], ids=str)
def test_transposed_operands(dtype, shape, sources):
    check(
        lambda a, b: torch.where(a == b.t(), a, b.t()), make(shape, dtype), make(shape[::-1], dtype)
    )
    assert "op_transpose" in kernels(sources)


def test_several_operands_lie_across(sources):
    a, b, c = (
        make((3, 40, 50), torch.float32),
        make((3, 50, 40), torch.float32),
        make((50, 40), torch.float32),
    )
    check(lambda a, b, c: a + b.transpose(1, 2) * c.t(), a, b, c)
    assert kernels(sources).count("op_transpose<") == 2
    assert kernels(sources).count("op_transpose_tile<") == 2


@pytest.mark.covering
@pytest.mark.parametrize(
    "shape", [(48, 400), (400, 48), (256, 320), (1, 300, 17), (3, 65, 260)], ids=str
)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8], ids=str
)
def test_tiles_that_fit_and_that_do_not(dtype, shape):
    """Short last axes, whole tiles alone, rests on both sides; what lies across is read, written
    or both, and read again from memory that the call writes."""

    def both(x, y):
        z = x.transpose(-1, -2) + y
        return z, z.transpose(-1, -2).contiguous() * 2

    check(both, make(shape, dtype), make((*shape[:-2], shape[-1], shape[-2]), dtype))

    def in_place(x, y):
        y.add_(x.transpose(-1, -2))
        return y * 2

    x, y = make(shape, dtype), make((*shape[:-2], shape[-1], shape[-2]), dtype)
    call, other = compiled(in_place, x, y.clone()), y.clone()
    for _ in range(3):
        torch.testing.assert_close(call(x, y), in_place(x, other))
        torch.testing.assert_close(y, other)


def test_tiles_of_sizes_that_change():
    call = dynfix.compile(lambda x, y: (x.t() + y, (x * 2).t().contiguous()), dynamic=True)
    for shape in ((20, 30), (64, 300), (300, 48), (16, 16), (9, 257), (1, 40), (0, 3)):
        x, y = torch.randn(shape), torch.randn(shape[::-1])
        for found, expected in zip(call(x, y), (x.t() + y, (x * 2).t().contiguous()), strict=True):
            torch.testing.assert_close(found, expected)
            assert found.stride() == expected.stride()


def test_results_that_lie_across(sources):
    def both(x):
        y = x * 2
        return y, y.permute(0, 2, 1).contiguous()

    check(both, make((4, 37, 90), torch.float32))


def test_to_channels_last():
    check(lambda x: x.permute(0, 2, 3, 1).contiguous() + 1, make((2, 24, 9, 11), torch.float32))
    check(
        lambda x: x.contiguous(memory_format=torch.channels_last) + 1,
        make((2, 24, 9, 11), torch.float32),
    )


@pytest.mark.covering
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("scale", [2, 3, 4, 1.5, 0.5])
def test_upsampling(mode, scale, sources):
    check(
        lambda x: F.interpolate(x, scale_factor=scale, mode=mode) + 1,
        make((2, 3, 40, 42), torch.float32),
    )
    if scale in (2, 4) or (mode == "nearest" and scale == 3):
        assert "is_outside" not in kernels(sources)


def test_corners_aligned():
    check(
        lambda x: F.interpolate(x, size=(57, 90), mode="bilinear", align_corners=True),
        make((2, 3, 40, 42), torch.float32),
    )


def test_a_computed_position_out_of_range_still_raises():
    def beyond(x):
        return x[:, torch.arange(8) * 5] + 1

    with pytest.raises(IndexError):
        check(beyond, make((4, 12), torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_whole_numbers_in_floating_point(dtype):
    check(lambda x: x + torch.arange(3, 203, 2, dtype=dtype), make((4, 100), dtype))
    check(lambda x: x + torch.arange(100, dtype=dtype) * 0.3, make((4, 100), dtype))
    check(lambda x: x + torch.arange(0, 10, 0.1, dtype=dtype), make((4, 100), dtype))


def _weighted(x, w):
    return F.layer_norm(x, x.shape[-1:], w) + w


SHORT_ROWS = {
    "softmax": lambda x, w: x.softmax(-1) * 2,
    "log_softmax": lambda x, w: (x + w).log_softmax(-1),
    "layer norm": _weighted,
    "argmax": lambda x, w: ((x * w).argmax(-1), x.argmin(-1)),
    "fold alone": lambda x, w: (x * x).sum(-1).sqrt(),
    "mask": lambda x, w: x.masked_fill(x > w, float("-inf")).softmax(-1),
    "any": lambda x, w: ((x > 2).any(-1), (x > -2).all(-1), x.amin(-1)),
    "positions": lambda x, w: (x * torch.arange(x.shape[-1])).exp().sum(-1) + x.logsumexp(-1),
}


@pytest.mark.parametrize(
    ("columns", "name"),
    grid(lambda columns, name: columns == 10, [10, 16, 21, 33], SHORT_ROWS),
)
def test_short_rows_are_turned(name, columns, sources):
    """Vectors take one element of each row."""
    fn = SHORT_ROWS[name]
    x, w = torch.randn(1090, columns), torch.randn(columns)
    x[3, 4] = torch.nan
    x[5] = float("-inf")
    for given in (x, torch.randn(3, 400, columns + 3)[..., :columns], x[1:].double()):
        check(fn, given, w.to(given.dtype), rtol=1e-5, atol=1e-6)
    assert "op_transpose" in kernels(sources) or columns in (16, 33)


@pytest.mark.parametrize("columns", grid((9,).__contains__, [9, 10, 11, 15, 16, 30]))
def test_short_rows_that_are_stored_and_read_element_by_element(columns):
    """Folds over few points of something costly are written out: they read what a loop beside them
    stores, of one row."""

    def both(x):
        y = x.sin()
        return y, (y.exp() * y.cos()).sum(-1)

    def entropy(x):
        return -(x.softmax(-1) * x.log_softmax(-1)).sum(-1)

    x = torch.randn(1091, columns)
    for given in (x, torch.randn(2, 700, columns), x.double()):
        check_gradients(entropy, given, rtol=1e-5, atol=1e-5)
        check_gradients(lambda x: both(x)[1], given, rtol=1e-5, atol=1e-5)
    x[3, 4] = torch.nan
    check(both, x, rtol=1e-5, atol=1e-5)


def test_short_rows_that_the_same_kernel_fills():
    def scaled(x):
        sums = torch.stack([(x.sin() * (k * 0.1)).cos().sum(-1) for k in range(10)], -1)
        return sums / sums.amax(-1, keepdim=True)

    check(scaled, torch.randn(4100, 20))


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)]
)
def test_short_rows_of_16_bits(dtype):
    x = (torch.randn(1100, 21) * 3).to(dtype)
    x[3, 4] = torch.nan
    mask = torch.rand(1100, 21) > 0.8
    check(lambda x: x.softmax(-1), x, rtol=0.02, atol=0.01)
    check(
        lambda x, m: (x.masked_fill(m, -1).log_softmax(-1), m.any(-1)),
        x,
        mask,
        rtol=0.02,
        atol=0.01,
    )
    check_gradients(lambda x: F.layer_norm(x, (21,)), x[7:], rtol=0.02, atol=0.01)


def test_gradients_of_short_rows():
    at = torch.randint(12, (1100,))
    x = torch.randn(1100, 12)
    check_gradients(lambda x: F.cross_entropy(x, at), x)
    check_gradients(lambda x: F.normalize(x, dim=-1), x)
    check_gradients(lambda x: x.view(100, 11, 12).softmax(-1).cumsum(0), x)


@pytest.mark.parametrize(
    ("columns", "dtype"),
    grid(
        lambda *cell: cell in ((5, torch.bfloat16), (7, torch.float64)),
        [5, 7, 15, 17],
        [torch.float32, torch.float64, torch.bfloat16],
    ),
)
def test_pointwise_loops_beside_short_rows(columns, dtype, sources):
    """What is the same for a row is read once for it."""
    near = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    x, row = torch.randn(1090, columns).to(dtype), torch.randn(1090, 1).to(dtype)
    for given in (x, x[:45]):
        check(lambda x, r: (F.gelu(x) * r, x > r), given, row[: len(given)], **near)
        check_gradients(lambda x, r: F.gelu(x * r).mean(-1), given, row[: len(given)], **near)
    mask = torch.rand(1090, columns) > 0.5
    check(lambda x, r, m: x.exp().masked_fill(m, 2) + r, x, row, mask, **near)
    assert "op_transpose" in kernels(sources)


@pytest.mark.parametrize("columns", [5, 7, 17])
def test_values_that_a_kernel_keeps_beside_short_rows(columns):
    """Each element has one of its own."""

    def both(x):
        total = x.nansum(1)
        return F.hardshrink(total), total.asinh()

    check(both, torch.randn(33, 7, columns))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8])
def test_blocks_of_every_shape(dtype, tmp_path):
    """What is left behind whole blocks is turned by blocks that lie over others."""
    kind = {4: "float", 8: "double", 2: "bf16", 1: "uint8_t"}[dtype.itemsize]
    templates = Path(cpp_target.__file__).with_name("templates")
    text = "\n".join((templates / f"{name}.h").read_text() for name in ("prelude", "tiles"))
    text += (
        f'\nextern "C" void turn({kind} *to, const {kind} *from, int64_t rows, int64_t columns)'
        f" {{ op_transpose<{kind}>(to, rows + 1, from, columns + 2, rows, columns); }}\n"
    )
    library = ctypes.CDLL(str(build.build_shared(text, name="turned")))
    for rows, columns in itertools.product(range(1, 40), repeat=2):
        given = torch.randint(100, (rows, columns + 2)).to(dtype)
        made = torch.full((columns, rows + 1), 7, dtype=dtype)
        pointers = (ctypes.c_void_p(x.data_ptr()) for x in (made, given))
        library.turn(*pointers, ctypes.c_int64(rows), ctypes.c_int64(columns))
        assert torch.equal(made[:, :rows], given[:, :columns].t()), (rows, columns)
        assert (made[:, rows:] == 7).all()


@pytest.mark.covering
@pytest.mark.parametrize("kind", ["float", "double", "bf16", "int8_t"])
@pytest.mark.parametrize("target", ["native", "x86-64", "x86-64-v3"])
def test_whole_tiles(kind, target):
    if target != "native" and "avx2" not in build.isa():
        pytest.skip("a flag of x86")
    dtype = {"float": torch.float32, "double": torch.float64, "bf16": torch.int16}
    templates = Path(cpp_target.__file__).with_name("templates")
    text = "".join((templates / f"{name}.h").read_text() for name in ("prelude", "tiles"))
    for rows, columns in itertools.product((16, 32, 64), repeat=2):
        text += (
            f'\nextern "C" void turn_{rows}_{columns}({kind} *to, const {kind} *from) {{'
            f" op_transpose_tile<{kind}, {rows}, {columns}, true>"
            f"(to, {rows + 3}, from, {columns + 5}, 8); }}\n"
        )
    library = ctypes.CDLL(
        str(build.build_shared(text, flags=(f"-march={target}",), name="whole_tiles"))
    )
    for rows, columns in itertools.product((16, 32, 64), repeat=2):
        given = torch.randint(100, (rows, columns + 5)).to(dtype.get(kind, torch.int8))
        made = torch.full((columns, rows + 3), 7, dtype=given.dtype)
        pointers = (ctypes.c_void_p(x.data_ptr()) for x in (made, given))
        getattr(library, f"turn_{rows}_{columns}")(*pointers)
        assert torch.equal(made[:, :rows], given[:, :columns].t())
        assert (made[:, rows:] == 7).all()


def test_a_value_in_a_register_is_one_for_each_element_of_a_short_row():
    """The gradient keeps what two results need in a local buffer, and its rows are turned."""

    def fn(x, m, s):
        s = torch.nn.functional.softplus(s) + 1e-4
        return (-((x - m) ** 2) / (2 * s * s) - s.log()).sum(-1)

    check_gradients(fn, *(torch.randn(300, 6) for _ in range(3)), rtol=1e-3, atol=1e-3)
