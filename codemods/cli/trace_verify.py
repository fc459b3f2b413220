"""What `--trace` fixes is run before it is written: the script with the fixed files must do what it
did, and files after whose fixes it does not are taken back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..trace.traced_program import words_of
from . import notebook, runner
from .terminal import say

if TYPE_CHECKING:
    from .runner import FileResult
    from .settings import Settings


@dataclass(frozen=True)
class Observed:
    """One run of the script: `whole` tells of each class of outermost modules whether it is one
    graph."""

    values: str
    text: str
    code: tuple[int, ...]
    whole: tuple[tuple[str, bool], ...]

    def differs(self, other: Observed, parts: tuple[str, ...]) -> str:
        """The first part in which another run is not the same; "" where all are."""
        found = [p for p in parts if getattr(self, p) != getattr(other, p)]
        lost = [n for n, whole in self.whole if whole and (n, False) in other.whole]
        return (_PARTS[found[0]] if found else "") or (
            f"{lost[0]} is not one graph any more" if lost else ""
        )


_PARTS = {"values": "other values", "text": "other text is printed", "code": "another exit code"}


def verified(
    commands: list[str], results: list[FileResult], settings: Settings
) -> list[FileResult]:
    """The results, with files taken back after whose fixes the script differs; tells what it
    did."""
    texts = {
        os.path.realpath(r.path): r.after
        for r in results
        if r.after is not None and not r.path.endswith(notebook.SUFFIX)
    }
    if not texts:
        return results
    before, after = observe(commands, {}), observe(commands, texts)
    parts: tuple[str, ...] = tuple(_PARTS)
    if before.differs(after, parts):  # but what differs anyhow proves nothing
        again = observe(commands, {})
        parts = tuple(p for p in parts if not before.differs(again, (p,)))
    if before.differs(after, parts):
        results, after = _one_by_one(commands, results, settings, before, parts)
    shown = ", ".join(words_of(c)[words_of(c)[0] == "-m"] for c in commands)
    whole, made = (sum(w for _, w in run.whole) for run in (before, after))
    same = ", ".join(p.removeprefix("other ").removeprefix("another ") for p in parts)
    print(
        f"Verified by running {shown}: the same {same or 'nothing'}; one graph:"
        f" {whole} of {len(before.whole)} modules before, {made} of {len(after.whole)} after.",
        file=sys.stderr,
    )
    return results


def _one_by_one(
    commands: list[str],
    results: list[FileResult],
    settings: Settings,
    before: Observed,
    parts: tuple[str, ...],
) -> tuple[list[FileResult], Observed]:
    """File after file: with its fixes, with the safe ones alone, or as it was."""
    kept: dict[str, str] = {}
    chosen, last = [], before
    for result in results:
        path = os.path.realpath(result.path)
        for one in _choices(result, settings):
            if one.after is None or result.path.endswith(notebook.SUFFIX):
                break
            run = observe(commands, {**kept, path: one.after})
            why = before.differs(run, parts)
            if not why:
                kept[path], last = one.after, run
                break
            say(f"{result.path}: fixes taken back: {why}")
        chosen.append(one)
    return chosen, last


def _choices(result: FileResult, settings: Settings) -> list[FileResult]:
    if result.after is None:
        return [result]
    safe = replace(settings, unsafe_fixes=False)
    less = [runner.handled(result.path, result.read, safe, True)] if settings.unsafe_fixes else []
    return [result, *less, runner.handled(result.path, result.read, settings, False)]


def observe(commands: list[str], texts: dict[str, str]) -> Observed:
    """Run each command with these texts in the place of files."""
    runs = [_observed(words_of(command), texts) for command in commands]
    whole = sorted({pair for run in runs for pair in run.whole})
    values, text = (tuple(getattr(run, n) for run in runs) for n in ("values", "text"))
    code = tuple(run.code for run in runs)
    return Observed("\n".join(values), "\n".join(text), code, tuple(whole))


def _observed(words: list[str], texts: dict[str, str]) -> Observed:
    with tempfile.TemporaryDirectory() as folder:
        listed, out = Path(folder, "texts.json"), Path(folder, "seen.json")
        listed.write_text(json.dumps(texts), encoding="utf-8")
        module = ["-m", "dynfix.codemods.trace.checked_run", str(listed), str(out)]
        done = subprocess.run(
            [sys.executable, *module, *words],
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        seen = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    whole = tuple(sorted(seen.get("whole", {}).items()))
    return Observed(json.dumps(seen.get("values")), done.stdout, (done.returncode,), whole)
