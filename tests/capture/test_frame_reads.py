"""Code that reads frames finds the user's, in recorded calls and after."""

import collections
import enum
import inspect
import io
import sys
import traceback
import typing

import pytest
import torch
from helpers import Case, X, same


def _own_name(x):
    return x * 2, sys._getframe().f_code.co_name


def _variables(x):
    y = x * 2
    frame = inspect.currentframe()
    return y, frame.f_code.co_name, sorted(frame.f_locals)


def _stack(x):
    found = inspect.stack()
    return x * len(found[0].function), found[0].function, found[0].lineno


def _printed(x):
    text = io.StringIO()
    traceback.print_stack(file=text, limit=1)
    return x * 2, text.getvalue(), traceback.extract_stack()[-1].name


def _module_of_a_class(x):
    made = collections.namedtuple("made", "a b")
    return x * 2, made.__module__, made(1, 2).a, type("Made", (), {}).__module__


def _module_of_a_captured_class(x):
    return x * 2, type("Made", (), {"a": 1}).__module__


def _modules_of_made_classes(x):
    number = enum.IntEnum("Number", "one two")
    fields = [("a", int)]
    pair = typing.NamedTuple("Pair", fields)
    return x * 2, number.__module__, pair.__module__, pair(1).a + number.two


FUNCTIONS = [
    *(_own_name, _variables, _stack, _printed),
    *(_module_of_a_class, _module_of_a_captured_class, _modules_of_made_classes),
]


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_reads_in_the_function(fn):
    same(lambda: fn, *[(X,)] * 5)


def _caller():
    return sys._getframe(1).f_code.co_name


def _callers_caller():
    return inspect.currentframe().f_back.f_code.co_name


def test_a_helper_that_asks_who_called_it():
    def make():
        torch.manual_seed(0)
        layer, told = torch.nn.Linear(3, 3), []

        def fn(x):
            y = layer(x)
            told.append(_caller())
            z = y.sin() * 2
            return z, _callers_caller(), z.cos()

        return Case(fn=fn, watch=lambda: list(told))

    same(make, *[(X,)] * 6)
