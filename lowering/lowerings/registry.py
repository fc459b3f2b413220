"""Lowerings by ATen overload. A lowering that cannot express a call raises `Unsupported`: the call
then becomes an extern call."""

from collections.abc import Callable
from typing import Any, TypeVar

Lowering = Callable[..., Any]
_F = TypeVar("_F", bound=Lowering)
LOWERINGS: dict[Any, Lowering] = {}


class Unsupported(Exception):
    """This call of the operator has no loop form."""


def lowers(*overloads: Any) -> Callable[[_F], _F]:
    """Register `fn(context, node, *args, **kwargs) -> Ref or tuple of Ref` for the overloads."""

    def register(fn: _F) -> _F:
        for overload in overloads:
            LOWERINGS[overload] = fn
        return fn

    return register
