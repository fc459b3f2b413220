"""Vector loops and masks: short loops of odd lengths, whose last vector runs under a mask, and
those of which GCC makes wrong ones."""

import re
from collections import Counter
from functools import partial

from ....runtime.build import probe_flags
from ...loops.polynomials import Size, is_known
from .half_precision_loops import summands

_COUNTED = re.compile(r"for \(int64_t (\w+) = 0; \1 < (\d+); \+\+\1\) \{")
IN_NO_VECTORS = 'asm volatile("");'  # a statement of which there is no vector form
_LOOP = re.compile(r"for \(int64_t (\w+) = ")
_KEPT = re.compile(r"\b(?!true\b|false\b)\w+ \? \w+\[")
_TYPED = re.compile(r"const (\w+) (\w+) = .*;")
_STORED = re.compile(r"(\w+)\[.*\] \+?= ([^;]*);")
_ELEMENT = re.compile(r"(\w+)\[([^\]]*)\]")
_READ = re.compile(r"(\s*const \w+ \w+) = (\w+\[[^\]]*\]);")
_MASKED_READ = re.compile(r"(\s*const \w+ \w+) = \((\w+) \? (\w+\[[^\]]*\] : [^\[]*);")
_INDEX, _WORD = re.compile(r"\[([^\]]*)\]"), re.compile(r"[A-Za-z_]\w*")
# of `cpp_rows`, `cpp_halves`, `cpp_parts`
_ROW = re.compile(r"r\d+(_one)?_row|row\d+|t\d+(_in)?_s|sums\d+")
_CALL = re.compile(r"([A-Za-z_]\w*(?:<\w+>)?)\(")
_PLAIN_CALLS = frozenset(
    "op_exp op_exp2 op_erf op_one_plus_erf op_one_plus_erf_short op_sigmoid op_sigmoid_short"
    " op_maximum<float> op_minimum<float> round_bf16 round_bf16_short __builtin_fabsf"
    " __builtin_sqrtf __builtin_inff __builtin_fmaf".split()
)
_TRUTH = re.compile(r"(\s*)const bool (\w+) = (.*);")
_JOIN, _NEGATED = re.compile(r"\(\w+ [&|] \w+\)"), re.compile(r"\(!\w+\)")
_COMPARED = re.compile(r"\([^?]* (==|!=|<=|>=|<|>) [^?]*\)")
_ASKED = re.compile(r"\(\w+ \? ")
_STORABLE = ("float", "bf16", "fp16", "int8_t")
_WHOLE_DIVISION = re.compile(r"%|/ \d+u|(int32|int64)_t \w+ = .*/|\] != 0\)")
VECTOR = 16  # elements
SHORTEST_MASKED, LONGEST_MASKED = 8, 111  # turns of a loop; of 8 floats there are whole vectors
_HALF = re.compile(r"_[bf][pf]16")


def in_whole_vectors(pragma: str, head: str, body: list[str]) -> list[str]:
    """The loop; one of few turns, which are no multiple of a vector's elements, with those that are
    left under a mask, where the processor has such: GCC makes shorter and shorter loops of them."""
    if takes_turns_under_masks(head, body):
        return [pragma, head, f"  {IN_NO_VECTORS}", *body, "}"]
    loop = _COUNTED.fullmatch(head)
    turns = int(loop[2]) if loop is not None else 0
    if (
        loop is None
        or not has_masked_end(turns)
        or (turns == SHORTEST_MASKED and not any(map(_HALF.search, body)))
        or pragma != "#pragma omp simd"
        or not _maskable(body, loop[1])
    ):
        return [pragma, head, *body, "}"]
    axis = loop[1]
    whole = f"for (int64_t {axis} = 0; {axis} < WHOLE_VECTORS({turns}); ++{axis})"
    wide = _with_wide_truths(body)
    lines = [_within(line, axis, turns) for line in wide or ()]
    if wide is None or None in lines:
        return [pragma, head, *body, "}"]
    return [pragma, f"{whole} {{", *(line for line in lines if line is not None), "}"]


def takes_turns_under_masks(head: str, body: list[str]) -> bool:
    """Whether several stores lie side by side in each turn, beside loads under a mask: of groups
    that are no power of two GCC 12 gives all vectors the mask of the first."""
    loop = _LOOP.match(head)
    if loop is None or not any(map(_KEPT.search, body)):
        return False
    step = re.compile(rf"\b{loop[1]} \* (\d+)\b")
    stores = (match for line in body if (match := _STORED.fullmatch(line.strip())))
    places = ((match[1], step.search(match[0].partition("=")[0])) for match in stores)
    counts = Counter((name, int(found[1])) for name, found in places if found is not None)
    return any(count > 1 and (count, step) != (2, 2) for (_, step), count in counts.items())


