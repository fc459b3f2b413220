"""A write under a bool mask as a choice that is written whole: `y[...] = torch.where(mask, x,
y)`."""

import ast
from dataclasses import replace

from ..analysis.oracle import Oracle
from ..analysis.proofs import write_doubt
from ..analysis.where_safety import Plain
from ..source.spans import Fix, Refusal, Safety
from .mask_expressions import OPERATORS, Masked, simple, still

_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)


def chosen(node: ast.Assign | ast.AugAssign, oracle: Oracle) -> Fix | Refusal | None:
    """The Fix that writes all elements, or the Refusal; None: nothing is gathered under a mask."""
    target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
    if not isinstance(target, ast.Subscript) or not _masks(node, target, oracle):
        return None
    if isinstance(node, ast.Assign) and (
        len(node.targets) > 1 or not _gathers(node.value, target.slice)
    ):
        return None  # a mask with a number on the right is masked_fill, which has a fixed shape
    made = _Write(node, target, oracle).fix()
    return Refusal(made) if isinstance(made, str) else made


def _masks(node, target, context):
    """Whether what `target` is indexed with is a bool tensor: known as one, or a comparison of what
    surely is a tensor."""
    index = target.slice
    kind = context.kind(index)
    if kind.is_tensor and kind.dtype == context.inference.tokens.bool:
        return True
    if (
        not isinstance(index, ast.Compare)
        or not isinstance(index.ops[0], _ORDERS)
        or len(index.ops) > 1
    ):
        return False
    return context.kind(index.left).is_tensor or (
        ast.dump(index.left) == ast.dump(target.value)
        and _taken_by_torch(node.value, target, context)
    )


def _taken_by_torch(value, target, context):
    """Whether a function of torch is given the elements that `target` names: it takes no other
    array."""
    calls = (n for n in ast.walk(value) if isinstance(n, ast.Call))
    taken = [
        c.args[0] for c in calls if c.args and (context.resolve(c.func) or "").startswith("torch.")
    ]
    return any(isinstance(a, ast.Subscript) and _same(a, target) for a in taken)


def _same(read, target):
    return ast.dump(read.value) == ast.dump(target.value) and ast.dump(read.slice) == ast.dump(
        target.slice
    )


def _gathers(value, mask):
    """Whether an expression reads something under the same mask."""
    text = ast.dump(mask)
    return any(isinstance(n, ast.Subscript) and ast.dump(n.slice) == text for n in ast.walk(value))


