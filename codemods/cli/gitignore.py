"""Which files `.gitignore` keeps out: the patterns of the folders walked so far, and of the
repository above."""

from __future__ import annotations

import os
import re


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


def _git_folder(folder: str) -> str:
    """Where git keeps the repository's own files: of a worktree, in the folder that it names."""
    git = os.path.join(folder, ".git")
    if os.path.isdir(git):
        return git
    try:
        inner = os.path.join(folder, _read(git).partition("gitdir:")[2].strip())
        common = os.path.join(inner, "commondir")
        return os.path.join(inner, _read(common).strip()) if os.path.exists(common) else inner
    except OSError:
        return git


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as stream:
        return stream.read()


class Ignored:
    """Fed with folders from the top down."""

    def __init__(self, top: str) -> None:
        self.rules = []
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
        self._read(folder, os.path.join(folder, ".gitignore"))

    def _read(self, folder: str, path: str) -> None:
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
