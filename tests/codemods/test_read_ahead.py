"""DYN110 end to end: a traced run, the fixed project, equal results and no graph break."""

import importlib
import sys

import pytest

torch = pytest.importorskip("torch")
if sys.version_info < (3, 11):
    pytest.skip("frames do not tell their place there", allow_module_level=True)

from . import support

pytestmark = pytest.mark.usefixtures("forked_runs")

PARTS = """import torch
from torch import nn


def as_list(sizes, options):
    known = options.pop("known", None)
    return sizes.tolist() if known is None else known
"""
MODEL = """import torch
from torch import nn
from parts import as_list


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, flag=None, **kwargs):
        lengths = kwargs["lengths"] * 1
        return torch.stack([p.mean(0) for p in torch.split(self.linear(x), lengths.tolist())])


class Other(Inner):
    def forward(self, x, lengths):
        return super().forward(x, lengths=lengths)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x, lengths):
        return self.inner(x, lengths=lengths)


class Model(nn.Module):
    step = 2

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.other = Other()
        self.calls = None

    def forward(self, x, sizes, mask=None, **options):
        if x.dim() != 2:
            raise ValueError("two dimensions")
        lengths = sizes * 1
        total = 0
        for layer in self.layers:
            total = total + layer(x, lengths)
        if mask is not None:
            total = total * sizes[mask].sum()
        for i in range(len(sizes)):
            total = total + sizes[i].item() * self.step
        rows = []
        for size in sizes:
            rows.append(torch.arange(size) * 2)
        counts = as_list(sizes, options)
        picked = self.picked(x, sizes)
        return total + self.other(x, sizes) + sum(counts) + torch.cat(rows).sum() + picked.sum()

    def picked(self, x, sizes):
        h = x.relu()
        return h[torch.arange(sizes.min())] * 2
"""
SCRIPT = """import torch
from model import Model
Model()(torch.randn(6, 4), torch.tensor([2, 4]), torch.tensor([True, False]))
"""
CALLS = [
    (torch.arange(24.0).view(6, 4) % 5, torch.tensor([2, 4]), torch.tensor([True, False])),
    (torch.arange(28.0).view(7, 4) % 3, torch.tensor([3, 4]), None),
    (torch.arange(36.0).view(9, 4) % 7, torch.tensor([3, 6]), torch.tensor([True, True])),
]


def load(folder, monkeypatch, name="model"):
    """The module, afresh, from `folder`."""
    for known in ("model", "parts"):
        sys.modules.pop(known, None)
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    module = importlib.import_module(name)
    monkeypatch.undo()
    return module


@pytest.fixture(scope="module")
def fixed(tmp_path_factory):
    """(the module before, the module after, the folder)."""
    made, tmp_path, monkeypatch = {}, tmp_path_factory.mktemp("project"), pytest.MonkeyPatch()
    for folder in ("before", "after"):
        (tmp_path / folder).mkdir()
        for name, text in (("model.py", MODEL), ("parts.py", PARTS), ("run.py", SCRIPT)):
            (tmp_path / folder / name).write_text(text)
        if folder == "after":
            monkeypatch.chdir(tmp_path / folder)
            support.command("--unsafe-fixes", "--trace", "run.py", "--ignore", "DYN506", ".")
            monkeypatch.undo()
        made[folder] = load(tmp_path / folder, monkeypatch)
    return made["before"], made["after"], tmp_path / "after"


def models(before, after):
    found = []
    for module in (before, after):
        torch.manual_seed(0)
        found.append(module.Model())
    return found


def breaks(model, args):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    explained = torch._dynamo.explain(model)(*args)
    return max(
        explained.graph_break_count, sum(torch._dynamo.utils.counters["graph_break"].values())
    )


def test_one_graph_and_equal(fixed):
    """No break under the default settings, `fullgraph=True` works, eager and compiled results are
    those of before."""
    old, new = models(*fixed[:2])
    assert breaks(old, CALLS[0]) > 0
    assert breaks(new, CALLS[0]) == 0
    torch._dynamo.reset()
    compiled = torch.compile(new, backend="eager", fullgraph=True)
    for args in CALLS:
        want = old(*args)
        assert torch.equal(new(*args), want)
        assert torch.equal(compiled(*args), want)


