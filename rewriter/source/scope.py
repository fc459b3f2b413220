"""Which names are local, free or global: a small pass over one function (LibCST's own scope
provider costs more than all the rest).

Only what the rewriter asks is answered: for a name loaded or stored in some nested scope of the
function that is rewritten, whether it belongs to that function or one nested in it (LOCAL), to an
enclosing function (FREE), or to the module or builtins (GLOBAL).
"""

import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import libcst as cst

from ..instrument.tree import children, walk


class NameKind(enum.Enum):
    LOCAL = "local"
    FREE = "free"
    GLOBAL = "global"


@dataclasses.dataclass(frozen=True)
class Scope:
    """`bound`: names that this scope binds; `outer`: names declared global (True) or nonlocal
    (False); `free`: of the whole function.
    """

    bound: frozenset[str]
    outer: dict[str, bool]
    free: frozenset[str]
    parent: "Scope | None" = None
    is_comprehension: bool = False

    def resolve(self, name: str) -> NameKind:
        scope: Scope | None = self
        while scope is not None:
            if scope.outer.get(name):
                return NameKind.GLOBAL
            if name in scope.bound and name not in scope.outer:
                return NameKind.LOCAL
            scope = scope.parent
        return NameKind.FREE if name in self.free else NameKind.GLOBAL

    def resolve_store(self, name: str) -> NameKind:
        """As `resolve`; a walrus in a comprehension binds in the function around it."""
        scope = self
        while scope.is_comprehension and scope.parent is not None:
            scope = scope.parent
        return scope.resolve(name)

    def function(self, node: cst.FunctionDef | cst.Lambda) -> "Scope":
        bound, outer = bindings(node)
        return Scope(bound, outer, self.free, self)

    def comprehension(self, node: cst.CSTNode) -> "Scope":
        bound = frozenset(name for loop in _loops(node) for name in target_names(loop.target))
        return Scope(bound, {}, self.free, self, True)


def root_scope(free: Iterable[str]) -> Scope:
    return Scope(frozenset(), {}, frozenset(free))


def _loops(node: cst.CSTNode) -> Iterator[cst.CompFor]:
    loop = node.for_in  # type: ignore[attr-defined]
    while loop is not None:
        yield loop
        loop = loop.inner_for_in


def bindings(node: cst.FunctionDef | cst.Lambda) -> tuple[frozenset[str], dict[str, bool]]:
    """Names that the function binds, and those that it declares global (True) or nonlocal
    (False)."""
    bound = set(parameters(node.params))
    outer: dict[str, bool] = {}
    for inner in walk(node.body):
        kind = type(inner)
        if kind in _BINDERS:
            bound.update(_BINDERS[kind](inner))
        elif kind is cst.Global or kind is cst.Nonlocal:
            names = (item.name.value for item in inner.names)  # type: ignore[attr-defined]
            outer.update(dict.fromkeys(names, kind is cst.Global))
    return frozenset(bound), outer


def parameters(params: cst.Parameters) -> Iterator[str]:
    for param in (
        *params.posonly_params,
        *params.params,
        *params.kwonly_params,
        params.star_arg,
        params.star_kwarg,
    ):
        if isinstance(param, cst.Param):
            yield param.name.value


def target_names(target: cst.CSTNode) -> Iterator[str]:
    """The plain names among the targets of a store."""
    if isinstance(target, cst.Name):
        yield target.value
    elif isinstance(target, (cst.Tuple, cst.List, cst.Element, cst.StarredElement)):
        for child in children(target):
            yield from target_names(child)


def imported_names(node: cst.Import | cst.ImportFrom) -> Iterator[str]:
    for alias in () if isinstance(node.names, cst.ImportStar) else node.names:
        if alias.asname is not None:
            yield from target_names(alias.asname.name)
        else:
            first: cst.BaseExpression = alias.name
            while isinstance(first, cst.Attribute):
                first = first.value
            yield from target_names(first)


def pattern_names(pattern: cst.CSTNode) -> Iterator[str]:
    """Names captured by a match pattern; rare enough for LibCST's own (slow) list of children."""
    if isinstance(pattern, (cst.MatchAs, cst.MatchStar)) and pattern.name is not None:
        yield pattern.name.value
    if isinstance(pattern, cst.MatchMapping) and pattern.rest is not None:
        yield pattern.rest.value
    for child in pattern.children:
        yield from pattern_names(child)


_BINDERS: dict[type, Callable[[Any], Iterable[str]]] = {
    **dict.fromkeys(
        (cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.For, cst.NamedExpr, cst.Del),
        lambda node: target_names(node.target),
    ),
    **dict.fromkeys(
        (cst.FunctionDef, cst.ClassDef, cst.TypeAlias), lambda node: (node.name.value,)
    ),
    **dict.fromkeys((cst.Import, cst.ImportFrom), imported_names),
    **dict.fromkeys(
        (cst.ExceptHandler, cst.ExceptStarHandler),
        lambda node: target_names(node.name.name) if node.name else (),
    ),
    cst.AsName: lambda node: target_names(node.name),
    cst.MatchCase: lambda node: pattern_names(node.pattern),
}


def rebound_inside(node: cst.CSTNode) -> frozenset[str]:
    """Names that some nested function stores to with `nonlocal`: a call may change them."""
    found: set[str] = set()
    stack = [node]
    while stack:
        now = stack.pop()
        if isinstance(now, cst.Nonlocal):
            found.update(item.name.value for item in now.names)
        stack.extend(children(now))
    return frozenset(found)
