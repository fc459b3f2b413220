"""What one file says to the rest of the project: its imports, its classes with what their
attributes hold, its functions with what they name. Small, so that processes can exchange it.

What is named is kept as a *reference*, one string: `self.block.run` (from an attribute of the
method's object), `:helper` (a name of the file's own top level), `torch.nn.Linear` or `.utils.f`
(by the imports); `:make()` for what a call gives."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ...rewriter.analysis.import_names import ImportedNames, by_type, dotted
from ...rewriter.analysis.tree_walk import children
from .definitions import COMPILE, Class, FileProgram, Function, last_name

_MOST_CALLS = 4  # of one reference in one function: what its arguments are is asked of these
_MODULE = ("torch.nn.Module", "torch.nn.modules.module.Module")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_DEEPEST, _MOST_TYPES = 4, 12  # attributes in a row that are followed; what one name may stand for
_FOREIGN = frozenset("torch numpy math einops typing functools itertools collections".split())
_BINDING = (ast.Assign, ast.AnnAssign, ast.For, ast.AsyncFor, ast.comprehension, ast.withitem)
_BINDING += (ast.NamedExpr,)
_NAMES: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Mention:
    """A reference in a function, and where: its first line and last column; `called` if a call
    stands there, whose place it is then."""

    reference: str
    line: int
    column: int
    called: bool


@dataclass(frozen=True)
class FunctionSummary:
    """`cls`: the qualified name of the class whose object its `self` is. `decorators`: those of the
    project. `drives`: it is given a module to run."""

    name: str
    line: int
    cls: str = ""
    mentions: tuple[Mention, ...] = ()
    inner: tuple[str, ...] = ()
    returns: frozenset[str] = _NAMES
    allowed: bool = True
    drives: bool = False
    decorators: tuple[Mention, ...] = ()


@dataclass(frozen=True)
class ClassSummary:
    name: str
    bases: tuple[str, ...] = ()
    methods: frozenset[str] = _NAMES
    attributes: dict[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class CompileSite:
    """A place at which something is compiled: by what references, inside of which class. `method`:
    as `module.compile()`, of which the name alone tells nothing."""

    line: int
    references: frozenset[str]
    cls: str = ""
    method: bool = False


@dataclass(frozen=True)
class HandledCall:
    """A call, inside of the class `cls`, of which the code around handles `exceptions`, and goes on
    ("" for all)."""

    reference: str
    cls: str
    exceptions: frozenset[str]


@dataclass(frozen=True)
class FileSummary:
    path: str
    functions: dict[str, FunctionSummary] = field(default_factory=dict)
    classes: dict[str, ClassSummary] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    stars: tuple[str, ...] = ()
    assigned: dict[str, frozenset[str]] = field(default_factory=dict)
    tables: dict[str, frozenset[str]] = field(default_factory=dict)  # of functions or classes
    sites: tuple[CompileSite, ...] = ()
    handled: tuple[HandledCall, ...] = ()
    stamp: str = ""


def summary(program: FileProgram, path: str, stamp: str = "") -> FileSummary:
    return _Reader(program, path, stamp).summary()


def read_program(tree: ast.Module) -> FileProgram:
    index = by_type(tree)
    return FileProgram(tree, ImportedNames(tree, index), index)


class _Reader:
    def __init__(self, program: FileProgram, path: str, stamp: str) -> None:
        self.program, self.names, self.path, self.stamp = program, program.names, path, stamp
        self.own = set(program.top) | set(program.classes)
        self.attributes: dict[str, dict[str, set[str]]] = {}
        self.sites: list[CompileSite] = []
        self.handled: list[HandledCall] = []

    def summary(self) -> FileSummary:
        program, assigned, tables = self.program, {}, {}
        level = _Scope(self, None, None)
        for node in program.tree.body:
            for target, value in _bound(node):
                if isinstance(target, ast.Name) and isinstance(node, (ast.Assign, ast.AnnAssign)):
                    assigned[target.id] = frozenset(level.references(value))
                    if isinstance(value, (ast.Dict, ast.List, ast.Tuple)):
                        tables[target.id] = assigned[target.id]
        self.own |= set(assigned)
        level.read(_outside(program.tree))
        functions = {f.qualified: self._function(f) for f in program.functions}
        classes = {c.qualified: self._class(c) for c in program.classes.values()}
        stars = tuple(
            "." * n.level + (n.module or "")
            for n in program.index.get(ast.ImportFrom, ())
            if any(a.name == "*" for a in n.names)
        )
        imports = {k: v for k, v in self.names.aliases.items() if k != "*"}
        found = (functions, classes, imports, stars, assigned, tables, tuple(self.sites))
        return FileSummary(self.path, *found, tuple(self.handled), self.stamp)

    def _class(self, cls: Class) -> ClassSummary:
        level = _Scope(self, None, None)
        bases = [self._base(b, level) for b in cls.node.bases]
        kept = self.attributes.get(cls.qualified, {})
        for statement in cls.node.body:  # `block = Block`, `config: Config` of a dataclass
            for target, value in _bound(statement):
                if isinstance(target, ast.Name):
                    kept.setdefault(target.id, set()).update(level.references(value))
        attributes = {name: frozenset(found) for name, found in kept.items() if found}
        return ClassSummary(cls.qualified, tuple(bases), frozenset(cls.methods), attributes)

    def _base(self, node: ast.expr, level: _Scope) -> str:
        """The reference of a base class, without what it is subscripted with."""
        node = node.value if isinstance(node, ast.Subscript) else node
        found = level.references(node) if isinstance(node, (ast.Name, ast.Attribute)) else ()
        return self.names.resolve(node) or min(found, default="")

    def _function(self, function: Function) -> FunctionSummary:
        owner = function.owner
        scope = _Scope(self, function, owner)
        scope.read([n for s in function.node.body for n in _inside(s)])
        for decorator in function.node.decorator_list:
            if self.program.is_compile(decorator):
                self._site(function.node.lineno, {f":{function.qualified}"}, None)
        mentions = tuple(m for found in scope.mentions.values() for m in found)
        inner = tuple(f.qualified for f in self.program.inner(function))
        returns = frozenset(scope.returned | scope.annotated(function.node.returns))
        allowed = self.program.may_be_captured(function)
        line, cls = function.node.lineno, owner.qualified if owner else ""
        name, drives = function.qualified, _drives(function, scope)
        decorators = tuple(self._decorators(function))
        return FunctionSummary(
            name, line, cls, mentions, inner, returns, allowed, drives, decorators
        )

    def _decorators(self, function: Function) -> Iterator[Mention]:
        around = _Scope(self, function.outer, function.outer.owner if function.outer else None)
        for node in function.node.decorator_list:
            called = isinstance(node, ast.Call)
            for reference in around.references(node.func if called else node):
                text = f"{reference}()" if called else reference
                yield Mention(text, function.node.lineno, node.end_col_offset or 0, False)

    def nested(self, function: Function) -> dict[str, str]:
        """{name: qualified name} of the functions that stand in a function."""
        return {f.name: f.qualified for f in self.program.inner(function)}

    def _site(self, line: int, found: set[str], owner: Class | None, method: bool = False) -> None:
        cls = owner.qualified if owner else ""
        self.sites.append(CompileSite(line, frozenset(found), cls, method))

    def compiled(self, node: ast.Call, scope: _Scope) -> None:
        """Notes a call that compiles something."""
        if node.args and self.program.is_compile(node.func):
            self._site(node.lineno, scope.references(node.args[0]), scope.owner)
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "compile":
            found = scope.references(node.func.value)
            if found and self.names.resolve(node.func) not in COMPILE:
                self._site(node.lineno, found, scope.owner, method=True)


class _Scope:
    """The references of one function, or of a file's top level."""

    def __init__(self, reader: _Reader, function: Function | None, owner: Class | None) -> None:
        self.reader, self.function, self.owner = reader, function, owner
        self.locals: dict[str, set[str]] = {}
        self.mentions: dict[str, list[Mention]] = {}
        self.returned: set[str] = set()
        self.known: dict[ast.AST, set[str]] | None = None  # of each chain, once all is bound
        self.selves = _selves(function)
        if function is not None:
            args = function.node.args
            for arg in [*args.posonlyargs, *args.args, *args.kwonlyargs]:
                if arg.arg not in self.selves:
                    self.locals[arg.arg] = self.annotated(arg.annotation)

    def annotated(self, node: ast.expr | None) -> set[str]:
        """What an annotation names, one in quotes as well."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                node = ast.parse(node.value, mode="eval").body
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return set()
        return self.references(node) if node is not None else set()

    def read(self, nodes: list[ast.AST]) -> None:
        by_type: dict[type, list[Any]] = {}
        for node in nodes:
            by_type.setdefault(type(node), []).append(node)
        binding = [n for kind in _BINDING for n in by_type.get(kind, ())]
        for node in sorted(binding, key=_line):
            for target, value in _bound(node):
                self._bind(target, self.references(value))
        self.known = {}
        calls, attributes = by_type.get(ast.Call, []), by_type.get(ast.Attribute, [])
        called, inner = {n.func: n for n in calls}, {n.value for n in attributes}
        for node in reversed(attributes):  # inner ones first: a chain of calls may be long
            if isinstance(node.value, ast.Call):
                self._chains(node)
        for node in [*by_type.get(ast.Name, ()), *attributes]:
            if node not in inner and isinstance(node.ctx, ast.Load):
                self._mention(node, called.get(node))
        for node in calls:
            self.reader.compiled(node, self)
            if is_super(node.func):
                self._note(f"super.{node.func.attr}", node, True)
        for node in by_type.get(ast.Return, ()):
            if isinstance(node.value, (ast.Call, ast.Name)):
                self.returned |= self.references(node.value)
        for kind in (ast.Try, ast.With):
            for node in by_type.get(kind, ()):
                self._handled(node.body, _handled_by(node, self.reader.names))

    def _handled(self, body: list[ast.stmt], exceptions: frozenset[str]) -> None:
        """Notes the calls in a block of which exceptions are handled."""
        calls = (n for s in body for n in _inside(s) if isinstance(n, ast.Call))
        owner = self.owner.qualified if self.owner else ""
        for call in calls if exceptions else ():
            above = {f"super.{call.func.attr}"} if is_super(call.func) else set()
            for reference in above | self._chains(call.func):
                self.reader.handled.append(HandledCall(reference, owner, exceptions))

    def _bind(self, target: ast.AST, found: set[str]) -> None:
        if isinstance(target, ast.Name):
            known = self.locals.setdefault(target.id, set())
            if len(known) < _MOST_TYPES:
                self.locals[target.id] = known | found
        elif isinstance(target, (ast.Tuple, ast.List)):
            for part in target.elts:
                self._bind(part, found)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, found)
        elif isinstance(target, ast.Attribute) and self.owner is not None and found:
            own = isinstance(target.value, ast.Name) and target.value.id in self.selves
            kept = self.reader.attributes.setdefault(self.owner.qualified, {}) if own else {}
            kept.setdefault(target.attr, set()).update(found - {f"self.{target.attr}"})

    def _mention(self, node: ast.expr, call: ast.Call | None) -> None:
        for reference in self._chains(node):
            self._note(reference, call or node, call is not None)

    def _note(self, reference: str, node: ast.AST, called: bool) -> None:
        known = self.mentions.setdefault(reference, [])
        if len(known) < _MOST_CALLS and (called or not known):
            column = node.end_col_offset or 0
            known.append(Mention(reference, node.lineno, column, called))

    def _chains(self, node: ast.expr) -> set[str]:
        """The references of a chain of attributes."""
        if self.known is None:
            return self._chain(node)
        if node not in self.known:
            self.known[node] = self._chain(node)
        return self.known[node]

    def _chain(self, node: ast.expr) -> set[str]:
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if not isinstance(node, ast.Attribute):
            return self.references(node)
        parts = dotted(node)
        if parts and parts[0] in self.selves:
            return {".".join(["self", *parts[1:]])}
        of = self._chains(node.value)
        return {f"{r}.{node.attr}" for r in of if r.count(".") < _DEEPEST and _is_own(r)}

    def _name(self, name: str) -> set[str]:
        if name in self.locals:
            return self.locals[name]
        if name in self.selves:
            return {"self"}
        around = self.function
        while around is not None:
            if name in self.reader.nested(around):
                return {f":{self.reader.nested(around)[name]}"}
            around = around.outer
        if name in self.reader.own:
            return {f":{name}"}
        full = self.reader.names.aliases.get(name)
        return {full} if full and _is_own(full) else set()

    def references(self, node: ast.AST | None) -> set[str]:
        """All that an expression names: what it gives may be an instance of any of it."""
        found: set[str] = set()
        todo = [node] if node is not None else []
        while todo:
            each = todo.pop()
            if isinstance(each, (ast.Name, ast.Attribute)):
                found |= self._chains(each)
            elif isinstance(each, ast.Call):
                found |= {f"{r}()" for r in self.references(each.func) if not r.endswith("()")}
                todo += [*each.args, *(k.value for k in each.keywords)]
            elif isinstance(each, ast.Lambda):
                todo.append(each.body)
            elif not isinstance(each, ast.Constant):
                todo += children(each)
        return found


def _is_own(reference: str) -> bool:
    """Whether a reference may lead to code of the project."""
    return reference.split(".")[0] not in _FOREIGN


def _selves(function: Function | None) -> frozenset[str]:
    """The names that stand for the object of the method, in a function within it too."""
    found = set()
    while function is not None:
        found |= {function.self_name} if function.self_name else set()
        function = function.outer
    return frozenset(found)


def _line(node: ast.AST) -> int:
    at = getattr(node, "target", None) or getattr(node, "optional_vars", None) or node
    return getattr(at, "lineno", 0)


def is_super(func: ast.expr) -> bool:
    called = func.value if isinstance(func, ast.Attribute) else None
    return (
        isinstance(called, ast.Call)
        and isinstance(called.func, ast.Name)
        and called.func.id == "super"
    )


def _handled_by(node: Any, names: ImportedNames) -> frozenset[str]:
    """The exceptions after which a `try` or a `with` goes on, by their last names."""
    types: list[ast.expr | None] = []
    if isinstance(node, ast.Try):
        going = (h for h in node.handlers if not isinstance(h.body[-1], ast.Raise))
        types += [t for h in going for t in getattr(h.type, "elts", [h.type])]
    else:
        calls = (i.context_expr for i in node.items if isinstance(i.context_expr, ast.Call))
        types += [
            a for c in calls if names.resolve(c.func) == "contextlib.suppress" for a in c.args
        ]
    return frozenset("" if t is None else last_name(t) for t in types)


def _bound(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """(target, what it is bound to) of a statement."""
    if isinstance(node, ast.Assign):
        pairs = [(t, node.value) for t in node.targets]
        for target, value in pairs:
            yield from _paired(target, value)
    elif isinstance(node, ast.AnnAssign):
        yield node.target, node.annotation
        if node.value is not None:
            yield node.target, node.value
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield node.target, node.iter
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr
    elif isinstance(node, ast.NamedExpr):
        yield node.target, node.value


def _paired(target: ast.AST, value: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    rows = (ast.Tuple, ast.List)
    if isinstance(target, rows) and isinstance(value, rows) and len(target.elts) == len(value.elts):
        yield from zip(target.elts, value.elts, strict=True)
    else:
        yield target, value


def _inside(node: ast.AST) -> list[ast.AST]:
    """The nodes of a statement that run with the function around it."""
    if isinstance(node, _DEFINITIONS):
        return []
    found = [node]
    for each in found:
        found += [n for n in children(each) if n.__class__ not in _DEFINITIONS]
    return found


def _outside(tree: ast.Module) -> list[ast.AST]:
    """The nodes of a file that stand in no function."""
    return [n for statement in tree.body for n in _inside(statement)]


def _drives(function: Function, scope: _Scope) -> bool:
    """Whether it is given a module, as what explains or measures a model is."""
    args = function.node.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    resolve = scope.reader.names.resolve
    return any(resolve(a.annotation) in _MODULE for a in every if a.annotation is not None)
