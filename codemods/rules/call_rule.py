"""Rules that know a call by its name: what no tracer can follow, with advice."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .base import Rule
from .host.host_read import is_logged

if TYPE_CHECKING:
    from ..analysis.file_context import FileContext
    from ..analysis.findings import Finding


class CallRule(Rule):
    """Speaks of a call whose full name is in `names`, or starts with one of `prefixes`; `{}` in the
    message is that name."""

    nodes = (ast.Call,)
    names: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        name = context.resolve(node.func)
        if name is None or not (name in self.names or name.startswith(self.prefixes or ("\0",))):
            return
        if self.applies(node, context) and not is_logged(node, context):
            yield context.finding(
                self,
                self.place(node, context) or node,
                f"{self.message}: `{name}`",
                fix=self.fix(node, context),
            )

    def place(self, node: ast.Call, context: FileContext) -> ast.expr | None:
        """Where the graph breaks for a call."""
        return node

    def fix(self, node: ast.Call, context: FileContext) -> Any:
        """The Fix, where there is one."""
        return None

    def applies(self, node: ast.Call, context: FileContext) -> bool:
        """Whether this call is one of those meant."""
        return True
