"""What a fix means to change, as data: made while a file is looked at, without LibCST; what would
lose a comment is refused here."""

import ast
import io
import tokenize
from collections.abc import Sequence
from importlib import import_module

from .source_file import Source
from .spans import Edit, Intent, Refusal

_LOST = Refusal("a comment would be lost")


def replace_expression(source: Source, node: ast.expr, text: str) -> Edit | Refusal:
    """`text`, an expression, where `node` stands."""
    start, end = source.span(node)
    return _unless_lost(source, Edit(start, end, text, Intent.EXPRESSION))


def replace_statements(source: Source, run: Sequence[ast.stmt], text: str) -> Edit | Refusal:
    """Statements in place of a run of adjacent ones. Further lines of `text` are indented as they
    will stand."""
    start, end = source.begin(run[0]), source.span(run[-1])[1]
    return _unless_lost(source, Edit(start, end, text, Intent.STATEMENTS))


def delete_statement(source: Source, node: ast.stmt) -> Edit | Refusal:
    """Nothing in the place of `node`; `pass` where the block would be empty. A comment behind it on
    its line stays."""
    start, end = source.begin(node), source.span(node)[1]
    return _unless_lost(source, Edit(start, end, "", Intent.DELETE))


def wrap(source: Source, run: Sequence[ast.stmt], head: str) -> Edit:
    """A run of adjacent statements under `head`, the first line of a compound statement."""
    return Edit(source.begin(run[0]), source.span(run[-1])[1], head, Intent.WRAP)


def insert_before(source: Source, node: ast.stmt, text: str) -> Edit:
    """Statements above `node` (and its decorators), in its block. The lines of `text` are not
    indented yet."""
    start = source.begin(node)
    return Edit(start, start, text, Intent.BEFORE)


def realised(source: Source, edits: Sequence[Edit]) -> list[Edit]:
    """The edits as splices. Raises ValueError where one cannot be made. LibCST, which takes 0.2 s
    to load, is loaded for those that need it."""
    if all(e.intent is Intent.SPLICE for e in edits):
        return list(edits)
    made: list[Edit] = import_module(".realise", __package__).realised(source, edits)
    return made


def _unless_lost(source: Source, edit: Edit) -> Edit | Refusal:
    """The edit, if `text` has every comment of what it replaces."""
    if "#" not in source.text[edit.start : edit.end]:
        return edit
    old = [text for at, text in source.comments() if edit.start <= at < edit.end]
    new = _comments_of(edit.text) if old else []
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
