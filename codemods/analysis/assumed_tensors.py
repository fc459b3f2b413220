"""What comes of an input of which nothing is known."""

from __future__ import annotations

import ast

from ...rewriter.analysis.kinds import BOOL, OF_INPUT, Kind


def may_be_tensor(kind: Kind) -> bool:
    """Whether something has a tensor's methods if such an input is a tensor: a comparison, too."""
    return kind.of_input or (kind.what == BOOL and kind.cls == OF_INPUT)


def comes_of_input(*kinds: Kind) -> bool:
    """Whether what an operator gives of such inputs, and of numbers, is a tensor if they are."""
    given = [k.of_input for k in kinds]
    return any(given) and all(g or k.is_number for g, k in zip(given, kinds, strict=True))


def picks_axes(index: ast.expr) -> bool:
    """Whether an index says what is to be done with several axes: no list has such, nor a dict."""
    parts = index.elts if isinstance(index, ast.Tuple) else []
    return any(isinstance(p, ast.Slice) or _is_ellipsis(p) for p in parts)


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...