def _with_wide_truths(body: list[str]) -> list[str] | None:
    """The statements, with truths that are joined in 32 bits, all of them set, as are those that
    they are made of: GCC 12 makes no vectors under a mask of a loop with joined bools. None where
    they are more than asked for and joined."""
    made = {match[2]: match[3] for line in body if (match := _TRUTH.fullmatch(line))}
    wide, known = set[str](), [each for each in made.values() if _JOIN.fullmatch(each)]
    while known:
        words = set(_WORD.findall(known.pop())) & made.keys() - wide
        wide |= words
        known += [made[word] for word in words if not _COMPARED.fullmatch(made[word])]
    wide |= {name for name, value in made.items() if _JOIN.fullmatch(value)}
    if not wide:
        return body
    return [*map(partial(_widened, wide), body)] if _only_joined(body, made, wide) else None


def _only_joined(body: list[str], made: dict[str, str], wide: set[str]) -> bool:
    """Whether these truths are comparisons of other values, and joined, negated or asked for
    alone."""
    for line in body:
        truth = _TRUTH.fullmatch(line)
        value = truth[3] if truth is not None else line
        if (truth is not None and _NEGATED.fullmatch(value)) or _JOIN.fullmatch(value):
            continue
        if truth is not None and truth[2] in wide and not _COMPARED.fullmatch(value):
            return False
        if wide & set(_WORD.findall(_ASKED.sub("(", value))) - {truth[2] if truth else ""}:
            return False
    return True


def _widened(wide: set[str], line: str) -> str:
    truth = _TRUTH.fullmatch(line)
    if truth is None or truth[2] not in wide:
        return line
    value = truth[3] if _JOIN.fullmatch(truth[3]) else f"-{truth[3]}"
    return f"{truth[1]}const int32_t {truth[2]} = {value};"


def has_masked_end(turns: Size) -> bool:
    """Whether a vector loop of so many turns ends with a vector under a mask, if it can."""
    few = is_known(turns) and SHORTEST_MASKED <= turns <= LONGEST_MASKED
    return few and turns % VECTOR != 0


def _within(line: str, axis: str, turns: int) -> str | None:
    """The statement in a loop over whole vectors, which touches elements of the loop's turns alone.
    Arrays on the stack are long enough: what is read back at once is better not stored under a
    mask. Other elements are read as zeros, not left out: a vector's other lanes would hold what was
    in its register, and products of denormals take long."""
    inside = f"{axis} < {turns}"
    touched = {name for name, index in _ELEMENT.findall(line) if axis in _WORD.findall(index)}
    if all(map(_ROW.fullmatch, touched)):
        return line
    if read := _READ.fullmatch(line):
        return f"{read[1]} = {inside} ? {read[2]} : 0;"
    if read := _MASKED_READ.fullmatch(line):
        return f"{read[1]} = ({inside} & {read[2]} ? {read[3]};"
    statement = line.lstrip()
    stored, margin = _STORED.fullmatch(statement), line[: len(line) - len(statement)]
    return None if stored is None or "[" in stored[2] else f"{margin}if ({inside}) {statement}"


def _maskable(body: list[str], axis: str) -> bool:
    """Whether vectors of the loop's statements exist under a mask: arithmetic on floats, and
    choices of 16-bit ones, that lie side by side, without divisions of integers and functions that
    have no vectors."""
    kinds, vectors = dict[str, str](), _PLAIN_CALLS | probe_flags().vector_math
    for line in map(str.lstrip, body):
        value, store = _TYPED.fullmatch(line), _STORED.fullmatch(line)
        if value is not None:
            kinds[value[2]] = value[1]
            if value[1] not in (*_STORABLE, "bool", "int32_t", "int64_t"):
                return False
        elif store is None or kinds.get(store[2], "float") not in _STORABLE:
            return False
        if not vectors.issuperset(_CALL.findall(_INDEX.sub("[]", line))):
            return False
        if _WHOLE_DIVISION.search(_INDEX.sub("[]", line)):  # in indices the same for all turns
            return False
        terms = [term for index in _INDEX.findall(line) for term in summands(index)]
        words = set(_WORD.findall(" ".join(term for term in terms if term != axis)))
        if axis in words or words & kinds.keys():
            return False
    return True
