"""What a value is and what is named of it: numbers that a call takes, tuples part by part, helpers
of what is compiled, values that a method of theirs shows to be tensors."""

import pytest
from dynfix.codemods.analysis.file_context import FileContext
from dynfix.codemods.cli.settings import Settings
from dynfix.rewriter.source.source_file import SourceFile

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
    "keyword_sizes": (
        "return torch.randint(low=0, high=n.max(), size=(3, n.min()))",
        ["DYN105"],
    ),
    "one_hot": ("return nn.functional.one_hot(n, n.max() + 1)", ["DYN105"]),
    "unheard_of_pad": ("return self.held.pad(n.max())", []),
    "shape_compared": ("assert list(x.shape) == [3, n.max()]\nreturn x", ["DYN105"]),
    "shape_alone": ("assert x.shape == (3, 4)\nreturn x", []),
    "mask_moved": ("m = (x > 0).unsqueeze(1).repeat(1, 2)\nreturn self.held['x'][m]", ["DYN501"]),
    "index_of_rank_0": (
        "i = torch.topk(x.view(3, 4).mean(dim=0), 2)[1]\nreturn x[:, i[0]]",
        ["DYN105"],
    ),
    "index_of_rank_1": ("i = torch.topk(x.view(3, 4), 2)[1]\nreturn x[:, i[0]]", []),
    "bound_on_one_path": (
        "if mask is not None:\n    k = n.max()\nif boxes:\n    x = x.narrow(0, 0, k)\nreturn x",
        ["DYN105"],
    ),
    "other_on_one_path": (
        "k = n.max() if boxes else 3\nreturn x.narrow(0, 0, k)",
        ["DYN105"],
    ),
    "kept_on_self": ("self.k = n.max()\nreturn x.narrow(0, 0, self.k)", ["DYN105"]),
    "of_unknown": (
        "y = self.held['x'](x)\nif y.sum() > 0:\n    x = x + 1\nreturn x",
        ["DYN201"],
    ),
    "number_where_no_tensor": (
        "k = n.max() if boxes else 3\nif isinstance(k, torch.Tensor):\n    return x\nreturn x[:k]",
        [],
    ),
    "size_asked_for_its_type": (
        "k = x.shape[0]\nif isinstance(k, torch.Tensor):\n    k = k.max()\nreturn x.topk(k)",
        [],
    ),
    "behind_a_return": ("return x\nreturn x[:n.max()]", []),
    "array_element": (
        "a = 3 // n.detach().numpy()\nif a[0] > 2:\n    x = x + 1\nreturn x",
        ["DYN104"],
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


DRAWS = {
    "x = x * random.randint(0, 3)": [],
    "k = random.randint(1, 3)\nx = x * k": [],
    "k = random.randint(1, 3)\nx = x * k\nx = x.repeat(k)": [4],
    "k = random.uniform(0, 1)\nif k > 0.5:\n    x = -x": [3],
    "k = random.randint(1, 3)\nfor _ in range(k):\n    x = -x": [3],
    "x = x * random.random()": [2],
    "k = random.randint(1, 3)\nx = step(x + k, shift=k)": [],
    "k = random.randint(1, 3)\nx = x * float(k)": [3],
    "x = x + torch.from_numpy(np.random.rand(3))": [],
    "x = x + torch.from_numpy(np.random.uniform(size=3))": [],
    "x = x * np.random.rand()": [2],
    "x = x + torch.from_numpy(np.random.beta(1, 1, size=3))": [2],
}


@pytest.mark.parametrize("body", DRAWS)
def test_where_a_drawn_number_breaks_the_graph(body):
    head = "import random\nimport numpy as np\nimport torch\n\n\n@torch.compile\n"
    rows = "".join(f"    {row}\n" for row in body.splitlines())
    text = f"{head}def step(x: torch.Tensor):\n{rows}    return x\n"
    found = support.found(text, target_torch="2.13")
    assert [f.line - 6 for f in found] == DRAWS[body]


def test_what_is_a_tensor_on_one_path_alone_gets_no_fix():
    text = f"{HEAD}        k = n.sum() if boxes else 3\n        if k > 2:\n            x = x + 1\n"
    found = support.found(f"{text}        return x\n")
    assert [f.code for f in found] == ["DYN201"]
    assert found[0].fix is None and "some paths" in found[0].kept


@pytest.mark.parametrize("method", ["item", "tolist"])
def test_what_may_be_an_array_gets_no_fix(method):
    found = support.found(f"{HEAD}        return x * self.held['x'].{method}()\n")
    assert found and not any(f.fix for f in found)


RANKS = """
x.unsqueeze(0)
x.permute(2, 0, 1)
x.permute((2, 0, 1))
x.view(6, 4)
x.view(-1)
x.view(torch.int32)
x.reshape((4, 3, 2))
x.expand(5, 2, 3, 4)
x.repeat(2, 2, 3, 4)
x.transpose(0, 1)
x.flatten()
x.flatten(1)
x.select(1, 0)
x.narrow(0, 0, 1)
x.gather(0, torch.zeros(1, 1, 1, dtype=torch.int64))
x.index_select(0, torch.zeros(1, dtype=torch.int64))
x.sum()
x.sum(1)
x.sum(1, True)
x.mean(dim=-1)
x.mean(dim=-1, keepdim=True)
x.mean((0, 1))
x.argmax(1)
x.any(dim=0)
x.max(1)[0]
x.max(dim=1, keepdim=True)[1]
x.topk(2)[1]
x.sort(dim=0)[0]
x.kthvalue(1)[0]
x.kthvalue(1, 0)[1]
x.median(0)[0]
x.std(0)
x.norm(2, 0)
x.norm()
torch.fft.rfft(x)
torch.fft.fft2(x)
torch.sum(x, 1)
torch.topk(x, 2, 1)[0]
"""


@pytest.mark.parametrize("text", RANKS.split("\n")[1:-1])
def test_ranks_are_those_of_torch(text):
    torch = pytest.importorskip("torch")
    lines = f"import torch\n\n\n@torch.compile\ndef f():\n    x = torch.zeros(2, 3, 4)\n    return {text}\n"
    context = FileContext(SourceFile(lines, "f.py"), Settings())
    (function,) = context.program.functions
    context.inference.function(function)
    kind = context.kind(function.node.body[-1].value)
    result = eval(text, {"torch": torch, "x": torch.zeros(2, 3, 4)})
    assert kind.is_tensor and kind.rank in (None, result.dim())
    category = context.inference.tokens.category(kind.dtype)
    assert category != "float" or result.is_floating_point()
    assert category != "int" or not result.is_floating_point()
