"""The second look at a file, with inputs taken to be tensors where their use suggests it: only at
what that changes; and what comes of such an input."""

from __future__ import annotations

import ast
import copy
from typing import TYPE_CHECKING

from ...rewriter.analysis.kinds import UNKNOWN, Kind

if TYPE_CHECKING:
    from .definitions import Function
    from .inference import Inference

OF_INPUT = "of an input"


def affected(inference: Inference) -> set[Function]:
    """The functions whose kinds change: those with such inputs, what stands in them, and what uses
    what they return."""
    functions = inference.program.functions
    found, inner = set(), {}
    for function in functions:
        inner.setdefault(function.outer, []).append(function)
    todo = list(inference.suggested)
    while todo:
        function = todo.pop()
        if function is not None and function.name == "__init__":
            return set(functions)  # what it stores may be read anywhere
        if function is not None and function not in found:
            found.add(function)
            todo += [*inner.get(function, ()), *inference.users.get(function, ())]
    return found


def supposing(inference: Inference, functions: set[Function]) -> Inference:
    """What is known, with these functions to be inferred anew, their inputs as suggested."""
    other = copy.copy(inference)
    other.suppose, other.done = True, inference.done - functions
    for name in ("kinds", "final_env", "at_branch", "grad_modes"):
        setattr(other, name, dict(getattr(inference, name)))
    known = inference.return_kinds
    other.return_kinds = {f: k for f, k in known.items() if f not in functions}
    made_anew = any(f.name == "__init__" for f in functions)
    other.class_kinds = {} if made_anew else dict(inference.class_kinds)
    return other


def of_input(kind: Kind) -> bool:
    """Whether something is, or comes of, an input of which nothing is known."""
    return kind.what == UNKNOWN and (kind.param is not None or kind.cls == OF_INPUT)


def comes_of_input(*kinds: Kind) -> bool:
    """Whether what an operator gives of such inputs, and of numbers, is a tensor if they are."""
    given = [of_input(k) for k in kinds]
    return any(given) and all(g or k.is_number for g, k in zip(given, kinds, strict=True))


def picks_axes(index: ast.expr) -> bool:
    """Whether an index says what is to be done with several axes: no list has such, nor a dict."""
    parts = index.elts if isinstance(index, ast.Tuple) else []
    return any(isinstance(p, ast.Slice) or _is_ellipsis(p) for p in parts)


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...
