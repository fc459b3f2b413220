"""Pooling and its gradients, against the library."""

import dynfix
import pytest
import torch
import torch.nn.functional as F
from dynfix.lowering.loops.kernel_graph import ExternCall
from dynfix.lowering.targets.cpp.cpp_expr import _decided
from grids import grid

from .harness import check, check_gradients, compiled, units

WINDOWS = [
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 2},
    {"kernel_size": (3, 2), "stride": (2, 1), "ceil_mode": True},
]


def planes(*shape):
    return torch.randn(shape)


@pytest.mark.parametrize("more", WINDOWS)
def test_max_pool2d(more):
    def pooled(x):
        found = F.max_pool2d(x, return_indices=True, **more)
        return found[0], found[1]

    check(pooled, planes(2, 3, 9, 8))


def test_dilated_windows_and_minus_infinity():
    x = planes(2, 3, 9, 8)
    x[0] = float("-inf")
    x[1, 0, 2, 2] = float("nan")

    def pooled(x):
        found = F.max_pool2d(x, 3, 1, 1, 2, return_indices=True)
        return found[0]

    check(pooled, x)


@pytest.mark.parametrize(
    "more",
    [*WINDOWS, {"kernel_size": 3, "padding": 1, "count_include_pad": False, "ceil_mode": True}],
)
def test_avg_pool2d(more):
    check_gradients(lambda x: F.avg_pool2d(x, **more), planes(2, 3, 9, 8))
    check(lambda x: F.avg_pool2d(x, **more), planes(2, 3, 9, 8).bfloat16())


def test_divisor_override():
    check_gradients(lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5), planes(2, 3, 9, 8))


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_gradient_of_max_pool2d(memory):
    x = planes(2, 3, 9, 8).to(memory_format=memory)
    check_gradients(lambda x: F.max_pool2d(x, 3, 2, 1), x)


@pytest.mark.covering
@pytest.mark.parametrize(
    "more",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2},
        {"kernel_size": (3, 2), "stride": (2, 1), "dilation": (1, 2), "ceil_mode": True},
        {"kernel_size": 5, "stride": 1},
        {"kernel_size": 11, "stride": 3},
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pooling_keeps_a_byte_a_window(more, dtype):
    atol = 0.1 if dtype == torch.bfloat16 else 1e-5  # eager's sums are rounded one by one
    x = planes(2, 3, 18, 14).to(dtype)
    x[0, 0, 2:4] = float("nan")
    x[1, 1] = float("-inf")
    check_gradients(lambda x: F.max_pool2d(x, **more), x, rtol=0.02, atol=atol)
    call = compiled(lambda x: F.max_pool2d(x, **more), x.requires_grad_())
    out, kept = None, []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda tensor: tensor):
        out = call(x)
    assert [(t.dtype, t.shape) for t in kept] == [(torch.int8, out.shape)]


@pytest.mark.parametrize("size", [(4, 3), (9, 8), (1, 1), (11, 2)])
def test_adaptive_avg_pool2d(size):
    check(lambda x: F.adaptive_avg_pool2d(x, size), planes(2, 3, 9, 8))


@pytest.mark.parametrize(
    "size",
    grid(
        ((4, 3), (1, 1), (3, 4), (18, 8)).__contains__,
        [(4, 3), (9, 8), (1, 1), (11, 2), (3, 4), (18, 8)],
    ),
)
def test_gradient_of_adaptive_avg_pool2d(size):
    check_gradients(lambda x: F.adaptive_avg_pool2d(x, size), planes(2, 3, 9, 8))
    check_gradients(lambda x: F.adaptive_avg_pool2d(x, size), planes(3, 9, 8))

    def backward(grad, x):
        return torch.ops.aten._adaptive_avg_pool2d_backward(grad, x)

    check(backward, planes(2, 3, *size), planes(2, 3, 9, 8))
    if size in [(1, 1), (3, 4)]:  # eager adds up in bfloat16 where windows overlap
        check(backward, planes(2, 3, *size).bfloat16(), planes(2, 3, 9, 8).bfloat16())


def test_gradient_of_adaptive_avg_pool3d():
    def backward(grad, x):
        return torch.ops.aten._adaptive_avg_pool3d_backward(grad, x)

    check(backward, planes(2, 3, 2, 4, 3), planes(2, 3, 5, 4, 7))


@pytest.mark.covering
@pytest.mark.parametrize("size", [1, (3, 4), (1, 4), (6, 8), (4, 3)], ids=str)
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_adaptive_max_pool2d(size, memory, dtype):
    x = torch.randint(-4, 4, (3, 5, 6, 8)).to(dtype)  # many are equal
    x[0, 0, 1:3, 2:5] = float("nan")
    x[1, 1] = float("-inf")
    x = x.to(memory_format=memory)

    def pooled(x):
        found = F.adaptive_max_pool2d(x, size, return_indices=True)
        return found[0], found[1]

    check(pooled, x)
    check_gradients(lambda x: F.adaptive_max_pool2d(x, size) * 1.5, x)


