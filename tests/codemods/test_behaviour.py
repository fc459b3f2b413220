"""Original and fixed code side by side in eager: values, gradients, printed text and exceptions;
and their graph breaks counted."""

import pytest

torch = pytest.importorskip("torch")

from dynfix.codemods.cli import side_by_side

from . import support

SEEDS = range(6)
MAKE = """

def make():
    model = Model()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(()) * 2)
    return model, (torch.randn(3, 4) * 2,)
"""
SAFE = [
    p
    for p in support.inputs()
    if support.expected(p, "out").exists() and "class Model" in p.read_text()
]
UNRUNNABLE = {"no_torch_name", "names", "loggers"}


def factory(text, name):
    return side_by_side.load_text(
        text + ("" if "def make" in text else MAKE), f"{name}.py", name
    ).make


def differences(before, after, seed):
    return side_by_side.differences(
        side_by_side.observe(before, seed), side_by_side.observe(after, seed)
    )


@pytest.mark.parametrize("path", SAFE, ids=lambda p: f"{p.parent.name}-{p.name[:-6]}")
def test_safe_fixes_change_nothing_in_eager(path):
    if path.name[:-6] in UNRUNNABLE:
        pytest.skip("the input needs more than this harness has")
    before = factory(path.read_text(), "original")
    after = factory(support.expected(path, "out").read_text(), "fixed")
    for seed in SEEDS:
        assert not differences(before, after, seed)


def both_ways(body, seeds=range(12)):
    """(differences over the seeds, outcomes seen) of a module whose forward is `body`; unsafe fixes
    are not made."""
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.h = nn.Linear(4, 4)\n\n    def forward(self,"
        " x):\n" + body
    )
    result = support.fixed(text)
    before, after = factory(text, "original"), factory(result.source.text, "fixed")
    found = [d for seed in seeds for d in differences(before, after, seed)]
    return found, result


@pytest.mark.parametrize(
    "test",
    [
        "y.sum() > 0",
        "not y.sum() > 0",
        "y.mean().item() < 0",
        "torch.rand(1) > 0.5",
        "y.any()",
        "y.sum()",
    ],
)
@pytest.mark.parametrize(
    "side", ["y + 1", "y * 0.5", "-y", "torch.relu(y)", "y / 3", "y.clone()", "y + y"]
)
def test_every_total_side_under_every_test(test, side):
    found, result = both_ways(
        f"        y = self.h(x)\n        if {test}:\n            y = {side}\n        return y\n",
        range(4),
    )
    assert result.applied
    assert not found


@pytest.mark.parametrize(
    "side",
    [
        "y / y.sum()",
        "y.sqrt()",
        "torch.log(y)",
        "y[0]",
        "y.norm() * y",
        "y + torch.randn_like(y)",
        "self.h(y)",
        "y.sum(0)",
        "y.long()",
        "y.detach()",
    ],
)
def test_eager_never_computes_a_partial_side_that_it_does_not_take(side):
    """Compiled code may have a form of its own; eager keeps the branch."""
    found, result = both_ways(
        f"        y = self.h(x)\n        if y.sum() > 0:\n            y = {side}\n       "
        " return y\n",
        range(1),
    )
    assert f"if y.sum() > 0:\n            y = {side}\n" in result.source.text
    assert not found


@pytest.mark.parametrize("name", ["torch.jit.trace", "torch.vmap", "torch.onnx.export"])
def test_a_file_that_traces_its_functions_keeps_its_branches_in_eager(name):
    """A traced branch is the side that was taken; a traced choice is both."""
    text = f"""import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        y = torch.sigmoid(x)
        if y.mean() > 0.5:
            y = y * 2
        return y
used = {name}
"""
    result = support.fixed(text)
    assert result.applied and "        elif y.mean() > 0.5:\n" in result.source.text
    assert "elif" not in support.fixed(text.partition("used")[0]).source.text
    if name == "torch.jit.trace":
        outputs = []
        for each in (text, result.source.text):
            space: dict = {}
            exec(each, space)
            with pytest.warns(torch.jit.TracerWarning):
                traced = torch.jit.trace(space["Model"](), torch.ones(3))
            outputs.append(traced(-torch.ones(3)))
        assert torch.equal(*outputs)


def test_gradient_of_where_would_be_nan():
    """The case that makes division unsafe: it does differ."""
    text = """import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Linear(4, 4)
    def forward(self, x):
        y = self.h(x) * 0
        n = y.sum()
        return y + torch.where(n == 0, n * 0, y.sum() / n)
"""
    behaviour = side_by_side.observe(factory(text, "nan"), 0)
    assert any(g is not None and torch.isnan(g).any() for g in behaviour.gradients.values())


def breaks(text, name):
    function, inputs = factory(text, name)()
    return side_by_side.count_breaks(function, inputs)


@pytest.mark.parametrize(
    ("case", "after"),
    [("DYN201/returns", 0), ("DYN201/item", 1), ("DYN301/prints", 1), ("DYN202/sides", 1)],
)
def test_breaks_go(case, after):
    path = support.FIXTURES / f"{case}.in.py"
    fixed = support.fixed(path.read_text()).source.text
    assert breaks(path.read_text(), "original") > after
    assert breaks(fixed, "fixed") <= after


@pytest.mark.parametrize(
    "case", ["DYN201/cond_modules", "DYN201/partial_sides", "DYN202/sides", "DYN101/returned"]
)
def test_unsafe_fixes_leave_one_graph(case):
    text = (support.FIXTURES / f"{case}.in.py").read_text()
    fixed = support.fixed(text, unsafe=True).source.text
    assert breaks(text, "original") > 0
    assert breaks(fixed, "fixed") == 0


def test_verify_takes_back_a_fix_that_differs():
    """`.item()` becomes a tensor: the comparison sees the other type, and the fix goes back."""
    from dynfix.codemods.cli.settings import Settings
    from dynfix.rewriter.source.source_file import SourceFile

    text = (support.FIXTURES / "DYN101/returned.in.py").read_text() + MAKE
    settings = Settings(unsafe_fixes=True, ignore=("DYN506",))
    outcome = side_by_side.verify(SourceFile(text, "model.py"), "make", settings)
    assert outcome.refused
    assert outcome.kept.text == text
    assert outcome.before == outcome.after > 0


def test_differences_see_each_sort():
    def make(value=0.0, text="", error=None):
        def run(x):
            print(text)
            if error:
                raise error
            return x + value

        return lambda: (run, (torch.ones(2),))

    base = side_by_side.observe(make(), 0)
    assert not side_by_side.differences(base, side_by_side.observe(make(), 0))
    assert side_by_side.differences(base, side_by_side.observe(make(1.0), 0))
    assert side_by_side.differences(base, side_by_side.observe(make(text="x"), 0))
    assert side_by_side.differences(base, side_by_side.observe(make(error=ValueError("no")), 0))
