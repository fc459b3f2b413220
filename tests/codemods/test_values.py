"""What a value is and what is named of it: numbers that a call takes, tuples part by part, helpers
of what is compiled, values that a method of theirs shows to be tensors."""

import pytest

from . import support

HEAD = """import numpy as np
import torch
from torch import nn
from torch.nn.utils import rnn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.narrow = nn.Linear(2, 2)
        self.held = {}

    def roll(self, x):
        return x

    def forward(self, x: torch.Tensor, n: torch.Tensor, mask: torch.Tensor, boxes=None):
"""
HELPERS = """

def helper(x, scale=None):
    if scale is not None and scale.sum() > 0:
        x = x + 1
    return x


def helper2(b):
    if b.sum() > 0:
        b = b + 1
    return b
"""
BODIES = {
    "narrow": ("return x.narrow(1, n.max(), 2)", ["DYN105"]),
    "topk_keyword": ("return torch.topk(x, k=n.max())", ["DYN105"]),
    "roll": ("return torch.roll(x, n.sum(), 0)", ["DYN105"]),
    "randint": ("return torch.randint(0, n.max(), (3,))", ["DYN105"]),
    "item_of_list": ("rows = [x, x + 1]\nreturn rows[n.argmax()]", ["DYN105"]),
    "own_roll": ("return self.roll(n.sum())", []),
    "own_narrow": ("return self.narrow(n)", []),
    "np_unique": ("a = x.detach().numpy()\nreturn np.unique(a)", ["DYN104"]),
    "np_where": ("a = x.detach().numpy()\nreturn np.where(a > 0)", ["DYN104"]),
    "grad": ("return torch.autograd.grad(x.sum(), n)", ["DYN601"]),
    "pad_packed": ("return rnn.pad_packed_sequence(self.held['x'])", ["DYN601"]),
    "sparse": ("return torch.sparse_coo_tensor(n, x, (3, 3))", ["DYN601"]),
    "requires_grad": ("y = x + 1\ny.requires_grad = False\nreturn y", ["DYN907"]),
    "module_requires": ("self.narrow.requires_grad = False\nreturn x", []),
    "mask_of_unknown": ("chosen = x > 0\nreturn self.held['x'][chosen]", ["DYN501"]),
    "parts": (
        "a, b = x.sum(), 3\nif b > 2:\n    x = x + 1\npair = (x.sum(), 3)\nm, k = pair\nif k > 2:\n    x = x + 1\nreturn x",
        [],
    ),
    "parts2": ("pair = (x.sum(), 3)\nm, k = pair\nif m > 2:\n    x = x + 1\nreturn x", ["DYN201"]),
    "part_at": ("pair = (x.sum(), 3)\nif pair[0] > 2:\n    x = x + 1\nreturn x", ["DYN201"]),
    "max_values": (
        "best = x.max(dim=0)\nif best.values[0] > 2:\n    x = x + 1\nreturn x",
        ["DYN201"],
    ),
    "item_unknown": ("y = self.held['x']\nreturn x * y.item()", ["DYN101"]),
    "tolist_unknown": (
        "y = self.held['x']\nfor i in y.tolist():\n    x = x + i\nreturn x",
        ["DYN103"],
    ),
    "shown": (
        "y = self.held['x'].masked_fill(mask, 0)\nif y.sum() > 0:\n    x = x + 1\nreturn x",
        ["DYN201"],
    ),
    "helper_none": ("return helper(x)", []),
    "helper_given": ("return helper(x, n)", ["DYN201"]),
    "helper_unknown": ("return helper2(boxes * 2)", ["DYN201"]),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_is_named(name):
    body, want = BODIES[name]
    rows = "".join(f"        {row}\n" for row in body.splitlines())
    helpers = HELPERS if "helper" in body else ""
    assert sorted(set(support.codes(HEAD + rows + helpers))) == want


@pytest.mark.parametrize("method", ["item", "tolist"])
def test_what_may_be_an_array_gets_no_fix(method):
    found = support.found(f"{HEAD}        return x * self.held['x'].{method}()\n")
    assert found and not any(f.fix for f in found)
