"""What was compiled, as the facts of a lock: from compiled functions with their recordings, and
from kernels while they are made."""

import functools
import hashlib
import math
import operator
import re
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Node

from ...lowering.loops.kernel_graph import ExternCall, Ref, leaves
from ...lowering.loops.polynomials import hint
from ...lowering.pipeline import KernelFacts
from ...lowering.stored_graphs import BACKWARD
from ...runtime.build import built_or
from ...runtime.guards.guard import Arg, Equals, Guard, Kwarg, Path, Tensor, TypeIs
from ...runtime.options import Options
from ...runtime.programs.recipes import ConstRecipe
from ...runtime.programs.steps import CALL_INPUT
from ..capture.places import is_own_file
from ..capture.recording import Recording
from ..capture.segments import Segment
from .assignments import set_at
from .lock_file import SET_AT, LockFact, SourcePlace
from .stable_text import StableText, any_index

DIGITS = 12  # of a hash
LAUNCH_SECONDS, BYTES_A_SECOND, FLOPS = 5e-6, 1e10, 3e10  # of some processor: see `Range`
_UNSAID = ("backend_kwargs", "compiler_timeout", "verify_ir", "strict", "write_kernels")
_IN_REASON = re.compile(r" \((\S+?:\d+)\)")


class CompiledFacts:
    """Of one run. `kernels` is to see each unit while it is compiled (`stored_graphs.watchers`),
    `graph` each graph when that is done (`segment_programs.observers`)."""

    def __init__(self, root: str) -> None:
        self.text = StableText(root)
        self._kernels: dict[tuple[Any, ...], int] = {}
        self._work = 0.0
        self._seconds: dict[Segment, float] = {}

    def graph(self, segment: Segment, program: Any, options: Any) -> Any:
        """An observer of `segment_programs`, which changes nothing."""
        self._seconds[segment] = self._work + LAUNCH_SECONDS * segment.ops
        self._work = 0.0
        return program

    def expected_seconds(self, entry: Any) -> float:
        """How long a call may take, by what its graphs compute: the same in every run."""
        calls = (
            sum(self._seconds.get(segment, 0.0) for segment in recording.segments)
            for recording in entry.all_recordings
        )
        return max((LAUNCH_SECONDS, *calls))

    def kernels(self, unit: Any, launches: Any) -> Any:
        """A watcher of `pipeline`."""
        for group, (launch, buffers) in launches.items():
            of = functools.partial(KernelFacts.of, unit, group, launch, buffers)
            facts = built_or(None, "a kernel cannot be described", of)
            if facts is None:
                continue
            moved = f"reads {facts.read} bytes, writes {facts.written}"
            key = digest(facts.general), f"{facts.target}, {moved}", tuple(facts.origins)
            self._kernels[key] = self._kernels.get(key, 0) + 1
            self._work += (facts.read + facts.written) / BYTES_A_SECOND
        if unit.name != BACKWARD:
            self._work += sum(_products(x) for x in unit.items if isinstance(x, ExternCall))
        return launches

    def all(self, functions: Iterable["Watched"]) -> list[LockFact]:
        """Of every function that was called, and of the kernels."""
        made: dict[str, LockFact] = {}
        for watched in functions:
            if watched.entry.all_recordings:
                self._entry(made.setdefault(watched.name, LockFact("entry", watched.name)), watched)
        return [*(_sorted(made[name]) for name in sorted(made)), *self._kernel_facts()]

    def _kernel_facts(self) -> list[LockFact]:
        found: list[tuple[tuple[str, int], LockFact]] = []
        for (hashed, moved, origins), count in self._kernels.items():
            fact = LockFact("kernel", f"{hashed} {moved}", count=count)
            places = {place for place in map(self.text.place, origins) if place is not None}
            ordered = sorted(places, key=_order)
            fact.parts = [LockFact("line", str(place)) for place in ordered]
            found.append((_order(ordered[0]) if ordered else ("", 0), fact))
        found.sort(key=lambda each: (each[0], [*each[1].lines()]))
        return [fact for _, fact in found]

    def _entry(self, fact: LockFact, watched: "Watched") -> None:
        entry, at = watched.entry, self._under(fact, self.text.place(watched.at))
        at.part("options", _options(entry.options)).count = 1
        for made in entry.parts:
            names: tuple[str, ...] = ()
            for recording in made.recordings:
                self._breaks(fact, recording)
                if isinstance(recording, Recording):
                    version = Version(self.text, made.fn, recording)
                    fact.parts.append(version.fact())
                    names = version.names
                    for place in version.lines_that_set:
                        self._under(fact, place)
            for why in made.recompiles:
                self._recompile(fact, why, names)

    def _breaks(self, fact: LockFact, recording: Any) -> None:
        for site in recording.sites:
            place = self.text.place(f"{site.file}:{site.line}", site.text)
            detail = f" ({self.text.line(site.detail)})" if site.detail else ""
            what = f"{site.reason.code} {site.reason.message}{detail}"
            self._under(fact, place).part("break", self.text.line(what))

    def _recompile(self, fact: LockFact, why: str, names: tuple[str, ...]) -> None:
        found = _IN_REASON.search(why)
        place = self.text.place(found[1]) if found else None
        text = _IN_REASON.sub("", why) if found else why
        for number, name in enumerate(names):
            text = text.replace(f"args[{number}]", name)
        self._under(fact, place).part("recompile", self.text.line(text))

    @staticmethod
    def _under(fact: LockFact, place: SourcePlace | None) -> LockFact:
        return fact if place is None else _line(fact, place)


