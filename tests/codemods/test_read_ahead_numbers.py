"""DYN110 on tensors that stand where a Python int is meant: bounds of slices, and sizes."""

import sys

import pytest

torch = pytest.importorskip("torch")
if sys.version_info < (3, 11):
    pytest.skip("frames do not tell their place there", allow_module_level=True)

from dynfix.codemods.cli.side_by_side import count_breaks

from . import support
from .test_read_ahead import load, models

pytestmark = pytest.mark.usefixtures("forked_runs")

MODEL = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, lengths, shapes):
        x = self.fc(x)
BODY        return total
"""
SCRIPT = """import torch
from model import Model
Model()(torch.randn(2, 6, 4), torch.tensor([2, 4]), torch.tensor([[2, 2], [4, 1]]))
"""
CALLS = [
    (torch.randn(2, 6, 4), torch.tensor([2, 4]), torch.tensor([[2, 2], [4, 1]])),
    (torch.randn(2, 6, 4), torch.tensor([3, 6]), torch.tensor([[4, 1], [1, 4]])),
    (torch.randn(3, 8, 4), torch.tensor([8, 1, 5]), torch.tensor([[2, 4], [2, 2], [8, 3]])),
]
PADDED = "total = x[:, : lengths.max()].sum()\n"
UNPACKED = "h, w = shapes[0]\ntotal = x.reshape(-1, h, w).square().mean()\n"
IN_LOOP = """total = 0
for i in range(x.size(0)):
    part = x[i][: lengths[i], :]
    a, b = shapes[i]
    total = total + part[:1].expand(a, 4).sum() * 2 + x.new_zeros(b, a).sum()
"""
FACTORY = (
    "n = lengths.min()\ntotal = (torch.ones(n, 4) * x[0, n - 1 :][:1]).sum() + x[:, ::"
    " lengths.min()].sum()\n"
)
TESTED = """n = lengths.max() + 1
total = x.sum() * 0
if self.training and n > 2:
    total = x.new_zeros(int(n)).sum() + int(n)
elif n.any():
    total = total + lengths.min().item()
"""


def project(tmp_path, monkeypatch, body, methods=""):
    """(the model before, the model after)."""
    text = (
        MODEL.replace("BODY", "".join(f"        {line}\n" for line in body.splitlines())) + methods
    )
    (tmp_path / "model.py").write_text(text)
    (tmp_path / "run.py").write_text(SCRIPT)
    old = load(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    support.command("--unsafe-fixes", "--trace", "run.py", "--select", "DYN110", ".")
    return models(old, load(tmp_path, monkeypatch))


def outcome(model, args):
    try:
        return model(*args)
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize(
    "body",
    support.few([IN_LOOP, TESTED, PADDED, UNPACKED, FACTORY], 2),
    ids=["loop", "tested", "bound", "unpacked", "factory"],
)
def test_one_graph_and_equal(tmp_path, monkeypatch, body):
    old, new = project(tmp_path, monkeypatch, body)
    assert count_breaks(old, CALLS[0]) > 0
    assert count_breaks(new, CALLS[0]) == 0
    assert "DYN105" not in support.codes((tmp_path / "model.py").read_text())
    torch._dynamo.reset()
    compiled = torch.compile(new, backend="eager", fullgraph=True)
    for args in CALLS:
        want = old(*args)
        assert torch.equal(new(*args), want)
        torch.testing.assert_close(compiled(*args), want)


@pytest.mark.parametrize("body", support.few([IN_LOOP, PADDED, UNPACKED], 1))
def test_the_same_exceptions(tmp_path, monkeypatch, body):
    old, new = project(tmp_path, monkeypatch, body)
    short = CALLS[0][0], torch.tensor([], dtype=torch.long), torch.tensor([[7, 5, 3]])
    assert outcome(new, short) == outcome(old, short)


@pytest.mark.parametrize(
    "body",
    [
        "a, b = shapes[0]\ntotal = x.reshape(-1, a).sum() * a / b\n",  # a tensor elsewhere
        # given twice
        "a, b = shapes[0]\nif x.size(0) > 2:\n    a = 4\ntotal = x.reshape(-1, a).sum() + b\n",
        "total = 0\nfor row in shapes:\n    total = total + x[: row[0]].sum() + row\n",
    ],
)
def test_what_is_a_tensor_elsewhere_stays_one(tmp_path, monkeypatch, body):
    old, new = project(tmp_path, monkeypatch, body)
    for args in CALLS:
        got, want = outcome(new, args), outcome(old, args)
        assert (
            torch.equal(got, want) and got.dtype == want.dtype
            if torch.is_tensor(want)
            else got == want
        )


def test_of_activations(tmp_path, monkeypatch):
    """Of what the model computes, nothing is read ahead."""
    old, new = project(tmp_path, monkeypatch, "n = (x > 0).sum()\ntotal = x.flatten()[:n].sum()\n")
    assert not hasattr(type(new), "_forward_host_values")
    assert torch.equal(new(*CALLS[0]), old(*CALLS[0]))


WRITTEN = [
    "buf = torch.zeros(2, dtype=torch.long)\na, b = buf\na.add_(lengths.max())\nn = buf[0]\n",
    "n = lengths.min()\nm = n\nm += 1\n",
    "n = lengths.max() - 2\nfor t in [n]:\n    t += 2\n",
    "n = lengths.min()\n\ndef bump():\n    n.add_(1)\n\nbump()\n",
    "n = lengths.min()\n[t.add_(1) for t in (n,)]\n",
    "n = lengths.min() - 9\nnn.functional.relu(n, inplace=True)\n",
    "n = lengths.min()\nnn.init.constant_(n, 3)\n",
    "ns = [lengths.min()]\nms = ns\nms[0] = lengths.max()\nn = ns[0]\n",
    "n = torch.zeros((), dtype=torch.long)\ntorch.sum(lengths, 0, out=n)\n",
    "n = torch.zeros(2, dtype=torch.long)\nself.count(lengths, n)\nn = n[0]\n",
    "n = torch.zeros(2, dtype=torch.long)\nv = n[1:]\nv.add_(x.argmax())\nn = n[1]\n",
    # written where the traced call, of two rows, did not come by
    "n = lengths[0]\nif x.size(0) > 2:\n    lengths.clamp_(max=2)\n",
    "n = lengths[0]\nif x.size(0) > 2:\n    torch.clamp_(lengths, max=2)\n",
    "n = lengths[0]\nif x.size(0) > 2:\n    torch.clamp(lengths, max=2, out=lengths)\n",
    "v = lengths.view(-1)\nif x.size(0) > 2:\n    v.clamp_(max=2)\nn = lengths.max()\n",
    "if x.size(0) > 2:\n    self.count(lengths, lengths)\nn = lengths.max()\n",
    "n = torch.as_tensor(lengths[0])\nif x.size(0) > 2:\n    n += 1\n",
    "n = torch.as_tensor(lengths[0])\nif lengths.size(0) > 2:\n    n += 1\nn = n.max()\n",
    "if lengths.size(0) > 2:\n    self.clip(lengths)\nn = lengths.max()\n",
]
HELPER = """
    def count(self, given, into):
        into.add_(given)

    def clip(self, given):
        given.clamp_(max=2)
