"""Random graphs and training programs, compiled and in eager. More of them: `python -m
tests.fuzz.campaign`, `python -m tests.fuzz.training`."""

import pytest

pytest.importorskip("torch")

import torch

from .campaign import Tally, batches, check, graphs_of
from .graphs import Graph, _Grower, grown
from .judge import ROUNDINGS, _Judge, differences
from .modules import difference, net
from .training import judged


@pytest.mark.parametrize("first", [200, pytest.param(256, marks=pytest.mark.slow)])
def test_graphs_of_fixed_and_of_changing_sizes(first):
    tally = Tally()
    found = [check(*batch, tally) for batch in batches(graphs_of(first, 6), 6)]
    assert not any(found), found
    assert tally.served["whole"] > tally.graphs / 2, tally


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 512, 32))
def test_many_graphs(first):
    found = [check(*batch) for batch in batches(graphs_of(first, 32), 16)]
    assert not any(found), found


def test_a_seed_gives_the_same_graph_again():
    assert grown(5, False) == grown(5, False) is not None


@pytest.mark.parametrize("first", [0, pytest.param(6, marks=pytest.mark.slow)])
def test_modules_that_are_trained(first):
    found = {seed: difference(net(seed)) for seed in range(first, first + 3)}
    assert not any(found.values()), found
    assert "" in found.values()


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_training_programs(first):
    found = {seed: judged(seed) for seed in range(first, first + 10)}
    assert not any(found.values()), found


def off_by_some_places(gm, example_inputs):
    """A backend whose results have an error of 64 units in the last place in the largest
    element."""

    def call(*args):
        (result,) = gm(*args)
        made = result.detach().clone().view(-1)
        made[made.abs().argmax()] *= 1 + 64 * torch.finfo(made.dtype).eps
        return (made.view(result.shape),)

    return call


LINES = (
    *("a0 * 2", "a0.sum()", "a0 @ a0.mT", "torch.softmax(a0, -1)", "torch.exp(a0)"),
    *("torch.std(a0)", "torch.var(a0, -1)", "torch.std(a0.long().to(a0.dtype))"),
)


@pytest.mark.covering
@pytest.mark.parametrize("code", "fd")
@pytest.mark.parametrize("line", LINES)
def test_errors_are_seen_that_are_no_rounding(line, code):
    inputs = (("a0", f"make('{code}', 33, 17)"),)
    graph = Graph(3, inputs, (f"v0 = {line}",), ("v0",), ((7, 5),) * 4)
    assert differences([graph], False) == ([], "whole")
    assert differences([graph], False, off_by_some_places)[0]


def test_what_is_made_of_whole_numbers_and_truths_is_rounded():
    inputs = (("a0", "make('i', 33, 17)"), ("a1", "make('b', 33, 17)"))
    graph = Graph(3, inputs, ("v0 = torch.exp(-a0.abs()).where(a1, 0.0)",), ("v0",), ((7, 5),) * 4)
    judge = _Judge(graph, 0)
    plain = judge.run().results[0][0]
    assert len(judge.noisy("results", 0, plain)) == 2 + ROUNDINGS
    assert not torch.equal(judge.noisy("results", 0, plain)[-1], plain)
    assert judge.run(double=True).results[0][0].dtype == torch.float64


def test_the_smallest_numbers_are_rounded():
    """Whether such a number is zero is for eager's last place to decide."""
    inputs = (("a0", "make('2', 33, 17)"),)
    lines = ("v0 = torch.full_like(a0, 2 ** -12)", "v1 = torch.logical_not(v0 * v0)")
    graph = Graph(3, inputs, lines, ("v1",), ((7, 5),) * 4)
    judge = _Judge(graph, 0)
    plain = judge.run().results[0][0]
    assert not plain.any()
    assert any(made.any() for made in judge.noisy("results", 0, plain))


def test_what_a_write_rounds_is_rounded_in_every_view():
    grower = _Grower(5, False)
    grower.inputs, grower.exact = [("a0", "make('f', 7, 5)")], {"a0": True}
    spaces = [grower.graph(()).make_inputs(turn) for turn in range(4)]
    for line in ("v0 = a0[1:]", "v1 = a0 * 2"):
        grower.try_line((line, line[:2], True), spaces)
    grower.try_line(("v0.tanh_()", "v0", False), spaces)
    assert grower.exact == {"a0": False, "v0": False, "v1": True}
    grower.try_line(("v3 = v1.view(torch.int8)", "v3", True), spaces)
    grower.try_line(("v1.tanh_()", "v1", False), spaces)  # of which v3 would ask the bits
    assert grower.exact["v3"] and len(grower.lines) == 4
