"""What the rules about reads of numbers leave: the same in eager, and one graph."""

import functools
import inspect
import os
import subprocess
import sys

import forked
import pytest

torch = pytest.importorskip("torch")

from dynfix.codemods.cli import side_by_side
from dynfix.codemods.trace.outermost import OutermostModules

from . import support

READS = [
    ("x[x > x.mean()]", "torch.sort(x[x > x.mean()]).values"),
    ("(x > 0).sum().item()", "torch.zeros((x > 0).sum().item())"),
    ("x.nonzero()", "x.nonzero() + 1"),
    ("torch.arange((x > 0).sum())", "torch.arange((x > 0).sum()) + 1"),
    (
        "(x > 0).long().sum(0).tolist()",
        "torch.cat([p.relu() for p in x.split((x > 0).long().sum(1).tolist())])",
    ),
]
HEAD = "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n"
METHOD = (
    '    def forward(self, x: torch.Tensor, scale=1, *, extra=None):\n        """Said."""\n       '
    " return {}\n"
)


def pair(expression, read=None):
    """(the original class, the fixed one)."""
    text = HEAD + METHOD.format(expression)
    shown = support.shown([("Model.forward", "Model.forward", read or expression)])
    fixed = support.fixed(text, unsafe=True, **shown)
    assert "DYN506" in {f.code for f in fixed.applied}
    modules = [
        side_by_side.load_text(t, "model.py", n)
        for t, n in ((text, "original"), (fixed.source.text, "fixed"))
    ]
    return [m.Model for m in modules]


