"""Errors of the user's code: the traceback shows that code, not what recorded or ran it."""

import traceback
from pathlib import Path

import dynfix
import pytest
import torch
from dynfix.rewriter.frontend.tracebacks import without_own_frames

OWN = Path(dynfix.__file__).parent


def helper(x):
    if x.shape[0] == 3:
        return x.view(7)
    return x + 1


def function(x):
    return helper(x * 2).sum()


class Layer(torch.nn.Module):
    def forward(self, x):
        return helper(x * 2)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer()

    def forward(self, x):
        return self.layer(x).sum()


def frames(call, *args):
    """Names of the functions of the traceback, and how many of them are the package's own."""
    with pytest.raises(RuntimeError, match="invalid for input of size 3") as caught:
        call(*args)
    shown = traceback.extract_tb(caught.value.__traceback__)
    own = [f for f in shown if OWN in Path(f.filename).parents and f.filename != __file__]
    return [f.name for f in shown if f not in own and "torch/nn" not in f.filename][1:], len(own)


@pytest.mark.parametrize("made", [lambda: function, Model, lambda: Model().forward])
def test_the_frames_are_the_users(made):
    eager = made()
    call = dynfix.compile(eager)
    expected, none = frames(eager, torch.randn(3))
    assert none == 0
    for size in (4, 3, 4, 3, 3):
        if size == 4:
            call(torch.randn(4))
        else:
            found, own = frames(call, torch.randn(3))
            assert found == expected
            assert own <= 1


def test_what_an_error_was_raised_from():
    def fn(x):
        try:
            return helper(x)
        except RuntimeError as error:
            raise ValueError("a bad size") from error

    call = dynfix.compile(fn)
    for _ in range(3):
        with pytest.raises(ValueError, match="a bad size") as caught:
            call(torch.randn(3))
        shown = traceback.extract_tb(caught.value.__cause__.__traceback__)
        assert [frame.name for frame in shown] == ["fn", "helper"]


def test_a_module_was_called_as_in_eager():
    """The line of `nn.Module.__call__` at which a compiled form is called is not shown."""
    before = torch.nn.Module._compiled_call_impl
    torch.nn.Module._compiled_call_impl = property(lambda self: lambda *args: self.forward(*args))
    try:
        with pytest.raises(RuntimeError) as caught:
            Model()(torch.randn(3))
    finally:
        torch.nn.Module._compiled_call_impl = before
    without_own_frames(caught.value)
    with pytest.raises(RuntimeError) as eager:
        Model()(torch.randn(3))
    called = [
        (each.lineno, each.line, getattr(each, "colno", None))
        for error in (caught.value, eager.value)
        for each in traceback.extract_tb(error.__traceback__)
        if each.name == "_wrapped_call_impl"
    ]
    assert len(called) == 4 and called[:2] == called[2:]
