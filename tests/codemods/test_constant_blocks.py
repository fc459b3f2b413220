"""What DYN604, DYN605 and DYN507 write, run: in eager as before, compiled one graph, at several
sizes."""

import importlib.util
import random

import pytest
import torch
from dynfix.codemods.rules import BY_CODE

from . import support

MASKED = """
import torch
from torch import nn


class Loss(nn.Module):
    def forward(self, x: torch.Tensor):
        margin = torch.relu(1 - x)
        keep = torch.ones(x.shape) - torch.eye(x.shape[0])
        index = torch.nonzero(keep.flatten()).flatten()
        index += 0
        return margin.flatten().index_select(0, index).mean(), index
"""
ANCHORS = """
import numpy as np
import torch
from torch import nn


def corners(size, ratios):
    return np.tile(np.asarray(ratios), (size, 1)) * size


class Anchors(nn.Module):
    def __init__(self):
        super().__init__()
        self.levels = [1, 2]
        self.ratios = np.array([0.5, 1.0])

    def forward(self, image):
        shape = np.array(image.shape[2:])
        found = np.zeros((0, 2))
        for level in self.levels:
            sizes = (shape + 2**level - 1) // 2**level
            found = np.append(found, corners(sizes[0], self.ratios), axis=0)
        return torch.from_numpy(found.astype(np.float32))
"""
KEPT = """
import numpy as np
import torch
from torch import nn


def kernel(size, channels):
    return torch.tensor(np.tile(np.hanning(size), (channels, 1)))


class Blur(nn.Module):
    def __init__(self, size=5):
        super().__init__()
        self.size, self.kernel = size, None

    def forward(self, x):
        if self.kernel is None or self.kernel.shape[0] != x.shape[1]:
            self.kernel = kernel(5, x.shape[1])
        return x.sum() * self.kernel
"""


def loaded(text, path):
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pair(text, name, tmp_path, unsafe):
    """The class before and after."""
    fixed = support.fixed(text, unsafe=unsafe).source.text
    assert fixed != text
    return [
        getattr(loaded(t, tmp_path / f"{n}.py"), name)
        for n, t in (("before", text), ("after", fixed))
    ]


@pytest.mark.parametrize(
    ("text", "name", "unsafe", "shapes"),
    [
        (MASKED, "Loss", False, [(3, 3), (5, 5), (6, 6)]),
        (ANCHORS, "Anchors", True, [(1, 3, 8, 8), (2, 3, 20, 16), (2, 3, 12, 12)]),
        (KEPT, "Blur", True, [(1, 2, 3), (1, 4, 3), (1, 5, 3)]),
    ],
    ids=["off-diagonal", "anchors", "kept"],
)
@pytest.mark.parametrize("dynamic", [None, True])
def test_one_graph_at_every_size(text, name, unsafe, shapes, dynamic, tmp_path):
    before, after = pair(text, name, tmp_path, unsafe)
    torch._dynamo.reset()
    compiled = torch.compile(after(), backend="eager", fullgraph=True, dynamic=dynamic)
    for shape in shapes:
        x = torch.randn(shape)
        for made in (after(), compiled, compiled):
            torch.testing.assert_close(made(x), before()(x), rtol=0, atol=0)


def test_rolls_draw_the_same_numbers(tmp_path):
    rule = BY_CODE["DYN507"]
    before, after = (
        loaded(t, tmp_path / f"{n}.py") for n, t in (("before", rule.before), ("after", rule.after))
    )
    x = torch.randn(2, 3, 5, requires_grad=True)
    torch._dynamo.reset()
    for seed in range(8):
        seen = []
        for jitter in (
            torch._dynamo.disable(before.jitter),
            torch._dynamo.disable(after.jitter),
            after.jitter,
        ):
            random.seed(seed)
            out = jitter(x)
            (grad,) = torch.autograd.grad((out * torch.arange(5)).sum(), x)
            seen.append((out, grad, random.random()))
        torch.testing.assert_close(seen[1:], [seen[0]] * 2, rtol=0, atol=0)
