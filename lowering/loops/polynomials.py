"""Sizes that are known at run time only: polynomials with integer coefficients over size variables.

A `Size` is a Python int or a `Poly`; a `Poly` is never a plain number, so the two never mix up and
a graph with known sizes holds ints alone. Equality is structural: unequal polynomials may well have
equal values. What Python would ask of an int (`<`, `bool`, `range`) raises `Unknown`; `hint` serves
heuristics, `at_least` proofs.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..lowerings.registry import Unsupported
from .nodes import Node, node

REMEMBERED = 1 << 14  # results of arithmetic


class UnknownSize(Unsupported, TypeError):
    """A question about a size that only a call can answer."""


@node
class Var(Node):
    """A number that a call finds in its inputs or, with a `formula`, computes from others; `least`
    <= it <= `most`.

    hint: its value in the call that was recorded. formula: "//", "%", "max" or "min" and its
    operands.
    """

    name: str
    hint: int
    least: int
    most: int | None = None
    formula: "tuple[str, tuple[Size, ...]] | None" = None

    @property
    def definition(self) -> str:
        """The formula as Python."""
        assert self.formula is not None
        name, operands = self.formula
        texts = [str(operand) for operand in operands]
        return f"{name}({', '.join(texts)})" if name.isalpha() else f"{texts[0]} {name} {texts[1]}"


Monomial = tuple[Var, ...]  # factors by name, repeated for powers


@node
class Poly(Node):
    """`sum(coefficient * product(monomial))`, highest degree first. Its text is an expression of
    C++ and of Python."""

    terms: tuple[tuple[Monomial, int], ...]

    def __str__(self) -> str:
        texts = [_term_text(monomial, factor) for monomial, factor in self.terms]
        return (
            texts[0]
            if len(texts) == 1 and self.terms[0][1] == 1 and "*" not in texts[0]
            else f"({' + '.join(texts)})"
        )

    __repr__ = __str__

    def __add__(self, other: Any) -> Any:
        return combine(self, other) if isinstance(other, int | Poly) else NotImplemented

    __radd__ = __add__

    def __neg__(self) -> Any:
        return self * -1

    def __sub__(self, other: Any) -> Any:
        return combine(self, other, -1) if isinstance(other, int | Poly) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return combine(other, self, -1) if isinstance(other, int | Poly) else NotImplemented

    def __mul__(self, other: Any) -> Any:
        return multiply(self, other) if isinstance(other, int | Poly) else NotImplemented

    __rmul__ = __mul__

    def __abs__(self) -> Any:
        size: Any = self
        if at_least(size, 0):
            return size
        if at_least(-size, 0):
            return -size
        raise UnknownSize(f"the sign of {self}")

    def _unknown(self, *_: Any) -> Any:
        raise UnknownSize(f"the value of {self}")

    __bool__ = __index__ = __int__ = __float__ = __lt__ = __le__ = __gt__ = __ge__ = _unknown
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __truediv__ = __rtruediv__ = __pow__ = (
        __rpow__
    ) = _unknown


if TYPE_CHECKING:  # a Poly stands wherever an int is written
    Size = int
else:
    Size = int | Poly


def _term_text(monomial: Monomial, factor: int) -> str:
    names = [var.name for var in monomial]
    number = [] if factor == 1 and names else [str(factor) if factor >= 0 else f"({factor})"]
    return " * ".join(names + number)


def _terms(size: Any) -> Mapping[Monomial, int]:
    return dict(size.terms) if isinstance(size, Poly) else {(): int(size)}


def _order(monomial: Monomial) -> tuple[Any, ...]:
    """A monomial order: by degree, then by names; the leading monomial is the least."""
    return -len(monomial), tuple(var.name for var in monomial)


def _made(terms: Mapping[Monomial, int]) -> Size:
    kept = sorted(((m, f) for m, f in terms.items() if f), key=lambda term: _order(term[0]))
    if not kept:
        return 0
    return kept[0][1] if len(kept) == 1 and not kept[0][0] else Poly(tuple(kept))  # type: ignore[return-value]


def variable(var: Var) -> Size:
    return Poly((((var,), 1),))  # type: ignore[return-value]


@lru_cache(REMEMBERED)
def combine(a: Any, b: Any, sign: int = 1) -> Size:
    """a + sign * b"""
    made = dict(_terms(a))
    for monomial, factor in _terms(b).items():
        made[monomial] = made.get(monomial, 0) + sign * factor
    return _made(made)


@lru_cache(REMEMBERED)
def multiply(a: Any, b: Any) -> Size:
    made: dict[Monomial, int] = {}
    for m1, f1 in _terms(a).items():
        for m2, f2 in _terms(b).items():
            both = tuple(sorted(m1 + m2, key=lambda var: var.name))
            made[both] = made.get(both, 0) + f1 * f2
    return _made(made)


def is_known(size: Size) -> bool:
    return not isinstance(size, Poly)


def variables(size: Any) -> Iterator[Var]:
    """The variables of the polynomial itself, not those of their formulas."""
    if isinstance(size, Poly):
        yield from dict.fromkeys(var for monomial, _ in size.terms for var in monomial)


def evaluate(size: Size, values: Mapping[Var, int]) -> int:
    if not isinstance(size, Poly):
        return size
    return sum(
        factor * math.prod(values[var] for var in monomial) for monomial, factor in size.terms
    )


def hint(size: Size) -> int:
    """The value in the recorded call: for heuristics alone."""
    if not isinstance(size, Poly):
        return size
    return sum(factor * math.prod(var.hint for var in monomial) for monomial, factor in size.terms)


def hints(sizes: Iterable[Size]) -> tuple[int, ...]:
    return tuple(hint(size) for size in sizes)


def least(size: Size) -> int | None:
    """A number that the size is never below."""
    return _least(size) if isinstance(size, Poly) else size


@lru_cache(REMEMBERED)
def _least(size: Any) -> int | None:
    total = 0
    for monomial, factor in _shifted(size).items():
        if factor < 0:
            ends = [None if var.most is None else var.most - var.least for var in monomial]
            if None in ends:
                return None
            factor *= math.prod(end for end in ends if end is not None)
        elif monomial:
            continue
        total += factor
    return total


def _shifted(size: Any) -> Mapping[Monomial, int]:
    """The polynomial in what each variable exceeds its least value by."""
    made: Counter[Monomial] = Counter()
    for monomial, factor in size.terms:
        parts: dict[Monomial, int] = {(): factor}
        for var in monomial:
            grown: Counter[Monomial] = Counter()
            for part, number in parts.items():
                grown[(*part, var)] += number
                grown[part] += number * var.least
            parts = dict(grown)
        made.update(parts)
    return made


def most(size: Size) -> int | None:
    """A number that the size is never above."""
    low = least(-size)
    return None if low is None else -low


def at_least(size: Size, bound: Size) -> bool:
    """Whether `size >= bound` is certain."""
    if not isinstance(size, Poly) and not isinstance(bound, Poly):
        return size >= bound
    low = least(size - bound)
    return low is not None and low >= 0


def below(size: Size, bound: Size) -> bool:
    """Whether `size < bound` is certain."""
    return at_least(bound, size + 1)


def divided(size: Size, divisor: Size) -> Size | None:
    """size / divisor where it is exact."""
    if not isinstance(size, Poly) and not isinstance(divisor, Poly):
        return size // divisor if divisor and size % divisor == 0 else None
    whole, rest = _long_division(size, divisor)
    return whole if rest == 0 else None


def floor_divided(size: Size, divisor: Size) -> Size | None:
    """size // divisor where it is certain."""
    whole, rest = split(size, divisor)
    return whole if at_least(rest, 0) and below(rest, divisor) else None


