"""Integers of the loop IR: axes, index expressions and their simplification.

An `Index` is a canonical sum `offset + coefficient * atom + ...`; an atom is a loop axis, a floor division or modulo of
an index, or (in `ir`) an integer loaded from memory. All sizes are Python ints: a graph with symbolic sizes never
reaches the loop IR. This module alone knows how integers are represented, so symbolic sizes come in here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import gcd, prod

from .nodes import Node, node

Size = int


class Atom(Node):
    """A term of an index that is not a number."""

    @property
    def text(self) -> str:
        raise NotImplementedError

    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value, inclusive."""
        raise NotImplementedError

    def replace(self, rewrite: Callable[["Atom"], "Index"]) -> "Index":
        """The atom as an index after `rewrite` was applied to the axes below it."""
        raise NotImplementedError


@node
class Axis(Atom):
    """Loop axis `number` of a nest (its `space` axes come first, then `inner`), running from 0 to `size` - 1."""

    number: int
    size: Size

    @property
    def text(self) -> str:
        return f"i{self.number}"

    def bounds(self) -> tuple[int, int]:
        return 0, max(self.size - 1, 0)

    def replace(self, rewrite: Callable[[Atom], "Index"]) -> "Index":
        return rewrite(self)


@node
class Index(Node):
    """`offset + sum(coefficient * atom)`. Build it with the functions below, which keep it canonical."""

    terms: tuple[tuple[Atom, int], ...]
    offset: int

    @property
    def text(self) -> str:
        parts = [atom.text if factor == 1 else f"{factor}*{atom.text}" for atom, factor in self.terms]
        return " + ".join(parts + [str(self.offset)] * (self.offset != 0 or not parts))


@node
class FloorDiv(Atom):
    base: Index
    divisor: int

    @property
    def text(self) -> str:
        return f"(({self.base.text}) // {self.divisor})"

    def bounds(self) -> tuple[int, int]:
        low, high = bounds(self.base)
        return low // self.divisor, high // self.divisor

    def replace(self, rewrite: Callable[[Atom], Index]) -> Index:
        return floordiv(replace(self.base, rewrite), self.divisor)


@node
class Mod(Atom):
    base: Index
    divisor: int

    @property
    def text(self) -> str:
        return f"(({self.base.text}) % {self.divisor})"

    def bounds(self) -> tuple[int, int]:
        return 0, self.divisor - 1

    def replace(self, rewrite: Callable[[Atom], Index]) -> Index:
        return mod(replace(self.base, rewrite), self.divisor)


ZERO = Index((), 0)


def const(value: int) -> Index:
    return Index((), value)


def atom_index(atom: Atom, factor: int = 1) -> Index:
    """`factor * atom` as an index; an axis of size 1 is always 0."""
    if factor == 0 or atom.bounds() == (0, 0):
        return ZERO
    return Index(((atom, factor),), 0)


def add(*indices: Index) -> Index:
    factors: dict[Atom, int] = {}
    for index in indices:
        for atom, factor in index.terms:
            factors[atom] = factors.get(atom, 0) + factor
    return _canonical(factors, sum(index.offset for index in indices))


def scale(index: Index, factor: int) -> Index:
    return _canonical({atom: f * factor for atom, f in index.terms}, index.offset * factor)


def _canonical(factors: dict[Atom, int], offset: int) -> Index:
    """Drop zero terms, sort, and join `k*d*(e // d) + k*(e % d)` into `k*e`."""
    factors = {atom: factor for atom, factor in factors.items() if factor}
    for atom, factor in factors.items():
        if isinstance(atom, Mod):
            quotient = scale(floordiv(atom.base, atom.divisor), factor * atom.divisor)
            if quotient.terms and all(factors.get(a) == f for a, f in quotient.terms):
                rest = {
                    a: f for a, f in factors.items() if a is not atom and all(a is not q for q, _ in quotient.terms)
                }
                return add(_canonical(rest, offset - quotient.offset), scale(atom.base, factor))
    return Index(tuple(sorted(factors.items(), key=lambda term: term[0].text)), offset)


def bounds(index: Index) -> tuple[int, int]:
    """Smallest and largest value of the index over all values of its axes (exact when no atom shares an axis)."""
    low = high = index.offset
    for atom, factor in index.terms:
        ends = [end * factor for end in atom.bounds()]
        low, high = low + min(ends), high + max(ends)
    return low, high


