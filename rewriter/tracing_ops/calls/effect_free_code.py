"""Python that runs once, when a graph is compiled: parts of autograd functions, hooks on gradients.
What it reads is guarded; what changes anything, or reads what no guard watches, is refused."""

import ast
import builtins
import inspect
import math
import symtable
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from ....runtime.guards.guard import Attr, Equals, Is, Item, Obj
from ...capture import opsets
from ...capture.guarded_kinds import CONSTANTS, is_constant
from ...capture.trace import Recorder
from ...source import live_source

PARTS = ("forward", "setup_context", "backward", "jvp", "vmap")
_QUIET_BUILTINS = frozenset(
    "len range isinstance int float bool str min max tuple list dict zip enumerate sum abs slice"
    " reversed round any all type ValueError RuntimeError TypeError NotImplementedError"
    " AssertionError None True False NotImplemented Ellipsis staticmethod map sorted".split()
)
_LOUD_METHODS = frozenset(
    "append extend insert pop update setdefault clear write item tolist numpy data_ptr"
    " register_hook set_ manual_seed save load synchronize set_default_dtype set_grad_enabled"
    " backward grad".split()
)


class NotEffectFree(Exception):
    """What the function does besides computing."""


def _parts(cls: type) -> list[types.FunctionType]:
    """The functions that the user wrote, without torch's wrappers around them."""
    parts = (inspect.unwrap(getattr(cls, name)) for name in PARTS)
    return [
        part
        for part in parts
        if isinstance(part, types.FunctionType)
        and not part.__module__.startswith("torch.autograd.")
    ]


class ConstantReads:
    """`found`: (path, value) of the constants that a function's parts, and what they call, read
    from outside. Raises Loud for anything that is more than computing."""

    def __init__(self) -> None:
        self.found: list[tuple[Any, Any]] = []
        self._seen: set[types.FunctionType] = set()

    def guard(self, rec: Recorder) -> None:
        for path, value in self.found:
            rec.known.guard(path, Equals(value) if type(value) in CONSTANTS else Is(value))

    def of_class(self, cls: type) -> None:
        """Of an autograd function."""
        for part in _parts(cls):
            self.of_function(part)

    def of_function(self, fn: types.FunctionType) -> None:
        if fn in self._seen:
            return
        self._seen.add(fn)
        body, outside = _parsed(fn)
        first = fn.__code__.co_varnames[0] if fn.__code__.co_argcount else None
        for node in ast.walk(body):
            self.check(node, first, fn)
            if not isinstance(getattr(node, "ctx", None), ast.Load):
                continue
            if isinstance(node, ast.Name) and node.id in outside:
                self.outside(fn, node.id)
            match node:
                case ast.Attribute(value=ast.Name(id=owner)) if owner in outside:
                    self.attribute(fn, owner, node.attr)

    def check(self, node: ast.AST, first: str | None, fn: types.FunctionType) -> None:
        """Raises Loud. `first`: the parameter whose attributes are its own."""
        if isinstance(
            node,
            ast.Global | ast.Nonlocal | ast.Yield | ast.YieldFrom | ast.Import | ast.ImportFrom,
        ):
            raise NotEffectFree(f"{fn.__qualname__} changes or imports names")
        if isinstance(node, ast.Attribute):
            base = node.value.id if isinstance(node.value, ast.Name) else None
            if not isinstance(node.ctx, ast.Load) and base != first:
                raise NotEffectFree(f"{fn.__qualname__} stores an attribute")
            if node.attr in _LOUD_METHODS or (base != first and opsets.draws(node.attr)):
                raise NotEffectFree(f"{fn.__qualname__} uses .{node.attr}")

    def outside(self, fn: types.FunctionType, name: str) -> None:
        path, value = lookup(fn, name)
        if isinstance(value, types.ModuleType):
            if value is not math and value.__name__.partition(".")[0] != "torch":
                raise NotEffectFree(f"{fn.__qualname__} uses the module {value.__name__}")
            return
        if path is None:
            if name not in _QUIET_BUILTINS:
                raise NotEffectFree(f"{fn.__qualname__} uses {name}")
            return
        self.found.append((path, value))
        if is_constant(value) or is_torchs(value):
            return
        if isinstance(value, types.FunctionType):
            self.of_function(inspect.unwrap(value))
        elif isinstance(value, type) and issubclass(value, torch.autograd.Function):
            self.of_class(value)
        else:
            raise NotEffectFree(f"{fn.__qualname__} reads {name}, a {type(value).__name__}")

    def attribute(self, fn: types.FunctionType, name: str, attribute: str) -> None:
        """What the user's own function or autograd function holds under a name."""
        path, owner = lookup(fn, name)
        if path is None or not isinstance(owner, types.FunctionType | type) or is_torchs(owner):
            return
        if attribute == "apply" or not hasattr(owner, attribute):
            return
        value = getattr(owner, attribute)
        if not is_constant(value):
            raise NotEffectFree(
                f"{fn.__qualname__} reads {name}.{attribute}, a {type(value).__name__}"
            )
        self.found.append((Attr(path, attribute), value))


