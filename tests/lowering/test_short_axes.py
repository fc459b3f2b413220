"""Axes of a few points: folds over them are expressions, loops over them are written out."""

import pytest
import torch
from dynfix.lowering.loops.ir import Group
from dynfix.lowering.targets.cpp import cpp_target
from grids import grid
from torch.nn import functional as F

from .harness import at_threads, check, check_gradients, compiled, units


@pytest.fixture
def groups(monkeypatch):
    """Gives the kernels that were made so far."""
    made = units(monkeypatch)
    return lambda: [item for unit in made for item in unit.items if isinstance(item, Group)]


def folds(groups):
    return [group for group in groups if any(nest.is_reduction for nest in group.nests)]


@pytest.mark.parametrize("width", [1, 2, 3, 8])
def test_every_fold_over_few_points(groups, width):
    def fn(x):
        y = x.view(-1, width)
        large = y > 0.3
        sums = y.sum(-1), y.prod(-1), y.amax(-1), y.amin(-1), large.any(-1), large.all(-1)
        return *sums, large.sum(-1), y.mean(-1, keepdim=True).sqrt() + y

    x = torch.rand(48 * width)
    x[5] = torch.nan
    check(fn, x)
    check(fn, torch.empty(0))
    assert folds(groups()) == []


def test_longer_folds_and_positions_stay_loops(groups):
    check(lambda x: x.sum(-1), torch.randn(64, 10))
    check(lambda x: x.argmax(-1), torch.randn(64, 3))
    assert len(folds(groups())) == 2


def test_folds_over_few_points_join_what_reads_them(groups):
    """Distances of all pairs, summed up: no matrix in memory."""
    points = torch.randn(300, 3)
    check_gradients(lambda p: ((p[:, None] - p) ** 2).sum(-1).add(1).reciprocal().mean(), points)
    assert max(load.buffer.size for g in groups()[:2] for n in g.nests for load in n.loads) <= 900


COSTLY = {
    "rows": lambda x, y: (x.tanh() * y.exp()).sum(-1),
    "pairs": lambda x, y: (x[:, None] - y).abs().exp().sum(-1),
    "extrema": lambda x, y: (x.exp().amax(-1), (y.sin() + x).prod(-1)),
}


