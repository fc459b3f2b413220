"""What traced runs showed, kept beside the cache of results: used again by every command until the
file changes."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..cli.settings import Settings

_NAME = "traced.json"


def folder(settings: Settings) -> str:
    """Where results and facts are kept."""
    base = os.environ.get("DYNFIX_CODEMOD_CACHE")
    return base or os.path.join(settings.root, ".dynfix_cache")


def stored(paths: list[str], settings: Settings) -> tuple[dict[str, Any], str]:
    """({real path: what runs showed of the file}, a key of it all) of those of `paths` that are
    what they were, or what a traced command made of them."""
    known = _read(settings)
    found: dict[str, Any] = {}
    for path in map(os.path.realpath, paths) if known else ():
        kept, stamp = known.get(path), ""
        if kept is not None:
            stamp = _stamp(path)
        if kept is not None and stamp == kept["seen"]:
            found[path] = kept["data"]
        elif kept is not None and stamp == kept.get("made"):
            # where reads stood is known of the text that ran alone
            found[path] = {**kept["data"], "reads": []}
    text = json.dumps(found, sort_keys=True)
    return found, hashlib.sha256(text.encode()).hexdigest() if found else ""


def stamps(paths: list[str]) -> dict[str, str]:
    """{real path: a stamp of the file's content}."""
    return {p: _stamp(p) for p in map(os.path.realpath, paths)}


def store(data: dict[str, Any], seen: dict[str, str], settings: Settings) -> None:
    """Keep what was shown of files that had the stamps `seen`; they are as the command left
    them."""
    known = _read(settings)
    for path, entry in data.items():
        if entry["captured"]:
            known[path] = {"seen": seen[path], "made": _stamp(path), "data": entry}
    place = folder(settings)
    temporary = os.path.join(place, f"{_NAME}.{os.getpid()}.tmp")
    try:
        os.makedirs(place, exist_ok=True)
        with open(os.path.join(place, ".gitignore"), "w", encoding="utf-8") as stream:
            stream.write("*\n")
        with open(temporary, "w", encoding="utf-8") as stream:
            json.dump(known, stream)
        os.replace(temporary, os.path.join(place, _NAME))
    except OSError:
        return


def joined(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The data of several runs as that of one: an expression that was of two kinds is unknown."""
    found: dict[str, Any] = {}
    for path in {p for run in runs for p in run}:
        parts = [run[path] for run in runs if path in run]
        roots: dict[str, list[Any]] = {}
        for part in parts:
            for name, ways in part.get("roots", {}).items():
                known = roots.setdefault(name, [])
                known += [w for w in ways if w not in known]
        reads = [r for part in parts for r in part["reads"]]
        found[path] = {
            "facts": [f for part in parts for f in part["facts"]],
            "captured": sorted({c for part in parts for c in part["captured"]}),
            "reads": [r for n, r in enumerate(reads) if r not in reads[:n]],
            "roots": roots,
        }
    return found


def _read(settings: Settings) -> dict[str, Any]:
    try:
        with open(os.path.join(folder(settings), _NAME), encoding="utf-8") as stream:
            known = json.load(stream)
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _stamp(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            return hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return ""
