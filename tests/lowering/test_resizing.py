"""Nearest neighbours, at eager's positions."""

import ctypes
import math
import mmap
import warnings
from functools import partial

import dynfix
import pytest
import torch
from dynfix.lowering.loops.ir import Batch, Group
from dynfix.lowering.loops.kernel_graph import ExternCall
from dynfix.lowering.targets.cpp import cpp_target
from grids import grid
from torch.nn.functional import interpolate

from .harness import check, check_gradients, compiled, units

SIZES = [{"scale_factor": 2}, {"size": (7, 5)}, {"size": (33, 3)}, {"scale_factor": (1.5, 0.7)}]


@pytest.mark.parametrize("more", SIZES)
def test_nearest(more):
    check(lambda x: interpolate(x, **more) + 1, torch.randn(2, 3, 11, 6))


@pytest.mark.parametrize("size", [1, 3, 10, 47, 100])
def test_positions_that_rounding_decides(size):
    check(lambda x: interpolate(x, size=size), torch.arange(49.0).view(1, 1, 49))


def test_channels_last_and_gradient():
    x = torch.randn(2, 3, 6, 5).to(memory_format=torch.channels_last)
    check(lambda x: interpolate(x, scale_factor=3), x)
    check_gradients(lambda x: interpolate(x, scale_factor=2), torch.randn(2, 3, 4, 5))


def test_float_ranges():
    check(lambda x: x + torch.arange(6, dtype=torch.float32), torch.randn(6))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("more", [{"size": (9, 8)}, {"scale_factor": (1.5, 0.7)}])
