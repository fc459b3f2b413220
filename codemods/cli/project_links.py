"""The project behind the files of one run: each is read once, in several processes, for what it
says to the others."""

from __future__ import annotations

import ast
import hashlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ...rewriter.source.regular_files import read
from ...rewriter.source.source_file import SourceError
from ..analysis.file_summary import FileSummary, read_program, summary
from ..analysis.neighbours import Neighbours
from ..analysis.project_graph import ProjectGraph
from . import deep_stack, notebook

if TYPE_CHECKING:
    from .settings import Settings

_ENOUGH_FOR_TWO = 8
_MOST_PROCESSES = 128


def linked(paths: list[str], settings: Settings, jobs: int) -> Settings:
    """The settings with what the files tell of each other."""
    real = list(dict.fromkeys(map(os.path.realpath, paths)))
    if jobs == 1 or len(real) < _ENOUGH_FOR_TWO:
        found = [_summarised(path) for path in real]
    else:
        import multiprocessing  # costs a tenth of the start-up

        with multiprocessing.Pool(min(jobs, len(real), _MOST_PROCESSES)) as pool:
            found = pool.map(_summarised, real, chunksize=max(1, min(16, len(real) // (4 * jobs))))
    files = {each.path: each for each in found if each is not None}
    seen = {path: facts.captured for path, facts in settings.facts.items() if path in files}
    project = ProjectGraph(files, settings.scope, settings.entry, seen, settings.root)
    return replace(settings, project=Neighbours({path: project.links(path) for path in files}))


def _summarised(path: str) -> FileSummary | None:
    """None for what cannot be read: that is said where the file itself is looked at."""
    try:
        return deep_stack.called(_summary, path)
    except Exception:
        return None


def _summary(path: str) -> FileSummary | None:
    raw = read(path)
    try:
        source = notebook.load(raw, path)
    except SourceError:
        return None
    tree = source.tree if source is not None else None
    if not isinstance(tree, ast.Module):
        return None
    return summary(read_program(tree), path, hashlib.sha256(raw).hexdigest())
