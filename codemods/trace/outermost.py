"""The outermost calls of a traced run (modules, compiled functions), and what was read below each,
by function and text of the expression: what the rule about scoped capture goes by."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Iterator
from typing import Any

from .trace_facts import qualified


class OutermostModules:
    """`enter(called)` for every outermost call; `data(reads)` joins the roots with the reads of the
    run."""

    def __init__(self, paths: Any) -> None:
        self.paths, self.found, self.trees = paths, set(), {}

    def enter(self, called: Any) -> None:
        forward = inspect.unwrap(getattr(type(called), "forward", called))
        code = getattr(forward, "__code__", None)
        path = os.path.realpath(code.co_filename) if code else ""
        if path in self.paths:
            self.found.add((path, plain(forward.__qualname__)))

    def data(self, reads: Any) -> Any:
        """{path: {root: [way, …]}}; a way is [[path, function, text of the call or read], …],
        innermost last. `reads` have places for texts."""
        result = {}
        for frames, *_ in reads:
            way = [
                [path, plain(function), self._text(path, tuple(place))]
                for path, function, place in frames
            ]
            passed = {(path, function) for path, function, _ in way}
            for path, root in self.found & passed:
                ways = result.setdefault(path, {}).setdefault(root, [])
                if way[-1][2] and way not in ways:
                    ways.append(way)
        return result

    def _text(self, path: str, place: Any) -> Any:
        """The expression at a place; "" where it only decides something, which no capture of
        numbers helps."""
        if path not in self.trees:
            with open(path, "rb") as stream:
                self.trees[path] = _by_place(ast.parse(stream.read()))
        return self.trees[path].get(place, "")


def plain(name: str) -> Any:
    """A qualified name as the tree has it, of the function around comprehensions and lambdas."""
    parts = [p for p in name.split(".") if p != "<locals>"]
    while parts and parts[-1].startswith("<"):
        parts.pop()
    return ".".join(parts)


def _by_place(tree: Any) -> Any:
    """{(line, column, end line, end column): text} of every expression in a function but those that
    decide."""
    tests, found = set(), {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert)):
            tests |= set(_tests(node.test))
    for function in qualified(tree):
        for node in ast.walk(function):
            if (
                isinstance(node, ast.expr)
                and (node not in tests or _reads(node))
                and not _compares(node)
            ):
                place = node.lineno, node.col_offset, node.end_lineno, node.end_col_offset
                found.setdefault(place, ast.unparse(node))
    return found


def _tests(node: Any) -> Iterator[Any]:
    yield node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield from _tests(node.operand)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _tests(value)


def _compares(node: Any) -> bool:
    """Whether a call reads truths alone, which decide what it gives."""
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
        "max",
        "min",
        "sorted",
        "any",
        "all",
    )


def _reads(node: Any) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") in (
        "item",
        "tolist",
        "numpy",
    )
