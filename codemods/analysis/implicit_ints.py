"""Where Python or torch makes an int of what it is given, without being told: bounds of slices, and
sizes."""

import ast
from collections.abc import Callable
from typing import Any

from ...lowering.opinfo import having

# {function of a tensor: how many ints it takes behind it}
_BEHIND = {
    "narrow": 3,
    "unfold": 3,
    **dict.fromkeys(["topk", "kthvalue", "roll", "chunk", "interpolate", "one_hot", "pad"], 1),
    **dict.fromkeys(["tril", "triu", "multinomial"], 1),
}
_OF_NUMBERS = {
    **dict.fromkeys(having("int_arguments"), slice(None)),
    "randint": slice(None),
    "full": slice(1),
    "linspace": slice(2, 3),
}
_NAMED = frozenset(
    """
    size length k shifts chunks num_classes pad diagonal num_samples steps low high repeats
    minlength dims
    """.split()
)


_AFTER_TENSOR = having("sizes_after_tensor", "int_arguments_after_tensor")


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
    named = [k.value for k in call.keywords if k.arg in _NAMED]
    if of_torch and name.removeprefix("torch.") in _OF_NUMBERS:
        return [*call.args[_OF_NUMBERS[name.removeprefix("torch.")]], *named]
    if name and not of_torch and not ast.unparse(call.func).startswith(name.partition(".")[0]):
        return ()  # of another library
    last = name.rpartition(".")[2] if of_torch else getattr(call.func, "attr", "")
    given = call.args[1:] if of_torch else call.args
    if last in _BEHIND:
        return [*given[: _BEHIND[last]], *named]
    return [*given, *named] if last in _AFTER_TENSOR else ()


def elements(node: ast.expr) -> list[ast.expr]:
    """The parts of a tuple or list that is written out; anything else alone."""
    return node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
