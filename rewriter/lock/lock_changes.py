"""How two locks differ, by the user's lines.

Lines that only moved, or whose facts stayed the same, are no difference: those of both files are
put side by side by their text first.
"""

import dataclasses
import difflib
import itertools
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator

from .lock_file import SET_AT, LockFact, SourcePlace

VERSIONS = ("dynfix", "python", "torch", "device")
MEASURED = ("time", "memory")  # which a busy machine changes
NOTES = ("guard", "guards", *MEASURED)  # what a check lets pass
_CAUSES = ("break", "recompile")
_WORDS = {
    "options": "options",
    "entry": "compiled function",
    "version": "compiled version",
    "break": "graph break",
    "recompile": "recompile",
    "input": "input",
    "guard": "guard",
    "op": "operator",
    "effect": "side effect",
    "graph": "graph",
    "guards": "guards",
    "kernel": "kernel",
}
_ORDER = {kind: number for number, kind in enumerate(_WORDS, 1)}
_NAMED = {"input": ": ", "guard": " == ", "time": ": ", "memory": ": "}  # what stands behind a name
_SET_AT = re.compile(re.escape(SET_AT).replace(r"\{\}", r"(.*?:\d+)") + "$")
ALIKE = 0.5  # of two texts, for one to be the other edited
SHOWN = 6  # facts of one kind that a line shows


@dataclasses.dataclass(frozen=True)
class LockedItem:
    """A fact of `entry` at `place`; `text` is what it says."""

    kind: str
    entry: str
    place: SourcePlace | None
    text: str
    set_at: SourcePlace | None = dataclasses.field(default=None, compare=False)

    @property
    def name(self) -> str:
        """What both sides call it, where it has a name."""
        mark = _NAMED.get(self.kind)
        return self.text.partition(mark)[0] if mark else ""


def items(facts: Iterable[LockFact]) -> Counter[LockedItem]:
    """Every fact, and how often it holds. Of a function's versions, those that are compiled for
    more calls than before are no more operators: the highest count stands."""
    facts, found = [*facts], Counter[LockedItem]()
    known = {place.where: place for places in _places(facts).values() for place in places}
    for fact in facts:
        if fact.kind == "entry":
            found[LockedItem("entry", fact.text, None, "")] = 1
            found |= _version(fact, fact.text, known)
            for version in fact.of("version"):
                found |= _version(version, fact.text, known)
                found[LockedItem("version", fact.text, None, "")] += version.count
        elif fact.kind == "kernel":
            places = [part.place for part in fact.parts]
            found[LockedItem("kernel", "", next(iter(places), None), fact.text)] += fact.count
        else:
            found[LockedItem(fact.kind, "", None, fact.text)] = 1
    return found


def _version(fact: LockFact, entry: str, known: dict[str, SourcePlace]) -> Counter[LockedItem]:
    found: Counter[LockedItem] = Counter()
    for part in fact.parts:
        if part.kind == "line":
            for each in part.parts:
                said = _SET_AT.search(each.text)
                text = each.text if said is None else each.text[: said.start()]
                set_at = None if said is None else known.get(said[1])
                found[LockedItem(each.kind, entry, part.place, text, set_at)] += each.count
        elif part.kind != "version":
            found[LockedItem(part.kind, entry, None, part.text)] += part.count
    return found


def _places(facts: Iterable[LockFact]) -> dict[str, list[SourcePlace]]:
    """The lines of each file, in order."""
    found: dict[str, set[SourcePlace]] = {}
    waiting = list(facts)
    while waiting:
        fact = waiting.pop()
        waiting += fact.parts
        if (place := fact.place) is not None:
            found.setdefault(place.file, set()).add(place)
    return {file: sorted(lines, key=lambda p: p.line) for file, lines in found.items()}