def test_adaptive_maxima_of_equal_windows_are_loops(monkeypatch):
    found = units(monkeypatch)
    check_gradients(lambda x: F.adaptive_max_pool2d(x, 1), planes(2, 3, 6, 8))
    check_gradients(lambda x: F.adaptive_max_pool1d(x, 4), planes(2, 3, 8))
    items = [item for unit in found for item in unit.items]
    assert items and not any(isinstance(item, ExternCall) for item in items)


def test_three_dimensions():
    check(lambda x: F.avg_pool3d(x, 2, 1, 1), planes(2, 3, 5, 6, 4))
    check(lambda x: F.max_pool3d(x, 3, 2, 1), planes(2, 3, 5, 6, 4))


def test_windows_of_few_elements_are_no_loop(monkeypatch):
    """They are vectorised along memory, and what follows them is the same loop."""
    made = units(monkeypatch)
    check_gradients(lambda x: F.avg_pool2d(x, 3, 2, 1).sigmoid(), planes(2, 3, 9, 8))
    check_gradients(lambda x: F.adaptive_avg_pool2d(x, (3, 4)).sigmoid(), planes(2, 3, 9, 8))
    nests = [nest for unit in made for item in unit.items for nest in item.nests]
    assert nests and not any(nest.is_reduction for nest in nests)


@pytest.mark.covering
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("side", [5, (3, 28), (11, 13)], ids=str)
def test_overlapping_averages_are_made_axis_by_axis(side, memory, monkeypatch):
    """Each loop divides positions, and reads whole windows, of one axis alone."""
    made = units(monkeypatch)
    x = planes(2, 33, 28, 31).to(memory_format=memory)
    check_gradients(lambda x: F.adaptive_avg_pool2d(x, side) * 2, x)
    nests = [nest for unit in made for item in unit.items for nest in item.nests]
    assert len(nests) >= 3 and max(len(nest.loads) for nest in nests) <= 16
    check(lambda x: F.adaptive_avg_pool2d(x, side), x.bfloat16(), rtol=0.02, atol=0.01)


MAXIMA = [(3, 2, 1), (2, 2), (3, 1, 1), (5, 1, 2), ((1, 3), (2, 1), (0, 1)), (3, 1, 1, 2)]
WIDE = [(5, 1, 1, 2), (7, 2, 3), (9, 1, 4), ((4, 31), (2, 1), (2, 15)), (8, 2, 3, 1, True)]


@pytest.mark.covering
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
)
@pytest.mark.parametrize("given", MAXIMA, ids=str)
@pytest.mark.parametrize(
    "shape", [(2, 5, 9, 8), (1, 33, 5, 7), (0, 3, 6, 6), (1, 2, 5, 5)], ids=str
)
def test_maxima_alone(shape, given, dtype, memory):
    x = planes(*shape).to(dtype).to(memory_format=memory)
    if x.numel() > 300:
        x[0, 1, 2, 3], x[0, 0], x[-1, -1, 0, 0] = torch.nan, -torch.inf, torch.inf
    check(lambda x: F.max_pool2d(x, *given) * 2, x, rtol=0, atol=0)
    leaf = planes(*shape).to(dtype).to(memory_format=memory)
    near = 0.1 if dtype.itemsize == 2 else 1e-5  # eager rounds after each of up to nine sums
    check_gradients(lambda x: F.max_pool2d(x, *given), leaf, rtol=near, atol=near)


@pytest.mark.covering
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("given", WIDE, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_maxima_of_wide_windows_are_made_axis_by_axis(given, dtype, memory, monkeypatch):
    made = units(monkeypatch)
    x = planes(2, 19, 23, 33).to(dtype).to(memory_format=memory)
    x[0, 1, 2, 3], x[0, 0], x[-1, -1, 0, 0] = torch.nan, -torch.inf, torch.inf
    check(lambda x: F.max_pool2d(x, *given), x, rtol=0, atol=0)
    assert not any(isinstance(item, ExternCall) for unit in made for item in unit.items)
    loads = [len(n.loads) for unit in made for item in unit.items for n in item.nests]
    assert max(loads) < 24
    check_gradients(lambda x: F.max_pool2d(x, *given), x.nan_to_num(0, 9, -9).float())


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last], ids=str)
def test_maxima_alone_are_a_loop(memory, monkeypatch):
    made = units(monkeypatch)
    x = planes(2, 32, 9, 8).to(memory_format=memory)
    check(lambda x: F.max_pool2d(x, 3, 2, 1), x)
    assert not any(isinstance(item, ExternCall) for unit in made for item in unit.items)


def test_maxima_of_sizes_that_a_call_knows():
    call = dynfix.compile(lambda x: F.max_pool2d(x, 3, 2, 1) + 1, dynamic=True)
    for shape in ((2, 3, 8, 9), (1, 4, 15, 6), (3, 3, 33, 34)):
        x = planes(*shape)
        assert torch.equal(call(x), F.max_pool2d(x, 3, 2, 1) + 1)


