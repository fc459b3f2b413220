"""An exception that the file handles, and goes on, is no check that fails."""

import pytest
from dynfix.codemods.cli import check, notebook, settings

from . import support

_PROGRAM = """
import torch


class Stop(Exception):
    pass


class Net(torch.nn.Module):
    def inner(self, x: torch.Tensor):
        y = x * 2
        if y.mean() > 0:
            raise {raised}
        return y

    @torch.compile
    def forward(self, x: torch.Tensor):
        try:
            return self.inner(x)
        except {handled}:
            {does}
"""


def _asserts(**parts):
    text = _PROGRAM.format(**parts)
    options = settings.Settings(unsafe_fixes=True, cache=False)
    fixed = check.fix(notebook.load(text.encode(), "program.py"), options)
    return "_assert_async" in fixed.source.text


@pytest.mark.parametrize(
    "raised", ["Stop()", "Stop(y)", "Stop('over')", "FloatingPointError('over')"]
)
def test_an_exception_by_which_the_program_branches_is_no_assertion(raised):
    handled = raised.partition("(")[0]
    assert not _asserts(raised=raised, handled=handled, does="return x")
    assert not _asserts(raised=raised, handled=f"(KeyError, {handled}) as e", does="return x")


def test_an_exception_that_is_raised_again_is_one():
    assert _asserts(raised="ValueError('over')", handled="ValueError", does="raise")


_ATTRIBUTE = """
import torch


class Average:
    def update(self, x: torch.Tensor):
        if torch.isnan(x).any():
            raise FloatingPointError(f"{x} is not finite")
        return x


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.average = Average()

    def forward(self, x: torch.Tensor):
        try:
            x = self.average.update(x)
        except FloatingPointError as error:
            print("skipped", error)
        return x


model = torch.compile(Net())
"""


def test_a_method_of_an_attribute_is_called_where_the_exception_is_handled():
    options = settings.Settings(unsafe_fixes=True, cache=False)
    fixed = check.fix(notebook.load(_ATTRIBUTE.encode(), "program.py"), options)
    assert "_assert_async" not in fixed.source.text


_CHECKS = """import torch


def check(x: torch.Tensor):
    if x.min() < 0:
        raise ValueError("negative")
"""
_CALLERS = {
    "handler": """import torch
from checks import check


@torch.compile
def step(x):
    {try_}
""",
    "loop": """import torch
import checks


class Net(torch.nn.Module):
    def forward(self, x):
        checks.check(x)
        return x


net = torch.compile(Net())


def train(batches):
    for x in batches:
        {try_}
""",
}
_TRIES = {
    "except ValueError": "try:\n{0}    {1}\n{0}except ValueError:\n{0}    pass",
    "except Exception": "try:\n{0}    {1}\n{0}except Exception as error:\n{0}    print(error)",
    "suppress": "with contextlib.suppress(ValueError):\n{0}    {1}",
    "raise": "try:\n{0}    {1}\n{0}except ValueError:\n{0}    raise",
    "KeyError": "try:\n{0}    {1}\n{0}except KeyError:\n{0}    pass",
}


@pytest.mark.parametrize("way", _TRIES)
@pytest.mark.parametrize(
    ("place", "call", "white"), [("handler", "check(x)", 4), ("loop", "net(x)", 8)]
)
def test_what_another_file_handles(way, place, call, white, tmp_path):
    """No assertion where the other file branches by the exception; a safe one where it raises it
    again, or handles others."""
    files = {"checks.py": _CHECKS}
    text = _CALLERS[place].format(try_=_TRIES[way].format(" " * white, call))
    files["train.py"] = f"import contextlib\n{text}"
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    support.command("--isolated", "--no-cache", str(tmp_path))
    safe = "_assert_async" in (tmp_path / "checks.py").read_text()
    support.command("--isolated", "--no-cache", "--unsafe-fixes", str(tmp_path))
    unsafe = "_assert_async" in (tmp_path / "checks.py").read_text()
    wanted = {"except ValueError": (False, False), "suppress": (False, False)}
    wanted["except Exception"] = (False, True)
    assert (safe, unsafe) == wanted.get(way, (True, True))
