"""The folder beside the configuration in which results and facts of traced runs are kept. A
checkout may bring one along: no link in it is followed, and what is read there is only data."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from ...rewriter.source.regular_files import create, is_folder, read, replace

_LIMIT = 256 * 1024 * 1024  # bytes


def place(root: str) -> str:
    base = os.environ.get("DYNFIX_CODEMOD_CACHE")
    return base or os.path.join(root, ".dynfix_cache")


def _is_ours(folder: str) -> bool:
    """A link may stand in the place of the folder that the user named, not of the checkout's."""
    named = os.environ.get("DYNFIX_CODEMOD_CACHE") == folder
    return os.path.isdir(folder) if named else is_folder(folder)


def load(root: str, name: str) -> dict[str, Any]:
    """The JSON object in a file of the folder; {} where there is none that can be read."""
    folder = place(root)
    try:
        raw = read(os.path.join(folder, name), _LIMIT, links=False) if _is_ours(folder) else b""
        found = json.loads(raw) if raw else {}
    except (OSError, ValueError, RecursionError, MemoryError):
        return {}
    return found if isinstance(found, dict) else {}


def save(root: str, name: str, found: dict[str, Any]) -> None:
    """Put an object there by atomic rename; nothing where that cannot be done."""
    folder = place(root)
    with contextlib.suppress(OSError, ValueError):
        if not os.path.lexists(folder):
            os.makedirs(folder)
        if _is_ours(folder):
            with contextlib.suppress(FileExistsError):
                create(os.path.join(folder, ".gitignore"), b"*\n")
            replace(os.path.join(folder, name), json.dumps(found).encode())


def fits(value: Any, form: Any) -> bool:
    """Whether JSON has a form: `[form]` is a list of any length, `(form, …)` one of just these,
    `{str: form}` an object with any names, another dict one with just its names, and a function
    says it of a value."""
    if isinstance(form, list):
        return isinstance(value, list) and all(fits(v, form[0]) for v in value)
    if isinstance(form, tuple):
        known = isinstance(value, list) and len(value) == len(form)
        return known and all(map(fits, value, form))
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return False
        if str in form:
            return all(fits(v, form[str]) for v in value.values())
        return value.keys() == form.keys() and all(fits(value[k], form[k]) for k in form)
    return bool(form(value))


def text(value: Any) -> bool:
    return isinstance(value, str)


def truth(value: Any) -> bool:
    return isinstance(value, bool)


def count(value: Any) -> bool:
    """A number of lines, characters, dimensions: none of them is huge."""
    return type(value) is int and 0 <= value < 2**31


def amount(value: Any) -> bool:
    """A measured number."""
    return type(value) in (int, float) and 0 <= value < 1e12


def optional(form: Any) -> Any:
    return lambda value: value is None or fits(value, form)
