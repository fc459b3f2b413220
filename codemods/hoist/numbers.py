"""Tensors of which Python makes an int without being told: bounds of slices, and sizes."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from ..analysis.implicit_ints import elements, places
from .aliases import aliases_of
from .purity import parameters

if TYPE_CHECKING:
    from .project import File


_INTS = frozenset("uint8 int8 int16 int32 int64".split())


def numbers(file: File, function: ast.FunctionDef, node: ast.Call) -> list[Any]:
    """The tensors of one element that `node`, a call or an index, reads as Python ints."""
    return [n for n in _places(file, function, node) if _rank(file, function, n) == 0]


def _places(file: File, function: ast.FunctionDef, node: ast.Call) -> list[Any]:
    """Where a tensor's method, or an index of a tensor or a sequence, takes ints: what others do
    with them is not known."""
    owner = (
        node.value
        if isinstance(node, ast.Subscript)
        else getattr(getattr(node, "func", None), "value", None)
    )
    resolved = isinstance(node, ast.Call) and (file.names.resolve(node.func) or "").startswith(
        "torch."
    )
    fact = file.fact(function, owner) if owner is not None and not resolved else None
    known = resolved or (fact is not None and fact.what in _OWNERS)
    return places(file.names.resolve, node) if known else []


_OWNERS = ("tensor", "tensors", "object list", "object tuple", "object Size", "str")


def as_python(file: File, function: ast.FunctionDef, node: Any) -> str | None:
    """How `node` becomes what it is meant as, where that is an int, or ints by the names they are
    given: `int` or `tolist`; None of what else there is."""
    rank = _rank(file, function, node)
    if rank == 0 and _is_meant(file, function, node):
        return "int"
    above = file.parents[node]
    if (
        rank in (0, 1)
        and isinstance(above, ast.Assign)
        and above.value is node
        and _only_numbers(file, function, above)
    ):
        return "tolist" if rank else "int"
    return None


def source_of(file: Any, function: Any, name: str) -> Any:
    """The value that a name is given once, where it is an int, or ints by several names, in all but
    type."""
    stores = [
        n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name and _is_store(n)
    ]
    statement = file.statement(stores[0]) if stores else None
    if not isinstance(statement, ast.Assign) or as_python(file, function, statement.value) is None:
        return None
    return statement.value


def _only_numbers(file: Any, function: Any, statement: Any) -> bool:
    """Whether the names that an assignment binds are bound there alone, and stand for ints wherever
    they are read."""
    targets = elements(statement.targets[0]) if len(statement.targets) == 1 else [None]
    several = len(targets) > 1 or targets[0] is not statement.targets[0]
    if not all(isinstance(t, ast.Name) for t in targets):
        return False
    if several != (_rank(file, function, statement.value) == 1):
        return False
    names = {t.id for t in targets}
    if names & aliases_of(file, function).all_written:
        return False
    found = [
        n
        for n in ast.walk(function)
        if isinstance(n, ast.Name) and n.id in names and n not in targets
    ]
    return not names & parameters(function) and all(
        not _is_store(n) and _is_meant(file, function, n) for n in found
    )


def _is_meant(file: Any, function: Any, node: Any) -> bool:
    """Whether an expression stands where an int is meant."""
    above = file.parents[node]
    while isinstance(above, (ast.Tuple, ast.List, ast.Slice)):
        above = file.parents[above]
    return any(node is place for place in _places(file, function, above))


def _is_store(node: Any) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _rank(file: File, function: ast.FunctionDef, node: ast.Call) -> Any:
    """Of a tensor of integers."""
    fact = file.fact(function, node)
    return fact.rank if fact is not None and fact.what == "tensor" and fact.dtype in _INTS else None
