"""torch's symbolic integers as sizes: which variables a call finds in its inputs, and what follows
from them."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import (
    FloorDiv,
    Max,
    Min,
    Mod,
    ModularIndexing,
    PowByNatural,
    PythonMod,
)
from torch.utils._sympy.value_ranges import bound_sympy

from ..lowerings.registry import Unsupported
from . import polynomials
from .polynomials import Size, Var, at_least

UNBOUNDED = -(2**63)
OPERATIONS: dict[Any, tuple[str, Callable[..., int]]] = {
    FloorDiv: ("//", lambda a, b: a // b),
    Mod: ("%", lambda a, b: a % b),
    PythonMod: ("%", lambda a, b: a % b),
    Max: ("max", max),
    Min: ("min", min),
}


@dataclasses.dataclass(frozen=True)
class SizeVariable:
    """A size variable and the Python expression that finds it in the inputs, by their names. uses:
    other variables in it."""

    var: Var
    text: str
    uses: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Source:
    """An input's number: sympy's expression for it, and how to read it. is_sure: not the stride of
    what may be an axis of one element, which is any number in a gradient that autograd hands in."""

    value: torch.SymInt
    text: str
    is_sure: bool = True

    @property
    def expr(self) -> sympy.Expr:
        return self.value.node.expr


class GraphSymbols:
    """The symbolic integers of one graph."""

    def __init__(self, inputs: Sequence[tuple[str, Any]] = ()) -> None:
        """inputs: names and example values of the graph's placeholders."""
        self.variables: list[SizeVariable | Var] = []  # in an order in which each can be computed
        self._known: dict[sympy.Expr, Size] = {}
        self._made = 0
        sources = list(_sources(inputs))
        self._find([source for source in sources if source.is_sure])
        self.sure = frozenset(self._known)  # what no stride of an axis of one element says
        self._find(sources)

    def _find(self, sources: list[_Source]) -> None:
        for source in sources:
            if source.expr.is_Symbol and source.expr not in self._known:
                self._define(source, source.expr, source.value.node.hint, source.text)
        while any(self._solve(source) for source in sources):
            pass
        for source in sources:
            if source.expr in self._known or self._expressible(source.expr):
                continue
            if _is_one(source.expr, source.value.node.shape_env):
                self._known[source.expr] = 1
            else:
                self._define(source, source.expr, source.value.node.hint, source.text)

    def size(self, value: Any) -> Size:
        """The number as a size; raises Unsupported for one that no call can compute from its
        inputs."""
        if isinstance(value, torch.SymInt):
            return self._size(value.node.expr, value.node.shape_env)
        if isinstance(value, int):
            return value
        raise Unsupported(f"a size of type {type(value).__name__}")

    def shape(self, value: torch.Tensor) -> tuple[Size, ...]:
        return tuple(self.size(size) for size in value.shape)

    def strides(self, value: torch.Tensor) -> tuple[Size, ...]:
        """The strides, as if no axis were empty: torch's `Max(1, size)` in a stride counts for an
        empty tensor alone."""
        return tuple(
            self._size(_no_empty(stride.node.expr), stride.node.shape_env)
            if isinstance(stride, torch.SymInt)
            else stride
            for stride in value.stride()
        )

    def quotient(self, size: Size, divisor: int) -> Size:
        """size // divisor, computed once a call; the size is not below zero."""
        whole = polynomials.floor_divided(size, divisor)
        if whole is not None:
            return whole
        formula = ("//", (size, divisor))
        known = [v for v in self.variables if isinstance(v, Var) and v.formula == formula]
        if not known:
            self._made += 1
            known = [Var(f"n{self._made}", polynomials.hint(size) // divisor, 0, None, formula)]
            self.variables += known
        return polynomials.variable(known[0])

    def _define(
        self, source: _Source, expr: sympy.Expr, hint: int, text: str, uses: tuple[str, ...] = ()
    ) -> None:
        var = self._variable(expr, source.value.node.shape_env, hint, None)
        self.variables.append(SizeVariable(var, text, uses))

    def _variable(self, expr: sympy.Expr, env: Any, hint: int, formula: Any) -> Var:
        low, high = _range(expr, env)
        self._made += 1
        var = Var(f"n{self._made}", hint, low, high, formula)
        self._known[expr] = polynomials.variable(var)
        return var

    def _solve(self, source: _Source) -> bool:
        """Whether the source gave a symbol that was not known: the one of a linear expression."""
        unknown = [symbol for symbol in source.expr.free_symbols if symbol not in self._known]
        if len(unknown) != 1 or not source.expr.is_polynomial(*source.expr.free_symbols):
            return False
        expr = sympy.expand(source.expr)
        factor = expr.coeff(unknown[0])
        rest = sympy.expand(expr - factor * unknown[0])
        if unknown[0] in (factor.free_symbols | rest.free_symbols) or not self._expressible(factor):
            return False
        env = source.value.node.shape_env
        by, less = self._size(factor, env), self._size(rest, env)
        if not at_least(by, 1):
            return False
        hint = (source.value.node.hint - polynomials.hint(less)) // polynomials.hint(by)
        uses = tuple(var.name for part in (by, less) for var in polynomials.variables(part))
        self._define(source, unknown[0], hint, f"({source.text} - {less}) // {by}", uses)
        return True

    def _expressible(self, expr: sympy.Expr) -> bool:
        return all(symbol in self._known for symbol in expr.free_symbols)

    def _size(self, expr: sympy.Expr, env: Any) -> Size:
        if expr in self._known:
            return self._known[expr]
        if expr.is_Integer:
            return int(expr)
        if _is_one(expr, env):
            self._known[expr] = 1
            return 1
        if isinstance(expr, sympy.Add | sympy.Mul):
            parts = [self._size(arg, env) for arg in expr.args]
            return sum(parts) if isinstance(expr, sympy.Add) else math.prod(parts)
        if (
            isinstance(expr, sympy.Pow | PowByNatural)
            and expr.args[1].is_Integer
            and 0 < expr.args[1] <= 8
        ):
            return math.prod([self._size(expr.args[0], env)] * int(expr.args[1]))
        if isinstance(expr, ModularIndexing):
            base, divisor, modulus = expr.args
            return self._size(PythonMod(FloorDiv(base, divisor), modulus), env)
        operation = next((OPERATIONS[kind] for kind in OPERATIONS if isinstance(expr, kind)), None)
        if operation is None:
            raise Unsupported(f"a size of the form {expr}")
        return self._computed(expr, env, *operation)

    def _computed(
        self, expr: sympy.Expr, env: Any, name: str, function: Callable[..., int]
    ) -> Size:
        """A variable for what is no polynomial, computed once a call."""
        operands = tuple(self._size(arg, env) for arg in expr.args)
        if name in ("//", "%"):
            if not at_least(operands[1], 1):
                raise Unsupported(f"division by {operands[1]}, which may be zero")
            whole = polynomials.floor_divided(*operands)
            if whole is not None:
                return whole if name == "//" else operands[0] - whole * operands[1]
        var = self._variable(expr, env, function(*polynomials.hints(operands)), (name, operands))
        self.variables.append(var)
        return self._known[expr]


def _sources(inputs: Iterable[tuple[str, Any]]) -> Iterator[_Source]:
    """Numbers first, which cost nothing to read, then sizes, then strides."""
    tensors = [(name, value) for name, value in inputs if isinstance(value, torch.Tensor)]
    numbers = [(name, value) for name, value in inputs if isinstance(value, torch.SymInt)]
    found: list[tuple[Any, ...]] = [(value, name) for name, value in numbers]
    found += [
        (n, f"{name}.size({d})") for name, value in tensors for d, n in enumerate(value.shape)
    ]
    strided = [(name, value) for name, value in tensors if value.layout == torch.strided]
    found += [
        (n, f"{name}.stride({d})", _least(value.shape[d]) > 1 and min(map(_least, value.shape)) > 0)
        for name, value in strided
        for d, n in enumerate(value.stride())
    ]
    return (
        _Source(n, *how)
        for n, *how in found
        if isinstance(n, torch.SymInt) and n.node.hint is not None
    )


def _least(size: int | torch.SymInt) -> int:
    return size if isinstance(size, int) else _range(size.node.expr, size.node.shape_env)[0]


def _is_one(expr: sympy.Expr, env: Any) -> bool:
    """Whether tracing relied on the number to be one, as of a size that was stretched: then the
    graph's guards hold it. Asking adds none."""
    return bool(env._maybe_evaluate_static(sympy.Eq(expr, 1)) == sympy.true)


def _no_empty(expr: sympy.Expr) -> sympy.Expr:
    return expr.replace(
        lambda e: isinstance(e, Max) and len(e.args) == 2 and sympy.Integer(1) in e.args,
        lambda e: next(arg for arg in e.args if arg != 1),
    )


def _range(expr: sympy.Expr, env: Any) -> tuple[int, int | None]:
    """The least and the greatest value, as far as guards that are taken already say."""
    bounds = bound_sympy(expr, env.var_to_range)
    low, high = (
        int(end) if getattr(end, "is_Integer", False) else None
        for end in (bounds.lower, bounds.upper)
    )
    return UNBOUNDED if low is None else low, high
