"""`raise C from D` -> `raise __df.raised(C) from __df.raised(D)`: of a class Python makes the
exception by itself."""

from typing import Any

import libcst as cst

from .conversion import ConversionContext
from .form import operator
from .tree import swap


def convert(node: cst.Raise, cx: ConversionContext) -> Any:
    if node.exc is None:
        return node
    cause = node.cause and swap(node.cause, item=operator("raised", cx.convert(node.cause.item)))
    return swap(node, exc=operator("raised", cx.convert(node.exc)), cause=cause)
