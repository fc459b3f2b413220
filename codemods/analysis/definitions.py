"""The functions and classes of a file, and which of them run under capture."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...rewriter.analysis.import_names import dotted
from ...rewriter.analysis.name_scopes import bound_by
from ...rewriter.analysis.tree_walk import below
from .attribute_stores import AttributeStores
from .file_links import FileLinks
from .grad_modes import switching_functions

if TYPE_CHECKING:
    from ...rewriter.analysis.import_names import ImportedNames


def _words(text: str) -> Any:
    return frozenset(text.split())


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MODULE_BASES = _words("""
    torch.nn.Module torch.nn.modules.module.Module torch.nn.Sequential torch.nn.ModuleList
    torch.jit.ScriptModule
    """)
NEVER_CAPTURED = _words("""
    __init__ __repr__ __str__ extra_repr reset_parameters state_dict load_state_dict __del__ __new__
    """)
_SETS_UP = ("register_", "_register_")  # what is registered once, though it be at the first call
_HOOKS = _words("""
    register_forward_hook register_forward_pre_hook register_module_forward_hook
    register_module_forward_pre_hook
    """)
_TEXTS = _words("__repr__ __str__ __format__ extra_repr _get_name")
_LOOKUPS = _words("__getattr__ __getattribute__ __getitem__ __missing__")
_CHANGES = _words("append add pop extend insert remove clear update setdefault popitem appendleft")
VALUES = "host_values"  # what is computed ahead of a captured call
COMPILE = _words("torch.compile torch._dynamo.optimize torch.compiler.compile dynfix.compile")
_SCRIPT = ("torch.jit.script", "torch.jit.script_if_tracing", "torch.jit.export")
DISABLE = _words("""
    torch.compiler.disable torch._dynamo.disable torch._dynamo.disallow_in_graph dynfix.disable
    torch.compiler.assume_constant_result torch.no_compile torch.library.custom_op
    """)


@dataclass(eq=False)
class Function:
    """One `def`: `cls` is the class that it is a method of, `outer` the function around it,
    `qualified` its name with those of the classes and functions around it."""

    node: ast.AST
    cls: Class | None = None
    outer: Function | None = None
    qualified: str = ""

    @property
    def owner(self) -> Class | None:
        """The class whose instance is at hand: its own, or that of a method around it."""
        return self.cls or (self.outer.owner if self.outer else None)

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def self_name(self) -> str | None:
        """The name of the first parameter of a method (not of a static one)."""
        static = any(
            isinstance(d, ast.Name) and d.id in ("staticmethod", "classmethod")
            for d in self.node.decorator_list
        )
        args = [*self.node.args.posonlyargs, *self.node.args.args]
        return args[0].arg if self.cls is not None and args and not static else None


@dataclass(eq=False)
class Class:
    node: ast.ClassDef
    bases: list
    methods: dict = field(default_factory=dict)
    is_module: bool = False
    qualified: str = ""

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def item_lookup(self) -> str:
        """The method of dict, "__getitem__" or "get", that a plain subclass of dict has for
        `__getattr__`, and itself has as dict has it; else ""."""
        bases = [ast.unparse(b) for b in self.node.bases]
        if bases != ["dict"] or self.node.keywords or self.node.decorator_list:
            return ""
        values = [
            s.value
            for s in self.node.body
            if isinstance(s, ast.Assign) and [ast.unparse(t) for t in s.targets] == ["__getattr__"]
        ]
        if len(values) != 1 or ast.unparse(values[0]) not in ("dict.__getitem__", "dict.get"):
            return ""
        own = self.bound_names & {values[0].attr, "__getattribute__"}
        return "" if own else values[0].attr

    @cached_property
    def bound_names(self) -> set[str]:
        """What the class's body binds."""
        stores = (n for s in self.node.body if not isinstance(s, _FUNCTIONS) for n in ast.walk(s))
        return {name for n in stores for name in bound_by(n)} | set(self.methods)


