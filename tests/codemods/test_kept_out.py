"""Managers, iterators, caught errors, loops over sizes and counts: the fixed code against the
original in eager, and what is left of breaks and recompiles."""

import pytest

torch = pytest.importorskip("torch")

from dynfix.codemods.cli import side_by_side
from dynfix.codemods.rules.data_shapes import size_loop

from . import support

HEAD = """import contextlib
import io
import sys
import threading
import warnings

import numpy as np
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Linear(4, 4)
        self.lock = threading.Lock()

    def change(self, z: torch.Tensor):
        z.mul_(2)

    def forward(self, x: torch.Tensor):
        y = self.h(x)
"""
MAKE = "\n\ndef make():\n    return Model(), (torch.randn(3, 4),)\n"
BROKEN = {
    "lock": "with self.lock:\n    y = y + 1\nreturn y",
    "anomaly": "with torch.autograd.set_detect_anomaly(True):\n    y = y * 2\nreturn y",
    "redirected": "with contextlib.redirect_stdout(sys.stderr):\n    y = y + 2\nreturn y",
    "errstate": "with np.errstate(divide='ignore'):\n    y = y + 2\nreturn y",
    "filters": (
        "with warnings.catch_warnings():\n    warnings.simplefilter('ignore')\n    y = y +"
        " 2\nreturn y"
    ),
    "joined": "return y, (y > 0).any() and (y < 9).all()",
    "counts": (
        "n = (y > 0).sum(1)\nreturn y, torch.bincount(n, minlength=5), n.bincount(minlength=6)"
    ),
    "reshape": (
        "t = y.t()\ntry:\n    z = t.view(-1)\nexcept RuntimeError:\n    z = t.reshape(-1)\nreturn z"
    ),
}
LOOPS = {
    "appended": (
        "out = []\nfor i in range(y.size(0)):\n    out.append(torch.relu(y[i]) * 2)\nreturn"
        " torch.stack(out)"
    ),
    "listed": "return torch.stack([-row.clamp(min=0.5) for row in y]) * 2",
    "written": "z = torch.stack([torch.sigmoid(row) for row in y])\nz += 1\nz[0] = 2.0\nreturn z",
    "grown": (
        "out = []\nfor row in y:\n    out.append(row.relu())\nz ="
        " torch.stack(out)\nnn.functional.relu6(z, True)\nreturn z"
    ),
    "handed": (
        "z = torch.stack([y[i].exp() for i in range(len(y))])\nself.change(z.view(-1))\nreturn z"
    ),
    "columns": "return torch.stack([y[:, i].abs() + 1 for i in range(y.shape[1])], 1)",
}


def source(body):
    return HEAD + "".join(f"        {line}\n" for line in body.split("\n")) + MAKE


def made(text, name):
    return side_by_side.load_text(text, f"{name}.py", name).make


def same(text, changed, seeds=range(3)):
    before, after = made(text, "original"), made(changed, "fixed")
    return not any(
        side_by_side.differences(side_by_side.observe(before, s), side_by_side.observe(after, s))
        for s in seeds
    )


@pytest.mark.parametrize("case", BROKEN)
def test_breaks_go_and_eager_stays(case):
    text = source(BROKEN[case])
    changed = support.fixed(text, unsafe=True).source.text
    assert changed != text
    assert same(text, changed)
    model, args = made(changed, "model")()
    torch._dynamo.reset()
    torch.compile(model, backend="eager", fullgraph=True)(*args)


@pytest.mark.parametrize("case", BROKEN)
def test_the_original_breaks_or_is_not_compiled_at_all(case):
    model, args = made(source(BROKEN[case]), "model")()
    if case != "reshape":
        assert side_by_side.count_breaks(model, args)
    elif torch.__version__ < "2.14":  # from which on it takes this one as it is
        with pytest.raises(RuntimeError, match="RuntimeError when making fake tensor call"):
            torch.compile(model, backend="eager")(*args)


