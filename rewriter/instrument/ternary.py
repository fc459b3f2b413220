"""`x if t else y` -> `__df.select(t, lambda: x, lambda: y)`.

A test with `and`, `or`, `not` stays in the plain form, where each operand is tested once. Over
several lines the operands are passed by keyword, in the order of the source, so that each stays on
its line.
"""

from typing import Any

import libcst as cst

from .calls import can_be_lazy
from .conversion import ConversionContext
from .form import argument, gap, lazily, operator, template, text_of
from .logic import is_logical
from .tree import swap


def convert(node: cst.IfExp, cx: ConversionContext) -> Any:
    if is_logical(node.test) or not can_be_lazy(node.body, node.orelse):
        return swap(
            node,
            body=cx.convert(node.body),
            test=cx.test(node.test),
            orelse=cx.convert(node.orelse),
        )
    test = cx.convert(node.test)
    body, orelse = lazily(cx.convert(node.body)), lazily(cx.convert(node.orelse))
    if "\n" not in text_of(node) and can_be_lazy(node.test):
        return operator("select", test, body, orelse, like=node)
    return template(
        *(
            "__df.select(then=",
            body,
            *gap(node.whitespace_before_if, ", test=", node.whitespace_after_if),
            argument(test),
        ),
        *(*gap(node.whitespace_before_else, ", orelse=", node.whitespace_after_else), orelse, ")"),
        like=node,
    )
