"""How many graph breaks each rule's example has before and after its fix, by torch version, as
`benchmarks/rule_breaks.py` measured them."""

from __future__ import annotations

import json
import os
from functools import cache

PATH = os.path.join(os.path.dirname(__file__), "rule_breaks.json")


@cache
def _table() -> dict[str, dict[str, list[int | None]]]:
    with open(PATH, encoding="utf-8") as stream:
        found: dict[str, dict[str, list[int | None]]] = json.load(stream)
    return found


def measured(code: str) -> dict[str, dict[str, int | None]]:
    """{torch version: {"before": breaks, "after": breaks}} of a rule's example; what could not be
    run with plain tensors is left out."""
    rows = {version: table.get(code, [None, None]) for version, table in _table().items()}
    return {v: {"before": b, "after": a} for v, (b, a) in rows.items() if b is not None}


def measured_breaks(code: str) -> str:
    """The same in a sentence, or ""; versions with equal numbers together."""
    groups: dict[tuple[int | None, int | None], list[str]] = {}
    for version, numbers in measured(code).items():
        groups.setdefault((numbers["before"], numbers["after"]), []).append(version)
    parts = []
    for (before, after), versions in groups.items():
        then = "" if after is None else f", {after} after"
        parts.append(f"{before} before{then} (torch {', '.join(versions)})")
    return f"Graph breaks of the example: {'; '.join(parts)}." if parts else ""