"""


@pytest.mark.parametrize("body", support.few(WRITTEN, 6))
def test_what_is_written_by_another_name(tmp_path, monkeypatch, body):
    """The number is what it is where it is read, and nothing is written twice."""
    old, new = project(
        tmp_path, monkeypatch, body + "total = x[:, :n].sum() + lengths.sum()\n", HELPER
    )
    for args in CALLS:
        results = [outcome(model, (args[0], args[1].clone(), args[2])) for model in (old, new)]
        assert torch.equal(*results) if torch.is_tensor(results[0]) else results[0] == results[1]


ODD = [
    (
        "total = 0\nfor i in range(len(lengths) - 1):\n    total = total + x[0][lengths[i] :"
        " lengths[i + 1]].sum()\n"
    ),
    "total = sum([x[0][lengths[i] : lengths[i + 1]].sum() for i in range(len(lengths) - 1)])\n",
    "y = x[:, : (m := lengths).max()]\ntotal = y.sum() + m.sum()\n",
    "y = x.new_zeros(lengths[(k := 0)], 2)\ntotal = y.sum() + k + x.sum()\n",
    "h, w = shapes[0]\ntotal = x.reshape(-1, h, w).sum() + self.view(h, w)\n",
]
METHOD = "\n    def view(self, h, w):\n        return torch.stack([h, w]).float().mean()\n"


@pytest.mark.parametrize(
    "body",
    support.few(ODD, 2),
    ids=["ragged", "comprehension", "walrus", "inner-walrus", "own-view"],
)
def test_forms_that_are_more_than_numbers(tmp_path, monkeypatch, body):
    old, new = project(tmp_path, monkeypatch, body, METHOD)
    for args in CALLS:
        got, want = outcome(new, args), outcome(old, args)
        assert torch.equal(got, want) if torch.is_tensor(want) else got == want


def test_what_is_no_index_is_refused_as_before(tmp_path, monkeypatch):
    old, new = project(tmp_path, monkeypatch, PADDED)
    args = CALLS[0][0], torch.tensor([2.5, 3.5]), CALLS[0][2]
    assert outcome(new, args) == outcome(old, args) == "TypeError"


def test_a_method_of_a_class_below(tmp_path, monkeypatch):
    """What a helper does in a class that the run did not see is done once, in its place."""
    helper = "\n    def limit(self, lengths):\n        return lengths.max()\n"
    old, new = project(tmp_path, monkeypatch, "total = x[:, : self.limit(lengths)].sum()\n", helper)
    assert hasattr(type(new), "_forward_host_values")
    calls = []
    for model in (old, new):

        class Below(type(model)):
            def limit(self, lengths):
                calls.append(len(lengths))
                return lengths.min()

        model.__class__ = Below
        assert model(*CALLS[0]).isfinite()
    assert calls == [2, 2]


def test_what_a_module_of_another_file_writes(tmp_path, monkeypatch):
    (tmp_path / "parts.py").write_text(
        "from torch import nn\n\n\nclass Raised(nn.Module):\n    def forward(self, given):\n       "
        " given.add_(1)\n"
    )
    body = "n = lengths.min() + 0\nself.raised(n)\ntotal = x[:, :n].sum()\n"
    monkeypatch.setitem(
        globals(),
        "MODEL",
        MODEL.replace("from torch import nn\n", "from torch import nn\nimport parts\n").replace(
            "nn.Linear(4, 4)\n", "nn.Linear(4, 4)\n        self.raised = parts.Raised()\n"
        ),
    )
    old, new = project(tmp_path, monkeypatch, body)
    for args in CALLS:
        assert torch.equal(new(*args), old(*args))
