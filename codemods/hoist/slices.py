"""Backward slices of one function: what must run, and under which conditions, to have the value of
an expression ahead."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .aliases import aliases_of, own
from .purity import Impure, parameters

if TYPE_CHECKING:
    from .project import File
    from .purity import Purity


_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_BEYOND = (ast.Match, ast.Nonlocal, ast.Global, ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor)


class Slice:
    """The statements of `function` that are kept (`kept`; of the `if`s in `flat` the body alone) so
    that what `need` was asked for can be computed, and the parameters (`needed`) that this takes.
    `absent`: names that are not there."""

    def __init__(
        self, file: File, function: ast.FunctionDef, purity: Purity, absent: tuple[Any, ...] = ()
    ) -> None:
        self.file, self.function, self.purity, self.absent = (
            file,
            function,
            purity,
            frozenset(absent),
        )
        if any(isinstance(n, _BEYOND) for n in ast.walk(function)):
            raise Impure(f"`{function.name}` has statements that are not followed")
        self.order = {s: i for i, s in enumerate(_statements(function.body))}
        self.aliases = aliases_of(file, function)
        self.bindings = self._bindings()
        self.parameters = parameters(function)
        self.kept, self.flat, self.whole, self.needed = set(), set(), set(), set()
        self.methods = {}  # of the object, by name: the full names of those that the run saw
        self.lookups: set[str] = set()  # the object's embeddings that are called
        self.messages: set[str] = set()  # methods that show a message
        self.left: set[ast.stmt] = set()  # exits before which it may be computed in vain

    def need(self, expressions: list[ast.Call], within: Any) -> ast.stmt | None:
        """Have the values of `expressions`, which stand in or around `within`: the statement before
        which they can be computed. Raises Impure where they cannot; the slice may be half grown
        then."""
        anchor = self._anchor(within, expressions)
        self._control(anchor)
        for expression in expressions:
            self._evaluate(expression, anchor)
        return anchor

    def block(self, loop: Any) -> list[str]:
        """Have what a whole loop binds: the names of it that are read below."""
        inside = [s for s in self.order if s is loop or loop in self._around(s)]
        for statement in inside:
            if isinstance(
                statement,
                (ast.Return, ast.With, ast.Try, ast.FunctionDef, ast.ClassDef, ast.Delete),
            ):
                raise Impure("the loop around it has side effects")
        self._control(loop)
        self.kept |= set(inside)
        self.whole.add(loop)
        bound_here = {n for s in inside for n in (*_bound_by(s), *self.aliases.by_statement(s))} - {
            None
        }
        self._move(loop, loop)
        self._note_methods(loop)
        for statement in inside:
            read = [n for e in _read_by(statement) for n in loads(e)]
            for name in [*read, *([statement.target.id] if _adds_to_name(statement) else [])]:
                self._name_of_block(name, loop, name in bound_here)
        within = set(ast.walk(loop))
        outside = (
            n for n in ast.walk(self.function) if isinstance(n, ast.Name) and n not in within
        )
        return sorted(bound_here & {n.id for n in outside if isinstance(n.ctx, ast.Load)})

    def _name_of_block(self, name: str, loop: ast.For, bound_here: bool) -> None:
        before = [s for s in self.bindings.get(name, ()) if self.order[s] < self.order[loop]]
        if before or not bound_here:
            self._name(name, loop)

    # Where it is evaluated

    def _anchor(self, within: ast.Call, expressions: list[ast.Call]) -> ast.stmt | None:
        """The statement before which it is evaluated: outside every loop around it."""
        self._invariant(within, expressions)
        statement = self.file.statement(within)
        loops = [s for s in self._around(statement) if isinstance(s, _LOOPS)]
        if isinstance(statement, ast.While):
            loops = [statement, *loops]
        anchor = loops[-1] if loops else statement
        if any(isinstance(s, (ast.Try, ast.With, ast.AsyncWith)) for s in self._around(anchor)):
            raise Impure("it stands in a `try` or a `with`")
        for loop in loops:
            self._fixed_in(loop, expressions)
        return anchor

    def _invariant(self, within: ast.Call, expressions: list[ast.Call]) -> None:
        """Names that a comprehension or lambda around it binds are not there ahead."""
        node, inner = within, set()
        while not isinstance(node, ast.stmt):
            node = self.file.parents[node]
            if isinstance(node, _COMPREHENSIONS):
                inner |= {
                    n.id
                    for g in node.generators
                    for n in ast.walk(g.target)
                    if isinstance(n, ast.Name)
                }
            if isinstance(node, ast.Lambda):
                inner |= {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
        if inner & {name for e in expressions for name in loads(e)}:
            raise Impure("it belongs to one iteration of a comprehension")

    def _fixed_in(self, loop: Any, expressions: list[ast.Call]) -> None:
        inside = {s for s in self.order if loop is s or loop in self._around(s)}
        for name in (n for e in expressions for n in loads(e)):
            if any(s in inside for s in self.bindings.get(name, ())):
                raise Impure(f"`{name}` changes in a loop")

    def _around(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements around one, innermost first."""
        found, node = [], self.file.parents.get(statement)
        while node is not None and node is not self.function:
            if isinstance(node, ast.stmt):
                found.append(node)
            node = self.file.parents.get(node)
        return found

    # Under which conditions

    def _control(self, anchor: Any) -> None:
        for outer in self._around(anchor):
            self._condition(outer)
        for exit_ in self._exits(anchor):
            try:
                self._keep_exit(exit_)
            except Impure:
                self.left.add(exit_)

    def _condition(self, outer: Any) -> None:
        """Keep an `if` around what is computed; where its test cannot be, what is under it is
        computed always."""
        if not isinstance(outer, ast.If):
            raise Impure("it stands in a block other than an `if`")
        if outer in self.flat:
            return
        try:
            self._test(outer)
        except Impure:
            self.flat.add(outer)

    def _test(self, statement: ast.If) -> None:
        """Keep the `if` with its condition."""
        if statement in self.flat:
            raise Impure(f"the test of line {statement.lineno} cannot be made ahead")
        if statement in self.kept:
            return
        kept, needed = set(self.kept), set(self.needed)
        try:
            self.kept.add(statement)
            self._evaluate(statement.test, statement)
        except Impure:
            self.kept, self.needed = kept, needed
            raise

    def _exits(self, anchor: ast.stmt) -> list[ast.stmt]:
        """Statements before `anchor` that may leave the function."""
        leaving = (s for s in self.order if isinstance(s, (ast.Return, ast.Raise)))
        return [
            s
            for s in leaving
            if self.order[s] < self.order[anchor] and not self._exclusive(s, anchor)
        ]

    def _exclusive(self, first: ast.stmt, second: ast.stmt) -> bool:
        """Whether the two stand in different branches of one `if`."""
        for outer in self._around(first):
            if isinstance(outer, ast.If) and outer in self._around(second):
                return _branch(self.file, outer, first) != _branch(self.file, outer, second)
        return False

    def _keep_exit(self, statement: ast.stmt) -> None:
        for outer in self._around(statement):
            if not isinstance(outer, ast.If):
                raise Impure("the function may be left from a loop before it")
            self._test(outer)
        self.kept.add(statement)

    # With which values

    def _evaluate(self, expression: ast.expr, anchor: Any) -> None:
        self._move(expression, anchor)
        self._note_methods(expression)
        for name in loads(expression):
            if name == "super":
                raise Impure("`super()` means something else there")
            self._name(name, anchor)

    def _move(self, node: ast.AST, anchor: ast.stmt) -> None:
        later = self._later_than(anchor)
        done = self.purity.expression(self.file, self.function, node, later)
        if done.lookups and self.file.names.torch() is None:
            raise Impure("the file does not know torch by name")
        self.lookups |= done.lookups
        self.messages |= done.messages

    def _note_methods(self, node: ast.AST) -> None:
        """Classes below may have methods of their own by these names."""
        for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
            if not self.file.is_own(self.function, call.func):
                continue
            fact = self.file.fact(self.function, call.func)
            method = self.file.sibling(self.function, call.func) if fact is None else None
            found = (self.file, method) if method is not None else None
            if fact is not None and fact.what == "method":
                found = self.purity.project.definition(fact.cls)
            if found is not None:
                self.methods[call.func.attr] = found[0].names_of[found[1]]

    def _later_than(self, anchor: ast.stmt) -> Callable[..., Any]:
        """Whether a statement of this function runs after `anchor` alone."""
        in_loop = any(isinstance(s, _LOOPS) for s in self._around(anchor))
        return lambda statement: not in_loop and self.order.get(statement, -1) > self.order[anchor]

    def _name(self, name: str, anchor: ast.stmt) -> None:
        if name in self.absent:
            raise Impure(f"`{name}` is another at every turn of a loop")
        if name in self.parameters:
            self.needed.add(name)
        found = self.bindings.get(name, ())
        before = [
            s
            for s in found
            if self.order[s] < self.order[anchor] and not self._exclusive(s, anchor)
        ]
        loops = [s for s in self._around(anchor) if isinstance(s, _LOOPS)]
        turns = [s for s in found if s not in before and set(loops) & set(self._around(s))]
        if not before and not turns and name not in self.parameters and found:
            raise Impure(f"`{name}` is not there yet")
        for statement in before:
            self._keep(statement, anchor)
        for statement in turns:
            self._keep_turn(statement)

    def _keep_turn(self, statement: ast.stmt) -> None:
        """Keep what an earlier turn of a loop binds, or writes: under all of its conditions."""
        self._keep(statement, self.function.body[0])
        if self.flat.intersection(self._around(statement)):
            raise Impure(
                f"line {statement.lineno} would run in iterations in which it does not run now"
            )

    def _keep(self, statement: ast.stmt, anchor: ast.stmt) -> None:
        """Keep what binds a name that is read at `anchor`, under its own conditions."""
        if statement in self.kept:
            return
        self.kept.add(statement)
        if isinstance(statement, ast.For) and (
            statement.orelse
            or any(isinstance(n, (ast.Break, ast.Continue)) for n in ast.walk(statement))
        ):
            raise Impure(f"the loop of line {statement.lineno} may be left")
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.With, ast.Try)):
            raise Impure(f"it needs what line {statement.lineno} defines")
        around = self._around(anchor)
        for outer in self._around(statement):
            if isinstance(outer, ast.If):
                self._condition(outer) if outer in around else self._test(outer)
            elif isinstance(outer, ast.For):
                self._keep(outer, anchor)
            else:
                raise Impure(
                    f"line {statement.lineno} stands in a block other than an `if` or a `for`"
                )
        if _adds_to_name(statement):
            self._move(statement, anchor)
        for expression in _read_by(statement):
            self._evaluate(expression, statement)

    def _bindings(self) -> dict[str, list[ast.stmt]]:
        """{name: statements that bind it, or write into what it may hold}; attributes of the object
        are looked at apart."""
        found, me = {}, self.file.self_name(self.function)
        for statement in self.order:
            for name in {*_bound_by(statement), *self.aliases.affected(statement)} - {me}:
                found.setdefault(name, []).append(statement)
        return found


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement binds."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
        return
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        yield from ((a.asname or a.name).split(".")[0] for a in statement.names)
    for node in (n for e in own(statement) for n in ast.walk(e)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield node.id


def loads(expression: ast.expr) -> dict[str, None]:
    """The names that an expression reads from around it."""
    inner = {
        n.id
        for n in ast.walk(expression)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    inner |= {n.arg for n in ast.walk(expression) if isinstance(n, ast.arg)}
    found = (
        n.id
        for n in ast.walk(expression)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    )
    return dict.fromkeys(n for n in found if n not in inner)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Every statement of a function, in order, not those of functions in it."""
    for statement in body:
        yield statement
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(statement, part, None) or [])
            for handler in getattr(statement, "handlers", ()):
                yield from _statements(handler.body)


def _adds_to_name(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name)


def _read_by(statement: ast.stmt) -> list[ast.expr]:
    """What a kept statement evaluates."""
    if isinstance(statement, ast.If):
        return [statement.test]
    if isinstance(statement, ast.For):
        return [statement.iter]
    if isinstance(statement, ast.While):
        return [statement.test]
    return [e for e in own(statement) if isinstance(e, ast.expr)]


def _branch(file: Any, outer: Any, statement: Any) -> bool:
    node = statement
    while file.parents[node] is not outer:
        node = file.parents[node]
    return node in outer.body
