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
from .captured_walk import VALUES
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
COMPILE = _words("torch.compile torch._dynamo.optimize torch.compiler.compile dynfix.compile")
DISABLE = _words("""
    torch.compiler.disable torch._dynamo.disable torch._dynamo.disallow_in_graph dynfix.disable
    torch.jit.unused
    torch.jit.script torch.jit.ignore torch.compiler.assume_constant_result torch.no_compile
    torch.library.custom_op
    """)


@dataclass(eq=False)
class Function:
    """One `def`: `cls` is the class that it is a method of, `outer` the function around it."""

    node: ast.AST
    cls: Class | None = None
    outer: Function | None = None
    qualified: str = ""

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
    under capture."""

    def __init__(
        self,
        tree: ast.Module,
        names: ImportedNames,
        index: dict[type, list[ast.AST]],
        qualified: dict[ast.FunctionDef, str] | None = None,
    ) -> None:
        self.tree, self.names, self.qualified = tree, names, qualified or {}
        self.calls = index.get(ast.Call, [])
        self.functions, self.classes, self.top = [], {}, {}
        self._collect(tree.body, None, None)
        for cls in self.classes.values():
            cls.is_module = self._is_module(cls, set())
        self.by_node = {f.node: f for f in self.functions}
        self._inner: dict[Function | None, list[Function]] = {}
        for function in self.functions:
            self._inner.setdefault(function.outer, []).append(function)
        self.stores = AttributeStores(index, self.functions, self.classes)
        self.rebound, self.compiled = names.rebound, self._compiled_roots()
        self.switching = switching_functions(self.functions, self.calls)
        # a layer may give what a hook of this file makes of its output
        self.hooked = any(getattr(c.func, "attr", "") in _HOOKS for c in self.calls)

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

    def _collect(self, body: Any, cls: Class | None, outer: Function | None) -> None:
        for node in body:
            if isinstance(node, _FUNCTIONS):
                self._function(node, cls, outer)
            elif isinstance(node, ast.ClassDef):
                self._class(node, cls, outer)
            else:
                for name in ("body", "orelse", "finalbody", "handlers"):
                    self._collect(getattr(node, name, None) or [], cls, outer)

    def _function(self, node: Any, cls: Class | None, outer: Function | None) -> None:
        function = Function(node, cls, outer, self.qualified.get(node, ""))
        self.functions.append(function)
        if cls is not None:
            cls.methods[node.name] = function
        elif outer is None:
            self.top[node.name] = function
        self._collect(node.body, None, function)

    def _class(self, node: ast.ClassDef, around: Class | None, outer: Any) -> None:
        bases = [
            (
                ".".join(dotted(b))
                if dotted(b) and dotted(b)[0] in self.classes
                else self.names.resolve(b)
            )
            for b in node.bases
        ]
        cls = Class(node, bases)
        if outer is None and (around is None or node.name not in self.classes):
            self.classes[node.name] = cls
        self._collect(node.body, cls, outer)

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

    def captured(self, scope: str, seen: frozenset[str] = frozenset()) -> set[Function]:
        """The functions that run under capture: "forward" (reached from a module's forward or a
        compiled function), "compiled" (from compiled ones alone) or "all". `seen`: names of
        functions that a traced run saw there."""
        allowed = [
            f
            for f in self.functions
            if f.name not in NEVER_CAPTURED
            and not f.name.startswith(_SETS_UP)
            and not self._disabled(f)
        ]
        allowed = [
            f for f in allowed if not f.name.endswith(f"_{VALUES}")
        ]  # they run ahead of what is captured
        if scope == "all":
            return set(allowed)
        roots = set(self.compiled)
        if scope == "forward":
            roots |= {f for f in allowed if f.qualified in seen}
            roots |= {f for f in allowed if f.cls and f.cls.is_module and f.name == "forward"}
        return self._reach(roots & set(allowed), set(allowed))

    def _disabled(self, function: Function) -> bool:
        return any(self._decorator(d) in DISABLE for d in function.node.decorator_list)

    def _decorator(self, node: ast.expr) -> str | None:
        return self.names.resolve(node.func if isinstance(node, ast.Call) else node)

    def _compiled_roots(self) -> set[Function]:
        roots = {
            f for f in self.functions if any(self._is_compile(d) for d in f.node.decorator_list)
        }
        for node in self.calls:
            if node.args and self._is_compile(node.func):
                roots |= self._named(node.args[0])
        return roots

    def _is_compile(self, decorator: ast.expr) -> bool:
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

    def _reach(self, roots: set[Function], allowed: set[Function]) -> set[Function]:
        reached, todo = set(), list(roots)
        while todo:
            function = todo.pop()
            if function in reached:
                continue
            reached.add(function)
            todo += [f for f in self._calls(function) if f in allowed]
        return reached

    def _calls(self, function: Function) -> Iterator[Function]:
        """Functions of this file that `function` names in a call or hands on; functions defined in
        it."""
        yield from self._inner.get(function, ())
        for node in self.nodes(function.node):
            if isinstance(node, ast.Name) and node.id in self.top:
                yield self.top[node.id]
            elif isinstance(node, ast.Name) and node.id in self.classes:
                yield from self._constructed(self.classes[node.id])
            elif isinstance(node, ast.Attribute):
                yield from self._attribute(function, node)
            elif isinstance(node, ast.withitem):
                yield from self._entered(node.context_expr)

    def _entered(self, node: ast.expr) -> Iterator[Function]:
        """What `with X(...)` of a class of this file runs."""
        made = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and self.classes.get(node.func.id)
        )
        if made:
            yield from filter(None, (self.method(made, name) for name in ("__enter__", "__exit__")))

    def _constructed(self, cls: Class) -> Iterator[Any]:
        for name in ("__init__", "__call__", "__post_init__"):
            if not cls.is_module and name in cls.methods:
                yield cls.methods[name]

    def _attribute(self, function: Function, node: ast.Attribute) -> Iterator[Function]:
        owner = function
        while owner is not None and owner.cls is None:
            owner = owner.outer
        if owner is None:
            return
        classes = self._instances_in(owner, node.value)
        if isinstance(node.value, ast.Name) and node.value.id == owner.self_name:
            classes = [owner.cls]
        yield from filter(None, (self.method(cls, node.attr) for cls in classes))

    def _instances_in(self, owner: Function, node: ast.expr) -> Iterator[Any]:
        """The classes of this file that `self.attribute` may be an instance of, by what `__init__`
        stores there; modules are called, not asked for methods."""
        own = (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == owner.self_name
        )
        init = self.method(owner.cls, "__init__") if own else None
        for statement in self.nodes(init.node) if init else ():
            if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
                continue
            made = statement.value.func
            stored = any(
                isinstance(t, ast.Attribute) and t.attr == node.attr for t in statement.targets
            )
            if stored and isinstance(made, ast.Name) and made.id in self.classes:
                yield self.classes[made.id]


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
