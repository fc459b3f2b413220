"""Roots whose reads stand in other files than their own: seen when all files are fixed."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...rewriter.analysis.import_names import ImportedNames, by_type
from ...rewriter.source.regular_files import read
from ...rewriter.source.source_file import SourceError, SourceFile
from .reads_left import Text, stands

if TYPE_CHECKING:
    from ..cli.settings import Settings


def settings_for_roots(results: Any, settings: Settings) -> Any:
    """[(result, the settings to fix it once more with)] for files with a root below which another
    file still reads: the root's ways then hold an empty one."""
    texts, again = {}, []
    by_path = {os.path.realpath(r.path): r for r in results}
    for path, facts in settings.facts.items():
        if path not in by_path:
            continue
        beyond = [
            q
            for q, ways in facts.roots.items()
            if any(_stands(w, path, by_path, texts) for w in ways)
        ]
        if beyond:
            known = copy.copy(facts)
            known.roots = {
                q: [*ways, []] if q in beyond else ways for q, ways in facts.roots.items()
            }
            again.append((by_path[path], replace(settings, facts={path: known})))
    return again


def _stands(way: Any, path: str, by_path: Any, texts: Any) -> Any:
    """Whether a way leads into another file, and what is read there is still read."""
    if way[-1][0] == path:
        return False
    for other in {p for p, _, _ in way} & by_path.keys():
        if other not in texts:
            texts[other] = _text(by_path[other])
    return way[-1][0] in texts and stands(way, {p: t for p, t in texts.items() if t is not None})


def _text(result: Any) -> Any:
    """The Text of a file as it is after its fixes; None where it could not be handled."""
    if result.error:
        return None
    try:
        source = SourceFile.from_bytes(result.raw or read(result.path), result.path)
    except (OSError, SourceError, RecursionError, MemoryError):  # it was changed since, or is deep
        return None
    return Text(source.tree, ImportedNames(source.tree, by_type(source.tree)))
