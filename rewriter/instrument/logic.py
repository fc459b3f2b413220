"""`and`, `or` and truth tests: `a and b` -> `__df.and_(a, lambda: b)`; where only the truth
matters, `t` -> `__df.truth(t)`.

Python asks each operand for its truth once. So in `if a and b` each operand is tested, not the
result: the `and` stays there.
"""

from typing import Any

import libcst as cst

from .calls import can_be_lazy
from .conversion import ConversionContext
from .form import Part, argument, around, lazily, operator, template
from .tree import swap


def convert(node: cst.BooleanOperation, cx: ConversionContext) -> Any:
    nodes, signs = _flat(node)
    if not can_be_lazy(*nodes[1:]):
        return cx.inside(node)
    head = "__df.and_(" if isinstance(node.operator, cst.And) else "__df.or_("
    # a and b and c -> and_(a, lambda: and_(b, lambda: c)): each is tested once.
    parts: list[Part] = []
    for left, sign in zip(nodes, signs, strict=False):
        parts += [
            head,
            argument(cx.convert(left)),
            *around(sign, ","),
            "lambda: ",
        ]
    return template(*parts[:-1], lazily(cx.convert(nodes[-1])), ")" * len(signs), like=node)


def convert_test(node: Any, cx: ConversionContext) -> Any:
    """`node` as the condition of an `if`, `while`, `assert`, …"""
    if isinstance(node, cst.BooleanOperation):
        return swap(node, left=cx.test(node.left), right=cx.test(node.right))
    if _is_not(node) and is_logical(node.expression):
        return swap(node, expression=cx.test(node.expression))
    return cx.convert(node) if _is_not(node) else operator("truth", cx.convert(node))


def is_logical(node: Any) -> bool:
    return isinstance(node, cst.BooleanOperation) or _is_not(node)


def _is_not(node: Any) -> bool:
    return isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not)


def _flat(node: cst.BooleanOperation) -> tuple[list[Any], list[Any]]:
    """Operands and signs of `a and b and c`, which LibCST nests to the left."""
    nodes, signs = [node.right], [node.operator]
    left = node.left
    while (
        isinstance(left, cst.BooleanOperation)
        and isinstance(left.operator, type(node.operator))
        and not left.lpar
    ):
        nodes.insert(0, left.right)
        signs.insert(0, left.operator)
        left = left.left
    return [left, *nodes], signs
