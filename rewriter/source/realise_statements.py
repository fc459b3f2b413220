"""Statements replaced, wrapped, taken out and put in, by LibCST: lines, semicolons, blocks on one
line, indentation, and the comments around."""

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from .source_file import SourceFile
from .spans import Edit
from .tree_paths import NotFound, block_of, indent_at, line_number, path_to_statement, spans, unix

_LINE_END = re.compile(r"\r\n|\r|\n")
_STATEMENTS = (cst.BaseSmallStatement, cst.BaseCompoundStatement)
_NOTHING = cst.TrailingWhitespace()
Line = cst.SimpleStatementLine | cst.BaseCompoundStatement


def replaced(source: SourceFile, edit: Edit) -> Edit:
    """Statements in place of others; what is a comment behind the last of these stays behind the
    new ones."""
    return _changed(
        source, edit, lambda run: _block(unix(source, edit.text), indent_at(source, edit.start))
    )


def wrapped(source: SourceFile, edit: Edit) -> Edit:
    """Statements below the head that is the edit's text."""

    def make(run: list[Line]) -> list[Line]:
        block = cst.IndentedBlock(run, indent=source.indent_unit())
        return [cst.parse_statement(f"{edit.text} pass\n").with_changes(body=block)]

    return _changed(source, edit, make)


def deleted(source: SourceFile, edit: Edit) -> Edit:
    """One statement less; a comment behind it stays, on a line of its own."""
    if len(block_of(path_to_statement(source, edit.start))) == 1:
        return _changed(source, edit, lambda run: [cst.SimpleStatementLine([cst.Pass()])])
    number = line_number(source, edit.end)
    stop = source.starts[number - 1] + len(source.line(number))
    after = source.text[edit.end : stop].strip()
    indent = indent_at(source, edit.start)
    if indent is None or after[:1] not in ("", "#"):
        return _changed(source, edit, lambda run: [])
    if after:
        return Edit(edit.start, source.text.index("#", edit.end), "")
    ending = _LINE_END.match(source.text, stop)
    return Edit(edit.start - len(indent), ending.end() if ending else stop, "")


def put_before(source: SourceFile, edit: Edit) -> Edit:
    """Lines above a statement."""
    indent, newline = indent_at(source, edit.start), source.newline
    if indent is not None:
        lines = (f"{indent if line else ''}{line}{newline}" for line in edit.text.split("\n"))
        start = edit.start - len(indent)
        return Edit(start, start, "".join(lines))
    end = source.span(path_to_statement(source, edit.start)[-1])[1]
    whole = Edit(edit.start, end, edit.text)
    return _changed(source, whole, lambda run: [*_block(edit.text, None), *run])


def cut(source: SourceFile, edit: Edit, start: int, end: int, new: str) -> Edit:
    """The splice that makes text[start:end] `new`: as little as differs, around the edit's own
    place."""
    old = source.text[start:end]
    new = new.replace("\n", "\r") if source.newline == "\r" else new
    ahead = _common(old, new, max(edit.start - start, 0))
    most = min(end - min(edit.end, end), len(old) - ahead, len(new) - ahead)
    behind = _common(old[::-1], new[::-1], most)
    return Edit(start + ahead, end - behind, new[ahead : len(new) - behind])


def _common(a: str, b: str, most: int) -> int:
    """How many characters, at most `most`, two texts begin with alike."""
    most = min(most, len(a), len(b))
    return next((i for i in range(most) if a[i] != b[i]), most)


def _block(text: str, indent: str | None) -> list[Line]:
    """The lines of `text`, of which those after the first are indented as they will stand."""
    body = cst.parse_module(f"if 1:\n{indent}{text}\n" if indent else f"{text}\n").body
    return list(body[0].body.body) if indent else list(body)  # type: ignore[arg-type,union-attr]


def _changed(source: SourceFile, edit: Edit, make: Callable[[list[Line]], list[Line]]) -> Edit:
    """The splice by which what `make` gives for the statements that the edit covers stands in their
    place."""
    path = path_to_statement(source, edit.start)
    run = [s for s in block_of(path) if edit.start <= source.span(s)[0] < edit.end]
    start, end, head = _lines(source, path, run)
    text = unix(source, head + source.text[start:end])
    config: Any = cst.PartialParserConfig(default_indent=source.indent_unit())
    module = cst.parse_module(text, config)
    places = {len(head) + source.span(s)[0] - start for s in run}
    found: list[Any] = [
        n for n, a, _ in spans(module, text) if isinstance(n, _STATEMENTS) and a in places
    ]
    if len(found) < len(run):
        raise NotFound("the statement is not found again")
    changed = module.visit(_Change(found, make, source.indent_unit()))
    return cut(source, edit, start, end, changed.code[len(head) :])


def _lines(source: SourceFile, path: list[ast.AST], run: list[ast.stmt]) -> tuple[int, int, str]:
    """(start, end, what must stand above them to make them a file) of the lines that hold
    statements: from the one that begins the first line to the end of the last."""
    lead, last = _lead(source, path), run[-1].end_lineno or 0
    if lead not in block_of(path):
        last = max(last, lead.end_lineno or 0)
    at = source.begin(lead)
    start = source.starts[line_number(source, at) - 1]
    end = source.starts[last] if last < len(source.starts) else len(source.text)
    return start, end, f"if 1:{source.newline}" if indent_at(source, at) else ""


