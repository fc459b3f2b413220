"""Where Python or torch makes an int of what it is given, without being told: bounds of slices, and
sizes."""

import ast
from collections.abc import Callable
from typing import Any

from ...rewriter.analysis.torch_facts import SIZED, SIZED_FACTORIES

# {function of a tensor: (the name of the number that it takes, the place behind it)}
_NUMBERS = {
    "narrow": ("length", 3),
    "topk": ("k", 1),
    "kthvalue": ("k", 1),
    "roll": ("shifts", 1),
    "chunk": ("chunks", 1),
    "interpolate": ("size", 1),
}


def places(resolve: Callable[..., Any], node: ast.expr) -> list[ast.expr]:
    """The expressions of a call or an index that stand where an int is meant; `resolve(func)` gives
    a dotted name."""
    if isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        bounds = (b for p in parts if isinstance(p, ast.Slice) for b in (p.lower, p.upper, p.step))
        return [b for b in bounds if b is not None]
    if not isinstance(node, ast.Call):
        return []
    return [p for a in _sizes(resolve, node) for p in elements(a)]


def _sizes(resolve: Callable[..., Any], call: ast.Call) -> list[ast.expr] | tuple[Any, ...]:
    """The arguments of a call that are sizes."""
    name = resolve(call.func) or ""
    of_torch = name.startswith("torch.")
    if of_torch and name.removeprefix("torch.") in SIZED_FACTORIES:
        return call.args
    last = name.rpartition(".")[2] if of_torch else getattr(call.func, "attr", "")
    given = call.args[1:] if of_torch else call.args
    if last in _NUMBERS:
        named, last_place = _NUMBERS[last]
        return [*given[:last_place], *(k.value for k in call.keywords if k.arg == named)]
    return given if last in SIZED else ()


def elements(node: ast.expr) -> list[ast.expr]:
    """The parts of a tuple or list that is written out; anything else alone."""
    return node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
