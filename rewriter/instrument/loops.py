"""`for x in it`, in statements and comprehensions -> `for x in __df.iter(it)`; `while t` -> `while
__df.truth(t)`."""

from typing import Any

import libcst as cst

from .conversion import ConversionContext
from .tree import swap
from .unpacking import looped


def convert_for(node: cst.For, cx: ConversionContext) -> Any:
    if node.asynchronous is not None:
        raise cx.unsupported("async for")
    return swap(
        node,
        target=cx.target(node.target),
        iter=looped(node.target, node.iter, cx),
        body=cx.convert(node.body),
        orelse=node.orelse and cx.convert(node.orelse),
    )


def convert_branch(node: cst.If | cst.While, cx: ConversionContext) -> Any:
    return swap(
        node,
        test=cx.test(node.test),
        body=cx.convert(node.body),
        orelse=node.orelse and cx.convert(node.orelse),
    )


def convert_comprehension(node: Any, cx: ConversionContext) -> Any:
    """The first iterable is evaluated outside, all the rest in the comprehension's own scope."""
    inner = cx.within(cx.scope.comprehension(node))
    changes = {
        field: inner.convert(getattr(node, field))
        for field in ("elt", "key", "value")
        if hasattr(node, field)
    }
    return swap(node, for_in=_loop(node.for_in, cx, inner), **changes)


def _loop(node: cst.CompFor, cx: ConversionContext, inner: ConversionContext) -> Any:
    if node.asynchronous is not None:
        raise cx.unsupported("an asynchronous comprehension")
    return swap(
        node,
        target=inner.target(node.target),
        iter=looped(node.target, node.iter, cx),
        ifs=[swap(each, test=inner.test(each.test)) for each in node.ifs],
        inner_for_in=node.inner_for_in and _loop(node.inner_for_in, inner, inner),
    )
