"""What every rule has: a code, a message, its safety, its documentation, a matcher and a fix."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ...rewriter.catalogue import REASONS, Reason
from ...rewriter.source.spans import Safety
from .measured import measured_breaks

if TYPE_CHECKING:
    from ..analysis.file_context import FileContext
    from ..analysis.findings import Finding


_TITLES = {Safety.SAFE: "safe", Safety.UNSAFE: "unsafe"}


class Rule:
    """`code`: that of its reason in the catalogue, which has its name, message and help.
    `check(node, context)` yields findings for a node of a type in `nodes`. `before`/`after`: the
    documented example, which is a test as well (`after` None: reported, not rewritten). `safety`:
    of the fix at its best; None: there is no fix. `shown`: what a traced run of the example shows,
    as (outermost forward, function, read). `whole_since`: the first torch version measured at which
    what it finds breaks no graph; with that and newer ones it finds nothing. `rounds`: its fixes
    change the last digits of results, so that these are compared with a tolerance."""

    code = ""
    safety: Safety | None = None
    nodes: tuple[type[ast.AST], ...] = ()
    whole_file = False
    whole_since = ""
    rounds = False
    shown: tuple[tuple[str, str, str], ...] = ()
    before = ""
    after: str | None = None

    @property
    def reason(self) -> Reason:
        return REASONS[self.code]

    @property
    def name(self) -> str:
        return self.reason.name

    @property
    def message(self) -> str:
        return self.reason.message

    @property
    def help(self) -> str:
        return self.reason.help

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        raise NotImplementedError(f"{self.code} has no matcher")

    def conclude(self, context: FileContext, found: list[Finding]) -> list[Finding]:
        """The findings of all rules in a file, with what this one makes of them."""
        return found

    def document(self) -> str:
        """The rule's page, in Markdown."""
        safety = (
            "no fix: reported with advice"
            if self.safety is None
            else f"{_TITLES[self.safety]} where it is proved"
        )
        if self.safety is Safety.UNSAFE:
            safety = "unsafe (`--unsafe-fixes`)"
        parts = [heading(self.reason), _described(self), f"Fix: {safety}."]
        if self.reason.opt_in:
            parts.append(f"Off by default: `--extend-select {self.code}` looks for it.")
        if self.whole_since:
            parts.append(f"Reported where `target-torch` is older than {self.whole_since}.")
        if self.reason.dynamo:
            parts.append(f"Dynamo: {', '.join(self.reason.dynamo)}.")
        breaks = measured_breaks(self.code)
        parts += [breaks] if breaks else []
        parts += ["Before:", _code(self.before)]
        parts += ["After:", _code(self.after)] if self.after else [f"By hand: {self.help}."]
        return "\n\n".join(parts) + "\n"


def _described(rule: Rule) -> str:
    import textwrap  # only where a page is made

    return textwrap.dedent(rule.__doc__ or "").strip()


def heading(reason: Reason) -> str:
    """The title of a reason's page, and what it says."""
    return f"## {reason.code} {reason.name}\n\n{reason.message[0].upper()}{reason.message[1:]}."


def without_rule(reason: Reason) -> str:
    """The page of a reason that no rule looks for, in Markdown."""
    dynamo = [f"Dynamo: {', '.join(reason.dynamo)}."] if reason.dynamo else []
    why = f"No rule looks for it: {reason.no_rule}."
    return (
        "\n\n".join([heading(reason), reason.about, why, *dynamo, f"By hand: {reason.help}."])
        + "\n"
    )


def _code(text: str) -> str:
    return f"```python\n{text.strip()}\n```"
