"""Buffers that hold one Python int each, and the methods that compute with them alone: the same in
Python numbers."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from ...rewriter.analysis.tree_walk import below
from ...rewriter.source.intents import insert_after, insert_before
from ...rewriter.source.spans import Edit

if TYPE_CHECKING:
    from .definitions import Class, Function
    from .file_context import FileContext


_INTS = ("torch.int64", "torch.long", "torch.int32", "torch.int")
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_ROUND = {"torch.ceil": "math.ceil", "torch.floor": "math.floor"}
_TAKERS = (
    "torch.nn.functional.pad",
    "torch.zeros",
    "torch.ones",
    "torch.arange",
    "torch.empty",
    "torch.full",
    "range",
)


class Buffers:
    """`numbers`: {attribute of self: source of its number} for the buffers of one class and what
    `__init__` computes from them; `edits`: those that keep the numbers beside them."""

    def __init__(self, cls: Class, context: FileContext) -> None:
        self.context, self.source = context, context.source
        self.init = cls.methods["__init__"]
        self.own = self.init.self_name
        self.attributes = {n.attr for n in below(cls.node) if isinstance(n, ast.Attribute)}
        self.names = {n.id for n in below(cls.node) if isinstance(n, ast.Name)}
        self.local, self.numbers, self.edits = {}, {}, []
        for statement in self.init.node.body:
            self._statement(statement)
        changed = _changed(cls, self.init.node)
        self.numbers = {a: n for a, n in self.numbers.items() if a not in changed}

    def _statement(self, node: ast.stmt) -> None:
        name, value = self._buffer(node)
        if name is None and isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, made = node.targets[0], node.value
            if isinstance(target, ast.Name):
                self._named(node, target.id, made)
                return
            name, value = self._attribute(target), made if self._sum(made) else None
        number = self._number(value) if name is not None and value is not None else None
        if number is None:
            self._forget(node)
            return
        mirror = _free(f"{name}_number", self.attributes)
        self._insert(node, f"{self.own}.{mirror} = {number}", after=True)
        self.numbers[name] = mirror

    def _named(self, node: ast.Assign, name: str, value: ast.expr) -> None:
        """A local name that holds such a tensor."""
        number = self._number(value)
        self.local.pop(name, None)
        if number is not None and isinstance(value, ast.Call):
            mirror = _free(f"{name}_number", self.names)
            self._insert(node, f"{mirror} = {number}", after=False)
            self.local[name] = mirror

    def _forget(self, node: ast.stmt) -> None:
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                self.local.pop(part.id, None)

    def _buffer(self, node: ast.stmt) -> Any:
        """(attribute, value) of a statement that makes a buffer which no state dict holds."""
        call = node.value if isinstance(node, (ast.Assign, ast.Expr)) else None
        if not isinstance(call, ast.Call) or not any(
            _is_false(k, "persistent") for k in call.keywords
        ):
            return None, None
        if (
            isinstance(node, ast.Assign)
            and self.context.names.resolve(call.func) == "torch.nn.Buffer"
        ):
            return self._attribute(node.targets[0]), call.args[0] if call.args else None
        register = (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "register_buffer"
            and len(call.args) == 2
        )
        if isinstance(node, ast.Expr) and register and isinstance(call.args[0], ast.Constant):
            return call.args[0].value, call.args[1]
        return None, None

    def _attribute(self, node: ast.AST) -> str | None:
        own = (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == self.own
        )
        return node.attr if own else None

    def _sum(self, node: ast.expr) -> bool:
        """Whether an expression computes with such an attribute."""
        return isinstance(node, ast.BinOp) and any(
            self._attribute(n) in self.numbers for n in ast.walk(node)
        )

    def _number(self, node: ast.expr) -> str | None:
        """The source of the Python int that a tensor holds; None where that is not plain."""
        if isinstance(node, ast.Name):
            return self.local.get(node.id)
        if self._attribute(node) in self.numbers:
            return f"{self.own}.{self.numbers[node.attr]}"
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return repr(node.value)
        if isinstance(node, ast.BinOp) and isinstance(node.op, _OPERATORS):
            sides = self._number(node.left), self._number(node.right)
            return None if None in sides else self._joined(node, sides)
        made = (
            isinstance(node, ast.Call) and self.context.names.resolve(node.func) == "torch.tensor"
        )
        if (
            not made
            or len(node.args) != 1
            or [k.arg for k in node.keywords] != ["dtype"]
            or not _plain(node.args[0])
        ):
            return None
        typed = self.context.names.resolve(node.keywords[0].value) in _INTS
        return self.source.segment(node.args[0]) if typed else None

    def _joined(self, node: ast.BinOp, sides: Any) -> Any:
        left, right = (
            s if s.replace(".", "").isidentifier() or s.isdigit() else f"({s})" for s in sides
        )
        start, end = self.source.span(node.left)[1], self.source.span(node.right)[0]
        operator = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%"}[
            type(node.op)
        ]
        return f"{left} {operator} {right}" if start < end else None

    def _insert(self, node: ast.stmt, text: str, after: bool) -> None:
        self.edits.append((insert_after if after else insert_before)(self.source, node, text))


def _free(wish: str, taken: set[str]) -> str:
    while wish in taken:
        wish += "_"
    taken.add(wish)
    return wish


def _changed(cls: Class, init: ast.FunctionDef) -> set[str]:
    """Attributes that the class binds more than once, or hands to something that writes into
    them."""
    found, once = set(), set()
    for method in cls.methods.values():
        for node in below(method.node):
            names = _bound_by(node)
            found |= names if method.node is not init else names & once
            once |= names
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("_"):
                found |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    return found


def _bound_by(node: ast.AST) -> set[str]:
    """The attributes that a node stores, also into their items and as a buffer's name."""
    if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(
        node.ctx, (ast.Store, ast.Del)
    ):
        inner = node.value if isinstance(node, ast.Subscript) else node
        return {inner.attr} if isinstance(inner, ast.Attribute) else set()
    register = (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "register_buffer"
    )
    return (
        {node.args[0].value}
        if register and node.args and isinstance(node.args[0], ast.Constant)
        else set()
    )


