"""What is compiled, and what values are, through the files of a project."""

import json

import pytest

from . import support

MODEL = """import torch
from torch import nn
from pkg import pick
from pkg.blocks import Block


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(2)])
        self.item = nn.Linear(4, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return pick(self.item(x).sum(-1))
"""
FILES = {
    "pkg/__init__.py": "from .utils import pick\n",
    "pkg/model.py": MODEL,
    "pkg/blocks.py": """import torch
from torch import nn
from . import utils


class Base(nn.Module):
    def forward(self, x):
        return self.step(utils.double(x))


class Block(Base):
    def step(self, x):
        if x.sum() > 0:
            return x * 3
        return x
""",
    "pkg/utils.py": """import torch


def double(x):
    return torch.mul(x, 2)


def pick(values):
    return values[values > 0]


def report(values):
    print(values)
    return values[values > 0]
""",
    "train.py": """import torch
from pkg.model import Model

model = Model()
model = torch.compile(model)
""",
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, FILES)
    return tmp_path


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def found(*options):
    """{(file, code): the calls that lead there} of `dynfix check` in this folder."""
    out = support.command("check", "--isolated", "--no-cache", "--output-format", "json", *options)[
        1
    ]
    return {(row["filename"], row["code"]): row["reached"] for row in json.loads(out)}


def test_calls_are_followed_through_files(project):
    """Through a re-export, a list of modules, and a method that a base class calls."""
    assert found(".") == {
        ("pkg/blocks.py", "DYN201"): "train.py:5 -> pkg/model.py:15 -> pkg/blocks.py:8"
        " -> pkg/blocks.py:13",
        ("pkg/utils.py", "DYN501"): "train.py:5 -> pkg/model.py:16 -> pkg/utils.py:9",
    }


def test_only_what_is_reached_is_looked_at(project):
    assert set(found(".", "--entry", "pkg.blocks:Block")) == {("pkg/blocks.py", "DYN201")}
    assert set(found(".", "--entry", "pkg.utils:report")) == {("pkg/utils.py", "DYN301")}
    assert len(found(".", "--scope", "compiled")) == 2
    (project / "train.py").unlink()
    assert not found(".", "--scope", "compiled")


def test_an_entry_has_a_module_and_a_name(project):
    assert "entry must be MODULE:NAME" in support.command("check", "--entry", "pkg", ".")[2]


def test_what_is_found_follows_the_other_files(project):
    """Also where results are kept."""
    check = ("check", "--isolated", "--output-format", "concise", ".")
    first = support.command(*check)[1]
    assert support.command(*check)[1] == first and "utils.py" in first
    (project / "pkg/model.py").write_text(MODEL.replace("pick(self.item(x).sum(-1))", "x"))
    second = support.command(*check)[1]
    assert "utils.py" not in second and "blocks.py" in second


@pytest.mark.parametrize(
    ("call", "opaque"),
    [
        ("pkg.utils.double(x)", False),
        ("einops.rearrange(x, 'a b -> b a')", False),
        ("pytest.approx(x)", False),
        ("unheard_of.f(x)", False),
        ("scipy.special.expit(x)", True),
        ("torch.nn.utils.rnn.pack_padded_sequence(x, x)", True),
        ("pkg.fast.kernel(x)", True),
    ],
)
def test_python_source_is_never_said_to_be_untraceable(project, call, opaque):
    """Of the project or of a package; what C computes is."""
    (project / "pkg/fast.pyx").write_text("")
    names = "einops pytest scipy.special unheard_of pkg.utils pkg.fast".split()
    head = "".join(f"import {name}\n" for name in names)
    (project / "use.py").write_text(
        f"{head}import torch\n\n\n@torch.compile\ndef use(x: torch.Tensor):\n    return {call}\n"
    )
    for paths in ([], ["use.py"]):
        assert (("use.py", "DYN601") in found(*(paths or ["."]))) == opaque


def test_what_runs_a_model_is_no_model(project):
    """A wrapper, and what is given a module to explain."""
    text = """import torch
from torch import nn


class Explainer(nn.Module):
    def forward(self, model: nn.Module, x):
        print(model(x).max().item())


class Wrapped(nn.DataParallel):
    def forward(self, x):
        print(x)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        print("forward")
        return x


class Uses(nn.Module):
    def forward(self, x):
        return Scale.apply(x)
"""
    write(project, {"other.py": text})
    assert lines("other.py") == [18]


def lines(path):
    out = support.command(
        "check", "--isolated", "--no-cache", "--output-format", "json", "--select", "DYN3", path
    )[1]
    return [row["location"]["row"] for row in json.loads(out)]


