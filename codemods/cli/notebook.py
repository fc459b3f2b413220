"""Jupyter notebooks (nbformat 4): the Python cells as one text for the analysis, and fixes written
back into the cells.

What IPython alone understands (`%magic`, `!command`, `name?`) stands in that text as a call with a
marked comment, and each cell begins with a marked comment; both are turned back, and a fix that
would lose one is refused. In the JSON only the changed lines of `source` are written anew."""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...rewriter.source.source_file import Placed, SourceError, SourceFile, parse

if TYPE_CHECKING:
    from ...rewriter.source.spans import Edit, Fix
    from ..analysis.findings import Finding


SUFFIX = ".ipynb"
_SPACE = re.compile(r"[ \t\r\n]*")
_LINE = re.compile(r"(?:\\[^n]|[^\\])*(?:\\n|$)")  # of a JSON string's inside
_ASSIGNED = re.compile(r"\s*[\w.,\[\] *]+=\s*(?=[!%]\S)")
_ESCAPED = re.compile(r"\s*(?=[%!?,;/])")
_HELP = re.compile(r"(\s*)(?=[^\s#][^#'\"]*\?\s*$)")
_PYTHON_MAGICS = re.compile(r"\s*%%(capture|debug|prun|pypy|python3?|time|timeit)\b")
_TOKEN = re.compile(
    r"""(?P<long>\"\"\"|''')|"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|(?P<comment>\#.*)|(?P<open>[(\[{])|(?P<close>[)\]}])|."""
)


@dataclass(frozen=True)
class NotebookCell:
    """A Python code cell: `number` from 1 among all cells; `start`, `end`: the span of its `source`
    value in the JSON; `elements`: (start, end, text) of the lines of a list, None where `source` is
    one string."""

    number: int
    text: str
    start: int
    end: int
    elements: tuple | None

    @property
    def has_magic(self) -> bool:
        return self.text.lstrip().startswith("%%")


# Reading JSON with its places


