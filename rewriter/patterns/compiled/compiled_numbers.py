"""`w = 1.0 if t else -1.0` of numbers that only go into arithmetic with tensors: a tensor of no
axis in compiled code alone.

Such a tensor counts in arithmetic as the number does: its dtype does not matter beside a
floating-point tensor that has axes, and the numbers are ones that every dtype holds exactly."""

import ast

from ...edits.spans import Fix, Refusal
from ..condition import short
from ..kinds import literal
from ..name_scopes import rebindings
from .when_compiled import CompiledExpression

_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div)


def made_of_numbers(node: ast.IfExp, oracle) -> Fix | Refusal:
    """The Fix that adds a form for compiled code to a choice between two numbers."""
    return _Numbers(node, oracle).fix()


class _Numbers(CompiledExpression):
    def choice(self, texts, tests, values, target):
        numbers = [literal(v) for v in values]
        if not all(type(n) in (int, float) and short(n) for n in numbers):
            return "!the sides are no tensors, and no short numbers"
        if len({type(n) for n in numbers}) > 1:
            return "!the sides are an int and a float"
        why = self._arithmetic(target, tests[0])
        if why:
            return f"!{why}"
        self.forms.add("where")
        text = texts[0] if tests[0].kind.rank == 0 else f"({texts[0]}).reshape(())"
        return self.call("where", text, *(self.text(v) for v in values))

    def _arithmetic(self, target, test):
        """Why the number may be felt to be a tensor; asks what must hold of the tensors that it
        goes into arithmetic with."""
        function = self.context.function(self.node).node
        once = rebindings(function).once
        if target not in once:
            return f"`{target}` is bound at several places"
        loads = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == target]
        for load in (n for n in loads if isinstance(n.ctx, ast.Load)):
            parent = self.context.parent(load)
            known = isinstance(parent, ast.BinOp) and isinstance(parent.op, _ARITHMETIC)
            other = known and (parent.right if parent.left is load else parent.left)
            if not isinstance(other, ast.Name) or not self.context.kind(other).is_tensor:
                return f"`{target}` goes elsewhere than into arithmetic with a tensor"
            if other.id not in once:
                return f"`{other.id}` is bound at several places"
            self.asked.add(f"{other.id}.is_floating_point()")
            self.asked.add(f"{other.id}.dim() > 0")
            if self.context.kind(other).device != test.kind.device:
                self.asked.add(f"{other.id}.device == {self._like(test)}.device")
        return ""

    def _like(self, test):
        names = (n for n in ast.walk(self.node.test) if isinstance(n, ast.Name))
        return next((n.id for n in names if self.context.kind(n).is_tensor), f"({test.text})")