def _split(index: Index, divisor: int) -> tuple[Index, Index]:
    """`index == divisor * quotient + rest`, with every multiple of the divisor moved into the quotient."""
    whole = {a: f // divisor for a, f in index.terms if f % divisor == 0}
    rest = {a: f for a, f in index.terms if f % divisor}
    return _canonical(whole, index.offset // divisor), _canonical(rest, index.offset % divisor)


def floordiv(index: Index, divisor: int) -> Index:
    if divisor == 1:
        return index
    quotient, rest = _split(index, divisor)
    low, high = bounds(rest)
    if low // divisor == high // divisor:
        return add(quotient, const(low // divisor))
    return add(quotient, _floordiv_rest(rest, divisor))


def _carry_free(rest: Index, divisor: int) -> tuple[int, Index, Index] | None:
    """`rest == d * big + small` with d > 1 a factor of the divisor and 0 <= small < d: `small` decides no quotient by the divisor."""
    for d in sorted({gcd(divisor, factor) for _, factor in rest.terms} - {1}, reverse=True):
        small = Index(tuple((a, f) for a, f in rest.terms if f % d), rest.offset % d)
        low, high = bounds(small)
        if low >= 0 and high < d:
            return d, Index(tuple((a, f // d) for a, f in rest.terms if f % d == 0), rest.offset // d), small
    return None


def _floordiv_rest(rest: Index, divisor: int) -> Index:
    parts = _carry_free(rest, divisor)
    if parts is not None:
        return floordiv(parts[1], divisor // parts[0])
    if len(rest.terms) == 1 and rest.offset == 0 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, FloorDiv):
            return floordiv(atom.base, atom.divisor * divisor)
        if isinstance(atom, Mod) and atom.divisor % divisor == 0:
            return mod(floordiv(atom.base, divisor), atom.divisor // divisor)
    return atom_index(FloorDiv(rest, divisor))


def mod(index: Index, divisor: int) -> Index:
    if divisor == 1:
        return ZERO
    _, rest = _split(index, divisor)
    low, high = bounds(rest)
    if low // divisor == high // divisor:
        return add(rest, const(-(low // divisor) * divisor))
    parts = _carry_free(rest, divisor)
    if parts is not None:
        return add(scale(mod(parts[1], divisor // parts[0]), parts[0]), parts[2])
    if len(rest.terms) == 1 and rest.offset == 0 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, Mod) and atom.divisor % divisor == 0:
            return mod(atom.base, divisor)
    return atom_index(Mod(rest, divisor))


def replace(index: Index, rewrite: Callable[[Atom], Index]) -> Index:
    """The index with every axis below it replaced by `rewrite(axis)`, simplified."""
    return add(const(index.offset), *(scale(atom.replace(rewrite), factor) for atom, factor in index.terms))


def substitute(index: Index, axes: Mapping[Atom, Index]) -> Index:
    return replace(index, lambda axis: axes[axis] if axis in axes else atom_index(axis))


def make_axes(sizes: Sequence[Size], start: int = 0) -> tuple[Axis, ...]:
    return tuple(Axis(start + i, size) for i, size in enumerate(sizes))


def linear(axes: Iterable[Atom | Index], strides: Iterable[int], offset: int = 0) -> Index:
    """`offset + sum(axis * stride)`: where a strided tensor keeps an element."""
    terms = (scale(a if isinstance(a, Index) else atom_index(a), s) for a, s in zip(axes, strides, strict=True))
    return add(const(offset), *terms)


def delinear(index: Index, sizes: Sequence[Size]) -> tuple[Index, ...]:
    """Coordinates of flat position `index` in a row-major block of `sizes`: the inverse of `linear` with contiguous strides."""
    return tuple(
        mod(floordiv(index, prod(sizes[d + 1 :])), size) if d else floordiv(index, prod(sizes[1:]))
        for d, size in enumerate(sizes)
    )


def contiguous_strides(sizes: Sequence[Size]) -> tuple[int, ...]:
    """Row-major strides; sizes of 0 and 1 count as 1, as in torch."""
    return tuple(prod(max(s, 1) for s in sizes[d + 1 :]) for d in range(len(sizes)))


def coefficient(index: Index, axis: Atom) -> int:
    return next((factor for atom, factor in index.terms if atom is axis), 0)
