"""What of a LibCST node is evaluated code: the one table that every generic walk uses.

Whitespace, annotations (they must stay as written, for `__annotations__`), match patterns and names
that are not loads are left out.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import libcst as cst

_FIELDS = {
    "Module": "body",
    "IndentedBlock": "body",
    "SimpleStatementSuite": "body",
    "SimpleStatementLine": "body",
    "Expr": "value",
    "Return": "value",
    "Raise": "exc cause",
    "From": "item",
    "Assert": "test msg",
    "Assign": "targets value",
    "AssignTarget": "target",
    "AugAssign": "target value",
    "AnnAssign": "target value",
    "Del": "target",
    "If": "test body orelse",
    "Else": "body",
    "While": "test body orelse",
    "For": "target iter body orelse",
    "With": "items body",
    "WithItem": "item asname",
    "AsName": "name",
    "Try": "body handlers orelse finalbody",
    "ExceptHandler": "type body",
    "Finally": "body",
    "TryStar": "body handlers orelse finalbody",
    "ExceptStarHandler": "type body",
    "Match": "subject cases",
    "MatchCase": "guard body",
    "FunctionDef": "decorators params body",
    "Decorator": "decorator",
    "ClassDef": "decorators bases keywords body",
    "Lambda": "params body",
    "Param": "default",
    "Parameters": "params star_arg kwonly_params star_kwarg posonly_params",
    "Arg": "value",
    "Call": "func args",
    "Attribute": "value",
    "Subscript": "value slice",
    "SubscriptElement": "slice",
    "Index": "value",
    "Slice": "lower upper step",
    "UnaryOperation": "expression",
    "BinaryOperation": "left right",
    "BooleanOperation": "left right",
    "Comparison": "left comparisons",
    "ComparisonTarget": "comparator",
    "IfExp": "body test orelse",
    "NamedExpr": "target value",
    "Yield": "value",
    "Await": "expression",
    "List": "elements",
    "Tuple": "elements",
    "Set": "elements",
    "Element": "value",
    "StarredElement": "value",
    "Dict": "elements",
    "DictElement": "key value",
    "StarredDictElement": "value",
    "ListComp": "elt for_in",
    "SetComp": "elt for_in",
    "GeneratorExp": "elt for_in",
    "DictComp": "key value for_in",
    "CompFor": "target iter ifs inner_for_in",
    "CompIf": "test",
    "FormattedString": "parts",
    "FormattedStringExpression": "expression format_spec",
    "ConcatenatedString": "left right",
}
_LEAVES = (
    "Name Integer Float Imaginary SimpleString Ellipsis FormattedStringText Pass Break Continue"
    " Import ImportFrom Global Nonlocal TypeAlias ParamStar ParamSlash TemplatedString"
)
FIELDS: dict[type, tuple[str, ...]] = {
    **{
        getattr(cst, name): tuple(fields.split())
        for name, fields in _FIELDS.items()
        if hasattr(cst, name)
    },
    **{getattr(cst, name): () for name in _LEAVES.split() if hasattr(cst, name)},
}
SCOPES = {cst.FunctionDef, cst.Lambda, cst.ClassDef}
NOT_NODES = {type(None), str, cst.MaybeSentinel}
COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.GeneratorExp, cst.DictComp)


def children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Direct children that are evaluated code."""
    # By exact type throughout: LibCST's nodes are abstract classes, whose `isinstance` is slow.
    for field in FIELDS.get(type(node), ()):
        child = getattr(node, field)
        kind = type(child)
        if kind is tuple or kind is list:
            yield from child
        elif kind in FIELDS:
            yield child


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """`node` and all code below it that runs in its own scope: bodies of functions, lambdas and
    classes are not entered.
    """
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(_outer_part(node) if type(node) in SCOPES else children(node))


def _outer_part(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Decorators, defaults and bases run outside."""
    return (child for child in children(node) if child is not getattr(node, "body", None))


def swap(node: Any, **changes: object) -> Any:
    """A copy of `node` with `changes`; without the validation of `with_changes`, which costs more
    than the rest of the rewriting.
    """
    cls: type = type(node)
    new: Any = object.__new__(cls)
    for name in _all_fields(cls):
        object.__setattr__(new, name, changes[name] if name in changes else getattr(node, name))
    return new


@functools.cache
def _all_fields(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))
