"""Writes docs/rules.md from the rules themselves: `python -m dynfix.codemods.cli.rules_page
[FILE]`; `--check` only compares."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...rewriter.catalogue import REASONS
from ..rules import BY_CODE, RULES
from ..rules.base import without_rule

if TYPE_CHECKING:
    from ..rules.base import Rule


_HEAD = """# Rules

Made by `python -m dynfix.codemods.cli.rules_page` from the rules in `codemods/rules/`; do not edit
by hand.

A *safe* fix leaves the program identical in eager: values, dtypes, gradients, printed text,
exceptions. The bare `dynfix` applies it. An *unsafe* fix may change one of these; `--unsafe-fixes`
applies it. Whether a given place gets a safe fix, an unsafe one or none depends on what can be
proved there; the report says which, and why.

The migrations, DYN801 to DYN805, are off by default: `--extend-select DYN8` adds them,
`--select DYN8` looks for them alone.

| code | name | what | fix |
|---|---|---|---|
"""


def text() -> str:
    """The whole page."""
    rows = "".join(
        f"| [{r.code}](#{_anchor(r)}) | {r.name} | {r.message} | {_fix(r)} |\n" for r in RULES
    )
    others = [reason for reason in REASONS.values() if reason.no_rule]
    rows += "".join(
        f"| [{r.code}](#{_anchor(r)}) | {r.name} | {r.message} | reported by the compiler |\n"
        for r in others
    )
    pages = [r.document() for r in RULES] + [without_rule(r) for r in others]
    return _HEAD + rows + "\n" + "\n".join(pages)


def page(code: str) -> str:
    """What is known of a code, in Markdown."""
    return BY_CODE[code].document() if code in BY_CODE else without_rule(REASONS[code])


def _anchor(rule: Any) -> str:
    return f"{rule.code} {rule.name}".lower().replace(" ", "-")


def _fix(rule: Rule) -> str:
    return rule.safety.value if rule.safety else "advice"


def main(argv: list[str]) -> int:
    """Write the page, or with --check say whether it is as it should be."""
    names = [a for a in argv if not a.startswith("-")]
    path = Path(names[0]) if names else Path(__file__).parents[2] / "docs" / "rules.md"
    if "--check" in argv:
        same = path.exists() and path.read_text(encoding="utf-8") == text()
        print(f"{path} is {'as the rules say' if same else 'out of date'}")
        return 0 if same else 1
    path.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