def test_gradients(fixed):
    old, new = models(*fixed[:2])
    for model in (old, new):
        model(*CALLS[0]).square().sum().backward()
    for a, b in zip(old.parameters(), new.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


def flipped(module, args, kwargs):
    """A forward pre-hook: the lengths in another order, to a layer or what is within one."""
    if type(module).__name__ == "Layer":
        return (args[0], args[1].flip(0)), kwargs
    return args, {**kwargs, "lengths": kwargs["lengths"].flip(0)}


@pytest.mark.parametrize("where", ["layers.1", "layers.1.inner", "everywhere"])
def test_a_hook_that_changes_inputs(fixed, where):
    """What is computed ahead of the hook is not what the module reads."""
    results = []
    for model in models(*fixed[:2]):
        if where == "everywhere":
            handle = torch.nn.modules.module.register_module_forward_pre_hook(
                lambda m, a: flipped(m, a, {})[0] if type(m).__name__ == "Layer" else None
            )
        else:
            handle = model.get_submodule(where).register_forward_pre_hook(flipped, with_kwargs=True)
        hooked = model(*CALLS[0])
        handle.remove()
        results.append((hooked, model(*CALLS[0])))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert not torch.equal(results[0][0], results[0][1])


def test_inside_another_graph(fixed):
    """Where another module is compiled around it, it breaks no more than before."""

    class Around(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, *args):
            return self.inner(*args) * 2

    old, new = models(*fixed[:2])
    assert breaks(Around(new), CALLS[0]) <= breaks(Around(old), CALLS[0])
    assert torch.equal(Around(new)(*CALLS[0]), Around(old)(*CALLS[0]))


@pytest.mark.parametrize(
    "args",
    [
        (torch.ones(6, 4), torch.tensor([2, 5])),
        (torch.ones(6), torch.tensor([6])),
        (torch.ones(6, 4), None),
        (torch.ones(6, 4), torch.tensor([2, 4]), torch.tensor([True])),
    ],
)
def test_the_same_exceptions(fixed, args):
    raised = []
    for model in models(*fixed[:2]):
        with pytest.raises(Exception) as caught:
            model(*args)
        raised.append((caught.type, str(caught.value)))
    assert raised[0] == raised[1]


def test_options_are_not_guessed(fixed):
    """What comes by `**options` goes through functions that a companion does not follow: then
    nothing is computed ahead."""
    old, new = models(*fixed[:2])
    args = CALLS[0]
    assert torch.equal(new(*args, known=[100, 1]), old(*args, known=[100, 1]))


def test_overriding_methods_take_the_values(fixed):
    """A class below hands nothing on, and is called as before."""
    other = fixed[1].Other()
    assert (
        "host_values"
        in (fixed[2] / "model.py").read_text().split("class Other")[1].split("class Layer")[0]
    )
    assert other(torch.ones(6, 4), torch.tensor([2, 4])).shape == (2, 4)


def test_a_second_run_changes_nothing(fixed, monkeypatch):
    folder = fixed[2]
    texts = [(folder / n).read_text() for n in ("model.py", "parts.py")]
    monkeypatch.chdir(folder)
    support.command("--unsafe-fixes", "--trace", "run.py", "--ignore", "DYN506", ".")
    assert texts == [(folder / n).read_text() for n in ("model.py", "parts.py")]


WRITES = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.offset = 1

    def forward(self, x, sizes):
        CHANGE
        return self.linear(x)[: sizes.sum().item()]
"""


@pytest.mark.parametrize(
    "change",
    [
        "sizes.add_(1)",
        "sizes.view(-1).add_(1)",
        "self.linear(x).relu_(); same = sizes.view(-1); same += 1",
        "sizes = sizes + torch.randint(0, 3, (2,))",
        "sizes = (sizes * self.linear(x).abs().sum()).long().clamp(max=3)",
        "sizes = sizes + 1 if self.linear(x).sum() > 0 else sizes",
        "for _ in self.linear(x): sizes = sizes * 1",
    ],
)
def test_what_changes_is_not_computed_ahead(tmp_path, monkeypatch, change):
    """Writes to the inputs by any name, random numbers and parameters before the read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(WRITES.replace("CHANGE", change))
    script = (
        "import torch\nfrom model import Model\nModel()(torch.ones(6, 4), torch.tensor([1, 2]))\n"
    )
    (tmp_path / "run.py").write_text(script)
    support.command("--unsafe-fixes", "--trace", "run.py", "--select", "DYN110", ".")
    assert (tmp_path / "model.py").read_text() == WRITES.replace("CHANGE", change)


def test_a_change_under_a_condition_that_stays(tmp_path, monkeypatch):
    """An assignment under a test of activations is not made ahead without its test."""
    change = "if self.linear(x).sum() > 0:\n            sizes = sizes * 1"
    test_what_changes_is_not_computed_ahead(tmp_path, monkeypatch, change)


PACKED = """import torch
from torch import nn


def grid(size, scale):
    return tuple(s * scale for s in size.tolist())


def unpad(feature, size):
    if not isinstance(size, list):
        size = size.tolist()
    return feature[: size[0]]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, features, sizes):
        out = []
        for i, feature in enumerate(features):
            feature = self.linear(feature)
            if feature.shape[0] > 1:
                height, width = grid(sizes[i], 2)
                out.append(unpad(feature, sizes[i]).sum() * height - width)
        return torch.stack(out)
"""


def test_one_element_at_every_turn(tmp_path, monkeypatch):
    """What reads one element of an input at every turn of a loop over activations is computed for
    all of them."""
    (tmp_path / "model.py").write_text(PACKED)
    script = (
        "import torch\nfrom model import Model\nModel()(torch.ones(2, 6, 4), torch.tensor([[1, 2],"
        " [3, 1]]))\n"
    )
    (tmp_path / "run.py").write_text(script)
    old = load(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    support.command("--unsafe-fixes", "--trace", "run.py", "--select", "DYN110", ".")
    new = load(tmp_path, monkeypatch)
    old, new = models(old, new)
    assert breaks(new, (torch.ones(2, 6, 4), torch.tensor([[1, 2], [3, 1]]))) == 0
    for args in (
        (torch.rand(2, 6, 4), torch.tensor([[4, 2], [3, 1]])),
        (torch.rand(1, 5, 4), torch.tensor([[2, 9]])),
    ):
        assert torch.equal(old(*args), new(*args))


MASKED = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, mask):
        h = self.linear(x)
        valid = mask > 0
        return h[valid].sum(0) + h[:, valid[0]].sum() + h[0][valid[0], :2].sum()
"""


def test_masks_over_activations(tmp_path, monkeypatch):
    """A bool index that depends on inputs alone becomes the indices of its elements."""
    (tmp_path / "model.py").write_text(MASKED)
    args = (torch.ones(2, 3, 4), torch.tensor([[1, 0, 1], [0, 0, 1]]))
    script = (
        "import torch\nfrom model import Model\nModel()(torch.ones(2, 3, 4), torch.tensor([[1, 0,"
        " 1], [0, 0, 1]]))\n"
    )
    (tmp_path / "run.py").write_text(script)
    old = load(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    support.command("--unsafe-fixes", "--trace", "run.py", "--select", "DYN110", ".")
    old, new = models(old, load(tmp_path, monkeypatch))
    assert breaks(new, args) == 0
    for mask in ([[1, 1, 1], [0, 1, 0]], [[0, 0, 0], [0, 0, 0]]):
        x = torch.rand(2, 3, 4)
        for model in (old, new):
            model.zero_grad()
            model(x, torch.tensor(mask)).sum().backward()
        assert torch.equal(old(x, torch.tensor(mask)), new(x, torch.tensor(mask)))
        assert torch.equal(old.linear.weight.grad, new.linear.weight.grad)


def test_a_suppressed_read_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = WRITES.replace("CHANGE", "pass").replace(".item()]", ".item()]  # noqa: DYN110")
    (tmp_path / "model.py").write_text(text)
    script = (
        "import torch\nfrom model import Model\nModel()(torch.ones(6, 4), torch.tensor([1, 2]))\n"
    )
    (tmp_path / "run.py").write_text(script)
    support.command("--unsafe-fixes", "--trace", "run.py", "--select", "DYN110", ".")
    assert (tmp_path / "model.py").read_text() == text


STATEFUL = """import torch
from torch import nn

COUNT = {"n": 0}


def tick():
    COUNT["n"] += 1


def grow(items, more):
    items.append(more)


class Layer(nn.Module):
    def forward(self, x, sizes):
        rows = sizes.tolist()
        rows.append(1)
        return x * len(rows)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.norm = nn.BatchNorm1d(4)
        self.history, self.state, self.i = [], {}, 0

    def bump(self):
        self.i += 1

    def forward(self, x, sizes, flag=False):
        BODY
"""
BODIES = [
    "n = sizes\nif self.linear(x).sum() > 100: n = sizes * 2\nreturn x[: n.sum().item()]",
    (
        "for c in (sizes * 2, sizes * 3):\n    if c.dim() == self.i + 1: break\nn = c\nreturn x[:"
        " n.sum().item()]"
    ),
    "for i in range(3):\n    if i == 2: continue\n    n = sizes + i\nreturn x[: n.sum().item()]",
    "n = sizes\nfor i in range(2): m = sizes\nelse: n = sizes * 2\nreturn x[: n.sum().item()]",
    "n = sizes\nt = 0\nwhile n.sum().item() > 0:\n    n = n - 1\n    t += 1\nreturn x * t",
    "match self.i:\n    case 0: sizes = sizes * 2\nreturn x[: sizes.sum().item()]",
    "n = sizes\ndef bump():\n    nonlocal n\n    n = n + 1\nbump()\nreturn x[: n.sum().item()]",
    (
        "t = 0\nfor i in range(3):\n    p = sizes.tolist()\n    p.append(i)\n    t = t + x.sum() *"
        " len(p)\nreturn t"
    ),
    "for layer in self.layers: x = layer(x, sizes)\nreturn x",
    "self.bump()\nreturn x[: sizes[self.i % 2].item()]",
    "tick()\nreturn x[: (sizes.sum() + COUNT['n']).item()]",
    "self.state['s'] = sizes\nreturn x[: self.state['s'].sum().item()]",
    "rows = [sizes]\ngrow(rows, sizes * 2)\nreturn x[: torch.stack(rows).sum().item()]",
    "norm = self.norm\ny = norm(x)\nreturn y[: norm.num_batches_tracked.item()]",
    "sizes.data.view(-1).add_(1)\nreturn x[: sizes.sum().item()]",
    "h = self.history\nh.append(1)\nreturn x[: (sizes.sum() + len(h)).item()]",
    "t = sizes\nif flag: t[0] += 1\nreturn x[: t.sum().item()]",
    "if flag: sizes.view(-1).add_(1)\nreturn x[: sizes.sum().item()]",
]


@pytest.mark.parametrize("body", support.few(BODIES, 6))
def test_what_a_look_at_text_may_miss(tmp_path, monkeypatch, body):
    """Control flow, state and shared objects between the begin of the call and the read: equal at
    every call."""
    lines = body.replace("\n", "\n        ")
    (tmp_path / "model.py").write_text(STATEFUL.replace("BODY", lines))
    script = (
        "import torch\nfrom model import Model\nModel()(torch.ones(8, 4), torch.tensor([1, 2]))\n"
    )
    (tmp_path / "run.py").write_text(script)
    old = load(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    support.command("--unsafe-fixes", "--trace", "run.py", "--select", "DYN110", ".")
    old, new = models(old, load(tmp_path, monkeypatch))
    for sizes, flag in (([1, 2], False), ([2, 1], True), ([1, 1], True), ([3, 1], False)):
        given = [torch.tensor(sizes), torch.tensor(sizes)]
        results = [m(torch.ones(8, 4), s, flag) for m, s in zip((old, new), given, strict=True)]
        assert torch.equal(*results)
        assert torch.equal(*given)
    assert old.history == new.history
