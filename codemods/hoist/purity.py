"""What may be computed ahead of its place: it changes nothing that others see, draws no random
numbers, and reads no parameter but by looking rows up in an embedding, of whose result a read of
inputs alone takes the shape or dtype. Calls are followed into the project's functions by what the
traced run saw."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...rewriter.analysis.call_effects import (
    AHEAD_BUILTINS,
    CHANGES_CONTAINERS,
    MAY_READ,
    allows,
    of_function,
    of_method,
)
from ...rewriter.analysis.torch_facts import METHOD
from .module_state import ModuleState, Owned, base, is_fixed_global

if TYPE_CHECKING:
    from ...rewriter.analysis.import_names import ImportedNames
    from .project import File, Project


_OF_MODULES = ("parameters", "named_parameters", "buffers", "named_buffers", "modules", "children")
_CALLED = ("function", "method")
_OUTWARD = (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await, ast.With, ast.AsyncWith)

_MODULES = (
    "math.",
    "itertools.",
    "operator.",
    "functools.reduce",
    "functools.partial",
    "collections.",
    "re.",
    "numpy.",
)
QUERIES = frozenset(
    """
    get keys values items copy index count split join startswith endswith format lower upper strip
    replace removeprefix
    removesuffix
    """.split()
)


class Impure(Exception):
    """Why something cannot be computed ahead."""


@dataclass(frozen=True)
class EffectSummary:
    """What code does beside computing: the parameters whose objects it changes, the embeddings of
    its object that it looks rows up in, the loggers' methods that it tells a message by, once."""

    changes: frozenset[str] = frozenset()
    lookups: frozenset[str] = frozenset()
    messages: frozenset[str] = frozenset()


class Purity:
    """`expression(file, function, node)` raises Impure where the node cannot be computed ahead."""

    def __init__(self, project: Project) -> None:
        self.project, self.known, self.state = project, {}, ModuleState(project)

    def expression(
        self,
        file: File,
        function: ast.FunctionDef,
        node: ast.AST,
        later: Callable[..., Any] = lambda statement: False,
    ) -> EffectSummary:
        """What it does. `later(statement)`: whether a statement of the function comes after what is
        looked at."""
        look = _Look(self, file, function, later)
        look.at(node)
        if look.changes:
            raise Impure(f"it changes `{min(look.changes)}`")
        return look.done()

    def changes(self, file: Any, function: Any) -> Any:
        """The parameters whose objects the function changes; Impure where it does more."""
        done = self.follow(file, function)
        if done.lookups or done.messages:
            raise Impure(f"`{function.name}` calls `{min(done.lookups | done.messages)}`")
        return done.changes

    def follow(self, file: Any, function: Any) -> EffectSummary:
        """What the function does; Impure where it does more."""
        key = file.path, function
        if key not in self.known:
            self.known[key] = EffectSummary()  # of itself, while it is looked at
            try:
                self.known[key] = self._body(file, function)
            except Impure as why:
                self.known[key] = str(why)
        if isinstance(self.known[key], str):
            raise Impure(self.known[key])
        return self.known[key]

    def _body(self, file: Any, function: Any) -> Any:
        if any(not _is_plain(d) for d in function.decorator_list):
            raise Impure(f"`{function.name}` is decorated")
        look = _Look(self, file, function, None)
        for statement in function.body:
            look.at(statement)
        return look.done()


