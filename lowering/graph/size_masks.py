"""Attention masks that hang on sizes alone, where only a call knows the sizes: proved, for every
size, to be all true or causal.

A tensor made of `arange` and constants is a function of its indices. `_Reader` writes down the
function of each node the mask is made of, and asks for it at indices that are symbols. Integers are
sums of such symbols and sizes, truths conjunctions of integers that are at least zero; whatever
needs more is given up.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Interpreter, Node

from ...runtime.diagnostics import log
from .backward_slice import needed


class _Unknown(Exception):
    """What is asked for is not written down."""


@dataclasses.dataclass(frozen=True)
class _Truth:
    """Whether all of these integers are at least zero: nothing, always."""

    parts: frozenset[sympy.Expr]


ALWAYS = _Truth(frozenset())
NEVER = _Truth(frozenset((sympy.Integer(-1),)))
Value: TypeAlias = Any  # sympy.Expr | _Truth | float
Index: TypeAlias = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class _Tensor:
    shape: Index
    at: Callable[[Index], Value]


def open_or_causal(gm: GraphModule, examples: Sequence[Any], mask: Node) -> str | None:
    """`open` if the mask is true (or zero) everywhere, `causal` if row i of a square sees the
    columns up to i alone; None where neither could be proved. Nothing may write to what the mask
    is made of."""
    try:
        reader = _Reader(gm, examples, mask)
        made = reader.tensor(mask)
        index = tuple(
            sympy.Integer(0) if size == 1 else sympy.Symbol(f"i{axis}", integer=True)
            for axis, size in enumerate(made.shape)
        )
        value = reader.proof(index, made.shape).simple(made.at(index))
    except _Unknown as problem:
        log.debug("what a mask is was not proved: %s", problem)
        return None
    if value in (ALWAYS, 0.0):
        return "open"
    square = len(index) >= 2 and made.shape[-1] == made.shape[-2] != 1
    sees = square and value == _Truth(frozenset((index[-2] - index[-1],)))
    return "causal" if sees else None


@dataclasses.dataclass(frozen=True)
class _Proof:
    """What is known: indices are at least zero and below their sizes, sizes at least zero."""

    reach: Mapping[sympy.Expr, sympy.Expr]
    sizes: frozenset[sympy.Symbol]

    def never_negative(self, number: sympy.Expr) -> bool:
        least = sympy.expand(number)
        for index, size in self.reach.items():
            step = least.coeff(index)
            if not step.is_Integer:
                return False
            least = sympy.expand(least - step * index + (step * (size - 1) if step < 0 else 0))
        return all(
            count >= 0 and (term == 1 or term in self.sizes)
            for term, count in least.as_coefficients_dict().items()
        )

    def simple(self, value: Value) -> Value:
        if not isinstance(value, _Truth):
            return value
        if any(self.never_negative(-part - 1) for part in value.parts):
            return NEVER
        return _Truth(frozenset(p for p in value.parts if not self.never_negative(p)))


class _Reader:
    """The nodes of a graph as functions of their indices."""

    def __init__(self, gm: GraphModule, examples: Sequence[Any], mask: Node) -> None:
        self.gm, self.examples, self.mask = gm, examples, mask
        self.known: dict[Node, _Tensor] = {}
        tensors = (each for each in examples if isinstance(each, torch.Tensor))
        given: list[Any] = [size for tensor in tensors for size in tensor.shape]
        found = (size.node.expr for size in given if isinstance(size, torch.SymInt))
        self.sizes = frozenset(size for size in found if size.is_Symbol)

    def proof(self, index: Index, shape: Index) -> _Proof:
        reach = {i: size for i, size in zip(index, shape, strict=True) if i.is_Symbol}
        return _Proof(reach, self.sizes)

    def tensor(self, node: Any) -> _Tensor:
        if not isinstance(node, Node) or is_size(node):
            value = self.size(node) if isinstance(node, Node) else _constant(node)
            return _Tensor((), lambda at: value)
        if node not in self.known:
            self.known[node] = self._read(node)
        return self.known[node]

    def _read(self, node: Node) -> _Tensor:
        name = str(getattr(node.target, "__name__", node.target)).strip("_")
        reader = getattr(self, f"read_{_SAME.get(name, name)}", None)
        if node.op not in ("call_function", "call_method") or reader is None:
            raise _Unknown(f"{node.op} {name}")
        try:
            made = reader(*node.args, **node.kwargs)
        except (TypeError, ValueError) as error:  # arguments that no reader has
            raise _Unknown(f"{name}: {error}") from error
        assert isinstance(made, _Tensor)
        return made

    def size(self, given: Any) -> sympy.Expr:
        """A size, as an expression over those that only a call knows."""
        if isinstance(given, Node):
            given = self._numbers[given]
        if isinstance(given, torch.SymInt):
            given = given.node.expr
        if isinstance(given, bool) or not isinstance(given, int | sympy.Expr):
            raise _Unknown(f"{given} is no size")
        return sympy.sympify(given)

    @functools.cached_property
    def _numbers(self) -> Mapping[Node, Any]:
        """Values of the numbers that the mask is made of, by a run on fake tensors."""
        asked = [node for node in needed([self.mask]) if is_size(node)]
        fakes = [each for each in self.examples if isinstance(each, FakeTensor)]
        if not fakes:
            raise _Unknown("no sizes are known")
        try:
            return _run(self.gm, self.examples, asked, fakes[0].fake_mode)
        except Exception as error:
            raise _Unknown(f"sizes cannot be told: {error}") from error

    # ---- what makes tensors

    def read_arange(self, *bounds: Any, dtype: Any = None, **_: Any) -> _Tensor:
        start, stop = (0, *bounds) if len(bounds) == 1 else bounds
        first = self.size(start)
        shape = (sympy.expand(self.size(stop) - first),)
        return _Tensor(shape, lambda at: _as_type(at[0] + first, dtype or torch.int64))

    def read_full(self, shape: Any, value: Any, dtype: Any = None, **_: Any) -> _Tensor:
        made = _as_type(_constant(value), dtype)
        return _Tensor(tuple(map(self.size, shape)), lambda at: made)

    def read_ones(self, *shape: Any, dtype: Any = torch.float32, **_: Any) -> _Tensor:
        return self.read_full(_listed(shape), 1, dtype)

    def read_zeros(self, *shape: Any, dtype: Any = torch.float32, **_: Any) -> _Tensor:
        return self.read_full(_listed(shape), 0, dtype)

    def read_new_ones(self, like: Any, *shape: Any, dtype: Any, **_: Any) -> _Tensor:
        return self.read_ones(*shape, dtype=dtype)

    def read_new_zeros(self, like: Any, *shape: Any, dtype: Any, **_: Any) -> _Tensor:
        return self.read_zeros(*shape, dtype=dtype)

    def read_tensor(self, value: Any, dtype: Any = None, **_: Any) -> _Tensor:
        return self.read_full((), value, dtype)

    # ---- other shapes

    def read_unsqueeze(self, given: Any, axis: int) -> _Tensor:
        of = self.tensor(given)
        axis %= len(of.shape) + 1
        shape = (*of.shape[:axis], sympy.Integer(1), *of.shape[axis:])
        return _Tensor(shape, lambda at: of.at((*at[:axis], *at[axis + 1 :])))

    def read_expand(self, given: Any, *shape: Any) -> _Tensor:
        of, asked = self.tensor(given), _listed(shape)
        more = len(asked) - len(of.shape)
        own = (*(None,) * more, *of.shape)
        sizes = [
            old if isinstance(new, int) and new == -1 else self.size(new)
            for old, new in zip(own, asked, strict=True)
        ]
        return _Tensor(tuple(sizes), lambda at: of.at(_own_index(of.shape, tuple(sizes), at)))

    def read_getitem(self, given: Any, asked: Any) -> _Tensor:
        of = self.tensor(given)
        asked = asked if isinstance(asked, tuple) else (asked,)
        if any(isinstance(each, Node) for each in asked):
            return self._at_positions(of, asked)
        shape, places, axis = list[sympy.Expr](), list[Any](), 0
        for each in asked:
            if each is None:
                shape.append(sympy.Integer(1))
                continue
            if not isinstance(each, slice) or each.start not in (None, 0) or each.step is not None:
                raise _Unknown(f"[{each}]")
            size = of.shape[axis]
            if each.stop is not None:
                if each.stop != 1 and size != each.stop:
                    raise _Unknown(f"[{each}]")
                size = sympy.Integer(each.stop)  # of an empty axis none is asked for
            places.append(len(shape))
            shape.append(size)
            axis += 1
        rest = len(of.shape) - axis
        places += range(len(shape), len(shape) + rest)
        made = (*shape, *of.shape[axis:])
        return _Tensor(tuple(made), lambda at: of.at(tuple(at[k] for k in places)))

    def _at_positions(self, of: _Tensor, asked: Sequence[Any]) -> _Tensor:
        """`x[i, j]` with a tensor for each axis."""
        if len(asked) != len(of.shape) or not all(isinstance(each, Node) for each in asked):
            raise _Unknown("some axes at positions")
        positions = [self.tensor(each) for each in asked]
        shape = _together([p.shape for p in positions])

        def at(index: Index) -> Value:
            proof = self.proof(index, shape)
            found = [p.at(_own_index(p.shape, shape, index)) for p in positions]
            for number, size in zip(found, of.shape, strict=True):
                within = isinstance(number, sympy.Expr) and proof.never_negative(number)
                if not within or not proof.never_negative(size - 1 - number):
                    raise _Unknown("positions that may lie outside")
            return of.at(tuple(found))

        return _Tensor(shape, at)

    def read_to(self, given: Any, *how: Any, **named: Any) -> _Tensor:
        if any(isinstance(each, Node) for each in (*how, *named.values())):
            raise _Unknown("the type of another tensor")
        kinds = [each for each in (*how, *named.values()) if isinstance(each, torch.dtype)]
        of = self.tensor(given)
        return _Tensor(of.shape, lambda at: _as_type(of.at(at), *kinds))

    def read_bool(self, given: Any) -> _Tensor:
        return self.read_to(given, torch.bool)

    # ---- along an axis

    def read_diff(self, given: Any, *, prepend: Any, dim: int = -1) -> _Tensor:
        of, before = self.tensor(given), self.tensor(prepend)
        dim %= len(of.shape)
        if before.shape[dim] != 1:
            raise _Unknown("diff")

        def at(index: Index) -> Value:
            def put(place: sympy.Expr) -> Index:
                return (*index[:dim], place, *index[dim + 1 :])

            zero = sympy.Integer(0)
            first = _difference(of.at(put(zero)), before.at(put(zero)))
            later = _difference(of.at(index), of.at(put(index[dim] - 1)))
            if index[dim] != 0 and first != later:
                raise _Unknown("diff")
            return first

        return _Tensor(of.shape, at)

    def read_cumsum(self, given: Any, dim: int) -> _Tensor:
        of = self.tensor(given)

        def at(index: Index) -> Value:
            each = _as_type(of.at(index), torch.int64)
            if not isinstance(each, sympy.Integer):
                raise _Unknown("cumsum")
            return each * (index[dim] + 1)

        return _Tensor(of.shape, at)

    # ---- element by element

    def _each(self, found: Callable[..., Value], *given: Any) -> _Tensor:
        """found: of the values, and a proof."""
        tensors = [self.tensor(each) for each in given]
        shape = _together([t.shape for t in tensors])

        def at(index: Index) -> Value:
            proof = self.proof(index, shape)
            values = [proof.simple(t.at(_own_index(t.shape, shape, index))) for t in tensors]
            return proof.simple(found(*values))

        return _Tensor(shape, at)

    def read_add(self, a: Any, b: Any) -> _Tensor:
        return self._each(lambda x, y: sympy.expand(_number(x) + _integer(y)), a, b)

    def read_sub(self, a: Any, b: Any) -> _Tensor:
        return self._each(_difference, a, b)

    def read_ge(self, a: Any, b: Any) -> _Tensor:
        return self._each(lambda x, y: _at_least(x, y), a, b)

    def read_le(self, a: Any, b: Any) -> _Tensor:
        return self._each(lambda x, y: _at_least(y, x), a, b)

    def read_gt(self, a: Any, b: Any) -> _Tensor:
        return self._each(lambda x, y: _at_least(x, _number(y) + 1), a, b)

    def read_lt(self, a: Any, b: Any) -> _Tensor:
        return self._each(lambda x, y: _at_least(y, _number(x) + 1), a, b)

    def read_eq(self, a: Any, b: Any) -> _Tensor:
        return self._each(_equal, a, b)

    def read_ne(self, a: Any, b: Any) -> _Tensor:
        return self._each(lambda x, y: _not(_equal(x, y)), a, b)

    def read_and(self, a: Any, b: Any) -> _Tensor:
        return self._each(lambda x, y: _Truth(_truth(x).parts | _truth(y).parts), a, b)

    def read_or(self, a: Any, b: Any) -> _Tensor:
        return self._each(_either, a, b)

    def read_not(self, a: Any) -> _Tensor:
        return self._each(_not, a)

    def read_where(self, condition: Any, a: Any, b: Any) -> _Tensor:
        return self._each(_chosen, condition, a, b)


_SAME = {
    "invert": "not",
    "logical_not": "not",
    "bitwise_not": "not",
    "logical_and": "and",
    "bitwise_and": "and",
    "and_": "and",
    "logical_or": "or",
    "bitwise_or": "or",
    "greater_equal": "ge",
    "less_equal": "le",
    "scalar_tensor": "tensor",
}


def is_size(node: Node) -> bool:
    """Whether the node is a size, or made of sizes."""
    if node.op == "call_method":
        return node.target == "size" and len(node.args) + len(node.kwargs) == 2
    home = getattr(node.target, "__module__", None)
    made_of = node.all_input_nodes
    arithmetic = node.op == "call_function" and home == operator.add.__module__
    return arithmetic and bool(made_of) and all(map(is_size, made_of))


def _run(gm: GraphModule, examples: Sequence[Any], asked: list[Node], mode: Any) -> dict[Node, Any]:
    wanted, values = needed(asked), dict[Node, Any]()
    interpreter = Interpreter(gm)
    interpreter.args_iter = iter(examples)
    with mode, torch.no_grad():
        for node in gm.graph.nodes:
            if node in wanted or node.op == "placeholder":
                interpreter.env = values
                values[node] = interpreter.run_node(node)
    return values


def _listed(shape: Sequence[Any]) -> Sequence[Any]:
    return shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape


def _together(shapes: Sequence[Index]) -> Index:
    """The shape that tensors of these shapes have together."""
    made: list[sympy.Expr] = []
    for axis in range(-max(map(len, shapes), default=0), 0):
        sizes = {shape[axis] for shape in shapes if len(shape) >= -axis} - {sympy.Integer(1)}
        if len(sizes) > 1:
            raise _Unknown(f"sizes {sizes} together")
        made.append(sizes.pop() if sizes else sympy.Integer(1))
    return tuple(made)


def _own_index(shape: Index, whole: Index, index: Index) -> Index:
    """Where a tensor of this shape is read for an element of the whole."""
    last = index[len(index) - len(shape) :]
    sizes = whole[len(whole) - len(shape) :]
    if any(own not in (1, size) for own, size in zip(shape, sizes, strict=True)):
        raise _Unknown("sizes that differ")
    return tuple(sympy.Integer(0) if own == 1 else i for own, i in zip(shape, last, strict=True))


def _constant(value: Any) -> Value:
    if isinstance(value, bool):
        return ALWAYS if value else NEVER
    if isinstance(value, int):
        return sympy.Integer(value)
    if isinstance(value, float):
        return value
    raise _Unknown(f"{value!r}")


def _as_type(value: Value, dtype: torch.dtype | None = None) -> Value:
    if dtype is None:
        return value
    if dtype == torch.bool:
        return _truth(value)
    if dtype.is_floating_point:
        if isinstance(value, sympy.Integer) or value in (ALWAYS, NEVER):
            return float(_number(value))
        if isinstance(value, float):
            return value
    elif dtype in (torch.int64, torch.int32) and not isinstance(value, float):
        return _number(value)
    raise _Unknown(f"as {dtype}")


def _number(value: Value) -> sympy.Expr:
    if value in (ALWAYS, NEVER):
        return sympy.Integer(value == ALWAYS)
    return _integer(value)


def _integer(value: Value) -> sympy.Expr:
    if isinstance(value, sympy.Expr):
        return value
    raise _Unknown(f"{value} is no integer")


def _truth(value: Value) -> _Truth:
    if isinstance(value, _Truth):
        return value
    if isinstance(value, sympy.Integer | float):
        return ALWAYS if value != 0 else NEVER
    raise _Unknown(f"whether {value} is zero")


def _difference(a: Value, b: Value) -> sympy.Expr:
    return sympy.expand(_number(a) - _number(b))


def _at_least(a: Value, b: Value) -> _Truth:
    return _Truth(frozenset((_difference(a, b),)))


def _equal(a: Value, b: Value) -> _Truth:
    rest = _difference(a, b)
    if rest.is_Integer:
        return ALWAYS if rest == 0 else NEVER
    return _Truth(frozenset((rest, sympy.expand(-rest))))


def _not(value: Value) -> _Truth:
    parts = _truth(value).parts
    if not parts:
        return NEVER
    if len(parts) > 1:
        raise _Unknown("not all of several")
    return _Truth(frozenset(sympy.expand(-part - 1) for part in parts))


def _either(a: Value, b: Value) -> _Truth:
    one, other = _truth(a), _truth(b)
    if ALWAYS in (one, other):
        return ALWAYS
    if NEVER in (one, other) or one == other:
        return other if one == NEVER else one
    raise _Unknown("one of several")


def _chosen(condition: Value, a: Value, b: Value) -> Value:
    sees = _truth(condition)
    if sees in (ALWAYS, NEVER) or a == b:
        return b if sees == NEVER else a
    raise _Unknown("a choice")