@pytest.mark.parametrize("side", [1, 2, 3, 8, 17])
def test_masks_that_no_turn_changes(side, monkeypatch):
    """Rows of windows over the edge: a loop for each outcome, and the same results."""
    x = planes(2, 32, side, side).to(memory_format=torch.channels_last)
    check(lambda x: F.avg_pool2d(x, 3, 1, 1), x)
    check(lambda x: F.max_pool2d(x, 3, 1, 1), x, rtol=0, atol=0)


def test_a_loop_for_each_outcome_of_a_mask():
    body = ["  const float t3 = (t2 ? m[i] : 0);", "  const bool t5 = (t3 > 0);", "  n[i] = t3;"]
    head = "for (int64_t i = 0; i < 32; ++i) {"
    made = _decided("#pragma omp simd", head, body)
    assert made[0] == "if (t2) {" and made[-1] == "}" and made.count("} else {") == 1
    assert sum("true ? m[i]" in line for line in made) == 1
    assert sum("false ? m[i]" in line for line in made) == 1
    own = ["  const bool t2 = (k[i] > 0);", *body]
    assert _decided("#pragma omp simd", head, own) == ["#pragma omp simd", head, *own, "}"]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_maxima_of_windows_of_five_are_loops(monkeypatch, stride, memory):
    made = units(monkeypatch)
    x = torch.randn(2, 8, 20, 23).contiguous(memory_format=memory)
    x[0, 0, 4, 5] = torch.nan
    check(lambda x: F.max_pool2d(x, 5, stride, 2), x, rtol=0, atol=0)
    assert not any(isinstance(item, ExternCall) for item in made[0].items)


@pytest.mark.parametrize(
    "given", [((1, 2), 2), ((1, 3), (1, 2), (0, 1)), ((3, 1), 1), (2, 2), (3, 4), (2, 2, 0, 2)]
)
def test_each_element_finds_its_few_windows(given, monkeypatch):
    """Where these are few: no stores that may meet."""
    made = units(monkeypatch)
    x = torch.randn(2, 3, 37, 70)
    x[0, 0, 3, 5:9] = torch.nan
    check_gradients(lambda x: F.max_pool2d(x, *given), x)
    nests = [nest for unit in made for item in unit.items for nest in getattr(item, "nests", ())]
    overlap = given == (2, 2, 0, 2)
    assert any(nest.scatters for nest in nests) == overlap


@pytest.mark.covering
@pytest.mark.parametrize(
    "given", [((5, 1, 1), 1), (2,), (3, 2, 1), ((3, 2, 2), (2, 1, 3), 1, True)]
)
@pytest.mark.parametrize("count", [True, False])
def test_gradient_of_avg_pool3d(given, count, monkeypatch):
    made = units(monkeypatch)
    x = torch.randn(2, 3, 7, 9, 8)
    check_gradients(lambda x: F.avg_pool3d(x, *given, count_include_pad=count), x)
    assert not any(isinstance(item, ExternCall) for unit in made for item in unit.items)


WIDE_MEANS = [
    {"kernel_size": 7, "stride": 1, "padding": 3},
    {"kernel_size": (5, 9), "stride": (2, 1), "padding": (2, 0), "count_include_pad": False},
    {"kernel_size": 8, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": 6, "stride": 1, "divisor_override": 5},
]


@pytest.mark.covering
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("more", WIDE_MEANS, ids=str)
def test_means_of_wide_windows_are_made_axis_by_axis(more, memory, monkeypatch):
    made = units(monkeypatch)
    x = planes(2, 19, 23, 33).to(memory_format=memory)
    check_gradients(lambda x: F.avg_pool2d(x, **more), x)
    check(lambda x: F.avg_pool2d(x, **more), x.bfloat16())
    loads = [len(n.loads) for unit in made for item in unit.items for n in item.nests]
    assert max(loads) < 24
    x[0, 1, 2, 3], x[0, 0, 9], x[-1, -1, 0, 0] = torch.nan, -torch.inf, torch.inf
    check(lambda x: F.avg_pool2d(x, **more), x)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [19, 30, 56, 65, 67, 220])
@pytest.mark.parametrize("given", [(3, 2, 1), (3, 1, 1), (2, 2)], ids=str)
def test_positions_of_maxima_in_rows_of_every_length(given, width, dtype):
    """Equal elements, of which the first is taken, NaN and rows of -inf."""
    x = torch.randint(-3, 4, (2, 3, 9, width)).to(dtype)
    x[0, 1, 4] = -torch.inf
    x[1, 2, 3, 5] = x[1, 0, 0, width - 1] = torch.nan
    call = dynfix.compile(lambda x: F.max_pool2d(x, *given))
    for _ in range(3):
        ours, theirs = (x.clone().requires_grad_() for _ in range(2))
        found, expected = call(ours), F.max_pool2d(theirs, *given)
        assert torch.equal(found.nan_to_num(9), expected.nan_to_num(9))
        for y in (found, expected):
            y.backward(torch.ones_like(y))
        assert torch.equal(ours.grad, theirs.grad)
        x = x.flip(0)
