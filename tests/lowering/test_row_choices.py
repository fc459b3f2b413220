"""Short rows and choices in C++: what stays in registers, what is turned, and what is decided before
a kernel runs."""

import re

import dynfix
import pytest
import torch
from dynfix.lowering.loops.ir import Cast, Nest, Select
from dynfix.lowering.loops.promote_select import widen_choices
from dynfix.lowering.targets.cpp import cpp_target
from grids import grid
from torch.nn import functional as F

from .harness import check, check_gradients, units

CHANNELS = torch.channels_last


def _printed(made):
    groups = (item for unit in made for item in unit.items if hasattr(item, "nests"))
    return "".join(cpp_target.print_kernel(group).source for group in groups)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [8, 12, 17, 24, 31])
def test_what_a_masked_row_stores_is_not_read_back(monkeypatch, channels, dtype):
    """A result and what is made of it, in one loop."""
    made = units(monkeypatch)

    def fn(x):
        doubled = F.interpolate(x, scale_factor=2, mode="nearest")
        return doubled, F.silu(doubled)

    x = torch.randn(2, channels, 9, 10).to(dtype).contiguous(memory_format=CHANNELS)
    exact = {"rtol": 2e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {}
    check(fn, x, **exact)
    text = _printed(made)
    stored = set(re.findall(r"(buf\d+)\[", text)) | set(re.findall(r"(buf\d+) \+", text))
    read = set(re.findall(r"= [^;]*[ (](buf\d+)\[", text)) | set(
        re.findall(r"row_from_\w+\((buf\d+) ", text)
    )
    assert stored and not read


def test_what_is_stored_at_other_points_is_read_back():
    """The second loop reads another row than the first one stores."""

    def fn(x):
        kept = x[:, ::2] * 2
        return kept, kept.flip(0).sigmoid() + kept

    for columns in (20, 24, 62):
        check(fn, torch.randn(6, columns))


@pytest.mark.parametrize("columns", grid((9, 16, 24, 31).__contains__, [9, 10, 12, 16, 18, 24, 31]))
def test_rows_that_fill_vectors_are_not_turned(monkeypatch, columns):
    made = units(monkeypatch)
    x = torch.randn(2, 400, 2 * columns)[..., :columns]
    check(lambda x: F.silu(x) * x, x, rtol=1e-5, atol=1e-6)
    assert ("op_transpose" in _printed(made)) == (columns in (9, 16))
    check(lambda x: torch.tanh(x) * x, x, rtol=1e-5, atol=1e-6)  # of the library, for whole vectors
    half = x.bfloat16()
    check(lambda x: F.silu(x) * x, half, rtol=2e-2, atol=1e-2)


@pytest.mark.covering
@pytest.mark.parametrize("channels", [8, 12, 24])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_gradients_of_resized_short_rows(channels, mode):
    x = torch.randn(2, channels, 12, 11).contiguous(memory_format=CHANNELS)
    check_gradients(lambda x: F.silu(F.interpolate(x * 2, scale_factor=2, mode=mode)), x)


def _rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [32, 24])
def test_choices_of_halves_are_made_in_the_wide_type(monkeypatch, dtype, size):
    made = units(monkeypatch)
    x = torch.randn(3, 40, 2 * size).to(dtype)
    x[0, 0, :4] = torch.tensor([torch.nan, torch.inf, -0.0, 0.0]).to(dtype)
    cos, sin = torch.randn(2, 40, size).to(dtype)

    def fn(x, cos, sin):
        return torch.cat([_rotated(x[..., :size], cos, sin), _rotated(x[..., size:], sin, cos)], -1)

    check(fn, x, cos, sin, rtol=0, atol=0)
    nests = [item for item in made[0].items if isinstance(item, Nest)]
    nests += [nest for item in made[0].items for nest in getattr(item, "nests", ())]
    choices = [v for nest in nests for v in nest.values if isinstance(v, Select)]
    assert choices and all(choice.dtype == torch.float32 for choice in choices)
    unit = widen_choices(made[0])
    assert unit.items == made[0].items  # once is enough


