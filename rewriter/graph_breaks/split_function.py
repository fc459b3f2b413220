"""A function that breaks, as it runs from then on: its parts are compiled functions, what is
between them runs as it is, and the functions and modules that it calls are compiled."""

import ast
import functools
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..capture import current
from ..capture.places import Reached
from ..frontend.module_class import begun_call_entry, module_call_entry
from ..instrument import emit
from ..source import live_source
from ..source.live_source import NotRewritable, Source
from ..tracing_ops.calls import open_calls
from ..tracing_ops.operators import Forms
from .loop_texts import Loop
from .partition import PREFIX, FunctionPart, SplitPlan, plan
from .split_loops import StretchedLoop

MOST_PIECES = 256
DEEPEST = 24  # parts in parts
Compile = Callable[[Callable[..., Any], "SplitGroup", int], Callable[..., Any]]


class SplitGroup:
    """The compiled functions that one compiled function was taken apart into. `compile` makes
    one."""

    def __init__(self, compile: Compile, kind: type) -> None:
        self._compile, self.kind = compile, kind
        self._functions: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._modules: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self.members: list[Any] = []
        self._breaks: dict[tuple[str, int, int], Reached] = {}

    def note(self, stopped_at: tuple[Reached, ...]) -> None:
        """Functions where a recording ended: they are cut there when they are first called."""
        for place in stopped_at:
            self._breaks[place.file, place.first_line, place.owner] = place

    def part(
        self, fn: types.FunctionType, depth: int = 0, beside: Reached | None = None
    ) -> Callable[..., Any]:
        """`fn`, compiled; as it is, once there are too many. `depth`: in how many parts it
        stands; `beside`: the break that it stands before or behind."""
        if len(self.members) >= MOST_PIECES:
            return fn
        made: Any = self._compile(fn, self, depth)
        made.beside = beside
        self.members.append(made)
        return made  # type: ignore[no-any-return]

    def callee(self, fn: types.FunctionType, owner: Any) -> Callable[..., Any]:
        """The compiled function that stands for `fn`, one for each module that it is a method
        of."""
        of_module = isinstance(owner, torch.nn.Module)
        known: Any = self._modules.get(owner) if of_module else self._functions
        made = None if known is None else known.get(fn)
        return made or self._new_callee(fn, owner, of_module)

    def _new_callee(
        self, fn: types.FunctionType, owner: Any, of_module: bool
    ) -> Callable[..., Any]:
        with self._lock:
            known: Any = self._modules.setdefault(owner, {}) if of_module else self._functions
            if fn not in known:
                made = self.part(fn)
                self._cut_where_it_breaks(made, fn.__code__, owner)
                known[fn] = made
            return known[fn]  # type: ignore[no-any-return]

    def _cut_where_it_breaks(self, made: Any, code: types.CodeType, owner: Any) -> None:
        known = id(owner) if isinstance(owner, torch.nn.Module) else 0
        place = self._breaks.get((code.co_filename, code.co_firstlineno, known))
        if place is not None and isinstance(made, self.kind):
            made.cut_at(place, self)  # type: ignore[attr-defined]


def place_in(fn: Any, stopped_at: tuple[Reached, ...]) -> Reached | None:
    """Where the recording had got to in `fn` itself, in its outermost call."""
    code = getattr(fn, "__code__", None)
    found = [
        place
        for place in stopped_at
        if code is not None
        and (place.file, place.first_line) == (code.co_filename, code.co_firstlineno)
    ]
    return found[-1] if found else None