def _skip(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()


def _members(text: str, at: int) -> Iterator[tuple[int | str, int, int]]:
    """(key, start, end) of the values of the object or array (keys: indices) that begins at
    `at`."""
    close = {"{": "}", "[": "]"}.get(text[at : at + 1])
    at, index = _skip(text, at + 1), 0
    while close and text[at] != close:
        key = index
        if close == "}":
            key, at = json.decoder.scanstring(text, at + 1)
            at = _skip(text, _skip(text, at) + 1)
        end = _DECODER.raw_decode(text, at)[1]
        yield key, at, end
        at, index = _skip(text, end), index + 1
        at = _skip(text, at + 1) if text[at] == "," else at


_DECODER = json.JSONDecoder()


def _place(text: str, offset: Any) -> Any:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _parsed(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise SourceError(f"not a notebook: {error.msg}", error.lineno, error.colno) from None
    except RecursionError:
        raise SourceError("not a notebook: nested too deeply") from None
    if not isinstance(data, dict) or not isinstance(data.get("cells", []), list):
        raise SourceError("not a notebook: no object with a list of cells")
    if data.get("nbformat") != 4:
        raise SourceError(f"notebooks of format 4 are read, not of format {data.get('nbformat')}")
    return data


def _object(data: dict[str, Any], name: str) -> dict[str, Any]:
    """The object of that name in another; {} where there is none."""
    found = data.get(name)
    return found if isinstance(found, dict) else {}


def _is_python(data: dict[str, Any]) -> bool:
    metadata = _object(data, "metadata")
    kernel, language = _object(metadata, "kernelspec"), _object(metadata, "language_info")
    named = language.get("name") or kernel.get("language") or "python"
    return str(named).lower() in ("python", "ipython")


def cells(text: str) -> list[NotebookCell]:
    """The Python code cells of a notebook's JSON that are not blank; SourceError where it is no
    notebook."""
    if not text.strip():
        return []
    data = _parsed(text)
    if not _is_python(data):
        return []
    start = _skip(text, 0)
    places = {key: at for key, at, _ in _members(text, start)}
    spans = [at for _, at, _ in _members(text, places["cells"])] if "cells" in places else []
    found = (
        _cell(text, at, n, cell)
        for n, (at, cell) in enumerate(zip(spans, data.get("cells", ()), strict=True), 1)
    )
    return [cell for cell in found if cell is not None]


def _cell(
    text: str, at: int, number: int, data: dict[str, dict[Any, Any] | list[str] | str | None]
) -> NotebookCell | None:
    if not isinstance(data, dict) or data.get("cell_type") != "code" or not _cell_is_python(data):
        return None
    span = next(((a, b) for key, a, b in reversed([*_members(text, at)]) if key == "source"), None)
    source = data.get("source")
    listed = isinstance(source, list)
    if span is None or not (
        isinstance(source, str) or (listed and all(isinstance(s, str) for s in source))
    ):
        raise SourceError(f"cell {number} has no source", *_place(text, at))
    elements = tuple((a, b, source[i]) for i, a, b in _members(text, span[0])) if listed else None
    joined = "".join(source)
    return NotebookCell(number, joined, *span, elements) if joined.strip() else None


def _cell_is_python(data: dict[str, dict[Any, Any] | list[str] | str | None]) -> bool:
    editor = _object(_object(data, "metadata"), "vscode")
    return editor.get("languageId", "python") == "python"


# What Python does not understand


class _Lines:
    """Tells, line by line, whether a new statement begins: not inside a string, brackets, or after
    a backslash."""

    def __init__(self) -> None:
        self.quotes, self.depth, self.continued = "", 0, False

    @property
    def fresh(self) -> bool:
        return not self.quotes and not self.depth and not self.continued

    def read(self, line: str) -> None:
        at = 0
        self.continued = False
        while at < len(line):
            at = self._string(line, at) if self.quotes else self._code(line, at)

    def _string(self, line: Any, at: Any) -> Any:
        end = re.compile(r"(?:\\.|[^\\])*?" + self.quotes).match(line, at)
        if end is None:
            return len(line)
        self.quotes = ""
        return end.end()

    def _code(self, line: str, at: int) -> int:
        token = _TOKEN.match(line, at)
        self.quotes = token["long"] or ""
        self.depth = max(0, self.depth + bool(token["open"]) - bool(token["close"]))
        self.continued = token.group() == "\\" and token.end() == len(line)
        return token.end()


class Marks:
    """The marked comments of one notebook, and what the marked calls stand for."""

    def __init__(self, texts: list[str]) -> None:
        number = next(
            n for n in range(len(texts) + 1) if not any(f"dynfix-{n}-" in t for t in texts)
        )
        self.word = f"dynfix-{number}"
        self.magics = []
        self._cell = re.compile(rf"^# {self.word}-cell-(\d+)\n", re.MULTILINE)
        self._magic = re.compile(rf"get_ipython\(\)  # {self.word}-magic-(\d+)$", re.MULTILINE)

    def head(self, index: int) -> str:
        return f"# {self.word}-cell-{index}\n"

    def masked(self, cell: NotebookCell) -> str:
        """The cell's text with every magic as a marked call."""
        if cell.has_magic and not _PYTHON_MAGICS.match(cell.text):
            return self._call(cell.text)
        lines, out, state, at = cell.text.split("\n"), [], _Lines(), 0
        while at < len(lines):
            start, end = _magic(lines, at) if state.fresh else (None, at + 1)
            if start is None:
                state.read(lines[at])
                out.append(lines[at])
            else:
                out.append(lines[at][:start] + self._call("\n".join(lines[at:end])[start:]))
            at = end
        return "\n".join(out)

    def _call(self, text: str) -> str:
        self.magics.append(text)
        return f"get_ipython()  # {self.word}-magic-{len(self.magics) - 1}"

    def restored(self, text: str) -> str:
        return self._magic.sub(lambda match: self.magics[int(match[1])], text)

    def starts(self, text: str) -> list[int]:
        """The offsets at which the cells' own texts start; SourceError where a mark is missing."""
        found = [*self._cell.finditer(text)]
        magics = [int(m[1]) for m in self._magic.finditer(text)]
        if [int(m[1]) for m in found] != [*range(len(found))] or magics != [
            *range(len(self.magics))
        ]:
            raise SourceError("a cell or a magic would be lost")
        return [m.end() for m in found]


def _magic(lines: list[str], at: int) -> tuple[int | None, int]:
    """(where on the line at `at` something begins that is IPython's alone, the line after it);
    (None, at + 1) without."""
    match = _ASSIGNED.match(lines[at]) or _ESCAPED.match(lines[at]) or _HELP.match(lines[at])
    if match is None or not lines[at].strip():
        return None, at + 1
    end = at
    while lines[end].endswith("\\") and end + 1 < len(lines):
        end += 1
    return match.end(), end + 1


# The source that the rules see


class NotebookSource(SourceFile):
    """The Python cells, joined; `document` is the notebook's JSON, `found` the cells as they were
    read."""

    def __init__(
        self,
        text: str,
        path: str,
        document: str,
        found: list[NotebookCell],
        marks: Marks,
        bom: bool = False,
    ) -> None:
        super().__init__(text, path, "utf-8", bom)
        self.cell_starts = marks.starts(text)
        self.original, self.found, self.marks = document, found, marks
        if len(self.cell_starts) != len(found):
            raise SourceError("a cell would be lost")

    def with_text(self, text: str) -> NotebookSource:
        return NotebookSource(text, self.path, self.original, self.found, self.marks, self.bom)

    def to_bytes(self) -> bytes:
        return (b"\xef\xbb\xbf" if self.bom else b"") + self.document.encode()

    @property
    def document(self) -> str:
        return written(self.original, zip(self.found, self._texts(), strict=True))

    def _texts(self) -> list[str]:
        """The cells' texts as they are now."""
        heads = [start - len(self.marks.head(i)) for i, start in enumerate(self.cell_starts)]
        ends = [*heads[1:], len(self.text)]
        spans = zip(self.cell_starts, ends, strict=True)
        return [self.marks.restored(self.text[a:b].removesuffix("\n")) for a, b in spans]

    def refuses(self, fix: Fix) -> str:
        """Why a fix is not made: cells that begin with a magic of their own stay as they are."""
        cells_ = {self._index(e.start) for e in fix.edits}
        return (
            "the cell begins with a magic" if any(self.found[i].has_magic for i in cells_) else ""
        )

    def _index(self, offset: int) -> int:
        return max(0, bisect.bisect_right(self.cell_starts, offset) - 1)

    def _in_cell(self, offset: int) -> tuple[int, int]:
        """(index of the cell, offset in the cell's own text)."""
        index = self._index(offset)
        return index, len(self.marks.restored(self.text[self.cell_starts[index] : offset]))

    def placed(self, found: list[Finding]) -> list[Finding]:
        return [self._placed(f) for f in found]

    def _placed(self, finding: Finding) -> Finding:
        index = self._index(self.starts[finding.line - 1])
        lines = [self._line_in_cell(index, n) for n in (finding.line, finding.end_line)]
        fix = finding.fix and replace(
            finding.fix, edits=tuple(self._moved(e) for e in finding.fix.edits)
        )
        number = self.found[index].number
        return replace(finding, cell=number, line=lines[0], end_line=lines[1], fix=fix)

    def _line_in_cell(self, index: int, line: int) -> int:
        return (
            self.marks.restored(self.text[self.cell_starts[index] : self.starts[line - 1]]).count(
                "\n"
            )
            + 1
        )

    def _moved(self, edit: Edit) -> Edit:
        return replace(edit, start=self._in_cell(edit.start)[1], end=self._in_cell(edit.end)[1])

    def line_of(self, finding: Placed) -> int:
        """The line of the joined text that a placed finding's line is."""
        index = next(i for i, cell in enumerate(self.found) if cell.number == finding.cell)
        first = bisect.bisect_right(self.starts, self.cell_starts[index])
        return next(
            n
            for n in range(first, len(self.starts) + 1)
            if self._line_in_cell(index, n) >= finding.line
        )


def load(raw: bytes, path: str) -> Any:
    """The Source of a file of either sort; None for a notebook without Python cells."""
    if not path.endswith(SUFFIX):
        return SourceFile.from_bytes(raw, path)
    bom = raw.startswith(b"\xef\xbb\xbf")
    try:
        document = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(
            f"byte {raw[error.start]:#04x} is not utf-8", raw[: error.start].count(b"\n") + 1
        ) from None
    found = cells(document)
    marks = Marks([cell.text for cell in found])
    masked = [marks.masked(cell) for cell in found]
    for cell, text in zip(found, masked, strict=True):
        _parse(cell, text)
    joined = "".join(f"{marks.head(i)}{text}\n" for i, text in enumerate(masked))
    return NotebookSource(joined, path, document, found, marks, bom) if found else None


def _parse(cell: NotebookCell, text: str) -> None:
    try:
        parse(text)
    except SourceError as error:
        raise SourceError(error.message, error.line, error.column, cell.number) from None


def cell_texts(document: str) -> dict[int, str]:
    """{number: text} of the Python cells of a notebook's JSON."""
    return {cell.number: cell.text for cell in cells(document)}


# Writing back


def written(document: str, changes: Any) -> str:
    """The JSON with the cells' new texts in it: `changes` are (NotebookCell, text)."""
    parts, at = [], 0
    for cell, text in changes:
        if text != cell.text:
            parts += document[at : cell.start], _value(document, cell, _split(text))
            at = cell.end
    return "".join(parts) + document[at:]


def _split(text: str) -> list[str]:
    return [line for line in re.split(r"(?<=\n)", text) if line]


def _value(document: str, cell: NotebookCell, lines: list[str]) -> str:
    raw = document[cell.start : cell.end]
    if cell.elements is None:
        inside = [line for line in _LINE.findall(raw[1:-1]) if line]
        old = [json.loads(f'"{line}"') for line in inside]
        merged = [
            keep or _dumped(line, document, raw)[1:-1] for keep, line in _merged(old, inside, lines)
        ]
        return f'"{"".join(merged)}"'
    return _list(document, cell, lines, raw)


def _list(document: str, cell: NotebookCell, lines: list[str], raw: str) -> str:
    """The elements that stay with what stands before them, new ones with what stands between the
    first two."""
    spans = [(a, b) for a, b, _ in cell.elements]
    ends = [cell.start + 1, *(b for _, b in spans)]
    before = [document[end:a] for end, (a, _) in zip(ends, spans, strict=False)]
    usual = before[1] if len(before) > 1 else f",{before[0]}"
    old = [text for _, _, text in cell.elements]
    kept = [(i, document[a:b]) for i, (a, b) in enumerate(spans)]
    parts = [keep or (0, _dumped(line, document, raw)) for keep, line in _merged(old, kept, lines)]
    gaps = [before[0], *(before[i] if i else usual for i, _ in parts[1:])]
    inside = "".join(gap + text for gap, (_, text) in zip(gaps, parts, strict=True))
    return f"[{inside}{document[ends[-1] : cell.end]}"


def _merged(old: list[str], kept: list[tuple[int, str]], lines: list[str]) -> Any:
    """For each new line (what is kept of the same old line or None, the line)."""
    import difflib  # only where a notebook is written

    matcher = difflib.SequenceMatcher(None, old, lines, autojunk=False)
    result = [(None, line) for line in lines]
    for block in matcher.get_matching_blocks():
        for i in range(block.size):
            result[block.b + i] = kept[block.a + i], lines[block.b + i]
    return result


def _dumped(line: str, document: str, raw: str) -> str:
    """A string in the notebook's manner: characters beyond ASCII escaped where it escapes them."""
    escapes = (
        "\\u" in raw
        if not raw.isascii() or "\\u" in raw
        else document.isascii() and "\\u" in document
    )
    return json.dumps(line, ensure_ascii=escapes)
