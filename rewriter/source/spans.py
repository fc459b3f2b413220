"""Edits of spans of text: nothing outside a span changes by a byte."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Safety(enum.Enum):
    """SAFE: identical in eager (values, dtypes, gradients, printed text, exceptions). UNSAFE: only
    when asked for."""

    SAFE = "safe"
    UNSAFE = "unsafe"


class Intent(str, enum.Enum):
    """What an edit means to do with text[start:end]; all but SPLICE are realised by LibCST (see
    `realise`)."""

    SPLICE = "splice"  # put `text` there, to the byte
    EXPRESSION = "expression"  # another expression
    STATEMENTS = "statements"  # other statements, their lines indented already
    DELETE = "delete"  # one statement less
    WRAP = "wrap"  # statements under the head of a compound one
    BEFORE = "before"  # statements, of lines not indented yet, above the one that stands there


@dataclass(frozen=True)
class Edit:
    """A change of text[start:end], of which `text` is what comes in."""

    start: int
    end: int
    text: str
    intent: Intent = Intent.SPLICE


@dataclass(frozen=True)
class Refusal:
    """Why a change cannot be made; it stands where the change would."""

    why: str


def hidden(*modules: str) -> Refusal:
    """The Refusal where a name that a change needs does not stand for its module."""
    names = " or ".join(f"`{m}`" for m in modules or ("torch",))
    return Refusal(f"{names} is hidden by another name, or not imported at the top of the file")


@dataclass(frozen=True)
class Fix:
    """One change, applied whole or not at all. `why`: what makes it unsafe; `silent`: calls mute
    when compiled; `first`: it is part of a change of several files, made before all others;
    `asked`: what the text cannot show, the new code asks for; `compiled`: compiled code alone runs
    what it adds; `ran`: a run took all that it chooses from; `needs_next`: it helps only where what
    it leaves has a fix, too; `needs_whole`: with a graph break in it, it does not compile;
    `operator`: eager code runs on, as an operator of the graph."""

    edits: tuple[Edit, ...]
    title: str
    safety: Safety = Safety.SAFE
    why: str = ""
    imports: tuple[str, ...] = ()
    silent: int = 0
    first: bool = False
    asked: bool = False
    compiled: bool = False
    ran: bool = False
    needs_next: bool = False
    needs_whole: bool = False
    operator: bool = False

    @property
    def span(self) -> tuple[int, int]:
        return min(e.start for e in self.edits), max(e.end for e in self.edits)


def apply(text: str, edits: Iterable[Edit]) -> str:
    """`text` with non-overlapping `edits` made; ValueError where two overlap."""
    parts: list[str] = []
    at = 0
    for edit in sorted(set(edits), key=_order):
        if edit.start < at:
            raise ValueError(f"edits overlap at offset {edit.start}")
        parts += text[at : edit.start], edit.text
        at = edit.end
    return "".join(parts) + text[at:]


def _order(edit: Edit) -> tuple[int, int, bool, str]:
    """By place; of insertions at one place, those that begin with an empty line come last."""
    return edit.start, edit.end, edit.text.startswith(("\n", "\r")), edit.text


def disjoint(fixes: Iterable[Fix]) -> list[Fix]:
    """The fixes, first come in the file, of which no two spans touch (each kept once)."""
    kept: list[Fix] = []
    end = -1
    for fix in sorted(dict.fromkeys(fixes), key=lambda f: f.span):
        if fix.span[0] > end:
            kept.append(fix)
            end = fix.span[1]
    return kept