def test_images_of_bytes_are_rounded_as_by_eager(mode, more):
    x = torch.randint(0, 255, (2, 3, 16, 15), dtype=torch.uint8)
    check(lambda x: interpolate(x, mode=mode, **more) // 2, x, rtol=0, atol=0)


LINEAR = [
    {"scale_factor": 2, "mode": "bilinear"},
    {"scale_factor": (3, 1.7), "mode": "bilinear"},
    {"size": (4, 9), "mode": "bilinear", "align_corners": True},
]
NEAREST = [
    {"scale_factor": 2},
    {"scale_factor": 3, "mode": "nearest-exact"},
    {"size": (11, 3)},
    {"size": (7, 17), "mode": "nearest-exact"},
]


CUBIC = [
    {"scale_factor": 2, "mode": "bicubic"},
    {"scale_factor": (3, 1.7), "mode": "bicubic"},
    {"scale_factor": (0.6, 2), "mode": "bicubic", "recompute_scale_factor": True},
    {"size": (4, 9), "mode": "bicubic", "align_corners": True},
    {"size": (1, 3), "mode": "bicubic"},
    {"size": (13, 17), "mode": "bicubic", "align_corners": True},
]


@pytest.mark.covering
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(
    "shape", [(2, 5, 6, 8), (1, 3, 2, 1), (0, 3, 4, 5), (2, 2, 33, 2)], ids=str
)
@pytest.mark.parametrize("more", CUBIC)
def test_cubic(more, shape, form):
    x = torch.randn(shape).to(memory_format=form)
    check(lambda x: interpolate(x, **more) + 1, x, rtol=1e-5, atol=1e-5)
    check(lambda x: interpolate(x, **more), x.double(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_cubic_is_as_close_to_float64_as_eager(dtype):
    x = torch.randn(2, 3, 17, 23).to(dtype)
    fn = partial(interpolate, scale_factor=(2, 1.3), mode="bicubic")
    exact = fn(x.double())
    found, eager = ((y.double() - exact).abs().max() for y in (compiled(fn_of(fn), x)(x), fn(x)))
    assert found <= 2 * eager + 1e-6
    rare = x.clone()
    rare[0, 0, 3, 4], rare[1, 2, 0, 0] = torch.nan, torch.inf
    assert torch.equal(compiled(fn_of(fn), x)(rare).isfinite(), fn(rare).isfinite())


def fn_of(fn):
    return lambda x: fn(x)


def test_cubic_takes_four_elements_along_each_axis(monkeypatch):
    made = units(monkeypatch)
    x = torch.randn(1, 3, 16, 16)
    check(lambda x: interpolate(x, scale_factor=2, mode="bicubic"), x, rtol=1e-5, atol=1e-5)
    nests = [nest for unit in made for item in unit.items for nest in item.nests]
    assert (
        max(len([load for load in nest.loads if load.buffer.name == "arg0"]) for nest in nests) == 4
    )


@pytest.mark.parametrize("mode", grid(("bilinear",).__contains__, ["bicubic", "bilinear"]))
def test_sizes_that_a_call_knows(mode):
    call = dynfix.compile(lambda x: interpolate(x, scale_factor=2, mode=mode), dynamic=True)
    for shape in ((2, 3, 5, 6), (1, 4, 9, 3), (2, 3, 16, 17), (3, 1, 1, 5)):
        x = torch.randn(shape, requires_grad=True)
        result = call(x)
        expected = interpolate(x, scale_factor=2, mode=mode)
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
        seed = torch.randn_like(expected)
        gradients = [torch.autograd.grad(y, x, seed)[0] for y in (result, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "more, form",
    grid(
        lambda more, form: more == (LINEAR[0] if form == torch.channels_last else NEAREST[0]),
        [*LINEAR, *NEAREST, *CUBIC],
        [torch.contiguous_format, torch.channels_last],
    ),
)
def test_gradients_are_stored_once(more, form, monkeypatch):
    made = units(monkeypatch)
    x = torch.randn(2, 5, 6, 8).to(memory_format=form)
    check_gradients(lambda x: interpolate(x.sigmoid(), **more) * 2, x)
    items = [item for unit in made for item in unit.items]
    assert items and not any(isinstance(item, ExternCall) for item in items)
    nests = [nest for item in items if isinstance(item, Group | Batch) for nest in item.nests]
    assert not any(nest.scatters for nest in nests)


def test_gradients_of_lines_and_volumes():
    check_gradients(lambda x: interpolate(x, scale_factor=2.5, mode="linear"), torch.randn(2, 3, 7))
    volume = torch.randn(1, 2, 3, 4, 5)
    check_gradients(lambda x: interpolate(x, scale_factor=2, mode="trilinear"), volume)
    check_gradients(lambda x: interpolate(x, size=(5, 3, 7)), volume)


@pytest.mark.parametrize("more", [LINEAR[1], NEAREST[2]], ids=str)
def test_gradients_of_halves_are_added_up_in_float(more):
    x = torch.randn(1, 4, 9, 7).bfloat16()
    check_gradients(lambda x: interpolate(x, **more), x, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("more", [LINEAR[0], NEAREST[0]], ids=str)
def test_gradients_of_a_size_that_changes(more):
    call = dynfix.compile(lambda x: interpolate(x * 2, **more))
    for size in (5, 6, 9, 7):
        x = torch.randn(2, 3, size, 4, requires_grad=True)
        seed = torch.randn(2, 3, 2 * size, 8)
        (found,) = torch.autograd.grad(call(x), x, seed)
        (expected,) = torch.autograd.grad(interpolate(x * 2, **more), x, seed)
        torch.testing.assert_close(found, expected)


def test_tangents_and_gradients_of_samples():
    def tangent(x):
        return torch.func.jvp(lambda x: interpolate(x, scale_factor=2, mode="bilinear"), (x,), (x,))

    def of_samples(x):
        loss = torch.func.grad(lambda x: interpolate(x[None], scale_factor=2).square().sum())
        return torch.func.vmap(loss)(x)

    with warnings.catch_warnings():
        warnings.simplefilter("error", dynfix.DynfixWarning)
        for fn, x in ((tangent, torch.randn(1, 2, 4, 3)), (of_samples, torch.randn(3, 2, 4, 3))):
            call = dynfix.compile(fn)
            for _ in range(3):
                torch.testing.assert_close(call(x), fn(x))


@pytest.mark.covering
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size", [(4, 7), (9, 5), (4, 5), (2, 3)])
def test_what_is_not_finite_stays_where_eager_has_it(size, align_corners):
    def resize(x):
        return interpolate(x, size, mode="bilinear", align_corners=align_corners)

    call = dynfix.compile(resize, dynamic=False)
    for value in (0.0, math.inf, math.nan, -math.inf):
        x = torch.randn(2, 3, 4, 5)
        x[0, 0, 1, 2] = x[1, 2, 3, 4] = value
        torch.testing.assert_close(call(x), resize(x), equal_nan=True)


@pytest.mark.covering
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(3, 3), (4, 7), (9, 5)])
def test_gradients_that_are_not_finite_reach_no_more_than_in_eager(size, mode):
    """Eager adds 0 times a gradient, too, where linear and cubic shares end."""

    def resize(x):
        return interpolate(x, size, mode=mode)

    call = dynfix.compile(resize, dynamic=False)
    for value in (0.0, math.inf, math.nan, -math.inf):
        x, seed = torch.randn(2, 3, 4, 6, requires_grad=True), torch.randn(2, 3, *size)
        seed[0, 0, 1, 2] = seed[1, 2, 2, 0] = value
        (found,), (expected,) = (torch.autograd.grad(f(x), x, seed) for f in (call, resize))
        if not mode.startswith("nearest"):
            expected = torch.where(expected.isnan(), found, expected)
        torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("channels", grid((3, 12).__contains__, [3, 8, 12, 16]))
def test_vectors_run_along_channels_that_lie_side_by_side(channels, monkeypatch):
    """Not along the axis before, at whose places elements would be gathered one by one."""
    made = units(monkeypatch)
    x = torch.randn(2, channels, 20, 24).to(memory_format=torch.channels_last)
    check(lambda x: interpolate(x, scale_factor=2, mode="bilinear"), x)
    check_gradients(lambda x: interpolate(x, (21, 47), mode="bilinear", align_corners=True), x)
    groups = [item for unit in made for item in unit.items if isinstance(item, Group)]
    source = "\n".join(cpp_target.print_kernel(group).source for group in groups)
    assert (f"+ {channels - 1}] =" in source) == (channels < 8)


@pytest.mark.parametrize(
    "mode", grid(("nearest", "bilinear").__contains__, ["nearest", "bilinear", "bicubic"])
)
def test_gradients_lie_as_eager_has_them(mode):
    x = torch.randn(2, 3, 8, 9).to(memory_format=torch.channels_last).requires_grad_()

    def resize(x):
        return interpolate(x, scale_factor=2, mode=mode)

    call = dynfix.compile(resize)
    for _ in range(3):
        one, two = (torch.autograd.grad(fn(x).exp().sum(), x)[0] for fn in (call, resize))
        torch.testing.assert_close(one, two)
        assert one.stride() == two.stride()


@pytest.mark.covering
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size", [(61, 47), (29, 53), (30, 11)])
def test_irregular_sizes_are_made_axis_by_axis(size, align_corners):
    def fn(x):
        return interpolate(x, size=size, mode="bilinear", align_corners=align_corners) * 2

    x = torch.randn(2, 3, 37, 54)
    check(fn, x)
    check(fn, x.bfloat16())
    check_gradients(fn, x)
    x[0, 0, 5, 7], x[1, 2, 20] = torch.inf, torch.nan
    check(fn, x)
    check(fn, x.contiguous(memory_format=torch.channels_last))


def test_a_gradient_that_is_the_same_everywhere():
    def f(x):
        return torch.nn.functional.interpolate(x[None, None], scale_factor=2, mode="bilinear").sum()

    check_gradients(f, torch.randn(3, 5))


TABLES = {
    "near": lambda x: interpolate(x, scale_factor=2).sigmoid(),
    "uneven": lambda x: interpolate(x, size=(17, 21)).relu(),
    "exact": lambda x: interpolate(x, size=(23, 50), mode="nearest-exact") + x.new_ones(()),
    "linear": lambda x: interpolate(x, size=(19, 41), mode="bilinear").relu(),
    "bicubic": lambda x: interpolate(x, size=(21, 40), mode="bicubic") * 2,
    "square": lambda x: interpolate(x / 3, size=(33, 33), mode="bilinear"),
}


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("channels", [2, 3, 5, 16])
@pytest.mark.parametrize("name", TABLES)
def test_positions_from_tables(name, channels, dtype):
    """In either order of memory, at places of memory that lie between words, and behind which
    nothing is mapped."""
    x = torch.randn(2, channels, 13, 20).to(dtype)
    close = {} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    for given in (x, x.to(memory_format=torch.channels_last)):
        check(TABLES[name], given, **close)
        whole = mapped_to_the_end(given.numel() + 1, dtype)
        for moved in (whole[1:], whole[:-1]):
            there = torch.as_strided(moved, given.shape, given.stride(), moved.storage_offset())
            there.copy_(given)
            check(TABLES[name], there, **close)


def mapped_to_the_end(count, dtype):
    """A tensor whose last element is the last of a page, with nothing readable behind it."""
    page = mmap.PAGESIZE
    size = -(-count * dtype.itemsize // page) * page
    memory = mmap.mmap(-1, size + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(start + size), ctypes.c_size_t(page), 0) == 0
    whole = torch.frombuffer(memory, dtype=dtype, count=size // dtype.itemsize)
    return whole[-count:]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.bool])
def test_small_whole_numbers_from_tables(dtype):
    x = torch.randint(0, 2 if dtype == torch.bool else 200, (2, 3, 13, 20)).to(dtype)
    rows, columns = torch.arange(31) * 13 // 31, torch.arange(47) * 20 // 47
    for given in (x, x.to(memory_format=torch.channels_last)):
        if dtype == torch.uint8:
            check(lambda x: interpolate(x, size=(31, 47)).float() / 255, given)
        check(lambda x: x[:, :, rows][..., columns].float() * 2, given)


def test_tables_are_read():
    """And for sizes that change there are none."""
    found = []
    printed = cpp_target.print_kernel

    def kept(*args):
        made = printed(*args)
        found.append(made.source)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpp_target, "print_kernel", kept)
        x = torch.randn(2, 3, 16, 24).to(memory_format=torch.channels_last).bfloat16()
        check(lambda x: interpolate(x, size=(20, 31)).relu(), x)
        assert any("places0[" in text and "op_picked(" in text for text in found)
        call = dynfix.compile(lambda x: interpolate(x, scale_factor=1.3).relu(), dynamic=True)
        for width in (24, 30, 17):
            x = torch.randn(2, 3, 16, width)
            torch.testing.assert_close(call(x), interpolate(x, scale_factor=1.3).relu())


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("channels", [7, 8, 9, 12, 24])
def test_pixels_of_few_channels(channels, dtype):
    """Whose places are read from a table, rows of pixels that are left out, and NaN under them."""
    pad = torch.nn.functional.pad
    x = torch.randn(2, channels, 14, 19).to(dtype).to(memory_format=torch.channels_last)
    x[0, 1, 3, 4], x[1, 0, 0, 0] = torch.nan, torch.inf
    close = {} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    check(lambda x: interpolate(x, scale_factor=2, mode="bilinear").sigmoid(), x, **close)
    check(lambda x: interpolate(x, size=(17, 33)).relu(), x, **close)
    check(lambda x: pad(x, (1, 2, 3, 0)).sigmoid(), x, **close)
    check(lambda x: pad(x, (3, 3, 3, 3), mode="reflect").relu(), x, **close)
    check(lambda x: pad(x, (1, 2, 3, 0), value=2.0)[:, 1:] * 3, x, **close)
