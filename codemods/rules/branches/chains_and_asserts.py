"""DYN203, DYN206, DYN207: chained comparisons, asserts and Python's builtins on tensors."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Fix, Refusal, Safety, hidden
from ....rewriter.transforms.chained_comparison import chosen
from ....rewriter.transforms.compiled.compiled_checks import asserting
from ....rewriter.transforms.condition import condition, host_read
from ..base import Rule
from ..host.host_read import in_test, is_logged
from .exception_flow import losses

if TYPE_CHECKING:
    from ....rewriter.analysis.kinds import Kind
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


class ChainedComparison(Rule):
    """
    `low < t < high` asks for the truth of `low < t` on the host before it compares again.
    `torch.logical_and` of both comparisons stays a tensor, and works for any number of elements;
    the original gives the first comparison where that is False, else the second: the same truth,
    but both are computed, so the fix is unsafe.
    """

    code = "DYN203"
    safety = Safety.UNSAFE
    nodes = (ast.Compare,)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    y = x.sum()
    return torch.where(0 < y < 1, x, -x)
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    y = x.sum()
    return torch.where(torch.logical_and(0 < y, y < 1), x, -x)
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        built = chosen(node, context)
        if built is not None:
            yield context.finding(self, node, fix=built)


class TensorAssert(Rule):
    """
    `assert` on a tensor's value reads it on the host. Dynamo turns the form with a constant text,
    or none, into `torch._assert_async` by itself; with a computed text, a `.item()` in the test, or
    `not`, `and` or `or` around it, the graph breaks. The fix writes that call for compiled code,
    with the test's own source for a computed text: a RuntimeError is raised there (on a GPU:
    later). Eager asserts as before.
    """

    code = "DYN206"
    safety = Safety.SAFE
    nodes = (ast.Assert,)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    assert (x > 0).all(), f"{x.min()} is not positive"
    return torch.log(x)
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    if torch.compiler.is_compiling():
        torch._assert_async((x > 0).all(), "(x > 0).all()")
    else:
        assert (x > 0).all(), f"{x.min()} is not positive"
    return torch.log(x)
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        constant = node.msg is None or isinstance(node.msg, ast.Constant)
        read = any(host_read(n, context) is not None for n in ast.walk(node.test))
        read = read or _jumps(node.test)
        test = None if constant and not read else condition(node.test, context)
        if test is None:
            return
        found = context.torch(node)
        if isinstance(test, str) or found is None:
            refusal = Refusal(test) if isinstance(test, str) else hidden()
            yield context.finding(self, node.test, fix=refusal)
            return
        holds = f"{found[0]}.logical_not({test.text})" if test.negated else test.text
        known = node.msg is not None and constant and isinstance(node.msg.value, str)
        text = context.segment(node.msg) if known else quoted(context.segment(node.test))
        compiled = asserting(node, text, context, losses(node, context))
        if isinstance(compiled, Fix):
            yield context.finding(self, node.test, fix=compiled)
            return
        edit = context.replacement(node, f"{found[0]}._assert_async({holds}, {text})")
        lost = "" if constant else "the computed text is lost, and "
        why = f"{lost}it raises a RuntimeError, on a GPU later than the original"
        fix = context.fix(
            "assert on the device", edit, safety=Safety.UNSAFE, why=why, imports=found[1]
        )
        yield context.finding(self, node.test, fix=fix)


def _jumps(test: ast.expr) -> bool:
    """Whether Python jumps within a test, or where it is false: Dynamo knows an assertion by the
    one jump over its `raise`."""
    negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    return negated or isinstance(test, (ast.BoolOp, ast.IfExp))


def quoted(text: str) -> str:
    """A string literal of some source on one line."""
    shown = " ".join(text.split()).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{shown}"'


class BuiltinOnTensor(Rule):
    """
    `max(a, b)`, `min(a, b)`, `any(t)`, `all(t)` and `sorted(t)` compare tensors one by one, each
    comparison read on the host. `torch.maximum`, `torch.minimum`, `t.any()` and `t.all()` are
    operators: unsafe, for ties share their gradient there, NaN wins, and `any` and `all` give a
    tensor. torch 2.13 traces `max` and `min` as these operators: they are reported where
    `target-torch` is older.
    """

    code = "DYN207"
    safety = Safety.UNSAFE
    nodes = (ast.Call,)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    return x * any(torch.arange(4) > x.mean())
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    return x * (torch.arange(4) > x.mean()).any()
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in ("max", "min", "any", "all", "sorted") or context.resolve(node.func) != name:
            return
        if is_logged(node, context) or not any(context.kind(a).is_tensor for a in node.args):
            return
        plain = name in ("max", "min") and not node.keywords
        if plain and not context.settings.targets_before("2.13"):
            return  # no break
        built = self._fix(node, name, context)
        yield context.finding(self, node, fix=built)

    def _fix(self, node: ast.Call, name: str, context: FileContext) -> Any:
        kinds, found = [context.kind(a) for a in node.args], context.torch(node)
        if node.keywords or found is None or any(isinstance(a, ast.Starred) for a in node.args):
            return Refusal("it is called with more than tensors")
        if (
            name in ("any", "all")
            and len(kinds) == 1
            and (in_test(node, context) or kinds[0].rank == 1)
        ):
            shown = f"{context.atom(node.args[0])}.{name}()"
        elif name in ("max", "min") and len(kinds) == 2:
            shown = self._extreme(node, name, kinds, found[0], context)
        else:
            shown = ""
        if not shown:
            return Refusal("there is no operator that does the same")
        why = "ties share their gradient, NaN wins, and the result is a tensor"
        edit = context.replacement(node, shown)
        return context.fix(
            "use the operator", edit, safety=Safety.UNSAFE, why=why, imports=found[1]
        )

    def _extreme(
        self, node: ast.Call, name: str, kinds: list[Kind], torch: str, context: FileContext
    ) -> str:
        if all(k.is_tensor for k in kinds):
            if any(
                k.rank != 0 and k.shape not in context.inference.tokens.one_element for k in kinds
            ):
                return ""  # several elements raise, and may be another method's business
            shown = ", ".join(context.segment(a) for a in node.args)
            return f"{torch}.{name}imum({shown})"
        tensor, number = node.args if kinds[0].is_tensor else reversed(node.args)
        if not context.kind(number).is_number or context.kind(tensor).rank != 0:
            return ""
        bound = "min" if name == "max" else "max"
        return f"{torch}.clamp({context.segment(tensor)}, {bound}={context.segment(number)})"
