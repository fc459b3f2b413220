"""From an edit's place back to the nodes of `ast`, and to the nodes of LibCST."""

import ast
import bisect
import re
from collections.abc import Iterator

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from .source_file import SourceFile

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_LINE_END = re.compile(r"\r\n|\r|\n")
_LONE = re.compile(r"\r(?!\n)")


class NotFound(ValueError):
    """What an edit is for is not where it was."""


def path_to_expression(source: SourceFile, start: int, end: int) -> list[ast.AST] | None:
    """The nodes from the tree down to the expression text[start:end]; None where there is none."""
    path: list[ast.AST] = [source.tree]
    while not (isinstance(path[-1], ast.expr) and source.span(path[-1]) == (start, end)):
        inner = next(
            (n for n in ast.iter_child_nodes(path[-1]) if _holds(source, n, start, end)), None
        )
        if inner is None:
            return None
        path.append(inner)
    return path


def path_to_statement(source: SourceFile, start: int) -> list[ast.AST]:
    """The nodes from the tree down to the statement that begins (with its decorators) at
    `start`."""
    path: list[ast.AST] = [source.tree]
    while not (isinstance(path[-1], ast.stmt) and source.begin(path[-1]) == start):
        inner = next(
            (n for n in ast.iter_child_nodes(path[-1]) if _holds(source, n, start, start + 1)), None
        )
        if inner is None:
            raise NotFound("the statement is not found again")
        path.append(inner)
    return path


def block_of(path: list[ast.AST]) -> list[ast.stmt]:
    """The statements among which the last of a path stands."""
    for name in _BLOCKS:
        body = getattr(path[-2], name, None)
        if isinstance(body, list) and any(s is path[-1] for s in body):
            return body
    raise NotFound("the statement is in no block")


def line_number(source: SourceFile, offset: int) -> int:
    return bisect.bisect_right(source.starts, offset)


def indent_at(source: SourceFile, offset: int) -> str | None:
    """The white space before an offset on its line; None where something else stands there."""
    before = source.text[source.starts[line_number(source, offset) - 1] : offset]
    return before if not before.strip() else None


def unix(source: SourceFile, text: str) -> str:
    """`text` as LibCST reads it, which takes no lone carriage return for the end of a line; as long
    as it was."""
    lone = source.newline == "\r"
    if "\n" in text if lone else _LONE.search(text):
        raise NotFound("lines end there in several ways")
    return text.replace("\r", "\n") if lone else text


def spans(module: cst.Module, text: str) -> Iterator[tuple[cst.CSTNode, int, int]]:
    """(node, start, end) of the nodes of `module`, which is `text`: offsets, parentheses left
    out."""
    starts = [0, *(m.end() for m in _LINE_END.finditer(text))]
    wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
    for node, place in wrapper.resolve(PositionProvider).items():
        start, end = place.start, place.end
        yield node, starts[start.line - 1] + start.column, starts[end.line - 1] + end.column


def _holds(source: SourceFile, node: ast.AST, start: int, end: int) -> bool:
    """Whether text[start:end] is of a node; one without a place is where the nodes below it are."""
    if not hasattr(node, "lineno"):
        return any(_holds(source, n, start, end) for n in ast.iter_child_nodes(node))
    first, last = source.span(node)
    first = source.begin(node) if isinstance(node, ast.stmt) else first
    return first <= start and end <= last
