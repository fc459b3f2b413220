"""The files of a project as one program: what a name stands for in another file, which classes are
modules, and which functions run under capture, by which calls."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from .definitions import MODULE_BASES
from .file_links import CallSite, FileLinks, Place
from .file_summary import ClassSummary, FileSummary, FunctionSummary, Mention

_DEEPEST = 12  # re-exports, base classes and the like in a row
_MOST_MAKERS = 3  # of decorators, each of which makes the next
_MOST_CALLERS = 8  # of a function, of which the arguments are asked
Test = Callable[[str], bool]
_MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg")
_ENTERED = ("__call__", "__enter__", "__exit__")  # what an instance may run when it is used
_LOOKED_THROUGH = ("__iter__", "__next__", "__getitem__", "__len__")
_MADE = ("__init__", "__post_init__", "__call__")
_PREPARING = ("PIL.", "torchvision.transforms.")
_WRAPPERS = frozenset(["DataParallel", "DistributedDataParallel"])


@dataclass(frozen=True)
class Definition:
    """A function or class of the project: `name` is its qualified name in the file at `path`."""

    path: str
    name: str
    is_class: bool

    @property
    def place(self) -> Place:
        return self.path, self.name


class Modules:
    """Which file the name of a module stands for, as the folders have it."""

    def __init__(self, is_file: Test, is_folder: Test) -> None:
        self.is_file, self.is_folder = is_file, is_folder
        self._found: dict[tuple[str, str], tuple[str | None, str] | None] = {}
        self._tops: dict[str, list[str]] = {}

    def find(self, path: str, name: str) -> tuple[str | None, str] | None:
        """(the file, what is left of the dotted name) for a name in the file at `path`; the file is
        None for a folder without one. None: it is not of the project."""
        key = os.path.dirname(path), name
        if key not in self._found:
            self._found[key] = self._find(*key)
        return self._found[key]

    def _find(self, folder: str, name: str) -> tuple[str | None, str] | None:
        level = len(name) - len(name.lstrip("."))
        parts = name[level:].split(".") if name[level:] else []
        for _ in range(level - 1):
            folder = os.path.dirname(folder)
        starts = [folder] if level else self._above(folder)
        found = (self.below(start, parts, bool(level)) for start in starts)
        return next((f for f in found if f is not None), None)

    def _above(self, folder: str) -> list[str]:
        """The folders that a top-level name may stand in: the file's own, and those above it up to
        the project's."""
        if folder not in self._tops:
            found, at = [], folder
            while self.is_folder(at) and at != os.path.dirname(at):
                found += [at, os.path.join(at, "src")]
                if any(os.path.exists(os.path.join(at, mark)) for mark in _MARKS):
                    break
                at = os.path.dirname(at)
            self._tops[folder] = found
        return self._tops[folder]

    def below(self, at: str, parts: list[str], entered: bool) -> tuple[str | None, str] | None:
        """The deepest module that the parts lead to, from a folder on."""
        for number, part in enumerate(parts):
            inner = os.path.join(at, part)
            if self.is_folder(inner):
                at, entered = inner, True
            elif self.is_file(f"{inner}.py"):
                return f"{inner}.py", ".".join(parts[number + 1 :])
            else:
                return self._package(at, parts[number:]) if entered else None
        return self._package(at, []) if entered else None

    def _package(self, folder: str, rest: list[str]) -> tuple[str | None, str]:
        path = os.path.join(folder, "__init__.py")
        return (path if self.is_file(path) else None), ".".join(rest)


def folders_of(paths: Iterable[str]) -> set[str]:
    """The folders that files stand in, and those above."""
    found: set[str] = set()
    for path in paths:
        folder = os.path.dirname(path)
        while folder not in found and folder != os.path.dirname(folder):
            found.add(folder)
            folder = os.path.dirname(folder)
    return found


