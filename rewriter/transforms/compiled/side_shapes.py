"""What shape the sides of a choice have, in terms of the tensors that they are made of: a side that
is traced without being taken must not raise, whatever its tensors are."""

import ast
from dataclasses import dataclass, replace

from ....lowering.opinfo import having
from ...analysis import torch_facts as tables
from ...analysis.kinds import INT, NO_CONST, UNKNOWN, literal
from ...analysis.tree_walk import surely_evaluated
from .trace_time_checks import grouped

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
_OF_BITS = (ast.BitAnd, ast.BitOr, ast.BitXor)
_MAKE_RANDOM = {"rand_like", "randn_like"}  # which read nothing but a shape
_UNARY = frozenset(n for n in tables.SAME | tables.SAME_FLOAT if n[-1] != "_") - (
    (having("not_elementwise") - _MAKE_RANDOM) | {"masked_fill", "full_like"}
)
_ALONG = frozenset(["cumsum", "flip", "softmax", "log_softmax"])  # along axes that are named
_WHOLE = tables.REDUCTIONS - having("raises_if_empty") - {"median"}
_FOLDS = _WHOLE - tables.PAIR_WITH_DIM - {"norm"}  # also along one axis
_NUMBER, _SCALAR = "a number", "no axes"
# What takes tensors of integers and, among these, of bools.
_OF_INTEGERS = tables.KEEPS_NUMBERS | {"sum", "prod", "any", "all", "count_nonzero"}
_OF_BOOLS = frozenset("clone contiguous detach sum prod any all count_nonzero".split())
_MADE = frozenset(["ones", "zeros"])
_ALWAYS_OTHER = frozenset("any all count_nonzero argmax argmin isnan isinf isfinite".split())
_ASKS = frozenset(["size", "numel", "dim", "len"])  # calls that give numbers, and do not raise


@dataclass(frozen=True)
class _Shape:
    """That of a tensor, by its source and its token; `folded`: with one for some of the sizes."""

    text: str
    token: int | None
    folded: bool = False


