"""Which names of a function may stand for one object, or for tensors that share memory, and what is written into them."""

import ast
import builtins
from functools import cached_property

from ..kinds_tables import METHOD
from .purity import argument
from .state import ALIASES, CHANGES, base, changes

_PLAIN = ("int", "float", "bool", "str", "none", "size")
_MADE = frozenset("int float bool str len range sum abs round hash id isinstance hasattr print type any all".split())
_SHARED = ("object list", "object dict", "object set", "tensors", "object defaultdict", "object OrderedDict")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEPTH = 4  # calls that are followed


class Aliases:
    """Of one function: `of(name)` are the names that may hold what it holds; its own object, `self`, is left out."""

    def __init__(self, file, function):
        self.file, self.function, self.project = file, function, file.project
        self.me, self.groups = file.self_name(function), {}
        for node in ast.walk(function):
            for names, value in _given(node):
                self._join({*names, *self.held(value)})
            for owner, value in self._kept(node):
                self._join({owner, *self.held(value)})

    def of(self, name):
        return self.groups.get(name, {name})

    def _join(self, names):
        names = names - {None, self.me}
        joined = set().union(names, *(self.groups.get(n, ()) for n in names))
        for name in joined:
            self.groups[name] = joined

    def _kept(self, node):
        """(name, value) where the value goes into an object that the name stands for."""
        if isinstance(node, ast.Assign):
            stores = (t for t in node.targets if isinstance(t, (ast.Subscript, ast.Attribute)))
            yield from ((base(t), node.value) for t in stores if not self._is_tensor(t))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            yield from ((base(node.func.value), a) for a in node.args)

    def is_number(self, name):
        """Whether a name always stood for a number or a text: `+=` gives it another."""
        fact = self.file.fact(self.function, ast.Name(name.id, ast.Load()))
        return fact is not None and fact.what in _PLAIN

    def _is_tensor(self, node):
        fact = self.file.fact(self.function, node.value)
        return isinstance(node, ast.Subscript) and fact is not None and fact.what == "tensor"

    def held(self, node):
        """The names whose objects an expression's value may be, hold, or share memory with."""
        fact = self.file.fact(self.function, node) if isinstance(node, ast.expr) else None
        if fact is not None and fact.what in _PLAIN and not fact.optional:
            return set()
        if isinstance(node, ast.Name):
            return {node.id} - {self.me}
        if isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
            return self.held(node.value)
        if isinstance(node, ast.Call):
            return self._result(node)
        if isinstance(node, (ast.BinOp, ast.UnaryOp)) and fact is not None and fact.what == "tensor":
            return set()
        if isinstance(node, (ast.Compare, ast.JoinedStr, ast.Constant)):
            return set()
        if isinstance(node, ast.IfExp):
            return self.held(node.body) | self.held(node.orelse)
        return set().union(*(self.held(n) for n in ast.iter_child_nodes(node)))

    def _result(self, call):
        """Of what a call gives: new tensors are nobody's."""
        name = self.file.names.resolve(call.func) or ""
        last = name.rpartition(".")[2]
        given = set().union(*(self.held(a) for a in [*call.args, *(k.value for k in call.keywords)]))
        if name.startswith("torch."):
            return given if last in ALIASES or last.endswith("_") else set()
        if isinstance(call.func, ast.Name):
            return set() if call.func.id in _MADE and name == call.func.id else given
        if not isinstance(call.func, ast.Attribute):
            return given | self.held(call.func)
        method = call.func.attr
        new = method in METHOD and method not in ALIASES and not method.endswith("_")
        return set() if new else given | self.held(call.func.value)

    def _of_tensor(self, func):
        """Whether a method is a tensor's, as far as can be told."""
        fact = self.file.fact(self.function, func.value)
        if fact is not None:
            return fact.what == "tensor"
        return func.attr in METHOD and not (isinstance(func.value, ast.Name) and func.value.id == self.me)

    # What is written

    @cached_property
    def all_written(self):
        """The names whose objects some statement writes into, by any name."""
        statements = [n for n in ast.walk(self.function) if isinstance(n, ast.stmt) and n is not self.function]
        names = {n for s in statements for n in self.by_statement(s)} - {None, self.me}
        return set().union(*map(self.of, names))

    def written(self, node):
        """The names whose objects `node`, a statement's own part, writes into."""
        for part in ast.walk(node):
            if isinstance(part, (ast.Subscript, ast.Attribute)) and not isinstance(part.ctx, ast.Load):
                yield _holder(part)
            elif isinstance(part, ast.Call):
                yield from self._by_call(part)

    def by_statement(self, statement):
        """The names whose objects a statement writes into, those of its blocks aside; of a nested function, all that it may."""
        if isinstance(statement, _FUNCTIONS):
            inner = {a.arg for a in ast.walk(statement.args) if isinstance(a, ast.arg)}
            found = [n for s in statement.body for n in self.written(s)]
            added = (n.target.id for n in ast.walk(statement) if _adds(n))
            return {*found, *added} - inner
        adds = [statement.target.id] if _adds(statement) else []
        return {*adds, *(n for e in own(statement) for n in self.written(e))}

    def _by_call(self, call):
        if isinstance(call.func, ast.Attribute) and changes(call.func.attr):
            yield base(call.func.value)
        name = self.file.names.resolve(call.func) or ""
        last, plain = name.rpartition(".")[2], isinstance(call.func, ast.Name)
        first = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "input"), None)
        into = [k.value for k in call.keywords if k.arg == "out"]
        in_place = any(k.arg == "inplace" and not _is_false(k.value) for k in call.keywords)
        writes = name.startswith("torch.") and last.endswith("_") and not last.endswith("__")
        if first is not None and (in_place or writes or (plain and call.func.id in ("next", "setattr", "delattr"))):
            into.append(first)
        for target in into:
            yield from (base(t) for t in (target.elts if isinstance(target, ast.Tuple) else [target]))
        if not name.startswith("torch.") and not (plain and hasattr(builtins, call.func.id)):
            yield from self._by_function(call)

    def _by_function(self, call):
        """Lists and the like that are handed on; tensors, where the function is seen to write into them."""
        for given in [*call.args, *(k.value for k in call.keywords if k.arg)]:
            fact = self.file.fact(self.function, given)
            if isinstance(given, ast.Name) and fact is not None and fact.what in _SHARED:
                yield given.id
        for file, function, is_bound in self._called(call):
            for name in written_parameters(file, function):
                given = argument(function, call, name, is_bound)
                if given is not None:
                    yield base(given)

    def _called(self, call):
        """(file, function, whether it is bound) of what may be called: of what the run saw, else by name."""
        fact = self.file.fact(self.function, call.func)
        if fact is not None and fact.what in ("function", "method"):
            found = self.project.definition(fact.cls)
            return [(*found, fact.what == "method")] if found else []
        if fact is not None and fact.what == "module":
            found = [(f, n, f.cls(n)) for f, n in self.project.methods("forward")]
            return [(f, n, True) for f, n, owner in found if owner is not None and owner.name == fact.cls]
        if isinstance(call.func, ast.Attribute) and fact is None and not self._of_tensor(call.func):
            return [(f, n, f.self_name(n) is not None) for f, n in self.project.methods(call.func.attr)]
        named = self.file.functions.get(call.func.id) if isinstance(call.func, ast.Name) else None
        return [(self.file, named, False)] if named is not None else []