def _moved(before: list[SourcePlace], after: list[SourcePlace]) -> dict[SourcePlace, SourcePlace]:
    """Which line of a file each became: those of the same text, in their order first, and those
    between the same neighbours, if their texts are alike."""
    texts = [place.source for place in before], [place.source for place in after]
    blocks = difflib.SequenceMatcher(None, *texts, autojunk=False).get_opcodes()
    found: dict[SourcePlace, SourcePlace] = {}
    for tag, i, j, k, m in blocks:
        if tag == "equal":
            found.update(zip(before[i:j], after[k:m], strict=True))
    left = {place.source: place for place in after if place not in {*found.values()}}
    for place in before:
        if place not in found and place.source in left:
            found[place] = left.pop(place.source)
    for _, i, j, k, m in blocks:
        for place in before[i:j]:
            taken = {*found.values()}
            others = [] if place in found else [each for each in after[k:m] if each not in taken]
            if (now := next((each for each in others if _is_like(place, each)), None)) is not None:
                found[place] = now
    return found


def _is_like(before: SourcePlace, after: SourcePlace) -> bool:
    """Whether a line may have become the other by an edit."""
    return difflib.SequenceMatcher(None, before.source, after.source).ratio() > ALIKE


@dataclasses.dataclass(frozen=True)
class LockChange:
    """Facts of one kind at one line: those that are gone, and those that came. `entries`: the
    functions in which that is so; `set_at`: the line that sets what is read."""

    kind: str
    entries: tuple[str, ...]
    gone: tuple[tuple[str, int], ...]
    came: tuple[tuple[str, int], ...]
    set_at: SourcePlace | None = None

    def __str__(self) -> str:
        what = _WORDS.get(self.kind, self.kind)
        of = f" of {', '.join(self.entries)}" if any(self.entries) else ""
        where = SET_AT.format(self.set_at) if self.set_at is not None else ""
        if self.kind == "kernel":
            return f"kernels: {_kernels(_number(self.gone), _number(self.came))}"
        if self.kind == "guards":
            before, now = (side[0][0].split()[0] if side else 0 for side in (self.gone, self.came))
            return f"other guards{of}: {before} before, {now} now"
        if self.kind == "graph":
            return f"graph{of}: the same operators take other results"
        if not any(text for text, _ in (*self.gone, *self.came)):
            return f"{what}{of}: {_number(self.gone)} before, {_number(self.came)} now"
        if self.gone and self.came:
            return f"{what}{of}: was {_listed(self.gone)}; is {_listed(self.came)}{where}"
        return (
            f"{what}{of} {'gone' if self.gone else 'new'}: {_listed(self.gone or self.came)}{where}"
        )


def _kernels(before: int, after: int) -> str:
    changed = f"{min(before, after)} changed" if before and after else ""
    other = f"{abs(after - before)} {'more' if after > before else 'less'}" * (before != after)
    return ", ".join(filter(None, (changed, other)))


def _number(facts: tuple[tuple[str, int], ...]) -> int:
    return sum(count for _, count in facts)


def _listed(facts: tuple[tuple[str, int], ...]) -> str:
    shown = [f"{text} x{count}" if count > 1 else text for text, count in facts[:SHOWN]]
    more = f", and {len(facts) - SHOWN} more" if len(facts) > SHOWN else ""
    return ", ".join(shown) + more


@dataclasses.dataclass
class Changes:
    """Everything in which two locks differ. `lines_before`: what changed lines were."""

    at: dict[SourcePlace | None, list[LockChange]]
    lines_before: dict[SourcePlace, SourcePlace]
    gone: frozenset[SourcePlace]
    total: str

    def __bool__(self) -> bool:
        return bool(self.at)

    def __str__(self) -> str:
        return "\n".join(self.lines("the lock", "this run"))

    @property
    def failing(self) -> bool:
        """Whether something changed that is more than a guard or a measured range."""
        return any(c.kind not in NOTES for changes in self.at.values() for c in changes)

    def lines(self, before: str, after: str, without: Container[str] = ()) -> Iterator[str]:
        """What changed, in words, but for facts of some kinds. `before`, `after`: what both sides
        are called."""
        if not self.failing:
            yield f"{after} is as {before} says: {self.total}"
        else:
            yield f"{after} differs from {before}: {self._counted()}"
        for place in sorted(self.at, key=self._rank):
            changes = [c for c in self.at[place] if c.kind not in without]
            if changes:
                yield from self._of(place, changes)

    def _counted(self) -> str:
        found = Counter(
            c.kind for changes in self.at.values() for c in changes if c.kind not in NOTES
        )
        kinds = sorted(found, key=lambda kind: _ORDER.get(kind, 0))
        named = ((_WORDS.get(kind, kind), found[kind]) for kind in kinds)
        return ", ".join(f"{what} ({n})" if n > 1 else what for what, n in named)

    def _rank(self, place: SourcePlace | None) -> tuple[int, str, int]:
        """What causes other changes comes first: breaks and recompiles, then lines that the user
        changed. Kernels follow from operators."""
        if place is None:
            return 0, "", 0
        kinds = {change.kind for change in self.at[place]}
        changed = place in self.lines_before or place in self.gone
        rank = 4 if kinds == {"kernel"} else 2 if changed else 3
        return rank if kinds.isdisjoint(_CAUSES) else 1, place.file, place.line

    def _of(self, place: SourcePlace | None, changes: list[LockChange]) -> Iterator[str]:
        if place is None:
            yield from (str(change) for change in changes)
            return
        yield f"{place}{' (no longer compiled)' if place in self.gone else ''}"
        if (was := self.lines_before.get(place)) is not None:
            yield f"  the line was: {was.source}"
        yield from (f"  {change}" for change in changes)


