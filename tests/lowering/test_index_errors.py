"""Positions from memory: out of range is an error where it is one in eager, and a negative one
counts from the end only in `x[i]`."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from dynfix.lowering.graph.raising_calls import as_any_other, raising_calls
from dynfix.lowering.loops.ir import has_positions
from grids import grid

from .harness import check, check_gradients, compiled, units

X, IDS = torch.randn(7, 5), torch.tensor([0, 6, 3])
COLUMNS = torch.tensor([[0, 4], [2, 2], [1, 3]])
PICKS = {
    "embedding": (lambda x, i: F.embedding(i, x), IDS, 7),
    "gather": (lambda x, i: torch.gather(x, 1, i), COLUMNS, 5),
    "index_select": (lambda x, i: x.index_select(0, i) + 1, IDS, 7),
    "scatter": (
        lambda x, i: x.scatter(1, i[:, :1], 0.5) * 2,
        torch.tensor([[0], [4], [1], [2], [3], [0], [1]]),
        5,
    ),
    "cross_entropy": (lambda x, i: F.cross_entropy(x, i), torch.tensor([0, 4, 1, 2, 3, 0, 1]), 5),
}


@pytest.mark.parametrize("name", PICKS)
@pytest.mark.parametrize("wrong", ["negative", "beyond"])
def test_a_position_out_of_range_is_an_error(name, wrong):
    fn, ids, bound = PICKS[name]
    call = compiled(fn, X, ids)
    torch.testing.assert_close(call(X, ids), fn(X, ids))
    bad = ids.clone()
    bad.view(-1)[1] = -1 if wrong == "negative" else bound
    with pytest.raises((IndexError, RuntimeError)):
        fn(X, bad)
    with pytest.raises((IndexError, RuntimeError)):
        call(X, bad)
    torch.testing.assert_close(call(X, ids), fn(X, ids))


def test_negative_positions_count_from_the_end_in_indexing():
    check(lambda x, i: x[i] + 1, X, torch.tensor([-1, 3, -7]))
    check(lambda x, i: x[:, i, None] * 2, X, torch.tensor([[-5, 4], [0, -1]]))
    call = compiled(lambda x, i: x[i] + 1, X, IDS)
    with pytest.raises(IndexError):
        call(X, torch.tensor([-8, 0, 1]))


@pytest.mark.parametrize("classes", grid((1024, 33278).__contains__, [1024, 2048, 33278]))
def test_a_loss_over_many_classes_and_its_gradient(classes):
    """With AVX-512, GCC 12 read beyond the stack where the loop's error flag was handed on by
    reference."""
    target = torch.randint(classes, (8,))
    check_gradients(lambda x: F.nll_loss(F.log_softmax(x, -1), target), torch.randn(8, classes))
    check_gradients(lambda x: F.nll_loss(x, target), torch.randn(8, classes))


FIRST, SECOND = torch.tensor([0, 3, 1]), torch.tensor([2, 0, 3])
Y = torch.arange(20.0).reshape(4, 5)
NOT_READ = {  # what an index picks, where that has no part in the result, or only some of it
    "fill": lambda x, i: F.cross_entropy(x.new_ones(3, 4), i),
    "fill_gathered": lambda x, i: x.new_zeros(3, 4).gather(1, i[:, None]) * 2,
    "expanded": lambda x, i: x[:3, :1].expand(3, 4).gather(1, i[:, None]) + 1,
    "one_row": lambda x, i: F.embedding(i // 4, x[:1]),
    "one_column_written": lambda x, i: x.new_zeros(3, 1).scatter(1, (i // 4)[:, None], 1.0),
    "one_row_added": lambda x, i: x.new_zeros(1).index_add(0, i // 4, x[0, :3]),
    "dead": lambda x, i: (x[i], x + 1)[1],
    "dead_write": lambda x, i: (x.new_zeros(4).index_put((i,), x[0, 0]), x + 1)[1],
    "dead_loss": lambda x, i: (F.nll_loss(x[:3, :4], i, reduction="none"), x + 1)[1],
    "like": lambda x, i: torch.ones_like(x[i]) + x[:3],
    "overwritten": lambda x, i: x[i].copy_(x[:3]),
    "a_part": lambda x, i: x[i][1] * 2,
    "every_other": lambda x, i: x[i][::2] + 1,
    "behind_a_condition": lambda x, i: torch.where(x.new_zeros(3, 5) > 0, x[i], x[:3]),
    "masked": lambda x, i: torch.tril(x[i], -9),
    "of_an_index": lambda x, i: x.new_ones(4)[i.new_ones(4).cumsum(0)[i] - 1] * x[0, 0],
    "several": lambda x, i: x.new_ones(4, 4)[i, i.flip(0)] + x[0, 0],
    "padded_away": lambda x, i: F.pad(x[i], (0, 0, -2, 0)),
}
BAD = torch.tensor([4, 0, 1]), torch.tensor([1, -9, 2]), torch.tensor([9, -5, 8])


@pytest.mark.parametrize("gradients", [False, True])
def test_what_is_picked_out_of_range_and_not_needed_is_an_error(gradients):
    for name, fn in NOT_READ.items():
        x = Y.clone().requires_grad_(gradients)
        call = compiled(fn, x, FIRST)
        for good in (FIRST, SECOND):
            torch.testing.assert_close(call(x, good), fn(x, good), msg=name)
        for bad in BAD:
            try:
                fn(x, bad)
            except (IndexError, RuntimeError):
                with pytest.raises((IndexError, RuntimeError)):
                    call(x, bad)
                    pytest.fail(f"{name} of {bad}")
        torch.testing.assert_close(call(x, FIRST), fn(x, FIRST), msg=name)


def test_positions_are_asked_for_once_where_all_of_them_are_read(monkeypatch):
    """Of a table two halves of each element are taken, as rotary positions are."""

    def halves(x, i):
        picked = x[i]
        return picked[:, 2:4] * picked[:, :2]

    found = units(monkeypatch)
    check(halves, Y, FIRST)
    nests = [nest for unit in found for item in unit.items for nest in item.nests]
    assert len(nests) == 1


def _pick(x, i, replaced):
    return x[:3].gather(1, replaced[:, None])[:, 0]


REPLACED = {  # an index by a number where a condition says so, and what it picks by others
    "ignored": lambda x, i: F.cross_entropy(x[:3], i, ignore_index=-9),
    "ignored, one by one": lambda x, i: F.nll_loss(x[:3], i, reduction="none", ignore_index=-9),
    "images": lambda x, i: F.cross_entropy(x[None, :, :3], i[None], ignore_index=-9),
    "the same": lambda x, i: torch.where(i > -9, _pick(x, i, torch.where(i > -9, i, 0)), 0.5),
    "negated": lambda x, i: _pick(x, i, i.masked_fill(i == -9, 2)).masked_fill(i == -9, 0.5),
    "twice": lambda x, i: torch.where(
        i != -9, torch.where(i < 3, _pick(x, i, torch.where(i != -9, i, 1)), 1.0), 2.0
    ),
    "another": lambda x, i: torch.where(i > 0, _pick(x, i, torch.where(i != -9, i, 0)), 0.5),
    "the other side": lambda x, i: torch.where(
        i != -9, 0.5, _pick(x, i, torch.where(i != -9, i, 0))
    ),
    "too large": lambda x, i: torch.where(i != -9, _pick(x, i, torch.where(i != -9, i, 5)), 0.5),
    "of others": lambda x, i: torch.where(
        i != -9, _pick(x, i, torch.where(i != -9, i, 0)).flip(0), 0.5
    ),
}
IMAGES = torch.randint(-1, 21, (2, 64, 64)).abs()
INDICES = [(0, 3, 1), (-9, 3, -9), (1, -9, 4), (5, -9, 0), (-9, -9, 7), (-9, -1, 2), (9, 1, -9)]


@pytest.mark.parametrize("name", REPLACED)
def test_positions_that_a_condition_replaces(name):
    fn = REPLACED[name]
    call = compiled(fn, Y, FIRST)
    for values in INDICES:
        index = torch.tensor(values)
        try:
            wanted = fn(Y, index)
        except (IndexError, RuntimeError):
            with pytest.raises((IndexError, RuntimeError)):
                call(Y, index)
                pytest.fail(f"{values} is an error")
        else:
            torch.testing.assert_close(call(Y, index), wanted, equal_nan=True)


def test_a_class_to_ignore_needs_no_loop_of_its_own(monkeypatch):
    found = units(monkeypatch)
    check(lambda x, i: F.cross_entropy(x, i), torch.randn(2, 21, 64, 64), IMAGES)
    nests = [nest for unit in found for item in unit.items for nest in item.nests]
    picks = [nest for nest in nests if has_positions(nest)]
    assert len(picks) == 1 and any(load.dtype.is_floating_point for load in picks[0].loads)


NOT_NEEDED = {
    "linalg.inv": (lambda x: (torch.linalg.inv(x), x + 1)[1], torch.eye(3), torch.zeros(3, 3)),
    "cholesky": (lambda x: (torch.cholesky(x), x + 1)[1], torch.eye(3), -torch.eye(3)),
    "histc": (lambda x: (torch.histc(x, 4), x + 1)[1], torch.ones(3), torch.full((3,), torch.nan)),
    "remainder": (lambda x: (7 % x, x + 1)[1], torch.tensor([1, 2]), torch.tensor([1, 0])),
    "max_unpool1d": (
        lambda x: F.max_unpool1d(x[None] * 1.0, x[None], 2),
        torch.tensor([0, 3]),
        torch.tensor([0, -1]),
    ),
}


@pytest.mark.parametrize("name", NOT_NEEDED)
def test_values_that_an_operator_refuses_are_an_error(name):
    fn, good, bad = NOT_NEEDED[name]
    call = compiled(fn, good)
    torch.testing.assert_close(call(good), fn(good))
    with pytest.raises(RuntimeError):
        fn(bad)
    with pytest.raises(RuntimeError):
        call(bad)


def test_what_one_thread_compiles_changes_no_other_threads_graphs():
    """While this thread keeps such calls, another begins and ends; a third, of the user, drops."""
    graph = torch.fx.Graph()
    unused = graph.call_function(torch.ops.aten.take.default, (graph.placeholder("x"),) * 2)
    graph.output(())

    def another():
        before = unused.is_impure()
        with raising_calls():
            inside = unused.is_impure()
        return before, inside, unused.is_impure()

    with raising_calls(), ThreadPoolExecutor(1) as threads:
        assert threads.submit(another).result() == (False, True, False)
        with as_any_other(torch.fx.Graph()):
            assert not unused.is_impure()
            assert threads.submit(another).result() == (False, True, False)
        assert unused.is_impure()
    assert not unused.is_impure()
