"""Checks that only raise or tell: `if t: raise …`, `assert t`, `torch._check(t)`, `if t: print(…)`.

What a later call finds otherwise is an error, as rare as errors are, or a message that the graph
does not depend on. So the graph is not cut before it: the value is compared when the graph has run,
which did nothing to the outside yet; where it differs, the call is made in eager, and raises there,
or is another recording's.
"""

import ast
import functools
import linecache
import os
import types
import weakref
from typing import Any

import torch

from ...analysis.output_calls import LOG_METHODS
from ...source import live_source
from .. import places
from .user_frames import function_frame

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCHS_CHECKS = (torch._check_with.__code__, torch._check_tensor_all_with.__code__)
_TORCHS = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def decides_only_that(frame: types.FrameType | None, is_rewritten: Any) -> bool:
    """Whether the code that runs asks for a value to raise, or not. Never on a GPU: there an
    operator that a check protects may leave the device unusable."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    if frame is not None and frame.f_code.co_filename.startswith(_TORCHS):
        return frame.f_lineno in _lines_of_file(frame.f_code.co_filename) or _is_in_a_check(frame)
    frame = function_frame(frame, is_rewritten)
    if frame is None:
        return False
    return frame.f_lineno in _lines(places.locals_of(frame)["__df"].fn)


def _is_in_a_check(frame: types.FrameType | None) -> bool:
    """Whether one of `torch._check` and its like asks, through functions of torch's own."""
    while frame is not None and frame.f_code.co_filename.startswith(_TORCHS):
        if frame.f_code in _TORCHS_CHECKS:
            return True
        frame = frame.f_back
    return False


@functools.lru_cache(64)
def _lines_of_file(file: str) -> frozenset[int]:
    """The same of a file of torch's, which may run as it is."""
    try:
        return _checks(ast.parse("".join(linecache.getlines(file))))
    except (SyntaxError, ValueError):
        return frozenset()


_found: "weakref.WeakKeyDictionary[Any, frozenset[int]]" = weakref.WeakKeyDictionary()


def _lines(function: types.FunctionType) -> frozenset[int]:
    """The lines on which a function's checks ask."""
    if function not in _found:
        try:
            source = live_source.find(function)
            _found[function] = _checks(ast.parse(live_source.padded(source, source.text)))
        except (live_source.NotRewritable, SyntaxError, ValueError):
            _found[function] = frozenset()
    return _found[function]


def _checks(tree: ast.AST) -> frozenset[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        test = _tested(node)
        if test is not None:
            found |= set(range(test.lineno, (test.end_lineno or test.lineno) + 1))
    return frozenset(found)


def _tested(node: ast.AST) -> ast.expr | None:
    """What a check tests."""
    if isinstance(node, ast.If):
        return node.test if not node.orelse and _raises_or_tells(node.body) else None
    if isinstance(node, ast.Assert):
        return node.test
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and call.args and isinstance(call.func, ast.Attribute):
        owner, name = call.func.value, call.func.attr
        if isinstance(owner, ast.Name) and owner.id == "torch" and name.startswith("_check"):
            return call.args[0]
    return None


def _raises_or_tells(body: list[ast.stmt]) -> bool:
    if all(isinstance(s, ast.Expr) and _tells(s.value) for s in body):
        return True
    leaves = (ast.Return, ast.Break, ast.Continue)
    inside = [node for statement in body for node in ast.walk(statement)]
    return isinstance(body[-1], ast.Raise) and not any(isinstance(n, leaves) for n in inside)


def _tells(node: ast.expr) -> bool:
    """Whether a print or a call of a logger's method is all of a statement."""
    called = node.func if isinstance(node, ast.Call) else None
    if isinstance(called, ast.Attribute):
        return called.attr in LOG_METHODS
    return isinstance(called, ast.Name) and called.id == "print"
