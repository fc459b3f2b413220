"""Which names of a function may stand for one object, or for tensors that share memory, and what is
written into them."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...lowering.opinfo import having
from ...rewriter.analysis.call_effects import CHANGES_CONTAINERS, NEW_BUILTINS
from ...rewriter.analysis.torch_facts import METHOD
from .module_state import ALIASES, base, changes
from .purity import bound, handed, parameters

if TYPE_CHECKING:
    from .project import File


_PLAIN = ("int", "float", "bool", "str", "none", "size")
_SHARED = (
    "object list",
    "object dict",
    "object set",
    "tensors",
    "object defaultdict",
    "object OrderedDict",
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NEW = ("new_zeros", "new_ones", "new_full", "new_empty")
_MAKERS = having("new_memory")
_MOVES = ("data", "set_", "swap", "grad")  # after which a tensor may have other memory
_DEPTH = 4  # calls that are followed


class Aliases:
    """Of one function; its own object, `self`, is left out. What shares memory is a group of names;
    what was taken from an object, or put into one, is a part of it."""

    def __init__(self, file: File, function: ast.FunctionDef) -> None:
        self.file, self.function, self.project = file, function, file.project
        self.me, self.groups, self.wholes = file.self_name(function), {}, {}
        for node in ast.walk(function):
            for names, value in _given(node):
                self._relate(
                    names, self.objects_of(value), isinstance(value, ast.Name), _takes(value)
                )
            for owner, value in self._kept(node):
                self._relate(self.objects_of(value), {owner}, False, True)

    def of(self, name: str) -> set[str]:
        """The names that may stand for what shares memory with it: tensors of another dtype do
        not."""
        dtype = self._dtype(name)
        found = {
            n
            for n in self.groups.get(name, {name})
            if dtype is None or self._dtype(n) in (None, dtype)
        }
        return found - self._given_tensors if name in self._new_tensors else found

    @cached_property
    def _given_tensors(self) -> set[str]:
        """Parameters that stand for the tensors which the caller gave, with their memory, all the
        time: nothing that is made here shares it."""
        nodes = list(ast.walk(self.function))
        stores = {
            base(n) if isinstance(n, ast.Attribute) else n.id
            for n in nodes
            if isinstance(n, (ast.Name, ast.Attribute)) and not isinstance(n.ctx, ast.Load)
        }
        moved = {base(n.value) for n in nodes if isinstance(n, ast.Attribute) and n.attr in _MOVES}
        given = {a.arg for a in [*self.function.args.args, *self.function.args.kwonlyargs]}
        return {n for n in given - stores - moved if self._is_tensor_name(n)}

    @cached_property
    def _new_tensors(self) -> set[str]:
        """Names that are bound to tensors made at their binding alone."""
        found = bound(self.function)
        values = [(n, v) for part in ast.walk(self.function) for n, v in _given(part)]
        other = {n for names, value in values if not self._makes(value) for n in names}
        made = {n for names, value in values if len(names) == 1 for n in names}
        return (found & made) - other - parameters(self.function)

    def _makes(self, value: ast.expr) -> bool:
        """Whether it is a call that gives a tensor with memory of its own."""
        if not isinstance(value, ast.Call) or any(k.arg in (None, "out") for k in value.keywords):
            return False
        name = self.file.names.resolve(value.func) or ""
        last = name.rpartition(".")[2]
        of_torch = name.count(".") == 1 and name.startswith("torch.") and last in _MAKERS
        return of_torch or (isinstance(value.func, ast.Attribute) and value.func.attr in _NEW)

    def around(self, name: str) -> set[str]:
        """The names of objects that hold it; what is done to items of an object changes no
        tensor."""
        found, todo = set(), [name]
        while todo:
            part = todo.pop()
            if part not in found:
                found.add(part)
                todo += (n for n in self.wholes.get(part, ()) if not self._is_tensor_name(n))
        return found

    def affected(self, statement: ast.stmt) -> set[str]:
        """The names that stand for something else in part after a statement has written."""
        found = set()
        for name, memory in self.by_statement(statement).items():
            found |= self.of(name) if memory else self.around(name)
        return found

    def _is_tensor_name(self, name: str) -> bool:
        fact = self.file.fact(self.function, ast.Name(name, ast.Load()))
        return fact is not None and fact.what == "tensor"

    def _dtype(self, name: str) -> Any:
        return (
            self.file.fact(self.function, ast.Name(name, ast.Load())).dtype
            if self._is_tensor_name(name)
            else None
        )

    def _relate(self, parts: set[str], wholes: set[str], both: bool, taken: bool) -> None:
        names = (parts | wholes) - {None, self.me}
        joined = set().union(names, *(self.groups.get(n, ()) for n in names))
        for name in joined:
            self.groups[name] = joined
        for name in parts & names if taken else ():
            self.wholes.setdefault(name, set()).update(wholes & names)
        for name in wholes & names if both else ():
            self.wholes.setdefault(name, set()).update(parts & names)

    def _kept(self, node: ast.AST) -> Iterator[Any]:
        """(name, value) where the value goes into an object that the name stands for."""
        if isinstance(node, ast.Assign):
            stores = (t for t in node.targets if isinstance(t, (ast.Subscript, ast.Attribute)))
            yield from ((base(t), node.value) for t in stores if not self._is_tensor(t))
        if isinstance(node, ast.AugAssign):
            yield base(node.target), node.value
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in CHANGES_CONTAINERS
        ):
            yield from ((base(node.func.value), a) for a in node.args)

    def _is_tensor(self, node: Any) -> bool:
        fact = self.file.fact(self.function, node.value)
        return isinstance(node, ast.Subscript) and fact is not None and fact.what == "tensor"

    def objects_of(self, node: ast.AST) -> set[str]:
        """The names whose objects an expression's value may be, hold, or share memory with."""
        fact = self.file.fact(self.function, node) if isinstance(node, ast.expr) else None
        if fact is not None and fact.what in _PLAIN and not fact.optional:
            return set()
        found = self._objects_of(node, fact)
        dtype = fact.dtype if fact is not None and fact.what == "tensor" else None
        return {n for n in found if dtype is None or self._dtype(n) in (None, dtype)}

    def _objects_of(self, node: ast.AST, fact: Any) -> set[str]:
        if isinstance(node, ast.Name):
            return {node.id} - {self.me}
        if isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
            return self.objects_of(node.value)
        if isinstance(node, ast.Call):
            return self._result(node)
        if (
            isinstance(node, (ast.BinOp, ast.UnaryOp))
            and fact is not None
            and fact.what == "tensor"
        ):
            return set()
        if isinstance(node, (ast.Compare, ast.JoinedStr, ast.Constant)):
            return set()
        if isinstance(node, ast.IfExp):
            return self.objects_of(node.body) | self.objects_of(node.orelse)
        return set().union(*(self.objects_of(n) for n in ast.iter_child_nodes(node)))

    def _result(self, call: ast.Call) -> set[str]:
        """Of what a call gives: new tensors are nobody's."""
        name = self.file.names.resolve(call.func) or ""
        last = name.rpartition(".")[2]
        given = set().union(
            *(self.objects_of(a) for a in [*call.args, *(k.value for k in call.keywords)])
        )
        if name.startswith("torch."):
            return given if last in ALIASES or last.endswith("_") else set()
        if isinstance(call.func, ast.Name):
            return set() if call.func.id in NEW_BUILTINS and name == call.func.id else given
        known = self._called(call)
        if known:
            return self._returned(call, known)
        if not isinstance(call.func, ast.Attribute):
            return given | self.objects_of(call.func)
        method = call.func.attr
        new = method in METHOD and method not in ALIASES and not method.endswith("_")
        return set() if new else given | self.objects_of(call.func.value)

    def _named(self, name: str) -> list[Any]:
        return [n for n in self.file.functions.values() if n.name == name]

    def _class(self, function: Any) -> Any:
        owner = self.file.cls(function)
        return owner.name if owner is not None else None

    def _of_tensor(self, func: ast.Attribute) -> bool:
        """Whether a method is a tensor's, as far as can be told."""
        fact = self.file.fact(self.function, func.value)
        if fact is not None:
            return fact.what == "tensor"
        return func.attr in METHOD and not (
            isinstance(func.value, ast.Name) and func.value.id == self.me
        )

    # What is written

    @cached_property
    def all_written(self) -> Any:
        """The names whose objects some statement writes into, by any name."""
        statements = [
            n for n in ast.walk(self.function) if isinstance(n, ast.stmt) and n is not self.function
        ]
        return set().union(*map(self.affected, statements))

    def by_statement(self, statement: ast.stmt) -> dict[str, bool]:
        """{name: whether its memory, not its items alone, is written} of a statement, those of its
        blocks aside; of a nested function, all that it may."""
        inner = set()
        if isinstance(statement, _FUNCTIONS):
            inner = {a.arg for a in ast.walk(statement.args) if isinstance(a, ast.arg)}
            found = [pair for s in statement.body for pair in self.written(s)]
            found += [pair for n in ast.walk(statement) for pair in self._added(n)]
        else:
            found = [
                *self._added(statement),
                *(pair for e in own(statement) for pair in self.written(e)),
            ]
        names = {}
        for name, memory in found:
            if name not in (None, self.me) and name not in inner:
                names[name] = names.get(name, False) or memory
        return names

    def _added(self, node: Any) -> Iterator[Any]:
        """`x += …`: of a number or a text it makes another."""
        if isinstance(node, ast.AugAssign):
            loaded = ast.parse(ast.unparse(node.target), mode="eval").body
            fact = self.file.fact(self.function, loaded)
            if fact is None or fact.what not in _PLAIN:
                yield base(node.target), fact is None or fact.what == "tensor"

    def written(self, node: Any) -> Iterator[tuple[str, bool]]:
        """(name, whether its memory is written) of all that `node`, a statement's own part, writes
        into."""
        for part in ast.walk(node):
            if isinstance(part, (ast.Subscript, ast.Attribute)) and not isinstance(
                part.ctx, ast.Load
            ):
                held = self.objects_of(part.value) if isinstance(part.value, ast.Call) else ()
                yield from ((n, self._in_memory(part)) for n in {_holder(part), *held})
            elif isinstance(part, ast.Call):
                yield from self._by_call(part)

    def _in_memory(self, node: Any) -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr == "data"
        fact = self.file.fact(self.function, node.value)
        named = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
        return not named and (fact is None or fact.what == "tensor")

    def _by_call(self, call: ast.Call) -> Iterator[tuple[str, bool]]:
        if isinstance(call.func, ast.Attribute) and self._changes(call.func):
            yield from (
                (n, call.func.attr not in CHANGES_CONTAINERS) for n in self._receivers(call.func)
            )
        name = self.file.names.resolve(call.func) or ""
        last, plain = name.rpartition(".")[2], isinstance(call.func, ast.Name)
        first = (
            call.args[0]
            if call.args
            else next((k.value for k in call.keywords if k.arg == "input"), None)
        )
        if first is not None and plain and call.func.id in ("next", "setattr", "delattr"):
            yield base(first), False
        into = [k.value for k in call.keywords if k.arg == "out"]
        in_place = any(k.arg == "inplace" and not _is_false(k.value) for k in call.keywords)
        writes = name.startswith("torch.") and last.endswith("_") and not last.endswith("__")
        into += [first] if first is not None and (in_place or writes) else []
        for target in into:
            yield from (
                (base(t), True)
                for t in (target.elts if isinstance(target, ast.Tuple) else [target])
            )
        if not name.startswith("torch.") and not (plain and hasattr(builtins, call.func.id)):
            yield from self._by_function(call)

    def _changes(self, func: ast.Attribute) -> bool:
        """Whether a method may change its object: `add` is no tensor's way to do so."""
        is_pure = func.attr in CHANGES_CONTAINERS and self.file.is_tensor(self.function, func.value)
        return changes(func.attr) and not is_pure

    def _receivers(self, func: ast.Attribute) -> set[Any]:
        """The names of what a method changes: of `torch.split(s, 1)[0].zero_()` also `s`."""
        return {
            base(func.value),
            *(self.objects_of(func.value) if func.attr not in CHANGES_CONTAINERS else ()),
        }

    def _by_function(self, call: ast.Call) -> Iterator[Any]:
        """What the function is seen to write into; of one that is not, lists and the like that are
        handed on."""
        known = self._called(call)
        for given in [] if known else [*call.args, *(k.value for k in call.keywords if k.arg)]:
            fact = self.file.fact(self.function, given)
            if isinstance(given, ast.Name) and fact is not None and fact.what in _SHARED:
                yield given.id, False
        for file, function, is_bound in known:
            for name, memory in written_parameters(file, function).items():
                for given in handed(function, call, name, is_bound):
                    yield from ((n, memory) for n in {base(given), *self.objects_of(given)})

    def _returned(self, call: Any, known: Any) -> Any:
        """The names whose objects what is called may give back."""
        found = set()
        for file, function, is_bound in known:
            for name in returned_parameters(file, function):
                found |= set().union(*map(self.objects_of, handed(function, call, name, is_bound)))
        return found

    def _called(self, call: ast.Call) -> list[Any]:
        """(file, function, whether it is bound) of what may be called: of what the run saw, else of
        this file by name."""
        fact = self.file.fact(self.function, call.func)
        if fact is not None and fact.what in ("function", "method"):
            found = self.project.definition(fact.cls)
            return [(*found, fact.what == "method")] if found else []
        if fact is not None and fact.what == "module":
            return [(f, n, True) for f, n in self.project.forwards(fact.cls)]
        if isinstance(call.func, ast.Attribute) and fact is None and not self._of_tensor(call.func):
            return [(self.file, n, self._class(n) is not None) for n in self._named(call.func.attr)]
        named = self.file.functions.get(call.func.id) if isinstance(call.func, ast.Name) else None
        return [(self.file, named, False)] if named is not None else []


