"""An expression that goes over several statements, each of which names what the next one takes."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.file_view import BLOCKS
from ....rewriter.analysis.tree_walk import below
from ....rewriter.source.intents import delete_statement
from ....rewriter.source.spans import Edit, Refusal
from .imported_names import around

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_DEFS = (ast.FunctionDef, ast.AsyncFunctionDef)


class OtherForm(Exception):
    """The expression is not what is looked for."""


class Unclear(Exception):
    """It is what is looked for, in a form that is not changed; the text says why."""


@dataclass(frozen=True)
class Step:
    """A statement, `block[at]`, that gives a name its value; under a condition, if there is
    one."""

    at: int
    statement: ast.stmt
    value: ast.expr
    test: ast.expr | None = None


class ExpressionSteps:
    """The statements before that an expression `node` is made by, in its block. `names`: of steps,
    with the first place where each is bound; `consumed`: reads that go with them; `moved`:
    expressions that are computed at `node` from now on."""

    def __init__(self, node: Any, context: FileContext) -> None:
        self.node, self.context = node, context
        self.statement = next(n for n in around(node, context) if isinstance(n, ast.stmt))
        self.block = self._block()
        self.function = next((n for n in around(node, context) if isinstance(n, _DEFS)), None)
        self.known = context.program.by_node.get(self.function)
        if self.known is not None:
            context.inference.function(self.known)
        self.consumed: set[ast.AST] = set()
        self.deleted: list[ast.stmt] = []
        self.names: dict[str, int] = {}
        self.at = self.block.index(self.statement)
        self.moved: list[ast.expr] = []

    def _block(self) -> list[ast.stmt]:
        parent = self.context.whole_parents().get(self.statement)
        for name in (*BLOCKS, "handlers"):
            body = getattr(parent, name, None)
            if isinstance(body, list) and self.statement in body:
                return body
        raise OtherForm

    def resolved(self, node: Any) -> Any:
        found, test = self.resolved_under(node)
        if test is not None:
            raise OtherForm
        return found

    def resolved_under(self, node: Any) -> tuple[Any, Any]:
        """The value of a name that a statement before gives it, and the condition for that."""
        if not isinstance(node, ast.Name):
            return node, None
        step = self.step(node.id)
        if step is None:
            raise OtherForm
        self.take(node, step)
        return step.value, step.test

    def take(self, node: ast.Name, step: Step) -> None:
        self.consumed.update(n for n in ast.walk(step.statement) if isinstance(n, ast.Name))
        self.consumed.add(node)
        self.deleted.append(step.statement)
        self.names[node.id] = self.at = step.at

    def step(self, name: str) -> Step | None:
        """The last statement before that binds a name."""
        for at in range(self.at - 1, -1, -1):
            statement = self.block[at]
            value, test = _given(statement, name), None
            if value is None and isinstance(statement, ast.If) and _one_sided(statement):
                value, test = _given(statement.body[0], name), statement.test
            if value is not None:
                return Step(at, statement, value, test)
            if any(getattr(n, "id", "") == name for n in ast.walk(statement) if stores(n)):
                return None
        return None

    def stored(self, node: ast.expr) -> list[ast.expr]:
        """What the class gives the attribute `self.name`, wherever it does."""
        known = self.known
        is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if known is None or known.cls is None or not is_own or node.value.id != known.self_name:
            return []
        return [
            s.value
            for s in ast.walk(known.cls.node)
            if isinstance(s, ast.Assign)
            for t in s.targets
            if isinstance(t, ast.Attribute) and t.attr == node.attr
        ]

    def constructor(self, node: ast.expr) -> ast.Call | None:
        """The call that makes the module which `self.name` is; None where several, or none, do."""
        values = self.stored(node)
        only = values[0] if len(values) == 1 else None
        return only if isinstance(only, ast.Call) else None

    def deletions(self) -> list[Edit | Refusal]:
        return [delete_statement(self.context.source, s) for s in dict.fromkeys(self.deleted)]

    def check(self) -> None:
        """Unclear where the steps cannot go."""
        self._check_uses()
        self._check_between()

    def _check_uses(self) -> None:
        """The names of the steps must not be used for anything else."""
        scope = self.function or self.context.source.tree
        final = {n.id for n in ast.walk(self.statement) if isinstance(n, ast.Name) and stores(n)}
        looped = any(isinstance(n, _LOOPS) for n in around(self.statement, self.context))
        inside = set(ast.walk(self.node))
        for node in below(scope) if self.function else ast.walk(scope):
            if not isinstance(node, ast.Name) or node.id not in self.names or stores(node):
                continue
            after = node.lineno > _end(self.statement)
            before = node.lineno < self.block[self.names[node.id]].lineno
            free = (after and node.id in final) or (before and not looped)
            if not free and node not in self.consumed and node not in inside:
                raise Unclear(f"line {node.lineno} uses `{node.id}`, too")
        if self.function is None and self.names:
            raise Unclear("other files may use the names of its steps")

    def _check_between(self) -> None:
        """What is computed later now must be the same then."""
        loads = [n for e in self.moved for n in ast.walk(e) if isinstance(n, ast.Name)]
        for node in loads:
            if node.id in self.names and node.lineno > _end(self.block[self.names[node.id]]):
                raise Unclear(f"line {node.lineno} uses `{node.id}`, too")
        steps, last = set(self.deleted), self.block.index(self.statement)
        first = min((self.block.index(s) for s in steps), default=last)
        for statement in self.block[first:last]:
            if statement not in steps and _changed_by(statement) & {n.id for n in loads}:
                raise Unclear(f"line {statement.lineno} changes what it is made of")


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def stores(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))


def _given(statement: ast.stmt, name: str) -> ast.expr | None:
    """What a statement gives a name, of the whole expression that it stands for; None where it
    gives it none."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        return statement.value if getattr(statement.targets[0], "id", "") == name else None
    if isinstance(statement, ast.AnnAssign):
        return statement.value if getattr(statement.target, "id", "") == name else None
    if isinstance(statement, ast.AugAssign) and getattr(statement.target, "id", "") == name:
        left = ast.copy_location(ast.Name(name, ast.Load()), statement.target)
        made = ast.BinOp(left, statement.op, statement.value)
        return ast.copy_location(made, statement)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        if isinstance(called, ast.Attribute) and called.attr == "masked_fill_":
            return statement.value if getattr(called.value, "id", "") == name else None
    return None


def _one_sided(node: ast.If) -> bool:
    return not node.orelse and len(node.body) == 1


def _changed_by(statement: ast.stmt) -> set[str]:
    """The names that a statement binds, or may write into."""
    found = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and stores(n)}
    for node in ast.walk(statement):
        written = isinstance(node, (ast.Subscript, ast.Attribute)) and stores(node)
        method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if written or (method and node.func.attr.endswith("_")):
            found |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return found
