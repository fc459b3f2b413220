"""Nested functions and lambdas: their bodies are converted in their own scope, defaults and
decorators in the scope around.
"""

from typing import Any

import libcst as cst

from ..source.scope import NameKind
from .conversion import ConversionContext
from .form import operator
from .tree import swap


def convert(node: cst.FunctionDef, cx: ConversionContext) -> Any:
    _check_name(node.name.value, cx)
    if node.asynchronous is not None:
        return node  # rewriting it is refused when it is reached
    return swap(
        node,
        decorators=decorators(node, cx),
        params=cx.inside(node.params),
        body=cx.within(cx.scope.function(node)).convert(node.body),
    )


def decorators(node: cst.FunctionDef | cst.ClassDef, cx: ConversionContext) -> list[Any]:
    """`@f` -> `@__df.decorator(f)`."""
    return [
        swap(each, decorator=operator("decorator", cx.convert(each.decorator)))
        for each in node.decorators
    ]


def convert_root(node: cst.FunctionDef | cst.Lambda, cx: ConversionContext) -> Any:
    """The rewritten function itself: only its body runs in it."""
    return swap(node, body=cx.within(cx.scope.function(node)).convert(node.body))


def convert_lambda(node: cst.Lambda, cx: ConversionContext) -> Any:
    return swap(
        node,
        params=cx.inside(node.params),
        body=cx.within(cx.scope.function(node)).convert(node.body),
    )


def _check_name(name: str, cx: ConversionContext) -> None:
    if cx.scope.resolve(name) is not NameKind.LOCAL:
        raise cx.unsupported(f"a definition of the global or nonlocal name {name!r}")
