"""What kernels are launched, what they move, and how it lies in memory: for a GPU, without one.

`schedule_table` has the figures of every program. They may only get better: a schedule that slides
back fails here, and one that got better asks for its new line.
"""

import dataclasses
from math import prod

import pytest
import torch
from dynfix.lowering.targets.triton import triton_axes
from dynfix.lowering.targets.triton.triton_target import tiles
from dynfix.runtime.gpu.triton_kernels import TritonKernel
from printed_accesses import printed_accesses, worst
from schedule_programs import PROGRAMS, bf16, f32
from schedule_table import TABLE
from without_gpu import GPU, Figures, lowered, printed_groups

NEAR = 0.02  # what rounding makes of a ratio


def _line(name: str, found: Figures) -> str:
    return f'"{name}": {dataclasses.astuple(found)},'


@pytest.mark.parametrize("name", PROGRAMS)
def test_schedule(name):
    found, known = Figures.of(lowered(*PROGRAMS[name]())), Figures(*TABLE[name])
    apart = [a - b for a, b in zip(*map(dataclasses.astuple, (found, known)), strict=True)]
    assert max(apart) <= NEAR, f"worse than {known}: {_line(name, found)}"
    assert min(apart) >= -NEAR, f"better than {known}, schedule_table needs: {_line(name, found)}"


def test_the_table_has_every_program():
    assert TABLE.keys() == PROGRAMS.keys()


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("row t copy + add", 4),
        ("row keys of heads", 4),
        ("row relu to NHWC", 4),
        ("row 3-d copy + add", 4),
        ("row patches + places", 4),
        ("row pixel_unshuffle + add", 2),
        ("softmax over W of NHWC", 8),
    ],
)
def test_an_axis_that_stays_merged_is_seen(name, least, monkeypatch):
    monkeypatch.setattr(triton_axes, "split_common", lambda nests, count: nests)
    assert Figures.of(lowered(*PROGRAMS[name]())).sectors >= least


def _printed(name):
    return [made for unit in lowered(*PROGRAMS[name]()) for made in printed_groups(unit)]


def test_a_window_of_each_point_makes_a_tile_smaller():
    group = _printed("conv, tanh, pool")[-1][0]
    tile = tiles(group, GPU)[0]
    points = prod(dim.block for dim in tile.dims)
    assert points * 16 <= 128 * 32 * tile.warps  # 16 elements of the window for each


def test_a_row_that_begins_inside_of_a_sector_makes_a_tile_longer():
    for size, shape in ((512, (64, 64)), (513, (128, 32)), (514, (128, 32)), (516, (64, 64))):
        (unit,) = lowered(
            lambda x: x.permute(0, 3, 1, 2).tanh().contiguous(), [f32(4, size, size, 64)]
        )
        (group, _) = next(printed_groups(unit))
        assert tuple(dim.block for dim in tiles(group, GPU)[0].dims[1:]) == shape


def test_what_a_column_has_of_its_own_is_read_ahead_of_the_loop():
    texts = [made.variants[0][0].text for _, made in _printed("conv, gelu, mean")]
    (folded,) = [text for text in texts if "num_stages" in text]
    before, _, loop = folded.partition("for start")
    assert "tl.load(p1" in before and "tl.load(p1" not in loop


HEAD = "@triton.jit\ndef one(p0, p1):\n    x = tl.program_id(0) * 1024 + tl.arange(0, 1024)\n"


@pytest.mark.parametrize(
    ("place", "ratio"),
    [
        ("x", 1.0),
        ("x * 2", 2.0),
        ("x * 8", 8.0),
        ("x * 0", 1.0),
        ("x // 64", 1.0),
        ("(x % 64) * 4096 + x // 64", 4.0),
        ("x + 1", 17 / 16),
        ("-x + 4096", 17 / 16),
    ],
)
def test_sectors_of_an_index(place, ratio):
    text = f"{HEAD}    tl.store(p1 + x, tl.load(p0 + {place}))\n"
    kernel = TritonKernel("one", text, (0, 1), ("*fp32", "*fp32"), (4096, 4096), 4, 4)
    found = {access.parameter: access.ratio for access in printed_accesses(kernel)}
    assert found["p0"] == pytest.approx(ratio, abs=0.07) and found["p1"] == 1.0


def test_what_a_window_reads_is_taken_together():
    loads = " + ".join(f"tl.load(p0 + x * 2 + {k})" for k in (0, 1))
    text = f"{HEAD}    tl.store(p1 + x, {loads})\n"
    kernel = TritonKernel("one", text, (0, 1), ("*fp32", "*fp32"), (8192, 4096), 4, 4)
    assert worst([kernel]) == 1.0


@pytest.mark.parametrize("dtype", [bf16, f32])
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, y: x.t().contiguous() + y, [(33, 129), (129, 33)]),
        (lambda x: x.permute(2, 0, 1).contiguous().tanh(), [(65, 67, 130)]),
        (lambda x, y: x.permute(0, 3, 1, 2).contiguous() * y, [(4, 64, 64, 5), (4, 5, 64, 64)]),
        (lambda x: torch.pixel_unshuffle(x, 3).relu(), [(2, 4, 99, 96)]),
    ],
)
def test_odd_sizes_are_read_in_runs(function, shapes, dtype):
    """Rows that begin in the middle of a sector touch one more."""
    assert Figures.of(lowered(function, [dtype(*shape) for shape in shapes])).sectors <= 2