class _Write:
    def __init__(self, node, target, context):
        self.node, self.target, self.context = node, target, context
        self.mask, self.into, self.target = target.slice, target.value, target
        self.masked, self.before = Masked(self.mask, context), ""

    def fix(self):
        """The Fix, or a string that says why there is none."""
        context, found = self.context, self.context.torch(self.node)
        if found is None:
            return "`torch` is hidden by a local name, or not imported at the top of the file"
        if not simple(self.into) or not self._tensor() or not still(self.mask):
            return "the parts are no plain names"
        if not self.masked.covers(self.into) and not self._lift():
            return "the mask may have fewer axes than the tensor"
        problem = self.masked.elementwise(self.node.value)
        if problem:
            return problem
        into, mask = context.segment(self.into), self.masked.shown
        value = self.masked.ungathered(self.node.value, found[0])
        if isinstance(self.node, ast.AugAssign):
            operator = OPERATORS.get(type(self.node.op))
            if operator is None:
                return "there is no masked form of this operator"
            simple_value = isinstance(
                self.node.value, (ast.Name, ast.Constant, ast.Subscript, ast.Call, ast.Attribute)
            )
            plain = operator in "+-" or (
                operator in "*/" and context.kind(self.node.value).is_number
            )
            own = into if plain else f"{found[0]}.where({mask}, {into}, 1)"
            value = f"{own} {operator} {value if simple_value else f'({value})'}"
        chosen = f"{found[0]}.where({mask}, {value}, {into})"
        why = context.overwritten(self.into, chosen) if context.exact else self._doubt()
        if why and not context.exact and not self.before and self._counts():
            return self._when_compiled(f"{into}[...] = {chosen}", found)
        edit = context.replacement(self.node, f"{self.before}{into}[...] = {chosen}")
        safety = Safety.UNSAFE if why else Safety.SAFE
        return context.fix("use torch.where", edit, safety=safety, why=why, imports=found[1])

    def _counts(self):
        """Whether a Python int is added, in a statement that has its lines for itself."""
        node, source = self.node, self.context.source
        added = isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Add, ast.Sub))
        number = added and isinstance(node.value, ast.Constant) and type(node.value.value) is int
        kind, tokens = self.context.kind(self.into), self.context.inference.tokens
        number = number and tokens.category(kind.dtype) == "int"
        if not number or source.white_before(node) is None or node.lineno != node.end_lineno:
            return False
        behind = source.line(node.lineno)[source.column(node.lineno, node.end_col_offset) - 1 :]
        return behind.strip()[:1] in ("", "#")

    def _when_compiled(self, text, torch):
        """The Fix for compiled code alone, where the tensor holds integers and the mask has its
        shape: nothing is cast, broadcast or differentiated then."""
        context, source = self.context, self.context.source
        into, mask = context.segment(self.into), f"({context.segment(self.mask)})"
        asked = f"{into}.dtype == {torch[0]}.int64 and {mask}.shape == {into}.shape"
        indent, unit = source.white_before(self.node), source.indent_unit()
        lines = [
            f"if {torch[0]}.compiler.is_compiling() and {asked}:",
            f"{indent}{unit}{text}",
            f"{indent}else:",
            f"{indent}{unit}{context.segment(self.node)}",
        ]
        edit = context.replacement(self.node, source.newline.join(lines))
        fix = context.fix("use torch.where when compiled", edit, imports=torch[1])
        return replace(fix, asked=True) if isinstance(fix, Fix) else fix

    def _lift(self):
        """Whether the mask, given a size of one for the axes of the tensor that it lacks, can have
        a name of its own: it chooses along the first axes."""
        context, indent = self.context, self.context.source.indent_of(self.node)
        if not simple(self.mask) or indent is None:
            return False
        into, mask = context.segment(self.into), context.segment(self.mask)
        self.masked.shown = context.fresh_name(self.node, "chosen", "lifted")
        lifted = f"{mask}.reshape({mask}.shape + (1,) * ({into}.dim() - {mask}.dim()))"
        self.before = f"{self.masked.shown} = {lifted}{context.source.newline}{indent}"
        return True

    def _tensor(self):
        unknown = self.context.kind(self.into).what == "unknown"
        proved = unknown and _taken_by_torch(self.node.value, self.target, self.context)
        return self.context.kind(self.into).is_tensor or proved

    def _doubt(self):
        mask, into = self.context.kind(self.mask), self.context.kind(self.into)
        side = (
            Plain(self.context).side(self.node.value)
            if isinstance(self.node, ast.AugAssign)
            else None
        )
        alone = self.masked.reads and self.masked.reads[0] is self.node.value
        total = alone or (
            side is not None and not side.problem and isinstance(self.node.op, (ast.Add, ast.Sub))
        )
        if not total:
            return "the right side is computed for every element: it may raise there"
        kinds = [self.context.kind(r.value) for r in self.masked.reads]
        if mask.shape != into.shape or any(k.shape != into.shape for k in kinds):
            return "the mask and the tensors may differ in shape"
        if any(k.dtype != into.dtype or k.device != into.device for k in [*kinds]):
            return "the tensors may differ in dtype or device"
        if side is not None and self.context.inference.tokens.category(into.dtype) != "int":
            return "a sum with a number may not fit the tensor's dtype"
        return write_doubt(self.into, self.node, self.context)
