"""A check that only raises, as `torch._assert_async` in compiled code alone:

    if torch.compiler.is_compiling():
        torch._assert_async((p >= 0).all(), "(p >= 0).all()")
    elif not (p >= 0).all():
        raise ValueError(f"{p.min()} is negative")

Eager checks what it checked. Compiled code checks the same, on the device, and raises a
RuntimeError. Conditions: the test is a tensor's, of one element or that is asked; nothing but the
`raise` depends on it."""

import ast

from ...source.spans import Edit, Fix, Refusal
from .when_compiled import Compiled

_TITLE = "assert on the device when compiled (a RuntimeError there)"


def raising(node: ast.If, text: str, oracle, losses=()) -> Fix | Refusal:
    """The Fix for an `if` that only raises; `text` is the source of the message, `losses`: what
    more is lost in compiled code, so that the fix is unsafe."""
    return _Raise(node, oracle, text, losses).fix()


def asserting(node: ast.Assert, text: str, oracle, losses=()) -> Fix | Refusal:
    """The same for an `assert`."""
    return _Assert(node, oracle, text, losses).fix()


def checking(node: ast.Expr, text: str, oracle, losses=(), every=False) -> Fix | Refusal:
    """The same for a call such as `torch._check(test, …)`. `every`: what it is given may be a bool
    tensor of any size, of which every element must be True."""
    return _Check(node, oracle, text, losses, every).fix()


class _Raise(Compiled):
    title = _TITLE

    def __init__(self, node, context, text, losses):
        super().__init__(node, context)
        self.message = text
        self.doubts.update(dict.fromkeys(losses))

    def lines(self):
        hidden, test = self.hidden(), self.node.test
        if hidden or getattr(self.node, "orelse", None):
            return hidden or "it has an `else`"
        found = self.test(test)
        if isinstance(found, str):
            return found
        return [self.call("_assert_async", self._holds(found), self.message)], False

    def _holds(self, found):
        text = found.exact or found.text
        return text if found.negated else f"{self.torch[0]}.logical_not({text})"


class _Assert(_Raise):
    def _holds(self, found):
        return self.shown(found)

    def inserted(self, lines, returns):
        start, end = self.source.span(self.node)
        indent, unit, newline = self.source.indent_of(self.node), self.source.indent_unit(), "\n"
        if indent is None or self.shares(self.node) or self.source.has_long_string(start, end):
            return Refusal("it shares its line with others")
        newline = self.source.newline
        head = [self.guard("if", indent), *(f"{indent}{unit}{line}" for line in lines)]
        text = newline.join([*head, f"{indent}else:", f"{indent}{unit}"])
        return self.made("", Edit(start, start, text))


class _Check(_Assert):
    def __init__(self, node, context, text, losses, every):
        super().__init__(node, context, text, losses)
        self.every = every

    def lines(self):
        hidden, tested = self.hidden(), self.node.value.args[0]
        kind = self.context.kind(tested)
        if hidden:
            return hidden
        if not kind.is_tensor:
            found = self.test(tested)
            text = found if isinstance(found, str) else self._holds(found)
        elif self.every and kind.dtype == self.tokens.bool:
            found = self.ask_tensors(tested) or None
            text = self.context.segment(tested)
            text = text if kind.rank == 0 else f"{self.context.atom(tested)}.all()"
        else:
            found = "its condition is not known to be a bool"
        if isinstance(found, str):
            return found
        return [self.call("_assert_async", text, self.message)], False
