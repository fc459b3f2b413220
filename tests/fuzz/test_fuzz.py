"""Random graphs, compiled and in eager. More of them: `python -m tests.fuzz.campaign`."""

import pytest

pytest.importorskip("torch")

from .campaign import Tally, batches, check, graphs_of
from .graphs import grown
from .modules import difference, net


@pytest.mark.parametrize("first", [200, 256])
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


@pytest.mark.parametrize("first", [0, 6])
def test_modules_that_are_trained(first):
    found = {seed: difference(net(seed)) for seed in range(first, first + 3)}
    assert not any(found.values()), found
    assert "" in found.values()
