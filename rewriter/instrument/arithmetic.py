"""Arithmetic: `a + b` -> `__df.binary("+", a, b)`, `-a` -> `__df.unary("-", a)`."""

from typing import Any

import libcst as cst

from .conversion import ConversionContext
from .form import argument, around, template

BINARY = {
    cst.Add: "+", cst.Subtract: "-", cst.Multiply: "*", cst.MatrixMultiply: "@", cst.Divide: "/",
    cst.FloorDivide: "//", cst.Modulo: "%", cst.Power: "**",
    cst.LeftShift: "<<", cst.RightShift: ">>", cst.BitAnd: "&", cst.BitOr: "|", cst.BitXor: "^",
}  # fmt: skip
UNARY = {cst.Minus: "-", cst.Plus: "+", cst.BitInvert: "~"}


def convert_binary(node: cst.BinaryOperation, cx: ConversionContext) -> Any:
    operator = node.operator
    left, right = argument(cx.convert(node.left)), argument(cx.convert(node.right))
    head = f'__df.binary("{BINARY[type(operator)]}", '
    return template(head, left, *around(operator, ","), right, ")", like=node)


def convert_unary(node: cst.UnaryOperation, cx: ConversionContext) -> Any:
    """`not a` too: its operand is a truth test where it is a truth test in Python."""
    space, operand = node.operator.whitespace_after, node.expression
    if isinstance(node.operator, cst.Not):
        return template("__df.not_(", space, argument(cx.convert(operand)), ")", like=node)
    if isinstance(node.operator, cst.Minus) and isinstance(
        operand, (cst.Integer, cst.Float, cst.Imaginary)
    ):
        return node  # a literal
    return template(
        f'__df.unary("{UNARY[type(node.operator)]}", ',
        space,
        argument(cx.convert(operand)),
        ")",
        like=node,
    )
