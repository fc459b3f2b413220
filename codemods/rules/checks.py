"""DYN208: an exception raised under a condition on a tensor."""

import ast

from ..condition import Condition, condition
from ..edit import Safety
from .base import Rule


class RaiseIf(Rule):
    """
    Whether to raise is decided on the host. `torch._assert_async` checks on the device, with the same text, and stays
    in the graph; it raises a RuntimeError (on a GPU: later), so the fix is unsafe.
    """

    code, name, message = "DYN208", "raise-on-tensor", "an exception depends on a tensor's value"
    help = "use torch._assert_async, or check outside the compiled code"
    safety = Safety.UNSAFE
    dynamo = ("GB0170",)
    nodes = (ast.If,)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    if torch.isnan(x).any():
        raise ValueError("x has NaN")
    return torch.relu(x)
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    torch._assert_async(torch.logical_not(torch.isnan(x).any()), "x has NaN")
    return torch.relu(x)
"""

    def check(self, node, context):
        if len(node.body) != 1 or not isinstance(node.body[0], ast.Raise):
            return
        test = condition(node.test, context)
        if test is None:
            return
        built = test if isinstance(test, str) else self._fix(node, test, context)
        fix, kept = (None, built) if isinstance(built, str) else (built, "")
        yield context.finding(self, node.test, fix=fix, kept=kept)

    def _fix(self, node, test, context):
        found, text = context.torch(node), self._text(node.body[0])
        if found is None:
            return "`torch` is hidden by a local name"
        if node.orelse or context.source.indent_of(node) is None or not isinstance(test, Condition):
            return "the statement has an else, or is an `elif`"
        if text is None:
            return "the exception's text is computed"
        holds = test.text if test.negated else f"{found[0]}.logical_not({test.text})"
        edit = context.replacement(node, f"{found[0]}._assert_async({holds}, {context.segment(text)})")
        why = "it raises a RuntimeError, on a GPU later than the original"
        return context.fix("assert on the device", edit, safety=Safety.UNSAFE, why=why, imports=found[1])

    def _text(self, statement):
        call = statement.exc
        one = isinstance(call, ast.Call) and len(call.args) == 1 and not call.keywords and statement.cause is None
        literal = one and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
        return call.args[0] if literal else None
