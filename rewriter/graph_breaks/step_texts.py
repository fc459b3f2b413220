"""A training step as the text of a function: what it takes, what it gives back, and how it leaves a
loop. Every line keeps its number in the user's file."""

import __future__

import ast
import copy
import dataclasses
from collections.abc import Iterator, Sequence

from .bound_names import BindingFlow, Names, Unbound, all_loads, all_stores, loads, names, stores
from .statement_texts import first_line, insert, last_line, look_around, parameters_of
from .step_protocol import BREAKS, CONTINUES, FALLS, NOT_BOUND, RETURNS, STOPS
from .step_regions import StepRegion, StepScope, clears_gradients, declared, local_names
from .tree_walks import all_nodes, children, own_nodes

_SWALLOWS = ("suppress", "raises", "ignore", "catch", "exitstack")
_REFUSED = (
    *(ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith, ast.NamedExpr),
    *(ast.Global, ast.Nonlocal, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
)
_STOPS_AT = frozenset({"breakpoint", "set_trace", "super", "__class__"})


@dataclasses.dataclass(frozen=True)
class Start:
    """One beginning of a step. Its function's `text` starts at line `first_line` and takes the
    variables `given`; it gives `(how it leaves, value, variables)`: the variables are `back`,
    NOT_BOUND for those that are not. `outer`: names of the file's own that it reads as they are
    before it. `dropped`: variables of it that nothing reads later.
    `clears`: whether it begins with `zero_grad()`. `lines`: of its statements."""

    text: str
    first_line: int
    given: tuple[str, ...]
    back: tuple[str, ...]
    dropped: tuple[str, ...]
    outer: tuple[str, ...]
    clears: bool
    lines: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class TrainingStep:
    """A step with its possible starts (None: it cannot begin there). `name`: of the function that
    it stands in."""

    file: str
    name: str
    containers: tuple[tuple[str, bool], ...]
    starts: tuple[Start | None, ...]
    flags: int  # of `from __future__`
    only_updates: bool = False


class _Stop(ast.Continue):
    """Stands for the rest of an `if`'s body: the step ends there, and the rest runs in place."""


def training_step(
    region: StepRegion, tree: ast.Module, lines: list[str], file: str
) -> TrainingStep:
    """The texts of a region of the file with these `lines`."""
    outline = _Outline(region, tree, lines)
    starts = tuple(outline.start(_without_rest(region, at)) for at in region.starts)
    node = region.scope.node
    name = "training_step" if isinstance(node, ast.Module) else node.name
    return TrainingStep(
        file, name, region.scope.containers, starts, _flags(tree), region.only_updates
    )


def _without_rest(region: StepRegion, start: int) -> list[ast.stmt]:
    """The statements of a step that begins there, without what is no part of it."""
    rest = region.rest
    return [_cut(stmt, rest) for stmt in region.block[start : region.last + 1]]


def _cut(stmt: ast.stmt, rest: tuple[ast.stmt, ...]) -> ast.stmt:
    if not rest or not isinstance(stmt, ast.If) or rest[0] not in stmt.body:
        return stmt
    stop = _Stop(lineno=first_line(rest[0]), end_lineno=last_line(rest[-1]))
    stop.col_offset, stop.end_col_offset = rest[0].col_offset, rest[-1].end_col_offset
    cut = copy.copy(stmt)
    cut.body = [*stmt.body[: stmt.body.index(rest[0])], stop]
    return cut


def _flags(tree: ast.Module) -> int:
    froms = (n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__")
    features = {alias.name for node in froms for alias in node.names}
    flags = (getattr(__future__, name).compiler_flag for name in features)
    return sum(flags)


class StepFlow(BindingFlow):
    """As `Flow`, but a `with` statement is taken not to swallow errors unless its text says so, and
    what every way through a `try` binds is bound."""

    def _with(self, stmt: ast.With, bound: Names) -> Names | None:
        text = " ".join(ast.unparse(item.context_expr) for item in stmt.items).lower()
        if any(word in text for word in _SWALLOWS):
            return super()._with(stmt, bound)
        for item in stmt.items:
            self._read([item.context_expr], bound)
            if item.optional_vars is not None:
                bound |= names(stores(item.optional_vars))
        return self.through(stmt.body, bound)

    def _after(self, stmt: ast.stmt, bound: Names) -> Names | None:
        if not isinstance(stmt, ast.Try):
            return super()._after(stmt, bound)
        ends = [self.through([*stmt.body, *stmt.orelse], bound)]
        for handler in stmt.handlers:
            named = bound | ({handler.name} if handler.name else set())
            ends.append(self.through(handler.body, named))
        reached = [end for end in ends if end is not None]
        if not reached:
            return None
        return self.through(stmt.finalbody, frozenset.intersection(*reached))


class _Outline:
    """What is known of the variables around a region."""

    def __init__(self, region: StepRegion, tree: ast.Module, lines: list[str]) -> None:
        self.region, self.scope, self.lines = region, region.scope, lines
        node = region.scope.node
        self.closed = _closed(node)
        if isinstance(node, ast.Module):
            self.shared = self.closed
            self.local = all_stores(node.body) - self.shared
            self.refused: Names = frozenset()
            moving = (region.block, *(stmt.body for stmt in region.loops))  # type: ignore[attr-defined]
            targets = (names(stores(s.target)) for s in region.loops if isinstance(s, ast.For))
            self.variables = frozenset[str]().union(*map(all_stores, moving), *targets)
            self.variables &= self.local
        else:
            self.shared = declared(node, ast.Global)
            self.local = local_names(node)
            inside_out = frozenset(
                name for n in all_nodes(tree) if isinstance(n, ast.Nonlocal) for name in n.names
            )
            self.refused = inside_out & (self.local | self.scope.around)
            self.variables = self.local | (self.scope.around - self.shared)

    def start(self, body: Sequence[ast.stmt]) -> Start | None:
        """The step that begins with `body`; None where it cannot be a function."""
        bodies = tuple(body)
        errors = {n.name for s in bodies for n in own_nodes(s) if isinstance(n, ast.ExceptHandler)}
        written, read = all_stores(bodies) - errors, all_loads(bodies)
        if not self._can_move(bodies, written, read):
            return None
        given = _read_first(bodies, self.variables)
        back, dropped = self._kept(bodies, written & self.local, given)
        unset = back - given - _certain(bodies, self.variables | written, given)
        if any(_leaving(bodies)):
            unset = back - given
        shared = sorted(written & self.shared)
        head = _head(self.scope, sorted(given), shared, sorted(unset))
        text = "".join([*self._headed(bodies[0], *head), *self._body(bodies, sorted(back))])
        return Start(
            text,
            first_line(bodies[0]) - 2,
            tuple(sorted(given)),
            tuple(sorted(back)),
            tuple(sorted(dropped)),
            tuple(sorted(_read_first(bodies, self.shared | read) - given)),
            clears_gradients(bodies[0]),
            (first_line(bodies[0]), last_line(bodies[-1])),
        )

    def _kept(
        self, body: tuple[ast.stmt, ...], written: Names, given: Names
    ) -> tuple[Names, Names]:
        """Variables that something may read later, and those that nothing does. What a file's own
        code binds other files may read, and what looks around (`locals()`) reads all."""
        node = self.scope.node
        if isinstance(node, ast.Module) or look_around(all_nodes(node)):
            return written, frozenset()
        outside = frozenset(_loads_outside(node.body, {id(stmt) for stmt in body}))
        back = written & (outside | given)
        return back, written - back

    def _can_move(self, body: tuple[ast.stmt, ...], written: Names, read: Names) -> bool:
        nodes = [node for stmt in body for node in own_nodes(stmt)]
        rest = self.region.rest
        return (
            first_line(body[0]) > 2
            and self._own_lines(body)
            and (not rest or self._own_lines(rest))
            and not any(isinstance(node, _REFUSED) for node in nodes)
            and not any(_is_deleted_name(node) or _keeps_variables(node, written) for node in nodes)
            and not any(_name_of(node) in _STOPS_AT for stmt in body for node in all_nodes(stmt))
            and not look_around(node for stmt in body for node in all_nodes(stmt))
            and not (written & self.closed & self.local)
            and not self._names_errors(body)
            and not ((written | read) & self.refused)
        )

    def _names_errors(self, body: tuple[ast.stmt, ...]) -> bool:
        """Whether an `except … as name` in the step has a name that stands elsewhere, too: it is
        unbound behind the handler."""
        handlers = [n for s in body for n in own_nodes(s) if isinstance(n, ast.ExceptHandler)]
        if not handlers:
            return False
        inside = {id(below) for handler in handlers for below in all_nodes(handler)}
        named = {handler.name for handler in handlers if handler.name}
        return any(
            isinstance(node, ast.Name) and node.id in named and id(node) not in inside
            for node in all_nodes(self.scope.node)
        )

    def _own_lines(self, body: tuple[ast.stmt, ...]) -> bool:
        """Whether the statements share no line with others, and stand in a block."""
        before = self.lines[first_line(body[0]) - 1].encode()[: body[0].col_offset]
        line = self.lines[last_line(body[-1]) - 1].encode()
        after = line[body[-1].end_col_offset or 0 :].strip()
        clean = not before.strip() and (not after or after.startswith(b"#"))
        return clean and body[0].col_offset > 0

    # -- the text

    def _headed(self, first: ast.stmt, header: str, prologue: str) -> Iterator[str]:
        indent = self._indent(first)
        yield f"{indent[:-1]}{header}\n"
        yield f"{indent}{prologue}\n"

    def _indent(self, first: ast.stmt) -> str:
        return self.lines[first_line(first) - 1].encode()[: first.col_offset].decode()

    def _body(self, body: tuple[ast.stmt, ...], back: list[str]) -> Iterator[str]:
        first, last = first_line(body[0]), last_line(body[-1])
        lines = self.lines[first - 1 : last]
        if not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        variables = f"({''.join(f'{name}, ' for name in back)})"
        leaving = sorted(_leaving(body), key=lambda n: (n.lineno, n.col_offset), reverse=True)
        for node in leaving:
            _mark(node, lines, first, variables)
        yield from lines
        yield f"{self._indent(body[0])}return ({FALLS}, None, {variables})\n"


def _head(
    scope: StepScope, given: list[str], shared: list[str], unset: list[str]
) -> tuple[str, str]:
    node = scope.node
    name = "training_step" if isinstance(node, ast.Module) else node.name
    prologue = [f"global {', '.join(shared)}"] if shared else []
    prologue += [f"{' = '.join(unset)} = {NOT_BOUND!r}"] if unset else []
    return f"def {name}({', '.join(given)}):", "; ".join(prologue) or "pass"


def _mark(node: ast.stmt, lines: list[str], first: int, variables: str) -> None:
    """`continue`, `break` and `return v` as what the function returns."""
    if isinstance(node, _Stop):
        start, end = node.lineno - first, (node.end_lineno or node.lineno) - first
        indent = lines[start].encode()[: node.col_offset].decode()
        left = [f"{indent}return ({STOPS}, None, {variables})\n", *["\n"] * (end - start)]
        lines[start : end + 1] = left
        return None
    if isinstance(node, ast.Return):
        how, given = f" ({RETURNS}, (", "), ())"
        if node.value is None:
            return insert(lines, node.end_lineno, node.end_col_offset, first, how + "None" + given)
        insert(lines, node.end_lineno, node.end_col_offset, first, given)
        return insert(lines, node.lineno, node.col_offset + len("return"), first, how)
    at, code = node.lineno - first, CONTINUES if isinstance(node, ast.Continue) else BREAKS
    raw = lines[at].encode()
    text = f"return ({code}, None, {variables})".encode()
    lines[at] = (raw[: node.col_offset] + text + raw[node.end_col_offset :]).decode()
    return None


def _leaving(body: Sequence[ast.AST]) -> Iterator[ast.stmt]:
    """`return`s, and each `break` and `continue` of a loop around."""
    for node in body:
        if isinstance(node, ast.Return | ast.Break | ast.Continue):
            yield node
        elif isinstance(node, ast.For | ast.While):
            yield from (
                n for stmt in node.body for n in own_nodes(stmt) if isinstance(n, ast.Return)
            )
            yield from _leaving(node.orelse)
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _leaving(children(node))


# -- variables


def _read_first(body: Sequence[ast.stmt], local: Names) -> Names:
    found: set[str] = set()
    StepFlow(local, found).through(body, frozenset())
    return frozenset(found)


def _certain(body: Sequence[ast.stmt], local: Names, given: Names) -> Names:
    try:
        after = StepFlow(local, set()).through(body, given)
    except Unbound:
        after = None
    return frozenset() if after is None else after


def _closed(node: ast.AST) -> Names:
    """Names that functions, classes and lambdas made in `node` read from outside themselves: they
    would see another variable."""
    found: set[str] = set()
    for inner in all_nodes(node):
        if inner is node:
            continue
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            bound = parameters_of(inner) | all_stores(inner.body)
            found |= (all_loads(inner.body) - bound) | declared(inner, ast.Global, ast.Nonlocal)
        elif isinstance(inner, ast.Lambda | ast.ClassDef):
            found |= names(loads(inner))
    return frozenset(found)


def _loads_outside(body: Sequence[ast.AST], left_out: set[int]) -> Iterator[str]:
    """Names that are read in `body`, but for the statements `left_out`."""
    for node in body:
        if id(node) in left_out:
            continue
        if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            if isinstance(node, ast.AugAssign):
                yield from names(loads(node))
            yield from _loads_outside(children(node), left_out)
        else:
            yield from loads(node)


def _name_of(node: ast.AST) -> str | None:
    return getattr(node, "id", getattr(node, "attr", None))


def _is_deleted_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del)


def _keeps_variables(node: ast.AST, written: Names) -> bool:
    """Whether a function is made that reads a variable which the step binds."""
    return isinstance(node, ast.Lambda) and bool(names(loads(node)) & written)
