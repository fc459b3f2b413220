"""Convolutions by groups of an awkward number of channels, made by wider groups."""

import copy

import dynfix
import pytest
import torch
from dynfix.lowering import pipeline, stored_graphs
from dynfix.lowering.loops.kernel_graph import ExternCall, Ref
from dynfix.lowering.lowerings import lower_convolutions
from torch import nn


@pytest.fixture(autouse=True)
def groups(monkeypatch):
    """Channels of the images and weights that each convolution of the library takes."""
    monkeypatch.setattr(lower_convolutions, "DEVICES", frozenset({"cpu"}))
    found = []

    def watch(unit, launches):
        for item in unit.items:
            if isinstance(item, ExternCall) and "convolution" in str(item.target):
                given = (each for each in item.args if isinstance(each, Ref))
                found.append([each.shape[1] for each in given if len(each.shape) == 4])
        return launches

    for module in (pipeline, stored_graphs):  # the latter: nothing is taken from earlier runs
        monkeypatch.setattr(module, "watchers", [watch])
    return found


def block(width, count, bias=False, stride=1, out=None):
    channels = width * count
    return nn.Sequential(
        nn.Conv2d(channels, channels, 1),
        nn.ReLU(),
        nn.Conv2d(channels, out or channels, 3, stride, 1, groups=count, bias=bias),
        nn.BatchNorm2d(out or channels),
        nn.ReLU(),
    )


def image(channels):
    x = torch.randn(4, channels, 9, 8).to(torch.bfloat16)
    return x.contiguous(memory_format=torch.channels_last)


def distance(one, two):
    return (one.double() - two.double()).norm().item() / two.double().norm().clamp(min=1e-6).item()


@pytest.mark.covering
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("bias, stride", [(False, 1), (True, 2)])
@pytest.mark.parametrize("width", [24, 14])
def test_results_and_gradients(width, bias, stride, train, groups):
    model = block(width, 2, bias, stride).to(torch.bfloat16).to(memory_format=torch.channels_last)
    model.train(train)
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    compiled = dynfix.compile(model, fullgraph=True)
    for _ in range(3):
        x = image(2 * width).requires_grad_(train)
        with torch.set_grad_enabled(train):
            results = [m(x.double() if m is exact else x) for m in (compiled, eager, exact)]
        assert results[0].stride() == results[1].stride()
        assert distance(results[0], results[2]) <= 2 * distance(results[1], results[2]) + 1e-3
        if not train:
            continue
        g = torch.randn_like(results[1])
        found = [
            torch.autograd.grad(y, (x, *m.parameters()), g.to(y.dtype))
            for m, y in zip((model, eager, exact), results, strict=True)
        ]
        for (name, _), ours, theirs, right in zip(
            [("x", x), *model.named_parameters()], *found, strict=True
        ):
            assert ours.stride() == theirs.stride() and ours.dtype == theirs.dtype
            if name != "2.bias":  # what a batch norm takes away again
                assert distance(ours, right) <= 2 * distance(theirs, right) + 1e-2, name
    wide = {24: 32, 14: 16}[width]
    assert [2 * wide, wide] in groups
    assert not train or [2 * wide, 2 * wide, wide] in groups


@pytest.mark.parametrize("width, out", [(16, None), (20, None), (4, None), (24, 96)])
def test_groups_that_the_library_takes_as_they_are(width, out, groups):
    """Powers of two, groups that would grow too much or are too narrow, and those that change their width."""
    model = block(width, 2, out=out).to(torch.bfloat16).to(memory_format=torch.channels_last).eval()
    compiled = dynfix.compile(model, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            x = image(2 * width)
            assert distance(compiled(x), model(x)) < 2e-2
    assert [2 * width, width] in groups


def test_other_orders_and_types_are_left_alone(groups):
    model = block(24, 2).eval()
    for dtype in (torch.float32, torch.bfloat16):
        model = model.to(dtype)
        x = torch.randn(2, 48, 9, 8).to(dtype)
        compiled = dynfix.compile(
            lambda x, w: torch.conv2d(x, w, padding=1, groups=2), fullgraph=True
        )
        torch.testing.assert_close(
            compiled(x, model[2].weight), torch.conv2d(x, model[2].weight, padding=1, groups=2)
        )
    assert groups == [[48, 24], [48, 24]]
