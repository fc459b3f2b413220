"""The parts of an attention that is written out: query, key and value, scale, masks, dropout, and
the statements that it goes over."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....rewriter.source.parentheses import Binding
from .imported_names import imported
from .statement_steps import ExpressionSteps, OtherForm, Unclear

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext

_EQUATION = re.compile(r"([a-zA-Z]+),([a-zA-Z]+)->([a-zA-Z]+)")
_FUNCTIONAL = ("torch.", "torch.nn.functional.")
_DTYPES = frozenset("to type_as float double half bfloat16 type".split())
_CASTS = frozenset("to type_as float half bfloat16 type contiguous".split())


@dataclass(frozen=True)
class Mask:
    """`text`: an expression that is True where a token is seen, or, if `added`, what is added to
    the scores; under the condition `only_if`, if there is one."""

    text: str
    added: bool
    only_if: str = ""


@dataclass(frozen=True)
class Axes:
    """`order`: for each axis that is wanted, which one it is."""

    order: tuple[int, ...]

    def arranged(self, text: str) -> str:
        """A tensor's expression (one that `.` can follow) with its axes in that order."""
        moved = [i for i, axis in enumerate(self.order) if i != axis]
        if not moved:
            return text
        if len(moved) == 2:
            return f"{text}.transpose({moved[0]}, {moved[1]})"
        return f"{text}.permute({', '.join(map(str, self.order))})"


