"""One Python file: bytes, text (line endings as they are), tree, and the way between tree positions
and offsets."""

from __future__ import annotations

import ast
import bisect
import codecs
import io
import re
import tokenize
from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

from ...runtime.warning_filters import suppress_warnings

if TYPE_CHECKING:
    from .spans import Fix


class Placed(Protocol):
    """What a finding says of its place: its line, in a notebook's cell if it has one."""

    @property
    def line(self) -> int: ...

    @property
    def cell(self) -> int | None: ...


_LINE_END_BYTES = re.compile(rb"\r\n|\r")
_LINE_END = re.compile(r"\r\n|\r|\n")


class SourceError(Exception):
    """A file that cannot be handled: `line` and `column` are 1-based (in a notebook's `cell`, where
    one is given), `message` is one line."""

    def __init__(
        self, message: str, line: int = 1, column: int = 1, cell: int | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.line, self.column, self.cell = message, line, column, cell


def decode(raw: bytes) -> tuple[str, str, bool]:
    """(text, encoding, whether a byte order mark stood there); SourceError where bytes and encoding
    disagree."""
    bom = raw.startswith(codecs.BOM_UTF8)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(_LINE_END_BYTES.sub(b"\n", raw)).readline)
    except SyntaxError as error:
        raise SourceError(str(error)) from None
    encoding = "utf-8" if encoding == "utf-8-sig" else encoding
    try:
        return (raw[3:] if bom else raw).decode(encoding), encoding, bom
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise SourceError(f"byte {raw[error.start]:#04x} is not {encoding}", line) from None
    except (LookupError, ValueError):  # a codec of another kind: rot13, zlib, undefined
        raise SourceError(f"the file cannot be read as {encoding}") from None


