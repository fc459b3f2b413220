"""What an expression is: kinds, and tokens that tell when two tensors surely agree in dtype, shape
or device."""

import ast
from dataclasses import dataclass, replace
from typing import Any

TENSOR, TENSORS, MODULE, MODULES = "tensor", "tensors", "module", "modules"
INT, FLOAT, BOOL, STR, NUMBER, SIZE, NONE = "int", "float", "bool", "str", "number", "size", "none"
UNKNOWN, LOGGER, NDARRAY, LIST, TUPLE, DICT, FUNCTION = (
    "unknown",
    "logger",
    "ndarray",
    "list",
    "tuple",
    "dict",
    "function",
)
OF_INPUT = "of an input"
_OBJECT = "object of "  # a class of the file that is no module: nothing else is known of it
PYTHON_NUMBERS = frozenset({INT, FLOAT, BOOL, NUMBER, SIZE})


class _NoConst:
    def __repr__(self) -> str:
        return "no constant"


NO_CONST = _NoConst()


@dataclass(frozen=True)
class Kind:
    """`what` it is. A tensor: tokens for dtype, shape and device (equal tokens: surely equal),
    `rank` where known, `low` its least rank, `fresh` if this function made it. `cls`: a module's
    class. `item`: what a container holds (all of one kind); `parts`: what a tuple holds, in order.
    `const`: a literal's value. `param`: the bare parameter it came from. `host`: read from a
    tensor. `made`: this function made it, a dense tensor in memory of its own, under the grad mode
    of that number. `strided`: not sparse. `order`: a token for the order of its axes in memory."""

    what: str
    dtype: int | None = None
    shape: int | None = None
    device: int | None = None
    rank: int | None = None
    low: int = 0
    cls: str | None = None
    const: object = NO_CONST
    item: "Kind | None" = None
    parts: "tuple[Kind, ...]" = ()
    param: str | None = None
    optional: bool = False
    fresh: bool = False
    host: bool = False
    made: int | None = None
    strided: bool = False
    order: int | None = None

    @property
    def is_tensor(self) -> bool:
        return self.what == TENSOR

    @property
    def is_number(self) -> bool:
        return self.what in PYTHON_NUMBERS

    @property
    def of_input(self) -> bool:
        """Whether it is, or comes of, an input of which nothing is known."""
        return self.what == UNKNOWN and (self.param is not None or self.cls == OF_INPUT)

    @property
    def owner(self) -> str | None:
        """The class of the file that it is the object of, as `self` is; None where it is none."""
        if self.what == UNKNOWN and self.cls is not None and self.cls.startswith(_OBJECT):
            return self.cls[len(_OBJECT) :]
        return self.cls if self.what == "self" else None

    def least_rank(self) -> int:
        return self.low if self.rank is None else self.rank


@dataclass(frozen=True)
class Side:
    """One side: its kind, the tensors whose gradient it feeds, the non-plain calls in it (in order
    of evaluation), and what keeps it from being plain apart from those. `bare`: it may be a tensor
    that was there before, not a new one. `saved`: autograd keeps it for the backward.
    `doubt`: what may raise, for numbers that are not known."""

    kind: Kind
    leaves: frozenset[object] = frozenset()
    calls: tuple[ast.Call, ...] = ()
    problem: str = ""
    bare: bool = False
    saved: bool = False
    doubt: str = ""


Sides = tuple[Side, Side]
ANY = Kind(UNKNOWN)
_STRENGTH: dict[str | None, int] = {"bool": 0, "int": 1, "number": 1, "float": 2, "inexact": 2}
SIMPLE = {
    what: Kind(what)
    for what in (INT, FLOAT, BOOL, STR, NUMBER, SIZE, NONE, LOGGER, NDARRAY, LIST, DICT, FUNCTION)
}


def instance(cls: str) -> Kind:
    """An object of a class of the file that is no module."""
    return Kind(UNKNOWN, cls=f"{_OBJECT}{cls}")


def constant(value: object) -> Kind:
    """The kind of a literal."""
    names = {bool: BOOL, int: INT, float: FLOAT, str: STR, type(None): NONE}
    return Kind(names.get(type(value), UNKNOWN), const=value)


