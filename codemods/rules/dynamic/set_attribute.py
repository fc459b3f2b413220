"""DYN401: setattr with a name that is known."""

from __future__ import annotations

import ast
import keyword
import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.kinds import STR
from ....rewriter.analysis.name_scopes import rebindings
from ....rewriter.source.spans import Safety
from ...analysis.findings import NOTE
from ..base import Rule

if TYPE_CHECKING:
    from ....rewriter.source.spans import Fix
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class SetAttribute(Rule):
    """
    An attribute that is stored under a computed name cannot be guarded, and older releases refuse
    it under capture; torch 2.13 does not. Where the name is a known string, a plain assignment does
    the same, and is safe. A name that is truly computed is only reported.
    """

    code = "DYN401"
    whole_since = "2.13"
    safety = Safety.SAFE
    nodes = (ast.Expr,)
    before = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        setattr(self, "last", x.detach())
        return torch.relu(x)
"""
    after = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        self.last = x.detach()
        return torch.relu(x)
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        call = node.value
        known = (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and context.resolve(call.func) == "setattr"
        )
        if (
            not known
            or len(call.args) != 3
            or call.keywords
            or any(isinstance(a, ast.Starred) for a in call.args)
        ):
            return
        owner, name, value = call.args
        text = context.kind(name).const
        if context.kind(name).what != STR or not isinstance(text, str):
            if context.settings.targets_before("2.13"):
                yield context.finding(self, node, kept="the name is computed", level=NOTE)
        elif not _plain(text):
            yield context.finding(
                self, node, kept=f"{text!r} is no plain attribute name", level=NOTE
            )
        elif not isinstance(owner, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)):
            yield context.finding(self, node, kept="the owner is no name or attribute", level=NOTE)
        else:
            yield context.finding(
                self, node, fix=self._fix(node, owner, text, value, context), level=NOTE
            )

    def _fix(
        self, node: ast.Expr, owner: Any, name: str, value: ast.expr, context: FileContext
    ) -> Fix:
        edit = context.replacement(node, f"{context.atom(owner)}.{name} = {context.shown(value)}")
        same = _in_either_order(owner, value, context)
        why = "the value is computed before the owner"
        return context.fix(
            "assign to it",
            edit,
            safety=Safety.SAFE if same else Safety.UNSAFE,
            why="" if same else why,
        )


def _in_either_order(owner: ast.expr, value: ast.expr, context: FileContext) -> bool:
    """Whether the owner is the same, and raises nothing new, when the value is computed first."""
    if _is_made_of(value, ast.Name, ast.Constant):
        return _is_made_of(owner, ast.Name, ast.Attribute, ast.Constant)
    scope: Any = context.parent(owner)
    while scope is not None and not isinstance(scope, _SCOPES):
        scope = context.parent(scope)
    if not isinstance(owner, ast.Name) or scope is None or isinstance(scope, ast.ClassDef):
        return False
    stored = {n.target.id for n in ast.walk(value) if isinstance(n, ast.NamedExpr)}
    return owner.id in rebindings(scope).places and owner.id not in stored


def _is_made_of(node: ast.expr, *kinds: type) -> bool:
    return all(isinstance(n, (*kinds, ast.Load)) for n in ast.walk(node))


def _plain(text: str) -> Any:
    """Whether `owner.text` names the attribute `text`: Python normalizes and mangles names in
    source, and `setattr` does not."""
    same = unicodedata.normalize("NFKC", text) == text
    return same and text.isidentifier() and not keyword.iskeyword(text) and text[:2] != "__"
