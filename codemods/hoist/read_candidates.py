"""What could be computed ahead for a host read, and as what it would be handed down."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...rewriter.analysis.call_effects import CHANGES_CONTAINERS
from .companion import in_loop
from .companion_source import ELEMENT, each_of, flat, one_of
from .numbers import as_python, numbers, source_of
from .project import Frame

if TYPE_CHECKING:
    from .companion import Companion
    from .project import File


def candidates(chain: list[Frame]) -> Iterator[tuple[int, ast.AST]]:
    """(level, node), outermost functions first: the call that leads on, expressions around it, the
    loop around them."""
    for level, frame in enumerate(chain):
        node, loop = frame.node, None
        if level == len(chain) - 1:
            yield from ((level, n) for n in _others(frame))
        while isinstance(node, (ast.expr, ast.keyword, ast.comprehension)):
            if _is_value(node):
                yield level, node
            node = frame.file.parents[node]
        if level == len(chain) - 1 and isinstance(frame.node, ast.Subscript):
            read = _mask(frame) or frame.node
            if _is_value(read):
                yield level, read
        while node is not frame.function:
            loop = node if isinstance(node, (ast.For, ast.While)) else loop
            node = frame.file.parents[node]
        if loop is not None:
            yield level, loop


def targets(chain: Any) -> Iterator[list[Frame]]:
    """The chain of a read; of ints that are made of tensors without saying so, one for each of
    them."""
    if not chain:
        return
    last = chain[-1]
    found = numbers(last.file, last.function, last.node)
    if not found or _mask(last) is not None:
        yield chain
    for node in found:
        yield [*chain[:-1], Frame(last.file, last.function, node, last.changed)]


def _others(frame: Frame) -> Iterator[Any]:
    """What a number was unpacked from, in place of the number."""
    source = (
        source_of(frame.file, frame.function, frame.node.id)
        if isinstance(frame.node, ast.Name)
        else None
    )
    if source is not None:
        yield source


def _is_value(node: ast.expr) -> bool:
    """Whether a node is an expression that can stand alone, and binds no name that others read."""
    if not isinstance(node, ast.expr) or isinstance(node, (ast.Slice, ast.Starred)):
        return False
    if isinstance(node, ast.Tuple) and any(
        isinstance(e, (ast.Slice, ast.Starred)) for e in node.elts
    ):
        return False
    return not any(isinstance(n, ast.NamedExpr) for n in ast.walk(node))


def _mask(frame: Any) -> Any:
    """The bool tensor of an index with one tensor: of one dimension where there are other
    indices."""
    if not isinstance(frame.node, ast.Subscript):
        return None
    index = frame.node.slice
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    facts = [(p, frame.file.fact(frame.function, p)) for p in parts]
    tensors = [(p, f) for p, f in facts if f is not None and f.what == "tensor"]
    if len(tensors) != 1 or any(isinstance(p, ast.Starred) for p in parts):
        return None
    (part, fact), alone = tensors[0], len(parts) == 1
    return part if fact.dtype == "bool" and (fact.rank == 1 or (alone and fact.rank)) else None


def is_heavy(frame: Frame, node: ast.AST) -> bool:
    """Whether floating-point tensors go into it: work that belongs into the graph, where there is
    another way."""
    facts = (frame.file.fact(frame.function, n) for n in ast.walk(node) if isinstance(n, ast.expr))
    return any(f is not None and f.what == "tensor" and "float" in (f.dtype or "") for f in facts)


def changing_element(file: File, function: ast.FunctionDef, node: Any) -> Any:
    """The `x[i]` by which alone an expression changes in a loop: a tensor's element at a Python
    int."""
    found = {ast.unparse(n): n for n in ast.walk(node) if _is_element(file, function, n)}
    named = any(isinstance(n, ast.Name) and n.id == ELEMENT for n in ast.walk(node))
    return next(iter(found.values())) if len(found) == 1 and not named else None


def _is_element(file: File, function: ast.FunctionDef, node: ast.AST) -> bool:
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Name):
        return False
    whole, index = file.fact(function, node.value), file.fact(function, node.slice)
    return (
        whole is not None and whole.what == "tensor" and index is not None and index.what == "int"
    )


def handed_as(file: File, function: ast.FunctionDef, node: Any, text: str) -> str:
    """The text of what is handed down for `node`: indices of a mask, and the numbers that tensors
    are meant as."""
    above, fact, python = (
        file.parents[node],
        file.fact(function, node),
        as_python(file, function, node),
    )
    if file.tested_by(node) is not None:
        return f"bool({text})"
    if python is not None:
        return f"({text}).__index__()" if python == "int" else f"({text}).tolist()"
    if fact is None or fact.dtype != "bool":
        return text
    if isinstance(above, ast.Subscript) and above.slice is node:
        return f"({text}).nonzero(as_tuple=True)"
    if isinstance(above, ast.Tuple) and isinstance(file.parents[above], ast.Subscript):
        return f"({text}).nonzero()[:, 0]"
    return text


def of_all(file: Any, function: Any, node: Any, part: Any) -> Any:
    """(the text of the list of what `node` is for every element, the expressions that it reads).
    `x[i].tolist()` is an item of one list."""
    told = (
        isinstance(node, ast.Call) and getattr(node.func, "value", None) is part and not node.args
    )
    python = as_python(file, function, node)
    if (told and node.func.attr == "tolist") or (python is not None and node is part):
        return f"{flat(file, part.value)}.tolist()", [part.value]
    each = one_of(node, part)
    text = each if python is None else handed_as(file, function, node, each)
    return each_of(text, file, part), [ast.parse(each, mode="eval").body, part.value]


def is_repeated(companion: Companion, node: ast.AST | None = None) -> bool:
    """Whether a value is used more than once for each time that it is computed."""
    if (
        node is not None
        and isinstance(node, ast.expr)
        and in_loop(companion.file, companion.function, node)
    ):
        return True
    return any(call.in_loop or is_repeated(call.caller) for call in companion.callers)


def wished_key(file: File, node: Any) -> str:
    """A key that says what it is: the names that it is assigned to, or the last name in it."""
    statement = file.statement(node)
    if isinstance(statement, ast.Assign) and statement.value is node:
        return (
            "_".join(n.id for n in ast.walk(statement.targets[0]) if isinstance(n, ast.Name))
            or "value"
        )
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
    ):
        return f"{node.func.value.id}_{node.func.attr}"
    names = [getattr(n, "attr", getattr(n, "id", "")) for n in ast.walk(node)]
    return next((n for n in names if n and not n.startswith("__")), "value").strip("_") or "value"


def has_no_graph_form(test: ast.AST) -> bool:
    """Whether a branch changes lists and the like, of which the graph knows nothing."""
    sides = [*test.body, *test.orelse] if isinstance(test, ast.If) else []
    calls = (s.value for s in sides if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call))
    return any(
        isinstance(c.func, ast.Attribute) and c.func.attr in CHANGES_CONTAINERS for c in calls
    )
