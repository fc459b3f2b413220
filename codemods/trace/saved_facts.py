"""What traced runs showed, kept beside the cache of results: used again by every command until the
file changes."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from ...rewriter.source.regular_files import read
from . import cache_folder
from .cache_folder import amount, count, fits, optional, text, truth

_NAME = "traced.json"
_LAST_RUN = "last_run.json"


def stored(paths: list[str], root: str) -> tuple[dict[str, Any], str]:
    """({real path: what runs showed of the file}, a key of it all) of those of `paths` that are
    what they were, or what a traced command made of them."""
    known = _read(root)
    found: dict[str, Any] = {}
    for path in map(os.path.realpath, paths) if known else ():
        kept, stamp = known.get(path), ""
        if kept is not None:
            stamp = _stamp(path)
        if kept is not None and stamp == kept["seen"]:
            found[path] = kept["data"]
        elif kept is not None and stamp == kept["made"]:
            # where reads stood is known of the text that ran alone
            found[path] = {**kept["data"], "reads": []}
    key = json.dumps(found, sort_keys=True)
    return found, hashlib.sha256(key.encode()).hexdigest() if found else ""


def stamps(paths: list[str]) -> dict[str, str]:
    """{real path: a stamp of the file's content}."""
    return {p: _stamp(p) for p in map(os.path.realpath, paths)}


def store(data: dict[str, Any], seen: dict[str, str], root: str) -> None:
    """Keep what was shown of files that had the stamps `seen`; they are as the command left
    them."""
    known = _read(root)
    for path, entry in data.items():
        if entry["captured"]:
            known[path] = {"seen": seen[path], "made": _stamp(path), "data": entry}
    cache_folder.save(root, _NAME, known)


def keep_costs(costs: dict[str, tuple[float, int]], root: str) -> None:
    """Keep what a run took of files as they are now: {"path:qualified name": (milliseconds of a
    call, graph breaks)}."""
    known = cache_folder.load(root, _LAST_RUN)
    files: dict[str, list[Any]] = {}
    for name, (milliseconds, breaks) in costs.items():
        path, _, qualified = name.rpartition(":")
        files.setdefault(path, []).append([qualified, milliseconds, breaks])
    for path, rows in files.items():
        known[path] = {"seen": _stamp(path), "costs": rows}
    if files:
        cache_folder.save(root, _LAST_RUN, known)


def costs(path: str, root: str) -> dict[str, tuple[float, int]]:
    """{qualified name: (milliseconds of a call, graph breaks)} of the last run of a file that is
    what it was."""
    known = cache_folder.load(root, _LAST_RUN).get(os.path.realpath(path))
    if known is None or not fits(known, _COSTS) or known["seen"] != _stamp(path):
        return {}
    return {name: (milliseconds, breaks) for name, milliseconds, breaks in known["costs"]}


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


def _read(root: str) -> dict[str, Any]:
    """What is kept. Another may have written it, the checkout itself: entries of another form are
    passed over."""
    known = cache_folder.load(root, _NAME)
    return {path: entry for path, entry in known.items() if fits(entry, _KEPT)}


def _stamp(path: str) -> str:
    try:
        return hashlib.sha256(read(path)).hexdigest()
    except OSError:
        return ""


def _way(form: Any) -> Any:
    return lambda value: bool(value) and fits(value, [form])


def _rank(value: Any) -> bool:
    return count(value) and value <= 64  # torch's own limit


_FACT = (text, optional(_rank), optional(text), truth, optional(text), truth)
_PLACE = (count, optional(count), optional(count), optional(count))
_DATA = {
    "facts": [(text, text, optional(_FACT))],
    "captured": [text],
    "reads": [(_way((text, text, _PLACE)), truth)],
    "roots": {str: [_way((text, text, text))]},
}
_COSTS = {"seen": text, "costs": [(text, amount, count)]}
_KEPT = {"seen": text, "made": text, "data": _DATA}
