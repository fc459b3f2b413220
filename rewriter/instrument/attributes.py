"""Attribute loads: `obj.name` -> `__df.attr(obj, "name")`."""

from typing import Any

import libcst as cst

from .conversion import ConversionContext
from .form import Part, argument, around, template


def convert(node: cst.Attribute, cx: ConversionContext) -> Any:
    return template("__df.attr(", *place(node, cx), ")", like=node)


def place(node: cst.Attribute, cx: ConversionContext) -> tuple[Part, ...]:
    """`obj, "name"`."""
    name = cx.mangled(node.attr.value)
    return (
        argument(cx.convert(node.value)),
        *around(node.dot, ","),
        f'"{name}"',
    )