KINDS = """import torch
from dataclasses import dataclass
from jaxtyping import Float, Bool
from torch import nn
from helpers import measured, Base


@dataclass
class Batch:
    x: torch.Tensor


class Model(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def one(self, x: Float[torch.Tensor, "b n"]):
        return x.max().item()

    def two(self, mask: Bool["b n"], x: torch.Tensor):
        return x[mask]

    def three(self, batch: Batch):
        return batch.x.sum().item()

    def four(self):
        return measured(1).item()

    def five(self):
        return self.table.sum().item()

    def six(self):
        if self.seen > 2:
            return 1

    def seven(self, x, n):
        return helper(x, n)

    def reset(self):
        self.seen = self.seen + 1

    def forward(self, x: torch.Tensor, batch: Batch):
        self.reset()
        self.one(x), self.two(x > 0, x), self.three(batch), self.four(), self.five(), self.six()
        return self.seven(x, 3)


def helper(values, count):
    if values.abs().max() > count:
        return values
    return int(count)
"""


def test_what_a_value_is(tmp_path, monkeypatch):
    """By annotations, of jaxtyping too, dataclass fields, what a function of another file gives,
    what a base class in another file stores, buffers, and the calls of a helper."""
    monkeypatch.chdir(tmp_path)
    helpers = """import torch
from torch import nn


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.ones(3)


def measured(n):
    return torch.ones(n).sum()
"""
    write(tmp_path, {"model.py": KINDS, "helpers.py": helpers})
    out = support.command("check", "--isolated", "--no-cache", "--output-format", "json", ".")[1]
    rows = [(r["location"]["row"], r["code"]) for r in json.loads(out)]
    want = ["DYN101", "DYN501", "DYN101", "DYN101", "DYN101", "DYN201", "DYN201"]
    assert [code for _, code in rows] == want
    texts = KINDS.splitlines()
    assert "values.abs()" in texts[rows[-1][0] - 1]  # and not `int(count)`, of a number


def test_a_torch_that_breaks_no_graph_is_not_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = """import random
import torch


@torch.compile
def draw(x: torch.Tensor):
    y = x * random.randint(1, 3)
    if random.randint(1, 3) > 1:
        y = y + 1
    if x.shape[0] == 3:
        return y
    else:
        return y
"""
    (tmp_path / "a.py").write_text(text)
    count = lambda *options: len(found_rows("a.py", *options))  # noqa: E731
    assert (count(), count("--target-torch", "2.12"), count("--target-torch", "2.13")) == (1, 3, 1)
    (tmp_path / "dynfix.toml").write_text('target-torch = "2.11"\n')
    assert len(found_rows("a.py", isolated=False)) == 3
    said = support.command("check", "--target-torch", "new", "a.py")[2]
    assert "target-torch must be a version such as 2.13" in said


def found_rows(path, *options, isolated=True):
    alone = ["--isolated"] if isolated else []
    out = support.command("check", *alone, "--no-cache", "--output-format", "json", *options, path)
    return json.loads(out[1])


def test_a_diff_decides_the_exit_code_of_diff(project):
    assert support.command("--diff", "--isolated", "pkg/utils.py")[0] == 0
    write(project, {"log.py": "import torch\n\n\n@torch.compile\ndef f(x):\n    print(1)\n"})
    assert support.command("--diff", "--isolated", "log.py")[0] == 1


def test_statistics_mark_what_a_safe_fix_mends(project):
    write(project, {"log.py": "import torch\n\n\n@torch.compile\ndef f(x):\n    breakpoint()\n"})
    out = support.command("check", "--isolated", "--statistics", "log.py")[1]
    assert "DYN304" in out and "[*]" not in out


def test_what_runs_beside_plain_calls_is_reached(tmp_path, monkeypatch):
    """What a decorator puts in a function's place, methods and attributes that classes below have
    from elsewhere, what `super()` gives, a file that does not name torch."""
    monkeypatch.chdir(tmp_path)
    files = {
        "plain.py": "def scaled(x):\n    return x + x.sum().item()\n",
        "main.py": """import functools
import torch
from torch import nn
from plain import scaled


def timed(function):
    @functools.wraps(function)
    def inner(*args):
        print("called")
        return function(*args)

    return inner


def named(text):
    def wrap(function):
        def outer(*args):
            print(text)
            return function(*args)

        return outer

    return wrap


class Log:
    def log(self, x):
        return x * x.mean().item()


class Gate(nn.Module):
    def forward(self, x):
        return x.nonzero()


class Base(nn.Module):
    @timed
    def forward(self, x):
        return self.gate(self.log(scaled(x)))

    @named("post")
    def post(self, x):
        return x


class Top(Log, Base):
    def __init__(self):
        super().__init__()
        self.gate = Gate()


class Below(Base):
    def forward(self, x):
        return self.post(super().forward(x) + x)

    def post(self, x):
        x = super().post(x)
        if x.norm() > 1:
            x = x + 1
        return x


model = torch.compile(Top())
""",
    }
    write(tmp_path, files)
    rows = json.loads(
        support.command("check", "--isolated", "--no-cache", "--output-format", "json", ".")[1]
    )
    lines = {(row["filename"], row["location"]["row"], row["code"]) for row in rows}
    wanted = {("main.py", 10, "DYN301"), ("main.py", 19, "DYN301"), ("main.py", 29, "DYN101")}
    wanted |= {("main.py", 34, "DYN501"), ("main.py", 59, "DYN201"), ("plain.py", 2, "DYN101")}
    assert wanted <= lines


