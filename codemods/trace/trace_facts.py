"""What a run of the program showed of its expressions (`--trace`): read here, without torch;
recorded by trace_run.

Facts are kept by function and by the text of the expression, not by its place: they hold on while
edits move lines."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ...rewriter.analysis.kinds import BOOL, FLOAT, INT, NDARRAY, NONE, SIMPLE, STR, TENSORS, Kind
from ...rewriter.analysis.torch_facts import DTYPES
from .saved_facts import joined
from .traced_program import TraceError, words_of

_SIMPLE = (INT, FLOAT, BOOL, STR, NONE, NDARRAY)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_KNOWN = (
    ast.Name,
    ast.Attribute,
    ast.Call,
    ast.Subscript,
    ast.BinOp,
    ast.Compare,
    ast.UnaryOp,
    ast.IfExp,
)


@dataclass(frozen=True)
class Fact:
    """What an expression was at every evaluation: `what` as in kinds; of tensors the rank and
    dtype, where they never changed, and whether none was sparse or nested (`strided`); `optional`:
    it was None at times; `cls`: of a module."""

    what: str
    rank: int | None = None
    dtype: str | None = None
    optional: bool = False
    cls: str | None = None
    strided: bool = False

    def join(self, other: Any) -> Any:
        """What holds of both; None where nothing does."""
        if "none" in (self.what, other.what) and self.what != other.what:
            seen = other if self.what == "none" else self
            known = seen.what == "tensor" or seen.what in _SIMPLE
            return replace(seen, optional=True) if known else None
        if self.what != other.what:
            return None
        rank = self.rank if self.rank == other.rank else None
        dtype = self.dtype if self.dtype == other.dtype else None
        cls = self.cls if self.cls == other.cls else None
        strided = self.strided and other.strided
        return Fact(self.what, rank, dtype, self.optional or other.optional, cls, strided)

    def kind(self, tokens: Any) -> Any:
        """As a Kind of one file's inference; None where it says nothing that inference knows."""
        if self.what == "tensor":
            kind = tokens.tensor(rank=self.rank, optional=self.optional)
            kind = replace(kind, strided=self.strided)
            category = DTYPES.get(self.dtype or "")
            return replace(kind, dtype=tokens.known(self.dtype, category)) if category else kind
        if self.what == "tensors":
            return Kind(TENSORS)
        if self.what == "module":
            return Kind("module", cls=self.cls)
        if self.what == "dict with attributes":
            return Kind(self.what, cls=self.cls)
        if self.what == "numpy scalar":
            return Kind("numpy scalar")
        return SIMPLE.get(self.what) if self.what in _SIMPLE and not self.optional else None


class TraceFacts:
    """The facts of one file: `of(function, node)`; `evaluated`: (function, text) of all that ran;
    `captured`: the functions that ran under a module's call; `reads`: the host reads under modules
    of which this file begins the call: (frames, whether of the inputs alone)."""

    def __init__(
        self,
        table: dict[Any, Any],
        captured: list[str],
        reads: list[tuple[list[list[Any]], bool]] | tuple[Any, ...] = (),
        roots: dict[str, list[list[list[Any]]]] | None = None,
        evaluated: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        self.table, self.captured, self.reads = table, frozenset(captured), reads
        self.evaluated = evaluated
        self.roots, self.plan = roots or {}, None

    def of(self, function: str, node: ast.expr) -> Any:
        """The Fact of an expression in the function of that qualified name, or None."""
        if not isinstance(node, _KNOWN) or function not in self.captured:
            return None
        return self.table.get((function, ast.unparse(node)))

    def ran(self, function: str, nodes: Iterable[ast.AST]) -> bool:
        """Whether every expression in some nodes was evaluated."""
        return all(
            (function, ast.unparse(n)) in self.evaluated
            for node in nodes
            for n in ast.walk(node)
            if isinstance(n, _KNOWN) and isinstance(getattr(n, "ctx", ast.Load()), ast.Load)
        )


def qualified(tree: ast.Module) -> Any:
    """{function node: its name, with those of the classes and functions around it}."""
    found = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = getattr(child, "name", None)
            inner = f"{prefix}{name}." if isinstance(child, (*_FUNCTIONS, ast.ClassDef)) else prefix
            if isinstance(child, _FUNCTIONS):
                found[child] = inner[:-1]
            visit(child, inner)

    visit(tree, "")
    return found


def load(data: Any) -> Any:
    """{real path: Facts} of what trace_run wrote."""
    return {path: _file(entry) for path, entry in data.items()}


def _file(entry: Any) -> Any:
    table: dict[Any, Any] = {}
    for function, text, told in entry["facts"]:
        fact = None if told is None else Fact(*told)
        old = table.get((function, text), fact)
        table[function, text] = None if old is None or fact is None else old.join(fact)
    evaluated = frozenset(table)
    table = {place: fact for place, fact in table.items() if fact is not None}
    return TraceFacts(
        table,
        entry["captured"],
        tuple((frames, clean) for frames, clean in entry.get("reads", ())),
        entry.get("roots"),
        evaluated,
    )


def run(commands: Any, paths: Any) -> Any:
    """Run each of `commands` once, instrumented, in a process of its own: {real path: Facts} of the
    files at `paths`."""
    return load(observed([commands] if isinstance(commands, str) else commands, paths))


def observed(commands: list[str], paths: Any) -> dict[str, Any]:
    """The same as plain data."""
    return joined([_observed(words_of(command), paths) for command in commands])


def _observed(words: list[str], paths: Any) -> dict[str, Any]:
    import importlib.util  # a run without --trace needs none of these
    import json
    import subprocess
    import tempfile

    if importlib.util.find_spec("torch") is None:
        raise TraceError("--trace needs torch: install dynfix[torch]")
    shown = words[words[0] == "-m"]
    with tempfile.TemporaryDirectory() as folder:
        listed, out = os.path.join(folder, "paths.json"), os.path.join(folder, "facts.json")
        with open(listed, "w", encoding="utf-8") as stream:
            json.dump([os.path.realpath(p) for p in paths], stream)
        command = [sys.executable, "-m", "dynfix.codemods.trace.traced_run", listed, out, *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, errors="replace")
        sys.stderr.write(done.stdout)  # stdout is for what this command itself says
        if not os.path.exists(out):
            raise TraceError(
                f"{shown}: the traced run ended with exit code {done.returncode}, and nothing"
                " was learnt"
            )
        with open(out, encoding="utf-8") as stream:
            data = json.load(stream)
    if done.returncode:
        print(f"dynfix: the traced script ended with exit code {done.returncode}", file=sys.stderr)
    return data
