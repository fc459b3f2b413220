"""What shape the sides of a choice have, in terms of the tensors that they are made of: a side that
is traced without being taken must not raise, whatever its tensors are."""

import ast

from .. import torch_facts as tables
from ..kinds import literal
from .compiled_facts import grouped

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
_UNARY = frozenset(n for n in tables.SAME | tables.SAME_FLOAT if n[-1] != "_") - {
    "cumsum", "flip", "roll", "masked_fill", "tril", "triu", "softmax", "log_softmax", "normalize",
    "full_like", "dropout",
}  # fmt: skip
_ALONG = frozenset(["cumsum", "flip", "softmax", "log_softmax"])  # along axes that are named
_WHOLE = tables.REDUCTIONS - {"max", "min", "argmax", "argmin", "amax", "amin", "median"}
_NUMBER, _SCALAR = "a number", "no axes"


class SideShapes:
    """`of(node)`: a tensor of the same shape, as (source, token), or what has none; None where the
    operators of a side may not fit its tensors. What must be equal is asked by `ask(fact)`."""

    def __init__(self, context, ask):
        self.context, self.ask = context, ask

    def of(self, node):
        kind = self.context.kind(node)
        if isinstance(node, (ast.Name, ast.Attribute)) and kind.is_tensor:
            return _SCALAR if kind.rank == 0 else (self._text(node), kind.shape)
        if kind.is_number and not kind.optional and not kind.host:
            return _NUMBER
        handler = getattr(self, f"_{type(node).__name__}", None)
        found = handler(node) if handler else None
        if found is None and self.context.seen(node):  # it was evaluated here, and fits
            return _SCALAR if kind.rank == 0 else (grouped(node, self._text(node)), kind.shape)
        return found

    def agree(self, one, other):
        """Whether two sides have one shape; else that is asked, or False."""
        shapes = self.of(one), self.of(other)
        return (
            None not in shapes
            and self._joined(*shapes) is not None
            and ((shapes[0] is _SCALAR) == (shapes[1] is _SCALAR))
        )

    def _joined(self, left, right):
        if left is None or right is None:
            return None
        for one, other in ((left, right), (right, left)):
            if one is _NUMBER or (one is _SCALAR and other is not _NUMBER):
                return other
        if left[1] != right[1]:
            self.ask(f"{left[0]}.shape == {right[0]}.shape")
        return left

    def _UnaryOp(self, node):
        return self.of(node.operand) if isinstance(node.op, ast.USub) else None

    def _BinOp(self, node):
        if not isinstance(node.op, _OPERATORS):
            return None
        left, right = self.of(node.left), self.of(node.right)
        if isinstance(node.op, ast.Pow) and right is not _NUMBER:
            return None
        return self._joined(left, right)

    def _Call(self, node):
        if not isinstance(node.func, ast.Attribute):
            return None
        name, owner = node.func.attr, node.func.value
        method = self.context.kind(owner).is_tensor
        known = method or (self.context.resolve(node.func) or "").startswith("torch.")
        parts = [*([owner] if method else []), *node.args]
        numbers = [*parts[1:], *(k.value for k in node.keywords)]
        if not known or not parts:
            return None
        shape = self.of(parts[0])
        if shape is not None and name in _WHOLE and not numbers:
            return _SCALAR
        fits = name in _UNARY and all(self.of(n) is _NUMBER for n in numbers)
        fits = fits or (name in _ALONG and self._axes(numbers, self.context.kind(parts[0])))
        return shape if fits else None

    def _axes(self, numbers, kind):
        """Whether numbers are axes that a tensor surely has, each named once."""
        axes, rank = [literal(n) for n in numbers], kind.least_rank()
        whole = bool(axes) and all(type(a) is int and -rank <= a < rank for a in axes)
        return whole and len({a % rank for a in axes}) == len(axes)

    def _text(self, node):
        return " ".join(self.context.segment(node).split())
