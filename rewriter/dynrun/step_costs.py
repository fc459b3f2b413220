"""What a step of a run loses at each graph break, recompile and host read, from what the collector
saw: for `dynrun --advise` and `--report`.

The faster half of the steps counts in which nothing was compiled: what other processes do only ever
adds.
"""

import dataclasses
import functools
import linecache
import os
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from ..lock.stable_text import as_in_source
from . import summary
from .report_data import Collector, TimeSpan

FEWEST_STEPS = 3
_PLACE = re.compile(r"\(([^()\s]+):(\d+)\)")
_UPDATE_BYTES = 7  # for each of a parameter: Adam reads four values, and writes three
_UPDATE_INPUTS = 4  # of a graph, beside each parameter: its gradient, two states, a count of steps
_COPIED = 1 << 20, 1 << 28  # so many bytes are copied, to see how fast memory is


@dataclasses.dataclass
class Cost:
    """What one place costs. `ms` is of a step; `parts` says what of: "between graphs" (statements
    and guards there), "one more graph", "memory" (what one graph writes for the next one to read),
    "reading", "in eager", "step in eager" (what one graph would fuse of the training step that the
    break keeps in parts); "compiling": what it took in the whole run, over its steps. `times`: in a
    step. `function`: what was compiled."""

    kind: str
    file: str
    line: int
    text: str
    code: str
    reason: str
    help: str
    function: str
    times: float = 0.0
    parts: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def ms(self) -> float:
        return sum(self.parts.values())

    @property
    def once_ms(self) -> float:
        """Of these, what was compiled once."""
        return self.parts.get("compiling", 0.0)

    @property
    def each_ms(self) -> float:
        """What every step costs."""
        return self.ms - self.once_ms

    def add(self, part: str, ms: float) -> None:
        self.parts[part] = self.parts.get(part, 0.0) + ms


Costs = dict[tuple[str, int], Cost]


@dataclasses.dataclass
class StepCosts:
    """Costs, the largest first, of a step that takes `ms`; `counted` of `steps` were looked at.
    `clock`: "wall", or "processor" on a crowded machine. `why`: where there is nothing to rank."""

    step: str
    ms: float
    steps: int
    counted: int
    clock: str
    compile_seconds: float
    costs: list[Cost]
    why: str = ""


def step_costs(captured: Sequence[tuple[str, Any]], run: Collector) -> StepCosts:
    """The costs of one run. `captured`: what was compiled, with its names."""
    spans = sorted(run.spans, key=lambda span: span.start)
    name, steps = _steps(spans)
    sample = _sample(steps, spans)
    compiled = sum(sum(r.compile_times.values()) for _, e in captured for r in e.all_recordings)
    clock = "processor" if run.is_crowded else "wall"
    ms = 1e3 * statistics.fmean(step.seconds for step in sample) if sample else 0.0
    found = StepCosts(name, ms, len(steps), len(sample), clock, compiled, [])
    if not sample:
        found.why = _why_nothing(captured)
        return found
    breaks = _Breaks(captured, run, len(sample))
    for step in sample:
        breaks.add(_within(spans, step))
    costs = breaks.costs()
    _add_recompiles(costs, captured, len(steps))
    _add_reads(costs, spans, sample)
    found.costs = sorted((c for c in costs.values() if c.ms > 0), key=lambda cost: -cost.ms)
    return found


def _why_nothing(captured: Sequence[tuple[str, Any]]) -> str:
    sites = [site for _, entry in captured for r in entry.all_recordings for site in r.sites]
    if not captured:
        return "no training step, module or torch.compile was met"
    if sites:
        return f"nothing ran twice; the last graph break: {str(sites[-1]).splitlines()[0]}"
    return f"nothing ran twice: {summary.counted(len(captured), 'function')} compiled"


# -- steps


def _steps(spans: Sequence[TimeSpan]) -> tuple[str, list[TimeSpan]]:
    """What counts as a step, and from where to where each one is: from the beginning of one to that
    of the next. The update of a training step, else the compiled function that takes most time."""
    found: dict[tuple[str, str], list[TimeSpan]] = defaultdict(list)
    for span in spans:
        if span.kind in ("step", "call", "recording"):
            kind = "step" if span.kind == "step" else "call"
            found[kind, span.key].append(span)
    trained = [key for key in found if key[0] == "step" and len(found[key]) >= FEWEST_STEPS]
    if trained:
        name = min(trained, key=lambda key: len(found[key]))
    elif found:
        name = max(found, key=lambda key: sum(s.seconds for s in found[key] if s.kind == "call"))
    else:
        return "", []
    marks = found[name]
    ends = [
        TimeSpan("step", name[1], one.start, following.start) for one, following in pairwise(marks)
    ]
    return name[1], ends


