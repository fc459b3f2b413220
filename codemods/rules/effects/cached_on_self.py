"""DYN308: a list of a module that grows at every call."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Refusal, Safety
from ...analysis.growing_attributes import attributes, stored_values
from ..base import Rule
from .grown import guard_each

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding
    from ...analysis.growing_attributes import Growth


_WHY = "compiled code keeps nothing: `{0}` then holds what eager calls put there"


class KeptOnSelf(Rule):
    """
    Dynamo adds to a list of the module as a side effect after the graph, without a break, but
    guards the list's length: each call finds another one and compiles again, and after eight times
    (`recompile_limit`) the code is left to eager for good. One attribute that is overwritten, or a
    dict entry under a key that stays, costs nothing. Where nothing in the file reads the list, it
    is filled in eager alone, at all places or at none: unsafe, for readers elsewhere find nothing
    from compiled calls. A list that captured code, or code outside the class, empties again is no
    matter.
    """

    code = "DYN308"
    safety = Safety.UNSAFE
    nodes = (ast.Module,)
    whole_file = True
    before = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        y = torch.relu(x)
        self.seen.append(y.detach())
        return y
"""
    after = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        y = torch.relu(x)
        if not torch.compiler.is_compiling():
            self.seen.append(y.detach())
        return y
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        for attribute in attributes(context, stored_values, ast.Expr, ast.AugAssign, ast.Assign):
            growths = [g for g in attribute.growths if _fits(g, attribute.stores, context)]
            if attribute.reset or not attribute.stores or len(growths) < len(attribute.growths):
                continue
            guards = guard_each(growths, _WHY.format(attribute.attr), context)
            for growth in growths:
                read = attribute.read_by()
                built = Refusal(read) if read else guards[growth]
                yield context.finding(self, growth.node, fix=built)


def _fits(growth: Growth, stores: list[ast.expr | None], context: FileContext) -> bool:
    """Whether the attribute surely is what the statement makes longer: a list, a dict, or a dict or
    a list of lists."""
    fits = _is_list
    if isinstance(growth.node, ast.Expr) and not isinstance(
        growth.node.value.func.value, ast.Attribute
    ):
        fits = _holds_lists
    elif isinstance(growth.node, ast.Assign) and isinstance(growth.node.targets[0], ast.Subscript):
        fits = _is_dict
    return all(v is not None and fits(v, context) for v in stores)


def _is_dict(node: ast.Dict, context: FileContext) -> bool:
    if isinstance(node, ast.Dict):
        return True
    return isinstance(node, ast.Call) and context.names.resolve(node.func) in (
        "dict",
        "collections.OrderedDict",
    )


def _is_list(node: ast.expr, context: FileContext) -> bool:
    if isinstance(node, (ast.List, ast.ListComp)):
        return True
    return isinstance(node, ast.Call) and context.names.resolve(node.func) == "list"


def _holds_lists(node: ast.expr, context: FileContext) -> bool:
    if isinstance(node, (ast.DictComp, ast.ListComp)):
        return _is_list(node.value if isinstance(node, ast.DictComp) else node.elt, context)
    if isinstance(node, (ast.Dict, ast.List)):
        values = node.values if isinstance(node, ast.Dict) else node.elts
        return all(v is not None and _is_list(v, context) for v in values)
    name = context.names.resolve(node.func) if isinstance(node, ast.Call) else None
    return (name == "dict" and not (node.args or node.keywords)) or (
        name == "collections.defaultdict"
        and [context.names.resolve(a) for a in node.args] == ["list"]
    )
