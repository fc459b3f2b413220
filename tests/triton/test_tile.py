"""Choices of tiles, and the index arithmetic behind flat axes."""

import itertools

import pytest
import torch
from dynfix.lowering.loops import sizes
from dynfix.lowering.loops.ir import PARTIAL, Group, Load, Nest, Reduced, Store
from dynfix.lowering.loops.sizes import (
    Axis,
    FloorDiv,
    Index,
    Mod,
    add,
    atom_index,
    floordiv,
    linear,
    mod,
)
from dynfix.lowering.targets.triton.triton_split import cut
from dynfix.lowering.targets.triton.triton_target import (
    global_buffers,
    print_group,
    tiles,
)
from dynfix.lowering.targets.triton.triton_tile import (
    Device,
    needs_int64,
    part_tiles,
    pow2,
)
from dynfix.lowering.targets.triton.triton_values import are_neighbours
from kernel_examples import (
    EXAMPLES,
    add_layer_norm,
    batch_norm,
    common,
    full_mean,
    long_columns,
    softmax_rows,
)

MADE = {make.__name__: make for make in EXAMPLES}


def evaluate(index: Index, values):
    total = index.offset
    for atom, factor in index.terms:
        if isinstance(atom, FloorDiv):
            total += factor * (evaluate(atom.base, values) // atom.divisor)
        elif isinstance(atom, Mod):
            total += factor * (evaluate(atom.base, values) % atom.divisor)
        else:
            total += factor * values[atom]
    return total


def test_a_row_number_comes_out_of_a_flat_index_without_the_column():
    x, r = Axis(0, 100), Axis(1, 512)
    flat = linear((x, r), (512, 1))
    assert floordiv(flat, 512 * 6) is floordiv(atom_index(x), 6)
    assert mod(flat, 512 * 6) is add(sizes.scale(mod(atom_index(x), 6), 512), atom_index(r))
    whole = add(
        sizes.scale(floordiv(flat, 3072), 3072),
        sizes.scale(mod(atom_index(x), 6), 512),
        atom_index(r),
    )
    assert whole is flat


@pytest.mark.parametrize(
    "factors", list(itertools.product((1, 2, 4, 6, 12), (0, 1, 3, 8), (-5, 0, 7))), ids=str
)
def test_division_keeps_values(factors):
    a, b = Axis(0, 7), Axis(1, 5)
    index = Index(
        tuple((axis, f) for axis, f in ((a, factors[0]), (b, factors[1])) if f), factors[2]
    )
    for divisor, i, j in itertools.product((2, 3, 4, 12, 24), range(7), range(5)):
        values = {a: i, b: j}
        assert evaluate(floordiv(index, divisor), values) == evaluate(index, values) // divisor
        assert evaluate(mod(index, divisor), values) == evaluate(index, values) % divisor


PAIRED, OTHER = Axis(1, 24), Axis(0, 5)
TERMS = [
    (atom, factor)
    for base in (atom_index(PAIRED), linear((OTHER, PAIRED), (24, 1)), Index(((PAIRED, 1),), 1))
    for n in (2, 3, 6, 12)
    for atom, _ in (*floordiv(base, n).terms, *mod(base, n).terms)
    for factor in (1, 2, 24)
] + [(axis, factor) for axis in (PAIRED, OTHER) for factor in (1, 2, 24)]


@pytest.mark.parametrize("first", range(len(TERMS)))
def test_only_pairs_that_lie_side_by_side_are_said_to(first):
    """Else a vector would bring another element."""
    for second in range(first, len(TERMS)):
        index = add(Index((TERMS[first],), 0), Index((TERMS[second],), 3))
        steps = {
            evaluate(index, {PAIRED: x + 1, OTHER: y}) - evaluate(index, {PAIRED: x, OTHER: y})
            for x, y in itertools.product(range(0, 24, 2), range(5))
        }
        assert steps == {1} or not are_neighbours(index, PAIRED, 2)
    index = add(mod(atom_index(PAIRED), 6), floordiv(atom_index(PAIRED), 6))
    assert are_neighbours(index, PAIRED, 2) and not are_neighbours(index, PAIRED, 4)


@pytest.mark.parametrize(("step", "alone"), [(1, True), (3, True), (64, False)])
def test_elements_of_a_window_are_read_one_by_one(step, alone):
    """Vectors would begin between those that memory has."""
    x, y = (common.Buffer(name, torch.float32, 1 << 20) for name in "xy")
    flat = atom_index(Axis(0, 1 << 19))
    loads = [Load(x, add(flat, sizes.const(k * step))) for k in range(4)]
    total = loads[0]
    for load in loads[1:]:
        total = common.Op("add", (total, load), torch.float32)
    group = Group("window", (1 << 19,), (Nest((1 << 19,), (), (Store(y, flat, total),)),))
    assert ("max_contiguous" in print_group(group).variants[0][0].text) == alone


def test_power_of_two():
    assert [pow2(n) for n in (0, 1, 2, 3, 64, 65)] == [1, 1, 2, 4, 64, 128]


def test_rows_stay_in_registers_until_they_are_too_long():
    assert tiles(softmax_rows(8, 4096)[0], Device())[0].persistent
    assert not tiles(softmax_rows(1000, 20000)[0], Device())[0].persistent


def test_short_rows_share_a_program():
    tile = tiles(MADE["many_softmax"]()[0], Device(multiprocessors=4))[0]
    assert tile.dims[0].block > 1 and tile.inner[0].block == 64


def test_a_transposed_access_gets_a_square_tile_and_a_broadcast_does_not():
    assert [dim.name for dim in tiles(common.transpose_add()[0], Device())[0].dims] == [
        "z",
        "y",
        "x",
    ]
    assert [dim.name for dim in tiles(common.gather()[0], Device())[0].dims] == ["x"]


def test_blocks_end_where_columns_do():
    """Else the compiler does not see that neighbours lie side by side."""
    for tile in tiles(MADE["uneven_columns"]()[0], Device()):
        assert [dim.name for dim in tile.dims] == ["z", "x"]
        assert tile.dims[1].axis.size == 147


@pytest.mark.parametrize(("columns", "ahead"), [(128, True), (147, False)])
def test_loops_load_ahead_what_comes_in_vectors(columns, ahead):
    at = linear((Axis(0, columns), Axis(1, 8192)), (1, columns))
    x, y = (common.Buffer(name, torch.float32, columns * 8192) for name in "xy")
    total = Reduced("sum", Load(x, at), torch.float32)
    group = Group("sums", (columns,), (Nest((columns,), (8192,), (Store(y, at, total),)),))
    found = [tile.stages > 0 for tile in tiles(group, Device())]
    assert found[0] == ahead and set(found) == {True, False}


def test_partial_sums_take_short_rows_some_at_a_time():
    for longest, rows in ((64, 16), (512, 2), (4096, 1)):
        for tile in part_tiles(rows_with_parts(longest, 48), 48):
            taken = tile.dims[0].block
            assert 48 % taken == 0 and tile.programs == 25
        assert part_tiles(rows_with_parts(longest, 48), 48)[0].dims[0].block == rows


def rows_with_parts(length, height):
    """Sums over columns of 1,200 rows, by parts."""
    row, column = Axis(0, 1200), Axis(1, length)
    at = linear((row, column), (length, 1))
    to = add(sizes.scale(floordiv(atom_index(row), height), length), atom_index(column))
    x, y = (common.Buffer(name, torch.float32, length * 1200) for name in "xy")
    nest = Nest((1200,), (length,), (Store(y, to, Load(x, at), PARTIAL),))
    return Group("parts", (1200,), (nest,))


def test_stored_values_are_used_from_registers():
    group = add_layer_norm()[0]
    text = print_group(group).variants[0][0].text
    assert (
        text.count("tl.load") == 4 and text.count("tl.store") == 2 and "debug_barrier" not in text
    )
    assert "debug_barrier" in print_group(MADE["swap_in_row"]()[0]).variants[0][0].text


def test_a_private_buffer_is_not_written_where_registers_carry_it():
    group = add_layer_norm()[0]
    z = next(buffer for buffer in global_buffers(group) if buffer.name == "z")
    kernel = print_group(group, private=frozenset({z})).variants[0][0]
    assert kernel.text.count("tl.store") == 1 and len(kernel.arguments) == 5
    assert global_buffers(group).index(z) not in kernel.arguments
    looped = print_group(
        MADE["swap_in_row"]()[0], private=frozenset({common.Buffer("y", torch.float32, 7 * 64)})
    )
    # its neighbours are read: memory is needed
    assert looped.variants[0][0].text.count("tl.store") == 2


def test_equal_kernels_have_equal_texts():
    texts = {
        print_group(softmax_rows(8, 64, name=name)[0]).variants[0][0].text
        for name in ("one", "two")
    }
    assert len(texts) == 1


def test_small_devices_do_not_split():
    assert len(cut(long_columns()[0], Device(multiprocessors=1)).groups) == 1
    assert len(cut(long_columns()[0], Device()).groups) == 2


def test_scratch_is_shared_by_the_pieces():
    pieces = cut(batch_norm()[0], Device())
    assert {b.name for b in pieces.scratch} >= {"batch_norm_m", "batch_norm_v"}
    assert (
        cut(full_mean()[0], Device()).scratch[0].size
        == cut(full_mean()[0], Device()).groups[0].space[0]
    )


def test_indices_widen_only_when_they_must():
    group, _, _ = MADE["swiglu"]()
    assert not needs_int64(group)
    a, y = (common.Buffer(name, torch.float32, 3 * 2**30) for name in "ay")
    i = atom_index(Axis(0, 3 * 2**30))
    nest = common.Nest((3 * 2**30,), (), (common.Store(y, i, common.Load(a, i)),))
    big = common.Group("big", (3 * 2**30,), (nest,))
    assert needs_int64(big)
    assert "tl.program_id(0).to(tl.int64)" in print_group(big).variants[0][0].text
