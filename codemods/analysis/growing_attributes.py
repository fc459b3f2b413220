"""Attributes of modules that grow whenever captured code runs: counters, and lists that keep what
they are given."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...rewriter.analysis.kinds import constant
from .captured_walk import compiling

if TYPE_CHECKING:
    from .definitions import Class, Function
    from .file_context import FileContext


_GROWS = ("append", "extend", "insert", "appendleft")
_TRIMS = ("clear", "pop", "popleft", "popitem", "remove")


@dataclass(frozen=True)
class Growth:
    """A statement that adds `added` to `self.<attr>`; `own`: the attribute where the statement
    itself names it."""

    node: ast.stmt
    function: object
    attr: str
    added: tuple
    own: tuple


@dataclass(frozen=True)
class Use:
    """Where else the attribute stands: "store", "trim" or "read"; `captured`: in code that runs
    under capture."""

    node: ast.Attribute
    what: str
    function: object
    captured: bool


def own_attribute(node: Any, function: Function) -> str | None:
    """The name of the attribute where `node` is one of the function's `self`."""
    own = (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == function.self_name
    )
    return node.attr if own else None


def counted(node: Any, context: FileContext) -> Any:
    """The Growth of `self.n += 1` or `self.n = self.n + 1` in a module's method; None for anything
    else."""
    function = _method(node, context)
    if function is None:
        return None
    if isinstance(node, ast.AugAssign):
        attr = (
            own_attribute(node.target, function)
            if isinstance(node.op, (ast.Add, ast.Sub))
            else None
        )
        return attr and Growth(node, function, attr, (node.value,), (node.target,))
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    attr, value = own_attribute(target, function), getattr(node, "value", None)
    if (
        attr is None
        or not isinstance(value, ast.BinOp)
        or not isinstance(value.op, (ast.Add, ast.Sub))
    ):
        return None
    sides = [value.left] if isinstance(value.op, ast.Sub) else [value.left, value.right]
    read = next((s for s in sides if own_attribute(s, function) == attr), None)
    other = value.right if read is value.left else value.left
    return Growth(node, function, attr, (other,), (target, read)) if read is not None else None


def stored_values(node: ast.stmt, context: FileContext) -> Any:
    """The Growth of `self.seen.append(x)` and the like, also of a list that a dict of the module
    holds, and of `self.seen[len(self.seen)] = x`."""
    function = _method(node, context)
    call = node.value if isinstance(node, ast.Expr) else None
    if function is None:
        return None
    if isinstance(node, (ast.AugAssign, ast.Assign)):
        return counted(node, context) or _numbered(node, function)
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    base, added = call.func.value, tuple(call.args)
    if call.func.attr not in _GROWS or call.keywords:
        return None
    if isinstance(base, ast.Subscript):
        base, added = base.value, (*added, base.slice)
    elif isinstance(base, ast.Call) and getattr(base.func, "attr", "") == "setdefault":
        base, added = base.func.value, (*added, *base.args)
    attr = own_attribute(base, function)
    return attr and Growth(node, function, attr, added, (base,))


def _numbered(node: ast.stmt, function: Function) -> Any:
    """A dict that gets another entry, under its own length."""
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    attr = own_attribute(target.value, function) if isinstance(target, ast.Subscript) else None
    lengths = (
        [
            n
            for n in ast.walk(target.slice)
            if isinstance(n, ast.Call) and ast.unparse(n.func) == "len"
        ]
        if attr
        else []
    )
    counted = [a for n in lengths for a in n.args if own_attribute(a, function) == attr]
    return (
        Growth(node, function, attr, (node.value, target.slice), (target.value, *counted))
        if counted
        else None
    )


def _bare(statement: ast.stmt) -> bool:
    """`calls: int`, which makes no attribute."""
    return (
        isinstance(statement, ast.AnnAssign)
        and statement.value is None
        and isinstance(statement.target, ast.Name)
    )


def _method(node: ast.stmt, context: FileContext) -> Function | None:
    function = context.function(node)
    return (
        function
        if function is not None and function.cls is not None and function.cls.is_module
        else None
    )


