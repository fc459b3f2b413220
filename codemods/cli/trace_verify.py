"""What `--trace` fixes is run before it is written: the script with the fixed files must do what it
did, and files after whose fixes it does not are taken back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..rules import BY_CODE
from ..trace.tensor_traits import near
from ..trace.traced_program import words_of
from . import notebook, runner
from .terminal import say

if TYPE_CHECKING:
    from .runner import FileResult
    from .settings import Settings


@dataclass(frozen=True)
class Observed:
    """One run of the script, or of several: `values` and `printed` by the file of the outermost
    call, `text` all that was printed; `breaks` tells of each class of outermost modules and each
    compiled function how often its graph breaks (None: it does not compile), `wrong` names those
    that give other values then, `costs` has the milliseconds of a call and the graph breaks of
    each, `changed` names those of more than one graph that run what was fixed, `places` has the
    lines at which those break."""

    values: dict[str, Any]
    printed: dict[str, str]
    text: str
    code: tuple[int, ...]
    breaks: dict[str, int | None]
    wrong: frozenset[str]
    costs: dict[str, tuple[float, int]] = field(default_factory=dict)
    changed: frozenset[str] = frozenset()
    places: dict[str, list[Any]] = field(default_factory=dict)

    def differs(self, other: Observed, parts: tuple[str, ...]) -> str:
        """What another run makes different, or worse when compiled; "" where it is as good."""
        worse = (f"{_shown(n)} {what}" for n, what in self._worse(other))
        return _PARTS.get(self.differs_in(other, parts), "") or next(worse, "")

    def differs_in(self, other: Observed, parts: tuple[str, ...]) -> str:
        """The first part of eager in which another run is not the same; "" where all are."""
        return next((p for p in parts if not _same(getattr(self, p), getattr(other, p))), "")

    def own_reason(self, other: Observed, path: str) -> str:
        """What another run makes different in the calls of one file; "" where that is not known."""
        if not near(self.values.get(path), other.values.get(path)):
            return _PARTS["values"]
        worse = (f"{_shown(n)} {what}" for n, what in self._worse(other) if _file(n) == path)
        return next(worse, "")

    def _worse(self, other: Observed) -> list[tuple[str, str]]:
        """(name, what is wrong with it) of what another run makes worse when compiled."""
        wrong = sorted(other.wrong - self.wrong)
        found = [(n, "has more graph breaks") for n in self._more_breaks(other)]
        return found + [(n, "gives other values when compiled") for n in wrong]

    def _more_breaks(self, other: Observed) -> list[str]:
        """The names of what another run breaks more often, or does not compile at all."""
        both = self.breaks.keys() & other.breaks.keys()
        return sorted(n for n in both if _many(other.breaks[n]) > _many(self.breaks[n]))

    def completed(self, other: Observed) -> Observed:
        """With the breaks that another run counted of what it runs as it is here."""
        alike = {n for n, b in self.breaks.items() if b and other.breaks.get(n) != 0}
        alike -= other.changed
        breaks = {n: other.breaks.get(n, b) if n in alike else b for n, b in self.breaks.items()}
        return replace(self, breaks=breaks)

    def whole(self) -> int:
        return sum(number == 0 for number in self.breaks.values())

    def blamed(self, other: Observed, parts: tuple[str, ...]) -> set[str]:
        """The files of the outermost calls that another run makes different, or worse."""
        pairs = [(self.values, other.values)] if "values" in parts else []
        pairs += [(self.printed, other.printed)] if "text" in parts else []
        found = {f for a, b in pairs for f in a.keys() | b.keys() if not near(a.get(f), b.get(f))}
        return found | {_file(n) for n in (*self._more_breaks(other), *(other.wrong - self.wrong))}


def _many(breaks: int | None) -> float:
    return float("inf") if breaks is None else breaks


def _same(first: Any, second: Any) -> bool:
    """Whether two runs agree in a part: exactly, where nothing was noted as a float."""
    return bool(first == second) or near(first, second)


def _file(name: str) -> str:
    return name.rpartition(":")[0]


def _shown(name: str) -> str:
    return name.rpartition(":")[2]


_PARTS = {"values": "other values", "text": "other text is printed", "code": "another exit code"}


def verified(
    commands: list[str], results: list[FileResult], settings: Settings
) -> tuple[list[FileResult], dict[str, tuple[float, int]]]:
    """(the results, with files taken back after whose fixes the script differs; what the run with
    them took); tells what it did."""
    if not _texts(results):
        return results, {}
    rounded = any(BY_CODE[f.code].rounds for r in results for f in r.applied)
    after = observe(commands, _texts(results), rounded=rounded, zeros=settings.unsafe_fixes)
    broken = [name for name in after.changed if _many(after.breaks.get(name, 0)) > 1]
    before = observe(commands, {}, rounded=rounded, broken=broken).completed(after)
    parts: tuple[str, ...] = tuple(_PARTS)
    if before.differs_in(after, parts):  # but what differs anyhow proves nothing
        again = observe(commands, {}, [], rounded)
        parts = tuple(p for p in parts if _same(getattr(before, p), getattr(again, p)))
    if before.differs(after, parts):
        results, after = _Retreat(commands, results, settings, before, parts).made(after)
    if settings.verified:
        results, after = _Advance(commands, results, settings, before, parts).made(after)
    shown = ", ".join(words_of(c)[words_of(c)[0] == "-m"] for c in commands)
    same = ", ".join(p.removeprefix("other ").removeprefix("another ") for p in parts)
    print(
        f"Verified by running {shown}: the same {same or 'nothing'}; one graph:"
        f" {before.whole()} of {len(before.breaks)} modules before,"
        f" {after.whole()} of {len(after.breaks)} after.",
        file=sys.stderr,
    )
    return results, after.costs


def _texts(results: Iterable[FileResult]) -> dict[str, str]:
    """The fixed texts, by file."""
    return {
        os.path.realpath(r.path): r.after
        for r in results
        if r.after is not None and not r.path.endswith(notebook.SUFFIX)
    }


class _Retreat:
    """Takes files back, several at a time, until the script does what it did: each without fixes
    that change what eager does, with the safe fixes alone, with those that need no run, or as it
    was."""

    def __init__(
        self,
        commands: list[str],
        results: list[FileResult],
        settings: Settings,
        before: Observed,
        parts: tuple[str, ...],
    ) -> None:
        self.commands, self.settings, self.before, self.parts = commands, settings, before, parts
        self.rounded = any(BY_CODE[f.code].rounds for r in results for f in r.applied)
        self.chosen = {os.path.realpath(r.path): r for r in results}
        self.less: dict[str, list[FileResult]] = {}

    def made(self, after: Observed) -> tuple[list[FileResult], Observed]:
        while why := self.before.differs(after, self.parts):
            fixed = set(_texts(self.chosen.values()))
            blamed = fixed & self.before.blamed(after, self.parts) or self._culprit(sorted(fixed))
            if not blamed:
                break
            self._count(blamed)
            for path in sorted(blamed):
                own = self.before.own_reason(after, path) or why
                say(f"{self.chosen[path].path}: fixes taken back: {own}")
                self._step_back(path)
            after = self._observe(self.chosen, after, blamed)
        return list(self.chosen.values()), after

    def _count(self, paths: set[str]) -> None:
        """Count the breaks of these files' calls as they were, where one was noted for all: with
        fewer fixes, they may break as often again."""
        one = {_file(n) for n, number in self.before.breaks.items() if number == 1} & paths
        if one:
            run = observe(self.commands, {}, sorted(one), self.rounded)
            breaks = {**self.before.breaks, **run.breaks}
            self.before = replace(self.before, breaks=breaks)

    def _step_back(self, path: str) -> None:
        """The next choice for a file, passing over those that are the same text."""
        last = self.chosen[path]
        if path not in self.less:
            self.less[path] = _choices(last, self.settings)[1:]
        while self.less[path]:
            self.chosen[path] = self.less[path].pop(0)
            if self.chosen[path].after != last.after:
                return
        self.chosen[path] = runner.handled(last.path, last.read, self.settings, False)

    def _observe(
        self, chosen: dict[str, FileResult], last: Observed, changed: Iterable[str]
    ) -> Observed:
        """A run in which only what changed since the last is compiled."""
        texts, zeros = _texts(chosen.values()), self.settings.unsafe_fixes
        run = observe(self.commands, texts, list(changed), self.rounded, zeros)
        kept = {n: w for n, w in last.breaks.items() if _file(n) not in set(changed)}
        wrong = frozenset(n for n in last.wrong if _file(n) not in set(changed))
        costs = {**last.costs, **run.costs}
        return replace(run, breaks={**kept, **run.breaks}, wrong=run.wrong | wrong, costs=costs)

    def _culprit(self, paths: list[str]) -> set[str]:
        """By halves, one of several fixed files after whose fixes the script differs."""
        while len(paths) > 1:
            half = paths[: len(paths) // 2]
            run = self._observe({p: self.chosen[p] for p in half}, self.before, half)
            paths = half if self.before.differs(run, self.parts) else paths[len(half) :]
        return set(paths)


class _Advance(_Retreat):
    """Tries, of files whose calls still break the graph, what may break it less: operators that run
    in eager at the lines where it broke, and such operators in the place of other unsafe fixes."""

    def made(self, after: Observed) -> tuple[list[FileResult], Observed]:
        last, seen = dict(self.chosen), after
        for further in (
            self._at_breaks,
            self._at_breaks,
            self._as_operators,
            *[self._at_breaks] * 3,
        ):
            tried = {
                path: new
                for path in self._broken(after)
                if (new := further(last[path], seen)) is not None and new.after != last[path].after
            }
            if tried:  # a step may only move a break, and the next one mend it
                seen = self._joined(seen, self._observe({**last, **tried}, seen, tried), set(tried))
                last |= tried
                better = {p for p in tried if self._is_better(p, after, seen)}
                self.chosen |= {p: tried[p] for p in better}
                after = self._joined(after, seen, better)
        return list(self.chosen.values()), after

    def _broken(self, run: Observed) -> set[str]:
        broken = {_file(n) for n, number in run.breaks.items() if number != 0}
        return broken & self.chosen.keys()

    def _at_breaks(self, result: FileResult, run: Observed) -> FileResult | None:
        path = os.path.realpath(result.path)
        lines = [line for n in run.places for file, line in run.places[n] if file == path]
        if not lines:
            return None
        known = replace(self.settings, broken={path: sorted(set(lines))})
        return runner.fixed_on(result, known)

    def _as_operators(self, result: FileResult, run: Observed) -> FileResult | None:
        known = replace(
            self.settings, operators=True, unfixable=(*self.settings.unfixable, _READ_AHEAD)
        )
        return runner.handled(result.path, result.read, known, True)

    def _is_better(self, path: str, last: Observed, run: Observed) -> bool:
        """Whether another run breaks a file's calls less often, and is right."""
        own = [n for n in last.breaks if _file(n) == path]
        fewer = sum(_many(run.breaks.get(n, 0)) for n in own) < sum(
            _many(last.breaks[n]) for n in own
        )
        same = near(self.before.values.get(path), run.values.get(path))
        return fewer and same and not any(_file(n) == path for n in run.wrong - self.before.wrong)

    def _joined(self, last: Observed, run: Observed, paths: set[str]) -> Observed:
        """The last run, with what another showed of some files."""
        new = {n for n in run.breaks if _file(n) in paths}
        values = {p: run.values[p] for p in paths if p in run.values}
        wrong = frozenset(n for n in last.wrong if _file(n) not in paths)
        return replace(
            last,
            values={**last.values, **values},
            wrong=wrong | {n for n in run.wrong if _file(n) in paths},
            breaks={**last.breaks, **{n: run.breaks[n] for n in new}},
            costs={**last.costs, **{n: run.costs[n] for n in new if n in run.costs}},
            places={**last.places, **{n: run.places.get(n, []) for n in new}},
        )