class ProjectGraph:
    """`links(path)`: what the analysis of one file needs to know of the others. Paths are real
    ones. `seen`: the functions of a file that a traced run saw under a module's call."""

    def __init__(
        self,
        files: dict[str, FileSummary],
        scope: str,
        entries: tuple[str, ...] = (),
        seen: dict[str, frozenset[str]] | None = None,
        root: str = ".",
    ) -> None:
        self.files, self.scope, self.entries, self.seen = files, scope, entries, seen or {}
        self.root = os.path.realpath(root)
        self.modules = Modules(files.__contains__, folders_of(files).__contains__)
        self._symbols: dict[tuple[str, str], Definition | None] = {}
        self._lines: dict[Place, tuple[list[ClassSummary | str], list[Place]]] = {}
        self._is_module: dict[Place, bool | None] = {}
        self._named: dict[tuple[str, Place | None, str], tuple[Definition, ...]] = {}
        self._runs: dict[Place, list[tuple[Place, Mention | None]]] = {}
        self._known_instances: dict[tuple[Place, str], tuple[Definition, ...]] = {}

    # What a name stands for

    def symbol(self, path: str, reference: str, depth: int = 0) -> Definition | None:
        """The function or class that a reference of the file at `path`, one that does not begin at
        `self`, names."""
        key = path, reference
        if key not in self._symbols:
            self._symbols[key] = None
            self._symbols[key] = self._symbol(path, reference, depth)
        return self._symbols[key]

    def _symbol(self, path: str, reference: str, depth: int) -> Definition | None:
        if depth > _DEEPEST:
            return None
        if reference.endswith("()"):
            made = self.symbol(path, reference[:-2], depth + 1)
            return made if made is not None and made.is_class else None
        if reference.startswith(":"):
            return self._of_file(path, reference[1:], depth)
        found = self.modules.find(path, reference)
        if found is None or found[0] is None or not found[1]:
            return None
        return self._of_file(found[0], found[1], depth)

    def _of_file(self, path: str, name: str, depth: int) -> Definition | None:
        """What a name stands for at the top level of a file."""
        file = self.files[path]
        if name in file.functions:
            return Definition(path, name, False)
        if name in file.classes:
            return Definition(path, name, True)
        first, _, rest = name.partition(".")
        if rest:
            found = self._of_file(path, first, depth) if first not in file.imports else None
            if found is None and first in file.imports:
                return self.symbol(path, f"{file.imports[first]}.{rest}", depth + 1)
            method = self.method(found.place, rest) if found and found.is_class else None
            return Definition(*method, False) if method else None
        follow = [file.imports[first]] if first in file.imports else []
        follow += [s + first if s.endswith(".") else f"{s}.{first}" for s in file.stars]
        follow += sorted(file.assigned.get(first, ()))[:2]
        found = (self.symbol(path, other, depth + 1) for other in follow)
        return next((f for f in found if f is not None), None)

    def class_of(self, place: Place) -> ClassSummary:
        return self.files[place[0]].classes[place[1]]

    def function_of(self, place: Place) -> FunctionSummary:
        return self.files[place[0]].functions[place[1]]

    # Classes

    def line(self, place: Place) -> tuple[list[str], list[Place]]:
        """(the bases from elsewhere, the class and those above it in the project, nearest
        first)."""
        if place not in self._lines:
            self._lines[place] = ([], [place])
            foreign, found = [], [place]
            for base in self.class_of(place).bases:
                symbol = self.symbol(place[0], base)
                if symbol is not None and symbol.is_class:
                    above = self.line(symbol.place)
                    foreign += above[0]
                    found += [p for p in above[1] if p not in found]
                elif base:
                    foreign.append(base)
                else:
                    foreign.append("?")
            self._lines[place] = (foreign, found)
        return self._lines[place]

    def method(self, place: Place, name: str) -> Place | None:
        for path, cls in self.line(place)[1]:
            if name in self.files[path].classes[cls].methods:
                return path, f"{cls}.{name}"
        return None

    @cached_property
    def below(self) -> dict[Place, list[Place]]:
        """{class: those that derive from it}."""
        found: dict[Place, list[Place]] = {}
        for path, file in self.files.items():
            for name in file.classes:
                for above in self.line((path, name))[1][1:]:
                    found.setdefault(above, []).append((path, name))
        return found

    def is_module(self, place: Place) -> bool:
        """A torch.nn class above it; or, under a class that cannot be found, a `forward`."""
        known = self._is_module.get(place)
        if known is None:
            foreign = self.line(place)[0]
            known = any(b in MODULE_BASES or b.startswith("torch.nn.") for b in foreign)
            if not known and foreign and self.method(place, "forward"):
                known = not any(_no_module(base) for base in foreign)
            self._is_module[place] = known
        return known

    # What a reference may be, and what it runs

    def instances(self, place: Place, attribute: str) -> tuple[Definition, ...]:
        """What an attribute of an instance of a class may hold."""
        key = place, attribute
        if key not in self._known_instances:
            self._known_instances[key] = ()
            found: dict[Definition, None] = {}
            for above in self.line(place)[1]:
                stored = self.class_of(above).attributes.get(attribute, ())
                for reference in stored:
                    found.update(dict.fromkeys(self.named(above[0], above, reference)))
            self._known_instances[key] = tuple(found)
        return self._known_instances[key]

    def named(self, path: str, cls: Place | None, reference: str) -> tuple[Definition, ...]:
        """The functions and classes that a reference may stand for: of a class, it or an
        instance."""
        key = path, cls, reference
        if key not in self._named:
            self._named[key] = ()
            self._named[key] = tuple(dict.fromkeys(self._all_named(path, cls, reference)))
        return self._named[key]

    def _all_named(self, path: str, cls: Place | None, reference: str) -> Iterator[Definition]:
        if reference.startswith("super.") and cls is not None:
            yield from self._above(cls, reference[6:])
            return
        parts = reference.split(".")
        if parts[0] == "self":
            if cls is not None:
                yield from self._attributes([Definition(*cls, True)], parts[1:])
            return
        starts = self._starts(path, reference)
        if starts:
            yield from starts
            return
        for at in range(len(parts), 0, -1):  # `Config().path`, `:model.encoder.run`, `:make()`
            head = ".".join(parts[:at]).removesuffix("()")
            starts = self._starts(path, head) if head.strip(".") else []
            for start in starts:
                applied = start.is_class and parts[at:] == ["apply"]  # of an autograd.Function
                given = self._given(start)
                yield from given if applied else self._attributes(given, parts[at:])
            if starts:
                return

    def _starts(self, path: str, reference: str) -> list[Definition]:
        """What a reference names; of a table at the top of a file, all that it lists."""
        file, _, name = reference.rpartition(":")
        found = (path, name) if not file and name != reference else None
        if found is None:
            module, _, name = reference.rpartition(".")
            there = self.modules.find(path, module) if module.strip(".") else None
            found = (there[0], name) if there is not None and there[0] and not there[1] else None
        listed = self.files[found[0]].tables.get(name, ()) if found is not None else ()
        symbols = [self.symbol(found[0], each) for each in sorted(listed)] if found else []
        known = [s for s in symbols if s is not None]
        symbol = None if known else self.symbol(path, reference)
        return known if symbol is None else [symbol]

    def _above(self, cls: Place, method: str) -> Iterator[Definition]:
        for path, name in self.line(cls)[1][1:]:
            if method in self.files[path].classes[name].methods:
                yield Definition(path, f"{name}.{method}", False)
                return

    def _given(self, symbol: Definition) -> list[Definition]:
        """What is at hand where a function was called or a class instantiated."""
        if symbol.is_class:
            return [symbol]
        summary, cls = self.function_of(symbol.place), self._owner(symbol.place)
        found = (self.named(symbol.path, cls, r) for r in summary.returns)
        return [s for symbols in found for s in symbols if s.is_class]

    def _attributes(self, found: list[Definition], names: list[str]) -> Iterator[Definition]:
        for number, name in enumerate(names):
            following: dict[Definition, None] = {}
            for symbol in found:
                for each in self._attribute(symbol, name):
                    last = number == len(names) - 1
                    kept = [each] if last or each.is_class else self._given(each)
                    following.update(dict.fromkeys(kept))
            found = list(following)
        yield from found

    def _attribute(self, symbol: Definition, name: str) -> Iterator[Definition]:
        """What `instance.name` may be: a method, or what is stored, of the class or of those below.
        Of `instance.name()`, what the method gives."""
        if not symbol.is_class:
            return
        if name.endswith("()"):
            method = self.method(symbol.place, name[:-2])
            yield from self._given(Definition(*method, False)) if method else ()
            return
        classes = [symbol.place, *self.below.get(symbol.place, ())]
        methods = dict.fromkeys(filter(None, (self.method(cls, name) for cls in classes)))
        yield from (Definition(*place, False) for place in methods)
        if not methods:
            for cls in classes:
                yield from self.instances(cls, name)

    def _owner(self, place: Place) -> Place | None:
        return self._class(place[0], self.function_of(place).cls)

    def _class(self, path: str, name: str) -> Place | None:
        return (path, name) if name in self.files[path].classes else None

    def runs(self, place: Place) -> list[tuple[Place, Mention | None]]:
        """The functions that a function may run, with the mention that says so."""
        if place not in self._runs:
            self._runs[place] = list(self._all_runs(place))
        return self._runs[place]

    def _all_runs(self, place: Place) -> Iterator[tuple[Place, Mention | None]]:
        summary, cls = self.function_of(place), self._owner(place)
        for inner in summary.inner:
            yield (place[0], inner), None
        for mention in summary.decorators:
            for target in self._wrappers(place[0], cls, mention.reference):
                yield target, mention
        for mention in summary.mentions:
            for symbol in self.named(place[0], cls, mention.reference):
                for target in self._entered(symbol, mention):
                    yield target, mention

    def _wrappers(
        self, path: str, cls: Place | None, decorator: str, depth: int = 0
    ) -> Iterator[Place]:
        """The functions that stand for one that is decorated so."""
        called = decorator.endswith("()")
        for made in self.named(path, cls, decorator.removesuffix("()")):
            for given in () if made.is_class else self.function_of(made.place).returns:
                if called and depth < _MOST_MAKERS:
                    yield from self._wrappers(made.path, None, given, depth + 1)
                elif not called:
                    found = self.named(made.path, None, given)
                    yield from (f.place for f in found if not f.is_class)

    def _entered(self, symbol: Definition, mention: Mention) -> Iterator[Place]:
        if not symbol.is_class:
            yield symbol.place
            return
        called = ("forward", "__call__") if self.is_module(symbol.place) else (*_MADE, *_ENTERED)
        names = (*called, *_LOOKED_THROUGH)
        if mention.reference.endswith(".apply"):
            names = ("forward", "backward")
        yield from filter(None, (self.method(symbol.place, name) for name in dict.fromkeys(names)))

    # What is captured

    def roots(self) -> Iterator[list[tuple[Place, str]]]:
        """[(function, where it is compiled or "")] of what is captured first, and then, where
        nothing is named, of the modules that may be compiled."""
        if self.entries:
            yield [root for entry in self.entries for root in self._entry(entry)]
            return
        yield list(self._compiled())
        if self.scope != "compiled":
            yield [((path, name), "") for path, names in self.seen.items() for name in names]
            places = [(path, name) for path, file in self.files.items() for name in file.classes]
            yield [((p, f"{name}.forward"), "") for p, name in places if self._is_root((p, name))]

    def _is_root(self, place: Place) -> bool:
        cls = self.class_of(place)
        if "forward" not in cls.methods or not self.is_module(place):
            return False
        wraps = any(b.rpartition(".")[2] in _WRAPPERS for b in self.line(place)[0])
        if wraps or self._is_transform(place):
            return False
        return not self.function_of((place[0], f"{place[1]}.forward")).drives

    def _is_transform(self, place: Place) -> bool:
        """Whether a module prepares images for a data set: it works with images of PIL or with the
        transforms of torchvision, and not inside of another module."""
        methods = (
            self.function_of((place[0], f"{place[1]}.{n}")) for n in self.class_of(place).methods
        )
        named = {m.reference for method in methods for m in method.mentions}
        return any(name.startswith(_PREPARING) for name in (*named, *self.line(place)[0]))

    def _compiled(self) -> Iterator[tuple[Place, str]]:
        for path, file in self.files.items():
            for site in file.sites:
                for reference in site.references:
                    for symbol in self.named(path, self._class(path, site.cls), reference):
                        if not site.method or (symbol.is_class and self.is_module(symbol.place)):
                            yield from self._started(symbol, self._shown(path, site.line))

    def _started(self, symbol: Definition, place: str) -> Iterator[tuple[Place, str]]:
        if not symbol.is_class:
            yield symbol.place, place
            for given in self._given(symbol):
                yield from self._started(given, place)
            return
        found = (self.method(symbol.place, name) for name in ("forward", "__call__"))
        yield from ((method, place) for method in found if method)

    def _entry(self, entry: str) -> Iterator[tuple[Place, str]]:
        """`pkg.mod:Class`, `pkg.mod:Class.method`, `pkg.mod:function`."""
        module, _, name = entry.partition(":")
        for path in self.files:
            dotted = os.path.splitext(path)[0].replace(os.sep, ".")
            if f".{dotted}".endswith((f".{module}", f".{module}.__init__")):
                symbol = self._of_file(path, name, 0)
                if symbol is not None:
                    yield from self._started(symbol, "")

    @cached_property
    def reached(self) -> dict[Place, tuple[str, ...]]:
        """{function that runs under capture: the calls that lead there}, by a shortest way."""
        found: dict[Place, tuple[str, ...]] = {}
        for roots in self.roots():
            first = {p: (start,) if start else () for p, start in roots if p not in found}
            todo = deque(place for place in first if self._allowed(place))
            found |= {place: first[place] for place in todo}
            while todo:
                place = todo.popleft()
                for target, mention in self.runs(place):
                    if target not in found and self._allowed(target):
                        step = (self._shown(place[0], mention.line),) if mention else ()
                        found[target] = found[place] + step
                        todo.append(target)
        return found

    def _allowed(self, place: Place) -> bool:
        file = self.files.get(place[0])
        known = file.functions.get(place[1]) if file else None
        return known is not None and known.allowed

    def _shown(self, path: str, line: int) -> str:
        """A place as it is told, from the settings' folder on."""
        inside = path.startswith(os.path.join(self.root, ""))
        return f"{os.path.relpath(path, self.root) if inside else path}:{line}"

    @cached_property
    def callers(self) -> dict[Place, list[CallSite]]:
        """{function: the captured calls of it}; of a module, those of its forward."""
        found: dict[Place, list[CallSite]] = {}
        for place in self.reached:
            for target, mention in self.runs(place):
                if mention is not None and mention.called and target in self.reached:
                    known = found.setdefault(target, [])
                    if len(known) <= _MOST_CALLERS:
                        known.append(CallSite(*place, mention.line, mention.column))
        return found

    @cached_property
    def handled(self) -> dict[Place, set[str]]:
        """{function: the exceptions that who calls it, however far above, handles and goes on}."""
        found: dict[Place, set[str]] = {}
        todo = deque(
            (target, call.exceptions)
            for path, file in self.files.items()
            for call in file.handled
            for symbol in self.named(path, self._class(path, call.cls), call.reference)
            for target in self._entered(symbol, Mention(call.reference, 0, 0, True))
        )
        while todo:
            place, exceptions = todo.popleft()
            known = found.setdefault(place, set())
            if not exceptions <= known:
                known |= exceptions
                todo += [(target, exceptions) for target, _ in self.runs(place)]
        return found

    # What each file is told

    @cached_property
    def _by_file(self) -> dict[str, dict[str, tuple[str, ...]]]:
        found: dict[str, dict[str, tuple[str, ...]]] = {}
        for (path, name), way in self.reached.items():
            found.setdefault(path, {})[name] = way
        return found

    def links(self, path: str) -> FileLinks:
        file = self.files[path]
        reached = self._by_file.get(path, {})
        classes = {name: self.is_module((path, name)) for name in file.classes}
        callers = {}
        for name in reached:
            sites = self.callers.get((path, name), [])
            if 0 < len(sites) <= _MOST_CALLERS:
                callers[name] = tuple(sites)
        targets = {}
        for reference in sorted(self._references(file, reached)) if reached else ():
            symbol = self.symbol(path, reference)
            if symbol is not None and symbol.path != path:
                targets[reference] = symbol.place
        places = {name: self.handled.get((path, name)) for name in reached}
        handled = {name: frozenset(found) for name, found in places.items() if found}
        stamp = self._stamp(path) if targets or callers else ""
        return FileLinks(reached, classes, targets, callers, handled, stamp, path)

    def _references(self, file: FileSummary, reached: Iterable[str]) -> set[str]:
        """The names by which what is captured of a file uses what stands in others."""
        found = {m.reference for name in reached for m in file.functions[name].mentions}
        for cls in file.classes.values():
            found.update(cls.bases)
            for stored in cls.attributes.values():
                found |= stored
        return {r for r in found if r and not r.startswith((":", "self", "super"))}

    @cached_property
    def _neighbours(self) -> dict[str, set[str]]:
        """{file: the files whose contents its kinds may depend on}, in one step."""
        found: dict[str, set[str]] = {path: set() for path in self.files}
        for path, file in self.files.items():
            for name in file.imports.values():
                target = self.modules.find(path, name)
                if target is not None and target[0] is not None:
                    found[path].add(target[0])
        for (path, _), sites in self.callers.items():
            found[path] |= {site.path for site in sites}
        return found

    def _stamp(self, path: str) -> str:
        seen, todo = {path}, [path]
        for each in todo:
            new = self._neighbours[each] - seen
            seen |= new
            todo += sorted(new)
        stamps = "".join(self.files[p].stamp for p in sorted(seen))
        return hashlib.sha256(stamps.encode()).hexdigest()


def _no_module(base: str) -> bool:
    """Whether a base from elsewhere is none of a module."""
    last = base.rpartition(".")[2]
    return "autograd" in base or last in ("object", "ABC", "Protocol", "Generic", "NamedTuple")
