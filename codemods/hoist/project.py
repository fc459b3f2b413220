"""The files of a traced run, as the planner sees them: functions by name and by place, parents, and
what was seen."""

from __future__ import annotations

import ast
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...rewriter.analysis.import_names import ImportedNames, by_type
from ...rewriter.source.regular_files import read
from ..trace.trace_facts import qualified

if TYPE_CHECKING:
    from ...rewriter.source.source_file import SourceFile
    from ..trace.trace_facts import TraceFacts


SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_MAX_FILES = 60
_INNER = ("<listcomp>", "<genexpr>", "<setcomp>", "<dictcomp>")


class File:
    """One file: its source, functions and facts."""

    def __init__(self, path: str, source: SourceFile, facts: TraceFacts, project: Project) -> None:
        self.path, self.source, self.facts, self.project = path, source, facts, project
        self.names_of = qualified(source.tree)
        self.functions = {name: node for node, name in self.names_of.items()}
        self.parents = {c: p for p in ast.walk(source.tree) for c in ast.iter_child_nodes(p)}

    @cached_property
    def names(self) -> ImportedNames:
        return ImportedNames(self.source.tree, by_type(self.source.tree))

    @cached_property
    def by_line(self) -> Any:
        """{line of the first decorator, or of the `def`: function}."""
        return {min([n.lineno, *(d.lineno for d in n.decorator_list)]): n for n in self.names_of}

    def fact(self, function: ast.FunctionDef, node: ast.expr) -> None:
        return self.facts.of(self.names_of.get(function, ""), node)

    def is_tensor(self, function: ast.FunctionDef, node: ast.expr) -> bool:
        """Whether the run saw a tensor there, or the elements of one are named, wherever that
        stands."""
        known = self.fact(function, node)
        inner = isinstance(node, ast.Subscript) and known is None
        return self.is_tensor(function, node.value) if inner else _is_tensor(known)

    def is_method(self, function: ast.FunctionDef) -> bool:
        static = any(
            isinstance(d, ast.Name) and d.id in ("staticmethod", "classmethod")
            for d in function.decorator_list
        )
        return isinstance(self.parents.get(function), ast.ClassDef) and not static

    def self_name(self, function: ast.FunctionDef) -> Any:
        """The name of a method's first parameter; None of other functions."""
        args = [*function.args.posonlyargs, *function.args.args]
        return args[0].arg if args and self.is_method(function) else None

    def is_own(self, function: ast.FunctionDef, node: ast.expr) -> bool:
        """Whether a node is an attribute of the object whose method the function is."""
        of = node.value if isinstance(node, ast.Attribute) else None
        return isinstance(of, ast.Name) and of.id == self.self_name(function)

    def sibling(self, function: ast.FunctionDef, node: Any) -> Any:
        """The method of the function's own class that `node`, an attribute of its object, names;
        None of another one."""
        if not self.is_own(function, node):
            return None
        return self.functions.get(f"{self.names_of[function].rpartition('.')[0]}.{node.attr}")

    def cls(self, function: ast.FunctionDef) -> Any:
        owner = self.parents.get(function)
        return owner if isinstance(owner, ast.ClassDef) else None

    def statement(self, node: ast.Call) -> ast.stmt:
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def expression(self, function: ast.FunctionDef, place: Any) -> Any:
        """The expression of `function` at (line, column, end line, end column), the widest of those
        that share it; at the place of an `if`, its test."""
        for node in ast.walk(function):
            if isinstance(node, (ast.expr, ast.If)) and _place(node) == tuple(place):
                return node.test if isinstance(node, ast.If) else node
        return None

    def tested_by(self, node: Any) -> Any:
        """The statement or expression of which `node` is the test; None where it is none."""
        above = self.parents.get(node)
        return above if getattr(above, "test", None) is node else None


def _is_tensor(fact: Any) -> bool:
    return fact is not None and fact.what == "tensor"


def _place(node: ast.expr | ast.If) -> Any:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


