"""What a traced run read on the host, and whether it still stands in the files' texts after
fixes."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from ..analysis.captured_walk import compiling, read_ahead
from .trace_facts import qualified

if TYPE_CHECKING:
    from ...rewriter.analysis.import_names import ImportedNames


class Text:
    """The expressions of one file's functions, by qualified name: those that run when captured, and
    the others."""

    def __init__(self, tree: ast.Module, names: ImportedNames) -> None:
        self.names = names
        self.functions = {name: node for node, name in qualified(tree).items()}
        self.known = {}

    def captured(self, function: str, text: str) -> bool:
        return text in self._expressions(function)[0]

    def reached(self, function: Any, text: str) -> bool:
        """Whether a call was not put out of captured code; one that is written in another way
        counts as kept."""
        inside, outside = self._expressions(function)
        return text in inside or text not in outside

    def _expressions(self, function: str) -> tuple[set[str], set[str]]:
        if function not in self.known:
            found = set(), set()
            node = self.functions.get(function)
            if node is not None:
                self._block(node.body, found, True)
            self.known[function] = found
        return self.known[function]

    def _block(
        self, body: list[ast.stmt], found: tuple[set[str], set[str]], captured: bool
    ) -> None:
        for statement in body:
            state, whole = self._state(statement)
            if state is None:
                self._visit(statement, found, captured)
                continue
            self._block(statement.body, found, captured and state)
            self._block(statement.orelse, found, captured and not (state and whole))
            leaves = state and whole and isinstance(statement.body[-1], (ast.Return, ast.Raise))
            captured = captured and not leaves

    def _state(self, statement: ast.stmt) -> tuple[bool | None, bool]:
        """(whether the body is for captured code or for the other; None: for both, whether the rest
        is for the other)."""
        if not isinstance(statement, ast.If):
            return None, False
        if read_ahead(statement.test):
            return True, True
        return compiling(statement.test, self.names), not isinstance(statement.test, ast.BoolOp)

    def _visit(self, node: ast.AST, found: tuple[set[str], set[str]], captured: bool) -> None:
        if isinstance(node, (ast.Call, ast.Subscript)):
            found[not captured].add(ast.unparse(node))
        if isinstance(node, ast.IfExp) and read_ahead(node.test):
            self._visit(node.body, found, captured)
            self._visit(node.orelse, found, False)
            return
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                self._block(value, found, captured)
            else:
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        self._visit(child, found, captured)


def stands(way: list[list[str]], texts: dict[str, Text]) -> bool:
    """Whether the read at the end of a way is still made when captured; `texts`: {path: Text} of
    the files at hand."""
    path, function, text = way[-1]
    if path in texts and not texts[path].captured(function, text):
        return False
    return all(texts[p].reached(f, t) for p, f, t in way[:-1] if p in texts)
