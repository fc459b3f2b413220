"""DYN110: a read moves ahead only where nothing before it may write into what is read."""

import sys

import pytest

torch = pytest.importorskip("torch")
if sys.version_info < (3, 11):
    pytest.skip("frames do not tell their place there", allow_module_level=True)

from . import support
from .test_read_ahead import STATEFUL

FLAGGED = """import copy
import torch
from torch import nn
import torch.nn.functional as F


def bump(t):
    t.add_(1)


class Writes(nn.Module):
    def forward(self, t):
        return t.add_(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Writes()

    def forward(self, x, sizes, flag=False):
        if flag:
            BODY
        return x[: sizes.max().item()]
"""
NOTHING = ("sizes = sizes + 1", "x = x * sizes.sum()", "x = F.relu(x)[: len(sizes)]")
WRITES = (
    "add = sizes.add_; add(1)",
    "torch.ops.aten.add_.Scalar(sizes, 1)",
    "list(map(bump, [sizes]))",
    "self.inner(sizes)",
    "F.threshold(sizes, 2, 5, True)",
    "box = []; box += [sizes]; box[0].add_(1)",
    "self.kept = sizes; self.kept += 1",
    "other = copy.copy(sizes); other += 1",
    "memoryview(sizes.numpy())[0] = 5",
    "torch.swapaxes(sizes.view(1, 2), 0, 1)[0] = 5",
    "self.train(bool(sizes.add_(1).sum()))",
)


def test_what_no_run_took_may_write(tmp_path, monkeypatch):
    """A read is moved by a safe fix only where no path to it, taken or not, may write."""
    names = [f"model_{i}" for i in range(len(NOTHING + WRITES))]
    for name, body in zip(names, NOTHING + WRITES, strict=True):
        (tmp_path / f"{name}.py").write_text(FLAGGED.replace("BODY", body))
    calls = [f"{n}.Model()(torch.ones(8), torch.tensor([1, 2]))" for n in names]
    script = "\n".join([f"import torch, {', '.join(names)}", *calls])
    (tmp_path / "run.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    support.command("--no-verify", "--trace", "run.py", "--select", "DYN110", ".")
    moved = [n for n in names if "read_ahead" in (tmp_path / f"{n}.py").read_text()]
    assert moved == names[: len(NOTHING)]


def test_an_input_that_the_first_operator_writes(tmp_path, monkeypatch):
    body = "list(map(torch.Tensor.neg_, sizes))\n        return x * sizes[0].sum().item()"
    (tmp_path / "model.py").write_text(STATEFUL.replace("BODY", body))
    script = "import torch\nfrom model import Model\nModel()(torch.ones(8, 4), [torch.ones(2)])\n"
    (tmp_path / "run.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    support.command("--unsafe-fixes", "--trace", "run.py", "--select", "DYN110", ".")
    assert "read_ahead" not in (tmp_path / "model.py").read_text()


NAMED = """import torch
from torch import nn


class Inner(nn.Module):
    def forward(self, x, sizes=None, **options):
        scale = options.pop("scale", 1)
        return x * scale, sizes


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x, sizes, **options):
        x, _ = self.inner(x, sizes=sizes, **options)
        return torch.split(x, sizes.tolist())
"""


def test_a_function_that_changes_its_own_options_changes_no_named_argument(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(NAMED)
    script = "import torch\nfrom model import Model\nModel()(torch.ones(3), torch.tensor([1, 2]))\n"
    (tmp_path / "run.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    flags = ("--unsafe-fixes", "--no-verify", "--trace", "run.py", "--select", "DYN110")
    support.command(*flags, ".")
    assert 'host_values["sizes_tolist"]' in (tmp_path / "model.py").read_text()
