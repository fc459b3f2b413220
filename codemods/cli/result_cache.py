"""Results by content: one JSON file for each tool version and set of settings, in `.dynfix_cache`
beside the configuration."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ...rewriter.edits.spans import Edit, Fix, Intent, Safety
from ..analysis.findings import Finding

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
    return Finding(**{**data, "fix": fix})


def tool_stamp() -> str:
    """Changes whenever this tool's code does, or the Python whose `ast` it reads with."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    folders = (f for part in ("codemods", "rewriter") for f in os.walk(os.path.join(root, part)))
    files = [os.path.join(f, name) for f, _, names in folders for name in names]
    told = ((f, os.stat(f)) for f in sorted(files) if f.endswith(".py"))
    return repr((sys.version, [(f, s.st_mtime_ns, s.st_size) for f, s in told]))


class Cache:
    """`get(path, raw)` gives the findings stored for a file's content; `put` stores; `save` writes
    by atomic rename."""

    def __init__(self, settings: Settings) -> None:
        stamp = hashlib.sha256((tool_stamp() + settings.key()).encode()).hexdigest()[:24]
        base = os.environ.get("DYNFIX_CODEMOD_CACHE") or os.path.join(
            settings.root, ".dynfix_cache"
        )
        self.file = os.path.join(base, f"{stamp}.json")
        self.entries = self._load()
        self.changed = False

    def _load(self) -> dict[str, list[dict[str, int | str]]]:
        try:
            with open(self.file, encoding="utf-8") as stream:
                entries = json.load(stream)
        except (OSError, ValueError):
            return {}
        return entries if isinstance(entries, dict) else {}

    def _key(self, path: str, raw: bytes) -> str:
        return hashlib.sha256(os.path.abspath(path).encode() + b"\0" + raw).hexdigest()

    def get(self, path: Any, raw: bytes) -> list[Finding] | None:
        stored = self.entries.get(self._key(path, raw))
        try:
            return None if stored is None else [from_dict({**d, "path": path}) for d in stored]
        except (TypeError, KeyError, ValueError):
            return None

    def put(self, path: str, raw: bytes, found: tuple[Finding, ...]) -> None:
        self.entries[self._key(path, raw)] = [to_dict(f) for f in found]
        self.changed = True

    def save(self) -> None:
        if not self.changed:
            return
        import tempfile  # most runs find all that they ask for

        entries, folder = dict(list(self.entries.items())[-_LIMIT:]), os.path.dirname(self.file)
        try:
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, ".gitignore"), "w", encoding="utf-8") as out:
                out.write("*\n")
            handle, name = tempfile.mkstemp(dir=folder, suffix=".tmp")
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                json.dump(entries, out)
            os.replace(name, self.file)
        except OSError:
            return
