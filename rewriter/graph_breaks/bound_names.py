"""Which local names statements read and bind, and which are bound for certain: what a part of a
function must be given, and what it must hand back."""

import ast
from collections.abc import Iterable, Iterator, Sequence

from .tree_walks import SCOPES, all_nodes, children, own_nodes

Names = frozenset[str]
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def loads(node: ast.AST) -> Iterator[str]:
    """Names that are read below `node`, in functions that are made there too; names that a
    comprehension binds for itself are left out."""
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Store):
            yield node.id
    elif isinstance(node, _COMPREHENSIONS):
        own = {name for loop in node.generators for name in stores(loop.target)}
        yield from loads(node.generators[0].iter)
        for child in children(node):
            yield from (name for name in loads(child) if name not in own)
    else:
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        for child in children(node):
            yield from loads(child)


def stores(node: ast.AST) -> Iterator[str]:
    """Names that `node` binds or deletes in its own scope."""
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Load):
            yield node.id
    elif isinstance(node, SCOPES):
        if not isinstance(node, ast.Lambda):
            yield node.name
    elif isinstance(node, _COMPREHENSIONS):
        yield from (n.target.id for n in all_nodes(node) if isinstance(n, ast.NamedExpr))
    else:
        yield from _named(node)
        for child in children(node):
            yield from stores(child)


def _named(node: ast.AST) -> Iterator[str]:
    """Names that stand in a node as text."""
    if isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest


def names(found: Iterator[str]) -> Names:
    return frozenset(found)


def all_stores(body: Iterable[ast.stmt]) -> Names:
    return frozenset(name for stmt in body for name in stores(stmt))


def all_loads(body: Iterable[ast.AST]) -> Names:
    return frozenset(name for node in body for name in loads(node))


class Unbound(Exception):
    """A name is read that may not be bound there."""


def exposed(body: Sequence[ast.stmt], local: Names) -> Names:
    """Names of `local` that `body` may read as they are before it."""
    found: set[str] = set()
    BindingFlow(local, found).through(body, frozenset())
    return frozenset(found)


class BindingFlow:
    """Walks statements in order and follows which of the names `local` are bound for certain. Where
    one is read that is not, it is put into `unbound`; without that, Unbound is raised."""

    def __init__(self, local: Names, unbound: set[str] | None = None) -> None:
        self.local, self.unbound = local, unbound

    def through(self, body: Sequence[ast.stmt], bound: Names) -> Names | None:
        """Names bound after `body`, or None where it never gets there. Raises Unbound."""
        now: Names | None = bound
        for stmt in body:
            if now is None:
                return None
            now = self._after(stmt, now)
        return now

    def _read(self, nodes: Iterable[ast.AST | None], bound: Names) -> None:
        for node in nodes:
            missing = (names(loads(node)) & self.local) - bound if node is not None else ()
            if missing and self.unbound is None:
                raise Unbound
            if self.unbound is not None:
                self.unbound.update(missing)

    def _after(self, stmt: ast.stmt, bound: Names) -> Names | None:
        match stmt:
            case ast.Return() | ast.Raise():
                self._read([stmt], bound)
                return None
            case ast.Break() | ast.Continue():
                return None
            case ast.If():
                return self._branches(stmt, bound)
            case ast.For():
                self._read([stmt.iter], bound)
                inside = bound | names(stores(stmt.target))
                self.through(stmt.body, inside)
                self.through(stmt.orelse, bound)
                return bound
            case ast.While():
                self._read([stmt.test], bound)
                self.through(stmt.body, bound)
                self.through(stmt.orelse, bound)
                return bound
            case ast.With():
                return self._with(stmt, bound)
            case ast.Try() | ast.Match():
                self._read([stmt], bound)
                return bound
            case _:
                self._read([stmt], bound)
                gone = names(n.id for n in own_nodes(stmt) if _is_deleted(n))  # type: ignore[attr-defined]
                return (bound | self._certain(stmt)) - gone

    def _branches(self, stmt: ast.If, bound: Names) -> Names | None:
        self._read([stmt.test], bound)
        ends = [self.through(body, bound) for body in (stmt.body, stmt.orelse)]
        reached = [end for end in ends if end is not None]
        return frozenset.intersection(*reached) if reached else None

    def _with(self, stmt: ast.With, bound: Names) -> Names | None:
        """A context manager may swallow what its body raises: what the body binds is not certain,
        unless the manager is torch's."""
        for item in stmt.items:
            self._read([item.context_expr], bound)
            if item.optional_vars is not None:
                bound |= names(stores(item.optional_vars))
        after = self.through(stmt.body, bound)
        return after if is_torch_context(stmt) else bound

    def _certain(self, stmt: ast.stmt) -> Names:
        """Names that a simple statement binds whatever its expressions do."""
        match stmt:
            case ast.Assign():
                return all_stores(stmt.targets)  # type: ignore[arg-type]
            case ast.AnnAssign() if stmt.value is None:
                return frozenset()
            case ast.AnnAssign() | ast.AugAssign():
                return names(stores(stmt.target))
            case ast.FunctionDef() | ast.ClassDef():
                return frozenset({stmt.name})
            case ast.Import() | ast.ImportFrom():
                return names(stores(stmt))
            case _:
                return frozenset()


def _is_deleted(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del)


def is_torch_context(stmt: ast.With) -> bool:
    """Whether every manager is made by a call `torch.…(…)`: none of those swallows an error."""
    return all(_is_torch_call(item.context_expr) for item in stmt.items)


def _is_torch_call(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name: ast.expr = node.func
    while isinstance(name, ast.Attribute):
        name = name.value
    return isinstance(name, ast.Name) and name.id == "torch"
