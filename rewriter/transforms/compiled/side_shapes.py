"""What shape the sides of a choice have, in terms of the tensors that they are made of: a side that
is traced without being taken must not raise, whatever its tensors are."""

import ast

from ....lowering.opinfo import having
from ...analysis import torch_facts as tables
from ...analysis.kinds import NO_CONST, literal
from .trace_time_checks import grouped

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
_MAKE_RANDOM = {"rand_like", "randn_like"}  # which read nothing but a shape
_UNARY = frozenset(n for n in tables.SAME | tables.SAME_FLOAT if n[-1] != "_") - (
    (having("not_elementwise") - _MAKE_RANDOM) | {"masked_fill", "full_like"}
)
_ALONG = frozenset(["cumsum", "flip", "softmax", "log_softmax"])  # along axes that are named
_WHOLE = tables.REDUCTIONS - having("raises_if_empty") - {"median"}
_NUMBER, _SCALAR = "a number", "no axes"
# What takes tensors of integers and, among these, of bools.
_OF_INTEGERS = tables.KEEPS_NUMBERS | {"sum", "prod", "any", "all", "count_nonzero"}
_OF_BOOLS = frozenset("clone contiguous detach sum prod any all count_nonzero".split())
_ASKS = frozenset(["size", "numel", "dim", "len"])  # calls that give numbers, and do not raise


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
            return _NUMBER if self.context.seen(node) or _settled(node) else None
        handler = getattr(self, f"_{type(node).__name__}", None)
        asked: list[str] = []
        ask, self.ask = self.ask, asked.append
        found = handler(node) if handler else None
        self.ask = ask
        if (found is None or asked) and self.context.seen(node):  # it was evaluated here, and fits
            return _SCALAR if kind.rank == 0 else (grouped(node, self._text(node)), kind.shape)
        for fact in asked:
            ask(fact)
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
            self.ask(f"{left[0]}.stride() == {right[0]}.stride()")
        return left

    def _category(self, node):
        """ "int", "bool" or what else tensors of integers and bools are not."""
        kind = self.context.kind(node)
        return self.context.inference.tokens.category(kind.dtype) if kind.is_tensor else ""

    def _UnaryOp(self, node):
        negated = isinstance(node.op, ast.USub) and self._category(node.operand) != "bool"
        return self.of(node.operand) if negated else None

    def _BinOp(self, node):
        if not isinstance(node.op, _OPERATORS):
            return None
        left, right = self.of(node.left), self.of(node.right)
        if isinstance(node.op, ast.Pow) and (right is not _NUMBER or not self._powers(node)):
            return None
        sides = {self._category(node.left), self._category(node.right)}
        if isinstance(node.op, ast.Sub) and "bool" in sides:
            return None
        return self._joined(left, right)

    def _powers(self, node):
        """Whether a tensor has that power, which integers have of what is not negative alone."""
        power = literal(node.right)
        known = isinstance(power, (int, float)) and power >= 0
        return known or self._category(node.left) not in ("int", "bool")

    def _takes(self, name, tensor):
        """Whether an operator takes tensors of that dtype."""
        names = {"int": _OF_INTEGERS, "bool": _OF_BOOLS}.get(self._category(tensor))
        return names is None or name in names

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
        shape = self.of(parts[0]) if self._takes(name, parts[0]) else None
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


def _settled(node):
    """Whether an expression of Python numbers surely gives one, that torch takes."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.FloorDiv, ast.Mod)):
        divisor = literal(node.right)
        whole = isinstance(divisor, (int, float)) and divisor != 0
        return whole and _settled(node.left)
    if isinstance(node, ast.BinOp):
        plain = isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Pow))
        return plain and _settled(node.left) and _settled(node.right)
    if isinstance(node, ast.UnaryOp):
        return _settled(node.operand)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float) or abs(node.value) < 2**63
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    if isinstance(node, ast.Call):
        return _known_call(node)
    return isinstance(node, (ast.Name, ast.Attribute))


def _known_call(node):
    name = getattr(node.func, "attr", "") or getattr(node.func, "id", "")
    of_text = name == "float" and len(node.args) == 1 and isinstance(node.args[0], ast.Constant)
    of = literal(node.args[0]) if len(node.args) == 1 else NO_CONST
    root = name == "sqrt" and isinstance(of, (int, float)) and of >= 0
    return name in _ASKS or of_text or root
