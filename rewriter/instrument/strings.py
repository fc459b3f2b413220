"""f-strings: `f"..{v!r:>{w}}.."` -> `__df.fstring("..", (v, "r", __df.fstring(">", (w, None, ""))),
"..")`.

Python formats each value before it evaluates the next one. Where that can be told, each value is an
`fstring` of its own.
"""

import ast
import sys
from typing import Any

import libcst as cst

from ...runtime.warning_filters import suppress_warnings
from .conversion import ConversionContext
from .form import Part, argument, template, text_of
from .order import is_still


def convert(node: cst.FormattedString, cx: ConversionContext) -> Any:
    return template("__df.fstring(", *_pieces(node, cx, _order_shows([node], cx)), ")", like=node)


def convert_concatenated(node: cst.ConcatenatedString, cx: ConversionContext) -> Any:
    """`"a" f"{x}"`, one string to Python."""
    links = list(_flat(node))
    if not any(isinstance(link, cst.FormattedString) for link in links):
        return node
    parts: list[Part] = []
    alone = _order_shows(links, cx)
    for link in links:
        if isinstance(link, cst.FormattedString):
            parts += _pieces(link, cx, alone)
        elif isinstance(link, cst.SimpleString):
            parts += [link, ", "]
        else:
            parts.append(link)
    return template("__df.fstring(", *parts, ")", like=node)


def _flat(node: cst.ConcatenatedString) -> Any:
    yield node.left
    yield node.whitespace_between
    if isinstance(node.right, cst.ConcatenatedString):
        yield from _flat(node.right)
    else:
        yield node.right


def _order_shows(links: Any, cx: ConversionContext) -> bool:
    """Whether evaluating a later value could change how an earlier one is shown, or be skipped when
    showing that one fails.
    """
    parts = [part for link in links if isinstance(link, cst.FormattedString) for part in link.parts]
    values = [part for part in parts if isinstance(part, cst.FormattedStringExpression)]
    return len(values) > 1 and not all(
        is_still(value.expression, cx) and not value.format_spec for value in values[1:]
    )


def _pieces(node: cst.FormattedString, cx: ConversionContext, alone: bool) -> list[Part]:
    return _contents(node.parts, node.start.lower().replace("f", ""), cx, alone)


def _contents(contents: Any, opening: str, cx: ConversionContext, alone: bool) -> list[Part]:
    parts: list[Part] = []
    for content in contents:
        if isinstance(content, cst.FormattedStringText):
            parts += [_literal(content.value, opening), ", "]
        else:
            parts += [*_value(content, opening, cx, alone), ", "]
    return parts


def _literal(text: str, opening: str) -> str:
    """The text as a plain literal. The line breaks in it follow it, to keep what comes after on its
    line."""
    body = text.replace("{{", "{").replace("}}", "}")
    if "r" not in opening.lower():
        # A space holds the quote away from a last backslash, which stands for itself.
        with suppress_warnings():
            body = ast.literal_eval(f"{opening}{body} {opening.lstrip('uU')}")[:-1]
    return repr(body) + "\n" * text.count("\n")


def _value(
    node: cst.FormattedStringExpression, opening: str, cx: ConversionContext, alone: bool
) -> list[Part]:
    before, after = node.whitespace_before_expression, node.whitespace_after_expression
    shown: list[Part] = []
    conversion = node.conversion
    if node.equal is not None:
        shown = [
            repr(text_of(before) + text_of(node.expression) + text_of(node.equal) + text_of(after)),
            ", ",
        ]
        conversion = conversion or (None if node.format_spec else "r")
    spec = _spec(node.format_spec, opening, cx) if node.format_spec else ['""']
    value: list[Part] = [before, argument(cx.convert(node.expression)), after]
    if conversion and len(spec) > 1 and sys.version_info >= (3, 13):
        # Since 3.13 a value is converted before its spec is evaluated, not after.
        value, conversion = ["__df.fstring((", *value, f', {conversion!r}, ""))'], None
    opened, closed = ("__df.fstring((", "))") if alone else ("(", ")")
    return [*shown, opened, *value, f", {conversion!r}, ", *spec, closed]


def _spec(contents: Any, opening: str, cx: ConversionContext) -> list[Part]:
    if len(contents) == 1 and isinstance(contents[0], cst.FormattedStringText):
        return [_literal(contents[0].value, opening)]
    return ["__df.fstring(", *_contents(contents, opening, cx, len(contents) > 2), ")"]
