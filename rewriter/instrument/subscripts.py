"""Item loads: `obj[key]` -> `__df.item(obj, key)`; a slice in the key is `slice(a, b, c)`."""

from typing import Any

import libcst as cst

from ..source.scope import NameKind
from .conversion import ConversionContext
from .form import Part, argument, around, gap, operator, template
from .tree import swap
from .unpacking import unpacked


def convert(node: cst.Subscript, cx: ConversionContext) -> Any:
    return template("__df.item(", *place(node, cx), ")", like=node)


def place(node: cst.Subscript, cx: ConversionContext) -> tuple[Part, ...]:
    """`obj, key`."""
    return (
        argument(cx.convert(node.value)),
        *gap(node.whitespace_after_value, ",", node.lbracket.whitespace_after),
        *_key(node.slice, cx),
        node.rbracket.whitespace_before,
    )


def _key(elements: Any, cx: ConversionContext) -> list[Part]:
    parts: list[Part] = []
    for element in elements:
        parts.extend(_element(element.slice, cx))
        if isinstance(element.comma, cst.Comma):
            parts.append(element.comma)
    is_tuple = (
        isinstance(elements[-1].comma, cst.Comma)
        or len(elements) > 1
        or getattr(elements[0].slice, "star", None)
    )
    if not is_tuple:
        return parts
    # `x[*a]` is a tuple of one starred element, which needs its comma in parentheses.
    closing = ")" if len(elements) > 1 or isinstance(elements[-1].comma, cst.Comma) else ",)"
    return ["(", *parts, closing]


def _element(element: cst.BaseSlice, cx: ConversionContext) -> list[Part]:
    if isinstance(element, cst.Index):
        star = element.star or ""
        return [star, unpacked(element.value, star, cx)]
    assert isinstance(element, cst.Slice)
    if cx.scope.resolve("slice") is not NameKind.GLOBAL:
        raise cx.unsupported("a slice where the name `slice` is shadowed")
    parts: list[Part] = [
        "slice(",
        _bound(element.lower, cx),
        *_comma(element.first_colon),
        _bound(element.upper, cx),
    ]
    if isinstance(element.second_colon, cst.Colon):
        parts += [*_comma(element.second_colon), _bound(element.step, cx)]
    else:
        parts += [", None"]
    return [*parts, ")"]


def _bound(node: Any, cx: ConversionContext) -> Part:
    return "None" if node is None else argument(cx.convert(node))


def _comma(colon: cst.Colon) -> tuple[Part, ...]:
    return around(colon, ",")


def convert_dict_element(node: cst.DictElement, cx: ConversionContext) -> Any:
    """`{k: v}` -> `{__df.key(k): v}`: the dict asks its keys, which may be the user's code."""
    return swap(node, key=hashed(node.key, cx), value=cx.convert(node.value))


def convert_set(node: cst.Set, cx: ConversionContext) -> Any:
    elements = [
        swap(each, value=hashed(each.value, cx))
        if isinstance(each, cst.Element)
        else cx.convert(each)
        for each in node.elements
    ]
    return swap(node, elements=elements)


def hashed(node: Any, cx: ConversionContext) -> Any:
    """A key, told before it is hashed; a literal is its own."""
    literal = isinstance(node, cst.SimpleString | cst.Integer | cst.Float | cst.UnaryOperation)
    return cx.convert(node) if literal else operator("key", cx.convert(node))