_READ_AHEAD = "DYN110"  # what it hands down can be no operator's
_CAPTURE = "DYN506"  # Dynamo may not go on with what it captures: other fixes do without


def _choices(result: FileResult, settings: Settings) -> list[FileResult]:
    if result.after is None:
        return [result]
    safe = replace(settings, unsafe_fixes=False)
    less = [replace(settings, eager_kept=True), safe] if settings.unsafe_fixes else []
    less.append(replace(safe, verified=False))
    if any(f.code == _CAPTURE for f in result.applied):
        less.insert(0, replace(settings, unfixable=(*settings.unfixable, _CAPTURE)))
    fixed = [runner.handled(result.path, result.read, s, True) for s in less]
    return [result, *fixed, runner.handled(result.path, result.read, settings, False)]


def observe(
    commands: list[str],
    texts: dict[str, str],
    counted: list[str] | None = None,
    rounded: bool = False,
    zeros: bool = False,
    broken: list[str] | None = None,
) -> Observed:
    """Run each command with these texts in the place of files. `counted`: the files of which the
    outermost calls are compiled, to see whether they are one graph (None: all). `rounded`: floats
    are compared with a tolerance. `zeros`: gradients of zeros are as good as none, of which unsafe
    fixes warn. `broken`: of which breaks are counted (None: all)."""
    asked = {
        "texts": texts,
        "counted": counted,
        "rounded": rounded,
        "zeros": zeros,
        "broken": broken,
    }
    runs = [_observed(words_of(command), asked) for command in commands]
    values: dict[str, Any] = {}
    printed, breaks = {}, {}
    for run in runs:
        breaks.update(run.breaks)
        for file, noted in run.values.items():
            values.setdefault(file, []).append(noted)
        texts = run.printed.items()
        printed.update({f: f"{printed.get(f, '')}\n{text}" for f, text in texts})
    wrong = frozenset().union(*(run.wrong for run in runs))
    code = tuple(c for run in runs for c in run.code)
    text = "\n".join(r.text for r in runs)
    costs = {name: cost for run in runs for name, cost in run.costs.items()}
    changed = frozenset().union(*(run.changed for run in runs))
    places = {name: at for run in runs for name, at in run.places.items()}
    return Observed(values, printed, text, code, breaks, wrong, costs, changed, places)


def _observed(words: list[str], asked: dict[str, Any]) -> Observed:
    with tempfile.TemporaryDirectory() as folder:
        listed, out = Path(folder, "texts.json"), Path(folder, "seen.json")
        listed.write_text(json.dumps(asked), encoding="utf-8")
        module = ["-m", "dynfix.codemods.trace.checked_run", str(listed), str(out)]
        done = subprocess.run(
            [sys.executable, *module, *words],
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        seen = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    values: dict[str, list[Any]] = {}
    for file, *noted in seen.get("values", []):
        values.setdefault(file, []).append(noted)
    wrong, code = frozenset(seen.get("wrong", ())), (done.returncode,)
    printed = seen.get("printed", {})
    breaks, costs = seen.get("breaks", {}), seen.get("costs", {})
    changed = frozenset(seen.get("changed", ()))
    places = seen.get("places", {})
    return Observed(values, printed, done.stdout, code, breaks, wrong, costs, changed, places)
