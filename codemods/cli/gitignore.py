"""Which files `.gitignore` keeps out: the patterns of the folders walked so far, and of the
repository above."""

from __future__ import annotations

import os
import re
from pathlib import Path


def _pattern(line: str) -> tuple[re.Pattern, bool, bool] | None:
    """(regex over a path below the pattern's folder, negated, folders only), or None for a blank or
    a comment."""
    line = line.rstrip("\n").rstrip()
    if not line or line.startswith("#"):
        return None
    negated, line = line.startswith("!"), line.lstrip("!")
    only_folders, line = line.endswith("/"), line.rstrip("/")
    anchored = "/" in line
    line = line.lstrip("/")
    parts = re.split(r"(\*\*/|/\*\*|\*|\?|\[[^\]]+\])", line)
    translated = {"**/": "(?:.*/)?", "/**": "/.*", "*": "[^/]*", "?": "[^/]"}
    text = "".join(
        translated.get(p) or (p if p.startswith("[") else re.escape(p)) for p in parts if p
    )
    return re.compile(("" if anchored else "(?:.*/)?") + text + "$"), negated, only_folders


def _git_folder(folder: Path) -> Path:
    """Where git keeps the repository's own files: of a worktree, in the folder that it names."""
    git = folder / ".git"
    if git.is_dir():
        return git
    try:
        inner = folder / git.read_text(encoding="utf-8").partition("gitdir:")[2].strip()
        common = inner / "commondir"
        return inner / common.read_text(encoding="utf-8").strip() if common.exists() else inner
    except OSError:
        return git


class Ignored:
    """Fed with folders from the top down."""

    def __init__(self, top: str) -> None:
        self.rules = []
        top = Path(top).resolve()
        above = []
        for folder in (top, *top.parents):
            above.append(folder)
            if (folder / ".git").exists():
                self._read(folder, _git_folder(folder) / "info" / "exclude")
                for outer in reversed(above):
                    self.enter(outer)
                break

    def enter(self, folder: str) -> None:
        self._read(folder, os.path.join(folder, ".gitignore"))

    def _read(self, folder: str | Path, path: str | Path) -> None:
        try:
            with open(path, encoding="utf-8", errors="replace") as stream:
                patterns = [_pattern(line) for line in stream]
        except OSError:
            return
        self.rules.append((os.path.abspath(folder), [p for p in patterns if p]))

    def matches(self, path: str, is_folder: bool) -> bool:
        """The last pattern that fits decides."""
        ignored, path = False, os.path.abspath(path)
        for folder, patterns in self.rules:
            if not path.startswith(folder + os.sep):
                continue
            relative = path[len(folder) + 1 :].replace(os.sep, "/")
            for regex, negated, only_folders in patterns:
                if (is_folder or not only_folders) and regex.match(relative):
                    ignored = not negated
        return ignored
