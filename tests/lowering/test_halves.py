"""Loops over float16, and odd rows of bfloat16, printed in parts with conversions of whole blocks between them."""

import ctypes
import re
from pathlib import Path

import dynfix
import pytest
import torch
from dynfix.lowering.loops.ir import Group
from dynfix.lowering.targets.cpp import half_precision_loops
from dynfix.lowering.targets.cpp.cpp_target import print_kernel
from dynfix.runtime import build
from grids import grid

from .harness import UNFUSED, at_threads, check, check_gradients, compiled, units

F = torch.nn.functional
TEMPLATES = Path(half_precision_loops.__file__).with_name("templates")
LENGTHS = [0, 1, 7, 8, 15, 16, 17, 31, 100, 255, 256, 257, 700, 4099]
HALVES = torch.arange(65536).to(torch.uint16).view(torch.float16)


def values(*shape):
    """Random numbers, among them what is rounded, denormal, infinite or none."""
    x = torch.randn(*shape).half()
    flat = x.view(-1)
    rare = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 6e-8, -3e-7, 65504.0, 6.1e-5, 1.0009765625]
    flat[: len(rare)] = torch.tensor(rare).half()[: len(flat)]
    return x[torch.randperm(len(x))] if x.dim() else x


def floats():
    """Numbers around those that halves lie between."""
    bits = torch.randint(-(2**31), 2**31, (1 << 18,), dtype=torch.int64).to(torch.int32)
    whole = HALVES.float()
    between = (whole[:-1] + whole[1:]) / 2
    near = [torch.nextafter(between, torch.full_like(between, to)) for to in (-1e9, 1e9)]
    return torch.cat([bits.view(torch.float32), whole, between, *near])


@pytest.fixture(params=["native", "avx2", "portable"])
def library(request, tmp_path, monkeypatch):
    """The rows, as this processor has them, in eight lanes, and without its conversions."""
    if request.param != "native" and "avx2" not in build.isa():
        pytest.skip("flags of x86")
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path))
    flags = {"native": (), "avx2": ("-march=haswell",), "portable": ("-march=x86-64",)}
    wrappers = "".join(
        f'extern "C" void {name}(const {a} *x, {b} *y, int64_t n) {{ row_{name}(x, y, n); }}\n'
        for name, a, b in (
            ("from_fp16", "fp16", "float"),
            ("to_fp16", "float", "fp16"),
            ("round_fp16", "float", "float"),
            ("from_bf16", "bf16", "float"),
            ("to_bf16", "float", "bf16"),
        )
    )
    source = "\n".join((TEMPLATES / f"{name}.h").read_text() for name in ("prelude", "halves"))
    path = build.build_shared(source + wrappers, flags=flags[request.param], name="halves")
    return ctypes.CDLL(str(path))


def run(function, x, dtype):
    made = torch.full_like(x, 7, dtype=dtype)
    function(
        ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(made.data_ptr()), ctypes.c_int64(len(x))
    )
    return made


def same_bits(found, expected):
    kind = torch.int16 if found.dtype.itemsize == 2 else torch.int32
    number = ~expected.isnan()
    assert torch.equal(found[number].view(kind), expected[number].view(kind))
    assert found[~number].isnan().all()


def test_conversions(library):
    x = floats()
    same_bits(run(library.from_fp16, HALVES, torch.float32), HALVES.float())
    same_bits(run(library.to_fp16, x, torch.float16), x.half())
    same_bits(run(library.round_fp16, x, torch.float32), x.half().float())
    brain = HALVES.view(torch.bfloat16)
    same_bits(run(library.from_bf16, brain, torch.float32), brain.float())
    same_bits(run(library.to_bf16, x, torch.bfloat16), x.bfloat16())


def test_nothing_is_written_beyond_the_end(library):
    x = torch.randn(64)
    for count in range(40):
        made = torch.full((64,), 7.0)
        addresses = [ctypes.c_void_p(t.data_ptr()) for t in (x, made)]
        library.round_fp16(*addresses, ctypes.c_int64(count))
        assert torch.equal(made[:count], x[:count].half().float()), count
        assert (made[count:] == 7).all(), count


@pytest.mark.parametrize("length", grid((0, 1, 8, 17, 257, 4099).__contains__, LENGTHS))
def test_chains(length):
    check(lambda x: ((x * 2 + 1).relu(), x.float() / 3, x > 0.5), values(length), rtol=0, atol=0)
    check(lambda x: (x * 2 + 1).relu(), values(length), options=UNFUSED, rtol=0, atol=0)


@pytest.mark.parametrize("length", grid((1, 8, 17, 257, 4099).__contains__, LENGTHS[1:]))
def test_rows(length):
    check(
        lambda x: (x.softmax(-1), x.sum(-1), x.amax(-1), x.argmax(-1)),
        torch.randn(3, length).half(),
    )
    check(lambda x: F.layer_norm(x.float(), x.shape[-1:]).half(), torch.randn(3, length).half())
    check(lambda x: x.sum(0), torch.randn(5, length).half())