def test_choices_that_are_stored_are_not_rounded_twice(monkeypatch):
    made = units(monkeypatch)

    def fn(x, y, m):
        chosen = torch.where(m, x * 3, torch.where(m, y, -x))
        return chosen, chosen.abs() + 1, torch.where(m, torch.where(m, x, y), y).exp()

    x, y = torch.randn(2, 50, 33).bfloat16()
    check(fn, x, y, torch.rand(50, 33) > 0.5, rtol=0, atol=0)
    values = [v for item in made[0].items for nest in item.nests for v in nest.values]
    assert any(isinstance(v, Cast) for v in values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_conditions_on_whole_rows_are_decided(monkeypatch, dtype):
    """Parts of 16 elements, of which the first ones are other elements negated."""
    made = units(monkeypatch)
    x, cos, sin = torch.randn(64, 64).to(dtype), *torch.randn(2, 64, 32).to(dtype)
    check(
        lambda x, cos, sin: torch.cat(
            [_rotated(x[:, :32], cos, sin), _rotated(x[:, 32:], sin, cos)], 1
        ),
        *(x, cos, sin),
        rtol=1e-6 if dtype == torch.float32 else 0,
        atol=1e-6 if dtype == torch.float32 else 0,
    )
    assert " ? " not in _printed(made)


@pytest.mark.parametrize("cut", [15, 16, 17, 32])
def test_conditions_within_rows_stay(cut):
    def fn(x):
        made = torch.cat([-x[:, -cut:], x[:, :-cut]], 1)
        return made * x + made.view(-1, 4, 16).flip(0).reshape(made.shape)

    call = dynfix.compile(fn)
    for _ in range(3):
        x = torch.randn(40, 64)
        torch.testing.assert_close(call(x), fn(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_other_row_is_decided(monkeypatch, dtype):
    """Gradients of what takes every other row and column (patches that are joined)."""
    made = units(monkeypatch)

    weight = torch.randn(64).to(dtype)

    def fn(x):
        parts = [x[:, a::2, b::2] for b in (0, 1) for a in (0, 1)]
        return F.layer_norm(torch.cat(parts, -1), (64,), weight)

    # eager rounds sums of gradients once more
    few = {"rtol": 3e-2, "atol": 6e-2} if dtype == torch.bfloat16 else {}
    check_gradients(fn, torch.randn(2, 28, 28, 16).to(dtype), **few)
    backward = made[-1].items
    columns = [item for item in backward if hasattr(item, "space") and len(item.space) == 3]
    assert columns and not any(" ? " in cpp_target.print_kernel(item).source for item in columns)


@pytest.mark.parametrize("columns", [33, 49])
def test_rows_found_by_a_remainder_end_under_a_mask(monkeypatch, columns):
    """A mask for each of four windows."""
    made = units(monkeypatch)

    def fn(x, mask):
        parts = x.view(4, 4, 3, columns, columns) + mask[None, :, None]
        return parts.view(16, 3, columns, columns).softmax(-1)

    check(fn, torch.randn(16, 3, columns, columns), torch.randn(4, columns, columns))
    text = _printed(made)
    assert "%" in text and text.count(f"i3 < WHOLE_VECTORS({columns}); ++i3") == 3


@pytest.mark.parametrize(
    ("dtype", "steps"),
    grid(
        lambda dtype, steps: (dtype == torch.float32) == (steps == 40),
        [torch.float32, torch.bfloat16],
        [16, 40],
    ),
)
def test_rows_that_have_each_a_gradient_of_its_own(monkeypatch, dtype, steps):
    """A recurrence that is written out: the gradient of its input is a sum of rows among zeros."""
    made = units(monkeypatch)

    def fn(a, b):
        state, found = torch.zeros_like(a[:, 0]), []
        for step in range(steps):
            state = a[:, step] * state + b[:, step]
            found.append(state.sum(-1))
        return torch.stack(found, 1)

    few = {"rtol": 3e-2, "atol": 6e-2} if dtype == torch.bfloat16 else {}
    inputs = [torch.rand(3, steps, 16, 4).to(dtype) for _ in "ab"]
    check_gradients(fn, *inputs, **few)
    rows = [g for g in made[-1].items if hasattr(g, "nests") and steps in g.space]
    decided = [" ? " not in cpp_target.print_kernel(group).source for group in rows]
    assert rows and (all(decided) or steps == 40 or dtype == torch.float32)


def test_sums_of_parts_beside_what_is_finished_in_vectors_begin_as_zeros():
    """Means over rows whose largest elements are found in the same kernel."""

    def fn(x):
        shares = x.softmax(-1)
        return shares.mean(0), shares.argmax(-1)

    check(fn, torch.randn(2048, 8), rtol=1e-5, atol=1e-6)
    check(lambda x: fn(x * 2)[0], torch.randn(2048, 8), rtol=1e-5, atol=1e-6)


def products_of_padded_columns(x):
    padded = F.pad(x, (0, 0, 1, 0), value=1.5)
    a, b, c = padded.unbind(1)
    return torch.stack([a * b, b * c, c * a], -1)


def padded_columns(x):
    return F.pad(x, (0, 1, 1, 0), value=1.5)


@pytest.mark.parametrize("function", [products_of_padded_columns, padded_columns])
def test_stores_side_by_side_beside_loads_under_a_mask(function):
    """GCC 12 takes the mask of the first vector for all of a group."""
    compiled = dynfix.compile(function, dynamic=False, options={"strict": True})
    for rows in (63, 63, 63, 17, 17, 130, 130):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_memory_that_a_later_store_of_the_loop_reads_is_not_taken_over(dynamic):
    def function(x):
        x.fmod_(0.5)
        return torch.softmax(torch.rand_like(x) + x, -1)

    compiled = dynfix.compile(function, dynamic=dynamic)
    for turn, size in enumerate((5, 3, 7, 7)):
        inputs = torch.randn(2, size).unbind()
        inputs[1].copy_(inputs[0])
        made = []
        for call, x in zip((compiled, function), inputs, strict=True):
            torch.manual_seed(turn)
            made.append(call(x))
        torch.testing.assert_close(*made)
        assert torch.equal(*inputs)


@pytest.mark.parametrize("dynamic", [False, True])
def test_memory_whose_bits_a_later_loop_reads_is_not_taken_over(dynamic):
    def function(x):
        y = x // -0.75
        bits = y.view(torch.int16)
        return bits == y, bits.argmin(), F.silu(y)

    compiled = dynfix.compile(function, dynamic=dynamic)
    for rows in (5, 5, 5, 7, 7):
        x = torch.randn(rows, 3).bfloat16()
        for found, expected in zip(compiled(x), function(x), strict=True):
            torch.testing.assert_close(found, expected)