def test_a_wider_scope_finds_no_less(tmp_path, monkeypatch):
    """Inputs of what runs under capture are taken to be tensors in each scope."""
    monkeypatch.chdir(tmp_path)
    body = "        if x.sum() > 0:\n            x = x * 2\n        return x\n"
    text = f"import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n{body}"
    (tmp_path / "net.py").write_text(text)
    assert set(found(".")) == set(found(".", "--scope", "all")) == {("net.py", "DYN201")}


def test_a_decorator_that_makes_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "import torch\n\n\ndef again(n):\n    return again(n)\n\n\n"
    text += "@torch.compile\n@again(3)\ndef step(x: torch.Tensor):\n    return x[x > 0]\n"
    (tmp_path / "step.py").write_text(text)
    assert ("step.py", "DYN501") in found(".")


OTHERS = {
    "pkg/__init__.py": "",
    "pkg/config.py": """from dataclasses import dataclass

import torch


@dataclass
class State:
    lengths: torch.Tensor
    name: str


class Base(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.LSTM if self.training else torch.nn.GRU
        self.max = torch.nn.Linear(2, 2)

    def longest(self, lengths: torch.Tensor):
        return lengths.max()
""",
    "pkg/parts.py": """import torch


class Doubles:
    def run(self, x):
        return x if x.sum() > 0 else -x


class Halves:
    def run(self, x):
        return x.nonzero()


class Pairs(torch.nn.ModuleList):
    def __iter__(self):
        drawn = torch.rand(len(self))
        for i, part in enumerate(super().__iter__()):
            if drawn[i] > 0.5:
                yield part


PARTS = {"doubles": Doubles, "halves": Halves}


def first(x: torch.Tensor):
    return x
""",
    "pkg/model.py": """import torch
from .config import Base, State
from .parts import PARTS, Pairs, first


class Model(Base):
    def __init__(self, inner: torch.nn.Module):
        super().__init__()
        self.rnn = self.cell(2, 2)
        self.base = Base()
        self.pairs = Pairs([Base()])
        self.inner = inner

    def forward(self, x: torch.Tensor, state: State, sizes: dict[str, torch.Tensor], given):
        x = self.rnn(x)[0]
        x = x.narrow(0, 0, state.lengths.max())
        x = x.narrow(0, 0, self.base.longest(x))
        x = x.narrow(0, 0, sizes["x"])
        first(given)
        if given.min() > 0:
            x = x + 1
        for pair in self.pairs:
            x = self.base.max(x)
        return PARTS[state.name]().run(self.inner.nonzero(x))
""",
    "data.py": """import random

import torch
import torchvision.transforms.functional as F


class Crop(torch.nn.Module):
    def forward(self, img):
        return F.crop(img, random.randint(0, 3), 0, 2, 2) if random.random() > 0.5 else img
""",
}


def test_objects_of_other_files_are_known(tmp_path, monkeypatch):
    """Their attributes, fields, methods and base classes; tables of classes; iteration; what a
    function is given; and that modules which prepare images stay out."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, OTHERS)
    out = support.command("check", "--isolated", "--no-cache", "--output-format", "json", ".")[1]
    places = [(row["filename"], row["location"]["row"], row["code"]) for row in json.loads(out)]
    assert [(line, code) for path, line, code in places if path == "pkg/model.py"] == [
        (15, "DYN906"),
        (16, "DYN105"),
        (17, "DYN105"),
        (18, "DYN105"),
        (20, "DYN201"),
    ]
    parts = {(line, code) for path, line, code in places if path == "pkg/parts.py"}
    assert parts == {(6, "DYN202"), (11, "DYN501"), (18, "DYN201")}
    assert {path for path, _, _ in places} == {"pkg/model.py", "pkg/parts.py"}