class _Look:
    """One look at code of `function`, which collects what it does (see Done)."""

    def __init__(
        self, purity: Purity, file: File, function: ast.FunctionDef, later: Callable[..., Any]
    ) -> None:
        self.purity, self.project, self.file, self.function = purity, purity.project, file, function
        self.local, self.parameters, self.changes = bound(function), parameters(function), set()
        self.inner = {
            a.arg
            for n in ast.walk(function)
            if isinstance(n, ast.Lambda)
            for a in ast.walk(n.args)
            if isinstance(a, ast.arg)
        }
        self.owned, self.later = Owned(file, function, self.parameters), later
        self.lookups: set[str] = set()
        self.messages: set[str] = set()

    def done(self) -> EffectSummary:
        return EffectSummary(
            frozenset(self.changes), frozenset(self.lookups), frozenset(self.messages)
        )

    def at(self, node: ast.AST) -> None:
        for part in ast.walk(node):
            if isinstance(part, _OUTWARD):
                raise Impure(f"`{self.function.name}` changes what others see")
            if isinstance(part, (ast.Attribute, ast.Subscript)) and not isinstance(
                part.ctx, ast.Load
            ):
                self._written(part)
            elif isinstance(part, ast.Attribute):
                self._attribute(part)
            elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
                self._global(part.id)
            elif isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name):
                self._added(part)
            elif isinstance(part, ast.Call) and not self._allowed(part):
                raise Impure(f"`{ast.unparse(part.func)}` cannot be shown to change nothing")

    def _global(self, name: str) -> None:
        known = self.local | self.parameters | self.inner
        if name not in known and not is_fixed_global(self.file, name):
            raise Impure(f"`{name}` may be another at every call")

    def _added(self, node: Any) -> None:
        """`x += 1` changes the object of `x`, but of numbers and strings."""
        load = ast.Name(node.target.id, ast.Load())
        fact = self.fact(load)
        if not (fact and fact.what in ("int", "float", "bool", "str")) and not self._changed(
            node, node.target.id
        ):
            raise Impure(f"`{self.function.name}` writes to `{node.target.id}`")

    def _written(self, node: Any) -> None:
        if isinstance(node, ast.Attribute) or not self._changed(node, root(node)):
            raise Impure(f"`{self.function.name}` writes to `{ast.unparse(node)}`")

    def _changed(self, node: Any, name: str) -> bool:
        """Note a change of what `name` stands for at `node`; False where others may hold it."""
        if name in self.parameters and self.owned.is_parameter(node, name):
            self.changes.add(name)
            return True
        return name is not None and self.owned.at(node, name)

    def _attribute(self, node: ast.Attribute) -> None:
        fact, above = self.fact(node), self.file.parents.get(node)
        of_tensor = self.fact(node.value) and self.fact(node.value).what == "tensor"
        called = isinstance(above, ast.Call) and above.func is node
        if (
            of_tensor
            or called
            or (root(node) not in self.parameters and base(node) in self.file.names.aliases)
        ):
            return
        for getter in self.purity.state.properties.get(node.attr, ()):
            self.purity.changes(*getter)
        if self.purity.state.changing(node.attr, self.later and self.function, self.later):
            raise Impure(f"`{ast.unparse(node)}` may change before")
        mine = root(node) == self.file.self_name(self.function)
        if fact is not None and fact.what == "tensor" and mine and not _compared_with_none(above):
            raise Impure(f"`{ast.unparse(node)}` is a tensor of the module")

    def fact(self, node: ast.expr) -> Any:
        return self.file.fact(self.function, node)

    def _allowed(self, call: ast.Call) -> bool:
        for given in [*call.args, *(k.value for k in call.keywords)]:
            self._given(given)
        if (
            isinstance(call.func, ast.Name)
            and call.func.id == "next"
            and isinstance(call.args[0], ast.Name)
        ):
            return self._changed(call, call.args[0].id)
        return self._called(call)

    def _given(self, node: ast.expr) -> None:
        """A module or a function that is handed on may be called by what gets it."""
        fact = self.fact(node)
        if fact is not None and fact.what == "module":
            raise Impure(f"the module `{ast.unparse(node)}` is passed to other code")
        if fact is not None and fact.what in _CALLED:
            found = self.project.definition(fact.cls)
            if found is None or self.purity.changes(*found):
                raise Impure(f"the function `{ast.unparse(node)}` is passed to other code")

    def _called(self, call: ast.Call) -> bool:
        fact, names = self.fact(call.func), self.file.names
        if fact is not None and fact.what == "module":
            return self._looked_up(call.func, fact)
        name = names.resolve(call.func) or ""
        if root(call.func) not in self.local | self.parameters:
            if name.startswith("torch."):
                return function_reads(call, name)
            if name.startswith(_MODULES) and not name.startswith("numpy.random."):
                return True
            if _is_builtin(call.func, names):
                return True
        if fact is not None and fact.what in _CALLED and fact.cls:
            return self._seen(call, fact)
        named = self.file.functions.get(name)
        if named is not None and isinstance(call.func, ast.Name) and call.func.id not in self.local:
            return self._calls(call, self.file, named, False)
        method = self.file.sibling(self.function, call.func)
        if fact is None and method is not None:
            return self._calls(call, self.file, method, self.file.is_method(method))
        return isinstance(call.func, ast.Attribute) and (
            self._method(call.func) or self._any_of(call)
        )

    def _looked_up(self, module: ast.expr, fact: Any) -> bool:
        """An embedding of the object itself; the companion looks whether it is a plain one."""
        if (
            fact.cls != "torch.nn.Embedding"
            or not self.file.is_own(self.function, module)
            or any(map(self.purity.state.changing, (module.attr, "weight", "data")))
        ):
            raise Impure(f"`{ast.unparse(module)}` is a module")
        self.lookups.add(module.attr)
        return True

    def _seen(self, call: Any, fact: Any) -> Any:
        """The function that the run saw: one of the project, or a method of torch's own objects."""
        found = self.project.definition(fact.cls)
        if found is not None and self._tells_once(call, *found):
            self.messages.add(call.func.attr)
            return True
        if found is not None:
            return self._calls(call, *found, fact.what == "method")
        if "/torch/" not in fact.cls or not isinstance(call.func, ast.Attribute):
            return False
        return call.func.attr in _OF_MODULES or self._method(call.func)

    def _tells_once(self, call: Any, file: Any, function: Any) -> bool:
        """Whether a logger's method tells each message at its first call alone."""
        of = self.fact(call.func.value) if isinstance(call.func, ast.Attribute) else None
        kept = (getattr(d, "func", d) for d in function.decorator_list)
        return (of is not None and of.what == "object Logger") and any(
            file.names.resolve(d) in ("functools.lru_cache", "functools.cache") for d in kept
        )

    def _calls(self, call: Any, file: Any, function: Any, is_bound: Any) -> bool:
        done = self.purity.follow(file, function)
        if done.lookups and not self.file.is_own(self.function, call.func):
            raise Impure(f"`{function.name}` calls the module `{min(done.lookups)}`")
        self.lookups |= done.lookups
        self.messages |= done.messages
        for name in done.changes:
            given = argument(function, call, name, is_bound)
            if isinstance(given, ast.Name) and self._changed(call, given.id):
                continue
            if given is not None and not isinstance(
                given, (ast.Constant, ast.Dict, ast.List, ast.Call)
            ):
                raise Impure(f"`{function.name}` changes `{ast.unparse(given)}`")
        return True

    def _method(self, func: ast.Attribute) -> bool:
        """A method of a tensor, or of a list, dict or string; one that changes its object only of a
        local one."""
        if func.attr in CHANGES_CONTAINERS and not self.file.is_tensor(self.function, func.value):
            return isinstance(func.value, ast.Name) and self._changed(func, func.value.id)
        if func.attr in QUERIES:
            return True
        fact = self.fact(func.value)
        tensor = fact is None or fact.what in ("tensor", "tensors", "object Size", "none")
        return tensor and method_reads(func.attr)

    def _any_of(self, call: ast.Call) -> bool:
        """A method that the run did not reach: every one of its name in the project changes
        nothing."""
        if self.fact(call.func.value) is not None and self.fact(call.func.value).what != "none":
            return False
        found = self.project.methods(call.func.attr)
        return bool(found) and not any(self.purity.changes(*f) for f in found)


