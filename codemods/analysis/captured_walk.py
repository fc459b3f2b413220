"""The walk over what runs under capture: rules get the nodes that they ask for; code that a guard
keeps out is skipped."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...rewriter.analysis.name_scopes import rebindings
from ...rewriter.analysis.tree_walk import parents
from ...rewriter.transforms.compiled.trace_time_checks import settles

if TYPE_CHECKING:
    from ...rewriter.analysis.import_names import ImportedNames
    from ..rules.base import Rule
    from .definitions import Function
    from .file_context import FileContext


_COMPILING = (
    "torch.compiler.is_compiling",
    "torch.compiler.is_dynamo_compiling",
    "torch._dynamo.is_compiling",
    "torch._dynamo.external_utils.is_compiling",
    "dynfix.is_compiling",
)
_SCRIPTING = ("torch.jit.is_scripting", "torch.jit.is_tracing", "torch.onnx.is_in_onnx_export")
_MOST = 100  # findings of one rule in one function
_MORE = "what more there is of this in the function is not listed"
_BLOCKS = {"body", "orelse", "finalbody"}
_NO_CODE = {"annotation", "ctx", "op", "ops"}


def compiling(test: ast.expr, names: ImportedNames) -> bool | None:
    """True where `test` holds only when compiled, False where only when not, None where it tells
    neither."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = compiling(test.operand, names)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        found = [compiling(v, names) for v in test.values]
        return next((f for f in found if f is not None), None)
    if not isinstance(test, ast.Call):
        return None
    name = names.resolve(test.func) or ""
    if name in _COMPILING or name.endswith((".is_torchdynamo_compiling", "is_compiling")):
        return True
    return False if name in _SCRIPTING else None


def _exact(test: Any, names: ImportedNames) -> bool:
    """Whether the other branch of `test` surely is the other case: no `and` in it."""
    while isinstance(test, ast.UnaryOp):
        test = test.operand
    return isinstance(test, ast.Call) and (names.resolve(test.func) or "") not in _SCRIPTING


def has_compiled_form(node: ast.expr, context: FileContext) -> bool:
    """Whether it stands in the `else` of a choice of what compiled code computes instead."""
    parent = context.parent(node)
    choice = isinstance(parent, ast.IfExp) and parent.orelse is node
    return choice and compiling(parent.test, context.names) is True


def read_ahead(test: ast.expr) -> bool:
    """Whether a choice asks for what was computed ahead of the captured call: `values and "key" in
    values`. Its other side runs in eager alone."""
    if not (
        isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) and len(test.values) == 2
    ):
        return False
    name, inside = test.values
    return (
        isinstance(name, ast.Name)
        and isinstance(inside, ast.Compare)
        and isinstance(inside.left, ast.Constant)
        and isinstance(inside.ops[0], ast.In)
        and ast.unparse(inside.comparators) == name.id
    )


