"""The text of a lock: one fact a line, indented under what it belongs to.

    lock 1
    torch 2.13.0
    entry Net
      line model.py:15: x = F.relu(self.fc(x))
        op linear(x, self.fc.weight, self.fc.bias)

Order, line numbers, times and absolute paths do not depend on the run: equal runs give equal bytes.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator

FORMAT = "lock 1"
INDENT = "  "
SET_AT = " (set at {})"  # behind what is read: the line that sets it
_LINE = re.compile(r"(?P<file>.*?):(?P<line>\d+)(?:: (?P<source>.*))?$")
_COUNT = re.compile(r" x(\d+)$")


class LockError(ValueError):
    """A file that is no lock. The text says which, and where."""


@dataclasses.dataclass(frozen=True)
class SourcePlace:
    """A line of the user's. `source` is its text."""

    file: str
    line: int
    source: str

    @classmethod
    def read(cls, text: str) -> "SourcePlace | None":
        """Of `model.py:15: x = relu(x)`; None for what is no such text."""
        found = _LINE.match(text)
        return found and cls(found["file"], int(found["line"]), found["source"] or "")

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.source}" if self.source else self.where

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"


@dataclasses.dataclass
class LockFact:
    """One line: its first word says what it is, `parts` belong to it. `count`: how often it holds
    there."""

    kind: str
    text: str = ""
    parts: list["LockFact"] = dataclasses.field(default_factory=list)
    count: int = 1

    def part(self, kind: str, text: str = "") -> "LockFact":
        """The part that says this, made if there is none; of one that is there, one more."""
        for each in self.parts:
            if (each.kind, each.text) == (kind, text):
                each.count += 1
                return each
        self.parts.append(LockFact(kind, text))
        return self.parts[-1]

    def of(self, kind: str) -> Iterator["LockFact"]:
        return (each for each in self.parts if each.kind == kind)

    def lines(self, depth: int = 0) -> Iterator[str]:
        times = f" x{self.count}" if self.count > 1 else ""
        yield f"{INDENT * depth}{self.kind} {self.text}".rstrip() + times
        for each in self.parts:
            yield from each.lines(depth + 1)

    @property
    def place(self) -> SourcePlace | None:
        return SourcePlace.read(self.text) if self.kind == "line" else None


def written(facts: Iterable[LockFact], head: Iterable[str] = ()) -> str:
    """The text of a lock. `head`: comments at its top."""
    lines = [f"# {line}" for line in head]
    return "\n".join([*lines, FORMAT, *(line for fact in facts for line in fact.lines())]) + "\n"


def parsed(text: str, name: str) -> list[LockFact]:
    """The facts of a lock's text. Raises LockError, with `name`, for what is none."""
    numbered = [
        (number, line)
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.startswith("#")
    ]
    if not numbered or numbered[0][1] != FORMAT:
        raise LockError(f"{name} is no lock of this version: its first line is not `{FORMAT}`")
    root = LockFact("lock")
    within = [root]
    for number, line in numbered[1:]:
        depth, rest = divmod(len(line) - len(line.lstrip(" ")), len(INDENT))
        if rest or depth >= len(within):
            raise LockError(f"{name}:{number}: this line is indented too far, or by one space")
        made = _fact(line.strip())
        within[depth].parts.append(made)
        within[depth + 1 :] = [made]
    return root.parts


def _fact(line: str) -> LockFact:
    times = None if line.startswith("line ") else _COUNT.search(line)
    kind, _, text = (line if times is None else line[: times.start()]).partition(" ")
    return LockFact(kind, text, count=1 if times is None else int(times[1]))


def read(path: str) -> list[LockFact]:
    """The facts of a file. Raises LockError, also for what cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return parsed(file.read(), path)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise LockError(f"{path} cannot be read: {why}") from None


def write(path: str, text: str) -> None:
    """Replace the file at once. Raises OSError."""
    made = f"{path}.{os.getpid()}"
    try:
        with open(made, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(made, path)
    except OSError:
        if os.path.exists(made):
            os.unlink(made)
        raise