def compared(before: list[LockFact], after: list[LockFact]) -> Changes:
    """How `after` differs from `before`."""
    old, new = _places(before), _places(after)
    moved = {was: now for file in old for was, now in _moved(old[file], new.get(file, [])).items()}
    known = items(after)
    was: Counter[LockedItem] = Counter()
    for item, count in items(before).items():
        place = moved.get(item.place, item.place) if item.place is not None else None
        was[dataclasses.replace(item, place=place)] += count
    at: dict[SourcePlace | None, list[LockChange]] = {}
    for place, change in _changes(was, known):
        at.setdefault(place, []).append(change)
    shown = {e for cs in at.values() for c in cs if c.kind in ("op", "input") for e in c.entries}
    if None in at:  # a graph of which other operators are shown is shown
        at[None] = [c for c in at[None] if c.kind != "graph" or not shown.issuperset(c.entries)]
    at = {place: _together(changes) for place, changes in at.items() if changes}
    changed = {now: then for then, now in moved.items() if then.source != now.source}
    gone = {place for places in old.values() for place in places if place not in moved}
    return Changes(at, changed, frozenset(gone - {*itertools.chain(*new.values())}), _total(after))


def _changes(
    was: Counter[LockedItem], now: Counter[LockedItem]
) -> Iterator[tuple[SourcePlace | None, LockChange]]:
    found: dict[
        tuple[SourcePlace | None, str, str, str], tuple[list[LockedItem], list[LockedItem]]
    ] = {}
    for side, items_of, others in ((0, was, now), (1, now, was)):
        for item in items_of:
            if items_of[item] != others.get(item, 0):
                key = (item.place, item.kind, item.entry, item.name)
                found.setdefault(key, ([], []))[side].append(item)
    for (place, kind, entry, _), (gone, came) in found.items():
        lost = tuple((item.text, was[item]) for item in gone)
        got = tuple((item.text, now[item]) for item in came)
        set_at = next((item.set_at for item in (*came, *gone)), None)
        yield place, LockChange(kind, (entry,), lost, got, set_at)


def _together(changes: list[LockChange]) -> list[LockChange]:
    """What is the same in several functions is said once."""
    found: dict[LockChange, list[str]] = {}
    for change in changes:
        alike = dataclasses.replace(change, entries=())
        found.setdefault(alike, []).extend(change.entries)
    made = [
        dataclasses.replace(change, entries=tuple(entries)) for change, entries in found.items()
    ]
    return sorted(made, key=lambda change: _ORDER.get(change.kind, 0))


def _total(facts: list[LockFact]) -> str:
    entries = [fact for fact in facts if fact.kind == "entry"]
    versions = [version for entry in entries for version in entry.of("version")]
    graphs = sum(v.count * g.count for v in versions for g in v.of("graph"))
    kernels = sum(fact.count for fact in facts if fact.kind == "kernel")
    counts = (len(entries), "function"), (graphs, "graph"), (kernels, "kernel")
    return ", ".join(f"{n} {word}{'' if n == 1 else 's'}" for n, word in counts)