_WRAPPING = "__torch_dispatch__ __tensor_flatten__ __tensor_unflatten__ __new__ __init__".split()


class WrapperReads(ConstantReads):
    """Of a class of tensors that wraps others: what it does for an operator is done once, when a
    graph is traced down to what it wraps. What torch's own classes do may be."""

    def of_class(self, cls: type) -> None:
        for name in _WRAPPING:
            part = inspect.unwrap(getattr(cls, name))
            part = getattr(part, "__func__", part)
            if isinstance(part, types.FunctionType) and not is_torchs(part):
                self.of_function(part)

    def check(self, node: ast.AST, first: str | None, fn: types.FunctionType) -> None:
        super().check(node, first, fn)
        match node:
            case (
                ast.Attribute(value=ast.Name(id=owner))
                | ast.Call(func=ast.Name(id="getattr"), args=[ast.Name(id=owner), *_])
            ) if owner == first:
                if fn.__name__ == "__torch_dispatch__":  # `first` is the class
                    raise NotEffectFree(f"{fn.__qualname__} reads what the class holds")

    def outside(self, fn: types.FunctionType, name: str) -> None:
        value = lookup(fn, name)[1]
        if name in ("getattr", "hasattr", "next", "iter"):
            return
        if not (isinstance(value, type) and issubclass(value, torch.Tensor)):
            super().outside(fn, name)
        elif not is_torchs(value) and value not in self._classes:
            self._classes.add(value)
            self.of_class(value)

    def __init__(self, cls: type) -> None:
        super().__init__()
        self._classes = {cls}
        self.of_class(cls)

    def hold(self) -> bool:
        """Whether the constants are what they were."""
        return all(_now(path) is value for path, value in self.found)


def _now(path: Any) -> Any:
    return path.arg if path.base is None else path.fetch(_now(path.base))


_known = weakref.WeakKeyDictionary[types.CodeType, tuple[ast.AST, set[str]]]()


def _parsed(fn: types.FunctionType) -> tuple[ast.AST, set[str]]:
    """The function's statements, and the names that it takes from around it. Raises Loud,
    NotRewritable."""
    if fn.__code__ not in _known:
        source = live_source.find(fn)
        text = live_source.padded(source, source.text)
        found = _body(ast.parse(text), source.name), _outside_names(text, source.name)
        _known[fn.__code__] = found
    return _known[fn.__code__]


def _body(tree: ast.Module, name: str) -> ast.AST:
    """The function's statements, without its decorators."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda))
    found = [node for node in nodes if getattr(node, "name", "<lambda>") == name]
    if len(found) != 1:
        raise NotEffectFree(f"several functions of its text are called {name}")
    node = found[0]
    inside: list[Any] = node.body if isinstance(node, ast.FunctionDef) else [ast.Expr(node.body)]
    return ast.Module(body=inside, type_ignores=[])


def _outside_names(text: str, name: str) -> set[str]:
    """The names that a function, or what is nested in it, takes from around it."""
    tables = list(_tables(symtable.symtable(text, "<text>", "exec")))
    names = (name, name.strip("<>"))
    function = next(t for t in tables if t.get_type() == "function" and t.get_name() in names)
    found = (symbol for table in _tables(function) for symbol in table.get_symbols())
    return {symbol.get_name() for symbol in found if symbol.is_global()}


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for inner in table.get_children():
        yield from _tables(inner)


def is_torchs(value: Any) -> bool:
    module = getattr(value, "__module__", None) or ""
    return callable(value) and module.partition(".")[0] in ("torch", "math")


def lookup(fn: types.FunctionType, name: str) -> tuple[Any, Any]:
    """The path and value of a name from outside; no path for a builtin."""
    if name in fn.__code__.co_freevars:
        index = fn.__code__.co_freevars.index(name)
        cell = (fn.__closure__ or ())[index]
        closure = Attr(Obj(fn, fn.__qualname__), "__closure__")
        return Attr(Item(closure, index), "cell_contents"), cell.cell_contents
    if name in fn.__globals__:
        return Item(Obj(fn.__globals__, fn.__module__), name), fn.__globals__[name]
    if not hasattr(builtins, name):
        raise NotEffectFree(f"{fn.__qualname__} reads {name}, which is not there")
    return None, getattr(builtins, name)
