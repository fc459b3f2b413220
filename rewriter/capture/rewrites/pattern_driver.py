"""What the patterns make of a place where a value decides, while the recording stands there."""

import ast
import functools
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...analysis.import_names import ImportedNames, by_type
from ...analysis.oracle import Oracle
from ...source import live_source
from ...source.intents import realised
from ...source.source_file import SourceFile
from ...source.spans import Edit, Fix, Refusal, Safety, apply
from ...transforms import chained_comparison, deferred_read, masked_write, tensor_if, tensor_ternary
from ...transforms.compiled import compiled_scalars
from .fake_values import FakeValues
from .function_edits import FunctionEdits
from .recorded_oracle import RecordedOracle

_ROUNDS = 8

Maker = Callable[[Any, Oracle], Fix | Refusal | str | None]


@dataclass(frozen=True)
class Pattern:
    """What may stand where a value decides. `code`: in the catalogue. `moves`: afterwards the
    value decides at another place, which the next recording meets."""

    code: str
    make: Maker
    moves: bool = False


_LATER = Pattern("DYN101", deferred_read.of_test, moves=True)
_MASKED = Pattern("DYN504", masked_write.chosen)
# By what stands at the place. The first of each tells whether a tensor decides there at all.
PATTERNS: dict[type, tuple[Pattern, ...]] = {
    ast.If: (Pattern("DYN201", tensor_if.chosen), _LATER),
    ast.IfExp: (
        Pattern("DYN202", tensor_ternary.chosen),
        Pattern("DYN202", compiled_scalars.made_of_numbers),
        _LATER,
    ),
    ast.Assign: (_MASKED, Pattern("DYN211", deferred_read.of_value, moves=True)),
    ast.AugAssign: (_MASKED,),
    ast.Compare: (Pattern("DYN203", chained_comparison.chosen),),
}


def _names(file: str) -> ImportedNames:
    """What the names of a file's top level stand for."""
    return _names_of(file, "".join(linecache.getlines(file)))


@functools.lru_cache(16)
def _names_of(file: str, text: str) -> ImportedNames:
    tree = SourceFile(text, file).tree
    return ImportedNames(tree, by_type(tree))


def judged(found: FunctionEdits, line: int, values: FakeValues) -> "tuple[Edit, str] | str":
    """The edit, and its rule's code, that leaves nothing to decide on `line` of the user's file, or
    moves what is asked there; or why there is none."""
    file, code, why = found.file, "", "no rewrite pattern matches this branch"
    for _ in range(_ROUNDS):
        look = _Look(file, found, line, values)
        made = look.first_made() if look.places else None
        if made is None or isinstance(made, str):
            why = made or why
            break
        edits = realised(file, made[0].edits)
        file, code = file.with_text(apply(file.text, edits)), made[1].code
        if made[1].moves or not _Look(file, found, line, values).asks():
            return _difference(found.file.text, file.text), code
    return why


class _Look:
    """The places of a function that may decide on a line, at one moment."""

    def __init__(
        self, file: SourceFile, found: FunctionEdits, line: int, values: FakeValues
    ) -> None:
        function, self.lines = _function(file.tree, found.source), found.lines(line)
        self.places = _places(function, self.lines)
        self.oracle = RecordedOracle(file, function, values, self.places, _names(file.path))

    def asks(self) -> bool:
        """Whether a tensor decides."""
        places = [node for node in self.places if _on(_decider(node), self.lines)]
        return any(PATTERNS[type(n)][0].make(n, self.oracle) is not None for n in places)

    def first_made(self) -> "tuple[Fix, Pattern] | str | None":
        """The first place, from inside out, that a pattern can change safely."""
        why = None
        for node in self.places:
            told = []
            for pattern in PATTERNS[type(node)]:
                fix = pattern.make(node, self.oracle)
                if isinstance(fix, Fix) and fix.safety is Safety.SAFE and not fix.imports:
                    return fix, pattern
                if isinstance(fix, Fix):
                    fix = fix.why or "torch is not imported at the top of the file"
                told += [fix.why if isinstance(fix, Refusal) else fix]
            why = next(filter(None, told), why)
        return why


def _function(tree: ast.AST, source: live_source.Source) -> Any:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == source.name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == source.first_line:
                return node
    raise LookupError(f"{source.name} was not found")


def _places(function: ast.AST, lines: list[int]) -> list[Any]:
    """What may decide on one of `lines`, inner ones first; of an `if` with the `elif`s below it,
    which see the same values."""
    found: list[Any] = []
    for node in ast.walk(function):
        if isinstance(node, tuple(PATTERNS)) and _on(_decider(node), lines):
            found.append(node)
            while isinstance(node, ast.If) and len(node.orelse) == 1:
                node = node.orelse[0]
                found += [node] if isinstance(node, ast.If) else []
    return sorted(set(found), key=lambda n: (-n.lineno, n.end_lineno, n.end_col_offset))


def _decider(node: ast.AST) -> Any:
    """The part of a place that asks for a value."""
    return getattr(node, "test", node)


def _on(node: Any, lines: list[int]) -> bool:
    return any(node.lineno <= line <= node.end_lineno for line in lines)


def _difference(before: str, after: str) -> Edit:
    """The one edit, of whole lines, that makes `after` of `before`."""
    start = 0
    shortest = min(len(before), len(after))
    while start < shortest and before[start] == after[start]:
        start += 1
    start = before.rfind("\n", 0, start) + 1
    end = 0
    while end < shortest - start and before[-1 - end] == after[-1 - end]:
        end += 1
    tail = before.find("\n", len(before) - end) if end else len(before)
    end = len(before) - tail if tail >= 0 else 0
    return Edit(start, len(before) - end, after[start : len(after) - end])