def _products(call: ExternCall) -> float:
    """Seconds, if the call multiplies matrices: M x K by K x N takes the square root of the product
    of the three sizes."""
    refs = [each for each in leaves((call.args, call.result)) if isinstance(each, Ref)]
    sizes = sorted((int(hint(ref.numel)) for ref in refs), reverse=True)[:3]
    return 2 * math.sqrt(math.prod(sizes)) / FLOPS if len(sizes) == 3 else 0.0


def _line(fact: LockFact, place: SourcePlace) -> LockFact:
    made = fact.part("line", str(place))
    made.count = 1
    return made


def _options(options: Options) -> str:
    plain, given = Options(), vars(options)
    backend = given["backend"]
    named = backend if isinstance(backend, str) else getattr(backend, "__name__", "a function")
    other = [
        f"{name}={given[name]!r}"
        for name in sorted(given)
        if name not in (*_UNSAID, "backend") and given[name] != getattr(plain, name)
    ]
    return " ".join((f"backend={named}", *other))


def _order(place: SourcePlace) -> tuple[str, int]:
    return place.file, place.line


def _sorted(entry: LockFact) -> LockFact:
    """What all of its versions have in common stands before them, once; equal versions are counted.
    Lines are in their order in the files, versions in that of their texts: whichever was met
    first."""
    versions: dict[str, LockFact] = {}
    for version in entry.of("version"):
        versions.setdefault(
            "\n".join(version.lines()), LockFact("version", "", version.parts, 0)
        ).count += 1
    ordered = [versions[text] for text in sorted(versions)]
    rest = [each for each in entry.parts if each.kind not in ("version", "line")]
    entry.parts = [*sorted(rest, key=lambda each: each.kind), *entry.of("line")]
    for place, shared in _shared(ordered):
        line = _line(entry, place)
        line.parts += shared
    entry.parts.sort(key=_by_place)
    for version in ordered:
        version.parts.sort(key=_by_place)
    entry.parts += ordered
    return entry


def _by_place(fact: LockFact) -> tuple[bool, str, int]:
    return fact.kind == "line", *(("", 0) if fact.place is None else _order(fact.place))


def _shared(versions: list[LockFact]) -> list[tuple[SourcePlace, list[LockFact]]]:
    """Take out of the versions what all of them say at a line."""
    found = []
    for line in [*versions[0].of("line")] if versions else []:
        others = [each for v in versions[1:] for each in v.of("line") if each.text == line.text]
        same = [f for f in line.parts if all(f in other.parts for other in others)]
        if line.place is not None and len(others) == len(versions) - 1:
            found.append((line.place, same))
            for each in (*others, line):
                each.parts = [fact for fact in each.parts if fact not in same]
    for version in versions:
        version.parts = [each for each in version.parts if each.kind != "line" or each.parts]
    return found


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


class Watched:
    """One compiled function of a run, and how long its calls take. `at`: the user's line that
    compiles it."""

    def __init__(
        self, entry: Any, at: str = "", now: Callable[[], float] = time.perf_counter
    ) -> None:
        self.entry, self.name, self.at, self._now = entry, entry.name, at, now
        self.fastest = 0.0  # seconds of a call for which nothing was recorded
        self._serve, self._within = entry._served, False
        entry._served = self._timed

    def _timed(self, args: Any, kwargs: Any) -> Any:
        if self._within:
            return self._serve(args, kwargs)
        before, start = len(self.entry.all_recordings), self._now()
        self._within = True
        try:
            return self._serve(args, kwargs)
        finally:
            self._within, taken = False, self._now() - start
            if len(self.entry.all_recordings) == before:
                self.fastest = min(taken, self.fastest or taken)


