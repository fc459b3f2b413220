"""Texts that are the same in every run and checkout: paths below the project, no addresses."""

import linecache
import os
import re
import sysconfig
import tempfile

from .lock_file import SourcePlace

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|, file \"[^\"]*\", line \d+")
_PATH = re.compile(r"(?<![\w./\\])/(?:[\w.+@-]+/)+[\w.+@-]*")
_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")
_TEMPORARY = os.path.join(tempfile.gettempdir(), "")
_STANDARD_LIBRARY = os.path.join(sysconfig.get_paths()["stdlib"], "")
_DIGITS = re.compile(r"\d{6,}")
_TIMES = re.compile(r"'[^']*\d{6,}[^']*'")  # of the day, by which runs name themselves
_SET = re.compile(r"\{[^{}:]*\}")
_AS_IN_SOURCE = [
    (re.compile(pattern), written)
    for pattern, written in (
        (r"\.__dict__\['_(?:modules|parameters|buffers)'\]\['(\d+)'\]", r"[\1]"),
        (r"\.__dict__\['_(?:modules|parameters|buffers)'\]\['(\w+)'\]", r".\1"),
        (r"\.__dict__\['(\w+)'\]", r".\1"),
        (r" \([^()]*rewriter/frontend/module_class\.py:\d+\)", ""),
    )
]
_NUMBER = re.compile(r"\[\d+\]")


def as_in_source(text: str) -> str:
    """Attributes and submodules as the user writes them, not by the dicts in which a guard finds
    them; without places in this package: the call of a module is a function of ours."""
    for pattern, written in _AS_IN_SOURCE:
        text = pattern.sub(written, text)
    return text


class StableText:
    """Of one project, whose folder is `root`."""

    def __init__(self, root: str) -> None:
        self.root = os.path.join(os.path.abspath(root), "")

    def file(self, path: str) -> str:
        """The path below the project, the environment's packages or the standard library; else the
        file's name."""
        if not os.path.isabs(path):
            return path.replace(os.sep, "/")
        for base in (self.root, os.path.join(os.path.realpath(self.root), "")):
            if path.startswith(base) and not _INSTALLED.match(path):
                return os.path.relpath(path, base).replace(os.sep, "/")
        if path.startswith(_TEMPORARY):
            return "<temporary>"
        shorter = _INSTALLED.sub("", path)
        if shorter == path and path.startswith(_STANDARD_LIBRARY):
            return path.removeprefix(_STANDARD_LIBRARY).replace(os.sep, "/")
        return (os.path.basename(path) if shorter == path else shorter).replace(os.sep, "/")

    def is_users(self, path: str) -> bool:
        """Whether the file is one of the project's own."""
        return os.path.isabs(path) and path.startswith(self.root) and not _INSTALLED.match(path)

    def line(self, text: str) -> str:
        """One line of text, as any run of the project on any machine gives it."""
        text = _ADDRESS.sub("", as_in_source(" ".join(text.split())))
        text = _TIMES.sub(lambda found: _DIGITS.sub("#", found[0]), _SET.sub(_in_order, text))
        return _PATH.sub(lambda found: self.file(found[0]), text)

    def place(self, text: str, source: str = "") -> SourcePlace | None:
        """Of `model.py:41` or `model.py:41: the line`, as graphs, guards and effects have it."""
        found = SourcePlace.read(text.splitlines()[0] if text else "")
        if found is None or found.file.startswith("<unknown>"):
            return None
        path = os.path.join(self.root, found.file)  # the script may have gone to another folder
        code = linecache.getline(path, found.line) or source or found.source
        return SourcePlace(self.file(found.file), found.line, " ".join(code.split()))


def _in_order(found: re.Match[str]) -> str:
    return "{" + ", ".join(sorted(part.strip() for part in found[0][1:-1].split(","))) + "}"


def any_index(path: str) -> str:
    """The layers of a model under one name: `net.layers[*].weight`."""
    return _NUMBER.sub("[*]", path)