class Attention(ExpressionSteps):
    """What the product `node` of weights and values is made of. OtherForm or Unclear where it is
    not known."""

    def __init__(self, node: Any, context: FileContext) -> None:
        super().__init__(node, context)
        self.masks: list[Mask] = []
        self.scales: list[tuple[str, ast.expr]] = []
        self.dropout = ""
        self.result: Axes | None = None
        self.rank = 0  # of the weights, where it is known
        self._read(node)
        self._one_dtype()
        self.arguments()
        self.check()

    def _one_dtype(self) -> None:
        """Unclear where query, key and value are not cast alike: the one call takes one dtype."""
        calls = ({n.func for n in ast.walk(o) if isinstance(n, ast.Call)} for o in self.operands)
        cast = [any(getattr(f, "attr", "") in _DTYPES for f in each) for each in calls]
        if any(cast) and not all(cast):
            raise Unclear("query, key and value may have several dtypes")

    # Reading, from the product inwards

    def _read(self, node: Any) -> None:
        weights, self.value, self.value_axes, self.result = self._weights_and_values(node)
        inner = self._after_softmax(weights)
        self._before_softmax(inner)

    def _weights_and_values(self, node: Any) -> tuple[Any, Any, Any, Any]:
        name, operands = self._call(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return node.left, node.right, None, None
        if name in ("matmul", "bmm") and len(operands) == 2:
            self.rank = 3 if name == "bmm" else 0
            return operands[0], operands[1], None, None
        if name == "einsum" and len(operands) == 3:
            found = _product_axes(getattr(operands[0], "value", None))
            if found is not None:
                self.rank = len(found[0].order)
                return operands[1], operands[2], *found
        raise OtherForm

    def _after_softmax(self, weights: Any) -> Any:
        """The scores, of weights that softmax, dropout and casts may have made."""
        node, softmax = weights, None
        while softmax is None:
            node = self.resolved(node)
            name, operands = self._call(node)
            if name == "softmax" and operands:
                softmax = node
            elif name == "dropout" and operands and not self.dropout:
                self.dropout = self._drop(node, operands)
                node = operands[0]
            elif name in _CASTS and operands:
                node = operands[0]
            else:
                raise OtherForm
        dim = _argument(softmax, operands, 1, "dim", self.constructor(softmax.func))
        if dim is None or ast.unparse(dim) not in ("-1", str(self.rank - 1)):
            self._before_softmax(operands[0])  # where that is no product, it is no attention
            raise Unclear("its softmax is not known to be over the last axis")
        return operands[0]

    def _before_softmax(self, scores: Any) -> None:
        node, test = scores, None
        while True:
            node, test = self.resolved_under(node)
            name, operands = self._call(node)
            if self._product(node, name, operands):
                if test is not None:
                    raise OtherForm
                return
            node = self._peeled(node, name, operands, test)

    def _peeled(self, node: Any, name: str, operands: list[Any], test: Any) -> Any:
        """What a step of the scores is made from, once the step is noted."""
        if isinstance(node, ast.BinOp) and test is None:
            if isinstance(node.op, ast.Div):
                self.scales.append(("/", node.right))
                return node.left
            if isinstance(node.op, ast.Mult):
                inner, other = self._sides(node)
                self.scales.append(("*", other))
                return inner
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            inner, other = self._sides(node)
            if self.scales:
                raise Unclear("the mask is added before the scores are scaled")
            self._mask(other, True, False, test)
            return inner
        if name in ("masked_fill", "masked_fill_") and len(operands) == 3:
            self._fill(operands[2])
            self._mask(operands[1], False, True, test)
            return operands[0]
        if name == "where" and len(operands) == 3:
            self._fill(operands[2])
            self._mask(operands[0], False, False, test)
            return operands[1]
        if name in _CASTS and operands and test is None:
            return operands[0]
        raise OtherForm

    def _sides(self, node: ast.BinOp) -> tuple[ast.expr, ast.expr]:
        """(the scores, what is added to or multiplied with them)."""
        if self._has_product(node.right) and not self._has_product(node.left):
            return node.right, node.left
        return node.left, node.right

    def _has_product(self, node: ast.expr, deep: int = 0) -> bool:
        """Whether an expression is made with a product, by the steps before too."""
        for each in ast.walk(node):
            if isinstance(each, (ast.BinOp, ast.Call)) and may_be_product(each):
                return True
            step = self.step(each.id) if isinstance(each, ast.Name) and deep < 8 else None
            if step is not None and self._has_product(step.value, deep + 1):
                return True
        return False

    def _fill(self, value: ast.expr) -> None:
        text = ast.unparse(value).replace('"', "'")
        number = value.operand if isinstance(value, ast.UnaryOp) else value
        negative = isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub)
        known = getattr(number, "value", None)
        large = negative and isinstance(known, (int, float)) and known >= 1e4
        infinite = text in ("float('-inf')", "-float('inf')", "-math.inf", "-torch.inf", "-np.inf")
        least = ".finfo(" in text and text.endswith(".min")
        if not (large or infinite or least):
            raise Unclear("what masked scores are filled with is not known to be far below all")

    def _mask(self, node: ast.expr, added: bool, hides: bool, test: ast.expr | None) -> None:
        text = self.context.shown(node)
        kind, tokens = self.context.kind(node), self.context.inference.tokens
        exact = kind.is_tensor and tokens.category(kind.dtype) in ("bool", "int")
        if added and (exact or isinstance(node, ast.Compare)):
            raise Unclear("what is added to the scores is not in floating point")
        self.moved.append(node)
        if hides:
            text = self._negated(node)
        condition = ""
        if test is not None:
            condition = self.context.segment(test)
            self.moved.append(test)
        self.masks.append(Mask(text, added, condition))

    def _negated(self, node: ast.expr) -> str:
        """Where a mask that hides does not hide."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            return self.context.shown(node.operand)
        words = {ast.Eq: "!=", ast.NotEq: "=="}
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            word = words.get(type(node.ops[0]))
            if word:
                left, right = node.left, node.comparators[0]
                return f"{self.context.segment(left)} {word} {self.context.segment(right)}"
        return f"~{self.context.atom(node)}"

    def _drop(self, node: ast.Call, operands: list[Any]) -> str:
        made = self.constructor(node.func)
        text = self.context.segment
        if made is not None:
            module = text(node.func)
            return f"{module}.p if {module}.training else 0.0"
        chance = _argument(node, operands, 1, "p", None)
        training = _argument(node, operands, 2, "training", None)
        self.moved += [n for n in (chance, training) if n is not None]
        share = "0.5" if chance is None else text(chance)
        if training is None or getattr(training, "value", None) is True:
            return share
        return f"{share} if {text(training)} else 0.0"

    def _product(self, node: Any, name: str, operands: list[Any]) -> bool:
        """Whether these are the scores: the product of query and key."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return self._of(node.left, node.right)
        if name in ("matmul", "bmm") and len(operands) == 2:
            return self._of(*operands, rank=3 if name == "bmm" else 4)
        if name == "einsum" and len(operands) == 3:
            found = _score_axes(getattr(operands[0], "value", None))
            if found is None:
                raise OtherForm
            first, query_axes, key_axes = found
            query, key = operands[1:] if first else operands[:0:-1]
            self.moved += [query, key]
            self.operands = [query, key, self.value]
            self.query = query_axes.arranged(self.context.atom(query))
            self.key = key_axes.arranged(self.context.atom(key))
            by_last = [a.order[-1] == len(a.order) - 1 for a in (query_axes, key_axes)]
            self.query_node = query if by_last[0] else None
            self.key_node = key if by_last[1] else None
            return True
        return False

    def _of(self, query: ast.expr, key: ast.expr, rank: int = 4) -> bool:
        inner = self._transposed(key, rank)
        if inner is None and isinstance(key, ast.Name):
            step = self.step(key.id)
            plain = step is not None and step.test is None
            inner = self._transposed(step.value, rank) if plain else None
            if inner is not None:
                self.take(key, step)
        self.moved += [query, key if inner is None else inner]
        self.operands = [query, key if inner is None else inner, self.value]
        self.query_node, self.key_node = query, inner
        self.query = self.context.shown(query)
        plain = f"{self.context.atom(key)}.transpose(-2, -1)"
        self.key = plain if inner is None else self.context.shown(inner)
        return True

    def _transposed(self, node: Any, rank: int) -> Any:
        """What a node is the transpose of, in the last two axes; None where it is not known."""
        if isinstance(node, ast.Attribute) and node.attr == "mT":
            return node.value
        name, operands = self._call(node)
        axes = sorted(ast.unparse(o) for o in operands[1:])
        last = ["-1", "-2"], [str(rank - 2), str(rank - 1)]
        if name in ("transpose", "swapaxes", "swapdims") and axes in last:
            return operands[0]
        if name == "permute" and [ast.unparse(o) for o in operands[1:]] in _SWAPS:
            return operands[0]
        return None

    def _call(self, node: Any) -> tuple[str, list[Any]]:
        """("softmax", [scores, ...]) of a call of a function, a method or a module."""
        if not isinstance(node, ast.Call):
            return "", []
        operands = [k.value for k in node.keywords if k.arg in ("input", "tensor")] + node.args
        if len(operands) == 2 and isinstance(operands[1], (ast.List, ast.Tuple)):
            operands = [operands[0], *operands[1].elts]  # of einsum
        full = imported(node.func, self.context)
        for prefix in _FUNCTIONAL:
            rest = full.removeprefix(prefix)
            if full.startswith(prefix) and "." not in rest:
                return rest, operands
        made = self.constructor(node.func)
        if made is not None:
            full = imported(made.func, self.context)
            kinds = {"torch.nn.Softmax": "softmax", "torch.nn.Dropout": "dropout"}
            return kinds.get(full, ""), operands
        if isinstance(node.func, ast.Attribute) and not full:
            return node.func.attr, [node.func.value, *node.args, *_named(node)]
        return "", []

    # The scale

    def _is_number(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Constant):
            return isinstance(node.value, (int, float))
        if isinstance(node, ast.UnaryOp):
            return self._is_number(node.operand)
        if isinstance(node, ast.BinOp):
            return self._is_number(node.left) and self._is_number(node.right)
        if isinstance(node, ast.Call):
            known = ("math.sqrt", "numpy.sqrt", "float", "math.pow")
            name = imported(node.func, self.context) or ast.unparse(node.func)
            return name in known or self._is_size(node)
        kind = self.context.kind(node)
        return kind.is_number or self._is_size(node) or self._is_number_of_self(node)

    def _is_size(self, node: ast.expr) -> bool:
        text = ast.unparse(node)
        return text.endswith((".size(-1)", ".shape[-1]", ".shape[3]", ".size(3)"))

    def _is_number_of_self(self, node: ast.expr) -> bool:
        """Whether every assignment of an attribute of the class gives it arithmetic of numbers."""
        values = self.stored(node)
        return bool(values) and all(self._is_arithmetic(v) for v in values)

    def _is_arithmetic(self, node: ast.expr) -> bool:
        if isinstance(node, ast.BinOp):
            power = isinstance(node.op, (ast.Pow, ast.Div, ast.FloorDiv))
            return power and self._is_arithmetic(node.left) and self._is_arithmetic(node.right)
        plain = isinstance(node, (ast.Name, ast.Attribute, ast.Constant, ast.UnaryOp))
        return plain or self._is_number(node)

    def _scale(self) -> str:
        """The `scale` argument; "" where it is the default."""
        if not self.scales:
            return "1.0"
        if not all(self._is_number(n) for _, n in self.scales):
            raise Unclear("the scale is not known to be a Python number")
        self.moved += [n for _, n in self.scales]
        if len(self.scales) == 1 and self._is_default(*self.scales[0]):
            return ""
        factors = [self.context.shown(n, Binding.ATOM) for op, n in self.scales if op == "*"]
        divisors = [self.context.shown(n, Binding.ATOM) for op, n in self.scales if op == "/"]
        if len(self.scales) == 1 and factors:
            return self.context.segment(self.scales[0][1])
        return " / ".join([" * ".join(factors) or "1", *divisors])

    def _is_default(self, op: str, node: ast.expr) -> bool:
        """Whether it is the root of the query's last size."""
        sizes = [
            f"{ast.unparse(n)}{end}"
            for n in (self.query_node, self.key_node)
            if n is not None
            for end in (".size(-1)", ".shape[-1]")
        ]
        text = ast.unparse(node)
        roots = [f"{f}({s})" for s in sizes for f in ("math.sqrt", "sqrt", "np.sqrt")]
        if op == "/":
            return text in [*roots, *(f"{s} ** 0.5" for s in sizes)]
        return text in [*(f"1 / {r}" for r in roots), *(f"1.0 / {r}" for r in roots)] or text in [
            f"{s} ** -0.5" for s in sizes
        ]

    # What comes of it

    def arguments(self) -> list[str]:
        value = self.context.atom(self.value)
        given = (
            self.value_axes.arranged(value) if self.value_axes else self.context.shown(self.value)
        )
        named = {"attn_mask": self._attn_mask(), "dropout_p": self.dropout, "scale": self._scale()}
        texts = [f"{name}={text}" for name, text in named.items() if text]
        return [self.query, self.key, given, *texts]

    def _attn_mask(self) -> str:
        if not self.masks:
            return ""
        if len({m.added for m in self.masks}) > 1 or len({m.only_if for m in self.masks}) > 1:
            raise Unclear("several masks of different kinds")
        added, condition = self.masks[0].added, self.masks[0].only_if
        texts = [m.text for m in self.masks]
        if len(texts) > 1:
            texts = [(" + " if added else " & ").join(f"({t})" for t in texts)]
        return f"{texts[0]} if {condition} else None" if condition else texts[0]

    def arranged(self, call: str) -> str:
        return self.result.arranged(call) if self.result else call


