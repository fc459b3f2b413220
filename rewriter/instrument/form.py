"""`Form`: a call of a run-time operator, written as a template whose holes are the user's own
nodes.

The holes stay in the order of the source and keep their whitespace, so every token stays on its
line.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import libcst as cst

Part = str | cst.CSTNode

# These may stand without parentheses where they were, but not as the argument of a call.
_LOOSE = (cst.Tuple, cst.GeneratorExp, cst.Yield)


@dataclasses.dataclass(frozen=True)
class NodeSequence(cst.BaseExpression):
    """Text and nodes printed one after the other."""

    parts: Sequence[Part] = ()
    lpar: Sequence[cst.LeftParen] = ()
    rpar: Sequence[cst.RightParen] = ()

    def _visit_and_replace_children(self, visitor: Any) -> "NodeSequence":
        return self

    def _safe_to_use_with_word_operator(self, position: Any) -> bool:
        return True

    def _codegen_impl(self, state: Any) -> None:
        tokens = state.tokens
        last = next((token for token in reversed(tokens) if token), "")
        if not self.lpar and (last[-1:].isalnum() or last[-1:] == "_"):
            tokens.append(" ")  # `return[0]` and `not(x)` need no space, `return __df` does
        for part in (*self.lpar, *self.parts, *self.rpar):
            tokens.append(part) if isinstance(part, str) else part._codegen(state)


def operator(name: str, *operands: Part, like: Any = None) -> NodeSequence:
    """`__df.name(operand, …)`, in the parentheses of the node `like`. A string is text; a node is
    parenthesised when it has to be.
    """
    parts: list[Part] = [f"__df.{name}("]
    for index, operand in enumerate(operands):
        if index:
            parts.append(", ")
        parts.append(operand if isinstance(operand, str) else argument(operand))
    return template(*parts, ")", like=like)


def template(*parts: Part, like: Any = None) -> NodeSequence:
    if like is None:
        return NodeSequence(parts)
    return NodeSequence(parts, like.lpar, like.rpar)


def argument(node: cst.CSTNode) -> cst.CSTNode:
    """`node`, fit to be the argument of a call or the body of a lambda."""
    if isinstance(node, _LOOSE) and not node.lpar:
        return NodeSequence(("(", node, ")"))
    return node


def lazily(node: cst.CSTNode) -> NodeSequence:
    return NodeSequence(("lambda: ", argument(node)))


def text_of(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


def gap(before: cst.CSTNode, text: str, after: cst.CSTNode) -> tuple[Part, ...]:
    """`text` between two operands, with the whitespace that stood around the operator there, where
    it matters: line breaks.
    """
    kept = [space if "\n" in _space(space) else "" for space in (before, after)]
    return (kept[0], text + " " if text.endswith(",") and not kept[1] else text, kept[1])


def around(sign: Any, text: str) -> tuple[Part, ...]:
    """`text` in the place of `sign`; LibCST's signs have their whitespace in common, but no base
    class that says so."""
    return gap(sign.whitespace_before, text, sign.whitespace_after)


def _space(node: Any) -> str:
    return node.value if isinstance(node, cst.SimpleWhitespace) else "\n"
