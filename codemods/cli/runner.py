"""Files in, results out: finding the files, handling each (in several processes), writing what was
fixed."""

from __future__ import annotations

import gc
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...rewriter.source.regular_files import kind, read
from ...rewriter.source.source_file import SourceError
from ..analysis.findings import failure
from .command_line import SUFFIXES
from .gitignore import Ignored
from .on_demand import OnDemand
from .result_cache import Cache
from .terminal import say

if TYPE_CHECKING:
    from ..analysis.findings import Finding
    from ..hoist import plan
    from ..trace import cross_file, saved_facts, trace_facts
    from . import check, deep_stack, notebook, project_links
    from .settings import Settings
else:
    check, cross_file = OnDemand(".check"), OnDemand("..trace.cross_file")
    deep_stack, notebook = OnDemand(".deep_stack"), OnDemand(".notebook")
    plan, project_links = OnDemand("..hoist.plan"), OnDemand(".project_links")
    saved_facts, trace_facts = OnDemand("..trace.saved_facts"), OnDemand("..trace.trace_facts")


_ENOUGH_FOR_TWO = 4
_MOST_PROCESSES = 128  # whatever a configuration file says
_COLLECT_EVERY = 4_000_000  # bytes of source
_seen = [0]
_project: list[Any] = []  # of a worker process: the Neighbours


@dataclass(frozen=True)
class FileResult:
    """One file: `left` are its findings after fixing, `applied` those that were fixed; `before` and
    `after` its text where a fix changed it, `read` and `raw` its bytes; `error` where it could not
    be handled."""

    path: str
    left: tuple = ()
    applied: tuple = ()
    before: str = ""
    after: str | None = None
    raw: bytes | None = None
    read: bytes = b""
    error: Finding | None = None


def with_saved_facts(settings: Settings, paths: list[str]) -> Settings:
    """With what earlier traced runs showed of these files, where they did not change since."""
    found, key = saved_facts.stored(paths, settings.root) if settings.cache else ({}, "")
    if not found:
        return settings
    try:
        facts = deep_stack.called(plan.planned, trace_facts.load(found), settings)
    except (RecursionError, MemoryError):
        say("what is kept of traced runs is not used: the code is nested too deeply")
        return settings
    return replace(settings, facts=facts, facts_key=key)


def files(paths: list[str], settings: Settings) -> tuple[list[str], list[Finding]]:
    """(the files that the paths name, in order and once each; what there is not, or cannot be
    looked through). A file that is named is always taken, unless the settings force their excludes
    on it."""
    found: dict[str, None] = {}
    failures: list[Finding] = []
    for path in paths:
        if settings.force_exclude and _forced_out(path, settings):
            continue
        if os.path.isdir(path):
            found.update(dict.fromkeys(_walk(path, settings, failures)))
        elif os.path.lexists(path):
            found[path] = None
        else:
            failures.append(failure(path, "no such file or folder"))
    return list(found), failures


def _walk(top: str, settings: Settings, failures: list[Finding]) -> Iterator[str]:
    """The files below a folder; neither a link to a folder nor what is no file is gone into."""
    ignored = Ignored(top) if settings.respect_gitignore else None
    todo = [top]
    while todo:
        folder = todo.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            failures.append(failure(folder, f"cannot be looked through: {error.strerror}"))
            continue
        if ignored:
            ignored.enter(folder)
        folders = [e for e in entries if e.is_dir(follow_symlinks=False)]
        names = [e for e in entries if e.name.endswith(SUFFIXES) and not _is_folder(e)]
        paths = [os.path.normpath(entry.path) for entry in names]
        yield from (p for p in paths if not _skipped(p, False, settings, ignored) and _read_up(p))
        kept = [e.path for e in folders if not _skipped(e.path, True, settings, ignored)]
        todo += reversed(kept)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a loop of links
        return False


def _read_up(path: str) -> bool:
    """Whether a file that was found can be read to an end. One that was named is a failure where it
    cannot; nobody asked for this one."""
    try:
        mode = os.stat(path).st_mode
    except OSError:  # that it cannot be read is said later
        return True
    if not stat.S_ISREG(mode):
        say(f"{path}: not a regular file, but {kind(mode)}: passed over")
    return stat.S_ISREG(mode)


def _forced_out(path: str, settings: Settings) -> bool:
    """Whether an exclude, or git, keeps out a path that is named, or a folder above it."""
    path, root = os.path.abspath(path), os.path.abspath(settings.root)
    ignored = Ignored(os.path.dirname(path)) if settings.respect_gitignore else None
    is_folder = os.path.isdir(path)
    while len(path) > len(root):
        if _skipped(path, is_folder, settings, ignored):
            return True
        path, is_folder = os.path.dirname(path), True
    return False


def _skipped(path: str, is_folder: bool, settings: Settings, ignored: Any) -> bool:
    return settings.excludes(path) or (ignored is not None and ignored.matches(path, is_folder))


