"""Whether both sides of a branch may be computed: the proof behind `torch.where`.

A side is plain when computing it without being asked for changes nothing: it cannot raise, draws no
random number, writes nothing, and its part of the backward is an exact zero. Sums, differences,
products with finite literals and the like are; a division by a tensor, a root, a logarithm, an
index or a call of a module is not."""

import ast
import math
from dataclasses import replace

from .call_effects import TOTAL_FUNCTIONS, TOTAL_METHODS, TOTAL_REDUCTIONS
from .kinds import BOOL, FLOAT, INT, NO_CONST, SIZE, Kind, Side, Tokens, literal
from .oracle import Oracle
from .torch_facts import KEEPS_NUMBERS
from .tree_walk import only_value

_REAL = frozenset(["relu"])
NO_GRAD = frozenset(["detach", "zeros_like", "ones_like"])
_SMALL = 127  # every dtype of integers has it
_LARGEST, _SMALLEST = 65504, 6e-8  # of float16, the narrowest of the floating-point ones


class Plain:
    """Looks at expressions of one file. `assumed`: dtypes (as tokens) that stand for others, which
    the code that comes of it will ask for; None: it runs in eager, too."""

    def __init__(self, context: Oracle, assumed: dict[int, int] | None = None) -> None:
        self.context, self.assumed, self.compiled = context, assumed or {}, assumed is not None
        self.tokens: Tokens = context.inference.tokens
        self._calls: dict[str, Kind] = {}
        self.axes: dict[
            str, int
        ] = {}  # of names: how many they must have, in code that asks for that

    def known(self, node: ast.expr) -> Kind:
        """The kind of a node, as it is assumed to be."""
        kind = self.context.kind(node)
        if not kind.is_tensor or kind.dtype not in self.assumed:
            return kind
        return replace(kind, dtype=self.assumed[kind.dtype])

    def side(self, node: ast.expr) -> Side:
        handler = getattr(self, f"_{type(node).__name__}", None)
        return handler(node) if handler else self._opaque(node)

    def _opaque(self, node: ast.expr) -> Side:
        text = " ".join(self.context.segment(node).split())
        return Side(
            self.context.kind(node),
            frozenset([ast.dump(node)]),
            problem=f"`{text}` would run on both sides",
        )

    def _Constant(self, node: ast.Constant) -> Side:
        kind = self.context.kind(node)
        finite = isinstance(node.value, (int, float)) and abs(node.value) < 2**63
        return Side(kind) if finite else Side(kind, problem=f"{node.value!r} is no finite number")

    def _Name(self, node: ast.Name) -> Side:
        kind = self.known(node)
        if kind.optional and not self.compiled:
            return Side(kind, problem=f"`{node.id}` may be None")
        return Side(kind, frozenset([ast.dump(node)]) if kind.is_tensor else frozenset(), bare=True)

    def _Attribute(self, node: ast.Attribute) -> Side:
        kind = self.known(node)
        own = isinstance(node.value, ast.Name) and self.context.kind(node.value).what == "self"
        if own and kind.is_tensor and not kind.optional:
            return Side(kind, frozenset([ast.dump(node)]), bare=True)
        return self._opaque(node)

    def _UnaryOp(self, node: ast.UnaryOp) -> Side:
        if not isinstance(node.op, ast.USub):
            return self._opaque(node)
        inner = self.side(node.operand)
        problem = inner.problem or self._no_bool(inner)
        kind = self._kind(node, ast.Mult(), inner.kind, Kind("int"))
        kind = self._made(kind, node)
        return Side(kind, inner.leaves, inner.calls, problem, doubt=inner.doubt)

    def _made(self, kind: Kind, node: ast.expr) -> Kind:
        """`kind` as a tensor made where `node` stands."""
        own = self.context.kind(node)
        return replace(kind, made=own.made, strided=own.strided)

    def _kind(self, node: ast.expr, op: ast.operator, left: Kind, right: Kind) -> Kind:
        """The kind of an operation: as seen, or from those of its operands (calls that both sides
        make are of one kind)."""
        if self.context.exact:
            return self.context.kind(node)
        return self.context.inference.binary(op, left, right)

    def _no_bool(self, side: Side) -> str:
        category = self.tokens.category(side.kind.dtype)
        known = not side.kind.is_tensor or category in ("int", "float", "inexact", "number")
        return "" if known else "a bool tensor cannot be subtracted from or negated"

    def _BinOp(self, node: ast.BinOp) -> Side:
        left, right = self.side(node.left), self.side(node.right)
        problem = left.problem or right.problem or self._operation(node, left, right)
        kind = self._made(self._kind(node, node.op, left.kind, right.kind), node)
        doubt = left.doubt or right.doubt or self._unfit(node, left, right)
        leaves, calls = left.leaves | right.leaves, left.calls + right.calls
        return Side(kind, leaves, calls, problem, doubt=doubt)

    def _operation(self, node: ast.BinOp, left: Side, right: Side) -> str:
        """What may go wrong in `left op right`."""
        if isinstance(node.op, (ast.Add, ast.Sub)):
            return self._sum(node, left, right)
        if isinstance(node.op, ast.Mult):
            return (
                ""
                if self._finite(node.left) or self._finite(node.right)
                else self._why(node, "multiplies by a tensor")
            )
        if isinstance(node.op, ast.Div):
            return (
                ""
                if self._finite(node.right, zero=False)
                else self._why(node, "may divide by zero")
            )
        return self._why(node, "is not defined everywhere")

    def _why(self, node: ast.expr, what: str) -> str:
        text = " ".join(self.context.segment(node).split())
        return f"`{text}` {what}: the side not taken could turn its gradient into NaN, or raise"

    def _finite(self, node: ast.expr, zero: bool = True) -> bool:
        value = literal(node)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return False
        return math.isfinite(value) and (
            _SMALLEST <= abs(value) <= _LARGEST or (zero and value == 0)
        )

    def _sum(self, node: ast.BinOp, left: Side, right: Side) -> str:
        if left.kind.is_tensor and right.kind.is_tensor:
            agree = left.kind.shape == right.kind.shape or 0 in (left.kind.rank, right.kind.rank)
            if not agree or left.kind.device != right.kind.device:
                return self._why(node, "adds tensors that may not fit each other")
        elif not all(s.kind.is_tensor or s.kind.is_number for s in (left, right)):
            return self._why(node, "has an operand of unknown type")
        return (self._no_bool(left) or self._no_bool(right)) if isinstance(node.op, ast.Sub) else ""

    def _unfit(self, node: ast.BinOp, left: Side, right: Side) -> str:
        numbers = [s for s in (left, right) if s.kind.is_number]
        added = isinstance(node.op, (ast.Add, ast.Sub)) and len(numbers) == 1
        if added and not self._fits(node, left, right):
            return self._why(node, "may not fit the tensor's dtype")
        return ""

    def _fits(self, node: ast.BinOp, left: Side, right: Side) -> bool:
        """A Python number beside a tensor: any float or literal beside floats, small literals
        beside what may be integers. An int that is not known may be too large for every dtype."""
        tensor, number = (left, right) if left.kind.is_tensor else (right, left)
        value = literal(node.right if left.kind.is_tensor else node.left)
        small = isinstance(value, (int, float)) and abs(value) <= _SMALL
        real = self.tokens.category(tensor.kind.dtype) in ("float", "inexact")
        given = number.kind.what in (FLOAT, SIZE, BOOL) and not number.kind.optional
        return small or (real and (given or value is not NO_CONST)) or not tensor.kind.is_tensor

    def _Compare(self, node: ast.Compare) -> Side:
        """A condition has no gradient; its parts must not raise."""
        parts = [self.side(n) for n in (node.left, *node.comparators)]
        known = (
            all(p.kind.is_tensor or p.kind.is_number for p in parts)
            and self.context.kind(node).is_tensor
        )
        one = len(parts) == 2 and sum(p.kind.is_tensor for p in parts) == 1
        if not known or not one or isinstance(node.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn)):
            return self._opaque(node)
        problem = next((p.problem for p in parts if p.problem), "")
        return Side(
            self.context.kind(node), frozenset(), tuple(c for p in parts for c in p.calls), problem
        )

    def _where(self, node: ast.Call) -> Side | None:
        """The Side of `torch.where(condition, a, b)` where all of it is plain and `a` and `b`
        surely fit; else None."""
        named = (
            self.context.resolve(node.func) == "torch.where"
            and len(node.args) == 3
            and not node.keywords
        )
        if not named:
            return None
        condition, *sides = parts = [self.side(a) for a in node.args]
        one = condition.kind.is_tensor and (
            condition.kind.rank == 0 or condition.kind.shape == sides[0].kind.shape
        )
        fit = all(s.kind.is_tensor for s in sides) and sides[0].kind.shape == sides[1].kind.shape
        devices = {s.kind.device for s in sides} | (
            {condition.kind.device} - {self.tokens.default_device}
        )
        if not one or not fit or len(devices) > 1 or any(p.problem or p.calls for p in parts):
            return None
        return Side(self.context.kind(node), sides[0].leaves | sides[1].leaves)

    def _Call(self, node: ast.Call) -> Side:
        kind, where = self.known(node), self._where(node)
        if where is not None:
            return where
        inner = self._total_call(node)
        if inner is not None and self.assumed and self._keeps(node, inner):
            kind = replace(kind, dtype=inner.kind.dtype)
        bare = kind.made is None
        if inner is not None and not inner.problem:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            leaves = frozenset() if name in NO_GRAD else inner.leaves
            doubt = inner.doubt or self._loose_bounds(node)
            return Side(kind, leaves, inner.calls, "", bare, name in _REAL, doubt)
        if not kind.is_tensor:
            return self._opaque(node)
        text = ast.dump(node)
        known = self._calls.setdefault(text, kind)
        return Side(known, frozenset([text]), (node,), bare=bare)

    def _keeps(self, node: ast.Call, inner: Side) -> bool:
        """Whether a call gives the dtype of the numbers that it is given."""
        numbers = self.tokens.category(inner.kind.dtype) in ("int", "float")
        return numbers and getattr(node.func, "attr", "") in KEEPS_NUMBERS

    def _clamped(self, node: ast.Call) -> tuple[ast.expr | None, list[ast.expr]]:
        """(the tensor, bounds) of `t.clamp(a, b)` or `torch.clamp(t, min=a, max=b)` where bounds
        are numbers; else (None, [])."""
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in ("clamp", "clip"):
            return None, []
        method = self.context.kind(node.func.value).is_tensor
        tensor = node.func.value if method else (node.args[0] if node.args else None)
        bounds = [*node.args[0 if method else 1 :], *(k.value for k in node.keywords)]
        kinds = [self.context.kind(b) for b in bounds]
        numbers = bool(bounds) and all(k.is_number and not k.host for k in kinds)
        return (tensor, bounds) if tensor is not None and numbers else (None, [])

    def _loose_bounds(self, node: ast.Call) -> str:
        """Why the bounds of a clamp may not fit the tensor's dtype."""
        tensor, bounds = self._clamped(node)
        fit = tensor is None or all(self._bound(b, tensor) for b in bounds)
        return "" if fit else self._why(node, "has a bound that its dtype may not have")

    def _bound(self, node: ast.expr, tensor: ast.expr) -> bool:
        """Whether a bound is a number that the tensor's dtype has."""
        value, category = literal(node), self.tokens.category(self.side(tensor).kind.dtype)
        if isinstance(value, int) and not isinstance(value, bool) and category == "int":
            return abs(value) <= _SMALL
        if isinstance(value, (int, float)) and type(value) is not bool and category == "float":
            return abs(value) <= _LARGEST
        if self.compiled and category == "int" and self.context.kind(node).what == INT:
            return self.side(tensor).kind.dtype == self.tokens.int64
        return category == "float" and self._of_finfo(node, tensor)

    def _of_finfo(self, node: ast.expr, tensor: ast.expr) -> bool:
        """Whether a bound is the largest number of the tensor's own dtype, or somewhat less."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self._of_finfo(node.operand, tensor)
        if isinstance(node, ast.Name):
            value = only_value(node, self.context)
            return value is not None and self._of_finfo(value, tensor)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            less = literal(node.right)
            known = isinstance(less, (int, float)) and 0 <= less <= _LARGEST
            return known and self._of_finfo(node.left, tensor)
        limits = node.value if isinstance(node, ast.Attribute) and node.attr == "max" else None
        if not isinstance(limits, ast.Call) or len(limits.args) != 1:
            return False
        asked = limits.args[0]
        if not isinstance(asked, ast.Attribute) or asked.attr != "dtype":
            return False
        same = self.context.kind(asked.value).dtype == self.context.kind(tensor).dtype
        return same and self.context.resolve(limits.func) == "torch.finfo"

    def _total_call(self, node: ast.Call) -> Side | None:
        clamped, _ = self._clamped(node)
        if clamped is not None:
            return self.side(clamped)
        if node.keywords or not isinstance(node.func, ast.Attribute):
            return None
        if self._flips(node, node.func):
            return self.side(node.func.value)
        name, method = node.func.attr, self.context.kind(node.func.value).is_tensor
        inner = node.func.value if method and not node.args else None
        full = self.context.resolve(node.func) or ""
        if full in TOTAL_FUNCTIONS and len(node.args) == 1:
            inner = node.args[0]
        elif name not in TOTAL_METHODS | TOTAL_REDUCTIONS:
            inner = None
        return self.side(inner) if inner is not None and self._takes(name, inner) else None

    def _flips(self, node: ast.Call, method: ast.Attribute) -> bool:
        """Whether a call of positional arguments is `t.flip(axes)` of axes that the tensor surely
        has, each named once."""
        kind, owner = self.context.kind(method.value), method.value
        if method.attr != "flip" or not kind.is_tensor:
            return False
        named = [literal(a) for a in _listed(node.args)]
        axes = [a for a in named if isinstance(a, int) and type(a) is not bool]
        if not axes or len(axes) != len(named):
            return False
        rank, least = kind.least_rank(), max(a + 1 if a >= 0 else -a for a in axes)
        if self.compiled and least > rank and kind.rank is None and isinstance(owner, ast.Name):
            rank = self.axes[owner.id] = max(least, self.axes.get(owner.id, 0))
        one_sign = kind.rank is not None or len({a < 0 for a in axes}) == 1
        return least <= rank and one_sign and len({a % rank for a in axes}) == len(axes)

    def _takes(self, name: str, inner: ast.expr) -> bool:
        """Whether an operator takes a tensor of that dtype."""
        category = self.tokens.category(self.side(inner).kind.dtype)
        if name in _REAL:
            return category in ("int", "float")
        if name == "neg":
            return category in ("int", "float", "inexact", "number")
        return bool(category) or name not in TOTAL_REDUCTIONS


def _listed(arguments: list[ast.expr]) -> list[ast.expr]:
    """Arguments, or the parts of the one list that they are."""
    only = arguments[0] if len(arguments) == 1 else None
    return only.elts if isinstance(only, (ast.Tuple, ast.List)) else arguments
