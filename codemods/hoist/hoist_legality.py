"""Whether a call surely is that of the function that the run saw, and whether values may be handed
down there."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from ...lowering.opinfo import having
from .companion import CalleeMatch
from .purity import Impure

if TYPE_CHECKING:
    from .companion import Companion
    from .project import File, Project


_PLAIN = (ast.Constant, ast.Name, ast.UnaryOp)
_READING = (
    ast.BinOp,
    ast.Compare,
    ast.UnaryOp,
    ast.Subscript,
    ast.Slice,
    ast.Starred,
    ast.comprehension,
    ast.For,
    ast.IfExp,
)


def matched(project: Any, caller: Any, callee: Any, node: Any) -> Any:
    """The Call of `callee` at `node`; Impure where the run did not see it called there, by that
    name."""
    fact = caller.file.fact(caller.function, node.func)
    if fact is None or not _is_of(project, fact, callee):
        raise Impure(f"`{ast.unparse(node.func)}` may be something else")
    module = fact.what == "module"
    if (
        not module
        and isinstance(node.func, ast.Name)
        and node.func.id in caller.slice.bindings.keys() | caller.slice.parameters
    ):
        raise Impure(f"`{node.func.id}` may be another function")
    receiver = (
        node.func
        if module
        else getattr(node.func, "value", None)
        if fact.what == "method"
        else None
    )
    args = callee.function.args
    names = [a.arg for a in [*args.posonlyargs, *args.args]][fact.what != "function" :]
    if fact.what == "function" and callee.file.self_name(callee.function) is not None:
        raise Impure("a method is called by its class")
    if len(node.args) > len(names):
        raise Impure("the call gives more arguments than it names")
    taken = {*names, *(a.arg for a in args.kwonlyargs)}
    given = {k.arg: k.value for k in node.keywords if k.arg is not None}
    arguments = dict(zip(names, node.args, strict=False)) | {
        n: e for n, e in given.items() if n in taken
    }
    extra = {n: e for n, e in given.items() if n not in taken}
    return CalleeMatch(
        caller,
        callee,
        node,
        receiver,
        module,
        any(k.arg is None for k in node.keywords),
        arguments,
        extra,
    )


def _is_of(project: Any, fact: Any, callee: Any) -> bool:
    """Whether what was called at a place, at every time, is the callee."""
    if fact.what in ("function", "method"):
        return project.definition(fact.cls) == (callee.file, callee.function)
    owner = callee.file.cls(callee.function)
    return (
        fact.what == "module"
        and owner is not None
        and fact.cls == owner.name
        and callee.function.name == "forward"
    )


def check_function(project: Project, file: File, function: ast.FunctionDef) -> None:
    """Decorators from elsewhere may look at what is given."""
    if isinstance(function, ast.AsyncFunctionDef):
        raise Impure("it is a coroutine")
    for decorator in function.decorator_list:
        node = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = file.names.resolve(node) or ""
        if (
            name not in ("staticmethod", "classmethod")
            and name not in file.functions
            and not project.holds(name)
        ):
            raise Impure(f"`{ast.unparse(node)}` is not of the project")


def check_defaults(companion: Companion) -> None:
    """Defaults are evaluated for the companion once more: plain ones alone."""
    args = companion.function.args
    positional = [*args.posonlyargs, *args.args]
    pairs = [*zip(positional[len(positional) - len(args.defaults) :], args.defaults, strict=True)]
    pairs += [
        (a, d) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d is not None
    ]
    for arg, default in pairs:
        taken = companion.is_root or arg.arg in companion.slice.needed
        if taken and not (isinstance(default, (ast.Constant, ast.UnaryOp))):
            raise Impure(f"the default of `{arg.arg}` is made anew")


def only_read(file: Any, function: Any, unit: Any) -> Any:
    """Whether a value that is used at every turn of a loop is read there alone, or is a number."""
    if unit.names or unit.is_number:
        return unit.is_number
    fact = file.fact(function, unit.node)
    if fact is not None and fact.what in ("int", "float", "bool"):
        return True
    above = file.parents[unit.node]
    if isinstance(above, ast.keyword):
        above = file.parents[above]
    if isinstance(above, ast.Call):
        name = file.names.resolve(above.func) or ""
        method = isinstance(above.func, ast.Attribute) and above.func.attr in _TAKERS
        reads = isinstance(above.func, ast.Name) and above.func.id in (
            "len",
            "sum",
            "max",
            "min",
            "range",
            "zip",
            "enumerate",
        )
        return (name.startswith("torch.") or method or reads) and above.func is not unit.node
    if isinstance(above, ast.Assign):
        return isinstance(above.targets[0], ast.Tuple) and bool(unit.index)
    return isinstance(above, _READING)


_TAKERS = having("takes_sizes_or_positions")
