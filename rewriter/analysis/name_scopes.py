"""Which names of a function other code may bind as well, and which are bound once."""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from .tree_walk import FunctionNode, NodeIndex, below, children

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_PATTERNS = (ast.MatchAs, ast.MatchStar, ast.MatchMapping)
_BINDING = (ast.Name, ast.Import, ast.ImportFrom, *_NAMED, ast.ExceptHandler, *_PATTERNS)


@dataclass(frozen=True)
class Rebindings:
    """`shared`: declared global or nonlocal here, or nonlocal in a function within: anything may
    bind them at any time. `once`: bound at one place. `bound`: local names, parameters left out.
    `places`: how many bind each name that is not shared."""

    shared: frozenset[str]
    once: frozenset[str]
    bound: frozenset[str]
    places: dict[str, int]


@lru_cache(maxsize=512)
def rebindings(function: FunctionNode) -> Rebindings:
    """The Rebindings of a function's names."""
    stores: Counter[str] = Counter()
    shared: set[str] = set()
    for node in below(function):
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            shared.update(node.names)
        elif isinstance(node, _BINDING) and node is not function:
            for name in bound_by(node):
                stores[name] += 1
    args = function.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    parameters = [a.arg for a in [*every, *filter(None, (args.vararg, args.kwarg))]]
    local = frozenset(stores) - shared
    stores.update(parameters)
    places = {name: count for name, count in stores.items() if name not in shared}
    once = frozenset(name for name, count in places.items() if count == 1)
    return Rebindings(frozenset(shared), once, local, places)


def bound_by(node: ast.AST) -> list[str]:
    """The names that this node alone binds."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return [node.id]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [(a.asname or a.name).split(".")[0] for a in node.names]
    if isinstance(node, (*_NAMED, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
        return [node.name]
    return [node.rest] if isinstance(node, ast.MatchMapping) and node.rest else []


def module_bindings(tree: ast.Module, index: NodeIndex) -> tuple[set[str], set[str]]:
    """(names of the module that are bound at more than one place, or by some function; those that
    are bound otherwise than by an import)."""
    declared = {name for node in index.get(ast.Global, ()) for name in node.names}
    stores: Counter[str] = Counter()
    others = set(declared)
    for node in _own(tree):
        names = bound_by(node)
        stores.update(names)
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            others.update(names)
    return declared | {name for name, count in stores.items() if count > 1}, others


def _own(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes of a module that stand in no function or class; those themselves included."""
    todo: list[ast.AST] = [*tree.body]
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, (*_SCOPES, ast.ClassDef)):
            todo += children(node)


def bound_in(node: ast.AST) -> set[str]:
    """The names that a statement binds."""
    return {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
    } | {n.name for n in ast.walk(node) if isinstance(n, _NAMED)}


def captured_names(pattern: ast.pattern) -> set[str]:
    """The names that a pattern of `match` binds."""
    return {name for node in ast.walk(pattern) for name in bound_by(node)}