def aliases_of(file: File, function: ast.FunctionDef) -> Aliases:
    """The function's Aliases, made once."""
    known = file.project.aliases
    if (file.path, function) not in known:
        known[file.path, function] = Aliases(file, function)
    return known[file.path, function]


def written_parameters(file: Any, function: Any) -> Any:
    """{parameter: whether its memory is written} of those into whose objects a function writes, by
    any of their names."""
    return _followed(file, function, "written", _written, {})


def returned_parameters(file: Any, function: Any) -> Any:
    """The parameters whose objects a function may give back."""
    return _followed(file, function, "returned", _given_back, frozenset())


def _followed(file: Any, function: Any, what: Any, look: Any, nothing: Any) -> Any:
    project, key = file.project, (file.path, function, what)
    if key in project.written or len(project.followed) >= _DEPTH:
        return project.written.get(key, nothing)
    project.written[key] = nothing  # of itself
    project.followed.append(function)
    project.written[key] = look(aliases_of(file, function))
    project.followed.pop()
    return project.written[key]


def _written(aliases: Any) -> Any:
    found, of = {}, parameters(aliases.function) - {aliases.me}
    for statement in (
        n
        for n in ast.walk(aliases.function)
        if isinstance(n, ast.stmt) and n is not aliases.function
    ):
        for name, memory in aliases.by_statement(statement).items():
            for other in of & (aliases.of(name) if memory else aliases.around(name)):
                found[other] = found.get(other, False) or memory
    return found


