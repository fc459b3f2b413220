"""Vector loops over float16, and over short odd rows of bfloat16, in parts: arithmetic, which the
compiler vectorises, and conversions of whole blocks between it, which are one instruction of the
processor (`templates/halves.h`).

GCC has no vector form of a conversion of float16, and the same in integer operations takes some
twelve. For bfloat16 it has one, but makes vectors of half the size of what is left of a row, whose
elements then wait in memory until they are read as one vector.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence

BLOCK = 256  # elements of the arrays between the parts
_LOOP = re.compile(r"for \(int64_t (\w+) = (.+); \1 < (.+); \+\+\1\) \{")
_VALUE = re.compile(r"const (\w+) (\w+) = (.*);")
_CHANGE = re.compile(r"(\w+)(\[.*\])? ([-+*|&]?)= (.*);")
_CONVERSION = re.compile(r"(from_fp16|to_fp16|round_fp16)\((.*)\)")
_ANY_CONVERSION = re.compile(r"(from_fp16|to_fp16|round_fp16|from_bf16|to_bf16(?:_short)?)\((.*)\)")
_HALF = re.compile(r"_[bf][pf]16(_short)?\(")
PAIR = 32  # elements of the vectors that GCC makes of bfloat16
_WORD = re.compile(r"[A-Za-z_]\w*")
_SOURCES = {"from_fp16": "fp16", "from_bf16": "bf16"}
_SUM = set("abcdefghijklmnopqrstuvwxyz0123456789_ +")
_ARRAY = re.compile(r"(r\d+(_one)?_row|row\d+|t\d+(_in)?_s)( \+ low)?")
_ELEMENT = re.compile(r"(\w+)\[t\]")  # of an array of a tile, which is no other memory
_CLAUSE = re.compile(r" reduction\([^:]+:(\w+)\)")


@dataclasses.dataclass
class _Line:
    """A statement of the loop's body; `part`: the loop in which it is printed. A conversion stands
    before that loop."""

    text: str
    part: int
    type: str = ""
    name: str = ""
    value: str = ""
    conversion: str = ""
    again: bool = False  # cheap: printed in each part that needs it

    def words(self) -> set[str]:
        return set(_WORD.findall(self.value or self.text))

    def needed(self) -> int:
        """The part in which its operands are read: what is converted is computed before."""
        return self.part - 1 if self.conversion and not self.value.isidentifier() else self.part


def _as_it_is(pragma: str, head: str, body: list[str]) -> list[str]:
    return [pragma, head, *body, "}"]


Printed = Callable[[str, str, list[str]], list[str]]


def parts(
    pragma: str, head: str, body: Sequence[str], printed: Printed = _as_it_is
) -> list[str] | None:
    """The loop in parts, or None if it has nothing to convert, or statements of another kind.
    printed: gives the lines of a vector loop."""
    loop = _LOOP.fullmatch(head)
    if loop is None:
        return None
    lines = _Reader(_ANY_CONVERSION if _is_odd(loop[2], loop[3]) else _CONVERSION).read(body)
    if lines is None or not any(line.conversion for line in lines):
        return None
    return _Parts(pragma, loop[1], loop[2], loop[3], lines, printed).print()


def converts(line: str) -> bool:
    return _HALF.search(line) is not None


def _is_odd(low: str, high: str) -> bool:
    return low == "0" and high.isdigit() and int(high) <= BLOCK and int(high) % PAIR != 0


class _Reader:
    """Gives each statement the first part in which all that it needs is there."""

    def __init__(self, conversions: re.Pattern[str]) -> None:
        self.conversions = conversions
        self.named: dict[str, _Line] = {}
        self.touched: dict[str, int] = {}  # the part in which a buffer was last read or changed
        self.changed: dict[str, int] = {}
        self.written = set[str]()  # buffers that the loop changes

    def read(self, body: Sequence[str]) -> list[_Line] | None:
        self.written = {found[1] for text in body if (found := _CHANGE.fullmatch(text.strip()))}
        lines = [self._line(text.strip()) for text in body]
        return None if None in lines else [line for line in lines if line is not None]

    def _line(self, text: str) -> _Line | None:
        value, change = _VALUE.fullmatch(text), _CHANGE.fullmatch(text)
        if value is not None:
            return self._value(text, value)
        if change is None:
            return None
        line = _Line(text, self._part(set(_WORD.findall(text))))
        line.part = max(line.part, self.touched.get(change[1], 0))
        self.changed[change[1]] = self.touched[change[1]] = line.part
        return line

    def _value(self, text: str, found: re.Match[str]) -> _Line:
        line = _Line(text, 0, found[1], found[2], found[3])
        words = line.words()
        line.part = self._part(words)
        for buffer in re.findall(r"(\w+)\[", line.value):
            self.touched[buffer] = max(line.part, self.touched.get(buffer, 0))
        conversion = self.conversions.fullmatch(line.value)
        if conversion is not None and _balanced(conversion[2]):
            line.conversion, line.value = conversion[1], conversion[2]
            line.part += 1
        plain = all(self.named[word].again for word in words & self.named.keys())
        number = line.type == "int64_t" and "[" not in line.value
        load = line.type == "float" and _ELEMENT.fullmatch(line.value)
        line.again = plain and (number or bool(load and load[1] not in self.written))
        self.named[line.name] = line
        return line

    def _part(self, words: set[str]) -> int:
        named = [self.named[word].part for word in words & self.named.keys()]
        return max(
            [*named, *(self.changed[word] for word in words & self.changed.keys())], default=0
        )


def _balanced(text: str) -> bool:
    """Whether no parenthesis is closed that was not opened here."""
    depth = 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            return False
    return True


def summands(text: str) -> Iterator[str]:
    """The terms of a sum, whatever sums stand in parentheses."""
    depth, start = 0, 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0 and text.startswith(" + ", place):
            yield text[start:place]
            start = place + 3
    yield text[start:]


class _Parts:
    def __init__(
        self,
        pragma: str,
        axis: str,
        low: str,
        high: str,
        lines: Sequence[_Line],
        printed: Printed = _as_it_is,
    ) -> None:
        self.pragma, self.axis, self.low, self.high = pragma, axis, low, high
        self.printed = printed
        # one block is all: a few elements, as many in every turn
        self.single = low == "0" and high.isdigit() and int(high) <= BLOCK
        self.lines = lines
        self.count = 1 + max(line.part for line in lines)
        self.named = {line.name: line for line in lines if line.name}
        self.stored = self._find_stored()
        self.arrays = self._find_arrays()

    def _find_arrays(self) -> dict[str, str]:
        """Names that one part computes and another needs, or that are converted."""
        found = dict[str, str]()
        for line in self.lines:
            if line.conversion:
                found[line.name] = line.type
            for word in line.words() & self.named.keys():
                other = self.named[word]
                apart = other.part < line.needed() and not other.again
                if apart:
                    found[word] = "uint8_t" if other.type == "bool" else other.type
        return found

    def print(self) -> list[str]:
        single = self.single
        size = f"WHOLE_VECTORS({self.high})" if single else f"{BLOCK}"
        made = list[str]()
        clauses = "".join(match[0] for match in _CLAUSE.finditer(self.pragma))
        if not single:
            if " parallel " in self.pragma:
                made.append(self.pragma.replace(" simd", ""))
            made += [
                f"for (int64_t low = {self.low}; low < {self.high}; low += {BLOCK}) {{",
                f"  const int64_t high = low + {BLOCK} < {self.high}"
                f" ? low + {BLOCK} : {self.high};",
            ]
        else:
            made += ["{", f"  const int64_t low = {self.low}, high = {self.high};"]
        made += [f"  {kind} {name}_s[{size}];" for name, kind in self._declared()]
        for part in range(self.count):
            made += [f"  {line}" for line in self._part(part, clauses)]
        return [*made, "}"]

    def _declared(self) -> Iterator[tuple[str, str]]:
        for name, kind in self.arrays.items():
            line = self.named[name]
            if self._memory(line) is None and name not in self.stored:
                yield name, kind
            if line.conversion and line.value not in self.arrays:
                yield f"{name}_in", _SOURCES.get(line.conversion, "float")

    def _memory(self, line: _Line) -> str | None:
        """Where the elements of a load stand one behind the other, from `low` on, if all that is
        done with them is to convert them first."""
        users = [other for other in self.lines if line.name in other.words()]
        first = all(
            user.conversion and user.value == line.name and user.part == 1 for user in users
        )
        return self._row(line.value) if first and not line.conversion else None

    def _row(self, element: str) -> str | None:
        """Where the row starts of which this is an element, if it lies in memory as it is."""
        found = re.fullmatch(r"(\w+)\[([^\[]*)\]", element)
        if found is None:
            return None
        terms = [part for term in summands(found[2]) for part in self._terms(term)]
        others = set(_WORD.findall(" ".join(term for term in terms if term != self.axis)))
        if terms.count(self.axis) != 1 or others & {self.axis, *self.named}:
            return None
        return " + ".join([found[1], *("low" if term == self.axis else term for term in terms)])

    def _terms(self, term: str) -> list[str]:
        """What a term of an index stands for."""
        line = self.named.get(term)
        simple = line is not None and line.again and set(line.value) <= _SUM
        return line.value.split(" + ") if line is not None and simple else [term]

    def _find_stored(self) -> dict[str, str]:
        """Converted values that go to memory alone, one behind the other, and where: to rows that
        nothing else here reads or writes."""
        found = dict[str, str]()
        for line in self.lines:
            change = _CHANGE.fullmatch(line.text) if not line.name else None
            if change is None or not change[2] or change[3] or change[4] not in self.named:
                continue
            row = self._row(change[1] + change[2])
            users = [other for other in self.lines if change[4] in other.words()]
            touching = [other for other in self.lines if change[1] in other.words()]
            if row and len(users) == len(touching) == 1 and self.named[change[4]].conversion:
                found[change[4]] = row
        return found

    def _array(self, name: str) -> str:
        return self.stored.get(name) or self._memory(self.named[name]) or f"{name}_s"

    def _count(self) -> str:
        return self.high if self.single else "high - low"

    def _is_whole(self, row: str) -> bool:
        """Whether the array has room for whole vectors."""
        return self.single and _ARRAY.fullmatch(row) is not None

    def _target(self, line: _Line) -> str:
        return self.stored.get(line.name) or f"{line.name}_s"

    def _part(self, part: int, clauses: str) -> Iterator[str]:
        for line in self.lines:
            if line.conversion and line.part == part:
                source = (
                    self._array(line.value) if line.value in self.arrays else f"{line.name}_in_s"
                )
                ends = f"{source}, {self._target(line)}, {self._count()}"
                whole = [str(self._is_whole(x)).lower() for x in (source, self._target(line))]
                yield f"row_{line.conversion}({ends}, {', '.join(whole)});"
        own = list(self._statements(part))
        if not own:
            return
        own = [*self._again(own), *own]
        text = "\n".join(own)
        used = "".join(
            match[0] for match in _CLAUSE.finditer(clauses) if re.search(rf"\b{match[1]}\b", text)
        )
        limits = ("0", self.high) if self.single else ("low", "high")
        head = (
            f"for (int64_t {self.axis} = {limits[0]}; {self.axis} < {limits[1]}; ++{self.axis}) {{"
        )
        yield from self.printed(f"#pragma omp simd{used}", head, [f"  {line}" for line in own])

    def _again(self, lines: Sequence[str]) -> list[str]:
        """Statements without a part that these need."""
        found = list[str]()
        for line in reversed(self.lines):
            words = set(_WORD.findall("\n".join([*lines, *found])))
            if line.again and line.name in words:
                found.insert(0, line.text)
        return found

    def _statements(self, part: int) -> Iterator[str]:
        place = f"[{self.axis}]" if self.single else f"[{self.axis} - low]"
        for line in self.lines:
            if line.conversion and line.part == part + 1 and line.value not in self.arrays:
                yield f"{line.name}_in_s{place} = {self._inside(line.value, part, place)};"
            if line.part != part or line.conversion or line.again or self._is_stored(line):
                continue
            if line.name not in self.arrays:
                yield self._inside(line.text, part, place)
            elif self._memory(line) is None:
                yield f"const {line.type} {line.name} = {self._inside(line.value, part, place)};"
                yield f"{line.name}_s{place} = {line.name};"

    def _is_stored(self, line: _Line) -> bool:
        """Whether the statement stores what a conversion has stored."""
        return not line.name and not line.words().isdisjoint(self.stored)

    def _inside(self, text: str, part: int, place: str) -> str:
        """The text with names of other parts read from their arrays."""

        def read(found: re.Match[str]) -> str:
            name = found[0]
            line = self.named.get(name)
            if name not in self.arrays or line is None:
                return name
            if line.part == part and not line.conversion:
                return name
            element = f"{name}_s{place}"
            return f"({element} != 0)" if line.type == "bool" else element

        return _WORD.sub(read, text)
