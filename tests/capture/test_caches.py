"""Objects that a model fills call by call, as caches of keys and values are: fresh ones are what
the recorded one was before the call."""

import dataclasses

import dynfix
import pytest
import torch
from counting_graphs import Counting
from helpers import recordings


class Layer:
    def __init__(self):
        self.ready = False

    def update(self, x):
        if not self.ready:
            self.dtype = x.dtype
            self.kept = torch.zeros(0, *x.shape[1:])
            self.ready = True
        self.kept = torch.cat([self.kept, x])
        return self.kept


@dataclasses.dataclass
class Output:
    value: torch.Tensor
    layer: Layer

    def __setattr__(self, name, value):
        super().__setattr__(name, value)


def _generate(step, x, turns):
    layer, results = Layer(), []
    for turn in range(turns):
        results.append(step(x if turn == 0 else x[:1] * turn, layer).value)
    return results


@pytest.mark.parametrize("name", ["eager", "native"])
def test_the_second_run_records_nothing(name):
    def step(x, layer):
        return Output(layer.update(x * 2).sum(0), layer)

    compiled = dynfix.compile(step, backend=name)
    x = torch.randn(4, 3)
    torch.testing.assert_close(_generate(compiled, x, 6), _generate(step, x, 6))
    before = len(recordings(compiled))
    torch.testing.assert_close(_generate(compiled, x, 9), _generate(step, x, 9))
    assert before == len(recordings(compiled))


def test_what_the_call_stored_is_no_condition():
    def step(x, layer):
        layer.count = x.shape[0]
        layer.count += 1
        return Output(x * layer.count, layer)

    backend = Counting()
    compiled = dynfix.compile(step, backend=backend)
    for _ in range(4):
        layer = Layer()
        assert torch.equal(compiled(torch.ones(3), layer).value, torch.full((3,), 4.0))
        assert layer.count == 4
    assert backend.built == 1