class Walk:
    """Calls the rules of `table` ({node type: rules}) and keeps each node's parent, and the nodes
    that run when compiled as the context's `alive`."""

    def __init__(self, context: FileContext, table: dict[type, list[Rule]]) -> None:
        self.context, self.table, self.found = context, table, []
        self.numbers: dict[tuple[Rule, Function | None], int] = {}
        self.captured: set[Function] = set()
        self.current: Function | None = None
        context.alive = self.alive = []

    def function(self, function: Function) -> None:
        self.context.functions[function.node], self.current = function, function
        self.context.inference.function(function)
        if function.node.body[0] not in self.context.parents:
            self.context.parents.update(parents(function.node))
        self._block(function.node.body)

    def _block(self, body: list[ast.stmt]) -> None:
        """The statements up to one that leaves whenever the code is compiled."""
        for statement, after in zip(body, [*body, None][1:], strict=True):
            if statement in self.context.eager_only:
                continue
            self._visit(statement)
            if isinstance(statement, (ast.Return, ast.Raise)):
                return  # nothing behind it runs
            if (
                isinstance(statement, ast.If)
                and compiling(statement.test, self.context.names) is True
            ):
                leaves = isinstance(statement.body[-1], (ast.Return, ast.Raise, ast.Continue))
                exact = _exact(statement.test, self.context.names)
                if leaves and (exact or settles(statement.test, after)):
                    return

    def _visit(self, node: ast.AST) -> None:
        self.alive.append(node)
        for rule in self.table.get(type(node), ()):
            self._ask(rule, node)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return
        if isinstance(node, (ast.If, ast.IfExp)) and read_ahead(node.test):
            return
        if isinstance(node, ast.If):
            self._if(node)
        elif isinstance(node, ast.IfExp):
            self._expression(node)
        else:
            self._children(node)

    def _ask(self, rule: Rule, node: ast.AST) -> None:
        """Each finding looks at the function around: after so many of one rule the others are left
        for when these are fixed."""
        place = rule, self.current
        number = self.numbers.get(place, 0)
        if number >= _MOST:
            return
        found = list(rule.check(node, self.context))
        self.numbers[place] = number + len(found)
        if number + len(found) >= _MOST:
            found[-1] = replace(found[-1], message=f"{found[-1].message}; {_MORE}")
        self.found += found

    def _given(self, test: ast.expr) -> bool | None:
        """The truth of a parameter for which every captured call of the function has one
        constant."""
        function = self.current
        if not isinstance(test, ast.Name) or function is None or not self.captured:
            return None
        args = [a.arg for a in [*function.node.args.posonlyargs, *function.node.args.args]]
        if test.id not in args or test.id not in rebindings(function.node).once:
            return None
        if function.name == "forward" or function in self.context.program.compiled:
            return None
        place = args.index(test.id) - bool(function.self_name)
        values = [_argument(c, test.id, place) for c in self._calls(function)]
        known = bool(values) and all(type(v) is bool for v in values) and len(set(values)) == 1
        return values[0] if known else None

    def _calls(self, function: Function) -> list[ast.Call]:
        """The calls of a function in captured code; none where it goes by another name too."""
        name, program = function.name, self.context.program
        called = {c.func for c in program.calls}
        places = [*self.context.index.get(ast.Attribute, ()), *self.context.index.get(ast.Name, ())]
        named = {n for n in places if name in (getattr(n, "attr", ""), getattr(n, "id", ""))}
        if named - called:
            return []
        inside = (n for f in self.captured for n in program.nodes(f.node))
        return [n for n in inside if isinstance(n, ast.Call) and n.func in named]

    def _expression(self, node: ast.IfExp) -> None:
        """The sides of `a if torch.compiler.is_compiling() else b` that run when compiled."""
        names = self.context.names
        state = compiling(node.test, names) if _exact(node.test, names) else None
        parts = {True: [node.body], False: [node.orelse], None: [node.test, node.body, node.orelse]}
        for part in parts[state]:
            self._visit(part)

    def _children(self, node: ast.AST) -> None:
        for name in node._fields:
            value = getattr(node, name, None)
            if name in _NO_CODE:
                continue
            if isinstance(value, list):
                if name in _BLOCKS and value and isinstance(value[0], ast.stmt):
                    self._block(value)
                else:
                    for item in value:
                        if isinstance(item, ast.AST):
                            self._visit(item)
            elif isinstance(value, ast.AST):
                self._visit(value)

    def _if(self, node: ast.If) -> None:
        names = self.context.names
        state, given = compiling(node.test, names), self._given(node.test)
        if given is not None:
            self._block(node.body if given else node.orelse)
            return
        if state is None:
            self._visit(node.test)
        if state is not False:
            self._block(node.body)
        orelse = node.orelse[0] if len(node.orelse) == 1 else None
        settled = _exact(node.test, names) or settles(node.test, orelse)
        if state is not True or not settled:
            self._block(node.orelse)


def _argument(call: ast.Call, name: str, place: int) -> Any:
    """The constant that a call gives for a parameter; None where it is none."""
    if any(isinstance(a, ast.Starred) for a in call.args) or place < 0:
        return None
    named = {k.arg: k.value for k in call.keywords}
    value = call.args[place] if place < len(call.args) else named.get(name)
    return value.value if isinstance(value, ast.Constant) and None not in named else None
