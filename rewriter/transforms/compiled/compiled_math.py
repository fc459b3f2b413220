"""A number that NumPy works out, as Python's in compiled code alone:

    loss / (math.log(2) if torch.compiler.is_compiling() else np.log(2))

Eager does what it did. Compiled code has a float in the place of NumPy's, which is a subclass of
float. Conditions: the argument is a literal, or a size, for which both are defined (a logarithm of
a size asks that it is not 0); and all that is done with the result until it meets a tensor is to
add, subtract, negate, multiply and divide, by nothing that may be 0: there the two are the same."""

import ast
import math
from dataclasses import replace

from ...analysis.kinds import NO_CONST, SIZE, literal
from ...analysis.name_scopes import rebindings
from ...source.spans import Fix, Refusal, Safety
from .trace_time_checks import is_a_tensor

_KEEPS = (ast.Add, ast.Sub, ast.Mult, ast.Div)
_MAKES = (
    "tensor",
    "as_tensor",
    "asarray",
    "scalar_tensor",
    "new_tensor",
)  # of the number's own dtype


def made(call: ast.Call, name: str, oracle, imports) -> Fix | Refusal:
    """The Fix that has compiled code call `math.<name>` for the call of NumPy's function of one
    argument; `imports`: what a fix must add to use `math` there."""
    return _Number(call, name, oracle).fix(imports)


class _Number:
    def __init__(self, call, name, context):
        self.call, self.name, self.context = call, name, context
        self.argument, self.asked = call.args[0], {}
        self.once = rebindings(context.function(call).node).once
        self.statement, self.torch = context.statement(call), context.torch(call)

    def fix(self, imports):
        torch, context = self.torch, self.context
        if torch is None:
            return Refusal("`torch` is hidden by another name")
        why = self._undefined() or self._why_distinguishable(self.call)
        if why:
            return Refusal(why)
        tests = " and ".join([f"{torch[0]}.compiler.is_compiling()", *self.asked])
        first = f"math.{self.name}({context.shown(self.argument)})"
        text = f"({first} if {tests} else {context.segment(self.call)})"
        edit = context.replacement(self.call, text)
        title = f"use math.{self.name} when compiled"
        fix = context.fix(title, edit, safety=Safety.SAFE, imports=(*imports, *torch[1]))
        return replace(fix, asked=True) if isinstance(fix, Fix) else fix

    def _undefined(self):
        """Why the two may not be defined for the argument, or give 0 or what is not finite."""
        text, value = self.context.segment(self.argument), literal(self.argument)
        if value is not NO_CONST:
            known = self._value(value)
            return "" if known else f"`math.{self.name}` may raise of `{text}`"
        if "\n" in text or not self._is_size(self.argument) or self.name not in ("sqrt", "log"):
            return f"`{text}` may be negative"
        unknown = self._ask_tensors(self.argument)
        if self.name == "log":
            self.asked[f"{self.context.operand(self.argument)} > 0"] = True
        return unknown

    def _ask_tensors(self, node):
        """Asks of names that are tensors if inputs are; why that cannot be asked."""
        for name in (n for n in ast.walk(node) if isinstance(n, ast.Name)):
            kind = self.context.kind(name)
            if not kind.is_tensor or not (
                kind.optional or self.context.assumed_tensor(name, self.call)
            ):
                continue
            if not self._is_known_here(name):
                return f"`{name.id}` may be no tensor"
            self.asked[is_a_tensor(self.torch[0], name.id)] = True
        return ""

    def _is_known_here(self, name):
        """Whether a name of the same statement means at the call what it means there."""
        inner = (ast.NamedExpr, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp)
        parts = list(ast.walk(self.statement))
        simple = not any(isinstance(n, (*inner, ast.GeneratorExp)) for n in parts)
        return simple and name in parts and isinstance(self.statement, (ast.Assign, ast.Return))

    def _value(self, value):
        """What a function gives for a literal, where that is finite; else None."""
        try:
            found = getattr(math, self.name)(value)
        except (TypeError, ValueError, OverflowError):
            return None
        return found if math.isfinite(found) else None

    def _is_size(self, node):
        """Whether it is a size of a tensor, or a product of sizes."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return self._is_size(node.left) and self._is_size(node.right)
        owner = getattr(node, "value", None)
        shape = isinstance(node, ast.Subscript) and isinstance(owner, ast.Attribute)
        if shape and owner.attr == "shape" and not isinstance(node.slice, ast.Slice):
            return self.context.kind(owner.value).is_tensor
        func = getattr(node, "func", None)
        sized = isinstance(func, ast.Attribute) and func.attr == "size" and len(node.args) == 1
        return (sized and self.context.kind(func.value).is_tensor) or (
            isinstance(node, ast.Name) and self.context.kind(node).what == SIZE
        )

    def _why_distinguishable(self, node):
        """Why what is done with a number may tell the two apart; "" where nothing does."""
        parent = self.context.parent(node)
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, _KEEPS):
            return self._operand(node, parent)
        if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.USub):
            return self._why_distinguishable(parent)
        if isinstance(parent, ast.AugAssign) and isinstance(parent.op, _KEEPS):
            into = self.context.kind(parent.target)
            return "" if into.is_tensor else self._elsewhere(node)
        if isinstance(parent, ast.Call) and node in parent.args:
            return self._taken(parent, node)
        one = isinstance(parent, ast.Assign) and len(parent.targets) == 1
        if not one or not isinstance(parent.targets[0], ast.Name):
            return self._elsewhere(node)
        return self._name(parent.targets[0].id)

    def _name(self, name):
        if name not in self.once:
            return f"`{name}` is bound at several places"
        function = self.context.function(self.call).node
        every = (n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name)
        loads = [n for n in every if isinstance(n.ctx, ast.Load)]
        return next(filter(None, map(self._why_distinguishable, loads)), "")

    def _operand(self, node, parent):
        other = parent.right if parent.left is node else parent.left
        kind = self.context.kind(other)
        if kind.is_tensor and not kind.optional:
            return self._ask_tensors(other)
        divides = isinstance(parent.op, ast.Div) and other is parent.left
        divided = isinstance(parent.op, ast.Div) and other is parent.right
        if (divides and not self._is_literal(node)) or (divided and not literal_divisor(other)):
            return f"`{self.context.segment(parent)}` may divide by zero"
        if not (kind.is_number and not kind.optional):
            if not isinstance(other, ast.Name) or not self._is_known_here(other):
                return f"`{self.context.segment(other)}` may be an array"
            self.asked[f"isinstance({other.id}, (int, float))"] = True
        return self._why_distinguishable(parent)

    def _is_literal(self, node):
        """Whether a divisor is the call itself, of a literal for which it is not 0."""
        value = literal(self.argument)
        return node is self.call and value is not NO_CONST and bool(self._value(value))

    def _taken(self, call, node):
        """Why a call may not take the number as any float: torch's functions and tensors' methods
        do."""
        name = self.context.resolve(call.func) or ""
        owner = getattr(call.func, "value", None)
        if name.startswith("torch.") and name.rpartition(".")[2] not in _MAKES:
            return ""
        if owner is None or not self.context.kind(owner).is_tensor or call.func.attr in _MAKES:
            return self._elsewhere(node)
        return self._ask_tensors(owner)

    def _elsewhere(self, node):
        return f"`{self.context.segment(node)}` goes elsewhere than into arithmetic with tensors"


def literal_divisor(node):
    value = literal(node)
    return isinstance(value, (int, float)) and value != 0