def _sample(steps: Sequence[TimeSpan], spans: Sequence[TimeSpan]) -> list[TimeSpan]:
    """The faster half of the steps without a recording; of all, where each has one."""
    recorded = [span.start for span in spans if span.kind == "recording"]
    clean = [s for s in steps if not any(s.start <= at < s.end for at in recorded)] or steps
    return sorted(clean, key=lambda step: step.seconds)[: (len(clean) + 1) // 2]


def _within(spans: Sequence[TimeSpan], step: TimeSpan) -> list[TimeSpan]:
    return [span for span in spans if step.start <= span.start < step.end]


# -- graph breaks


class _Breaks:
    """What the sampled steps lost between graphs, by the break there."""

    def __init__(self, captured: Sequence[tuple[str, Any]], run: Collector, steps: int) -> None:
        self._run, self._steps = run, steps
        self._of: dict[Any, tuple[str, Any, int]] = {}  # a graph's function, part and index
        self._reached: dict[tuple[str, int], Any] = {}
        self._entries = dict(captured)
        for name, entry in captured:
            for part in entry.parts:
                self._note(name, part)
        self._costs: Costs = {}
        self._graphs: dict[Any, list[float]] = defaultdict(list)

    def _note(self, name: str, part: Any) -> None:
        for recording in part.recordings:
            for index, segment in enumerate(recording.segments):
                self._of[segment] = name, (part, recording), index
        failed = [r.sites[-1] for r in part.recordings if not r.segments and r.sites]
        for place in part.stopped_at or ():
            if failed:
                self._reached[place.file, place.line] = failed[-1]

    def add(self, spans: Sequence[TimeSpan]) -> None:
        """The spans of one step."""
        for part in (span for span in spans if span.kind == "step"):
            self._in_parts(part, [s for s in _within(spans, part) if s is not part])
        for call in (span for span in spans if span.kind == "call"):
            graphs = [s for s in _within(spans, call) if s.kind == "graph"]
            for graph in graphs:
                self._graphs[graph.key].append(graph.seconds)
            if graphs:
                self._between(call, graphs)
            else:
                self._eager(call)

    def _in_parts(self, step: TimeSpan, spans: Sequence[TimeSpan]) -> None:
        """A training step that is not one graph: its update, and what else stands around the
        modules, is eager. One graph would move at least the bytes of the update, and its guards
        would look at each tensor of the optimizer as now at each parameter."""
        entry = self._entries.get(step.key)
        if entry is None or any(recording.segments for recording in entry.all_recordings):
            return
        sites = [site for r in entry.all_recordings for site in r.sites]
        calls = sum(s.seconds for s in spans if s.key in self._entries)
        backward = sum(s.seconds for s in spans if s.kind == "backward")
        graphs = [s for s in spans if s.kind == "graph"]
        programs = (self._run.programs.get(key) for key in {s.key for s in graphs})
        moved = _UPDATE_BYTES * sum(program.learnt for program in programs if program)
        guards = max(0.0, calls - sum(s.seconds for s in graphs))
        fused = moved / bandwidth(moved) + _UPDATE_INPUTS * guards
        saved = step.seconds - calls - backward - fused
        if sites and saved > 0:
            self._cost(sites[0], step.key).add("step in eager", self._ms(saved))

    def _eager(self, call: TimeSpan) -> None:
        """A call without a graph."""
        entry = self._entries.get(call.key)
        sites = [s for r in entry.all_recordings for s in r.sites] if entry is not None else []
        if entry is not None and sites:
            cost = self._cost(_deciding(entry.recordings) or sites[-1], call.key)
            cost.times += 1 / self._steps
            cost.add("in eager", self._ms(call.seconds))

    def _between(self, call: TimeSpan, graphs: Sequence[TimeSpan]) -> None:
        whole = [None, *graphs, None]
        last: Any = None
        for before, after in pairwise(whole):
            sites = self._broken(before, after) or (last if before and after else None)
            last = sites or last
            if sites:
                start = before.end if before else call.start
                gap = (after.start if after else call.end) - start
                for site, name in sites:
                    self._charge(site, name, gap / len(sites), after, len(sites))

    def _charge(self, site: Any, name: str, gap: float, after: TimeSpan | None, among: int) -> None:
        cost = self._cost(site, name)
        cost.times += 1 / self._steps
        cost.add("between graphs", self._ms(gap))
        program = self._run.programs.get(after.key) if after else None
        if program is not None:
            ways = 2 if program.differentiated else 1  # backward as well
            known = program.launch
            part = "libraries" if known is None else "one more graph"
            cost.add(part, ways / among * (1 / self._steps if known is None else self._ms(known)))
            cost.add("bytes", ways * 2 * program.taken / among / self._steps)

    def _broken(self, before: TimeSpan | None, after: TimeSpan | None) -> list[tuple[Any, str]]:
        """The breaks between two graphs of a call; None: before its first, behind its last."""
        known = [self._of.get(span.key) for span in (before, after) if span is not None]
        if None in known or not known:
            return []
        first, last = known[0], known[-1]
        assert first is not None and last is not None
        if first[1][1] is last[1][1]:
            low = first[2] if before else -1
            high = last[2] if after else len(first[1][1].segments)
            sites = {
                (s.file, s.line): s for s in first[1][1].sites if low < s.graph <= high
            }.values()
            return [(site, first[0]) for site in sites]
        if before is None or after is None:
            return []
        for _, (part, _), _ in (last, first):
            place = part.beside
            site = self._reached.get((place.file, place.line)) if place is not None else None
            if site is not None:
                return [(site, first[0])]
        return []

    def _cost(self, site: Any, name: str) -> Cost:
        place = os.path.abspath(site.file), site.line
        if place not in self._costs:
            reason = site.reason.message + (f" ({site.detail})" if site.detail else "")
            about = site.text, site.reason.code, reason, site.reason.help, name
            self._costs[place] = Cost("graph break", *place, *about)
        return self._costs[place]

    def _ms(self, seconds: float) -> float:
        return 1e3 * seconds / self._steps

    def costs(self) -> Costs:
        """With what a graph more costs, and the memory between two; by place."""
        launch = min((statistics.fmean(each) for each in self._graphs.values()), default=0.0)
        for cost in self._costs.values():
            graphs, moved = cost.parts.pop("libraries", 0.0), cost.parts.pop("bytes", 0.0)
            cost.add("one more graph", 1e3 * graphs * launch)
            each = moved / max(cost.times, 1.0)
            cost.add("memory", 1e3 * moved / bandwidth(each) if moved else 0.0)
        return self._costs


def bandwidth(size: float) -> float:
    """Bytes that a copy reads and writes in a second, of about so many bytes."""
    low, high = _COPIED
    return _bandwidth(min(high, 1 << max(low.bit_length() - 1, int(size).bit_length())) // 2)


@functools.cache
def _bandwidth(copied: int) -> float:
    used = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    device = "cuda" if used else "cpu"
    given = torch.zeros(copied, dtype=torch.uint8, device=device)
    to = torch.empty_like(given)
    taken = []
    for _ in range(8):
        start = time.perf_counter()
        to.copy_(given)
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return 2 * copied / max(min(taken), 1e-9)


# -- reads and recompiles


def _deciding(recordings: Sequence[Any]) -> Any:
    """The break at which the last recording took another way than one before it."""
    made = [recording for recording in recordings if recording.segments]
    for other in reversed(made[:-1]):
        for (after, _, was), (_, _, now) in zip(other.outcomes, made[-1].outcomes, strict=False):
            if was != now:
                return next((site for site in made[-1].sites if site.graph >= after), None)
    return None


def _add_recompiles(costs: Costs, captured: Sequence[tuple[str, Any]], steps: int) -> None:
    """The seconds that compiling took after a function's first time, over all steps, by the line
    that asks for it: of the guard that failed, or of the value that was another one."""
    for name, entry in captured:
        for part in entry.parts:
            made = [r for r in part.recordings if r.segments]
            reasons = part.recompiles[1 - len(made) :] if len(made) > 1 else ()
            for number, why in enumerate(reasons, 1):
                seconds = sum(made[number].compile_times.values())
                cost = _recompiled(costs, name, as_in_source(why), made[: number + 1])
                cost.times += 0 if cost.kind == "graph break" else 1 / steps
                cost.add("compiling", 1e3 * seconds / steps)


def _recompiled(costs: Costs, name: str, why: str, made: Sequence[Any]) -> Cost:
    place, site = _PLACE.search(why), _deciding(made)
    file, line = (place[1], int(place[2])) if place else ("", 0)
    if place is None and site is not None:
        file, line = site.file, site.line
    file = os.path.abspath(file) if file else name
    if (file, line) not in costs:
        way_out = "keep what the guard is about constant, or mark the size dynamic (mark_dynamic)"
        code = ""
        if place is None and site is not None:
            code, way_out = site.reason.code, site.reason.help
        about = linecache.getline(file, line).strip(), code, why, way_out, name
        costs[file, line] = Cost("recompile", file if line else "", line, *about)
    return costs[file, line]


def _add_reads(costs: Costs, spans: Sequence[TimeSpan], sample: Sequence[TimeSpan]) -> None:
    """Reads of tensors on the host; those that break a graph are counted there."""
    broken = set(costs)
    for step in sample:
        for span in _within(spans, step):
            if span.kind == "read" and (os.path.abspath(span.key[0]), span.key[1]) not in broken:
                cost = _read(costs, *span.key)
                cost.times += 1 / len(sample)
                cost.add("reading", 1e3 * span.seconds / len(sample))


def _read(costs: Costs, file: str, line: int, by: str, name: str) -> Cost:
    place = os.path.abspath(file), line
    if place not in costs:
        text = linecache.getline(file, line).strip()
        reason = f"a tensor's value is read on the host ({name}{by and f', called at {by}'})"
        way_out = "read it less often, or keep it a tensor until it is needed"
        costs[place] = Cost("host sync", *place, text, "", reason, way_out, "")
    return costs[place]
