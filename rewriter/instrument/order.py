"""What may be evaluated earlier or later without anybody noticing."""

from typing import Any

import libcst as cst

from ..source.scope import NameKind
from .conversion import ConversionContext
from .tree import walk

_LITERALS = (cst.Integer, cst.Float, cst.Imaginary, cst.SimpleString, cst.Ellipsis)


def is_still(node: Any, cx: ConversionContext) -> bool:
    """Whether `node` is made of literals and of local names that no nested function rebinds:
    evaluating it does and meets nothing.
    """
    if node is None or isinstance(node, _LITERALS):
        return True
    if isinstance(node, cst.Name):
        constant = node.value in ("True", "False", "None")
        return constant or (
            node.value not in cx.rebound and cx.scope.resolve(node.value) is NameKind.LOCAL
        )
    if isinstance(node, cst.UnaryOperation):
        return isinstance(node.operator, cst.Minus) and isinstance(node.expression, _LITERALS)
    if isinstance(node, cst.Slice):
        return is_still(node.lower, cx) and is_still(node.upper, cx) and is_still(node.step, cx)
    if isinstance(node, (cst.Index, cst.Element)):
        return not getattr(node, "star", None) and is_still(node.value, cx)
    return isinstance(node, cst.Tuple) and all(is_still(each, cx) for each in node.elements)


def place_is_still(target: Any, cx: ConversionContext) -> bool:
    """The same for the object, and the key, of an attribute or item."""
    keys = target.slice if isinstance(target, cst.Subscript) else ()
    return is_still(target.value, cx) and all(is_still(key.slice, cx) for key in keys)


def any_order(target: Any, value: Any, cx: ConversionContext) -> bool:
    """Whether `target`'s parts and `value` give the same in whatever order they are evaluated."""
    if any(isinstance(inner, cst.NamedExpr) for node in (target, value) for inner in walk(node)):
        return False
    return is_still(value, cx) or place_is_still(target, cx)