@pytest.mark.parametrize("case", LOOPS)
def test_a_loop_over_rows_becomes_one_graph_for_every_size(case):
    text = source(LOOPS[case])
    changed = support.fixed(text, unsafe=True).source.text
    assert changed != text
    assert same(text, changed)
    assert (graphs(text), graphs(changed)) == (1 if case == "columns" else 4, 1)


def graphs(text):
    """How many graphs batches of four sizes need, of which the second tells that the size
    varies."""
    model, _ = made(text, "model")()
    torch._dynamo.reset()
    seen = []
    compiled = torch.compile(
        model, backend=lambda graph, _: seen.append(graph) or graph, dynamic=True
    )
    for rows in (3, 4, 5, 6):
        compiled(torch.randn(rows, 4))
    return len(seen)


@pytest.mark.parametrize("name", sorted(size_loop._UNARY))
def test_results_that_autograd_keeps_are_known(name):
    """A write into the result of any other operator leaves the backward pass as it was."""
    places = (torch, torch.nn.functional, torch.Tensor)
    raised = [_spoils(getattr(place, name)) for place in places if hasattr(place, name)]
    assert raised and any(raised) is (name in size_loop._RESULT_SAVED)


def _spoils(operator):
    x = torch.rand(3, requires_grad=True)
    y = operator(x, 0.2) if operator.__name__.startswith(("clamp", "clip")) else operator(x)
    y.mul_(2)
    try:
        y.sum().backward()
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)
    return False


def test_bincount_counts_where_it_raised():
    """What DYN503 tells: bools, floats, no axis; whole numbers along one axis are as before."""
    text = (
        "import torch\n\n\n@torch.compile\ndef make(n: torch.Tensor):\n    return torch.bincount(n,"
        " minlength=3)\n"
    )
    plain = [
        made(t.replace("@torch.compile\n", ""), "counts")
        for t in (text, support.fixed(text, unsafe=True).source.text)
    ]
    for n in (
        torch.tensor([0, 2, 2]),
        torch.tensor([1, 1], dtype=torch.uint8),
        torch.tensor([], dtype=torch.int32),
    ):
        assert torch.equal(plain[0](n), plain[1](n))
    for n in (torch.tensor([0.0, 2.0]), torch.tensor([True]), torch.tensor(1)):
        with pytest.raises(RuntimeError):
            plain[0](n)
        assert plain[1](n).shape == (3,)
    with pytest.raises(RuntimeError):
        plain[1](torch.tensor([3]))


@pytest.mark.parametrize("value", [[], [1.0, 2.0]])
def test_not_of_several_elements_raised(value):
    text = "import torch\n\n\n@torch.compile\ndef step(x: torch.Tensor):\n    return not x\n"
    (finding,) = support.fixed(text, unsafe=True).applied
    assert "a tensor of no or several elements raised an error" in finding.fix.why
    with pytest.raises(RuntimeError):
        bool(torch.tensor(value))


@pytest.mark.parametrize(
    "expression", ["y", "y.t()", "y[:, ::2]", "y[:0]", "y.expand(2, 3, 4)", "y[:, :1]"]
)
@pytest.mark.parametrize("sizes", ["-1", "y.size(0), -1", "4, 3", "-1, -1", "(2, 6)"])
def test_reshape_is_view_or_else_reshape(expression, sizes):
    """The same memory, strides, gradients and errors."""
    call = f"try:\n    z = t.view({sizes})\nexcept RuntimeError:\n    z = t.reshape({sizes})\n"
    body = (
        f"t = {expression}\n{call}z.mul_(y.sum())\nreturn z, z.stride(), z.data_ptr() =="
        " t.data_ptr(), t"
    )
    result = support.fixed(source(body))
    assert [f.code for f in result.applied] == ["DYN409"]
    assert same(source(body), result.source.text)


def test_what_enters_a_class_is_captured():
    text = (
        "import time\n\nimport torch\n\n\nclass Timer:\n    def __enter__(self):\n        self.at ="
        " time.time()\n\n    def __exit__(self, *args):\n        return"
        " None\n\n\n@torch.compile\ndef step(x: torch.Tensor):\n    with Timer():\n        return x"
        " + 1\n"
    )
    assert support.codes(text) == ["DYN703"]
