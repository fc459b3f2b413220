"""Positions from memory: out of range is an error where it is one in eager, and a negative one
counts from the end only in `x[i]`."""

import pytest
import torch
import torch.nn.functional as F

from .harness import check, check_gradients, compiled

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


@pytest.mark.parametrize("classes", [1024, 2048, 33278])
def test_a_loss_over_many_classes_and_its_gradient(classes):
    """With AVX-512, GCC 12 read beyond the stack where the loop's error flag was handed on by
    reference."""
    target = torch.randint(classes, (8,))
    check_gradients(lambda x: F.nll_loss(F.log_softmax(x, -1), target), torch.randn(8, classes))
    check_gradients(lambda x: F.nll_loss(x, target), torch.randn(8, classes))
