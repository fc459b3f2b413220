"""An exception that the file handles, and goes on, is no check that fails."""

import pytest
from dynfix.codemods.cli import check, notebook, settings

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