class Attribute:
    """One attribute of one class, everywhere in the file. `stores`: the values that it is given
    outside captured code, None for one that is not plain; `uses`: where it stands otherwise than in
    what is `grown`; `shared`: a class above or below counts as well."""

    def __init__(self, growths: list[Growth], grown: list[Growth], context: FileContext) -> None:
        first = growths[0]
        self.growths, self.context, self.attr, self.cls = (
            growths,
            context,
            first.attr,
            first.function.cls,
        )
        self.parents = context.whole_parents()
        own = {id(n) for g in grown for n in g.own}
        nodes = [
            n
            for n in context.index.get(ast.Attribute, ())
            if n.attr == self.attr and id(n) not in own
        ]
        self.shared = any(
            g.attr == self.attr and self._related(g.function.cls) for g in grown if g not in growths
        )
        found = [self._use(n) for n in nodes]
        self.uses = [u for u in found if u is not None]
        self.stores = [self._value(u) for u in self.uses if u.what == "store" and not u.captured]
        self.stores += self._class_level()

    @property
    def reads(self) -> list[Use]:
        return [u for u in self.uses if u.what == "read"]

    @property
    def named(self) -> bool:
        """Whether a string spells the attribute's name: something may look it up."""
        return any(n.value == self.attr for n in self.context.index.get(ast.Constant, ()))

    @property
    def reset(self) -> bool:
        """Whether it may be set back before, during or after each call: in captured code, or by
        code outside the class."""
        changes = [u for u in self.uses if u.what != "read"]
        return any(u.captured or u.function is None or u.function.cls is None for u in changes)

    def read_by(self) -> str:
        """What reads it: the name of a function, for a message."""
        if self.named:
            return f'"{self.attr}" is named in a string'
        reads = self.reads
        where = (
            f"in `{reads[0].function.name}`" if reads and reads[0].function else "outside the class"
        )
        return f"`{self.attr}` is read {where}" if reads else ""

    def _class_level(self) -> Iterator[ast.Constant]:
        """What the class's own body gives it."""
        for cls in (
            self.cls,
            *(
                self.context.program.classes[b]
                for b in self.cls.bases
                if b in self.context.program.classes
            ),
        ):
            for node in cls.node.body:
                targets = (
                    node.targets
                    if isinstance(node, ast.Assign)
                    else [getattr(node, "target", None)]
                )
                if (
                    any(isinstance(t, ast.Name) and t.id == self.attr for t in targets)
                    and node.value is not None
                ):
                    yield node.value

    def class_names(self) -> set[str]:
        """What the bodies of the class, and of those above and below it in the file, give a
        value."""
        related = [c for c in self.context.program.classes.values() if self._related(c)]
        return set().union(
            *(c.bound_names - {s.target.id for s in c.node.body if _bare(s)} for c in related)
        )

    def foreign(self) -> bool:
        """Whether a class above it stands in another file that is not torch's."""
        classes = self.context.program.classes
        above = {
            b for name in self._above(self.cls) if name in classes for b in classes[name].bases
        }
        return any(b not in classes and not (b or "").startswith("torch.nn.") for b in above)

    def _function(self, node: ast.Attribute) -> Any:
        """The function of the file around a node, lambdas and nested functions left out."""
        by_node = self.context.program.by_node
        while node is not None and not (node in by_node and by_node[node].outer is None):
            node = self.parents.get(node)
        return by_node.get(node)

    def _use(self, node: ast.Attribute) -> Use | None:
        function = self._function(node)
        if self._only_in_eager(node) or self._unrelated(node, function):
            return None
        what = "store" if isinstance(node.ctx, (ast.Store, ast.Del)) else self._load(node)
        return Use(
            node, what, function, function is not None and function.node in self.context.functions
        )

    def _unrelated(self, node: ast.Attribute, function: Function) -> bool:
        """Whether it is the same name on a module of another class of the file."""
        own = function is not None and function.cls is not None and own_attribute(node, function)
        return bool(own) and not self._related(function.cls)

    def _related(self, cls: Any) -> bool:
        return bool(self._above(cls) & self._above(self.cls))

    def _above(self, cls: Class) -> set[str]:
        """A class with those above it in the file."""
        classes = self.context.program.classes
        return {cls.name}.union(
            *(self._above(classes[b]) for b in cls.bases if b in classes and b != cls.name)
        )

    def _load(self, node: ast.Attribute) -> str:
        parent = self.parents.get(node)
        called = isinstance(parent, ast.Attribute) and isinstance(
            self.parents.get(parent), ast.Call
        )
        if (called and parent.attr in _TRIMS) or (
            isinstance(parent, (ast.Assign, ast.NamedExpr)) and parent.value is node
        ):
            return "trim"  # or another name for it, under which that may happen
        items = isinstance(parent, ast.Subscript) and (
            isinstance(parent.ctx, ast.Del)
            or (isinstance(parent.ctx, ast.Store) and isinstance(parent.slice, ast.Slice))
        )
        return "trim" if items else "read"

    def _only_in_eager(self, node: ast.Attribute) -> bool:
        """Whether a node stands in code that only eager runs."""
        child, parent = node, self.parents.get(node)
        while parent is not None:
            if (
                isinstance(parent, ast.If)
                and child in parent.body
                and compiling(parent.test, self.context.names) is False
            ):
                return True
            child, parent = parent, self.parents.get(parent)
        return False

    def _value(self, use: Use) -> ast.expr | None:
        statement = self.parents.get(use.node)
        plain = isinstance(statement, ast.AnnAssign) or (
            isinstance(statement, ast.Assign) and len(statement.targets) == 1
        )
        return statement.value if plain else None

    def kinds(self) -> Iterator[Any]:
        """The kinds of the values that it is given; None for one that is not plain."""
        self.context.inference.class_attributes(self.cls)
        for value in self.stores:
            if isinstance(value, ast.Constant):
                yield constant(value.value)
            else:
                yield value and self.context.inference.kinds.get(value)


def attributes(context: FileContext, grows: Callable[..., Any], *types: Any) -> list[Attribute]:
    """The Attributes of modules that captured code grows: `grows(node, context)` gives the Growth
    of a statement."""
    nodes = [n for t in types for n in context.index.get(t, ())]
    grown = [(n, g) for n, g in ((n, grows(n, context)) for n in nodes) if g]
    alive = {id(n) for n in context.alive} if grown else set()
    found = {}
    for node, growth in grown:
        if id(node) in alive:
            found.setdefault((growth.function.cls.name, growth.attr), []).append(growth)
    return [Attribute(growths, [g for _, g in grown], context) for growths in found.values()]
