"""A conditional expression on a tensor's value as a choice: `torch.where` or `torch.cond`."""

import ast

from ..analysis.oracle import Oracle
from ..source.spans import Fix, Refusal
from .condition import condition
from .two_sides import Chooser


def chosen(node: ast.IfExp, oracle: Oracle) -> Fix | Refusal | None:
    """The Fix that makes the expression a choice, or the Refusal; None: no tensor decides it."""
    test = condition(node.test, oracle)
    if test is None or isinstance(test, str):
        return Refusal(test) if test else None
    choice = Chooser(oracle, node).choose(
        test, node.body, node.orelse, statement=False, targets=_targets(node, oracle)
    )
    if isinstance(choice, str):
        return Refusal(choice)
    return oracle.fix(
        f"use torch.{choice.form}",
        oracle.replacement(node, choice.text),
        safety=choice.safety,
        why=choice.why,
        imports=choice.imports,
    )


def _targets(node: ast.IfExp, oracle: Oracle) -> set[str]:
    """The names that are bound to the very value of a conditional expression."""
    parent = oracle.parent(node)
    targets = parent.targets if isinstance(parent, ast.Assign) else []
    return {t.id for t in targets if isinstance(t, ast.Name)}