class Version:
    """The facts of one recording: what it relies on, its graphs, and what it does besides."""

    def __init__(self, text: StableText, fn: Any, recording: Recording) -> None:
        self.text, self.recording, self._fact = text, recording, LockFact("version")
        self.lines_that_set: set[SourcePlace] = set()
        checks = [(guard.path, guard.check) for guard in recording.guards]
        self._classes = {path: check.arg for path, check in checks if isinstance(check, TypeIs)}
        self.names = _parameters(fn, self._classes.get(Arg(0)))

    def fact(self) -> LockFact:
        plain = [guard for guard in self.recording.guards if not self._is_shown(guard)]
        if plain:
            self._fact.part("guards", f"{len(plain)} on types, lengths, functions and hooks")
        for number, segment in enumerate(self.recording.segments):
            if segment.ops:
                self._graph(number, segment)
        for effect in self.recording.effects:
            self._at(effect.origin).part("effect", _effect(effect))
        return self._fact

    def _is_shown(self, guard: Guard) -> bool:
        if isinstance(guard.check, Tensor):
            self._shown("input", guard, f": {_tensor(guard.check.arg)}")
        elif isinstance(guard.check, Equals):
            self._shown("guard", guard, f" == {_constant(guard.check.arg)}")
        return isinstance(guard.check, Tensor | Equals)

    def _shown(self, kind: str, guard: Guard, what: str) -> None:
        line, text = self._at(guard.origin), self.text.line(f"{self._path(guard.path)}{what}")
        place = self.text.place(set_at(guard.path, self._classes, self.text.is_users))
        if place is not None and str(place) != line.text:
            self.lines_that_set.add(place)
            text = f"{text}{SET_AT.format(place.where)}"
        line.part(kind, text).count = 1

    def _at(self, origin: str | None) -> LockFact:
        place = self.text.place(origin or "")
        return self._fact if place is None else _line(self._fact, place)

    def _path(self, path: Path) -> str:
        root: Any = path
        while root.base is not None:
            root = root.base
        source = path.source
        if isinstance(root, Arg) and root.arg < len(self.names):
            source = source.replace(root.source, self.names[root.arg], 1)
        elif isinstance(root, Kwarg):
            source = source.replace(root.source, root.arg, 1)
        return any_index(self.text.line(source))

    def _graph(self, number: int, segment: Segment) -> None:
        wiring: list[str] = []
        seen: dict[Node, int] = {}
        labels: dict[Any, str] = {}
        inputs = iter(zip(segment.feeds, segment.metas, strict=True))
        for node in segment.module.graph.nodes:
            seen[node] = len(seen)
            if node.op == "placeholder":
                labels[node] = self._fed(*next(inputs, (None, None)))
                continue
            args = _said(node, lambda n: f"%{seen[n]}")
            wiring.append(f"{_target(node)}({args})")
            labels[node] = _label(node, labels)
            if node.op.startswith("call_") and node.target is not operator.getitem:
                told = f"{_target(node)}({_said(node, labels.__getitem__)})"
                self._at(node.meta.get("origin") or "").part("op", self.text.line(told))
        how = ", runs as it is" if segment.eager or segment.open else ""
        hashed = digest(self.text.line("\n".join(wiring)))
        self._fact.part("graph", f"{hashed} {segment.ops} operators{how}")

    def _fed(self, feed: Any, meta: Any) -> str:
        if feed is None or feed.segment != CALL_INPUT:
            return "result" if feed is not None and feed.segment >= 0 else "number"
        return self._path(self.recording.guard_set.inputs[feed.index])


def _parameters(fn: Any, cls: Any) -> tuple[str, ...]:
    """The names of a call's arguments; of a module's, those of its `forward`."""
    code = getattr(fn, "__code__", None)
    if code is not None and is_own_file(code.co_filename) and hasattr(cls, "forward"):
        code = getattr(cls.forward, "__code__", None)
    return () if code is None else code.co_varnames[: code.co_argcount]


def _effect(effect: Any) -> str:
    name = getattr(effect.function, "__name__", type(effect.function).__name__)
    words = [
        repr(a.value)
        for a in effect.arguments
        if isinstance(a, ConstRecipe) and type(a.value) is str and len(a.value) < 80
    ]
    return " ".join((name, *words))


def _target(node: Node) -> str:
    target = node.target
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


def _label(node: Node, labels: dict[Any, str]) -> str:
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        return labels[node.args[0]]
    return _target(node)


def _said(node: Node, name: Callable[[Node], str]) -> str:
    named = (
        f"{key}={_argument(value, name)}"
        for key, value in node.kwargs.items()
        if value is not None and value is not False
    )
    return ", ".join((*(_argument(value, name) for value in node.args), *named))


def _argument(value: Any, name: Callable[[Node], str]) -> str:
    if isinstance(value, Node):
        return name(value)
    if isinstance(value, tuple | list):
        parts = (
            dict.fromkeys(_argument(each, name) for each in value)
            if any(isinstance(each, Node) for each in value)
            else [_argument(each, name) for each in value]
        )
        return f"[{', '.join(parts)}]"
    return _constant(value)


def _constant(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a constant {_tensor(value)}"
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return f"{value!r:.200}" if not callable(value) else str(getattr(value, "__name__", value))


def _tensor(meta: Any) -> str:
    """`float32[8, 16] cuda:0, with gradient`."""
    sizes = meta.sizes if hasattr(meta, "sizes") else meta.shape
    shape = ", ".join("any" if size is None else str(size) for size in sizes)
    device = "" if meta.device.type == "cpu" else f" {meta.device.type}"
    grad = ", requires_grad" if meta.requires_grad else ""
    return f"{str(meta.dtype).removeprefix('torch.')}[{shape}]{device}{grad}"
