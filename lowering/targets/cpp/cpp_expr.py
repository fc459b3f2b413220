"""C++ expressions of loop IR values: one method a node."""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import NamedTuple

import torch

from ...loops import sizes
from ...loops.ir import (
    Buffer,
    Cast,
    Const,
    IndexValue,
    Indirect,
    Load,
    Nest,
    Op,
    Reduced,
    Select,
    Value,
    atoms,
    indices_of,
    indirect_values,
    store_values,
)
from ...loops.legality import HALVES
from ...loops.polynomials import Size, at_least, below, is_known
from ...loops.sizes import Atom, Axis, FloorDiv, Index, Mod
from .cpp_masked import IN_NO_VECTORS, in_whole_vectors, takes_turns_under_masks
from .cpp_ops import TYPES, conversion, literal, operation
from .half_precision_loops import converts, parts

_CONSTANT = re.compile(r"const \w+ (\w+) = (.*);")
_LOOP = re.compile(r"for \(int64_t (\w+) = ")
_NOTED = re.compile(r"bad \|= (.*);")
_MASKED = re.compile(r"\(([a-zA-Z]\w*) \? \w+\[")
MOST_MASKS = 2  # of a loop that is printed for each outcome of them


class Lines:
    """Indented lines of C++. Numbers that are the same in all turns of a vectorised loop stand
    before it: the compiler takes one that it finds inside for one of each lane, and what is read at
    such a place for elements that lie apart."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.depth = 0
        self._heads: list[int] = []  # the lines of the blocks at hand
        self._innermost = False

    def add(self, *lines: str) -> None:
        self.text += ["  " * self.depth + line for line in lines]

    def open(self, head: str) -> None:
        self._heads.append(len(self.text))
        self._innermost = True
        self.add(head + " {")
        self.depth += 1

    def close(self, count: int = 1) -> None:
        for _ in range(count):
            self.depth -= 1
            self.add("}")
            self._settle(self._heads.pop())
            self._innermost = False

    def _settle(self, head: int) -> None:
        """Take what no turn changes out of the loop that begins at this line, and print it in parts
        if it converts float16."""
        loop = _LOOP.match(self.text[head].lstrip())
        if loop is None or not head or " simd" not in self.text[head - 1]:
            return
        margin = "  " * self.depth
        if not self._innermost:
            if takes_turns_under_masks(self.text[head].lstrip(), self.text[head + 1 : -1]):
                self.text.insert(head + 1, f"{margin}  {IN_NO_VECTORS}")
            return
        before, rest = _invariant(self.text[head + 1 : -1], loop[1], _runs(self.text[head]))
        pragma, first = (line.lstrip() for line in self.text[head - 1 : head + 1])
        if not any("bad |=" in line for line in rest):  # 64 bits for each element, all the same
            pragma = pragma.replace(" reduction(|:bad)", "")
        made = parts(pragma, first, rest, in_whole_vectors) if any(map(converts, rest)) else None
        if made is None:
            made = _decided(pragma, first, [line[len(margin) :] for line in rest])
        opened = ["{", *(line.lstrip() for line in before)] if before else []
        closed = ["}"] if before else []
        self.text[head - 1 :] = [margin + line for line in (*opened, *made, *closed)]


def _decided(pragma: str, head: str, body: list[str]) -> list[str]:
    """The loop; where masks of its loads are the same in all turns, one for each outcome: GCC has
    no vectors of such a mask."""
    masks = dict.fromkeys(mask for line in body for mask in _MASKED.findall(line))
    if not masks:
        return in_whole_vectors(pragma, head, body)
    own = {match[1] for line in body if (match := _CONSTANT.match(line.lstrip()))}
    fixed = [mask for mask in masks if mask not in {*own, "true", "false"}]
    if not fixed or len(fixed) > MOST_MASKS or " parallel " in pragma:
        return in_whole_vectors(pragma, head, body)
    then, orelse = (
        _decided(pragma, head, [re.sub(rf"\b{fixed[0]}\b", word, line) for line in body])
        for word in ("true", "false")
    )
    inside = [*(f"  {line}" for line in then), "} else {", *(f"  {line}" for line in orelse)]
    return [f"if ({fixed[0]}) {{", *inside, "}"]


def _runs(head: str) -> bool:
    """Whether the loop has a turn in any case."""
    return re.search(r" < ([1-9]\d*|width); ", head) is not None


def _invariant(body: list[str], variable: str, runs: bool) -> tuple[list[str], list[str]]:
    """The assignments, and notes of positions of a loop that runs, that read nothing that the loop
    changes; and the other lines."""
    text = "\n".join(body)
    changing = {variable, *re.findall(r"(\w+) [-+*|&]?= ", text)}
    stored = set(re.findall(r"(\w+)\[.*\] [-+*|&]?= ", text))
    before, rest = list[str](), list[str]()
    for line in body:
        match = _CONSTANT.match(line.lstrip())
        noted = _NOTED.match(line.lstrip()) if runs else None
        found = match[2] if match else noted[1] if noted else None
        words = set(re.findall(r"[A-Za-z_]\w*", found)) if found else changing
        if found is None or words & (changing | stored):
            rest.append(line)
            continue
        before.append(line)
        if match:
            changing.discard(match[1])
    return before, rest


class Picked(NamedTuple):
    """An index: an element of a table, and the rest. apart: the former is another for each element
    of a vector."""

    place: str
    rest: Index
    apart: bool


class ExpressionPrinter:
    """Prints values as single assignments into `lines`, each once; `names` are the values that
    stand in variables, `divisions` the parts of indices that do, `steps` the factors; `tables`
    the indices of which a part is read from memory."""

    def __init__(
        self,
        lines: Lines,
        local: Callable[[Buffer], str],
        names: dict[Value, str] | None = None,
        divisions: Mapping[Atom, str] | None = None,
        steps: Mapping[tuple[Atom, Size], str] | None = None,
        tables: Mapping[Index, Picked] | None = None,
    ) -> None:
        self.lines = lines
        self.local = local
        self.names = dict(names or {})
        self.divisions = divisions or {}
        self.steps = steps or {}
        self.tables = tables or {}
        self.places: dict[str, str] = {}  # variables of what was read of `tables`
        self.checked: set[tuple[Atom, str | None]] = set()
        self.short_nans: dict[Value, bool] = {}
        self.rounds = False  # whether all that is stored is rounded to 16 bits
        self.fixed: frozenset[Value] = frozenset()  # what no turn of the loop changes
        self.inverses: set[str] = set()  # variables that have one

    def nested(self) -> "ExpressionPrinter":
        """A printer for an inner scope: what it names is forgotten with it."""
        inner = ExpressionPrinter(
            self.lines, self.local, self.names, self.divisions, self.steps, self.tables
        )
        inner.checked, inner.places = set(self.checked), dict(self.places)
        inner.short_nans, inner.rounds = self.short_nans, self.rounds
        inner.fixed = frozenset(v for v in self.names if not isinstance(v, Const))
        return inner

    def __call__(self, value: Value) -> str:
        """The value's variable or literal, after printing whatever it needs."""
        if value not in self.names:
            text = getattr(self, "print_" + type(value).__name__)(value)
            self.names[value] = text if isinstance(value, Const) else self._assign(value, text)
        return self.names[value]

    def _assign(self, value: Value, text: str) -> str:
        name = f"t{len(self.names)}"
        # GCC vectorises no call in a loop that has a bool from memory
        from_memory = isinstance(value, Load) and value.dtype == torch.bool
        type_ = "int32_t" if from_memory else TYPES[value.dtype]
        self.lines.add(f"const {type_} {name} = {text};")
        return name

    def print_Const(self, value: Const) -> str:
        return literal(value.value, value.dtype)

    def print_Load(self, value: Load) -> str:
        if value.buffer.scope == "local":
            return self.local(value.buffer)
        if value.mask is not None and is_broadcast(value):
            always = self(Load(value.buffer, value.index))
            return f"({self(value.mask)} ? {always} : ({TYPES[value.dtype]})0)"
        mask = self(value.mask) if value.mask is not None else None
        element = self._element(value, mask)
        if value.dtype == torch.bool:
            element = (
                f"({element} != 0)"  # memory holds bytes: GCC does not vectorise loads of bool
            )
        return element if mask is None else f"({mask} ? {element} : ({TYPES[value.dtype]})0)"

    def _element(self, load: Load, mask: str | None) -> str:
        picked = self.tables.get(load.index)
        if picked is None or not picked.apart or load.mask is not None or load.dtype.itemsize > 2:
            return f"{load.buffer.name}[{self.index(load.index, mask)}]"
        return f"op_picked({load.buffer.name} + {', '.join(self._parts(load.index, None))})"

    def print_Op(self, value: Op) -> str:
        if (argument := one_plus_erf(value)) is not None:
            return f"op_one_plus_erf({self(argument)})"
        if value.name == "sigmoid" and value.dtype == torch.float32 and self.rounds:
            return f"op_sigmoid_short({self(value.args[0])})"
        return operation(value.name, value.args[0].dtype, [self(arg) for arg in value.args])

    def print_Cast(self, value: Cast) -> str:
        inner = value.value
        float32 = (value.dtype, inner.value.dtype) if isinstance(inner, Cast) else ()
        if isinstance(inner, Cast) and float32 == (torch.float32, torch.float32):
            if inner.dtype == torch.float16:
                return f"round_fp16({self._rounded(inner.value)})"
            if inner.dtype == torch.bfloat16:
                short = "_short" if has_short_nan(inner.value, self.short_nans) else ""
                return f"round_bf16{short}({self._before_rounding(inner.value)})"
        if (inner.dtype, value.dtype) == (torch.float32, torch.bfloat16):
            short = "_short" if has_short_nan(inner, self.short_nans) else ""
            return f"to_bf16{short}({self._before_rounding(inner)})"
        if isinstance(inner, IndexValue) and value.dtype.is_floating_point:
            low, high = sizes.bounds(inner.index)
            if isinstance(low, int) and isinstance(high, int) and -(2**31) <= low <= high < 2**31:
                return conversion(f"(int32_t)({self.index(inner.index)})", inner.dtype, value.dtype)
        short = self._rounded(inner) if value.dtype in HALVES else self(inner)
        return conversion(short, inner.dtype, value.dtype)

    def _before_rounding(self, value: Value) -> str:
        """A float that is rounded to bf16 at once: a factor 1 + erf(x) need not be exact to its
        last bits."""
        if isinstance(value, Op) and value.name == "mul" and value not in self.names:
            for factor, other in (value.args, value.args[::-1]):
                argument = one_plus_erf(factor)
                if argument is not None and factor not in self.names:
                    text = f"({self(other)} * op_one_plus_erf_short({self(argument)}))"
                    self.names[value] = self._assign(value, text)
        return self._rounded(value)

    def _rounded(self, value: Value) -> str:
        """A float that is rounded to 16 bits at once: a quotient is a product with the inverse of
        what no turn changes, which takes vectors a fraction of the time. Of two numbers of 16 bits
        it rounds to the same normal number: none lies so close to where the rounding changes."""
        if (
            not isinstance(value, Op)
            or (value.name, value.dtype) != ("div", torch.float32)
            or value in self.names
            or value.args[1] not in self.fixed
        ):
            return self(value)
        by = self.names[value.args[1]]
        if by not in self.inverses:
            self.inverses.add(by)
            self.lines.add(f"const float {by}_scale = op_scale({by});")
            self.lines.add(f"const float {by}_inverse = 1 / ({by} * {by}_scale);")
        product = Cast(value, torch.float32)  # what else reads the quotient has it as it is
        if product not in self.names:
            text = f"({self(value.args[0])} * {by}_inverse) * {by}_scale"
            self.names[product] = self._assign(product, text)
        return self.names[product]

    def print_Select(self, value: Select) -> str:
        return f"({self(value.condition)} ? {self(value.then)} : {self(value.orelse)})"

    def print_IndexValue(self, value: IndexValue) -> str:
        return f"(int64_t)({self.index(value.index)})"

    def print_Reduced(self, value: Reduced) -> str:
        raise AssertionError("a reduction is printed by its nest")

    def index(self, index: Index, mask: str | None = None) -> str:
        """The text of an index; positions from memory are checked wherever the bool variable `mask`
        is true."""
        return " + ".join(self._parts(index, mask))

    def _parts(self, index: Index, mask: str | None) -> tuple[str, ...]:
        """The index, or what stays of it and the variable of what is read from a table."""
        picked = self.tables.get(index)
        if picked is None:
            self._check(index, mask)
            return (self._sum(index),)
        self._check(picked.rest, mask)
        if picked.place not in self.places:
            self.places[picked.place] = f"place{len(self.places)}"
            self.lines.add(f"const int32_t {self.places[picked.place]} = {picked.place};")
        return self._sum(picked.rest), self.places[picked.place]

    def _sum(self, index: Index) -> str:
        parts = [self._term(atom, factor) for atom, factor in index.terms]
        return " + ".join(parts + [f"{index.offset}"] * (index.offset != 0 or not parts))

    def _check(self, index: Index, mask: str | None) -> None:
        """Notes positions out of range. In a statement of its own: GCC 12 miscompiles a `simd`
        reduction variable that is handed to a function by reference (it reads beyond the stack)."""
        for atom in atoms(index):
            if not isinstance(atom, Indirect) or atom.certain:
                continue
            if (atom, mask) not in self.checked:
                self.checked.add((atom, mask))
                outside = f"is_outside({self(atom.value)}, {atom.bound})"
                self.lines.add(self.refused(outside, mask))

    def refused(self, outside: str, mask: str | None) -> str:
        """The statement that notes a position out of range."""
        return f"bad |= {outside if mask is None else f'({mask} & {outside})'};"

    def _term(self, atom: Atom, factor: int) -> str:
        text = self.atom(atom)
        if (atom, factor) in self.steps:
            return f"{text} * {self.steps[atom, factor]}"
        bare = not is_known(factor) or factor > 0
        return text if factor == 1 else f"{text} * {factor}" if bare else f"{text} * ({factor})"

    def atom(self, atom: Atom) -> str:
        if isinstance(atom, Axis):
            return atom.text
        if atom in self.divisions:
            return self.divisions[atom]
        if isinstance(atom, FloorDiv):
            return self._divided(atom.base, "/", atom.divisor)
        if isinstance(atom, Mod):
            return self._divided(atom.base, "%", atom.divisor)
        assert isinstance(atom, Indirect)
        value = self(atom.value)
        return value if atom.certain else f"inside({value}, {atom.bound})"

    def _divided(self, base: Index, sign: str, divisor: Size) -> str:
        """Division of 32 bits where the operand fits: several times faster than of 64. A negative
        operand must round down."""
        if is_slow(base, divisor):
            return self._divided_by_size(base, sign, divisor)
        low, high = sizes.bounds(base)
        if low >= 0 and high < 2**31:
            return f"(int64_t)((uint32_t)({self._sum(base)}) {sign} {divisor}u)"
        if low >= 0:
            return f"(({self._sum(base)}) {sign} {divisor})"
        shift = -(low // divisor) * divisor
        quotient = f"(({self._sum(base)} + {shift}) {sign} {divisor})"
        return quotient if sign == "%" else f"({quotient} - {shift // divisor})"

    def _divided_by_size(self, base: Index, sign: str, divisor: Size) -> str:
        """As above with limits that a call knows. A divisor that may be zero is that of loops that
        then do not run."""
        by = f"{divisor}" if at_least(divisor, 1) else f"({divisor} + ({divisor} == 0))"
        if not sizes.nonnegative(base):
            return (
                f"op_{'floordiv' if sign == '/' else 'remainder'}<int64_t>({self._sum(base)}, {by})"
            )
        if sizes.within(base, 2**31) and below(divisor, 2**31):
            return f"(int64_t)((uint32_t)({self._sum(base)}) {sign} (uint32_t){by})"
        return f"op_{'quotient' if sign == '/' else 'rest'}({self._sum(base)}, {by})"


def is_broadcast(load: Load) -> bool:
    """Whether the same element, which is there in any case, stands for several outcomes of the
    mask: GCC has no vectors of what is read under a mask at a place that stays."""
    there = sizes.nonnegative(load.index) and sizes.within(load.index, load.buffer.size)
    if load.mask is None or not there or any(isinstance(a, Indirect) for a in atoms(load.index)):
        return False
    own = {atom for atom in atoms(load.index) if isinstance(atom, Axis)}
    return not axes_of(load.mask, {}) <= own


def one_plus_erf(value: Value) -> Value | None:
    """x, if the value is erf(x) + 1 in float."""
    if not isinstance(value, Op) or value.name != "add" or value.dtype != torch.float32:
        return None
    for inner, other in (value.args, value.args[::-1]):
        if isinstance(inner, Op) and inner.name == "erf" and other is Const(1.0, torch.float32):
            return inner.args[0]
    return None


def has_short_nan(value: Value, known: dict[Value, bool]) -> bool:
    """Whether a NaN that this float value may be has its low 16 bits clear: it is made by
    arithmetic on numbers, or comes from a bf16. One of a float in memory may have any bits."""
    if value not in known:
        if isinstance(value, Op | Select):
            sources = [v for v in value.children() if v.dtype.is_floating_point]
            known[value] = all(has_short_nan(source, known) for source in sources)
        elif isinstance(value, Cast):
            known[value] = value.value.dtype == torch.bfloat16 or not (
                value.value.dtype.is_floating_point
            )
        else:
            known[value] = isinstance(value, Const)
    return known[value]


def is_slow(base: Index, divisor: Size) -> bool:
    """Whether a compiler cannot make a multiplication of the division, nor do it in 32 bits: only a
    call knows its numbers."""
    ends = sizes.bounds(base)
    return not all(is_known(number) and number is not None for number in (divisor, *ends))


def slow_divisions(indices: Iterable[Index], axes: Container[Axis]) -> list[Atom]:
    """Slow divisions in the indices that need no other axes than these, those within others
    first."""
    found: dict[Atom, int] = {}
    for atom in (
        atom for index in indices for atom in atoms(index) if isinstance(atom, FloorDiv | Mod)
    ):
        below = list(atoms(atom.base))
        own = all(
            not isinstance(part, Indirect) and (not isinstance(part, Axis) or part in axes)
            for part in below
        )
        if own and below and is_slow(atom.base, atom.divisor):
            found[atom] = len(below)
    return sorted(found, key=lambda atom: (found[atom], atom.text))


def axes_of(value: Value, memo: dict[Value, frozenset[Axis]]) -> frozenset[Axis]:
    """Axes that the value depends on; those that a `Reduced` folds over included."""
    if value not in memo:
        own = {
            atom for index in indices_of(value) for atom in atoms(index) if isinstance(atom, Axis)
        }
        below = list(value.children()) + [
            v for index in indices_of(value) for v in indirect_values(index)
        ]
        memo[value] = frozenset(own).union(*(axes_of(child, memo) for child in below))
    return memo[value]


def outermost(value: Value, hoistable: Callable[[Value], bool]) -> Iterator[Value]:
    """The largest hoistable values below `value` that are no constants."""
    if hoistable(value):
        if not isinstance(value, Const):
            yield value
        return
    for child in (
        *value.children(),
        *(v for index in indices_of(value) for v in indirect_values(index)),
    ):
        yield from outermost(child, hoistable)


def loop(axis: Axis) -> str:
    return f"for (int64_t {axis.text} = 0; {axis.text} < {axis.size}; ++{axis.text})"


def has_indirect(nest: Nest) -> bool:
    indices = [store.index for store in nest.stores]
    indices += [index for value in store_values(nest) for index in indices_of(value)]
    found = (atom for index in indices for atom in atoms(index) if isinstance(atom, Indirect))
    return any(not atom.certain for atom in found)
