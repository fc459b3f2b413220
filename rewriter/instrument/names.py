"""Loads of global, builtin and free names: `n` -> `__df.glob("n", n)`, `__df.free("n", n)`."""

from typing import Any

import libcst as cst

from ..source.scope import NameKind
from .conversion import ConversionContext
from .form import template

_CONSTANTS = {"True", "False", "None", "__debug__"}
_OPERATOR = {NameKind.GLOBAL: "glob", NameKind.FREE: "free"}


def convert(node: cst.Name, cx: ConversionContext) -> Any:
    name = cx.mangled(node.value)
    if name == "__df":
        raise cx.unsupported("the name __df")
    kind = cx.scope.resolve(node.value)
    if kind is NameKind.LOCAL or name in _CONSTANTS:
        return node
    # The plain name is the argument: an undefined one raises here, in the user's frame.
    return template(f'__df.{_OPERATOR[kind]}("{name}", ', node, ")")


def convert_walrus(node: cst.NamedExpr, cx: ConversionContext) -> Any:
    """`(n := v)`; where n is global or free: `(n := __df.set_glob("n", v))`."""
    value = cx.convert(node.value)
    return node_with_value(node, value, cx)


def node_with_value(node: cst.NamedExpr, value: Any, cx: ConversionContext) -> Any:
    from_kind = cx.scope.resolve_store(node.target.value)  # type: ignore[attr-defined]
    if from_kind is not NameKind.LOCAL:
        value = stored(node.target.value, value, from_kind, cx)  # type: ignore[attr-defined]
    return node.with_changes(value=value)


def stored(name: str, value: Any, kind: NameKind, cx: ConversionContext) -> Any:
    """The value to store to a global or free name: `__df.set_glob("n", v)`, `__df.set_free("n",
    v)`."""
    operator = "set_glob" if kind is NameKind.GLOBAL else "set_free"
    return template(f'__df.{operator}("{cx.mangled(name)}", ', value, ")")
