"""Loops that are to run in vectors do, by the compiler's own account."""

import re
import subprocess

import dynfix
import pytest
import torch
from dynfix.lowering.loops.ir import Group
from dynfix.lowering.targets.cpp import cpp_build, cpp_target
from dynfix.runtime import build
from grids import grid

from .harness import check, check_gradients, units


@pytest.fixture
def left_scalar(monkeypatch, tmp_path):
    """Gives the marked loops, of what was built so far, that GCC made no vectors of."""
    compiler = build.find_compiler()
    if compiler is None or "g++" not in compiler.version.split()[0] or "avx2" not in build.isa():
        pytest.skip("GCC says which loops it has vectorised, for processors with AVX2")
    sources = []
    original = cpp_build.build_shared

    def remember(source, **kwargs):
        sources.append(source)
        return original(source, **kwargs)

    monkeypatch.setattr(cpp_build, "build_shared", remember)

    def loops():
        probed = build.probe_flags()
        command = [
            *compiler.command,
            "-std=c++17",
            "-shared",
            "-fPIC",
            *probed.flags,
            *build.FLAGS,
        ]
        return [loop for source in sources for loop in scalar_loops(source, command, tmp_path)]

    return loops


def scalar_loops(source, command, folder):
    file = folder / "kernel.cpp"
    file.write_text(source)
    told = subprocess.run(
        [*command, "-fopt-info-vec-optimized", str(file), "-o", str(folder / "kernel.so")],
        capture_output=True,
        text=True,
        check=True,
    )
    done = {int(n) for n in re.findall(r"cpp:(\d+):\d+: optimized: loop vec", told.stderr)}
    lines = source.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith('extern "C" int64_t'))
    marked = [n + 1 for n in range(start, len(lines)) if re.search("#pragma omp.* simd", lines[n])]
    return [lines[n].strip() for n in marked if not done & {*range(n, end_of(lines, n))}]


def end_of(lines, head):
    """The number of the line that closes the loop."""
    close = lines[head][: -len(lines[head].lstrip())] + "}"
    return next(n for n in range(head, len(lines)) if lines[n] == close) + 1


def test_truths_that_become_numbers(left_scalar):
    check(lambda x: (x.abs() == 1).float() * x.sign(), torch.randint(-2, 2, (64, 100)).float())
    check(lambda x: (x > 0).double() + x, torch.randn(64, 100, dtype=torch.float64))
    assert left_scalar() == []


def test_sine_and_cosine_of_one_number(left_scalar):
    x = torch.randn(64, 128) * 50
    x[0, :4] = torch.tensor([0.0, -0.0, torch.inf, torch.nan])
    check(lambda x: (torch.cos(x), torch.sin(x) * 2), x, rtol=1e-6, atol=2e-6)
    check(lambda x: torch.cos(x) + torch.sin(x), x.double())
    check_gradients(lambda x: torch.cos(x), x.nan_to_num(0.0, 1.0))
    assert left_scalar() == []


@pytest.mark.parametrize(
    "fn, args",
    [
        (lambda x, m: (x * m[..., None]).sum(1), (torch.randn(8, 64, 48), torch.rand(8, 64) > 0.3)),
        (lambda t, i: t[i].mean(1), (torch.randn(50, 48), torch.randint(50, (30, 20)))),
        (lambda a, t: (a[:, :, None] + t).amax(1), (torch.randn(40, 30), torch.randn(30, 40))),
    ],
    ids=["mask along the sum", "rows by position", "outer sum"],
)
def test_sums_across_rows_read_neighbours(monkeypatch, fn, args):
    """What is the same for all neighbours does not count for the other way."""
    made = units(monkeypatch)
    check(fn, *args, rtol=1e-4, atol=1e-5)
    groups = [item for item in made[0].items if isinstance(item, Group)]
    folds = [group for group in groups if any(nest.is_reduction for nest in group.nests)]
    assert folds and all(map(cpp_target.prefers_tile, folds))