def split(
    fn: Any, place: Reached | None, family: SplitGroup, depth: int = 0
) -> Callable[..., Any] | None:
    """`fn` cut at `place` (None: in halves), to be called in its place; None where it can only run
    as it is."""
    if not isinstance(fn, types.FunctionType) or fn.__code__.co_flags & _NOT_PLAIN:
        return None
    if live_source.runs_torchs_compiler(fn):
        return None
    try:
        whole = fn if depth >= DEEPEST else _driver(fn, place, family, depth + 1)
        driver: Any = emit.rewrite(whole, Forms)
    except NotRewritable:
        return None
    for_modules = _OF_MODULES.get(fn.__code__)
    if for_modules is not None:  # what its driver would do
        driver = functools.partial(for_modules, family)

    def run(*args: Any, **kwargs: Any) -> Any:
        before = current.open_family(family)
        try:
            return driver(*args, **kwargs)
        finally:
            current.open_family(before)

    run.members = family.members  # type: ignore[attr-defined]
    return run


_NOT_PLAIN = 0x20 | 0x80 | 0x100 | 0x200  # generators and coroutines
_OF_MODULES: dict[types.CodeType, Callable[..., Any]] = {
    module_call_entry.__code__: open_calls.module,
    begun_call_entry.__code__: open_calls.begun,
}


def _driver(
    fn: types.FunctionType, place: Reached | None, family: SplitGroup, depth: int
) -> types.FunctionType:
    """The function with calls of compiled parts; the function itself if there are none."""
    source = live_source.find(fn)
    cut = None if source.is_lambda else _plan(source, place.line if place else None)
    if cut is None:
        return fn
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    for index, part in enumerate(cut.parts):
        made: Any = functools.partial(_function, _part_source(source, part), fn, dict(cells))
        if part.loop is None:
            made = family.part(made(), depth, place)
        else:
            assert place is not None  # in the loop
            made = _stretched(made, part.loop, place, family, depth)
        cells[f"{PREFIX}{index}"] = types.CellType(made)
    free = (*source.free, *(name for name in cells if name.startswith(PREFIX)))
    driver = _function(_replaced(source, cut.text, source.first_line, free), fn, cells)
    driver.__defaults__, driver.__kwdefaults__ = fn.__defaults__, fn.__kwdefaults__
    return driver


def _stretched(
    make: Callable[[], types.FunctionType],
    loop: Loop,
    place: Reached,
    family: SplitGroup,
    depth: int,
) -> StretchedLoop:
    """A loop in which `place` breaks."""

    def part() -> Any:
        return family.part(make(), depth, place)

    def stretch() -> Any:
        made = part()
        if isinstance(made, family.kind):
            made.may_be_cut = False  # type: ignore[attr-defined]
        return made

    in_parts = part()
    if isinstance(in_parts, family.kind):
        in_parts.cut_at(place, family)  # type: ignore[attr-defined]
    return StretchedLoop(loop, stretch, in_parts, place)


def _plan(source: Source, line: int | None) -> SplitPlan | None:
    tree = ast.parse(live_source.padded(source, source.text))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    node = next((node for node in nodes if node.name == source.name), None)
    return None if node is None else plan(source.text, node, source.first_line, line)


def _part_source(source: Source, part: FunctionPart) -> Source:
    return _replaced(source, part.text, part.first_line, source.free)


def _replaced(source: Source, text: str, first_line: int, free: tuple[str, ...]) -> Source:
    return Source(
        text=text,
        file=source.file,
        first_line=first_line,
        name=source.name,
        is_lambda=False,
        free=free,
        containers=source.containers,
        flags=source.flags,
        imported=source.imported,
    )


def _function(
    source: Source, fn: types.FunctionType, cells: dict[str, types.CellType]
) -> types.FunctionType:
    """The function of a text made from that of `fn`, with the same globals and cells."""
    try:
        tree = ast.parse(live_source.padded(source, source.text))
        code = live_source.compile_inner(source, tree)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise source.error(f"a part of it does not compile: {error}") from error
    if code is None:
        raise source.error("a part of it was not found")
    live_source.remember(code, source)
    closure = tuple(cells[name] for name in code.co_freevars)
    made = types.FunctionType(code, fn.__globals__, fn.__name__, None, closure)
    made.__qualname__, made.__module__ = fn.__qualname__, fn.__module__
    return made


open_calls.use(lambda fn: emit.rewrite(fn, Forms))
