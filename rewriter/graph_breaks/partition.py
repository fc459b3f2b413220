"""The text of a function that breaks, cut: runs of statements become functions of their own (parts,
which are captured), what breaks stays between them, and the rest of the function calls them.

Every line of a part keeps its number in the user's file. A run of statements can be a part when the
names that it reads are bound for certain before it, and those that it binds and that are read
elsewhere are bound for certain after it; a statement that cannot be in a part runs as it is.
"""

import ast
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from . import loop_texts
from .bound_names import (
    BindingFlow,
    Names,
    Unbound,
    all_loads,
    all_stores,
    exposed,
    is_torch_context,
    loads,
    names,
    stores,
)
from .statement_texts import first_line, insert, last_line, look_around, parameters_of
from .tree_walks import own_nodes

PREFIX = "_dynfix_part_"


@dataclasses.dataclass(frozen=True)
class FunctionPart:
    """A function made of statements: `text` starts at line `first_line` of the user's file; it
    takes the variables `given`. `loop`: it is one that runs in stretches; it takes its turns as
    one more argument."""

    text: str
    first_line: int
    given: tuple[str, ...]
    loop: loop_texts.Loop | None = None


@dataclasses.dataclass(frozen=True)
class SplitPlan:
    """`text`: the function with calls of parts in the place of their statements."""

    text: str
    parts: tuple[FunctionPart, ...]


@dataclasses.dataclass(frozen=True)
class FunctionFacts:
    """What is known of the function: `local` names; `closed` ones, which functions made in it close
    over; of these `shared` ones, bound more than once; `outer`, declared global or nonlocal;
    `functions` and classes made in it."""

    name: str
    local: Names
    closed: Names
    shared: Names
    outer: Names
    functions: Names
    first_parameter: str | None


@dataclasses.dataclass(frozen=True)
class PartRegion:
    """Statements that become a part. `loop`: the one statement of a part that runs in stretches."""

    body: tuple[ast.stmt, ...]
    given: tuple[str, ...]
    back: tuple[str, ...]
    falls: bool
    returns: bool
    loop: ast.For | None = None


def plan(text: str, node: ast.FunctionDef, first_line: int, line: int | None) -> SplitPlan | None:
    """Cut the function `node` (whose `text` starts at `first_line`) at the statement on `line`; in
    halves where `line` is not known. None where there is nothing to cut."""
    facts = _facts(node)
    if facts is None:
        return None
    cutter = _Cutter(text.splitlines(keepends=True), first_line, facts, node, line)
    cutter.split(node.body, parameters_of(node))
    return cutter.plan() if cutter.regions else None


def _facts(node: ast.FunctionDef) -> FunctionFacts | None:
    """None for what cannot be cut: generators, and functions that look at their own variables."""
    inside = [below for stmt in node.body for below in own_nodes(stmt)]
    if any(isinstance(n, ast.Yield | ast.YieldFrom | ast.Await) for n in inside):
        return None
    if look_around(below for stmt in node.body for below in ast.walk(stmt)):
        return None
    outer = frozenset(
        name for n in inside if isinstance(n, ast.Global | ast.Nonlocal) for name in n.names
    )
    parameters = parameters_of(node)
    local = (parameters | all_stores(node.body)) - outer
    if any(name.startswith("__") and not name.endswith("__") for name in local):
        return None  # names that a class mangles
    first = next((arg.arg for arg in (*node.args.posonlyargs, *node.args.args)), None)
    closed, shared = _closed(node, local, parameters)
    return FunctionFacts(node.name, local, closed, shared, outer, _functions(inside), first)


