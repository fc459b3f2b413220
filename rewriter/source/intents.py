"""What a fix means to change, as data: made while a file is looked at, without LibCST; what would
lose a comment is refused here."""

import ast
import io
import tokenize
from collections.abc import Sequence
from importlib import import_module

from .source_file import SourceFile
from .spans import Edit, Intent, Refusal

_LOST = Refusal("a comment would be lost")


def replace_expression(source: SourceFile, node: ast.expr, text: str) -> Edit | Refusal:
    """`text`, an expression, where `node` stands."""
    start, end = source.span(node)
    return _unless_lost(source, Edit(start, end, text, Intent.EXPRESSION))


def replace_statements(
    source: SourceFile, run: Sequence[ast.stmt], text: str, moved: str = ""
) -> Edit | Refusal:
    """Statements in place of a run of adjacent ones. Further lines of `text` are indented as they
    will stand. `moved`: what the same change puts elsewhere, comments of the run included."""
    start, end = source.begin(run[0]), source.span(run[-1])[1]
    return _unless_lost(source, Edit(start, end, text, Intent.STATEMENTS), moved)


def delete_statement(source: SourceFile, node: ast.stmt) -> Edit | Refusal:
    """Nothing in the place of `node`; `pass` where the block would be empty. A comment behind it on
    its line stays."""
    start, end = source.begin(node), source.span(node)[1]
    return _unless_lost(source, Edit(start, end, "", Intent.DELETE))


def wrap(source: SourceFile, run: Sequence[ast.stmt], head: str) -> Edit:
    """A run of adjacent statements under `head`, the first line of a compound statement."""
    return Edit(source.begin(run[0]), source.span(run[-1])[1], head, Intent.WRAP)


def insert_before(source: SourceFile, node: ast.stmt, text: str) -> Edit:
    """Statements above `node` (and its decorators), in its block. The lines of `text` are not
    indented yet."""
    start = source.begin(node)
    return Edit(start, start, text, Intent.BEFORE)


def decorate(source: SourceFile, node: ast.stmt, decorator: str) -> Edit | Refusal:
    """A decorator below those that a function has."""
    indent, start = source.white_before(node), source.span(node)[0]
    if indent is None:
        return Refusal("it shares its line with others")
    return Edit(start, start, f"@{decorator}{source.newline}{indent}")


def insert_after(source: SourceFile, node: ast.stmt, text: str) -> Edit | Refusal:
    """Lines below `node`, in its block; what begins with empty ones leaves them between. The lines
    of `text` are not indented yet."""
    indent, number = source.white_before(node), node.end_lineno or 0
    line = source.line(number)
    rest = line[source.column(number, node.end_col_offset or 0) - 1 :].strip()
    if indent is None or rest[:1] not in ("", "#"):
        return Refusal("it shares its line with others")
    lines = [f"{indent if each else ''}{each}" for each in text.split("\n")]
    if number < len(source.starts):
        at = source.starts[number]
        return Edit(at, at, source.newline.join([*lines, ""]))
    end = len(source.text)  # of a last line that has no ending
    return Edit(end, end, source.newline.join(["", *lines]))


def realised(source: SourceFile, edits: Sequence[Edit]) -> list[Edit]:
    """The edits as splices. Raises ValueError where one cannot be made. LibCST, which takes 0.2 s
    to load, is loaded for those that need it."""
    if all(e.intent is Intent.SPLICE for e in edits):
        return list(edits)
    made: list[Edit] = import_module(".realise", __package__).realised(source, edits)
    return made


def _unless_lost(source: SourceFile, edit: Edit, moved: str = "") -> Edit | Refusal:
    """The edit, if its text, or what it moves, has every comment of what it replaces."""
    if "#" not in source.text[edit.start : edit.end]:
        return edit
    old = [text for at, text in source.comments() if edit.start <= at < edit.end]
    new = [*_comments_of(edit.text), *_comments_of(moved)] if old else []
    return edit if all(old.count(c) <= new.count(c) for c in old) else _LOST


def _comments_of(text: str) -> list[str]:
    """The comments of a piece of a file."""
    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(f"({text}\n)", newline="").readline):
            if token.type == tokenize.COMMENT:
                found.append(token.string)
    except (tokenize.TokenError, IndentationError):
        return found
    return found