@pytest.mark.parametrize(
    ("name", "width"), grid(lambda name, width: width == 10, COSTLY, [10, 12, 16])
)
def test_rows_of_what_is_costly_stay_loops(groups, name, width):
    """Their elements lie side by side, those of several rows do not."""
    fn = COSTLY[name]
    x, y = torch.rand(1100, width), torch.rand(1100, width)
    if fn is COSTLY["pairs"]:
        x, y = x[:90], y[:70]
    check_gradients(fn, x, y)
    assert folds(groups())
    x[2, 3], y[5] = torch.nan, -0.0
    check(fn, x, y, rtol=1e-5, atol=1e-6)
    check(fn, x.double(), y.double())
    check(fn, x.bfloat16(), y.bfloat16(), rtol=2e-2, atol=1e-2)
    check(
        lambda x, y: fn(x.t(), y.t()), x.t().contiguous(), y.t().contiguous(), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_halves_are_rounded_once(half):
    check(lambda x: x.sum(-1) * 2, torch.randn(100, 4).to(half), rtol=0, atol=0)


ACROSS = {
    "joined": lambda x, y: torch.cat([x.sin(), x.cos() * y], -1),
    "in place": lambda x, y: (x * 2).add_(y).mul_(3).exp(),
    "by pixels": lambda x, y: (x * y).view(20, 50, 3).permute(2, 0, 1) / 3,
    "picked": lambda x, y: x[:, torch.tensor([2, 0, 1])].tanh() * y,
    "seven": lambda x, y: torch.cat([x, y, x[:, :1]], 1).exp() + 1,
}


@pytest.mark.parametrize("fn", ACROSS.values(), ids=ACROSS)
def test_loops_over_few_points(fn):
    x, y = torch.randn(1000, 3), torch.rand(1000, 1).expand(1000, 3)
    check(fn, x, y, rtol=1e-5, atol=1e-6)
    check_gradients(fn, x, y.contiguous())


def test_scatters_of_few_points_store_all_of_them():
    def fn(x):
        found = x.topk(2, -1)
        return torch.zeros_like(x).scatter(1, found.indices, found.values / 2)

    check(fn, torch.randn(500, 8))


def test_folds_beside_few_points():
    """Weights that three neighbours have in turn: three of them are added up in one turn."""
    check(lambda x, w: (x * w).sum(), torch.rand(3000, 3), torch.rand(3), rtol=1e-5, atol=1e-3)
    check(lambda x, w: (x[:, None] * w).amax(), torch.rand(3000), torch.rand(4))


def test_values_of_a_point_are_its_own():
    """Local values, of which a kernel keeps one for each point."""
    x = torch.randn(2, 5, 6, 8).to(memory_format=torch.channels_last)
    check_gradients(lambda x: F.interpolate(x.sigmoid(), size=(13, 17), mode="bicubic"), x)


def test_folds_that_are_costly_run_across():
    """Too many values to write out three times: vectors of the rows' axis."""
    x, scales = torch.randn(400, 3), 2.0 ** torch.arange(10)

    def fn(x):
        y = x[:, None] * scales[:, None]
        return torch.cat([y.sin(), y.cos()], -1).flatten(1)

    check_gradients(fn, x, rtol=1e-3, atol=1e-2)


def test_the_same_for_every_number_of_threads():
    x = torch.randn(40000, 3)
    call = compiled(lambda x: torch.cat([x.sin(), x.cos()], -1) / x.norm(dim=-1, keepdim=True), x)
    flat = x.flatten()[:-13].clone()
    for program, given in ((call, x), (compiled(lambda x: x.sin() + 1, flat), flat)):
        first, *others = at_threads(program, given)
        assert all(torch.equal(first, other) for other in others)


def test_places_of_a_short_axis_take_what_is_theirs(monkeypatch):
    """Gradients of single elements, which masks hold apart."""
    made = units(monkeypatch)

    def fn(a, b):
        first = a[..., 0] * b[..., 0] - a[..., 1] * b[..., 1] - a[..., 2] * b[..., 2]
        second = a[..., 0] * b[..., 1] + a[..., 1] * b[..., 0] + a[..., 3] * b[..., 2]
        return torch.stack((first, second), -1)

    for shape in ((40, 4), (7, 5, 4), (33, 3, 4)):
        check_gradients(fn, torch.randn(shape), torch.randn(shape))
    sources = [cpp_target.print_kernel(item).source for unit in made for item in unit.items]
    assert not any("% 4u" in source for source in sources)


@pytest.mark.covering
@pytest.mark.parametrize("width", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("rows", [16, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int16])
def test_elements_under_masks_side_by_side(width, rows, dtype):
    """GCC makes vectors of groups of 3, 5, 6 and 7 that mix the masks of lanes."""

    def fn(x, y):
        padded = F.pad(x[1:], (0, 0, 1, 0))
        return padded + F.pad(x[:, :-1], (1, 0)), torch.where(y > 50, F.pad(x[2:], (0, 0, 2, 0)), y)

    shape = rows, width
    check(fn, *(torch.arange(rows * width).view(shape).to(dtype) % 97 for _ in range(2)))


def test_gradients_of_a_slice_that_is_used_twice():
    def fn(x):
        part = x[1:]
        return part @ part.mT

    check_gradients(fn, torch.randn(33, 5))


def test_sums_of_negative_zeros():
    def fn(x):
        pooled = F.avg_pool1d(x[None], 3), F.adaptive_avg_pool1d(x[None], 1)
        return [1 / each for each in (x.sum(1), x.mean(1), *pooled)]

    check(fn, -torch.zeros(4, 3))


UNSHUFFLED = {
    "folds": lambda x, y: (x.tanh().sum(-1), (x * y).exp().amax(-1), x.sigmoid().prod(-1)),
    "pairs": lambda x, y: ((x[:80, None] - y[:70]) ** 2).sum(-1).add(1).reciprocal(),
    "softmax": lambda x, y: (x.softmax(-1) * y).sum(-1),
    "compared": lambda x, y: ((x + 1).sum(-1) > y.sum(-1), x.flip(-1).cos() * 2),
}


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [5, 6, 7, 9])
@pytest.mark.parametrize("name", UNSHUFFLED)
def test_rows_that_no_shuffle_takes_apart(name, width, dtype):
    """GCC has shuffles for groups of two, three, four and eight elements."""
    fn = UNSHUFFLED[name]
    x, y = torch.rand(1090, width).to(dtype), torch.rand(1090, width).to(dtype)
    near = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    check(fn, x, y, **near)
    if name != "pairs":
        check(fn, x[:40], y[:40], **near)
    if name != "compared":
        check_gradients(fn, x, y, **near)
    x[2, 3], x[4] = torch.nan, -0.0
    check(fn, x, y, **near)