def _given_back(aliases: Any) -> Any:
    values = [
        n.value
        for n in ast.walk(aliases.function)
        if isinstance(n, ast.Return) and n.value is not None
    ]
    names = set().union(*map(aliases.objects_of, values))
    return parameters(aliases.function) & set().union(*map(aliases.of, names))


def _given(node: ast.AST) -> Iterator[tuple[set[str], ast.expr]]:
    """(names, value) of what binds names to a value."""
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from _pairs(target, node.value)
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield from _items(node.target, node.iter)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield _names(node.optional_vars), node.context_expr


def _takes(value: ast.expr) -> bool:
    """Whether a value is an object itself or one of its items: what a function makes of it is
    another."""
    func = getattr(value, "func", None)
    accessor = isinstance(func, ast.Attribute) and func.attr in ALIASES
    return func is None or accessor or (isinstance(func, ast.Name) and hasattr(builtins, func.id))


def _pairs(target: Any, value: ast.expr) -> Iterator[tuple[set[str], ast.expr]]:
    """One by one, where both sides list as many."""
    listed = (ast.Tuple, ast.List)
    plain = isinstance(target, listed) and not any(isinstance(t, ast.Starred) for t in target.elts)
    if plain and isinstance(value, listed) and len(target.elts) == len(value.elts):
        for one, other in zip(target.elts, value.elts, strict=True):
            yield from _pairs(one, other)
    else:
        yield _names(target), value


def _items(target: Any, iterated: ast.expr) -> Iterator[tuple[set[str], ast.expr]]:
    """Of a loop over `zip(…)` or `enumerate(…)` each name by its own."""
    name = (
        iterated.func.id
        if isinstance(iterated, ast.Call) and isinstance(iterated.func, ast.Name)
        else ""
    )
    parts = target.elts if isinstance(target, ast.Tuple) else []
    if name == "zip" and len(parts) == len(iterated.args):
        for part, value in zip(parts, iterated.args, strict=True):
            yield from _items(part, value)
    elif name == "enumerate" and len(parts) == 2 and iterated.args:
        yield from _items(parts[1], iterated.args[0])
    else:
        yield _names(target), iterated


def _names(target: Any) -> set[str]:
    return {
        n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def _holder(node: Any) -> Any:
    """The name at the root of what is stored into; of `vars(x)[...]` that of `x`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "vars"
        and node.args
    ):
        node = node.args[0]
    return base(node)


def _is_false(node: Any) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def own(statement: ast.stmt) -> Iterator[Any]:
    """The expressions of a statement itself, not of the statements in it."""
    for name, value in ast.iter_fields(statement):
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.withitem):
                yield part
            if isinstance(part, ast.expr) and name != "annotation":
                yield part