def _functions(nodes: list[ast.AST]) -> Names:
    """Names that are bound to functions and classes made here."""
    found = {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            found.update(name for target in node.targets for name in stores(target))
    return frozenset(found)


def _closed(node: ast.FunctionDef, local: Names, parameters: Names) -> tuple[Names, Names]:
    """Locals that nested functions close over, and those of them that are bound more than once: a
    part would give them another variable."""
    closed: set[str] = set()
    times: dict[str, int] = dict.fromkeys(parameters, 1)
    for below in (inner for stmt in node.body for inner in ast.walk(stmt)):
        if isinstance(below, _CLOSES):
            closed.update(names(loads(below)) & local)
        if isinstance(below, ast.Nonlocal):
            times.update(dict.fromkeys(below.names, 2))  # bound there, too
            closed.update(below.names)
    for stmt in node.body:
        for name in stores(stmt):
            times[name] = times.get(name, 0) + 1 + _in_loop(stmt)
    shared = frozenset(name for name in closed if times.get(name, 0) > 1)
    return frozenset(closed), shared


_CLOSES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.GeneratorExp)


def _in_loop(stmt: ast.stmt) -> int:
    return int(any(isinstance(n, ast.For | ast.While) for n in own_nodes(stmt)))


def _places(
    node: ast.AST, parent: ast.AST | None
) -> Iterator[tuple[int, tuple[list[ast.stmt], ast.AST | None]]]:
    """For each statement, by identity: the block that it stands in, and the statement around."""
    for name in ("body", "orelse", "finalbody"):
        block: Any = getattr(node, name, None)
        for stmt in block if isinstance(block, list) else ():
            yield id(stmt), (block, parent)
            if not isinstance(stmt, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from _places(stmt, stmt)


class _Cutter:
    def __init__(
        self,
        lines: list[str],
        first_line: int,
        facts: FunctionFacts,
        node: ast.FunctionDef,
        line: int | None,
    ) -> None:
        self.lines, self.first_line, self.facts, self.node = lines, first_line, facts, node
        self.line = line
        self.flow = BindingFlow(facts.local)
        self.regions: list[PartRegion] = []
        self.places = dict(_places(node, None))

    # -- which statements

    def split(self, body: Sequence[ast.stmt], bound: Names) -> None:
        """Parts before and after the statement that breaks; halves where none is known."""
        at = [i for i, stmt in enumerate(body) if self._holds(stmt)]
        if at:
            cuts = [
                (body[: at[0]], False),
                (body[at[0] : at[-1] + 1], True),
                (body[at[-1] + 1 :], False),
            ]
        elif len(body) > 1:
            middle = len(body) // 2
            cuts = [(body[:middle], False), (body[middle:], False)]
        else:
            cuts = [(body, True)]
        now: Names | None = bound
        for some, opened in cuts:
            if now is not None:
                now = (self._open if opened else self._group)(some, now)

    def _holds(self, stmt: ast.stmt) -> bool:
        return self.line is not None and first_line(stmt) <= self.line <= last_line(stmt)

    def _group(self, body: Sequence[ast.stmt], bound: Names) -> Names | None:
        """Parts of as many statements as can be; names bound after them."""
        now: Names | None = bound
        run: list[ast.stmt] = []
        start = bound
        for stmt in body:
            if now is None:
                break
            if self._region([*run, stmt], start) is None:
                self._close(run, start)
                run, start = [], now
                if self._region([stmt], now) is None:
                    now = self._open([stmt], now)
                    start = now if now is not None else bound
                    continue
            run.append(stmt)
            now = self._bound_after([stmt], now)
        self._close(run, start)
        return now

    def _close(self, run: list[ast.stmt], bound: Names) -> None:
        region = self._region(run, bound) if run else None
        if region is not None and any(isinstance(n, _WORK) for s in run for n in own_nodes(s)):
            self.regions.append(region)

    def _open(self, body: Sequence[ast.stmt], bound: Names) -> Names | None:
        """Statements that run as they are; what is inside compound ones may be parts."""
        now: Names | None = bound
        for stmt in body:
            if now is not None:
                loop = self._stretched(stmt, now)
                if loop is None:
                    self._inside(stmt, now)
                else:
                    self.regions.append(loop)
                now = self._bound_after([stmt], now)
        return now

    def _stretched(self, stmt: ast.stmt, bound: Names) -> PartRegion | None:
        """The region of a loop that breaks, if it can be run some turns at a time."""
        if not self._holds(stmt) or not loop_texts.can_be_stretched(stmt):
            return None
        region = self._region([stmt], bound)
        carried = names(stores(stmt)) & exposed([stmt], self.facts.local)
        if region is None or region.returns or carried - bound:
            return None
        back = tuple(sorted({*region.back, *carried}))
        return dataclasses.replace(region, back=back, loop=stmt)

    def _inside(self, stmt: ast.stmt, bound: Names) -> None:
        match stmt:
            case ast.If():
                self._block(stmt.body, bound)
                if self._is_elif(stmt):
                    self._inside(stmt.orelse[0], bound)
                else:
                    self._block(stmt.orelse, bound)
            case ast.For():
                self._block(stmt.body, bound | names(stores(stmt.target)))
            case ast.While():
                self._block(stmt.body, bound)
            case ast.With() if is_torch_context(stmt):
                own = [item.optional_vars for item in stmt.items if item.optional_vars is not None]
                self._block(stmt.body, bound | names(n for v in own for n in stores(v)))

    def _is_elif(self, stmt: ast.If) -> bool:
        return (
            len(stmt.orelse) == 1
            and isinstance(stmt.orelse[0], ast.If)
            and self._line(stmt.orelse[0].lineno).lstrip().startswith("elif")
        )

    def _block(self, body: Sequence[ast.stmt], bound: Names) -> None:
        if any(map(self._holds, body)):
            self.split(body, bound)
        elif body:
            self._group(body, bound)

    def _bound_after(self, body: Sequence[ast.stmt], bound: Names) -> Names | None:
        try:
            return self.flow.through(body, bound)
        except Unbound:  # it would raise there, or not get there
            return bound

    # -- whether they can be a part

    def _region(self, body: Sequence[ast.stmt], bound: Names) -> PartRegion | None:
        bodies = tuple(body)
        written, read = all_stores(bodies), all_loads(bodies)
        if not self._can_move(bodies, written, read):
            return None
        try:
            after = self.flow.through(bodies, bound)
        except Unbound:
            return None
        back = written & (self._read_after(bodies[-1]) | self.facts.closed) & self.facts.local
        certain = after if after is not None else back
        if (back - certain) - bound:
            return None
        own = BindingFlow(self.facts.local, set()).through(bodies, frozenset())
        kept = back - own if own is not None else frozenset()  # may leave as they came
        given = ((exposed(bodies, self.facts.local) | kept) & bound) | (back - certain)
        if given & self.facts.functions:
            return None  # made anew at each call: no recording would stand for the next one
        returns = any(isinstance(n, ast.Return) for s in bodies for n in own_nodes(s))
        if after is not None and returns and first_line(bodies[0]) == last_line(bodies[-1]):
            return None  # the call of such a part takes two lines
        return PartRegion(
            bodies, self._ordered(given, read), tuple(sorted(back)), after is not None, returns
        )

    def _can_move(self, body: tuple[ast.stmt, ...], written: Names, read: Names) -> bool:
        if not self._own_lines(body) or (written & self.facts.outer):
            return False
        if (written | read) & self.facts.shared or _leaves_loop(body):
            return False
        kinds = {type(n) for stmt in body for n in own_nodes(stmt)}
        if kinds & {ast.Global, ast.Nonlocal, ast.Delete, ast.NamedExpr}:
            return False
        return "super" not in read or self.facts.first_parameter is not None

    def _own_lines(self, body: tuple[ast.stmt, ...]) -> bool:
        """Whether the statements share no line with others."""
        first, last = first_line(body[0]), body[-1]
        before = self._line(first).encode()[: body[0].col_offset]
        after = self._line(last_line(last)).encode()[last.end_col_offset or 0 :].strip()
        indent = body[0].col_offset
        return not before.strip() and (not after or after.startswith(b"#")) and indent > 0

    def _read_after(self, last: ast.stmt) -> Names:
        """Names that what follows the statement may read as it left them."""
        found: Names = frozenset()
        stmt: ast.AST | None = last
        while id(stmt) in self.places:
            block, parent = self.places[id(stmt)]
            at = next(i for i, each in enumerate(block) if each is stmt)
            found |= exposed(block[at + 1 :], self.facts.local)
            if isinstance(parent, ast.For | ast.While):
                found |= exposed([parent], self.facts.local)
            stmt = parent
        return found

    def _ordered(self, given: Names, read: Names) -> tuple[str, ...]:
        """Parameters; `super()` asks for the function's own first one."""
        first = self.facts.first_parameter
        if "super" in read and first is not None:
            return (first, *sorted(given - {first}))
        return tuple(sorted(given))

    # -- the texts

    def _line(self, number: int) -> str:
        return self.lines[number - self.first_line]

    def plan(self) -> SplitPlan:
        lines = list(self.lines)
        parts = tuple(self._part(region) for region in self.regions)
        for index, region in enumerate(self.regions):
            indent = self._indent(region)
            first, last = first_line(region.body[0]), last_line(region.body[-1])
            calls = list(self._calls(region, f"{PREFIX}{index}({', '.join(self._given(region))})"))
            for number in range(first, last + 1):
                text = indent + calls.pop(0) if calls else ""
                lines[number - self.first_line] = text + "\n"
        return SplitPlan("".join(lines), parts)

    def _indent(self, region: PartRegion) -> str:
        return self._line(first_line(region.body[0]))[: region.body[0].col_offset]

    def _given(self, region: PartRegion) -> tuple[str, ...]:
        """What the driver hands over, as text."""
        if region.loop is None:
            return region.given
        line = self._line(region.loop.lineno)
        return (*region.given, f"({loop_texts.iterable_of(region.loop, line)})")

    def _calls(self, region: PartRegion, call: str) -> Iterator[str]:
        """What stands in the driver: one line, or two where the part may or may not return."""
        back = "".join(f"{name}, " for name in region.back)
        if not region.falls:
            yield f"return {call}"
        elif not region.returns:
            yield f"({back}) = {call}" if back else call
        else:
            yield f"if ({PREFIX}result := {call})[0]: return {PREFIX}result[1]"
            yield f"else: ({back}) = {PREFIX}result[1]" if back else "else: pass"

    def _part(self, region: PartRegion) -> FunctionPart:
        first, last = first_line(region.body[0]), last_line(region.body[-1])
        lines = [self._line(number) for number in range(first, last + 1)]
        if not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        indent = self._indent(region)
        back = "(" + "".join(f"{name}, " for name in region.back) + ")"
        if region.falls and region.returns:
            self._mark_returns(region, lines, first)
            back = f"(False, {back})"
        ending = f"{indent}return {back}\n" if region.falls else ""
        given, loop = region.given, None
        if region.loop is not None:
            loop = loop_texts.Loop(given, region.back, region.loop.target)
            given = (*given, loop_texts.TURNS)
            lines[0] = loop_texts.over_turns(region.loop, lines[0])
        header = f"def {self.facts.name}({', '.join(given)}):\n"
        return FunctionPart(header + "".join(lines) + ending, first - 1, region.given, loop)

    def _mark_returns(self, region: PartRegion, lines: list[str], first: int) -> None:
        """`return v` inside a part that may also fall through: `return (True, v)`."""
        found = [n for s in region.body for n in own_nodes(s) if isinstance(n, ast.Return)]
        for node in sorted(found, key=lambda n: (n.lineno, n.col_offset), reverse=True):
            if node.value is None:
                insert(lines, node.end_lineno, node.end_col_offset, first, " (True, None)")
            else:
                insert(lines, node.end_lineno, node.end_col_offset, first, "))")
                insert(lines, node.lineno, node.col_offset + len("return"), first, " (True, (")


_WORK = (ast.Call, ast.BinOp, ast.AugAssign, ast.Subscript, ast.UnaryOp)


def _leaves_loop(body: tuple[ast.stmt, ...]) -> bool:
    """Whether a `break` or `continue` belongs to a loop around the statements."""
    return any(map(_leaves, body))


def _leaves(node: ast.AST) -> bool:
    if isinstance(node, ast.Break | ast.Continue):
        return True
    if isinstance(node, ast.For | ast.While):
        return any(map(_leaves, node.orelse))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return False
    return any(map(_leaves, ast.iter_child_nodes(node)))
