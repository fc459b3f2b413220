"""DYN606: operators made of functions that leave torch do what the functions did, and what their
fake functions say."""

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")
pytest.importorskip("scipy")

import scipy.ndimage
import scipy.signal
import scipy.special
from dynfix.codemods.analysis import numpy_flow
from dynfix.codemods.cli import check, side_by_side
from dynfix.codemods.cli.settings import Settings
from dynfix.codemods.trace import trace_facts
from dynfix.rewriter.source.source_file import SourceFile

from . import support

pytestmark = pytest.mark.usefixtures("forked_runs")

MAKE = "\n\ndef make():\n    return Model(), (torch.randn(5, 4),)\n"
TEXT = (support.FIXTURES / "DYN606/filters.in.py").read_text() + MAKE


def both(text):
    fixed = support.fixed(text, unsafe=True)
    assert {f.code for f in fixed.applied} == {"DYN606"}
    assert fixed.left == ()
    first = side_by_side.load_text(text, "model.py", "custom_op_before")
    return first, side_by_side.load_text(fixed.source.text, "model.py", "custom_op_after")


def test_the_same_in_eager_and_no_break_left():
    text = TEXT.replace("torch.sigmoid(y)", "torch.sigmoid(y.detach())").replace(
        "y.relu()", "y.detach()"
    )
    before, after = both(text)
    for seed in range(3):
        assert (
            side_by_side.differences(
                side_by_side.observe(before.make, seed), side_by_side.observe(after.make, seed)
            )
            == []
        )
    assert side_by_side.count_breaks(*before.make()) > 0
    assert side_by_side.count_breaks(*after.make()) == 0


@pytest.mark.covering
@pytest.mark.parametrize("name", ["smooth", "elliptic", "bins", "like"])
@pytest.mark.parametrize("shape", [(4, 5), (3, 4, 5), (5, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_the_fake_functions_say(name, shape, dtype):
    function = getattr(both(TEXT)[1], name)
    x = torch.rand(shape, dtype=dtype)
    x = x if shape != (5, 4) else x.t()
    given = {"smooth": (x, 2.0), "like": (x, x)}.get(name, (x,))
    result = torch.library.opcheck(function, given, {"scale": 0.5} if name == "elliptic" else {})
    assert set(result.values()) == {"SUCCESS"}


def test_the_tables_are_those_of_scipy():
    """Shape, dtype, order and memory of what every listed function gives."""
    more = {
        "gaussian": (1.0,),
        "rank": (1, 3),
        "percentile": (50, 3),
        "convolve1d": ([1.0, 2],),
        "correlate1d": ([1.0, 2],),
    }
    none = ("sobel", "prewitt", "laplace", "medfilt", "medfilt2d")
    for name in sorted(numpy_flow.KEEPS):
        module, last = name.split(".")[1:]
        rest = next(
            (v for k, v in more.items() if last.startswith(k)), () if last in none else (3,)
        )
        rest = rest if last not in ("convolve", "correlate") else (numpy.ones((2, 2)),)
        for dtype in (numpy.float32, numpy.float64):
            given = numpy.random.rand(6, 5).astype(dtype).T
            made = getattr(getattr(scipy, module), last)(given, *rest)
            assert (made.shape, made.dtype, made.flags.c_contiguous) == (
                given.shape,
                given.dtype,
                True,
            ), name
            assert not numpy.shares_memory(made, given)


def test_the_elementwise_tables_are_those_of_scipy():
    for name in sorted(numpy_flow.FLOATS):
        function = getattr(scipy.special, name.rpartition(".")[2])
        for dtype in (numpy.float32, numpy.float64):
            given = numpy.random.rand(6, 5).astype(dtype)
            for more in ((1,) * (function.nin - 1), (0.5,) * (function.nin - 1)):
                for values in ((*more, given), (given, *more)):
                    made = function(*values)
                    assert (made.shape, made.dtype) == (given.shape, given.dtype), name


SCRIPT = "import torch\nfrom model import Model\nModel('nearest')(torch.randn(4, 4))\n"
MODEL = """import torch
from scipy import ndimage
from torch import nn


def edges(x, how):
    return torch.from_numpy(ndimage.laplace(x.detach().numpy(), mode=how))


class Model(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.h, self.how = nn.Linear(4, 4), how

    def forward(self, x):
        return edges(self.h(x), self.how)
"""


def test_types_that_a_run_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "script.py").write_text(SCRIPT)
    facts = trace_facts.run("script.py", ["model.py"])
    fixed = check.fix(
        SourceFile(MODEL, str(tmp_path / "model.py")), Settings(unsafe_fixes=True, facts=facts)
    )
    assert "def edges(x: torch.Tensor, how: str) -> torch.Tensor:" in fixed.source.text
    assert {f.code for f in fixed.applied if f.traced} >= {"DYN606"}
