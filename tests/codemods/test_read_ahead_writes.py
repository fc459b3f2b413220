"""DYN110: a read moves ahead only where nothing before it may write into what is read."""

import sys

import pytest

torch = pytest.importorskip("torch")
if sys.version_info < (3, 11):
    pytest.skip("frames do not tell their place there", allow_module_level=True)

from . import support
from .test_read_ahead import STATEFUL, load

pytestmark = pytest.mark.usefixtures("forked_runs")

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


MADE_NEW = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = []

    def parts(self, x, sizes):
        return [x, sizes]

    def forward(self, x, sizes, more=False):
        given = self.parts(x, sizes)
        if more:
            for part in given:
                joint = part.NEW
                joint[:1] = part
        MOVE
        return torch.split(x, sizes.tolist())
"""


@pytest.mark.parametrize(
    ("new", "move", "moved"),
    [
        ("new_zeros(2)", "pass", True),
        ("view(-1)", "pass", False),
        ("new_zeros(2)", "sizes.data = joint if more else sizes", False),
    ],
)
def test_a_tensor_made_here_shares_no_memory_with_one_given(
    new, move, moved, tmp_path, monkeypatch
):
    text = MADE_NEW.replace("NEW", new).replace("MOVE", move)
    (tmp_path / "model.py").write_text(text)
    script = "import torch\nfrom model import Model\nModel()(torch.ones(3), torch.tensor([1, 2]))\n"
    (tmp_path / "run.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    flags = ("--unsafe-fixes", "--no-verify", "--trace", "run.py", "--select", "DYN110")
    support.command(*flags, ".")
    assert ("read_ahead" in (tmp_path / "model.py").read_text()) is moved


LISTED = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def places(self, target):
        found = []
        for low in (0, 4):
            mask = target.ge(low) & target.lt(low + 4)
            if mask.any():
                found.append(target[mask].add(-low))
            else:
                found.append(None)
        return found

    def forward(self, x, target):
        x = self.fc(x)
        parts = [x[p] for p in self.places(target) if p is not None]
        return torch.cat(parts)
"""


def read_ahead_of(text, calls, tmp_path, monkeypatch):
    """(fixed, original): the Models of a text after one traced run and before it, with the same
    parameters; what is read moves."""
    (tmp_path / "model.py").write_text(text)
    (tmp_path / "parts.txt").write_text(text)
    (tmp_path / "run.py").write_text(f"import torch\nfrom model import Model\n{calls}\n")
    monkeypatch.chdir(tmp_path)
    flags = ("--unsafe-fixes", "--no-verify", "--trace", "run.py", "--select", "DYN110")
    support.command(*flags, ".")
    assert "read_ahead" in (tmp_path / "model.py").read_text()
    (tmp_path / "parts.txt").rename(tmp_path / "parts.py")
    original = load(tmp_path, monkeypatch, "parts").Model()
    fixed = load(tmp_path, monkeypatch).Model()
    fixed.load_state_dict(original.state_dict())
    torch._dynamo.reset()
    return fixed, original


def test_a_branch_that_fills_a_list_is_taken_ahead(tmp_path, monkeypatch):
    calls = "Model()(torch.randn(4, 4), torch.tensor([1, 2]))"
    fixed, original = read_ahead_of(LISTED, calls, tmp_path, monkeypatch)
    compiled = torch.compile(fixed, backend="eager", fullgraph=True)
    for target in ([1, 2], [5, 6, 1], [4], [0, 7]):
        x, target = torch.randn(4, 4), torch.tensor(target)
        torch.testing.assert_close(compiled(x, target), original(x, target))
        torch.testing.assert_close(fixed(x, target), original(x, target))


CARRIED = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, costs):
        best = costs.new_zeros(costs.shape[0])
        for t in range(1, costs.shape[0]):
            least = best[t - 1] + costs[t]
            if t > 2:
                least = least - last
            last = costs[t - 1] * 2
            best[t] = least
        chosen = []
        t = 0
        while t < costs.shape[0] - 1:
            if best[t] < best[t + 1]:
                chosen.append(t)
            t += 1
        return self.fc(x) * (1 + len(chosen))
"""


def test_what_an_earlier_turn_left_is_computed_ahead(tmp_path, monkeypatch):
    calls = "Model()(torch.randn(4), torch.tensor([1.0, 2.0, 0.0, 3.0]))"
    fixed, original = read_ahead_of(CARRIED, calls, tmp_path, monkeypatch)
    compiled = torch.compile(fixed, backend="eager", fullgraph=True)
    for costs in ([1.0, 2.0, 0.0, 3.0], [3.0, -1.0, 2.0, -4.0], [0.0, 1.0, 2.0, 3.0, 9.0]):
        x, costs = torch.randn(4), torch.tensor(costs)
        torch.testing.assert_close(compiled(x, costs), original(x, costs))