def function_reads(call: ast.Call, name: str) -> bool:
    """Whether a function of torch's computes, and reads what it is given at most."""
    return allows(MAY_READ, of_function(call, name))


def method_reads(name: str) -> bool:
    """The same of a tensor's method."""
    return name in METHOD and allows(MAY_READ, of_method(name))


def _is_builtin(func: Any, names: ImportedNames) -> bool:
    if not isinstance(func, ast.Name) or func.id in names.bound:
        return False
    known = getattr(builtins, func.id, None)
    return func.id in AHEAD_BUILTINS or (
        isinstance(known, type) and issubclass(known, BaseException)
    )


def _compared_with_none(node: Any) -> bool:
    return (
        isinstance(node, ast.Compare)
        and all(isinstance(o, (ast.Is, ast.IsNot)) for o in node.ops)
        and all(isinstance(c, ast.Constant) for c in node.comparators)
    )


def root(node: ast.expr) -> Any:
    """The name that a chain of attributes and items begins with; None where it is something
    else."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def bound(function: ast.FunctionDef) -> set[str]:
    """The names that the function binds itself, and its own `**kwargs`: what it alone holds."""
    stores = {
        n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    return stores | ({function.args.kwarg.arg} if function.args.kwarg else set())


def parameters(function: ast.FunctionDef) -> set[str]:
    args = function.args
    every = [
        *args.posonlyargs,
        *args.args,
        *args.kwonlyargs,
        *filter(None, (args.vararg, args.kwarg)),
    ]
    return {a.arg for a in every}


def argument(function: Any, call: Any, name: str, is_bound: Any) -> Any:
    """What `call` gives for the parameter `name`; `is_bound`: the first one is the object. None
    where it gives nothing."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    names = [a.arg for a in [*function.args.posonlyargs, *function.args.args]][is_bound:]
    place = names.index(name) if name in names else len(call.args)
    return call.args[place] if place < len(call.args) else None


def handed(function: Any, call: Any, name: str, is_bound: Any) -> list[Any]:
    """The expressions that `call` may give for the parameter `name`, `*args` and `**kwargs` too."""
    args = function.args
    if args.vararg is not None and name == args.vararg.arg:
        return list(call.args)
    if args.kwarg is not None and name == args.kwarg.arg:
        named = {a.arg for a in [*args.args, *args.kwonlyargs]}
        return [k.value for k in call.keywords if k.arg not in named]
    given = argument(function, call, name, is_bound)
    return [given] if given is not None else []


_PLAIN = ("staticmethod", "classmethod", "property", "abstractmethod", "abc.abstractmethod")


def _is_plain(decorator: ast.expr) -> bool:
    return ast.unparse(decorator) in _PLAIN
