"""DYN804: attention that is written out, as the one call that torch has for it."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Edit, Refusal, Safety
from ..base import Rule
from .attention_parts import Attention, may_be_product
from .imported_names import IMPORTS, full_names, local_name, named_at
from .statement_steps import OtherForm, Unclear

if TYPE_CHECKING:
    from ....rewriter.source.spans import Fix
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding

_CALL = "scaled_dot_product_attention"
_WHY = "fused kernels sum in another order, and draw dropout in another way"
_WHY_MASKED = f"{_WHY}; a row that is masked as a whole gives zeros"


class HandWrittenAttention(Rule):
    """
    `softmax(q @ k.transpose(-2, -1) / sqrt(d)) @ v` stores a matrix of weights for every head, and
    runs as several kernels. `F.scaled_dot_product_attention` gives the same in one, of which flash
    and memory-efficient forms exist. Scales, masks (added, or `masked_fill`), dropout, einsum and
    steps over several statements are followed. Where the weights are used afterwards nothing is
    changed. Unsafe: results differ in the last digits (`--verify` compares them with a tolerance).
    """

    code = "DYN804"
    safety = Safety.UNSAFE
    rounds = True
    nodes = (ast.BinOp, ast.Call)
    whole_file = True
    before = """
import math

import torch
import torch.nn.functional as F


def attend(q, k, v, mask):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    scores = scores.masked_fill(mask == 0, float("-inf"))
    weights = F.softmax(scores, dim=-1)
    return weights @ v
"""
    after = """
import math

import torch
import torch.nn.functional as F


def attend(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask != 0)
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if context.settings.targets_before("2.1") or not may_be_product(node):
            return
        try:
            attention = Attention(node, context)
        except OtherForm:
            return
        except Unclear as why:
            yield context.finding(self, node, kept=str(why))
            return
        yield context.finding(self, node, fix=_fix(attention, context))


def _fix(attention: Attention, context: FileContext) -> Fix | Refusal:
    node = attention.node
    found = _written(node, context)
    if isinstance(found, Refusal):
        return found
    call = attention.arranged(f"{found[0]}({', '.join(attention.arguments())})")
    edits: list[Edit | Refusal] = [context.replacement(node, call)]
    edits += attention.deletions()
    why = _WHY_MASKED if attention.masks else _WHY
    title = "use scaled_dot_product_attention"
    return context.fix(title, *edits, safety=Safety.UNSAFE, why=why, imports=found[1])


def _written(node: ast.AST, context: FileContext) -> tuple[str, tuple[str, ...]] | Refusal:
    """How the function is called at a node: by the file's own name for torch.nn.functional."""
    full = f"torch.nn.functional.{_CALL}"
    for statement in context.source.tree.body:
        for alias, name in full_names(statement) if isinstance(statement, IMPORTS) else ():
            bound = local_name(alias)
            if name == "torch.nn.functional" and not context.is_hidden(bound, node):
                return (full if bound == name else f"{bound}.{_CALL}"), ()
    return named_at(full, node, context)