class FileProgram:
    """Every function of the tree with its class, by node; `captured(scope)` gives those that run
    under capture, as the project tells (`link`)."""

    def __init__(
        self,
        tree: ast.Module,
        names: ImportedNames,
        index: dict[type, list[ast.AST]],
    ) -> None:
        self.tree, self.names, self.index, self.links = tree, names, index, FileLinks()
        self.calls = index.get(ast.Call, [])
        self.functions, self.classes, self.top = [], {}, {}
        self._collect(tree.body, None, None, "")
        for cls in self.classes.values():
            cls.is_module = self._is_module(cls, set())
        self.kept: dict[str | None, set[str]] = {}  # {class: its buffers: tensors, or None}
        self.by_node = {f.node: f for f in self.functions}
        self.by_name = {f.qualified: f for f in self.functions}
        self._inner: dict[Function | None, list[Function]] = {}
        for function in self.functions:
            self._inner.setdefault(function.outer, []).append(function)
        self.rebound, self.compiled = names.rebound, self._compiled_roots()
        # a layer may give what a hook of this file makes of its output
        self.hooked = any(getattr(c.func, "attr", "") in _HOOKS for c in self.calls)

    @cached_property
    def stores(self) -> AttributeStores:
        return AttributeStores(self.index, self.functions, self.classes)

    @cached_property
    def switching(self) -> set[str]:
        """The functions that change the grad mode of who calls them."""
        return switching_functions(self.functions, self.calls)

    @cached_property
    def bindings(self) -> list[tuple[set[str], set[str], str | None]]:
        """What is bound to something that names can tell: (names, those in the value, what it
        calls, if it is a call)."""
        return list(_bindings(self.tree))

    @cached_property
    def acting(self) -> set[str]:
        """The properties, and the methods that make text or look something up, that do more than
        read."""
        named = _TEXTS | _LOOKUPS
        texts = [f for f in self.functions if f.cls is not None and f.name in named]
        read = [f for f in self.functions if f.cls is not None and _is_property(f.node)]
        return {f.name for f in [*texts, *read] if any(_acts(n) for n in self.nodes(f.node))}

    @cached_property
    def acting_texts(self) -> bool:
        return bool(self.acting & _TEXTS)

    @cached_property
    def acting_lookups(self) -> set[str]:
        """The methods of the file for which `a.b` or `a[b]` does more than read."""
        return self.acting & _LOOKUPS

    @cached_property
    def filling(self) -> set[str]:
        """The names of what makes an entry of each key that it is asked for."""
        made = (names for names, _, called in self.bindings if called == "defaultdict")
        return set().union(*made)

    @cached_property
    def compiles(self) -> bool:
        """Whether the file calls torch.compile anywhere."""
        return any(self.names.resolve(c.func) in COMPILE for c in self.calls)

    def nodes(self, function: ast.AST) -> tuple[ast.AST, ...]:
        """The nodes of a function, as `below` gives them."""
        return below(function)

    def _collect(self, body: Any, cls: Class | None, outer: Function | None, prefix: str) -> None:
        for node in body:
            if isinstance(node, _FUNCTIONS):
                self._function(node, cls, outer, f"{prefix}{node.name}")
            elif isinstance(node, ast.ClassDef):
                self._class(node, cls, outer, f"{prefix}{node.name}")
            else:
                for name in ("body", "orelse", "finalbody", "handlers"):
                    self._collect(getattr(node, name, None) or [], cls, outer, prefix)

    def _function(self, node: Any, cls: Class | None, outer: Function | None, name: str) -> None:
        function = Function(node, cls, outer, name)
        self.functions.append(function)
        if cls is not None:
            cls.methods[node.name] = function
        elif outer is None:
            self.top[node.name] = function
        self._collect(node.body, None, function, f"{name}.")

    def _class(self, node: ast.ClassDef, around: Class | None, outer: Any, name: str) -> None:
        bases = [
            (
                ".".join(dotted(b))
                if dotted(b) and dotted(b)[0] in self.classes
                else self.names.resolve(b)
            )
            for b in node.bases
        ]
        cls = Class(node, bases, qualified=name)
        if outer is None and (around is None or node.name not in self.classes):
            self.classes[node.name] = cls
        self._collect(node.body, cls, outer, f"{name}.")

    def _is_module(self, cls: Class, seen: set[str]) -> bool:
        """A torch.nn class above it; or, under a class from elsewhere, a `forward`."""
        if cls.name in seen:
            return False
        seen.add(cls.name)
        for base in cls.bases:
            if base in MODULE_BASES or (base or "").startswith("torch.nn."):
                return True
            if base in self.classes and self._is_module(self.classes[base], seen):
                return True
        bases = self._foreign(cls, set())
        forward = self.method(cls, "forward")
        return bool(bases) and forward is not None and not any("autograd" in base for base in bases)

    def _foreign(self, cls: Class, seen: set[Any]) -> set[str]:
        """The bases from elsewhere, of the class and of those above it in this file."""
        seen.add(cls.name)
        found = {b for b in cls.bases if b and b not in self.classes and b != "object"}
        for base in cls.bases:
            if base in self.classes and base not in seen:
                found |= self._foreign(self.classes[base], seen)
        return found

    def method(self, cls: Any, name: str, seen: tuple[str, ...] = ()) -> Function | None:
        """The method that instances of `cls` have under `name`, if it stands in this file."""
        if name in cls.methods:
            return cls.methods[name]
        for base in cls.bases:
            if base in self.classes and base not in seen:
                found = self.method(self.classes[base], name, (*seen, cls.name))
                if found:
                    return found
        return None

    def call_at(self, function: Function, line: int, column: int) -> ast.Call | None:
        """The call in a function with that first line and last column."""
        nodes = (n for n in self.nodes(function.node) if isinstance(n, ast.Call))
        found = (n for n in nodes if (n.lineno, n.end_col_offset) == (line, column))
        return next(found, None)

    def link(self, links: FileLinks) -> None:
        """Takes what the rest of the project tells of this file."""
        self.links = links
        for cls in self.classes.values():
            known = links.classes.get(cls.qualified)
            cls.is_module = cls.is_module if known is None else known

    def captured(self, scope: str) -> set[Function]:
        """The functions that run under capture; all that may, where the scope is "all"."""
        everything = scope == "all"
        found = {f for f in self.functions if everything or f.qualified in self.links.reached}
        for function in self.functions:  # outer ones first
            if function.outer in found and function.name in self._sides:
                found.add(function)  # a fix may have made it, after calls were followed
        return {f for f in found if self.may_be_captured(f)}

    @cached_property
    def _sides(self) -> set[str]:
        """The names of functions that are given to torch.cond."""
        calls = (c for c in self.calls if self.names.resolve(c.func) == "torch.cond")
        return {a.id for c in calls for a in c.args[1:3] if isinstance(a, ast.Name)}

    def may_be_captured(self, function: Function) -> bool:
        """Whether a function may run under capture if what is captured calls it."""
        name = function.name
        ahead = name.endswith(f"_{VALUES}")  # runs ahead of what is captured
        sets_up = name in NEVER_CAPTURED or name.startswith(_SETS_UP)
        return not (ahead or sets_up or self.disabled(function))

    def disabled(self, function: Function) -> bool:
        """Whether Dynamo does not look into it. `eager_op` is imported under `try`."""
        known = (self._decorator(d) in DISABLE for d in function.node.decorator_list)
        named = (getattr(d, "func", None) for d in function.node.decorator_list)
        return any(known) or any(getattr(n, "id", "") == "eager_op" for n in named)

    def scripted(self, function: Function) -> bool:
        """Whether TorchScript compiles a function, of which it takes less than Python."""
        return any(self._decorator(d) in _SCRIPT for d in function.node.decorator_list)

    def _decorator(self, node: ast.expr) -> str | None:
        return self.names.resolve(node.func if isinstance(node, ast.Call) else node)

    def _compiled_roots(self) -> set[Function]:
        roots = {
            f for f in self.functions if any(self.is_compile(d) for d in f.node.decorator_list)
        }
        for node in self.calls:
            if node.args and self.is_compile(node.func):
                roots |= self._named(node.args[0])
        return roots

    def inner(self, function: Function | None) -> list[Function]:
        """The functions that stand in a function."""
        return self._inner.get(function, [])

    def is_compile(self, decorator: ast.expr) -> bool:
        """Whether a decorator, or what is called, compiles."""
        node = decorator
        if isinstance(node, ast.Call):
            if self._decorator(node) in ("functools.partial",) and node.args:
                return self.names.resolve(node.args[0]) in COMPILE
            node = node.func
        parts = dotted(node)
        return (
            parts is not None
            and ".".join([self.names.aliases.get(parts[0], parts[0]), *parts[1:]]) in COMPILE
        )

    def _named(self, node: ast.Name) -> set[Any]:
        """The functions behind the argument of `torch.compile(...)`: a function, a class's
        instance, a bound method."""
        if isinstance(node, ast.Call):
            node = node.func
        if isinstance(node, ast.Name) and node.id in self.classes:
            forward = self.method(self.classes[node.id], "forward")
            return {forward} if forward else set()
        if isinstance(node, ast.Name):
            return {f for f in self.functions if f.name == node.id and f.cls is None}
        return set()

    def is_compiled(self, function: Function) -> bool:
        """Whether `torch.compile` is given the function itself."""
        return function in self.compiled


def _is_property(function: ast.FunctionDef) -> bool:
    return any("property" in ast.unparse(d) for d in function.decorator_list)


def _acts(node: ast.AST) -> bool:
    """Whether a statement or expression surely changes what others see."""
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return not isinstance(node.ctx, ast.Load)
    called = getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""
    writes = called.endswith("_") and not called.endswith("__")
    return isinstance(node, (ast.Global, ast.Nonlocal)) or writes or called in _CHANGES


def last_name(node: Any) -> Any:
    """`f` of `f`, `a.f` and `a.b.f`; "" for others."""
    return getattr(node, "attr", None) or getattr(node, "id", "")


def _bindings(tree: ast.Module) -> Iterator[tuple[set[str], set[str], str | None]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, (ast.For, ast.comprehension)):
            targets, value = [node.target], node.iter
        else:
            continue
        if isinstance(value, (ast.Call, ast.Name, ast.Attribute)):
            names = {last_name(t) for target in targets for t in ast.walk(target)} - {""}
            mentioned = {last_name(n) for n in ast.walk(value)}
            called = last_name(value.func) if isinstance(value, ast.Call) else None
            yield names, mentioned, called