def aliases_of(file, function):
    """The function's Aliases, made once."""
    known = file.project.aliases
    if (file.path, function) not in known:
        known[file.path, function] = Aliases(file, function)
    return known[file.path, function]


def written_parameters(file, function):
    """The parameters into whose objects a function writes, by any of their names."""
    project, key = file.project, (file.path, function)
    known = project.written
    if key in known or len(project.followed) >= _DEPTH:
        return known.get(key, frozenset())
    known[key] = frozenset()  # of itself
    project.followed.append(function)
    aliases = aliases_of(file, function)
    names = {n for s in function.body for n in aliases.written(s)} - {None}
    names |= {n.target.id for n in ast.walk(function) if _adds(n) and not aliases.is_number(n.target)}
    every = set().union(*map(aliases.of, names)) - {aliases.me}
    args = function.args
    known[key] = frozenset(a.arg for a in [*args.posonlyargs, *args.args, *args.kwonlyargs] if a.arg in every)
    project.followed.pop()
    return known[key]


def _given(node):
    """(names, value) of what binds names to a value."""
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield {n for t in targets for n in _names(t)}, node.value
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield _names(node.target), node.iter
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield _names(node.optional_vars), node.context_expr


def _names(target):
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _holder(node):
    """The name at the root of what is stored into; of `vars(x)[...]` that of `x`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "vars" and node.args:
        node = node.args[0]
    return base(node)


def _adds(node):
    return isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)


def _is_false(node):
    return isinstance(node, ast.Constant) and node.value is False


def own(statement):
    """The expressions of a statement itself, not of the statements in it."""
    for name, value in ast.iter_fields(statement):
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.withitem):
                yield part
            if isinstance(part, ast.expr) and name != "annotation":
                yield part
