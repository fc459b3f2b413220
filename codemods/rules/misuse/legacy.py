"""DYN905 to DYN907: what Dynamo refuses by name: the old Variable constructor, recurrent layers,
new leaves."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....lowering.opinfo import having
from ....rewriter.analysis.kinds import MODULE
from ....rewriter.source.import_places import after_imports
from ....rewriter.source.spans import Safety, hidden
from ....rewriter.transforms.compiled.trace_time_checks import is_a_tensor
from ...analysis.captured_walk import has_compiled_form
from ..base import Rule

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


VARIABLE = frozenset(["torch.autograd.Variable", "torch.autograd.variable.Variable"])
_TRANSFORMS = ("torch.func.", "torch.vmap", "torch.autograd.functional.", "functorch.")
_RECURRENT = frozenset(["torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN", "torch.nn.RNNBase"])


class LegacyVariable(Rule):
    """
    `Variable(t)` has meant `t.detach()` since tensors and variables became one: a tensor that
    shares the memory and carries no gradient history. Its constructor is a C function that breaks
    the graph; `.detach()` is an operator. Where the argument is not surely a tensor, compiled code
    alone gets it: eager raises what it raised.
    """

    code = "DYN905"
    safety = Safety.SAFE
    nodes = (ast.Call,)
    before = """
import torch
from torch.autograd import Variable


@torch.compile
def step(x: torch.Tensor):
    return x + Variable(torch.zeros(3))
"""
    after = """
import torch
from torch.autograd import Variable


@torch.compile
def step(x: torch.Tensor):
    return x + torch.zeros(3).detach()
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if context.resolve(node.func) not in VARIABLE or has_compiled_form(node, context):
            return
        plain = len(node.args) == 1 and all(_says_no_gradient(k) for k in node.keywords)
        if not plain or isinstance(node.args[0], ast.Starred):
            yield context.finding(self, node, kept="it is given more than a tensor")
            return
        inner, kind = node.args[0], context.kind(node.args[0])
        if kind.what not in ("tensor", "unknown"):
            yield context.finding(self, node, kept="its argument is no tensor")
            return
        plain = f"{context.atom(inner)}.detach()"
        found = context.torch(node)
        if kind.is_tensor and not kind.optional:
            edit = context.replacement(node, plain)
            fix = context.fix("use .detach()", edit, safety=Safety.SAFE)
        elif found is None:
            fix = hidden()
        else:
            asks = f"{found[0]}.compiler.is_compiling()"
            if isinstance(inner, ast.Name):
                asks += f" and {is_a_tensor(found[0], inner.id)}"
            edit = context.replacement(node, f"{plain} if {asks} else {context.segment(node)}")
            fix = context.fix("use .detach() when compiled", edit, imports=found[1])
        yield context.finding(self, node, fix=fix)


def _says_no_gradient(keyword: ast.keyword) -> bool:
    return (
        keyword.arg == "requires_grad"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is False
    )


class RecurrentLayer(Rule):
    """
    Dynamo breaks the graph at every `nn.LSTM`, `nn.GRU` and `nn.RNN` unless
    `torch._dynamo.config.allow_rnn` is set. Eager is untouched by that setting; it holds for the
    whole process and PyTorch calls it experimental: unsafe. Layers that are given packed sequences
    break more often with it, so a file that packs any is left alone.
    """

    code = "DYN906"
    safety = Safety.UNSAFE
    nodes = (ast.Attribute,)
    before = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 4)

    def forward(self, x):
        return self.rnn(x)[0]
"""
    after = """
import torch
from torch import nn

torch._dynamo.config.allow_rnn = True


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 4)

    def forward(self, x):
        return self.rnn(x)[0]
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        kind = context.kind(node)
        layer = kind.what == "module" and kind.cls in _RECURRENT
        if not layer or not isinstance(node.ctx, ast.Load) or _allowed(context):
            return
        if _packs(context):
            kept = (
                "packed sequences, which Dynamo does not trace, would break more often: the setting"
                " is the whole process's"
            )
            yield context.finding(self, node, kept=kept)
            return
        found = context.torch(node)
        edit = found and after_imports(
            context.source, f"{found[0]}._dynamo.config.allow_rnn = True", found[0]
        )
        if not edit:
            yield context.finding(self, node, kept="torch is not imported at the top of the file")
            return
        why = "a setting of the whole process, which PyTorch calls experimental"
        yield context.finding(
            self,
            node,
            fix=context.fix("allow recurrent layers", edit, safety=Safety.UNSAFE, why=why),
        )


