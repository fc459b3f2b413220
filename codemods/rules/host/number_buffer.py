"""DYN107: buffers that hold Python numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Edit, Safety
from ...analysis.integer_buffers import Buffers, Method
from ...cli.suppressions import Suppressions
from ..base import Rule

if TYPE_CHECKING:
    from ....rewriter.source.spans import Fix
    from ...analysis.definitions import Class, Function
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_WHY = (
    "the methods compute with Python numbers, in double precision, and give a Python number where"
    " they gave a tensor; models that were pickled whole lack the numbers"
)


class NumberBuffer(Rule):
    """
    A buffer made of a Python int (a stride, a padding) is read on the host wherever torch wants a
    number: `pad`, `zeros`, a slice. The number itself, kept beside the buffer, is a constant to
    Dynamo. Methods of the class that compute with such buffers and sizes alone then use the
    numbers. Only for buffers that no state dict holds.
    """

    code = "DYN107"
    safety = Safety.UNSAFE
    nodes = (ast.Module,)
    whole_file = True
    before = """
import torch
from torch import nn
import torch.nn.functional as F


class Pad(nn.Module):
    def __init__(self, stride: int):
        super().__init__()
        self.register_buffer("stride", torch.tensor(stride, dtype=torch.int64), persistent=False)

    def extra(self, x: torch.Tensor):
        n = torch.ceil(x.shape[-1] / self.stride).to(torch.int64)
        return n * self.stride - x.shape[-1]

    def forward(self, x: torch.Tensor):
        return F.pad(x, (0, self.extra(x)))
"""
    after = """
import math
import torch
from torch import nn
import torch.nn.functional as F


class Pad(nn.Module):
    def __init__(self, stride: int):
        super().__init__()
        self.register_buffer("stride", torch.tensor(stride, dtype=torch.int64), persistent=False)
        self.stride_number = stride

    def extra(self, x: torch.Tensor):
        n = math.ceil(x.shape[-1] / self.stride_number)
        return n * self.stride_number - x.shape[-1]

    def forward(self, x: torch.Tensor):
        return F.pad(x, (0, self.extra(x)))
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        lines = [k.lineno for k in context.index.get(ast.keyword, ()) if k.arg == "persistent"]
        for cls in context.program.classes.values() if lines else ():
            has = any(cls.node.lineno <= line <= cls.node.end_lineno for line in lines)
            if has and cls.is_module and "__init__" in cls.methods:
                yield from self._class(cls, context)

    def _class(self, cls: Class, context: FileContext) -> Iterator[Finding]:
        buffers = Buffers(cls, context)
        methods = [m for m in cls.methods.values() if m.node in context.functions and m.self_name]
        chosen = _whole(methods, buffers.numbers, context) if buffers.numbers else []
        if not any(m.feeds for m in chosen):
            return
        edits = [*buffers.edits, *(e for m in chosen for e in m.edits)]
        rounds = any(e.text.startswith("math.") for e in edits if isinstance(e, Edit))
        imports = ("math",) if rounds and context.names.aliases.get("math") != "math" else ()
        fix = context.fix(
            "compute with the numbers", *edits, safety=Safety.UNSAFE, why=_WHY, imports=imports
        )
        yield from self._reported(
            _statements(cls.node, [e for e in edits if isinstance(e, Edit)], context), fix, context
        )

    def _reported(
        self, statements: list[ast.stmt], fix: Fix, context: FileContext
    ) -> Iterator[Finding]:
        """Every statement that the fix changes is reported; one that is told to stay keeps all of
        them."""
        suppressions = Suppressions(context.source)
        stays = any(suppressions.covers(self.code, s.lineno, s.end_lineno) for s in statements)
        kept = "another use of the buffer is told to stay as it is" if stays else ""
        for statement in statements:
            yield context.finding(self, statement, fix=None if stays else fix, kept=kept)


def _statements(cls: ast.ClassDef, edits: list[Edit], context: FileContext) -> list[ast.stmt]:
    """The innermost statements that edits stand in, or right before or behind, in their order."""
    inner = [n for n in ast.walk(cls) if isinstance(n, ast.stmt) and n is not cls]
    spans = {n: context.source.span(n) for n in inner}
    plain = sorted((n for n in inner if not hasattr(n, "body")), key=spans.get)
    found = []
    for edit in edits:
        around = [
            n
            for n in inner
            if spans[n][0] <= edit.start and edit.end <= spans[n][1] and not _holds(n, edit, spans)
        ]
        begins = context.source.text[: edit.start].rstrip(" \t")[-1:] in "\r\n"
        above = [n for n in plain if spans[n][1] <= edit.start]
        below = [n for n in plain if begins and spans[n][0] >= edit.start][:1]
        apart = bool(below and above) and context.parent(below[0]) is not context.parent(above[-1])
        found += [around[-1]] if around else above[-1:] if apart else below or above[-1:]
    return sorted(dict.fromkeys(found), key=lambda n: n.lineno)


def _holds(statement: ast.stmt, edit: Edit, spans: dict[ast.stmt, tuple[int, int]]) -> bool:
    """Whether an edit stands between the statements of a block."""
    body = getattr(statement, "body", None)
    return bool(body) and edit.start > spans[body[0]][0]


def _whole(methods: list[Function], numbers: dict[str, str], context: FileContext) -> list[Method]:
    """The methods that can compute with numbers, callers after what they call; none where one could
    not do without the tensor that another gave."""
    giving = set()
    while True:
        tried = [Method(m, numbers, giving, context) for m in methods]
        now = {m.function.name for m in tried if m.whole and m.gives and m.edits}
        if now == giving:
            break
        giving = giving | now if now > giving else giving & now
    calls = {m.function.name for m in tried if not m.whole and _calls(m.function, giving)}
    return [] if calls else [m for m in tried if m.whole and (m.edits or m.feeds)]


def _calls(function: Function, names: set[str]) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr in names for n in ast.walk(function.node))
