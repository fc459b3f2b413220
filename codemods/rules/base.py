"""What every rule has: a code, a message, its safety, its documentation, a matcher and a fix."""

import ast
import textwrap

from ...rewriter.edits.spans import Safety

_TITLES = {Safety.SAFE: "safe", Safety.UNSAFE: "unsafe"}


class Rule:
    """`check(node, context)` yields findings for a node of a type in `nodes`. `before`/`after`: the
    documented example, which is a test as well (`after` None: reported, not rewritten). `safety`:
    of the fix at its best; None: there is no fix. `shown`: what a traced run of the example shows,
    as (outermost forward, function, read)."""

    code = name = message = help = ""
    safety: Safety | None = None
    dynamo: tuple[str, ...] = ()
    nodes: tuple[type[ast.AST], ...] = ()
    whole_file = False
    shown: tuple[tuple[str, str, str], ...] = ()
    before = ""
    after: str | None = None

    def check(self, node, context):
        raise NotImplementedError(f"{self.code} has no matcher")

    def conclude(self, context):
        """Findings of a file for which no other rule has a fix left."""
        return ()

    def document(self):
        """The rule's page, in Markdown."""
        safety = (
            "no fix: reported with advice"
            if self.safety is None
            else f"{_TITLES[self.safety]} where it is proved"
        )
        if self.safety is Safety.UNSAFE:
            safety = "unsafe (`--unsafe-fixes`)"
        parts = [f"## {self.code} {self.name}", self.message[0].upper() + self.message[1:] + "."]
        parts += [textwrap.dedent(self.__doc__).strip(), f"Fix: {safety}."]
        if self.dynamo:
            parts.append(f"Dynamo: {', '.join(self.dynamo)}.")
        parts += ["Before:", _code(self.before)]
        parts += ["After:", _code(self.after)] if self.after else [f"By hand: {self.help}."]
        return "\n\n".join(parts) + "\n"


def _code(text):
    return f"```python\n{text.strip()}\n```"