class Tokens:
    """Interned facts: one number for each distinct fact; `category` tells "bool", "int", "float",
    "inexact" (floating-point or complex) or "number" (all but bool) of a dtype token."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}
        self._category: dict[int | None, str | None] = {}
        self._named: dict[int, str] = {}
        self.bool = self.known("bool", "bool")
        self.mask = self.of("dtype", "mask")  # bool, unless an object compares in its own way
        self.uint8 = self.known("uint8", "int")
        self.int64 = self.known("int64", "int")
        self.default = self.known("default", "float")
        self.scalar_shape = self.of("shape", ())
        one = ast.dump(ast.Constant(1))
        self.one_element = {self.scalar_shape, *(self.of("shape", (one,) * n) for n in range(1, 5))}
        self.default_device = self.of("device", "default")

    def of(self, *key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def fresh(self) -> int:
        return self.of("fresh", len(self._numbers))

    def some(self, category: str | None) -> int:
        """A dtype of which only the category is known."""
        return self._remember(self.fresh(), category)

    def of_category(self, token: int | None) -> int:
        """A dtype of which only the category of another is known."""
        category = self.category(token)
        return self.some(category) if category else self.fresh()

    def known(self, name: str, category: str) -> int:
        token = self.of("dtype", name)
        self._category[token] = category
        self._named[token] = name
        return token

    def of_name(self, name: str) -> int:
        return self.of("dtype", name)

    def is_known(self, token: int | None) -> bool:
        """Whether a dtype has a name."""
        return token in self._named

    def name_of(self, token: int | None) -> str:
        """The name of a dtype, as torch has it; "" where it is not known."""
        name = self._named.get(token, "") if token is not None else ""
        return "" if name == "default" else name

    def category(self, token: int | None) -> str | None:
        return self._category.get(token)

    def tensor(self, **facts: Any) -> Kind:
        """A tensor about which nothing but `facts` is known."""
        order = self.fresh()
        kind = Kind(TENSOR, self.fresh(), self.fresh(), self.fresh(), order=order, **facts)
        return replace(kind, shape=self.scalar_shape) if kind.rank == 0 else kind

    def promote(self, left: Kind, right: Kind, division: bool = False) -> int | None:
        """The dtype token of `left op right`; either may be a Python number, and one is a
        tensor."""
        if division:
            return self._divide(left, right)
        if left.is_tensor and right.is_tensor:
            return self._promote_tensors(left, right)
        tensor, number = (left, right) if left.is_tensor else (right, left)
        category = self.category(tensor.dtype)
        weak = {BOOL: 0, INT: 1, SIZE: 1, FLOAT: 2}.get(number.what)
        strong = _STRENGTH.get(category)
        if weak is None:
            return self.fresh()
        if strong is not None and weak <= strong:
            return tensor.dtype
        if weak == 2:
            return self.float_of(tensor.dtype)
        return self.int64 if category == "bool" else self.of("promote", tensor.dtype, weak)

    def _promote_tensors(self, left: Kind, right: Kind) -> int | None:
        if left.dtype == right.dtype:
            return left.dtype
        floating = self._one_float(left, right)
        if floating is not None:
            return floating
        for one, other in ((left, right), (right, left)):
            if one.rank == 0 and other.least_rank() > 0 and self._weaker(one, other):
                return other.dtype
        token = self.of("promote", left.dtype, right.dtype, left.shape, right.shape)
        same = self.category(left.dtype), self.category(right.dtype)
        return self._remember(token, same[0]) if same[0] == same[1] and same[0] else token

    def _one_float(self, left: Kind, right: Kind) -> int | None:
        """The dtype of the one tensor of two that is floating-point, where the other surely holds
        integers or bools: whatever their ranks, the result has it."""
        kinds = {self.category(k.dtype): k for k in (left, right)}
        exact = kinds.keys() & {"int", "bool"}
        return kinds["float"].dtype if "float" in kinds and exact else None

    def _weaker(self, one: Kind, other: Kind) -> bool:
        """Whether a scalar tensor leaves the dtype of the other as it is."""
        weak, strong = (_STRENGTH.get(self.category(k.dtype)) for k in (one, other))
        loose = self.category(one.dtype) in ("inexact", "number")
        exact = not loose or one.dtype == other.dtype
        return weak is not None and strong is not None and exact and weak <= strong

    def _divide(self, left: Kind, right: Kind) -> int | None:
        parts = [k for k in (left, right) if k.is_tensor]
        if all(self.category(k.dtype) in ("float", "inexact") for k in parts):
            return self.promote(left, right)
        floating = self._one_float(left, right) if len(parts) == 2 else None
        if floating is not None:
            return floating
        certain = all(self.category(k.dtype) in ("bool", "int", "float") for k in parts)
        token = self.of("div", *(k.dtype for k in parts))
        return self._remember(token, "float" if certain else "inexact")

    def _remember(self, token: int, category: str | None) -> int:
        self._category[token] = category
        return token

    def float_of(self, token: int | None) -> int | None:
        """The dtype token of a function that makes floats of integers; what is complex stays so."""
        category = self.category(token)
        if category in ("float", "inexact"):
            return token
        made = "float" if category in ("bool", "int") else "inexact"
        return self._remember(self.of("float of", token), made)

    def broadcast(self, left: Kind, right: Kind) -> tuple[int | None, int | None, int]:
        """(shape token, rank, least rank) of an elementwise operation of two tensors or a tensor
        and a number."""
        tensors = [k for k in (left, right) if k.is_tensor]
        if len(tensors) == 1 or tensors[0].shape == tensors[1].shape or tensors[1].rank == 0:
            return tensors[0].shape, tensors[0].rank, tensors[0].low
        if tensors[0].rank == 0:
            return tensors[1].shape, tensors[1].rank, tensors[1].low
        ranks = [k.rank for k in tensors if k.rank is not None]
        rank = max(ranks) if len(ranks) == len(tensors) else None
        return (
            self.of("broadcast", left.shape, right.shape),
            rank,
            max(k.least_rank() for k in tensors),
        )

    def order_of(self, left: Kind, right: Kind) -> int | None:
        """The order in memory of an elementwise result: that of operands which agree in it."""
        orders = {k.order for k in (left, right) if k.is_tensor and k.rank != 0}
        return self.fresh() if len(orders) > 1 or None in orders else next(iter(orders), None)

    def device_of(self, left: Kind, right: Kind) -> int | None:
        tensors = [k for k in (left, right) if k.is_tensor]
        if len({k.device for k in tensors}) == 1:
            return tensors[0].device
        full = [k for k in tensors if k.rank != 0]
        return (
            full[0].device
            if len(full) == 1
            else self.of("devices", *sorted(k.device for k in tensors if k.device is not None))
        )

    def join(self, left: Kind, right: Kind) -> Kind:
        """What holds on both of two paths."""
        if left == right:
            return left
        if NONE in (left.what, right.what):
            other = right if left.what == NONE else left
            return replace(other, optional=True, const=NO_CONST) if other.what == TENSOR else ANY
        if left.what != right.what:
            given = [k for k in (left, right) if k.param]
            if len(given) == 1 and (left.is_tensor or right.is_tensor):
                return Kind(UNKNOWN, param=given[0].param)  # a tensor, if the parameter is one
            both = {left.what, right.what}
            return Kind(NUMBER, host=left.host or right.host) if both <= PYTHON_NUMBERS else ANY
        return self._join_same(left, right)

    def _join_same(self, left: Kind, right: Kind) -> Kind:
        host = left.host or right.host
        if not left.is_tensor:
            item = left.item if left.item == right.item else None
            pairs = zip(left.parts, right.parts, strict=False)
            alike = len(left.parts) == len(right.parts)
            parts = tuple(self.join(*pair) for pair in pairs) if alike else ()
            cls = left.cls if left.cls == right.cls else None
            return Kind(left.what, cls=cls, item=item, parts=parts, host=host)
        rank = left.rank if left.rank == right.rank else None
        return Kind(
            TENSOR,
            left.dtype if left.dtype == right.dtype else self._join_dtype(left.dtype, right.dtype),
            left.shape if left.shape == right.shape else self.fresh(),
            left.device if left.device == right.device else self.fresh(),
            rank,
            min(left.least_rank(), right.least_rank()),
            optional=left.optional or right.optional,
            fresh=left.fresh and right.fresh,
            made=left.made if left.made == right.made else None,
            strided=left.strided and right.strided,
            order=left.order if left.order == right.order else self.fresh(),
        )

    def at_head(self, joined: Kind, one: Kind, other: Kind, place: tuple[object, ...]) -> Kind:
        """The join of two tensors at a loop's head, with tokens that are the same at every turn."""
        category = self.category(joined.dtype)
        facts: dict[str, Any] = {
            fact: self.of("head", *place, fact, category)
            for fact in ("dtype", "shape", "device", "order")
            if getattr(one, fact) != getattr(other, fact)
        }
        if "dtype" in facts and category:
            self._remember(facts["dtype"], category)
        return replace(joined, **facts)

    def _join_dtype(self, left: int | None, right: int | None) -> int:
        same = self.category(left) == self.category(right) and self.category(left)
        return self._remember(self.fresh(), same) if same else self.fresh()


def literal(node: ast.AST) -> object:
    """The value of a literal, signs included; NO_CONST where it is none."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = literal(node.operand)
        return (
            -value if isinstance(value, (int, float)) and not isinstance(value, bool) else NO_CONST
        )
    return NO_CONST


def product_rank(left: Kind, right: Kind) -> int | None:
    """The rank of a matrix product; None where it is not known."""
    known: dict[tuple[int | None, int | None], int] = {(1, 1): 0, (1, 2): 1, (2, 1): 1, (2, 2): 2}
    return known.get((left.rank, right.rank))