def test_a_few_elements_of_long_rows(left_scalar):
    """More than two or three of a row are no group that GCC reads together."""

    def fn(x):
        total = x[:, 0]
        for place in range(1, 12):
            total = total * 0.5 + x[:, 3 * place]
        return total

    check(fn, torch.randn(256, 100))
    assert left_scalar() == []


def test_scatters_of_one_thread_know_their_length(monkeypatch):
    made = units(monkeypatch)

    def fn(x, at):
        return torch.zeros(64, 32).index_add(0, at, x.exp())

    check(fn, torch.randn(4096, 32), torch.randint(64, (4096,)))
    (group,) = [i for i in made[0].items if isinstance(i, Group) and i.nests[0].scatters]
    assert "i1 < 32" in cpp_target.print_kernel(group).source


def test_numbers_kept_within_limits(left_scalar):
    """What follows from a limit that was reached is no branch of its own."""

    def fn(x):
        place = (x * 0.3).clamp(min=0.0)
        rest = (place - place.long().float()).clamp(0.0, 1.0)
        return x + x.roll(1, 0) * rest

    check(fn, torch.randn(64, 256) * 9)
    assert left_scalar() == []


def test_sums_over_a_merged_space_divide_nothing(monkeypatch):
    """Rows and columns of a product are one axis of its result, and two where they are read."""
    made = units(monkeypatch)

    def fn(a, w):
        return (a[:, None] * w.mT.expand(50, 64, 48)).contiguous().view(3200, 48).sum(-1)

    check(fn, torch.randn(50, 48), torch.randn(48, 64))
    (group,) = [item for item in made[0].items if isinstance(item, Group)]
    assert group.space == (3200,)
    source = cpp_target.print_kernel(group).source
    assert "/ 64u" not in source and "% 64u" not in source


@pytest.mark.parametrize("columns", grid((50, 64).__contains__, [50, 64, 150]))
def test_what_is_made_of_short_rows_is_made_of_many_at_once(left_scalar, monkeypatch, columns):
    made = units(monkeypatch)

    def near(x, y):
        return torch.exp(-((x[:, None] - y) ** 2).sum(-1)).sqrt() + 1

    x, y = torch.randn(65, columns) / 4, torch.randn(70, columns) / 4
    y[3, 1] = torch.nan
    check(near, x, y)
    assert left_scalar() == []
    check(lambda x, y: (x[:, None] * y).amax(-1).sigmoid(), x, y)
    check(lambda x, y: (x[:, None] * y).argmax(-1).float().exp(), x, y)
    kernels = [cpp_target.print_kernel(i).source for unit in made for i in unit.items]
    assert all("[t] = r1_one" in source for source in kernels)


def test_one_number_under_a_mask(left_scalar):
    def fn(x, width):
        made = torch.exp(-x / width) + torch.exp(-x / (width * 2))
        parts = made[:64, :64] + made[64:, 64:] - made[:64, 64:] - made[64:, :64]
        return parts.mean()

    check_gradients(fn, torch.rand(128, 128), torch.tensor(3.0))
    assert left_scalar() == []


@pytest.mark.parametrize("size", [(2, 32, 9, 10), (3, 20, 8, 16)])
def test_folds_across_rows_are_apart_from_loops_along_them(monkeypatch, size):
    """Statistics of channels-last images, and what is made of them in the other order."""
    made = units(monkeypatch)
    x = torch.randn(size).contiguous(memory_format=torch.channels_last)
    check(lambda x: torch.nn.functional.instance_norm(x), x, rtol=1e-4, atol=1e-5)
    groups = [item for item in made[0].items if isinstance(item, Group)]
    folds = [group for group in groups if any(nest.is_reduction for nest in group.nests)]
    assert folds and all(map(cpp_target.prefers_tile, folds))
    assert any("op_transpose" in cpp_target.print_kernel(group).source for group in groups)