def test_rows_with_numbers_that_are_none():
    check(lambda x: (x.amax(-1), x.softmax(-1), (x * 3).sum(-1)), values(20, 300))


@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x.t(),
        lambda x: x[::2, ::3],
        lambda x: x[:, 1:],
        lambda x: x[:1].expand(33, -1),
    ],
)
def test_layouts(layout):
    base = values(33, 70)
    check(lambda x, y: (layout(x) * 3 - layout(y)).abs() + 1, base, values(33, 70), rtol=0, atol=0)


def test_other_types_beside():
    x, y = values(9, 70), torch.randn(70)
    whole, mask = torch.randint(-5, 5, (9, 70)), torch.randn(9, 70) > 0

    def fn(x, y, whole, mask):
        return (
            torch.where(mask, x * 2, x + 1),
            x * y,
            (x + whole).double() / 3,
            x.bfloat16() + 1,
            torch.where(x > y, whole, 3),
            (x.double() * 1e-3).half(),
            x.isnan(),
        )

    check(fn, x, y, whole, mask, rtol=0, atol=0)


@pytest.mark.parametrize("length", [5, 21, 700])
def test_from_one_half_type_to_another(length):
    x, y = values(length).bfloat16(), values(length)
    check(lambda x: x.half() * 1, x, rtol=0, atol=0)
    check(lambda x, y: (x.half() + y, y.bfloat16() - 1, x.half()), x, y, rtol=0, atol=0)
    check(lambda x, y: (x.half(), x.float() * y, y.float() + x), x, y, rtol=0, atol=0)


def test_positions_from_memory():
    table, places = values(40, 70), torch.randint(0, 40, (33,))
    check(lambda t, p: F.embedding(p, t) * 2 + 1, table, places, rtol=0, atol=0)
    check(lambda t, p: t.index_select(1, p) / 3, table, places, rtol=0, atol=0)
    call = compiled(lambda t, p: (t * 2)[p], table, places)
    with pytest.raises(IndexError):
        call(table, torch.full((33,), 99))


def test_written_in_place():
    def fn(x):
        before = x * 2
        x.mul_(3).add_(1)
        return before + x

    call = dynfix.compile(fn)
    for _ in range(3):
        x = values(5, 300)
        theirs = x.clone()
        expected = fn(theirs)
        found = call(x)
        torch.testing.assert_close((found, x), (expected, theirs), rtol=0, atol=0, equal_nan=True)


def test_gradients():
    weight, x = torch.randn(70).half(), torch.randn(9, 70).half()
    check_gradients(lambda x, w: (x * w).sigmoid() * 2, x, weight, rtol=4e-3, atol=4e-3)
    check_gradients(lambda x: x.softmax(-1), x, rtol=4e-3, atol=4e-3)


def test_threads_change_nothing():
    x = values(300, 700)
    call = compiled(lambda x: ((x * 2 + 1).relu(), x.softmax(-1)), x)
    first, *others = at_threads(call, x)
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=0, equal_nan=True)


def test_sizes_that_a_call_knows():
    def fn(x):
        return (x * 2 + 1).relu(), x.softmax(-1), x.sum(0)

    call = dynfix.compile(fn, dynamic=True)
    for rows, columns in ((3, 40), (5, 300), (1, 257), (7, 17), (2, 1000)):
        x = torch.randn(rows, columns).half()
        torch.testing.assert_close(call(x), fn(x), rtol=2e-3, atol=2e-3)


LOOP = "for (int64_t i = 0; i < n; ++i) {"


def test_parts_keep_the_order_of_reads_and_writes():
    made = half_precision_loops.parts(
        "#pragma omp simd reduction(|:bad)",
        LOOP,
        [
            "const fp16 t0 = a[i];",
            "const float t1 = from_fp16(t0);",
            "const int64_t t2 = (int64_t)(i);",
            "const float t3 = b[t2];",
            "const float t4 = (t1 + t3);",
            "b[i] = t4;",
            "bad |= (t1 != t1);",
            "const float t5 = b[i];",
            "const fp16 t6 = to_fp16((t5 * t3));",
            "c[i] = t6;",
        ],
    )
    assert made is not None
    text = "\n".join(made)
    order = ["row_from_fp16(a + low", "b[i] = t4", "t5 = b[i]", "row_to_fp16(t6_in_s, c + low,"]
    assert "c[i]" not in text
    assert sorted(order, key=text.index) == order
    assert text.index("t3 = b[t2]") < text.index("b[i] = t4")
    assert text.count("reduction(|:bad)") == 1


