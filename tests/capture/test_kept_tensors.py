# ruff: noqa: SIM108
"""A choice makes a new tensor where eager keeps one. Calls that write to the outside cannot be made
again at once, so that the next such call runs with the choice for real: only where nobody can tell."""

import itertools
import warnings

import dynfix
import pytest
import torch

LOG = []


def returned_input(x, y, total):
    total.add_(1)
    if y.sum() > 0:
        x = x * 2
    return x


def written_later(x, y, total):
    total.add_(1)
    made = x + 1
    if y.sum() > 0:
        chosen = made * 2
    else:
        chosen = made
    chosen += 1
    return made


def told_by_identity(x, y, total):
    total.add_(1)
    made = x + 1
    chosen = made * 2 if y.sum() > 0 else made
    return chosen is made, chosen


def written_through_a_view(x, y, total):
    if y.sum() > 0:
        chosen = x.clone()
    else:
        chosen = x.view(x.shape)
    chosen.view(-1).clamp_(-1, 1)
    return chosen


def returned_with_a_view(x, y, total):
    made = x + 1
    row = made[0]
    if y.sum() > 0:
        made = made * 2
    total.add_(1)
    return row, made


def kept_outside(x, y, total):
    made = x + 1
    LOG.append(made)
    if y.sum() > 0:
        made = made * 2
    return made


def in_a_dict(x, y, total):
    total.add_(1)
    return {"chosen": x * 2 if y.sum() > 0 else x}


def written_as_the_other(x, y, total):
    if y.sum() > 0:
        chosen = x.clone()
    else:
        chosen = x
    total.add_(chosen.sum())
    x.add_(1)
    return chosen


def turned_later(x, y, total):
    made = x + 1
    chosen = made * 2 if y.sum() > 0 else made
    row = chosen[0]
    chosen.t_()
    return made * 2, row * 2


def turned_later_beside_a_write(x, y, total):
    total.add_(1)
    return turned_later(x, y, total)


def unnoticed(x, y, total):
    total.add_(1)
    made = x + 1
    if y.sum() > 0:
        made = made * 2
    made = made + 1
    return made.relu_()


FELT = (
    returned_input,
    written_later,
    told_by_identity,
    written_through_a_view,
    returned_with_a_view,
    kept_outside,
    in_a_dict,
    written_as_the_other,
    turned_later,
    turned_later_beside_a_write,
)


def leaves(function, x, sign, total, log):
    LOG[:] = log
    result = function(x, torch.full((2,), float(sign)), total)
    log[:] = LOG
    return torch.utils._pytree.tree_leaves((result, x, total, log))


def shared(found):
    """Which of the leaves are one, and which share memory."""
    tensors = [each for each in found if isinstance(each, torch.Tensor)]
    pairs = itertools.combinations(tensors, 2)
    return [(a is b, a.untyped_storage()._cdata == b.untyped_storage()._cdata) for a, b in pairs]


@pytest.mark.parametrize("signs", [(1, -1, -1, 1), (-1, -1, 1, 1)], ids=str)
@pytest.mark.parametrize("function", (*FELT, unnoticed), ids=lambda f: f.__name__)
def test_a_choice_that_runs_for_real(function, signs):
    compiled = dynfix.compile(function, backend="eager")
    totals, logs = (torch.zeros(1), torch.zeros(1)), ([], [])
    for number, sign in enumerate(signs):
        found = []
        for called, total, log in zip((function, compiled), totals, logs, strict=True):
            x = torch.randn(3, 4, generator=torch.Generator().manual_seed(number))
            found.append(leaves(called, x, sign, total, log))
        assert shared(found[0]) == shared(found[1]), number
        torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_choice_that_nobody_can_tell_is_in_the_graph():
    compiled = dynfix.compile(unnoticed, backend="eager", fullgraph=True)  # breaks are errors
    for sign in (1, -1, 1):
        x, y = torch.ones(3), torch.full((2,), float(sign))
        assert torch.equal(compiled(x, y, torch.zeros(1)), unnoticed(x, y, torch.zeros(1)))


def test_operators_that_fakes_refuse_are_not_logged(capfd, caplog):
    def refused(x, y):
        if y.sum() > 0:
            z = x.clone()
        else:
            z = x.view(-1)
        return z + 1

    compiled = dynfix.compile(refused, backend="eager")
    for sign in (1.0, -1.0):
        compiled(torch.ones(3, 4), torch.full((2,), sign))
    assert "failed while attempting" not in capfd.readouterr().err + caplog.text


def test_graphs_that_fakes_refuse_are_not_logged(capfd, caplog):
    compiled = dynfix.compile(lambda x: x << 1)
    mask = torch.tensor([True, False])
    with warnings.catch_warnings():  # which say that it runs in eager
        warnings.simplefilter("ignore")
        assert [compiled(mask).tolist() for _ in range(2)] == [[2, 0]] * 2
    assert "failed while attempting" not in capfd.readouterr().err + caplog.text
