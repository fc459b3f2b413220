"""DYN406: an attribute of a dict whose `__getattr__` is dict's own method."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Safety
from ..base import Rule

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


class DictAttribute(Rule):
    """
    A dict with `__getattr__ = dict.__getitem__` (or `dict.get`) answers `config.width` from its
    items. Dynamo breaks there, for that method is no Python function. `config["width"]` is the same
    lookup, where the object has no such attribute of its own: safe where the class has `__setattr__
    = dict.__setitem__` as well, so that it can have none.
    """

    code = "DYN406"
    safety = Safety.SAFE
    nodes = (ast.Attribute,)
    before = """
import torch
from torch import nn


class Config(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config(scale=2)

    def forward(self, x):
        return x * self.config.scale
"""
    after = """
import torch
from torch import nn


class Config(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config(scale=2)

    def forward(self, x):
        return x * self.config["scale"]
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        kind = context.kind(node.value)
        if (
            kind.what != "dict with attributes"
            or not isinstance(node.ctx, ast.Load)
            or hasattr(dict, node.attr)
        ):
            return
        parent = context.parent(node)
        if isinstance(parent, ast.Call) and parent.func is node:
            return  # a method of the class, more likely
        spec, _, names = kind.cls.partition(":")
        if node.attr in names.split(","):
            return
        base = context.atom(node.value)
        shown = (
            f'{base}["{node.attr}"]'
            if spec.endswith("__getitem__")
            else f'{base}.get("{node.attr}")'
        )
        edit = context.replacement(node, shown)
        sure = self._stores_items(spec, context) and not _may_be_stored(node.attr, context)
        why = "" if sure else "an attribute stored on the object itself would be passed over"
        safety = Safety.UNSAFE if why else Safety.SAFE
        yield context.finding(
            self, node, fix=context.fix("look up the item", edit, safety=safety, why=why)
        )

    def _stores_items(self, spec: str, context: FileContext) -> bool:
        """Whether the class, of this file, makes items of stored attributes, too, and nothing in
        the file goes past it."""
        if any(_goes_past(n) for n in context.index.get(ast.Attribute, ())):
            return False
        cls = context.program.classes.get(spec.partition(".")[0])
        return cls is not None and any(
            ast.unparse(s) == "__setattr__ = dict.__setitem__" for s in cls.node.body
        )


def _goes_past(node: ast.Attribute) -> bool:
    """`object.__setattr__`, `config.__dict__`."""
    return node.attr in ("__dict__", "__setattr__")


def _may_be_stored(name: str, context: FileContext) -> bool:
    """Whether the file may store an attribute of that name in the class, or change how it looks
    attributes up."""
    stores = context.program.stores
    changed = {name, "__getattr__", "__getattribute__", "__getitem__", "__setattr__"}
    if stores.anything or changed & stores.by_name:
        return True
    return any(
        n.attr in changed
        and not isinstance(n.ctx, ast.Load)
        and context.kind(n.value).what != "dict with attributes"
        for n in context.index.get(ast.Attribute, ())
    )