def may_be_product(node: ast.BinOp | ast.Call) -> bool:
    """Whether a node may be a product of matrices, as its form tells."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return name in ("matmul", "bmm", "einsum")


_SWAPS = (["0", "1", "3", "2"], ["0", "2", "1"])


def _named(call: ast.Call) -> list[ast.expr]:
    """The arguments of `masked_fill` by their names, in their order."""
    named = {k.arg: k.value for k in call.keywords}
    return [named[n] for n in ("mask", "other", "value") if n in named]


def _argument(
    call: ast.Call, operands: list[Any], place: int, name: str, made: ast.Call | None
) -> Any:
    """An argument of a function or a method, or, of a module, of the call that made it."""
    if made is not None:
        call, operands, place = made, made.args, place - 1
    named = {k.arg: k.value for k in call.keywords}
    found = named.get(name)
    own = operands[place] if len(operands) > place else None
    return own if found is None else found


# The axes of einsum


def _parts(equation: Any) -> tuple[str, str, str] | None:
    found = _EQUATION.fullmatch(equation.replace(" ", "")) if isinstance(equation, str) else None
    parts = found.groups() if found else ()
    if len(parts) != 3 or any(len(set(p)) != len(p) for p in parts):
        return None
    return parts[0], parts[1], parts[2]


def _score_axes(equation: Any) -> tuple[bool, Axes, Axes] | None:
    """(whether the query is the first operand, its axes, those of the key); None where it is no
    product over one axis."""
    parts = _parts(equation)
    if parts is None or len(parts[2]) < 2:
        return None
    first, second, out = parts
    batch, token, other = out[:-2], out[-2], out[-1]
    query, key = (first, second) if token in first else (second, first)
    features = (set(query) & set(key)) - set(out)
    if len(features) != 1 or token in key or other in query:
        return None
    (feature,) = features
    wanted = f"{batch}{token}{feature}", f"{batch}{other}{feature}"
    if set(query) != set(wanted[0]) or set(key) != set(wanted[1]):
        return None
    return query is first, _axes(query, wanted[0]), _axes(key, wanted[1])


def _product_axes(equation: Any) -> tuple[Axes, Axes] | None:
    """(the axes of the values, those of the result) where the first operand is the weights."""
    parts = _parts(equation)
    if parts is None or len(parts[0]) < 2:
        return None
    weights, values, out = parts
    batch, token, other = weights[:-2], weights[-2], weights[-1]
    features = set(values) - set(batch) - {other}
    if len(features) != 1 or token in values or other in out:
        return None
    (feature,) = features
    wanted = f"{batch}{other}{feature}", f"{batch}{token}{feature}"
    if set(values) != set(wanted[0]) or set(out) != set(wanted[1]):
        return None
    return _axes(values, wanted[0]), _axes(wanted[1], out)


def _axes(there: str, wanted: str) -> Axes:
    return Axes(tuple(there.index(axis) for axis in wanted))