class Outer(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(torch.relu(x)) * 2


@pytest.fixture(params=READS[:4], ids=[r for r, _ in READS[:4]])
def models(request):
    torch._dynamo.reset()
    read, expression = request.param
    return [cls() for cls in pair(expression, read)]


def test_eager_is_as_before(models):
    before, after = models
    x = torch.randn(4, 3)
    torch.testing.assert_close(after(x), before(x), rtol=0, atol=0)
    assert inspect.signature(after.forward) == inspect.signature(before.forward)
    assert type(after).forward.__doc__ == "Said."
    assert type(after).forward.__name__ == "forward"


def test_one_graph(models):
    before, after = models
    x = torch.randn(4, 3)
    assert side_by_side.count_breaks(before, (x,)) > 0
    explained = torch._dynamo.explain(after)(x)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled(models, fullgraph):
    same_compiled(*models, "eager", fullgraph)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_by_inductor(fullgraph):
    torch._dynamo.reset()
    same_compiled(
        *(cls() for cls in pair("torch.relu(x[x > 0])", "x[x > 0]")), "inductor", fullgraph
    )


def same_compiled(before, after, backend, fullgraph):
    compiled = torch.compile(after, backend=backend, fullgraph=fullgraph)
    for size in (4, 4, 7):
        x = torch.randn(size, 3)
        torch.testing.assert_close(compiled(x), before(x))
    config = torch._dynamo.config
    assert not (
        config.capture_scalar_outputs
        or config.capture_dynamic_output_shape_ops
        or config.suppress_errors
    )


def test_no_new_break_inside_another_module(models):
    before, after = models
    x = torch.randn(4, 3)
    assert side_by_side.count_breaks(Outer(after), (x,)) <= side_by_side.count_breaks(
        Outer(before), (x,)
    )


def test_no_break_inside_another_module_where_dynamic_shapes_are_captured():
    x = torch.randn(4, 3)
    plain = pair("x * 2 + x[x > x.mean()].sum() * 0", "x[x > x.mean()]")[1]
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert side_by_side.count_breaks(Outer(plain()), (x,)) == 0
        torch.compile(Outer(plain()), backend="eager", fullgraph=True)(x)


def test_other_sizes_are_no_new_graphs():
    after = pair("x.nonzero() + 1", "x.nonzero()")[1]()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(after, backend="eager")
    for _ in range(4):
        compiled(torch.randn(5, 3))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_what_cannot_be_captured_runs_in_eager():
    """A size that decides a split: no error, and the same values."""
    before, after = (cls() for cls in pair(READS[4][1], "(x > 0).long().sum(1).tolist()"))
    torch._dynamo.reset()
    x = torch.tensor([[1.0, -1.0, -1.0], [1.0, 1.0, -1.0], [-1.0, -1.0, -1.0]])
    torch.testing.assert_close(torch.compile(after, backend="eager")(x), before(x))


def test_dynamo_is_not_imported():
    fixed = support.fixed(
        HEAD + METHOD.format("x.nonzero()"),
        unsafe=True,
        **support.shown([("Model.forward",) * 2 + ("x.nonzero()",)]),
    )
    run = "\nModel()(torch.ones(2))\nimport sys\nassert 'torch._dynamo' not in sys.modules\n"
    forked.run([sys.executable, "-c", fixed.source.text + run], check=True)


def changed(path):
    """The make functions of a fixture and of what unsafe fixes make of it."""
    texts = path.read_text(), support.expected(path, "unsafe.out").read_text()
    return [
        side_by_side.load_text(t, f"{path.stem}.py", n).make
        for t, n in zip(texts, ("original", "fixed"), strict=True)
    ]


def test_numbers_beside_buffers():
    before, after = changed(support.FIXTURES / "DYN107/model.in.py")
    for seed in range(3):
        assert not side_by_side.differences(
            side_by_side.observe(before, seed), side_by_side.observe(after, seed)
        )
    model, inputs = after()
    assert model.state_dict().keys() == before()[0].state_dict().keys()
    torch.testing.assert_close(
        model.lengths(torch.tensor([9, 12])), before()[0].lengths(torch.tensor([9, 12]))
    )
    assert side_by_side.count_breaks(*before()) > 0
    torch._dynamo.reset()
    torch.compile(model, backend="eager", fullgraph=True)(*inputs)


@pytest.mark.parametrize("training", [False, True])
def test_numbers_for_training_alone(training):
    """Eager draws the same numbers, and as many of them; compiled code that does not train is one
    graph."""
    numpy = pytest.importorskip("numpy")
    path = support.FIXTURES / "DYN701/training.in.py"
    texts = path.read_text(), support.expected(path, "unsafe.out").read_text()
    models = [
        side_by_side.load_text(t, "training.py", n).Model()
        for t, n in zip(texts, ("original", "fixed"), strict=True)
    ]
    models[1].load_state_dict(models[0].state_dict())
    results = []
    for model in models:
        numpy.random.seed(0)
        results.append((model.train(training)(torch.ones(2, 4)), numpy.random.rand()))
    torch.testing.assert_close(*results, rtol=0, atol=0)
    torch._dynamo.reset()
    torch.compile(models[1].eval(), backend="eager", fullgraph=True)(torch.ones(2, 4))


def test_rows_under_a_mask():
    text = (
        support.FIXTURES / "DYN504/rows.in.py"
    ).read_text() + "\n\ndef make():\n    return Model(), (torch.randn(3, 4),)\n"
    text = (
        text.replace("        y[keep, 1:] += rows[:, 1:]\n", "").split("        u = y")[0]
        + "        return y, z\n\n\ndef make():\n    return Model(), (torch.randn(3, 4),)\n"
    )
    text = text.replace("torch.full((6,), 3.0)", "torch.ones(6)")
    fixed = support.fixed(text, unsafe=True).source.text
    before, after = (
        side_by_side.load_text(t, "rows.py", n).make
        for t, n in ((text, "original"), (fixed, "fixed"))
    )
    for seed in range(3):
        assert not side_by_side.differences(
            side_by_side.observe(before, seed), side_by_side.observe(after, seed)
        )
    model, inputs = after()
    torch._dynamo.reset()
    torch.compile(model, backend="aot_eager", fullgraph=True)(*inputs)[0].sum().backward()


PROJECT = {
    "parts.py": (
        """import torch


def chosen(x, mask):
    return x[mask]


def checked(x):
    print(x.nonzero())
    return x
"""
    ),
    "model.py": (
        """import functools

import torch
from parts import checked, chosen
from torch import nn


def told(method):
    @functools.wraps(method)
    def call(*args, **kwargs):
        return method(*args, **kwargs)

    return call


class Layer(nn.Module):
    def forward(self, x):
        return chosen(x, x[:, 0] > 0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.h, self.layer = nn.Linear(4, 4), Layer()

    @told
    def forward(self, x):
        return self.layer(self.h(x))


class Still(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Linear(4, 4)

    def forward(self, x):
        if not torch.compiler.is_compiling():
            checked(x)
        if x.sum() > 99:
            return x
        return self.h(x)
"""
    ),
    "script.py": (
        "import torch\nfrom model import Model, Still\nModel()(torch.ones(3,"
        " 4))\nStill()(torch.ones(3, 4))\n"
    ),
}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="frames do not tell their place")
def test_what_a_run_shows_of_several_files(tmp_path, monkeypatch):
    """The read stands in another file than the root; what only eager reads, and a branch, are no
    reason."""
    monkeypatch.setattr(subprocess, "run", functools.partial(forked.run, loaded="torch._dynamo"))
    monkeypatch.chdir(tmp_path)
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text)
    code, out, err = support.command(
        "--unsafe-fixes", "--trace", "script.py", "model.py", "parts.py"
    )
    text = (tmp_path / "model.py").read_text()
    assert text.count("@captures_reads") == 1, (code, out, err)
    assert "    @captures_reads\n    @told\n    def forward" in text
    run = (
        "\nm = Model()\ne = torch._dynamo.explain(m)(torch.randn(3, 4))\nassert (e.graph_count,"
        " e.graph_break_count) == (1, 0)\n"
    )
    subprocess.run(
        [sys.executable, "-c", "import torch._dynamo\n" + text + run], check=True, cwd=tmp_path
    )


