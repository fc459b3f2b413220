"""What is taken apart in place: `*v` -> `*__df.iter(v)`, `**m` -> `**__df.mapping(m)`, in calls,
displays and subscripts; `yield from v`; and targets with parts: `(a, b), c = v` -> `(a, b), c =
__df.unpack(v, (((), ()), ()))`, `for a, b in v` -> `for a, b in __df.each(v, ((), ()))`."""

from typing import Any

import libcst as cst

from .conversion import ConversionContext
from .form import NodeSequence, argument, operator
from .tree import swap


def convert(node: Any, cx: ConversionContext) -> Any:
    """An element or argument with a star; other arguments are made fit to stand in a call."""
    if isinstance(node, cst.Arg):
        return swap(node, value=unpacked(node.value, node.star, cx))
    star = "**" if isinstance(node, cst.StarredDictElement) else "*"
    return swap(node, value=unpacked(node.value, star, cx))


def convert_yield(node: cst.Yield, cx: ConversionContext) -> Any:
    if not isinstance(node.value, cst.From):
        return cx.inside(node)
    return swap(node, value=swap(node.value, item=unpacked(node.value.item, "*", cx)))


def unpacked(
    value: cst.BaseExpression, star: str, cx: ConversionContext
) -> cst.CSTNode | NodeSequence:
    """What stands behind `star`, converted."""
    if not star:
        return argument(cx.convert(value))
    return operator("mapping" if star == "**" else "iter", cx.convert(value))


def looped(target: cst.CSTNode, values: cst.BaseExpression, cx: ConversionContext) -> NodeSequence:
    """What a `for` over `values` iterates over."""
    parts = parts_of(target)
    if parts is None:
        return operator("iter", cx.convert(values))
    return operator("each", cx.convert(values), parts)


def parts_of(target: cst.CSTNode) -> str | None:
    """The text of a tuple that shows how `target` takes a value apart: `()` for what takes a whole
    one, "*" for the rest. None: it does not."""
    if not isinstance(target, cst.Tuple | cst.List):
        return None
    shown = [
        '"*"' if isinstance(each, cst.StarredElement) else parts_of(each.value) or "()"
        for each in target.elements
    ]
    return f"({', '.join(shown)},)" if shown else "()"