class Frame:
    """A function on the way to a read, and the expression that it stands at. `changed`: a decorator
    may have put other arguments in the place of those that it was called with."""

    def __init__(
        self, file: File, function: ast.FunctionDef, node: ast.Call, changed: bool
    ) -> None:
        self.file, self.function, self.node, self.changed = file, function, node, changed

    @property
    def key(self) -> tuple[str, str]:
        return self.file.path, self.file.names_of[self.function]


class Project:
    """The files by real path, loaded when first asked for; `load(path)` gives one or None."""

    def __init__(self, facts: dict[str, TraceFacts], load: Any) -> None:
        self.facts, self.load, self.files, self.named, self.texts, self.written = (
            facts,
            load,
            {},
            {},
            {},
            {},
        )
        self.aliases, self.followed = (
            {},
            [],
        )  # the functions on the way to the one that is looked at

    def file(self, path: Any) -> File:
        if path not in self.files:
            source = self.load(path) if path in self.facts else None
            self.files[path] = (
                File(path, source, self.facts[path], self) if source is not None else None
            )
        return self.files[path]

    def definition(self, place: Any) -> Any:
        """(file, function) of the `path:line` that a run saw; None where it is not of the
        project."""
        path, _, line = (place or "").rpartition(":")
        file = self.file(path) if path and line.isdecimal() else None
        function = file.by_line.get(int(line)) if file else None
        return (file, function) if function is not None else None

    def methods(self, name: str) -> list[Any]:
        """Every method of that name in the project, at most so many."""
        if name not in self.named:
            pattern = re.compile(rf"^\s+def {re.escape(name)}\(", re.MULTILINE)
            files = [self.file(p) for p in self.facts if pattern.search(self.text(p))][:_MAX_FILES]
            self.named[name] = [
                (f, n) for f in files if f for n in f.functions.values() if n.name == name
            ]
        return self.named[name]

    def forwards(self, cls: Any) -> Any:
        """Every `forward` of a class of that name that ran."""
        name = f"{cls}.forward"
        files = (self.file(p) for p, facts in self.facts.items() if name in facts.captured)
        return [(f, f.functions[name]) for f in files if f and name in f.functions]

    def holds(self, name: str) -> Any:
        """Whether a dotted name is of the project: relative, or of a package or module among its
        files."""
        top = name.split(".")[0]
        return name.startswith(".") or (
            bool(top) and any(f"/{top}/" in p or p.endswith(f"/{top}.py") for p in self.facts)
        )

    def text(self, path: str) -> str:
        """Of a file, without parsing it; "" where there is none."""
        if path not in self.texts:
            try:
                self.texts[path] = read(path).decode(errors="replace")
            except OSError:
                self.texts[path] = ""
        return self.texts[path]

    def chain(self, raw: list[list[list[int] | str]]) -> list[Frame] | None:
        """Frames from the outermost module's forward to the read; None where one cannot be found.
        Decorators that hand everything on are left out, and comprehensions belong to their
        function."""
        frames, changed = [], False
        for path, name, place in raw:
            inner = name.rpartition(".")[2] in _INNER
            file = self.file(path)
            function = file.functions.get(_plain(name)) if file else None
            node = file.expression(function, place) if function is not None else None
            if node is None:
                return None
            if inner and frames and frames[-1].function is function:
                frames.pop()
            if _hands_on(function, node):
                changed = changed or _rebinds(function)
            else:
                frames.append(Frame(file, function, node, changed))
                changed = False
        return frames


def _plain(name: Any) -> str:
    parts = [p for p in name.split(".") if p != "<locals>"]
    while parts and parts[-1] in _INNER:
        parts.pop()
    return ".".join(parts)


def _hands_on(function: Any, node: ast.Call) -> bool:
    """Whether the call at `node` hands on all that the function was given."""
    args = function.args
    if not (isinstance(node, ast.Call) and args.vararg and args.kwarg):
        return False
    spread = any(isinstance(a, ast.Starred) and _is(a.value, args.vararg.arg) for a in node.args)
    return spread and any(k.arg is None for k in node.keywords)


def _rebinds(function: Any) -> bool:
    """Whether it gives its `*args` another value."""
    stores = (
        n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    )
    return function.args.vararg.arg in stores


def _is(node: Any, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
