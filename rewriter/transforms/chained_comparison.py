"""`low < t < high` of a tensor, which asks for the truth of the first comparison, as
`torch.logical_and` of both."""

import ast

from ..source.spans import Fix, Refusal, Safety, hidden
from .condition import pairs_of

_SHOWN = {ast.Gt: ">", ast.GtE: ">=", ast.Lt: "<", ast.LtE: "<="}


def chosen(node: ast.Compare, oracle) -> Fix | Refusal | None:
    """The Fix that compares both, or the Refusal; None: no tensor stands between two others."""
    middle = node.comparators[0]
    orders = len(node.ops) == 2 and all(type(op) in _SHOWN for op in node.ops)
    if not orders or not oracle.kind(middle).is_tensor:
        return None
    found = oracle.torch(node)
    if found is None:
        return hidden()
    if not isinstance(middle, ast.Name | ast.Attribute):
        return Refusal("the middle would be computed twice")
    left, text, right = (oracle.segment(n) for n in (node.left, *node.comparators))
    first, second = (_SHOWN[type(op)] for op in node.ops)
    shown = f"{found[0]}.logical_and({left} {first} {text}, {text} {second} {right})"
    why = _doubt(node, oracle)
    safety = Safety.UNSAFE if why else Safety.SAFE
    edit = oracle.replacement(node, shown)
    return oracle.fix("use torch.logical_and", edit, safety=safety, why=why, imports=found[1])


def _doubt(node, oracle):
    """Why the result may differ from that of the comparison that Python gives back."""
    pairs = pairs_of(node, oracle)
    kinds = [oracle.kind(pair) for pair in pairs]
    if oracle.exact and oracle.total(pairs[1]) and kinds[0].is_tensor and kinds[0] == kinds[1]:
        return ""
    return "both comparisons are computed, and several elements no longer raise"