def lines_of(text: str) -> list[str]:
    """The lines of a file, without their endings, as Python counts them."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _starts(text: str) -> list[int]:
    """Where the lines begin."""
    if "\r" in text:
        return [0, *(match.end() for match in _LINE_END.finditer(text))]
    return [0, *accumulate(len(line) + 1 for line in text.split("\n")[:-1])]


def parse(text: str) -> ast.Module:
    """The tree of `text`; SourceError with the place where it is no Python."""
    try:
        with suppress_warnings():
            return ast.parse(text)
    except SyntaxError as error:
        raise SourceError(
            f"SyntaxError: {error.msg}", error.lineno or 1, error.offset or 1
        ) from None
    except ValueError as error:
        raise SourceError(f"{type(error).__name__}: {error}") from None


class SourceFile:
    """`text` keeps its line endings; every offset counts characters of `text`."""

    def __init__(
        self, text: str, path: str = "<stdin>", encoding: str = "utf-8", bom: bool = False
    ) -> None:
        self.text, self.path, self.encoding, self.bom = text, path, encoding, bom
        self.tree = parse(text)
        self.starts = _starts(text)
        self._ascii = text.isascii()
        self._tokens: tuple[list[tuple[int, str]], list[tuple[int, int]]] | None = None

    @classmethod
    def from_bytes(cls, raw: bytes, path: str) -> SourceFile:
        text, encoding, bom = decode(raw)
        return cls(text, path, encoding, bom)

    @property
    def document(self) -> str:
        """What the file holds: the text itself, unless it stands in something else."""
        return self.text

    def refuses(self, fix: Fix) -> str:
        """Why a fix may not be made here; "" where it may."""
        return ""

    def placed(self, found: list[Any]) -> list[Any]:
        """Findings with the places that people see."""
        return found

    def line_of(self, finding: Placed) -> int:
        """The line of `text` that a placed finding begins on."""
        return finding.line

    def to_bytes(self) -> bytes:
        return (codecs.BOM_UTF8 if self.bom else b"") + self.text.encode(self.encoding)

    def with_text(self, text: str) -> SourceFile:
        return SourceFile(text, self.path, self.encoding, self.bom)

    def offset(self, line: int, column: int) -> int:
        """The offset of a tree position: `line` from 1, `column` in UTF-8 bytes as `ast` counts
        it."""
        start = self.starts[line - 1]
        if self._ascii:
            return start + column
        return start + len(self.line(line).encode()[:column].decode())

    def line(self, number: int) -> str:
        """The text of line `number` (from 1) without its ending."""
        end = self.starts[number] if number < len(self.starts) else len(self.text)
        return self.text[self.starts[number - 1] : end].rstrip("\r\n")

    def column(self, line: int, byte_column: int) -> int:
        """The 1-based column, in characters, of a tree position."""
        return self.offset(line, byte_column) - self.starts[line - 1] + 1

    def place(self, offset: int) -> tuple[int, int]:
        """The line and the column, both from 1, of an offset."""
        line = bisect.bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1

    def span(self, node: Any) -> tuple[int, int]:
        return self.offset(node.lineno, node.col_offset), self.offset(
            node.end_lineno, node.end_col_offset
        )

    def segment(self, node: Any) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def substituted(self, node: Any, texts: Mapping[Any, str]) -> str:
        """The text of `node` with `texts` in the places of nodes within it; those outside it are
        passed over. ValueError where one stands within another."""
        start, end = self.span(node)
        places = sorted((self.span(inner), text) for inner, text in texts.items())
        parts, at = [], start
        for (first, last), text in places:
            if start <= first < at:
                raise ValueError("nodes to be replaced overlap")
            if at <= first and last <= end:
                parts += [self.text[at:first], text]
                at = last
        return "".join([*parts, self.text[at:end]])

    def begin(self, node: ast.stmt) -> int:
        """Where a statement begins: at its first decorator, if it has one."""
        start = self.span(node)[0]
        decorators = getattr(node, "decorator_list", ())
        return self.text.rindex("@", 0, self.span(decorators[0])[0]) if decorators else start

    @property
    def newline(self) -> str:
        match = _LINE_END.search(self.text)
        return match.group() if match else "\n"

    def indent_of(self, node: ast.stmt) -> str | None:
        """The white space before `node` on its line; None where something else stands there, or
        `node` is an `elif`."""
        if isinstance(node, ast.If) and self.text.startswith(
            "elif", self.offset(node.lineno, node.col_offset)
        ):
            return None
        return self.white_before(node)

    def white_before(self, node: ast.stmt) -> str | None:
        """The white space before `node` on its line; None where something else stands there."""
        before = self.line(node.lineno)[: self.column(node.lineno, node.col_offset) - 1]
        return before if not before.strip() else None

    def indent_unit(self) -> str:
        """One step of indentation as this file writes it."""
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                outer, inner = self.indent_of(node), self.indent_of(node.body[0])
                if (
                    inner is not None
                    and outer is not None
                    and inner != outer
                    and inner.startswith(outer)
                ):
                    return inner[len(outer) :]
        return "    "

    def comments(self) -> list[tuple[int, str]]:
        """Every comment as (start offset, text)."""
        return self._scan()[0]

    def has_long_string(self, start: int, end: int) -> bool:
        """Whether a string token that goes over a line's end stands in text[start:end]: indenting
        would change its value."""
        return any(a < end and b > start for a, b in self._scan()[1])

    def _scan(self) -> tuple[list[tuple[int, str]], list[tuple[int, int]]]:
        if self._tokens is None:
            comments, long = [], []
            for token in tokenize.generate_tokens(io.StringIO(self.text, newline="").readline):
                if token.type == tokenize.COMMENT:
                    comments.append(
                        (self.starts[token.start[0] - 1] + token.start[1], token.string)
                    )
                elif token.start[0] != token.end[0] and token.type not in (
                    tokenize.NEWLINE,
                    tokenize.NL,
                ):
                    long.append(
                        (self.starts[token.start[0] - 1], self.starts[token.end[0] - 1] + 1)
                    )
            self._tokens = comments, long
        return self._tokens
