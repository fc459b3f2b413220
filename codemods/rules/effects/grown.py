"""Statements that make one attribute of a module grow: put under the guard all together, or not at
all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....rewriter.source.spans import Fix, Refusal, Safety
from .compile_guards import effect_free, guard

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.growing_attributes import Growth


_COMPUTED = Refusal(
    "what is added is computed there, and not by reading alone: leaving it out could change the"
    " result"
)


def guard_each(
    growths: list[Growth], why: str, context: FileContext
) -> dict[Growth, Fix | Refusal]:
    """growth -> the Fix that guards each of the statements, or the Refusal of that one or of
    another."""
    built = {g: _guarded(g, context) for g in growths}
    if not any(isinstance(b, Refusal) for b in built.values()):
        return dict.fromkeys(growths, _joined(list(built.values()), why))
    other = Refusal(
        f"`{growths[0].attr}` grows at another place, too, which has no fix: compiled code would"
        " keep a part"
    )
    return {g: b if isinstance(b, Refusal) else other for g, b in built.items()}


def _guarded(growth: Growth, context: FileContext) -> Fix | Refusal:
    return (
        guard([growth.node], context)
        if all(effect_free(a, context) for a in growth.added)
        else _COMPUTED
    )


def _joined(fixes: list[Fix], why: str) -> Fix:
    edits = tuple(e for f in fixes for e in f.edits)
    silent = sum(f.silent for f in fixes)
    return Fix(edits, fixes[0].title, Safety.UNSAFE, why, fixes[0].imports, silent)