def handle(path: str, raw: bytes, settings: Settings, fixing: bool) -> FileResult:
    """The Result for one file's bytes."""
    try:
        source = notebook.load(raw, path)
        if source is None:
            return FileResult(path)
        if not fixing:
            return FileResult(path, tuple(source.placed(check.findings(source, settings))))
        fixed = check.fix(source, settings)
    except SourceError as error:
        what = failure(path, error.message, error.line, error.column, error.cell)
        return FileResult(path, error=what)
    if fixed.source.text == source.text:
        return FileResult(path, fixed.left)
    return FileResult(
        path,
        fixed.left,
        fixed.applied,
        source.document,
        fixed.source.document,
        fixed.source.to_bytes(),
        raw,
    )


def handled(path: str, raw: bytes, settings: Settings, fixing: bool) -> FileResult:
    """`handle`, and where it fails, for whatever reason, a Result that says so."""
    try:
        return deep_stack.called(handle, path, raw, settings, fixing)
    except Exception as error:
        return FileResult(path, error=failure(path, deep_stack.reason(error)))


def _read_and_handle(job: tuple[str, Settings, bool]) -> tuple[FileResult, bytes]:
    path, settings, fixing = job
    if _project:
        settings = replace(settings, project=_project[0])
    try:
        os.fsencode(path).decode()
        raw = read(path)
    except UnicodeError:
        what = "the file's name is not UTF-8: give it another"
        return FileResult(path, error=failure(path, what)), b""
    except OSError as error:
        return FileResult(path, error=failure(path, error.strerror or str(error))), b""
    result = handled(path, raw, settings, fixing)
    _collect_now_and_then(len(raw))
    return result, raw


def _collect_now_and_then(size: int) -> None:
    _seen[0] += size
    if _seen[0] > _COLLECT_EVERY:
        _seen[0] = 0
        gc.collect()


def run(
    paths: list[str], settings: Settings, fixing: bool, progress: Any = None
) -> list[FileResult]:
    """Results of all files, in order. `progress(done)` is called after each."""
    cache = Cache(settings) if settings.cache else None
    jobs = settings.jobs or os.cpu_count() or 1
    keys = cache.links(paths) if cache else None
    if keys is None:
        settings = project_links.linked(paths, settings, jobs)
        keys = {p: links.key() for p in paths if (links := settings.links_of(p)) is not None}
        if cache:
            cache.put_links(paths, keys)
    results, todo = _from_cache(paths, settings, fixing, cache, keys)
    if todo and settings.project is None:
        settings = project_links.linked(paths, settings, jobs)
    for done, (result, raw) in enumerate(_outcomes(todo, settings, fixing, jobs), 1):
        results[result.path] = result
        if cache and result.error is None and result.raw is None:
            cache.put(result.path, raw, result.left, keys)
        if progress:
            progress(done, len(todo))
    if cache:
        cache.save()
    if fixing and settings.facts:
        for result, known in cross_file.settings_for_roots(list(results.values()), settings):
            results[result.path] = fixed_on(result, known)
    return [results[path] for path in paths]


def fixed_on(result: Any, settings: Settings) -> Any:
    """A result, fixed on with other settings."""
    try:
        raw = result.raw if result.raw is not None else read(result.path)
    except OSError:  # gone since, and what was found in it stays found
        return result
    more = handled(result.path, raw, settings, True)
    if more.error or more.raw is None:
        return replace(result, left=more.left) if more.error is None else result
    first = result if result.raw is not None else more
    applied = (*result.applied, *more.applied)
    return replace(more, before=first.before, read=first.read, applied=applied)


def _from_cache(
    paths: list[str], settings: Settings, fixing: bool, cache: Any, keys: dict[str, str]
) -> tuple[dict[str, FileResult], list[str]]:
    results, todo = {}, []
    for path in paths:
        found = _cached(path, cache, keys) if cache and cache.entries else None
        if found is None or (fixing and any(settings.wants(f) for f in found)):
            todo.append(path)
        else:
            results[path] = FileResult(path, tuple(found))
    return results, todo


def _cached(path: str, cache: Cache, keys: dict[str, str]) -> list[Finding] | None:
    try:
        return cache.get(path, read(path), keys)
    except OSError:
        return None


def _outcomes(
    todo: list[str], settings: Settings, fixing: bool, jobs: int
) -> Iterator[tuple[FileResult, bytes]]:
    """Each file's outcome, in order. Trees make no cycles: the collector, which would look at every
    node again and again (a third of the time), only runs between files."""
    gc.disable()
    try:
        yield from _handled(todo, settings, fixing, jobs)
    finally:
        gc.enable()


def _handled(
    todo: list[str], settings: Settings, fixing: bool, jobs: int
) -> Iterator[tuple[FileResult, bytes]]:
    if jobs == 1 or len(todo) < _ENOUGH_FOR_TWO:
        yield from (_read_and_handle((path, settings, fixing)) for path in todo)
        return
    work = [(path, settings.narrowed(path), fixing) for path in todo]
    import multiprocessing  # costs a tenth of the start-up, and most runs have one file

    _ = check.findings  # loaded once, ahead of the processes that need it

    number = min(jobs, len(work), _MOST_PROCESSES)
    with multiprocessing.Pool(number, _project.append, (settings.project,)) as pool:
        yield from pool.imap(
            _read_and_handle, work, chunksize=max(1, min(16, len(work) // (4 * jobs)))
        )
