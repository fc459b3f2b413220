"""Whether both sides of a branch may be computed: the proof behind `torch.where`.

A side is plain when computing it without being asked for changes nothing: it cannot raise, draws no
random number, writes nothing, and its part of the backward is an exact zero. Sums, differences,
products with finite literals and the like are; a division by a tensor, a root, a logarithm, an
index or a call of a module is not."""

import ast
import math
from dataclasses import dataclass

from .kinds import Kind, literal

_TOTAL_METHODS = frozenset(["clone", "neg", "detach", "contiguous", "relu", "float", "double"])
_TOTAL_FUNCTIONS = frozenset(
    ["torch.zeros_like", "torch.ones_like", "torch.relu", "torch.nn.functional.relu", "torch.clone"]
)
_TOTAL_REDUCTIONS = frozenset(["sum", "any", "all"])
_NO_GRAD = frozenset(["detach", "zeros_like", "ones_like"])
_SMALL = 127


@dataclass(frozen=True)
class Side:
    """One side: its kind, the tensors whose gradient it feeds, the non-plain calls in it (in order
    of evaluation), and what keeps it from being plain apart from those. `bare`: it is a name, not a
    new tensor."""

    kind: Kind
    leaves: frozenset = frozenset()
    calls: tuple = ()
    problem: str = ""
    bare: bool = False


class Plain:
    """Looks at expressions of one file."""

    def __init__(self, context):
        self.context = context
        self.tokens = context.inference.tokens
        self._calls = {}

    def side(self, node):
        handler = getattr(self, f"_{type(node).__name__}", None)
        return handler(node) if handler else self._opaque(node)

    def _opaque(self, node):
        text = " ".join(self.context.segment(node).split())
        return Side(
            self.context.kind(node),
            frozenset([ast.dump(node)]),
            problem=f"`{text}` would run on both sides",
        )

    def _Constant(self, node):
        kind = self.context.kind(node)
        finite = isinstance(node.value, (int, float)) and math.isfinite(node.value)
        return Side(kind) if finite else Side(kind, problem=f"{node.value!r} is no finite number")

    def _Name(self, node):
        kind = self.context.kind(node)
        if kind.optional:
            return Side(kind, problem=f"`{node.id}` may be None")
        return Side(kind, frozenset([ast.dump(node)]) if kind.is_tensor else frozenset(), bare=True)

    def _Attribute(self, node):
        kind = self.context.kind(node)
        own = isinstance(node.value, ast.Name) and self.context.kind(node.value).what == "self"
        if own and kind.is_tensor and not kind.optional:
            return Side(kind, frozenset([ast.dump(node)]), bare=True)
        return self._opaque(node)

    def _UnaryOp(self, node):
        if not isinstance(node.op, ast.USub):
            return self._opaque(node)
        inner = self.side(node.operand)
        problem = inner.problem or self._no_bool(inner)
        return Side(
            self._kind(node, ast.Mult(), inner.kind, Kind("int")),
            inner.leaves,
            inner.calls,
            problem,
        )

    def _kind(self, node, op, left, right):
        """The kind of an operation: as seen, or from those of its operands (calls that both sides
        make are of one kind)."""
        if self.context.exact:
            return self.context.kind(node)
        return self.context.inference.binary(op, left, right)

    def _no_bool(self, side):
        known = not side.kind.is_tensor or self.tokens.category(side.kind.dtype) in ("int", "float")
        return "" if known else "a bool tensor cannot be subtracted from or negated"

    def _BinOp(self, node):
        left, right = self.side(node.left), self.side(node.right)
        problem = left.problem or right.problem or self._operation(node, left, right)
        kind = self._kind(node, node.op, left.kind, right.kind)
        return Side(kind, left.leaves | right.leaves, left.calls + right.calls, problem)

    def _operation(self, node, left, right):
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

    def _why(self, node, what):
        text = " ".join(self.context.segment(node).split())
        return f"`{text}` {what}: the side not taken could turn its gradient into NaN, or raise"

    def _finite(self, node, zero=True):
        value = literal(node)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and math.isfinite(value) and (zero or value != 0)

    def _sum(self, node, left, right):
        if left.kind.is_tensor and right.kind.is_tensor:
            agree = left.kind.shape == right.kind.shape or 0 in (left.kind.rank, right.kind.rank)
            if not agree or left.kind.device != right.kind.device:
                return self._why(node, "adds tensors that may not fit each other")
        elif not all(s.kind.is_tensor or s.kind.is_number for s in (left, right)):
            return self._why(node, "has an operand of unknown type")
        elif not self._fits(node, left, right):
            return self._why(node, "may not fit the tensor's dtype")
        return (self._no_bool(left) or self._no_bool(right)) if isinstance(node.op, ast.Sub) else ""

    def _fits(self, node, left, right):
        """A Python number beside a tensor: any beside floats, small literals beside what may be
        integers."""
        tensor, number = (left, node.right) if left.kind.is_tensor else (right, node.left)
        value = literal(number)
        small = isinstance(value, (int, float)) and abs(value) <= _SMALL
        return (
            small or self.tokens.category(tensor.kind.dtype) == "float" or not tensor.kind.is_tensor
        )

    def _Compare(self, node):
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

    def _where(self, node):
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

    def _Call(self, node):
        kind, where = self.context.kind(node), self._where(node)
        if where is not None:
            return where
        inner = self._total_call(node)
        if inner is not None and not inner.problem:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            return Side(kind, frozenset() if name in _NO_GRAD else inner.leaves, inner.calls)
        if not kind.is_tensor:
            return self._opaque(node)
        text = ast.dump(node)
        return Side(self._calls.setdefault(text, kind), frozenset([text]), (node,))

    def _clamped(self, node):
        """The tensor of `t.clamp(a, b)` or `torch.clamp(t, min=a, max=b)` with bounds that are
        Python numbers; else None."""
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in ("clamp", "clip"):
            return None
        method = self.context.kind(node.func.value).is_tensor
        bounds = [*node.args[0 if method else 1 :], *(k.value for k in node.keywords)]
        if not all(
            self.context.kind(b).is_number and not self.context.kind(b).host for b in bounds
        ):
            return None
        return node.func.value if method else (node.args[0] if node.args else None)

    def _total_call(self, node):
        clamped = self._clamped(node)
        if clamped is not None:
            return self.side(clamped)
        if node.keywords or not isinstance(node.func, ast.Attribute):
            return None
        method = self.context.kind(node.func.value).is_tensor and not node.args
        if method and node.func.attr in _TOTAL_REDUCTIONS:
            inner = self.side(node.func.value)
            return inner if self.tokens.category(inner.kind.dtype) else None
        method = method and node.func.attr in _TOTAL_METHODS
        if method:
            return self.side(node.func.value)
        if (self.context.resolve(node.func) or "") in _TOTAL_FUNCTIONS and len(node.args) == 1:
            return self.side(node.args[0])
        return None