def _is_false(keyword: ast.keyword, name: str) -> bool:
    return (
        keyword.arg == name
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is False
    )


def _plain(node: ast.expr) -> bool:
    """Whether an expression can be evaluated a second time: names, attributes, items, numbers and
    arithmetic."""
    kinds = (
        ast.Name,
        ast.Attribute,
        ast.Subscript,
        ast.Constant,
        ast.BinOp,
        ast.operator,
        ast.expr_context,
    )
    return all(isinstance(n, kinds) for n in ast.walk(node))


class Method:
    """One method in which the buffers stand for numbers alone: `edits` make it compute with Python
    numbers; `whole`: that all of it can; `gives`: its result is then a number; `feeds`: a number
    goes where torch or Python asks for one."""

    def __init__(
        self, function: Function, numbers: dict[str, str], giving: set[str], context: FileContext
    ) -> None:
        self.function, self.numbers, self.giving, self.context = function, numbers, giving, context
        self.own, self.edits = function.self_name, []
        self.locals, self.whole, self.gives, self.feeds = set(), True, False, False
        self._names()
        self._uses()

    def _names(self) -> None:
        """The local names that hold numbers wherever they are bound."""
        bound = {}
        for node in ast.walk(self.function.node):
            if (
                isinstance(node, ast.Assign)
                and len(node.targets) == 1
                and isinstance(node.targets[0], ast.Name)
            ):
                bound.setdefault(node.targets[0].id, []).append(node.value)
        others = [
            n.id
            for n in ast.walk(self.function.node)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        ]
        self.locals = {n for n, values in bound.items() if others.count(n) == len(values)}
        while True:
            kept = {n for n in self.locals if all(self.number(v) for v in bound[n])}
            if kept == self.locals:
                return
            self.locals = kept

    def number(self, node: ast.expr) -> bool:
        """Whether an expression is a Python number once the buffers are."""
        if isinstance(node, ast.Constant):
            return type(node.value) in (int, float)
        if isinstance(node, ast.Name) and node.id in self.locals:
            return True
        if self.buffer(node) or self._given(node):
            return True
        if isinstance(node, ast.BinOp) and isinstance(node.op, (*_OPERATORS, ast.Div)):
            return self.number(node.left) and self.number(node.right)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self.number(node.operand)
        kind = self.context.kind(node)
        return self.rounded(node) is not None or (
            kind.is_number and kind.cls != "shape" and not kind.host
        )

    def buffer(self, node: ast.AST) -> bool:
        own = (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == self.own
        )
        return own and node.attr in self.numbers and isinstance(node.ctx, ast.Load)

    def _given(self, node: ast.AST) -> bool:
        call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        own = call and isinstance(node.func.value, ast.Name) and node.func.value.id == self.own
        return own and node.func.attr in self.giving

    def rounded(self, node: ast.expr) -> ast.Call | None:
        """The inner call of `torch.ceil(n).to(torch.int64)` of a number."""
        method = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and not node.keywords
        )
        inner = node.func.value if method else None
        if not isinstance(inner, ast.Call) or len(inner.args) != 1 or inner.keywords:
            return None
        cast = node.func.attr == "long" and not node.args
        cast = cast or (
            node.func.attr == "to"
            and [self.context.resolve(a) in _INTS for a in node.args] == [True]
        )
        return (
            inner
            if cast and self.context.resolve(inner.func) in _ROUND and self.number(inner.args[0])
            else None
        )

    def _tracked(self, node: ast.expr) -> bool:
        """Whether an expression changes from a tensor to a number."""
        parts = list(ast.walk(node))
        return self.number(node) and any(
            self.buffer(n)
            or self._given(n)
            or (isinstance(n, ast.Name) and n.id in self.locals and self._tensor(n))
            for n in parts
        )

    def _tensor(self, name: ast.Name) -> bool:
        return self.context.kind(name).what not in ("int", "size", "float", "number", "bool")

    def _uses(self) -> None:
        for node in ast.walk(self.function.node):
            if self.buffer(node):
                new = f"{self.own}.{self.numbers[node.attr]}"
                self.edits.append(self.context.replacement(node, new))
            inner = self.rounded(node) if isinstance(node, ast.Call) else None
            if inner is not None:
                self._round(node, inner)
            if isinstance(node, ast.expr) and self._tracked(node):
                self._goes(node)

    def _round(self, node: Any, inner: ast.Call) -> None:
        source = self.context.source
        self.edits.append(
            self.context.replacement(inner.func, _ROUND[self.context.resolve(inner.func)])
        )
        self.edits.append(Edit(source.span(inner)[1], source.span(node)[1], ""))

    def _goes(self, node: ast.expr) -> None:
        """Where a number goes: on into a number, a name, a result, or to something that takes
        numbers."""
        parent = self.context.parent(node)
        if isinstance(parent, ast.expr) and self.number(parent):
            return
        if isinstance(parent, ast.Call) and self._inside_round(parent):
            return
        if isinstance(parent, ast.Assign) and all(
            isinstance(t, ast.Name) and t.id in self.locals for t in parent.targets
        ):
            return
        if isinstance(parent, ast.Return):
            self.gives = True
            return
        while isinstance(parent, (ast.Tuple, ast.List, ast.keyword)):
            parent = self.context.parent(parent)
        taken = isinstance(parent, ast.Call) and self._takes(parent)
        if taken or isinstance(parent, (ast.Slice, ast.Compare)):
            self.feeds = True
        else:
            self.whole = False

    def _inside_round(self, call: ast.Call) -> bool:
        """Whether `call` is the `torch.ceil(n)` of a rounding."""
        outer = self.context.parent(self.context.parent(call) or call)
        return isinstance(outer, ast.Call) and self.rounded(outer) is call

    def _takes(self, call: ast.Call) -> bool:
        """Whether a call takes numbers: of torch, or of this file, where the run showed no such
        tensor on its own."""
        name = self.context.resolve(call.func) or ""
        if name in _TAKERS:
            return True
        own = isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
        methods = self.function.cls.methods if own and call.func.value.id == self.own else {}
        top = self.context.program.top if isinstance(call.func, ast.Name) else {}
        callee = methods.get(getattr(call.func, "attr", "")) or top.get(name)
        return callee is not None and not _single_tensors(callee.qualified, self.context.facts)


def _single_tensors(function: str, facts: Any) -> bool:
    """Whether names of a function were tensors of one number: other rules count on it."""
    seen = facts.table.items() if facts else ()
    return any(
        f == function and t.isidentifier() and k.what == "tensor" and k.rank == 0
        for (f, t), k in seen
    )