class SideShapes:
    """`of(node)`: a `_Shape`, or what has none; None where the operators of a side may not fit its
    tensors. What must be equal is asked by `ask(fact)`. `test`: what is evaluated before."""

    def __init__(self, context, ask, test=None):
        self.context, self.ask = context, ask
        self.bound = {}  # names that a side binds, and to what
        self.named = {}  # a tensor of each dtype
        self.evaluated = set(map(ast.dump, surely_evaluated(test))) if test is not None else set()

    def of(self, node):
        kind = self.context.kind(node)
        if isinstance(node, ast.Name) and node.id in self.bound:
            return self.of(self.bound[node.id])
        if isinstance(node, (ast.Name, ast.Attribute)) and kind.is_tensor:
            return self._known(node, kind)
        read = kind.host and not (isinstance(node, ast.Name) and kind.what == INT)
        if kind.is_number and not kind.optional and not read:  # torch.cond takes no symbolic float
            return _NUMBER if self._fits(node) or _settled(node) else None
        handler = getattr(self, f"_{type(node).__name__}", None)
        asked = []
        ask, self.ask = self.ask, asked.append
        found = handler(node) if handler else None
        self.ask = ask
        if (found is None or asked) and self._fits(node):
            return self._known(node, kind) if kind.is_tensor else None
        for fact in asked:
            if found is not _SCALAR or ".stride()" not in fact:  # one number has no layout
                ask(fact)
        return found

    def _known(self, node, kind):
        return _SCALAR if kind.rank == 0 else _Shape(grouped(node, self._text(node)), kind.shape)

    def _fits(self, node):
        """Whether an expression was evaluated here, by a run or by the test."""
        return self.context.seen(node) or ast.dump(node) in self.evaluated

    def agree(self, one, other):
        """Whether two sides have one shape; else that is asked, or False."""
        shapes = self.of(one), self.of(other)
        folded = [isinstance(shape, _Shape) and shape.folded for shape in shapes]
        return (
            None not in shapes
            and folded[0] == folded[1]
            and self._joined(*shapes) is not None
            and ((shapes[0] is _SCALAR) == (shapes[1] is _SCALAR))
        )

    def _joined(self, left, right):
        if left is None or right is None:
            return None
        for one, other in ((left, right), (right, left)):
            if one is _NUMBER or (one is _SCALAR and other is not _NUMBER):
                return other
        if left.token != right.token:
            self.ask(f"{left.text}.shape == {right.text}.shape")
            self.ask(f"{left.text}.stride() == {right.text}.stride()")
        return right if left.folded else left

    def float_dtype(self, node):
        """The token of the dtype that an expression has where its tensors are floating-point;
        _NUMBER for a number; None where that is not known."""
        kind = self.context.kind(node)
        if isinstance(node, ast.Name) and node.id in self.bound:
            return self.float_dtype(self.bound[node.id])
        if isinstance(node, (ast.Name, ast.Attribute)) and kind.is_tensor:
            self.named.setdefault(kind.dtype, self._text(node))
            return kind.dtype
        if isinstance(node, (ast.Name, ast.Attribute)):
            return _NUMBER if self.of(node) is _NUMBER else None
        if kind.is_number:
            return _NUMBER
        if isinstance(node, ast.UnaryOp):
            return self.float_dtype(node.operand)
        if isinstance(node, ast.BinOp) and isinstance(node.op, _OPERATORS):
            return self.one_dtype(node.left, node.right)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return None
        method = self.context.kind(node.func.value).is_tensor
        if (self.context.resolve(node.func) or "") == "torch.where" and len(node.args) == 3:
            return self.one_dtype(*node.args[1:])
        named = any(k.arg == "dtype" for k in node.keywords)
        parts = [*([node.func.value] if method else []), *node.args]
        return self.float_dtype(parts[0]) if parts and not named and _keeps_floats(node) else None

    def one_dtype(self, *nodes):
        """`float_dtype` of what is computed of several expressions; tensors of dtypes that are not
        known to be one are asked to have one."""
        found = dict.fromkeys(map(self.float_dtype, nodes))
        known = [token for token in found if token is not _NUMBER]
        if None in known or not known:
            return None if known else _NUMBER
        for token in known[1:]:
            self.ask(f"{self.named[known[0]]}.dtype == {self.named[token]}.dtype")
        return known[0]

    def _category(self, node):
        """ "int", "bool" or what else tensors of integers and bools are not."""
        kind = self.context.kind(node)
        return self.context.inference.tokens.category(kind.dtype) if kind.is_tensor else ""

    def _Name(self, node):
        """What is not known is asked to be a number."""
        plain = all(isinstance(n, (ast.Name, ast.Attribute, ast.Load)) for n in ast.walk(node))
        kind = self.context.kind(node)
        if not plain or kind.what != UNKNOWN or kind.of_input or self.context.acts(node):
            return None
        self.ask(f"isinstance({self._text(node)}, float)")
        return _NUMBER

    _Attribute = _Name

    def _UnaryOp(self, node):
        category = self._category(node.operand)
        negated = isinstance(node.op, ast.USub) and category != "bool"
        inverted = isinstance(node.op, ast.Invert) and category in ("bool", "int")
        return self.of(node.operand) if negated or inverted else None

    def _BinOp(self, node):
        sides = {self._category(node.left), self._category(node.right)}
        if isinstance(node.op, _OF_BITS) and sides == {"bool"}:
            return self._joined(self.of(node.left), self.of(node.right))
        if not isinstance(node.op, _OPERATORS):
            return None
        left, right = self.of(node.left), self.of(node.right)
        if isinstance(node.op, ast.Pow) and (right is not _NUMBER or not self._powers(node)):
            return None
        if isinstance(node.op, ast.Sub) and "bool" in sides:
            return None
        return self._joined(left, right)

    def _Compare(self, node):
        known = self.context.kind(node).is_tensor and len(node.ops) == 1
        return self._joined(self.of(node.left), self.of(node.comparators[0])) if known else None

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
        full = self.context.resolve(node.func) or ""
        parts = [*([owner] if method else []), *node.args]
        if not parts or not (method or full.startswith("torch.")):
            return None
        if full == "torch.where" and len(parts) == 3 and not node.keywords:
            return self._joined(self._joined(*map(self.of, parts[1:])), self.of(parts[0]))
        if name in _MADE and not method and ast.unparse(parts[0]) == "()":
            return _SCALAR if all(k.arg in ("dtype", "device") for k in node.keywords) else None
        shape = self.of(parts[0]) if self._takes(name, parts[0]) else None
        return shape and self._of_one(node, name, shape, parts)

    def _of_one(self, node, name, shape, parts):
        """The shape that an operator gives of a tensor and of numbers."""
        numbers = [*parts[1:], *(k.value for k in node.keywords)]
        if name in _WHOLE and not numbers:
            return _SCALAR
        if name in _FOLDS and numbers:
            return self._folded(node, parts, shape)
        fits = name in _UNARY and all(self.of(n) is _NUMBER for n in numbers)
        fits = fits or (name in _ALONG and self._axes(numbers, parts[0]))
        return shape if fits else None

    def _folded(self, node, parts, shape):
        """`x.sum(axis)`, `x.mean(dim=axis, keepdim=True)`."""
        given = {k.arg: k.value for k in node.keywords}
        kept = literal(given.pop("keepdim", ast.Constant(False)))
        axes = [*parts[1:], *given.values()]
        one = len(axes) == 1 and set(given) <= {"dim"} and kept in (True, False)
        if not one or not isinstance(shape, _Shape) or not self._axes(axes, parts[0]):
            return None
        return replace(shape, folded=True) if kept else self._known(node, self.context.kind(node))

    def _axes(self, numbers, tensor):
        """Whether numbers are axes that a tensor has, each named once; of a name that is asked."""
        axes, kind = [literal(n) for n in numbers], self.context.kind(tensor)
        if not axes or not all(type(a) is int for a in axes):
            return False
        least, rank = max(a + 1 if a >= 0 else -a for a in axes), kind.least_rank()
        if least > rank and (kind.rank is not None or len(axes) > 1):
            return False
        if least > rank:
            if not isinstance(tensor, ast.Name):
                return False
            self.ask(f"{tensor.id}.dim() > {least - 1}")
        return len({a % max(least, rank) for a in axes}) == len(axes)

    def _text(self, node):
        return " ".join(self.context.segment(node).split())


def _keeps_floats(call):
    """Whether a call gives the dtype of a floating-point tensor that it is given."""
    name = call.func.attr
    other = tables.BOOL_RESULT | tables.INT_RESULT | _ALWAYS_OTHER
    return name in (tables.SAME | tables.SAME_FLOAT | _WHOLE | _ALONG) - other


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
