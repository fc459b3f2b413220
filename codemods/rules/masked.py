"""DYN504: writes under a bool mask."""

import ast

from ..edit import Safety
from ..gathered import OPERATORS, Masked, simple, still
from ..plain import Plain
from .base import Rule
from .data_shapes import is_mask
from .masked_rows import added_rows


class MaskedWrite(Rule):
    """
    `y[mask] = x[mask]` gathers as many elements as the mask has, then scatters them: a shape that depends on data.
    `y[...] = torch.where(mask, x, y)` writes the same values into the same tensor, where the mask has as many axes as
    `y`. It is safe where `x`, `y` and the mask surely have one shape and the right side is `x[mask]` alone; an
    expression is computed for every element instead of the chosen ones, which is unsafe: it may raise, or turn a
    gradient into NaN. A tensor with a row for each chosen place (`y[mask] += rows`) is put in its places first, by
    `masked_scatter`: unsafe as well.
    """

    code, name, message = "DYN504", "masked-write", "a masked write gathers as many elements as the mask has"
    help = "write y[...] = torch.where(mask, x, y)"
    safety = Safety.SAFE
    dynamo = ("GB0036",)
    nodes = (ast.Assign, ast.AugAssign)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    y = torch.relu(x)
    mask = y > 0
    y[mask] = x[mask]
    return y
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    y = torch.relu(x)
    mask = y > 0
    y[...] = torch.where(mask, x, y)
    return y
"""

    def check(self, node, context):
        target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
        rows = added_rows(node, context)
        if rows is not None:
            yield context.finding(self, node, fix=rows)
            return
        if not isinstance(target, ast.Subscript) or not is_mask(target.slice, context):
            return
        if isinstance(node, ast.Assign) and (len(node.targets) > 1 or not _gathers(node.value, target.slice)):
            return  # a mask with a number on the right is masked_fill, which has a fixed shape
        built = _Write(node, target, context).fix()
        fix, kept = (None, built) if isinstance(built, str) else (built, "")
        yield context.finding(self, node, fix=fix, kept=kept)


def _gathers(value, mask):
    """Whether an expression reads something under the same mask."""
    text = ast.dump(mask)
    return any(isinstance(n, ast.Subscript) and ast.dump(n.slice) == text for n in ast.walk(value))


class _Write:
    def __init__(self, node, target, context):
        self.node, self.target, self.context = node, target, context
        self.mask, self.into = target.slice, target.value
        self.masked = Masked(self.mask, context)

    def fix(self):
        """The Fix, or a string that says why there is none."""
        context, found = self.context, self.context.torch(self.node)
        if found is None:
            return "`torch` is hidden by a local name, or not imported at the top of the file"
        if not simple(self.into) or not context.kind(self.into).is_tensor or not still(self.mask):
            return "the parts are no plain names"
        if not self.masked.covers(self.into):
            return "the mask may have fewer axes than the tensor"
        problem = self.masked.elementwise(self.node.value)
        if problem:
            return problem
        into, mask = context.segment(self.into), context.segment(self.mask)
        value = self.masked.ungathered(self.node.value, found[0])
        if isinstance(self.node, ast.AugAssign):
            operator = OPERATORS.get(type(self.node.op))
            if operator is None:
                return "the operator has no such form"
            simple_value = isinstance(self.node.value, (ast.Name, ast.Constant, ast.Subscript, ast.Call, ast.Attribute))
            plain = operator in "+-" or (operator in "*/" and context.kind(self.node.value).is_number)
            own = into if plain else f"{found[0]}.where({mask}, {into}, 1)"
            value = f"{own} {operator} {value if simple_value else f'({value})'}"
        why = self._doubt()
        edit = context.replacement(self.node, f"{into}[...] = {found[0]}.where({mask}, {value}, {into})")
        safety = Safety.UNSAFE if why else Safety.SAFE
        return context.fix("use torch.where", edit, safety=safety, why=why, imports=found[1])

    def _doubt(self):
        mask, into = self.context.kind(self.mask), self.context.kind(self.into)
        side = Plain(self.context).side(self.node.value) if isinstance(self.node, ast.AugAssign) else None
        alone = self.masked.reads and self.masked.reads[0] is self.node.value
        total = alone or (side is not None and not side.problem and isinstance(self.node.op, (ast.Add, ast.Sub)))
        if not total:
            return "the right side is computed for every element: it may raise there"
        kinds = [self.context.kind(r.value) for r in self.masked.reads]
        if mask.shape != into.shape or any(k.shape != into.shape for k in kinds):
            return "the mask and the tensors may differ in shape"
        if any(k.dtype != into.dtype or k.device != into.device for k in [*kinds]):
            return "the tensors may differ in dtype or device"
        if side is not None and self.context.inference.tokens.category(into.dtype) != "int":
            return "a sum with a number may not fit the tensor's dtype"
        return ""
