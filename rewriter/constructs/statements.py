"""Statements: blocks (one statement may become several on its line), `assert`, `with`, `match`,
`except`."""

from typing import Any

import libcst as cst

from ..scope import pattern_names
from .conversion import Context
from .form import argument, template
from .tree import swap


def convert_line(node: cst.SimpleStatementLine | cst.SimpleStatementSuite, cx: Context) -> Any:
    body: list[Any] = []
    for statement in node.body:
        new = cx.convert(statement)
        body.extend(new if isinstance(new, list) else [new])
    return swap(node, body=body)


def convert_assert(node: cst.Assert, cx: Context) -> Any:
    """Stays a statement: the operator decides its test, and Python raises (and drops it under
    -O)."""
    return swap(node, test=cx.test(node.test), msg=node.msg and cx.convert(node.msg))


def convert_with(node: cst.With, cx: Context) -> Any:
    if node.asynchronous is not None:
        raise cx.unsupported("async with")
    return swap(
        node, items=[_with_item(item, cx) for item in node.items], body=cx.convert(node.body)
    )


def _with_item(item: cst.WithItem, cx: Context) -> Any:
    context = template("__df.context(", argument(cx.convert(item.item)), ")")
    asname = item.asname and swap(item.asname, name=cx.target(item.asname.name))
    return swap(item, item=context, asname=asname)


def convert_handler(node: Any, cx: Context) -> Any:
    name = node.name and swap(node.name, name=cx.target(node.name.name))
    return swap(
        node, type=node.type and cx.convert(node.type), name=name, body=cx.convert(node.body)
    )


def convert_case(node: cst.MatchCase, cx: Context) -> Any:
    """The pattern stays; the names it binds have to be local."""
    for name in pattern_names(node.pattern):
        cx.target(cst.Name(name))
    return swap(node, guard=node.guard and cx.test(node.guard), body=cx.convert(node.body))
