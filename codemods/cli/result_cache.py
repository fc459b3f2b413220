"""Results by content: one JSON file for each tool version and set of settings, in `.dynfix_cache`
beside the configuration."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from ...rewriter.source.regular_files import read
from ...rewriter.source.spans import Edit, Fix, Intent, Safety
from ..analysis.findings import Finding
from ..trace import cache_folder
from ..trace.cache_folder import count, optional, text, truth

if TYPE_CHECKING:
    from .settings import Settings


_LIMIT = 20_000


def to_dict(finding: Finding) -> dict[str, int | str]:
    """A finding as plain data."""
    data = asdict(finding)
    if finding.fix is not None:
        data["fix"]["safety"] = finding.fix.safety.value
    return data


def from_dict(data: dict[str, int | str]) -> Finding:
    fix = data["fix"]
    if fix is not None:
        edits = tuple(Edit(**{**e, "intent": Intent(e["intent"])}) for e in fix["edits"])
        fix = Fix(
            **{
                **fix,
                "edits": edits,
                "imports": tuple(fix["imports"]),
                "safety": Safety(fix["safety"]),
            }
        )
    return Finding(**{**data, "fix": fix, "reached": tuple(data["reached"])})


def tool_stamp() -> str:
    """Changes whenever this tool's code does, or the Python whose `ast` it reads with."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    parts = ("codemods", "rewriter", os.path.join("lowering", "opinfo"))
    folders = (f for part in parts for f in os.walk(os.path.join(root, part)))
    files = [os.path.join(f, name) for f, _, names in folders for name in names]
    stats = ((f, os.stat(f)) for f in sorted(files) if f.endswith((".py", ".txt")))
    return repr((sys.version, [(f, s.st_mtime_ns, s.st_size) for f, s in stats]))


class Cache:
    """`get(path, raw)` gives the findings stored for a file's content; `put` stores; `save`
    writes."""

    def __init__(self, settings: Settings) -> None:
        stamp = hashlib.sha256((tool_stamp() + settings.key()).encode()).hexdigest()[:24]
        self.settings, self.name = settings, f"{stamp}.json"
        self.entries = cache_folder.load(settings.root, self.name)
        self.changed = False

    def _key(self, path: str, raw: bytes, links: str) -> str:
        parts = (os.fsencode(os.path.abspath(path)), raw, links.encode())
        return hashlib.sha256(b"\0".join(parts)).hexdigest()

    def _project(self, paths: list[str]) -> str:
        """The name of what is stored of the files together."""
        whole = hashlib.sha256(b"project")
        for path in paths:
            try:
                raw = hashlib.sha256(read(path)).digest()
            except OSError:
                raw = b""
            whole.update(os.fsencode(os.path.abspath(path)) + b"\0" + raw)
        return whole.hexdigest()

    def links(self, paths: list[str]) -> dict[str, str] | None:
        """{path: the key of its links}, where these very files were linked before."""
        stored = self.entries.get(self._project(paths))
        fitting = stored is not None and cache_folder.fits(stored, [text])
        if not fitting or len(stored) != len(paths):
            return None
        return dict(zip(paths, stored, strict=True))

    def put_links(self, paths: list[str], keys: dict[str, str]) -> None:
        self.entries[self._project(paths)] = [keys.get(path, "") for path in paths]
        self.changed = True

    def get(self, path: Any, raw: bytes, links: dict[str, str]) -> list[Finding] | None:
        stored = self.entries.get(self._key(path, raw, links.get(path, "")))
        if stored is None or not cache_folder.fits(stored, [_FINDING]):
            return None
        try:
            return [from_dict({**d, "path": path}) for d in stored]
        except ValueError:  # no such intent or safety
            return None

    def put(self, path: str, raw: bytes, found: tuple[Finding, ...], links: dict[str, str]) -> None:
        self.entries[self._key(path, raw, links.get(path, ""))] = [to_dict(f) for f in found]
        self.changed = True

    def save(self) -> None:
        if self.changed:
            kept = dict(list(self.entries.items())[-_LIMIT:])
            cache_folder.save(self.settings.root, self.name, kept)


_EDIT = {"start": count, "end": count, "text": text, "intent": text}
_FIX = {
    "edits": [_EDIT],
    "title": text,
    "safety": text,
    "why": text,
    "imports": [text],
    "silent": count,
    **{field.name: truth for field in fields(Fix) if field.type in (bool, "bool")},
}
_PLACE = dict.fromkeys(("line", "column", "end_line", "end_column"), count)
_FINDING = {
    **dict.fromkeys(("code", "message", "path", "help", "kept", "level"), text),
    "reached": [text],
    **_PLACE,
    "fix": optional(_FIX),
    "traced": truth,
    "cell": optional(count),
}
