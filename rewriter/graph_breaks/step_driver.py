"""The file of a script with its training steps in the hands of a driver: before each step it is
asked whether something else has done it; if not, the user's own statements run, where they are."""

import ast
import copy
import io
import tokenize
import types
from collections.abc import Callable

from ..source import live_source
from .statement_texts import first_line
from .step_protocol import BREAKS, CONTINUES, DRIVER, RETURNS, STOPS
from .step_regions import StepRegion, regions
from .step_texts import Start, TrainingStep, training_step
from .tree_walks import all_nodes

Register = Callable[[TrainingStep], int]


def with_drivers(text: bytes, file: str, register: Register) -> types.CodeType | None:
    """The code of a file whose steps are driven; None where none is found, or the text is no
    Python. `register` gives the number of a step."""
    try:
        tree = ast.parse(text, file)
        lines = _lines(text)
        changed = _driven(tree, lines, file, register)
        if not changed:
            return None
        code = compile(tree, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    _remember_texts(code, lines, {node for node in changed if isinstance(node, ast.FunctionDef)})
    return code


def _lines(text: bytes) -> list[str]:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(text).readline)
    return io.StringIO(text.decode(encoding), newline=None).readlines()


def _driven(tree: ast.Module, lines: list[str], file: str, register: Register) -> set[ast.AST]:
    """Put drivers into the tree; the functions (and the file) that have one."""
    changed: set[ast.AST] = set()
    found = [(region, training_step(region, tree, lines, file)) for region in regions(tree)]
    for region, step in reversed(found):  # behind comes first: a block's places stay
        if any(step.starts):
            region.block[region.starts[0] : region.last + 1] = _Driver(
                region, step, register(step)
            ).statements()
            changed.add(region.scope.node)
    return changed


class _Driver:
    """The statements that stand in the place of one step."""

    def __init__(self, region: StepRegion, step: TrainingStep, number: int) -> None:
        self.region, self.number = region, number
        self.body = [
            self._end_in_branch(stmt) for stmt in region.block[region.starts[0] : region.last + 1]
        ]
        at = [(index, start) for index, start in enumerate(step.starts) if start is not None]
        self.starts: list[tuple[int, Start]] = at

    def statements(self) -> list[ast.stmt]:
        return [*self.body[: self.starts[0][0]], *self._from(0)]

    def _from(self, nth: int) -> list[ast.stmt]:
        """From the `nth` start on: the driver is asked, then what comes before the next start."""
        if nth == len(self.starts):
            return _parsed(f"{DRIVER}.leave({self.number})", first_line(self.body[-1]))
        index, start = self.starts[nth]
        following = self.starts[nth + 1][0] if nth + 1 < len(self.starts) else len(self.body)
        line = start.lines[0]
        given = "".join(f"{name}, " for name in start.given)
        here = f"{DRIVER}.starts[{self.number}] & {1 << index}"
        asked = _parsed(
            f"if {here}:\n"
            f"    try: {DRIVER}.enter({self.number}, {index}, ({given}))\n"
            f"    except NameError: {DRIVER}.passed()",
            line,
        )
        taken = f"{DRIVER}.compiled[{self.number}] and {DRIVER}.now.result is not None"
        taken += f" and {DRIVER}.served({self.number}, {index})"
        (served,) = _parsed(f"if {taken}: pass\nelse: pass", line)
        assert isinstance(served, ast.If)
        served.body = [*self._failed(index, start), *self._bound(start), *self._left(start)]
        served.orelse = [*self.body[index:following], *self._from(nth + 1)]
        return [*asked, served]

    def _end_in_branch(self, stmt: ast.stmt) -> ast.stmt:
        """Where the step ends inside of an `if`, in place, the time of it does."""
        rest = self.region.rest
        if not _has_rest(stmt, rest) or not isinstance(stmt, ast.If):
            return stmt
        told, at = copy.copy(stmt), stmt.body.index(rest[0])
        leave = _parsed(f"{DRIVER}.leave({self.number})", first_line(rest[0]))
        told.body = [*stmt.body[:at], *leave, *rest]
        return told

    def _behind_rest(self) -> list[ast.stmt]:
        """Statements of the step behind the `if` whose body it did not finish."""
        rest = self.region.rest
        at = next(i for i, stmt in enumerate(self.body) if _has_rest(stmt, rest))
        return self.body[at + 1 :]

    def _bound(self, start: Start) -> list[ast.stmt]:
        """The step's variables, in the user's own."""
        text = [f"if {DRIVER}.has({n!r}): {n} = {DRIVER}.take({n!r})" for n in start.back]
        text += [f"{name} = None; del {name}" for name in start.dropped]
        return _parsed("\n".join(text), start.lines[0])

    def _failed(self, index: int, start: Start) -> list[ast.stmt]:
        """Raise what the step raised, at the line where it did."""
        (failed,) = _parsed(f"if {DRIVER}.failed(): pass", start.lines[0])
        assert isinstance(failed, ast.If)
        lines = {line for stmt in self.body[index:] for line in _lines_of(stmt)}
        raised = [
            each
            for line in sorted(lines)
            for each in _parsed(f"if {DRIVER}.line() == {line}: raise {DRIVER}.error()", line)
        ]
        last = _parsed(f"raise {DRIVER}.error()", start.lines[0])
        failed.body = [*self._bound(start), *raised, *last]
        return [failed]

    def _left(self, start: Start) -> list[ast.stmt]:
        """Leave the loop or the function as the step did, or do what it left."""
        leaving = []
        if self.region.loops:
            leaving += [f"if {DRIVER}.left() == {CONTINUES}: continue"]
            leaving += [f"if {DRIVER}.left() == {BREAKS}: break"]
        if not self.region.scope.is_file:
            leaving += [f"if {DRIVER}.left() == {RETURNS}: return {DRIVER}.value()"]
        left = _parsed("\n".join(leaving), start.lines[0])
        rest = self.region.rest
        if not rest:
            return left
        (stopped,) = _parsed(f"if {DRIVER}.left() == {STOPS}: pass", start.lines[0])
        assert isinstance(stopped, ast.If)
        stopped.body, stopped.orelse = [*rest, *self._behind_rest()], left
        return [stopped]


