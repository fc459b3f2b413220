"""Rules that know a call by its name: what no tracer can follow, with advice."""

import ast

from .base import Rule
from .host.host_read import told


class CallRule(Rule):
    """Speaks of a call whose full name is in `names`, or starts with one of `prefixes`; `{}` in the
    message is that name."""

    nodes = (ast.Call,)
    names: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    def check(self, node, context):
        name = context.resolve(node.func)
        if name is None or not (name in self.names or name.startswith(self.prefixes or ("\0",))):
            return
        if self.applies(node, context) and not told(node, context):
            yield context.finding(
                self, node, f"{self.message}: `{name}`", fix=self.fix(node, context)
            )

    def fix(self, node, context):
        """The Fix, where there is one."""
        return None

    def applies(self, node, context):
        """Whether this call is one of those meant."""
        return True