def split(size: Size, divisor: Size) -> tuple[Size, Size]:
    """(q, r) with `size == q * divisor + r`; 0 <= r < divisor where that can be had."""
    if is_known(size) and is_known(divisor):
        return size // divisor, size % divisor
    whole, rest = _long_division(size, divisor)
    if at_least(rest, 0) and below(rest, divisor):
        return whole, rest
    if at_least(-rest, 1) and at_least(rest, -divisor):
        return whole - 1, rest + divisor
    return (whole, rest) if is_known(divisor) else (0, size)


@lru_cache(REMEMBERED)
def _long_division(size: Size, divisor: Size) -> tuple[Size, Size]:
    """(q, r) with `size == q * divisor + r`: the terms that the divisor's leading one divides go to
    q, coefficients rounded down."""
    if divisor == 0:
        return 0, size
    lead, factor = next(iter(_terms(divisor).items()))
    whole: Size = 0
    rest: Size = 0
    while size != 0:
        top, number = next(iter(_terms(size).items()))
        powers = Counter(top)
        powers.subtract(lead)
        fits = min(powers.values(), default=0) >= 0
        part = (
            _made({tuple(sorted(powers.elements(), key=lambda var: var.name)): number // factor})
            if fits
            else 0
        )
        left = _made({top: number - number // factor * factor if fits else number})
        whole, rest, size = whole + part, rest + left, size - part * divisor - left
    return whole, rest


def common(a: Size, b: Size) -> list[Size]:
    """Divisors of both that are not 1, the likeliest largest first; the greatest one of two known
    sizes."""
    if not isinstance(a, Poly) and not isinstance(b, Poly):
        return [d for d in (math.gcd(a, b),) if d != 1]
    return list(_common(a, b))


@lru_cache(REMEMBERED)
def _common(a: Any, b: Any) -> tuple[Size, ...]:
    monomials = [Counter(m) for size in (a, b) for m in _terms(size)]
    shared = monomials[0]
    for other in monomials[1:]:
        shared = shared & other
    content = math.gcd(*(f for size in (a, b) for f in _terms(size).values()))
    found = [_made({tuple(sorted(shared.elements(), key=lambda var: var.name)): content})]
    found += [two for one, two in ((a, b), (b, a)) if divided(one, two) is not None]
    return tuple(
        sorted({d for d in found if d != 1 and at_least(d, 2)}, key=lambda d: (-hint(d), str(d)))
    )