def _lead(source: SourceFile, path: list[ast.AST]) -> ast.stmt:
    """The statement that begins the line on which the last of the path begins."""
    block = block_of(path)
    before = block[: next(i for i, s in enumerate(block) if s is path[-1]) + 1]
    outer = [n for n in path[:-1] if isinstance(n, ast.stmt)]
    for statement in reversed([*outer, *before]):
        if source.indent_of(statement) is not None:
            return statement
    raise NotFound("no statement begins the line")


@dataclass(frozen=True)
class _Parts:
    """A run of statements, cut out of its lines: what stands before and behind it on them."""

    above: Sequence[cst.EmptyLine]
    before: list[cst.BaseSmallStatement]
    run: list[Line]
    after: list[cst.BaseSmallStatement]
    end: cst.TrailingWhitespace | None  # of the last line: with its comment

    def joined(self, new: list[Line]) -> list[Line]:
        """The lines with `new` in the place of the run: on one line, where it was one and can
        be."""
        plain = [line for line in new if isinstance(line, cst.SimpleStatementLine)]
        if (self.before or self.after) and len(plain) == len(new) < 2:
            body = [*self.before, *(s for line in plain for s in line.body), *self.after]
            return [_line(body if self.after else _ended(body), self.above, self.end)]
        head = [_line(_ended(self.before), self.above, None)] if self.before else []
        tail = [_line(self.after, (), self.end)] if self.after else []
        if new and not head:
            new = [
                new[0].with_changes(leading_lines=[*self.above, *new[0].leading_lines]),
                *new[1:],
            ]
        if new and not tail and self.end is not None:
            new = [*new[:-1], _with_end(new[-1], self.end)]
        return [*head, *new, *tail]


def _parts(lines: list[Line], targets: set[int]) -> _Parts:
    """The run of `targets`, small or compound statements, in lines that each have one."""
    first, last = lines[0], lines[-1]
    before: list[cst.BaseSmallStatement] = []
    after: list[cst.BaseSmallStatement] = []
    above, end = first.leading_lines, None
    lines = [first.with_changes(leading_lines=[]), *lines[1:]]
    if isinstance(last, cst.SimpleStatementLine):
        at = max(i for i, s in enumerate(last.body) if id(s) in targets) + 1
        after, end = list(last.body[at:]), last.trailing_whitespace
        body = _ended(last.body[:at]) if after else last.body[:at]
        lines[-1] = lines[-1].with_changes(body=body, trailing_whitespace=_NOTHING)
    if isinstance(first, cst.SimpleStatementLine):
        at = min(i for i, s in enumerate(first.body) if id(s) in targets)
        before = list(first.body[:at])
        head: Any = lines[0]
        lines[0] = head.with_changes(body=head.body[at:])
    return _Parts(above, before, lines, after, end)


def _line(
    body: Sequence[cst.BaseSmallStatement],
    above: Sequence[cst.EmptyLine],
    end: cst.TrailingWhitespace | None,
) -> cst.SimpleStatementLine:
    return cst.SimpleStatementLine(body, above, trailing_whitespace=end or _NOTHING)


def _ended(body: Sequence[cst.BaseSmallStatement]) -> list[cst.BaseSmallStatement]:
    """Small statements that end a line: no semicolon behind the last."""
    return [*body[:-1], body[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)]


def _with_end(line: Line, end: cst.TrailingWhitespace) -> Line:
    """A line, of which the last physical one ends as another did; above it stands the comment
    where it ends otherwise."""
    if isinstance(line, cst.SimpleStatementLine):
        return line.with_changes(trailing_whitespace=end)
    body, other = line.body, getattr(line, "orelse", None) or getattr(line, "finalbody", None)
    if isinstance(body, cst.IndentedBlock) and body.body and other is None:
        inner = _with_end(body.body[-1], end)  # type: ignore[arg-type]
        return line.with_changes(body=body.with_changes(body=[*body.body[:-1], inner]))
    if end.comment is None:
        return line
    comment = cst.EmptyLine(comment=end.comment)
    return line.with_changes(leading_lines=[*line.leading_lines, comment])


class _Change(cst.CSTTransformer):
    """Puts what `make` gives for the lines of `targets`, adjacent statements of one block, in their
    place."""

    def __init__(
        self, targets: list[cst.CSTNode], make: Callable[[list[Line]], list[Line]], step: str
    ) -> None:
        super().__init__()
        self.targets, self.make, self.step = {id(t) for t in targets}, make, step

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        lines = self._lines(original_node.body)
        return updated_node if lines is None else updated_node.with_changes(body=lines)

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.BaseSuite:
        lines = self._lines(original_node.body)
        return updated_node if lines is None else updated_node.with_changes(body=lines)

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.BaseSuite:
        """A block on its head's line stays there where what comes is one line."""
        lines = self._lines([_line(original_node.body, (), original_node.trailing_whitespace)])
        if lines is None:
            return updated_node
        if len(lines) == 1 and isinstance(lines[0], cst.SimpleStatementLine):
            end = lines[0].trailing_whitespace
            return updated_node.with_changes(body=lines[0].body, trailing_whitespace=end)
        return cst.IndentedBlock(lines, indent=self.step)

    def _lines(self, body: Sequence[Any]) -> list[Line] | None:
        """The lines of a block with the change made; None where its statements are not here."""
        held = [i for i, line in enumerate(body) if self._has_target(line)]
        if not held:
            return None
        parts = _parts(list(body[held[0] : held[-1] + 1]), self.targets)
        return [*body[: held[0]], *parts.joined(self.make(parts.run)), *body[held[-1] + 1 :]]

    def _has_target(self, line: cst.CSTNode) -> bool:
        smalls = line.body if isinstance(line, cst.SimpleStatementLine) else ()
        return id(line) in self.targets or any(id(s) in self.targets for s in smalls)