def _packs(context: FileContext) -> bool:
    """Whether the file packs sequences: anywhere, or, where a run was traced, in what ran then."""
    ran = context.facts.captured if context.facts else frozenset()
    looked = (
        [f.node for f in context.program.functions if f.qualified in ran]
        if ran
        else [context.source.tree]
    )
    calls = (n for node in looked for n in ast.walk(node) if isinstance(n, ast.Call))
    return any(
        (context.names.resolve(c.func) or "").startswith("torch.nn.utils.rnn.pack_") for c in calls
    )


def _allowed(context: FileContext) -> bool:
    """Whether the file sets the option already, either way."""
    settings = (n for n in context.index.get(ast.Attribute, ()) if n.attr == "allow_rnn")
    return any(isinstance(n.ctx, ast.Store) for n in settings)


_FLOATS = frozenset(f"torch.{name}" for name in having("float_factory"))
_OTHERS = ("full", "tensor", "ones_like", "zeros_like", "rand_like")
_FACTORIES = _FLOATS | {f"torch.{name}" for name in _OTHERS}


class NewLeaf(Rule):
    """
    A tensor made with `requires_grad=True` is a new leaf, for which Dynamo breaks the graph.
    `.requires_grad_()` on the new tensor makes the same leaf, and is traced as long as nothing
    that carries its gradient is returned. Safe for factories that give floating point, as both
    forms raise for integers, in other words, and in files that transform no functions
    (`torch.func`, `torch.vmap`), inside of which `.requires_grad_()` raises. A store to
    `x.requires_grad` breaks the graph for any tensor; where it is switched off, `.detach()` gives
    what the code then computes with.
    """

    code = "DYN907"
    safety = Safety.SAFE
    nodes = (ast.Call, ast.Assign)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    scale = torch.ones(4, requires_grad=True)
    return (x * scale).sum().detach()
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    scale = torch.ones(4).requires_grad_()
    return (x * scale).sum().detach()
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if isinstance(node, ast.Assign):
            yield from self._stored(node, context)
            return
        name = context.resolve(node.func)
        keyword = next((k for k in node.keywords if k.arg == "requires_grad"), None)
        if (
            name not in _FACTORIES
            or keyword is None
            or getattr(keyword.value, "value", None) is False
        ):
            return
        parts = sorted([*node.args, *node.keywords], key=lambda n: (n.lineno, n.col_offset))
        at = parts.index(keyword)
        start, end = context.source.span(keyword)
        if at > 0:
            before = context.source.span(parts[at - 1])[1]  # parentheses may close behind it
            start = max(before, context.source.text.rfind(",", before, start))
        elif len(parts) > 1:
            end = context.source.span(parts[1])[0]
        always = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        shown = "" if always else context.segment(keyword.value)
        first, last = context.source.span(node)
        call = context.source.text[first:start] + context.source.text[end:last]
        edit = context.replacement(node, f"{call}.requires_grad_({shown})")
        others = any(k.arg in ("dtype", "out", None) for k in node.keywords)
        flag = always or (keyword is parts[-1] and context.kind(keyword.value).what == "bool")
        sure = flag and name in _FLOATS and not others
        why = "" if sure else "an exception may have another text"
        if sure and _transforms(context):
            why = "in a function that torch.func transforms it raises"
        safety = Safety.UNSAFE if why else Safety.SAFE
        yield context.finding(
            self, node, fix=context.fix("use .requires_grad_()", edit, safety=safety, why=why)
        )

    def _stored(self, node: ast.Assign, context: FileContext) -> Iterable[Finding]:
        """`x.requires_grad = flag`."""
        target = node.targets[0]
        if not isinstance(target, ast.Attribute) or target.attr != "requires_grad":
            return
        if context.kind(target.value).what in (MODULE, "self"):
            return
        fix, off = None, isinstance(node.value, ast.Constant) and node.value.value is False
        if off and isinstance(target.value, ast.Name) and len(node.targets) == 1:
            name = target.value.id
            edit = context.replacement(node, f"{name} = {name}.detach()")
            why = "who else holds the tensor sees no change of it"
            fix = context.fix("use .detach()", edit, safety=Safety.UNSAFE, why=why)
        yield context.finding(self, node, "`requires_grad` of a tensor is set", fix=fix)


def _transforms(context: FileContext) -> bool:
    """Whether the file names a transform of functions."""
    named = (*context.index.get(ast.Attribute, ()), *context.index.get(ast.Name, ()))
    return any((context.names.resolve(node) or "").startswith(_TRANSFORMS) for node in named)
