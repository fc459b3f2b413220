"""Which files `.gitignore` keeps out: the patterns of the folders walked so far, and of the
repository above. They are read as git reads them: a link is no `.gitignore`."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterable

from ...rewriter.source.regular_files import read

_LARGEST = 1 << 20  # bytes of a file of patterns
_Part = Callable[[str], object]


class IgnorePattern:
    """One line. Its parts between slashes are matched one by one, in time that grows with their
    number and the path's: a checkout wrote it, and may not hold up who looks at it."""

    def __init__(self, line: str) -> None:
        self.negated, line = line.startswith("!"), line.removeprefix("!")
        self.only_folders, line = line.endswith("/"), line.rstrip("/")
        parts = [p for p in line.removeprefix("\\").split("/") if p]
        self.anywhere = "/" not in line
        inside = parts[-1:] == ["**"]
        self.parts = [_part(p) for p in parts] + ([_part("*")] if inside else [])

    def matches(self, path: list[str]) -> bool:
        """Whether it fits a path, by its parts below the pattern's folder."""
        if self.anywhere:
            return any(part is None or part(path[-1]) for part in self.parts)
        at = self._reached({0})
        for name in path:
            at = self._reached({n for i in at for n in self._after(i, name)})
        return len(self.parts) in at

    def _after(self, index: int, name: str) -> Iterable[int]:
        if index == len(self.parts):
            return ()
        part = self.parts[index]
        return (index,) if part is None else (index + 1,) if part(name) else ()

    def _reached(self, at: set[int]) -> set[int]:
        """With the places behind each `**`, which may stand for nothing."""
        for index in range(len(self.parts)):
            if index in at and self.parts[index] is None:
                at.add(index + 1)
        return at


def _part(text: str) -> _Part | None:
    """Whether a name fits; None for `**`."""
    if text == "**":
        return None
    return re.compile(fnmatch.translate(text.replace("[^", "[!"))).match


def _pattern(line: str) -> IgnorePattern | None:
    """None for a blank, a comment, and what fits nothing."""
    line = line.rstrip("\n").rstrip()
    if not line.strip("!/") or line.startswith("#"):
        return None
    try:
        return IgnorePattern(line)
    except re.error:
        return None


def _git_folder(folder: str) -> str:
    """Where git keeps the repository's own files: of a worktree, in the folder that it names."""
    git = os.path.join(folder, ".git")
    if os.path.isdir(git):
        return git
    try:
        inner = os.path.join(folder, _read(git).partition("gitdir:")[2].strip())
        common = os.path.join(inner, "commondir")
        return os.path.join(inner, _read(common).strip()) if os.path.exists(common) else inner
    except (OSError, ValueError):
        return git


def _read(path: str, links: bool = True) -> str:
    return os.fsdecode(read(path, _LARGEST, links=links))


class Ignored:
    """Fed with folders from the top down."""

    def __init__(self, top: str) -> None:
        self.rules: list[tuple[str, list[IgnorePattern]]] = []
        above = [os.path.realpath(top)]
        while not os.path.exists(os.path.join(above[-1], ".git")):
            outer = os.path.dirname(above[-1])
            if outer == above[-1]:
                return
            above.append(outer)
        self._read(above[-1], os.path.join(_git_folder(above[-1]), "info", "exclude"))
        for folder in reversed(above):
            self.enter(folder)

    def enter(self, folder: str) -> None:
        self._read(folder, os.path.join(folder, ".gitignore"), links=False)

    def _read(self, folder: str, path: str, links: bool = True) -> None:
        try:
            patterns = [_pattern(line) for line in _read(path, links).split("\n")]
        except (OSError, ValueError):
            return
        self.rules.append((os.path.abspath(folder), [p for p in patterns if p]))

    def matches(self, path: str, is_folder: bool) -> bool:
        """The last pattern that fits decides."""
        ignored, path = False, os.path.abspath(path)
        for folder, patterns in self.rules:
            if not path.startswith(folder + os.sep):
                continue
            relative = path[len(folder) + 1 :].split(os.sep)
            for pattern in patterns:
                if (is_folder or not pattern.only_folders) and pattern.matches(relative):
                    ignored = not pattern.negated
        return ignored
