"""Unsafe fixes on inputs for which they hold: the same numbers in eager, and no graph break
left."""

import pytest

torch = pytest.importorskip("torch")

from dynfix.codemods.cli import side_by_side

from . import support

HEAD = """import math
import time
import numpy as np
import torch
from torch import nn
from torch.autograd import Variable


class Config(dict):
    __getattr__ = dict.__getitem__


def window(size):
    grid = np.exp(-(np.mgrid[0:size] ** 2) / 2)
    return torch.from_numpy(np.float32(grid / grid.sum()))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Linear(4, 4)
        self.rnn = {rnn}
        self.gain = np.sqrt(2.0)
        self.config = Config(scale=2.0)

    def forward(self, x: torch.Tensor):
        y = self.h(x)
"""
MAKE = """

def make():
    model = Model()
    return model, (torch.randn(3, 4) * {scale},)
"""
CASES = {
    "DYN101": (
        "n = max(1, (y > 0).sum().item())\nreturn y / n + min(y.mean().item(), y.sum().item())"
    ),
    "DYN102": "return y + float(y.float().sum())",
    "DYN103": "return y.sum(torch.arange(0, y.dim()).tolist())",
    "DYN201 elif": (
        "t = y.sum()\nif t > 1:\n    y = y / 2\nelif t < -1:\n    y = y.exp()\nelse:\n    y = y *"
        " y\nreturn y"
    ),
    "DYN201 ranks": (
        "t = y.sum()\nif t > 0:\n    a = torch.Tensor([1]).float()\nelse:\n    a = 2 / t\nreturn"
        " a + y"
    ),
    "DYN203": "m = y.mean()\nif -0.5 < m < 0.5:\n    y = y + 1\nreturn y",
    "DYN204": "y = y.detach()\nwhile y.abs().sum() > 1:\n    y = y / 2\nreturn y",
    "DYN206": "assert (y < 100).all(), f'{y.max()}'\nassert y.max().item() < 100\nreturn y",
    "DYN207": "return y + max(y.mean(), y.sum()) * min(y.max(), 0.5)",
    "DYN208": "if torch.isnan(y).any():\n    raise ValueError('NaN')\nreturn y",
    "DYN209": "torch._check_tensor_all(y < 100, lambda: f'{y}')\nreturn y",
    "DYN501 sum": (
        "kept = torch.masked_select(y, y > 0)\nreturn -torch.sum(kept) + y[y > 0.5].sum()"
    ),
    "DYN501 mean": "big = y > y.mean()\nreturn ((y[big] - 1) ** 2).mean()",
    "DYN504": "y = y.clone()\ny[y > 0.5] = torch.pow(y[y > 0.5], 0.5) * 2\ny[y < 0] -= 1\nreturn y",
    "DYN505": "x.unsqueeze_(0)\nreturn self.h(x)",
    "DYN602": "if self.gain > 1:\n    y = y * self.gain\nreturn y * float(np.sqrt(0.5))",
    "DYN603": (
        "low = float(np.finfo(torch.tensor(0, dtype=y.dtype).numpy().dtype).min)\nreturn"
        " y.masked_fill(y > 0, low)"
    ),
    "DYN604": "return y * window(4)",
    "DYN703": "time.sleep(0)\nreturn y",
    "DYN905": "return y + Variable(x) + Variable(torch.ones(4) * 2)",
    "DYN906": "return self.rnn(y)[0]",
}


def source(case, scale=1.0):
    body = "".join(f"        {line}\n" for line in CASES[case].splitlines())
    rnn = "nn.LSTM(4, 4)" if case == "DYN906" else "nn.Identity()"
    return HEAD.format(rnn=rnn) + body + MAKE.format(scale=scale)


def numbers(behaviour):
    """Results and gradients, Python numbers as tensors."""
    values = [v if isinstance(v, torch.Tensor) else torch.tensor(v) for v in behaviour.values]
    return values, {n: g for n, g in behaviour.gradients.items() if g is not None}


@pytest.fixture
def default_options():
    """What the fixed code sets for the process is put back."""
    config = torch._dynamo.config
    before = config.allow_rnn
    yield
    config.allow_rnn = before


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("default_options")
def test_the_same_numbers(case):
    applied = set()
    for scale in (0.1, 1.0, 3.0):
        text = source(case, scale)
        result = support.fixed(text, unsafe=True)
        applied |= {f.code for f in result.applied}
        before = side_by_side.load_text(text, "case.py", "original").make
        after = side_by_side.load_text(result.source.text, "case.py", "fixed").make
        for seed in range(3):
            first, second = side_by_side.observe(before, seed), side_by_side.observe(after, seed)
            assert first.error == second.error == ""
            assert first.text == second.text
            torch.testing.assert_close(numbers(first), numbers(second), equal_nan=True)
    assert case.split()[0] in applied


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("default_options")
def test_no_break_is_left(case):
    text = source(case)
    fixed = support.fixed(text, unsafe=True).source.text
    function, inputs = side_by_side.load_text(fixed, "case.py", "fixed").make()
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend="eager", fullgraph=True)(*inputs)
    function, inputs = side_by_side.load_text(fixed, "case.py", "fixed").make()
    with torch.no_grad():
        assert side_by_side.count_breaks(function, inputs) == 0
