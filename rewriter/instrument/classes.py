"""Class statements inside a function: the body runs as it is, so what it reads is told beforehand.

`class Q(Base):` -> `class Q(*__df.class_reads((lambda: …,), computes), __df.class_base(Base)):`;
the first adds no base.
"""

from collections.abc import Iterator
from typing import Any

import libcst as cst

from ..source.scope import NameKind, imported_names, target_names
from .conversion import ConversionContext
from .form import template
from .functions import decorators
from .tree import COMPREHENSIONS, SCOPES, children, swap

_COMPUTING = (
    cst.Call,
    cst.Attribute,
    cst.Subscript,
    cst.BinaryOperation,
    cst.UnaryOperation,
    cst.Comparison,
    cst.BooleanOperation,
    cst.IfExp,
    cst.If,
    cst.While,
    cst.For,
    cst.With,
    cst.FormattedString,
    cst.Import,
    cst.ImportFrom,
    cst.Del,
    cst.StarredElement,
    cst.StarredDictElement,
    *COMPREHENSIONS,
)


def convert(node: cst.ClassDef, cx: ConversionContext) -> Any:
    if cx.scope.resolve(node.name.value) is not NameKind.LOCAL:
        raise cx.unsupported(f"a definition of the global or nonlocal name {node.name.value!r}")
    inside = list(_evaluated(node.body))
    names = sorted({each.value for each in inside if isinstance(each, cst.Name)} - _own(inside))
    computes = any(isinstance(each, _COMPUTING) for each in inside)
    reads = [part for name in names for part in ("lambda: ", cx.convert(cst.Name(name)), ", ")]
    told = template("__df.class_reads((", *reads, f"), {computes})")
    return swap(
        node,
        decorators=decorators(node, cx),
        bases=[cst.Arg(told, star="*"), *(_base(each, cx) for each in node.bases)],
        keywords=[_base(each, cx) for each in node.keywords],
        lpar=cst.LeftParen() if isinstance(node.lpar, cst.MaybeSentinel) else node.lpar,
        rpar=cst.RightParen() if isinstance(node.rpar, cst.MaybeSentinel) else node.rpar,
    )


def _base(node: cst.Arg, cx: ConversionContext) -> Any:
    """A base, or a keyword: what making a class of it runs is told, too."""
    if node.star:
        return cx.convert(node)
    told = template("__df.class_base(", cx.convert(node.value), ")")
    return swap(node, value=told)


def _evaluated(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """What runs when the class statement does: not the bodies of its functions."""
    stack = [node]
    while stack:
        now = stack.pop()
        yield now
        body = getattr(now, "body", None) if type(now) in SCOPES - {cst.ClassDef} else None
        stack.extend(child for child in children(now) if child is not body)


def _own(inside: list[cst.CSTNode]) -> set[str]:
    """Names that the body binds before it can read them in any usual class."""
    found: set[str] = set()
    for node in inside:
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            found.add(node.name.value)
        elif isinstance(node, cst.AssignTarget | cst.AnnAssign | cst.AugAssign | cst.For):
            found.update(target_names(node.target))
        elif isinstance(node, cst.Import | cst.ImportFrom):
            found.update(imported_names(node))
    return found
