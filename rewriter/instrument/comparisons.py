"""Comparisons: `a < b` -> `__df.compare(a, "<", b)`, `a < b < c` -> `__df.chain(a, "<", lambda: b,
"<", lambda: c)`."""

from typing import Any

import libcst as cst

from .calls import can_be_lazy
from .conversion import ConversionContext
from .form import Part, argument, around, lazily, template

OPERATORS = {
    cst.LessThan: "<",
    cst.LessThanEqual: "<=",
    cst.GreaterThan: ">",
    cst.GreaterThanEqual: ">=",
    cst.Equal: "==",
    cst.NotEqual: "!=",
    cst.In: "in",
    cst.NotIn: "not in",
    cst.Is: "is",
    cst.IsNot: "is not",
}


def convert(node: cst.Comparison, cx: ConversionContext) -> Any:
    links = node.comparisons
    if len(links) > 1 and not can_be_lazy(*(link.comparator for link in links)):
        return cx.inside(node)
    hold = lazily if len(links) > 1 else argument
    parts: list[Part] = [
        "__df.chain(" if len(links) > 1 else "__df.compare(",
        argument(cx.convert(node.left)),
    ]
    for link in links:
        sign = OPERATORS[type(link.operator)]
        between = around(link.operator, f', "{sign}",')
        parts += [*between, hold(cx.convert(link.comparator))]
    return template(*parts, ")", like=node)
