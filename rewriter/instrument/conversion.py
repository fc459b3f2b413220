"""What every converter is given: the scope it stands in, and how to convert what lies below."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import libcst as cst

from ..source.live_source import NotRewritable, Source
from ..source.scope import NameKind, Scope, target_names
from .form import NodeSequence
from .tree import FIELDS, NOT_NODES, swap

Converter = Callable[[Any, "ConversionContext"], Any]
Node = TypeVar("Node", bound=cst.CSTNode)


@dataclasses.dataclass(frozen=True)
class ConversionContext:
    table: Mapping[type, Converter]
    source: Source
    scope: Scope
    rebound: frozenset[str]

    def convert(self, node: Any) -> Any:
        """`node` with everything in it converted. Small statements may come back as a list."""
        converter = self.table.get(type(node))
        return converter(node, self) if converter is not None else self.inside(node)

    def inside(self, node: Node) -> Node:
        """`node` kept, what lies in it converted."""
        fields = FIELDS.get(type(node))
        if fields is None:
            raise self.unsupported(type(node).__name__)
        changes = {}
        for field in fields:
            child = getattr(node, field)
            new: object = child
            kind = type(child)
            if kind is tuple or kind is list:
                new = [self.convert(each) for each in child]
            elif kind not in NOT_NODES:
                new = self.convert(child)
            if new is not child:
                changes[field] = new
        return swap(node, **changes) if changes else node

    def test(self, node: Any) -> Any:
        """`node` where only its truth matters."""
        return self.table[TruthTest](node, self)

    def target(self, node: Any) -> Any:
        """`node` where it is stored to. A global or free name there cannot be seen by an operator,
        and is refused."""
        for name in target_names(node):
            if self.scope.resolve(name) is not NameKind.LOCAL:
                raise self.unsupported(
                    f"a store to the global or nonlocal name {name!r} in this place"
                )
        return self.table[StoreTarget](node, self)

    def within(self, scope: Scope) -> "ConversionContext":
        return dataclasses.replace(self, scope=scope)

    def unsupported(self, what: str) -> NotRewritable:
        return self.source.error(f"not supported by the rewriter: {what}")

    def mangled(self, name: str) -> str:
        """The name as the compiler sees it: `__x` in class `C` is `_C__x`."""
        owner = (self.source.owner or "").lstrip("_")
        if not owner or not name.startswith("__") or name.endswith("__") or "." in name:
            return name
        return f"_{owner}{name}"


class TruthTest:
    """Key in the table: converts an expression whose truth alone is used."""


class StoreTarget:
    """Key in the table: converts the target of a store."""


__all__ = ["ConversionContext", "Converter", "NodeSequence", "StoreTarget", "TruthTest"]
