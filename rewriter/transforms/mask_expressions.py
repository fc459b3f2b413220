"""Expressions over the elements that a bool mask chooses, and the same over all elements."""

import ast

from ...lowering.opinfo import having
from ..analysis.torch_facts import SAME, SAME_FLOAT

OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
_LOOK_AROUND = having("not_elementwise")
_ELEMENTWISE = (SAME | SAME_FLOAT | {"pow", "where", "maximum", "minimum"}) - _LOOK_AROUND


class Masked:
    """What reads under one mask in an expression; `reads` are the `x[mask]` that `elementwise` met,
    `shown` is how the mask is written."""

    def __init__(self, mask, context):
        self.mask, self.context = mask, context
        self.text, self.reads = ast.dump(mask), []
        self.shown = context.segment(mask)

    def covers(self, into):
        """Whether the mask surely has as many axes as the tensor; an index that works then has its
        very shape."""
        mask, tensor = self.context.kind(self.mask), self.context.kind(into)
        if mask.shape == tensor.shape or (
            tensor.rank is not None and mask.least_rank() >= tensor.rank
        ):
            return True
        parts = (
            [self.mask.left, *self.mask.comparators] if isinstance(self.mask, ast.Compare) else []
        )
        return any(
            ast.dump(p) == ast.dump(into) or self.context.kind(p).shape == tensor.shape
            for p in parts
        )

    def elementwise(self, node):
        """Why `node` is no function of single elements; notes what it reads under the mask."""
        kind = self.context.kind(node)
        if isinstance(node, ast.Subscript) and ast.dump(node.slice) == self.text:
            self.reads.append(node)
            return "" if simple(node.value) else "the parts are no plain names"
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return self.elementwise(node.left) or self.elementwise(node.right)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self.elementwise(node.operand)
        if isinstance(node, ast.Call):
            return self._call(node)
        shown = " ".join(self.context.segment(node).split())
        scalar = (
            kind.is_number
            or (kind.is_tensor and kind.rank == 0)
            or (simple(node) and kind.what == "unknown")
        )
        if not isinstance(node, ast.Constant) and not scalar:
            return f"`{shown}` is not known to be a number"
        return ""

    def _call(self, node):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        full = self.context.resolve(node.func) or ""
        parts = list(node.args)
        if not full.startswith("torch."):
            parts.append(getattr(node.func, "value", node))
        if name.endswith("_") or name not in _ELEMENTWISE or node.keywords or node in parts:
            return f"`{name or 'a call'}` may look at more than single elements"
        return next((p for p in map(self.elementwise, parts) if p), "")

    def total(self, node):
        """Whether `node` is a sum of reads and numbers, times numbers: finite for every element,
        with gradients that are finite whatever the element is."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            return self.total(node.left) and self.total(node.right)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            sides = node.left, node.right
            return any(map(self._number, sides)) and all(map(self.total, sides))
        if isinstance(node, ast.UnaryOp):
            return self.total(node.operand)
        return node in self.reads or self._number(node)

    def _number(self, node):
        return isinstance(node, ast.Constant) or self.context.kind(node).is_number

    def ungathered(self, node, torch):
        """The source of `node` over all elements. Where it is not total, those that the mask leaves
        out are put to one before: else they could turn gradients into NaN."""
        mask, plain = self.shown, self.total(node)
        bases = {read: self.context.segment(read.value) for read in self.reads}
        shown = {r: b if plain else f"{torch}.where({mask}, {b}, 1)" for r, b in bases.items()}
        return self.context.source.substituted(node, shown)


def simple(node):
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def still(node):
    """Whether evaluating `node` once instead of several times is the same: no calls but comparisons
    and names."""
    allowed = (
        ast.Compare,
        ast.Name,
        ast.Attribute,
        ast.Constant,
        ast.BinOp,
        ast.UnaryOp,
        ast.operator,
        ast.unaryop,
        ast.cmpop,
        ast.Load,
    )
    return all(isinstance(n, allowed) for n in ast.walk(node))
