"""Integers of the loop IR: axes, index expressions and their simplification.

An `Index` is a canonical sum `offset + coefficient * atom + ...`; an atom is a loop axis, a floor
division or modulo of an index, or (in `ir`) an integer loaded from memory. Sizes, coefficients and
offsets are ints, or `poly.Poly` where only a call knows them. What is simplified is certain for
every call: a question without a certain answer leaves an index as it is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any

from .nodes import Node, node
from .polynomials import (
    Size as Size,
)
from .polynomials import (
    at_least,
    below,
    common,
    divided,
    floor_divided,
    hint,
    is_known,
    split,
)

KEPT = 1 << 15  # results remembered of a function: graphs repeat the same few index maps
Bounds = tuple[Size, Size]  # None for an end that is not known


class Atom(Node):
    """A term of an index that is not a number."""

    @property
    def may_raise(self) -> bool:
        """Whether a call may give it a value that is an error."""
        return False

    @property
    def text(self) -> str:
        raise NotImplementedError

    def bounds(self) -> Bounds:
        """Smallest and largest value, inclusive; None for one that is not known."""
        raise NotImplementedError

    def replace(self, rewrite: Callable[["Atom"], "Index"]) -> "Index":
        """The atom as an index after `rewrite` was applied to the axes below it."""
        raise NotImplementedError


@node
class Axis(Atom):
    """Loop axis `number` of a nest (its `space` axes come first, then `inner`), running from 0 to
    `size` - 1."""

    number: int
    size: Size

    @property
    def text(self) -> str:
        return f"i{self.number}"

    def bounds(self) -> Bounds:
        return 0, last(self.size)

    def replace(self, rewrite: Callable[[Atom], "Index"]) -> "Index":
        return rewrite(self)


@node
class Index(Node):
    """`offset + sum(coefficient * atom)`. Build it with the functions below, which keep it
    canonical."""

    terms: tuple[tuple[Atom, Size], ...]
    offset: Size

    @property
    def text(self) -> str:
        parts = [
            atom.text if factor == 1 else f"{factor}*{atom.text}" for atom, factor in self.terms
        ]
        return " + ".join(parts + [str(self.offset)] * (self.offset != 0 or not parts))


@node
class FloorDiv(Atom):
    base: Index
    divisor: Size

    @property
    def text(self) -> str:
        return f"(({self.base.text}) // {self.divisor})"

    def bounds(self) -> Bounds:
        low, high = bounds(self.base)
        return _floor_end(low, self.divisor, 0), _floor_end(high, self.divisor, high)

    def replace(self, rewrite: Callable[[Atom], Index]) -> Index:
        return floordiv(replace(self.base, rewrite), self.divisor)


@node
class Mod(Atom):
    base: Index
    divisor: Size

    @property
    def text(self) -> str:
        return f"(({self.base.text}) % {self.divisor})"

    def bounds(self) -> Bounds:
        return 0, self.divisor - 1

    def replace(self, rewrite: Callable[[Atom], Index]) -> Index:
        return mod(replace(self.base, rewrite), self.divisor)


ZERO = Index((), 0)


def last(size: Size) -> Size:
    """The last position of an axis."""
    return max(size - 1, 0) if is_known(size) else size - 1


def _floor_end(end: Any, divisor: Size, coarse: Any) -> Any:
    """end // divisor; where it is not certain, `coarse` if the end is not negative, which the
    quotient then is not beyond."""
    if end is None:
        return None
    if is_known(end) and is_known(divisor):
        return end // divisor
    whole = floor_divided(end, divisor)
    return whole if whole is not None else coarse if at_least(end, 0) else None


def const(value: Size) -> Index:
    return Index((), value)


def atom_index(atom: Atom, factor: Size = 1) -> Index:
    """`factor * atom` as an index; an axis of size 1 is always 0."""
    if factor == 0 or (atom.bounds() == (0, 0) and not atom.may_raise):
        return ZERO
    return Index(((atom, factor),), 0)


def add(*indices: Index) -> Index:
    factors: dict[Atom, Size] = {}
    for index in indices:
        for atom, factor in index.terms:
            factors[atom] = factors.get(atom, 0) + factor
    return _canonical(factors, sum(index.offset for index in indices))


@lru_cache(KEPT)
def scale(index: Index, factor: Size) -> Index:
    return _canonical({atom: f * factor for atom, f in index.terms}, index.offset * factor)


def _canonical(factors: dict[Atom, Size], offset: Size) -> Index:
    """Drop zero terms, sort, and join `k*d*(e // d) + k*(e % d)` into `k*e`, as well as
    `k*d*(e // d % n) + k*(e % d)` into `k*(e % (d*n))`."""
    factors = {atom: factor for atom, factor in factors.items() if factor != 0}
    for atom, factor in factors.items():
        if isinstance(atom, Mod):
            quotient = scale(floordiv(atom.base, atom.divisor), factor * atom.divisor)
            if quotient.terms and all(factors.get(a) == f for a, f in quotient.terms):
                rest = {
                    a: f
                    for a, f in factors.items()
                    if a is not atom and all(a is not q for q, _ in quotient.terms)
                }
                return add(_canonical(rest, offset - quotient.offset), scale(atom.base, factor))
            joined = _next_digit(atom, factor, factors)
            if joined is not None:
                rest = {a: f for a, f in factors.items() if a is not atom and a is not joined[0]}
                return add(_canonical(rest, offset), scale(joined[1], factor))
    terms = factors.items()
    ordered = sorted(terms, key=lambda term: term[0].text) if len(factors) > 1 else terms
    return Index(tuple(ordered), offset)


def _next_digit(atom: Mod, factor: Size, factors: Mapping[Atom, Size]) -> tuple[Atom, Index] | None:
    """The term that goes on where `factor * atom` ends, and the remainder that both make."""
    step = factor * atom.divisor
    found = [a for a, f in factors.items() if isinstance(a, Mod) and a is not atom and f == step]
    quotient = floordiv(atom.base, atom.divisor) if found else ZERO
    for other in found:
        if other.base is quotient:
            whole = mod(atom.base, atom.divisor * other.divisor)
            if len(whole.terms) == 1 and isinstance(whole.terms[0][0], Mod):
                return other, whole
    return None


def bounds(index: Index) -> Bounds:
    """Smallest and largest value of the index over all values of its axes (exact when no atom
    shares an axis); None for an end that is not known."""
    low: Any = index.offset
    high: Any = index.offset
    for atom, factor in index.terms:
        first, final = _scaled(atom.bounds(), factor)
        low = None if low is None or first is None else low + first
        high = None if high is None or final is None else high + final
    return low, high


def _scaled(ends: Bounds, factor: Size) -> Bounds:
    first, final = (None if end is None else end * factor for end in ends)
    if at_least(factor, 0):
        return first, final
    return (final, first) if at_least(-factor, 0) else (None, None)  # type: ignore[return-value]


def nonnegative(index: Index) -> bool:
    """Whether the index is certain to be 0 or more."""
    low: Any = bounds(index)[0]
    return low is not None and at_least(low, 0)


def within(index: Index, size: Size) -> bool:
    """Whether the index is certain to be less than `size`."""
    high: Any = bounds(index)[1]
    return high is not None and below(high, size)


def never_equal(one: Index, other: Index) -> bool:
    """Whether two indices have no value in common, whatever their axes are: at each point of the
    axes further out, which count in the same steps, they take numbers side by side."""
    terms = [*one.terms, *other.terms]
    for least in sorted({factor for _, factor in terms if is_known(factor)}, reverse=True):
        if _side_by_side(one, other, least):
            return True
    return _side_by_side(one, other, None)


def _side_by_side(one: Index, other: Index, least: Size | None) -> bool:
    """Whether that holds with the steps from `least` on as those of the axes further out."""
    counts: dict[int, int] = {}
    ranges = []
    for index in (one, other):
        outer = [(a, f) for a, f in index.terms if least is not None and at_least(f, least)]
        rest = Index(tuple(term for term in index.terms if term not in outer), index.offset)
        ranges.append(bounds(rest))
        for atom, factor in outer:
            low, high = atom.bounds()
            if not (is_known(factor) and is_known(high) and low == 0):
                return False
            counts[factor] = counts.get(factor, 0) + high
    ends = [end for each in ranges for end in each]
    if not all(end is not None and is_known(end) for end in ends):
        return False
    (low, high), (first, last) = ranges
    reach = max(ends) - min(ends)
    for step in sorted(counts):
        if step <= reach:
            return False
        reach += step * counts[step]
    return high < first or last < low


def _split(index: Index, divisor: Size) -> tuple[Index, Index]:
    """`index == divisor * quotient + rest`, with every multiple of the divisor moved into the
    quotient."""
    whole: dict[Atom, Size] = {}
    rest: dict[Atom, Size] = {}
    for atom, factor in index.terms:
        exact = divided(factor, divisor)
        if exact is None:
            rest[atom] = factor
        else:
            whole[atom] = exact
    parts = split(index.offset, divisor)
    return _canonical(whole, parts[0]), _canonical(rest, parts[1])


def _one_quotient(index: Index, divisor: Size) -> Size | None:
    """`index // divisor` where it is certain to be the same number all over."""
    low, high = bounds(index)
    if (
        is_known(low)
        and is_known(high)
        and is_known(divisor)
        and low is not None
        and high is not None
    ):
        return low // divisor if low // divisor == high // divisor else None
    return 0 if nonnegative(index) and within(index, divisor) else None


@lru_cache(KEPT)
def floordiv(index: Index, divisor: Size) -> Index:
    if divisor == 1:
        return index
    quotient, rest = _split(index, divisor)
    number = _one_quotient(rest, divisor)
    if number is not None:
        return add(quotient, const(number))
    return add(quotient, _floordiv_rest(rest, divisor))


def _shared_divisors(rest: Index, divisor: Size) -> list[Size]:
    found = {d for _, factor in rest.terms for d in common(divisor, factor)}
    return sorted(found, key=lambda d: (-hint(d), str(d)))


def _carry_free(rest: Index, divisor: Size) -> tuple[Size, Index, Index] | None:
    """`rest == d * big + small` with d > 1 a factor of the divisor and 0 <= small < d: `small`
    decides no quotient by the divisor."""
    for d in _shared_divisors(rest, divisor):
        factors = [(atom, factor, divided(factor, d)) for atom, factor in rest.terms]
        whole, offset = split(rest.offset, d)
        small = Index(tuple((a, f) for a, f, exact in factors if exact is None), offset)
        if nonnegative(small) and within(small, d):
            return (
                d,
                Index(tuple((a, exact) for a, _, exact in factors if exact is not None), whole),
                small,
            )
    return None


def _part(divisor: Size, d: Size) -> Size:
    """What is left of a divisor whose factor `d` was divided out."""
    left = divided(divisor, d)
    assert left is not None
    return left


def _floordiv_rest(rest: Index, divisor: Size) -> Index:
    parts = _carry_free(rest, divisor)
    if parts is not None:
        return floordiv(parts[1], _part(divisor, parts[0]))
    if len(rest.terms) == 1 and rest.offset == 0 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, FloorDiv):
            return floordiv(atom.base, atom.divisor * divisor)
        if isinstance(atom, Mod) and (inside := divided(atom.divisor, divisor)) is not None:
            return mod(floordiv(atom.base, divisor), inside)
    return atom_index(FloorDiv(rest, divisor))


@lru_cache(KEPT)
def mod(index: Index, divisor: Size) -> Index:
    if divisor == 1:
        return ZERO
    _, rest = _split(index, divisor)
    number = _one_quotient(rest, divisor)
    if number is not None:
        return add(rest, const(-number * divisor))
    parts = _carry_free(rest, divisor)
    if parts is not None:
        return add(scale(mod(parts[1], _part(divisor, parts[0])), parts[0]), parts[2])
    if len(rest.terms) == 1 and rest.offset == 0 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, Mod) and divided(atom.divisor, divisor) is not None:
            return mod(atom.base, divisor)
    return atom_index(Mod(rest, divisor))


def replace(index: Index, rewrite: Callable[[Atom], Index]) -> Index:
    """The index with every axis below it replaced by `rewrite(axis)`, simplified."""
    return add(
        const(index.offset), *(scale(atom.replace(rewrite), factor) for atom, factor in index.terms)
    )


def substitute(index: Index, axes: Mapping[Atom, Index]) -> Index:
    return replace(index, lambda axis: axes[axis] if axis in axes else atom_index(axis))


@lru_cache(KEPT)
def moved(index: Index, places: tuple[tuple[Atom, Index], ...]) -> Index:
    """`substitute` for axes that many indices share."""
    return substitute(index, dict(places))


def make_axes(sizes: Sequence[Size], start: int = 0) -> tuple[Axis, ...]:
    return tuple(Axis(start + i, size) for i, size in enumerate(sizes))


def linear(axes: Iterable[Atom | Index], strides: Iterable[Size], offset: Size = 0) -> Index:
    """`offset + sum(axis * stride)`: where a strided tensor keeps an element."""
    return _linear(tuple(axes), tuple(strides), offset)


@lru_cache(KEPT)
def _linear(axes: tuple[Atom | Index, ...], strides: tuple[Size, ...], offset: Size) -> Index:
    terms = (
        scale(a if isinstance(a, Index) else atom_index(a), s)
        for a, s in zip(axes, strides, strict=True)
    )
    return add(const(offset), *terms)


def delinear(index: Index, sizes: Sequence[Size]) -> tuple[Index, ...]:
    """Coordinates of flat position `index` in a row-major block of `sizes`: the inverse of `linear`
    with contiguous strides."""
    return _delinear(index, tuple(sizes))


@lru_cache(KEPT)
def _delinear(index: Index, sizes: tuple[Size, ...]) -> tuple[Index, ...]:
    return tuple(
        mod(floordiv(index, prod(sizes[d + 1 :])), size) if d else floordiv(index, prod(sizes[1:]))
        for d, size in enumerate(sizes)
    )


def contiguous_strides(sizes: Sequence[Size]) -> tuple[Size, ...]:
    """Row-major strides; sizes of 0 and 1 count as 1, as in torch."""
    steps = [max(s, 1) if is_known(s) else s for s in sizes]
    return tuple(prod(steps[d + 1 :]) for d in range(len(sizes)))


def coefficient(index: Index, axis: Atom) -> Size:
    return next((factor for atom, factor in index.terms if atom is axis), 0)


def mixed_radix(steps: list[tuple[Size, Axis]]) -> bool:
    """Whether different points of the axes never give the same sum, nor one less than the smallest
    step apart."""
    steps = sorted(steps, key=lambda step: hint(step[0]))
    return all(at_least(big, small * axis.size) for (small, axis), (big, _) in pairwise(steps))