@pytest.mark.parametrize("columns", grid((9, 17, 111).__contains__, [9, 15, 17, 49, 60, 111]))
def test_few_elements_are_left_under_a_mask(left_scalar, monkeypatch, columns):
    made = units(monkeypatch)
    rows = 30  # too few to be turned

    def fn(x, w, at):
        wanted = torch.arange(columns) == at[:, None]
        scaled = torch.where(wanted, x.exp() * w, x - at[:, None])
        return scaled, x.softmax(-1), (x * w).argmax(-1), (x + w).amax(-1)

    x = torch.randn(rows, columns + 3)[:, :columns]
    x[1, 2], x[2, columns - 1] = torch.nan, torch.inf
    check(fn, x, torch.randn(columns), torch.randint(columns, (rows,)))
    sources = [cpp_target.print_kernel(item).source for unit in made for item in unit.items]
    assert any(f"WHOLE_VECTORS({columns}); ++" in source for source in sources)
    assert left_scalar() == []


@pytest.mark.parametrize("columns", grid((30, 44, 65).__contains__, [30, 36, 44, 60, 65]))
def test_nothing_is_read_beside_a_masked_row(left_scalar, monkeypatch, columns):
    """A vector's lanes behind the row are zeros: what stood in a register there, or in memory, may
    be denormal, which takes long, or not there at all."""
    made = units(monkeypatch)

    def fn(x, w):
        y = torch.nn.functional.pad(x, (4, 0)) * w
        return y.exp().sum(-1), y.amax(-1), (x.exp() * w[4:]).tanh()

    x, w = torch.randn(30, columns), torch.randn(columns + 4)
    x[3, 4], x[4], x[5, 7] = torch.nan, -0.0, 1e-42
    check(fn, x, w, rtol=1e-5, atol=1e-6)
    text = "".join(cpp_target.print_kernel(item).source for unit in made[:1] for item in unit.items)
    turns = columns + 4
    assert (f"i1 < {turns} & " in text and f"i1 < {turns} ? " in text) or turns % 16 == 0
    assert left_scalar() == []
    check_gradients(
        lambda x, w: torch.nn.functional.layer_norm(x, (columns,)) * w[4:],
        torch.randn(30, columns),
        w,
    )


def test_nothing_is_written_beside_a_masked_row():
    def fn(x, w):
        x[:, 1:61].mul_(w[:, None]).exp_()
        return x

    x = torch.randn(40, 64)
    check(lambda x, w: fn(x.clone(), w), x, torch.randn(40))
    call, given = dynfix.compile(fn), x.clone()
    for _ in range(3):
        given = x.clone()
        call(given, torch.ones(40))
    torch.testing.assert_close(given, fn(x.clone(), torch.ones(40)), rtol=1e-6, atol=0)


def clamped(x, y):
    inside = (x > -1) & (x < 1) | ~((y > 0) & (y != x))
    return torch.where(inside, x.exp(), y) + torch.where(~inside & (y < x), x, 0.0)


@pytest.mark.parametrize("columns", grid((9, 100).__contains__, [9, 39, 100]))
def test_truths_that_are_joined_under_the_mask_of_an_odd_row(left_scalar, columns):
    x, y = torch.randn(60, columns), torch.randn(60, columns)
    x[3, 2], y[4, 1], x[5, 5], y[5, 5] = torch.nan, torch.nan, torch.inf, torch.inf
    check(clamped, x, y)
    check(lambda x, y: torch.logaddexp(x, y[:, 2:5]), x[:, :1], y)
    check(lambda x, y: ((x > 0) & (y > 0)).float() * x, x, y)
    check(lambda x, y: torch.where((x > 0) == (y > 0), x, y), x, y)
    check_gradients(lambda x: torch.nn.functional.hardtanh(x) * 2, x.nan_to_num())
    assert left_scalar() == []


def test_elements_far_apart_in_a_loop_inside_of_rows(monkeypatch):
    """The compiler does not know how far, and does not load all that lies between them."""
    made = units(monkeypatch)

    def fn(x):
        return torch.nn.functional.layer_norm(
            torch.nn.functional.pixel_unshuffle(x, 2).permute(0, 2, 3, 1), (48,)
        )

    check(fn, torch.randn(2, 12, 32, 32))
    sources = [cpp_target.print_kernel(item).source for item in made[0].items]
    assert any("* step0" in source for source in sources)
    assert not any("i3 * 1024" in source for source in sources[1:])
