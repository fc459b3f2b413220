"""The edits by which a function takes the values of its companion and hands them down."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...rewriter.source.spans import Edit
from ..analysis.definitions import VALUES
from .companion_source import flat

if TYPE_CHECKING:
    from ...rewriter.source.source_file import SourceFile
    from .companion import AheadValue, Companion
    from .project import File


_WIDTH = 120  # columns
_CLOSING = re.compile(r"(\s*\))*")


def edits(companion: Companion) -> Iterator[Edit]:
    """Edits of the function: its parameter, its units and its calls."""
    tests = [f'{VALUES}["of"]["{name}"] is not {name}' for name in companion.of]
    check = (
        f"if {VALUES} and"
        f" {' or '.join(tests) if len(tests) < 2 else '(' + ' or '.join(tests) + ')'}:"
        if tests
        else ""
    )
    yield from parameter_edits(companion.file, companion.function, check)
    for key, unit in companion.units.items():
        changed = _loop_edits if unit.names else _value_edits
        yield from changed(companion, key, unit)
    for key, call in companion.calls.items():
        yield _argument_edit(companion.file.source, call.node, _handed(companion, key, call))


def _handed(companion: Any, key: Any, call: Any) -> str:
    """The argument that hands values down: nothing where none were computed, or where another
    function is called."""
    index = f"[{flat(companion.file, call.part.slice)}]" if call.part else ""
    tests = [
        VALUES,
        f'{VALUES}.get("{key}")',
        *([call.guard] if not call.callee.takes_self and call.guard else []),
    ]
    return f'**({{"{VALUES}": {VALUES}["{key}"]{index}}} if {" and ".join(tests)} else {{}})'


def _value_edits(companion: Companion, key: str, unit: AheadValue) -> list[Edit]:
    """The expression goes into the `else` of a choice; on lines of its own where one would be
    long."""
    source = companion.file.source
    start, end = source.span(unit.node)
    line = source.line(unit.node.lineno)
    before = f'{VALUES}["{key}"]{unit.index} if {VALUES} and "{key}" in {VALUES} else '
    if len(line) + len(before) <= _WIDTH:
        return [Edit(start, start, f"({before}"), Edit(end, end, ")")]
    outer = source.newline + line[: len(line) - len(line.lstrip())]
    inner = outer + source.indent_unit()
    before = inner + before.replace(" if ", f"{inner}if ").replace(" else ", f"{inner}else ")
    return [Edit(start, start, f"({before}"), Edit(end, end, f"{outer})")]


def _loop_edits(companion: Companion, key: str, unit: AheadValue) -> Iterator[Edit]:
    """The loop goes into the `else` of a choice."""
    source, newline = companion.file.source, companion.file.source.newline
    indent, step = source.white_before(unit.node), source.indent_unit()
    names = ", ".join(unit.names) + ("," if len(unit.names) == 1 else "")
    head = [
        f'if {VALUES} and "{key}" in {VALUES}:',
        f'{indent}{step}{names} = {VALUES}["{key}"]',
        f"{indent}else:",
    ]
    start = source.span(unit.node)[0]
    yield Edit(start, start, newline.join(head) + newline + indent + step)
    for line in range(unit.node.lineno + 1, unit.node.end_lineno + 1):
        if source.line(line).strip():
            yield Edit(source.starts[line - 1], source.starts[line - 1], step)


def _argument_edit(source: SourceFile, call: Any, text: str) -> Any:
    parts = [*call.args, *(k.value for k in call.keywords)]
    end = source.span(call)[1] - 1
    if not parts:
        return Edit(end, end, text)
    last = max(parts, key=lambda p: source.span(p)[1])
    at = source.span(last)[1]
    at += _CLOSING.match(source.text[at:end]).end()
    return Edit(at, at, _separator(source, call, parts, last) + text)


def parameter_edits(file: File, function: ast.FunctionDef, check: str) -> Iterator[Edit]:
    """The edits by which the function takes the values; `check`: an `if` under which they are not
    those of its arguments."""
    source, args = file.source, function.args
    first = _first(function)
    indent, start = (
        source.white_before(first),
        source.starts[_line(first) - 1] + len(source.white_before(first) or ""),
    )
    lines = [check, f"{source.indent_unit()}{VALUES} = None"] if check else []
    if args.kwarg and indent is not None:  # the signature, which others may look at, stays
        lines = [f'{VALUES} = {args.kwarg.arg}.pop("{VALUES}", None)', *lines]
    else:
        yield _parameter_edit(source, function)
    if lines:
        yield Edit(start, start, "".join(f"{line}{source.newline}{indent or ''}" for line in lines))


def _line(statement: ast.stmt) -> int:
    return min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])


def _parameter_edit(source: SourceFile, function: ast.FunctionDef) -> Edit:
    args = function.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    alone = f"{VALUES}=None" if args.vararg or args.kwonlyargs else f"*, {VALUES}=None"
    if not every and not args.vararg:
        at = source.text.index("(", source.text.index("def", source.span(function)[0])) + 1
        return Edit(at, at, alone + (", " if args.kwarg else ""))
    last = args.vararg if args.vararg and not args.kwonlyargs else every[-1]
    ends = [_end(source, n) for n in [last, *args.defaults, *args.kw_defaults, args.vararg] if n]
    parts = every or [last]
    return Edit(max(ends), max(ends), _separator(source, function, parts, last) + alone)


def _end(source: SourceFile, node: ast.AST) -> int:
    """The end of a node, behind the parentheses that stand around it."""
    start, end = source.span(node)
    while re.search(r"\(\s*$", source.text[:start][-80:]) and (
        closing := re.match(r"\s*\)", source.text[end:])
    ):
        start = source.text.rindex("(", 0, start)
        if re.search(r"\bdef\s+\w+\s*$", source.text[:start][-200:]):
            break
        end += closing.end()
    return end


def _first(function: ast.FunctionDef) -> ast.stmt:
    """The first statement below the docstring."""
    body = function.body
    documented = (
        len(body) > 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    )
    return body[1] if documented else body[0]


def _separator(
    source: SourceFile, node: ast.FunctionDef, parts: list[ast.arg], last: ast.arg
) -> str:
    """A comma, and a new line where every part has one of its own."""
    first = parts[0]
    if first.lineno == node.lineno or any(
        a.lineno == b.lineno for a, b in itertools.pairwise(parts)
    ):
        return ", "
    line = source.line(first.lineno)
    return f",{source.newline}{line[: len(line) - len(line.lstrip())]}"
