"""DYN208, DYN209: an exception raised under a condition on a tensor, and calls that check one."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Fix, Refusal, Safety, hidden
from ....rewriter.transforms.compiled.compiled_checks import checking, raising
from ....rewriter.transforms.condition import Condition, condition, host_read
from ..base import Rule
from ..effects.compile_guards import count_calls, guard, raised, run_of
from .chains_and_asserts import quoted
from .exception_flow import decides_flow, losses

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_CHECKS = frozenset(
    f"torch.{name}"
    for name in (
        "_check",
        "_check_index",
        "_check_value",
        "_check_type",
        "_check_with",
        "_check_tensor_all",
    )
)
# Of other libraries; where they import it themselves the name is relative, so that only its tail is
# known.
_TAILS = (".torch_compilable_check",)


class RaiseIf(Rule):
    """
    Whether to raise is decided on the host. `torch._assert_async` checks on the device and stays in
    the graph. Compiled code gets it under `if torch.compiler.is_compiling():`: it raises a
    RuntimeError (on a GPU: later) with the same text, or the test's own source where the text is
    computed. Eager raises exactly as before.
    """

    code = "DYN208"
    safety = Safety.SAFE
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
    if torch.compiler.is_compiling():
        torch._assert_async(torch.logical_not(torch.isnan(x).any()), "x has NaN")
    elif torch.isnan(x).any():
        raise ValueError("x has NaN")
    return torch.relu(x)
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if raised(node.body, context) is None:
            return
        test = condition(node.test, context)
        if test is None:
            return
        built = Refusal(test) if isinstance(test, str) else self._fix(node, test, context)
        yield context.finding(self, node.test, fix=built)

    def _fix(self, node: ast.If, test: Condition, context: FileContext) -> Fix | Refusal:
        if decides_flow(node, context):
            return Refusal("its exception is handled, and the program goes on")
        found, text = context.torch(node), self._text(node.body[-1])
        shown = context.segment(text) if text is not None else quoted(context.segment(node.test))
        compiled = raising(node, shown, context, losses(node, context))
        if isinstance(compiled, Fix):
            context.eager_only.update(node.body if compiled.safety is Safety.SAFE else ())
            return replace(compiled, silent=sum(count_calls(s, context) for s in node.body))
        if found is None:
            return hidden()
        if len(node.body) > 1:
            return compiled
        if node.orelse or context.source.indent_of(node) is None or not isinstance(test, Condition):
            return Refusal("the statement has an else, or is an `elif`")
        if text is None:
            return Refusal("the exception's text is computed")
        holds = test.text if test.negated else f"{found[0]}.logical_not({test.text})"
        edit = context.replacement(
            node, f"{found[0]}._assert_async({holds}, {context.segment(text)})"
        )
        why = "it raises a RuntimeError, on a GPU later than the original"
        return context.fix(
            "assert on the device", edit, safety=Safety.UNSAFE, why=why, imports=found[1]
        )

    def _text(self, statement: Any) -> Any:
        call = statement.exc
        one = (
            isinstance(call, ast.Call)
            and len(call.args) == 1
            and not call.keywords
            and statement.cause is None
        )
        literal = (
            one and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
        )
        return call.args[0] if literal else None


class RuntimeCheck(Rule):
    """
    `torch._check` and what is built on it read a tensor's condition on the host, and format their
    text from it. Compiled code gets `torch._assert_async` of the same condition, which stays in the
    graph: a RuntimeError (on a GPU: later), with the text where it is constant. Eager checks
    exactly as before. What has no such form is made under `if not torch.compiler.is_compiling():`:
    the compiled code does not check then, so that fix is unsafe.
    """

    code = "DYN209"
    safety = Safety.SAFE
    nodes = (ast.Expr,)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    torch._check_tensor_all(x > 0, lambda: "x must be positive")
    return torch.log(x)
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    if torch.compiler.is_compiling():
        torch._assert_async((x > 0).all(), "x must be positive")
    else:
        torch._check_tensor_all(x > 0, lambda: "x must be positive")
    return torch.log(x)
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if not _reads(node, context):
            return
        compiled = checking(
            node,
            _message_source(node, context),
            context,
            losses(node, context),
            _all(node, context),
        )
        if isinstance(compiled, Fix):
            yield context.finding(self, node, fix=compiled)
            return
        built = guard(run_of(node, context, lambda s: _reads(s, context)), context)
        if isinstance(built, Refusal):
            yield context.finding(self, node, fix=built)
            return
        fix = replace(
            built,
            title="check in eager only",
            safety=Safety.UNSAFE,
            why="the compiled code does not check",
        )
        yield context.finding(self, node, fix=fix)


def _all(node: ast.Expr, context: FileContext) -> bool:
    """Whether every element of a tensor is checked."""
    name = context.resolve(node.value.func) or ""
    return name.endswith(("._check_tensor_all", *_TAILS))


def _message_source(node: ast.Expr, context: FileContext) -> str:
    """The source of the text: its own where that is constant, else that of the condition."""
    call = node.value
    given = [*call.args[1:2], *(k.value for k in call.keywords if k.arg in ("msg", "message"))]
    text = given[0].body if given and isinstance(given[0], ast.Lambda) else (given or [None])[0]
    if isinstance(text, ast.Constant) and isinstance(text.value, str):
        return context.segment(text)
    return quoted(context.segment(call.args[0]))


def _reads(statement: ast.stmt, context: FileContext) -> bool:
    """Whether a statement is a check that needs a tensor's value, for its condition or its text."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not call.args:
        return False
    name = context.resolve(call.func) or ""
    if name not in _CHECKS and not name.endswith(_TAILS):
        return False
    parts = [n for a in call.args for n in ast.walk(a)]
    kinds = [
        context.kind(call.args[0]),
        *(context.kind(n.value) for n in parts if isinstance(n, ast.FormattedValue)),
    ]
    return any(k.is_tensor or k.host for k in kinds) or any(
        host_read(n, context) is not None for n in parts
    )