def test_rows_are_converted_where_they_lie():
    """By an index of a part of the axis too, but not where the loop reads what it stores."""
    loads = ["const int64_t k = from + i;", "const fp16 t0 = a[j * 9 + k];"]
    body = [*loads, "const float t1 = from_fp16(t0);", "const fp16 t2 = to_fp16((t1 * t1));"]
    text = "\n".join(
        half_precision_loops.parts("#pragma omp simd", LOOP, [*body, "b[k + 3] = t2;"]) or []
    )
    assert "row_from_fp16(a + j * 9 + from + low, t1_s" in text
    assert "row_to_fp16(t2_in_s, b + from + low + 3," in text
    for others in (["b[k + 4] = t2;"], ["const fp16 t3 = b[k + 5];", "d[i] = t3;"], ["b[i] = t0;"]):
        made = half_precision_loops.parts(
            "#pragma omp simd", LOOP, [*body, "b[k + 3] = t2;", *others]
        )
        assert "b[k + 3] = t2_s" in "\n".join(made or [])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("columns", [3, 5])
def test_a_row_whose_places_are_divided_is_no_row_in_memory(columns, dtype):
    def fn(x):
        y = x.repeat_interleave(2, -1)
        return torch.tan(y / 4), F.unfold(y[None, None], (1, 2), dilation=2, padding=1, stride=2)

    check(fn, torch.randn(3, columns).to(dtype))


def test_loops_of_other_kinds_stay():
    pragma = "#pragma omp simd"
    assert (
        half_precision_loops.parts(pragma, LOOP, ["const float t0 = a[i];", "b[i] = t0;"]) is None
    )
    assert half_precision_loops.parts(pragma, LOOP, ["if (x) y = from_fp16(a[i]);"]) is None


def test_results_of_one_loop_are_converted_by_blocks(monkeypatch):
    """Two results at once, as a gradient has: each loop is taken apart by itself, and is one of both
    where they have something in common."""
    args = [torch.randn(300, 70).half() for _ in range(3)]

    def alike(g, a, b):
        return g * torch.sigmoid(a), g * b * torch.sigmoid(a) * 2

    def unlike(g, a, b):
        return g * torch.sigmoid(a), a * b * torch.tanh(b) * 2

    for fn, count in ((alike, 1), (unlike, 2)):
        made = units(monkeypatch)
        check(fn, *args)
        (group,) = [item for item in made[0].items if isinstance(item, Group)]
        source = print_kernel(group).source
        assert len(group.nests) == count
        assert not re.search(r"\b(from|to|round)_fp16\(", source)


def test_doubles_become_halves():
    def fn(x):
        return x.half() * 2, x.half().to(torch.int32), (x + 1).half().double(), x.bfloat16() * x

    check(fn, torch.linspace(-70000, 70000, 40, dtype=torch.float64).view(5, 8))


ODD = {
    "folds": lambda x, w: (x.mean(-1), (x * x).sum(-1), x.amax(-1), x.tanh().sum(-1)),
    "softmax": lambda x, w: (x.softmax(-1), (x * w).log_softmax(-1), F.gelu(x).mean(-1)),
    "norm": lambda x, w: (F.layer_norm(x, w.shape, w), x.float().sigmoid().prod(-1)),
    "scan": lambda x, w: x.cumsum(-1) * w,
}


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("length", [33, 48, 70, 255])
@pytest.mark.parametrize("name", ODD)
def test_odd_rows(name, length, dtype):
    """Rows that leave something behind whole vectors."""
    fn = ODD[name]
    x = (torch.randn(1030, length) * 2).to(dtype)
    w = torch.randn(length).to(dtype)
    check(fn, x, w, rtol=2e-2, atol=2e-2)
    check(fn, x[:31], w, rtol=2e-2, atol=2e-2)
    if name == "softmax":
        check_gradients(lambda x: fn(x.float(), w), x, rtol=2e-2, atol=2e-2)
    x[3, 4], x[5, -1], x[7] = torch.nan, -torch.inf, torch.inf
    if name in ("folds", "norm"):
        check(fn, x, w, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_quotients_by_what_a_row_shares(dtype, monkeypatch):
    """Products with its inverse: the same numbers, also of infinite, denormal and no numbers;
    denormal quotients lie next to eager's."""
    made = units(monkeypatch)
    bits = torch.randint(-(2**15), 2**15, (64, 640)).to(torch.int16)
    limits = torch.finfo(dtype)
    rare = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, limits.tiny, -limits.tiny / 4, limits.max]
    x, by = bits.view(dtype), torch.randn(64, 32).to(dtype).amax(-1, keepdim=True).expand(64, 32)
    by = torch.where(torch.arange(64)[:, None] % 2 == 0, by, bits[:, :1].view(dtype)).contiguous()
    by[: len(rare)] = torch.tensor(rare, dtype=dtype)[:, None]

    def fn(x, by):
        return x / by.amax(-1, keepdim=True)

    call = compiled(fn, x, by)
    for _ in range(3):
        found, expected = call(x, by), fn(x, by)
        small = expected.abs() < limits.tiny
        torch.testing.assert_close(found[~small], expected[~small], rtol=0, atol=0, equal_nan=True)
        step = limits.smallest_normal * limits.eps
        torch.testing.assert_close(found[small], expected[small], rtol=0, atol=step)
        x, by = x.flip(0), by.flip(0)
    groups = [item for item in made[0].items if isinstance(item, Group)]
    assert "_inverse" in "".join(print_kernel(group).source for group in groups)
