"""Statements: blocks (one statement may become several on its line), `assert`, `with`, `match`,
`except`."""

from collections.abc import Iterator
from typing import Any

import libcst as cst

from ..source.scope import pattern_names
from .conversion import ConversionContext
from .form import argument, operator, template
from .tree import swap
from .unpacking import parts_of


def convert_line(
    node: cst.SimpleStatementLine | cst.SimpleStatementSuite, cx: ConversionContext
) -> Any:
    body: list[Any] = []
    for statement in node.body:
        new = cx.convert(statement)
        body.extend(new if isinstance(new, list) else [new])
    return swap(node, body=body)


def convert_assert(node: cst.Assert, cx: ConversionContext) -> Any:
    """Stays a statement: the operator decides its test, and Python raises (and drops it under
    -O)."""
    return swap(node, test=cx.test(node.test), msg=node.msg and cx.convert(node.msg))


def convert_with(node: cst.With, cx: ConversionContext) -> Any:
    if node.asynchronous is not None:
        raise cx.unsupported("async with")
    return swap(
        node, items=[_with_item(item, cx) for item in node.items], body=cx.convert(node.body)
    )


def _with_item(item: cst.WithItem, cx: ConversionContext) -> Any:
    parts = parts_of(item.asname.name) if item.asname else None
    told = "" if parts is None else f", {parts}"
    context = template("__df.context(", argument(cx.convert(item.item)), f"{told})")
    asname = item.asname and swap(item.asname, name=cx.target(item.asname.name))
    return swap(item, item=context, asname=asname)


def convert_handler(node: Any, cx: ConversionContext) -> Any:
    """`except C:` -> `except __df.caught(C):`: Python goes through a tuple of classes unseen."""
    name = node.name and swap(node.name, name=cx.target(node.name.name))
    kind = node.type and operator("caught", cx.convert(node.type))
    return swap(node, type=kind, name=name, body=cx.convert(node.body))


def convert_match(node: cst.Match, cx: ConversionContext) -> Any:
    """`match v:` -> `match __df.subject(v, ((lambda: K, "A"),), ("x",)):`. Python's own matching
    reads without asking: the names that the patterns compare with, and the attributes that they
    look at, are told beforehand."""
    dotted, attributes = [], set()
    for case in node.cases:
        for part in _pattern_parts(case.pattern):
            if isinstance(part, cst.MatchKeywordElement):
                attributes.add(part.key.value)
            elif isinstance(part, cst.MatchValue | cst.MatchClass):
                dotted.append(part.value if isinstance(part, cst.MatchValue) else part.cls)
    reads = [piece for each in dotted for piece in _pattern_read(each, cx)]
    names = "".join(f"{name!r}, " for name in sorted(attributes))
    subject = template(
        "__df.subject(", argument(cx.convert(node.subject)), ", (", *reads, f"), ({names}))"
    )
    return swap(node, subject=subject, cases=[cx.convert(case) for case in node.cases])


def _pattern_parts(pattern: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield pattern
    for child in pattern.children:
        yield from _pattern_parts(child)


def _pattern_read(node: cst.CSTNode, cx: ConversionContext) -> tuple[Any, ...]:
    """`(lambda: K, "A", "B"), ` for the dotted name `K.A.B`; nothing for a literal."""
    path: list[str] = []
    while isinstance(node, cst.Attribute):
        path.insert(0, cx.mangled(node.attr.value))
        node = node.value
    if not isinstance(node, cst.Name):
        return ()
    rest = "".join(f", {name!r}" for name in path)
    return ("(lambda: ", cx.convert(cst.Name(node.value)), rest or ",", "), ")


def convert_case(node: cst.MatchCase, cx: ConversionContext) -> Any:
    """The pattern stays; the names it binds have to be local."""
    for name in pattern_names(node.pattern):
        cx.target(cst.Name(name))
    return swap(node, guard=node.guard and cx.test(node.guard), body=cx.convert(node.body))