def test_a_compiled_function_is_an_outermost_call():
    def step(x):
        return x

    here = os.path.realpath(__file__)
    roots = OutermostModules({here})
    roots.enter(step)
    assert roots.found == {(here, f"test_a_compiled_function_is_an_outermost_call.{step.__name__}")}


# Reads that decide nothing, in a function that is compiled by itself.
ONLY_USED = {
    "slice": "n = int(x[0].argmax())\n    return x[:, :n] * 2",
    "size": "return torch.zeros((x > 0).sum().item())",
    "arithmetic": "m = x.mean().item()\n    return x - min(m, 0.5)",
    "returned": "return x * 2, {'n': (x > 0).sum().item()}",
    "truth": "return x * 2, bool((x > 0).all())",
    "rows": "rows = x[x[:, 0] > 0]\n    return torch.cat([rows * 2, x])",
    "write": "y = x.clone()\n    y[x > 0] = 0\n    i = torch.where(x > 1)[0]\n    return y.sum(), i",
    "list": "n = (x > 0).sum(1).tolist()\n    return [p[:i] for p, i in zip(x, n)]",
    "helper": "return x / counted(x)",
    "kept in lists": "out = []\n    out.insert(0, x.mean().item())\n    return torch.tensor(out) + x",
    "rounded": "m = x.mean().item()\n    return x * 2, {'m': round(m, 3), 'r': math.sqrt(abs(m))}",
}
DECIDES = {
    "branch": "n = (x > 0).sum().item()\n    return x * 2 if n > 3 else x",
    "turns": "return [x * i for i in range((x > 0).sum().item())]",
    "key": "return ['a', 'b', 'c', 'd'][x[0].argmax().item()]",
    "text": "return f'{x.mean().item()}'",
    "floats": "return [x * f for f in x[0].tolist()]",
    "unknown": "return other(x.mean().item())",
    "floats in other order": "return [x * f for f in reversed(x[0].tolist())]",
    "a list as long as data says": "return [x[i] for i in torch.nonzero(x[0] > 0)[:, 0].tolist()]",
    "chain": "m = x.mean().item()\n    return x, 0 < m < 1",
    "math": "return x * math.exp(x.mean().item())",
    "order": "return x * max([x.mean().item(), 1.0], key=abs)",
    "key of a dict": "return {x.mean().item(): x}",
    "repeated list": "return [x] * (x > 0).sum().item()",
    "percent": "return '%d' % (x > 0).sum().item()",
    "power": "return 2 ** (x > 0).sum().item()",
}
COMPILED = """import math

import torch
from elsewhere import other


def counted(x: torch.Tensor):
    return (x > 0).sum().item()


@torch.compile
def step(x: torch.Tensor):
    {}
"""


def captured_alone(body):
    return support.fixed(COMPILED.format(body), ignore=())


@pytest.mark.parametrize("body", ONLY_USED.values(), ids=ONLY_USED)
def test_reads_that_decide_nothing_are_captured(body, monkeypatch):
    fixed = captured_alone(body)
    assert {f.code for f in fixed.applied} == {"DYN506"}
    assert not fixed.left
    monkeypatch.setattr(torch, "compile", lambda function: function)
    texts = [
        t.replace("from elsewhere import other\n", "")
        for t in (COMPILED.format(body), fixed.source.text)
    ]
    before, after = (side_by_side.load_text(t, "step.py", "step").step for t in texts)
    monkeypatch.undo()
    torch._dynamo.reset()
    x = torch.randn(4, 3)
    assert side_by_side.count_breaks(before, (x,)) > 0
    torch._dynamo.reset()
    assert side_by_side.count_breaks(after, (x,)) == 0
    torch._dynamo.reset()
    compiled = torch.compile(after, backend="eager", fullgraph=True)
    for given in (x, -x, torch.randn(4, 3)):
        torch.testing.assert_close(after(given), before(given), rtol=0, atol=0)
        torch.testing.assert_close(compiled(given), before(given))


@pytest.mark.parametrize("body", DECIDES.values(), ids=DECIDES)
def test_reads_that_decide_something_are_not_captured(body):
    assert "DYN506" not in {f.code for f in captured_alone(body).applied}


_SCHEDULED = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("step", torch.zeros(()))

    def forward(self, x):
        self.step += 1
        beta = min(1.0, self.step.item() / 1000)
        return {}
"""


def test_what_is_written_and_read_for_the_backward_is_not_captured():
    """torch would read it again in the backward, where it is the next call's."""
    for returned, captured in (("self.fc(x) * beta", False), ("self.fc(x), beta", True)):
        text = support.fixed(_SCHEDULED.format(returned), ignore=()).source.text
        assert ("captures_reads" in text) == captured