def _has_rest(stmt: ast.stmt, rest: tuple[ast.stmt, ...]) -> bool:
    return bool(rest) and isinstance(stmt, ast.If) and rest[0] in stmt.body


def _lines_of(stmt: ast.stmt) -> set[int]:
    return {node.lineno for node in all_nodes(stmt) if isinstance(node, ast.stmt | ast.expr)}


def _parsed(text: str, line: int) -> list[ast.stmt]:
    """Statements that all stand on one line, without columns: a traceback marks nothing of it."""
    body = ast.parse(text).body
    for stmt in body:
        for node in all_nodes(stmt):
            if hasattr(node, "lineno"):
                node.lineno = node.end_lineno = line  # type: ignore[attr-defined]
                node.col_offset = node.end_col_offset = -1  # type: ignore[attr-defined]
    return body


def _remember_texts(code: types.CodeType, lines: list[str], changed: set[ast.FunctionDef]) -> None:
    """Functions with a driver keep the text that the user wrote as their source."""
    places = {(first_line(node), node.name): node for node in changed}
    waiting: list[tuple[types.CodeType, tuple[tuple[str, bool], ...]]] = [(code, ())]
    while waiting:
        outer, containers = waiting.pop()
        for inner in outer.co_consts:
            if not isinstance(inner, types.CodeType):
                continue
            node = places.get((inner.co_firstlineno, inner.co_name))
            if node is not None:
                live_source.remember(inner, _source(inner, node, lines, containers))
            is_class = not inner.co_flags & 0x1
            waiting.append((inner, (*containers, (inner.co_name, is_class))))


def _source(
    code: types.CodeType,
    node: ast.FunctionDef,
    lines: list[str],
    containers: tuple[tuple[str, bool], ...],
) -> live_source.Source:
    first = first_line(node)
    return live_source.Source(
        text="".join(lines[first - 1 : node.end_lineno]),
        file=code.co_filename,
        first_line=first,
        name=node.name,
        is_lambda=False,
        free=code.co_freevars,
        containers=containers,
        flags=code.co_flags & live_source.FUTURES,
    )
