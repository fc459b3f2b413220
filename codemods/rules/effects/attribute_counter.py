"""DYN307: a Python number on a module that every call changes."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Refusal, Safety
from ...analysis.growing_attributes import attributes, counted
from ..base import Rule
from .compile_guards import only_logs
from .grown import guard_each

if TYPE_CHECKING:
    from ....rewriter.source.spans import Edit, Fix
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding
    from ...analysis.growing_attributes import Attribute, Growth, Use


_GUARDED = "compiled code does not count: `{0}` then tells of eager calls alone"
_BUFFER = (
    "`{0}` becomes a tensor, in the module's buffers and computed with in torch's precision and"
    " dtypes (an integer tensor of no axis becomes int64); code elsewhere that stores a number"
    " there raises, and `+=` on what was read there changes the count"
)
_FOREIGN = "; `register_buffer` raises where a class of another file has that name"
_BY_HAND = ("__getattr__", "__getattribute__", "__setattr__")


class AttributeCounter(Rule):
    """
    An int that a module counts up on itself is a constant of the graph: Dynamo guards its value,
    compiles again at each call, and after eight times (`recompile_limit`) leaves the code to eager
    for good, with one warning. Floats become inputs of the graph at the second call, and are no
    matter. A number that is only counted, and read nowhere in the file but in prints, is counted in
    eager alone; one that is read, outside captured code or in arithmetic with tensors, becomes a
    buffer that no state dict holds. Both are unsafe.
    `torch._dynamo.config.allow_unspec_int_on_nn_module = True` makes all such ints inputs of the
    graph, at the price of their being no constants anywhere else.
    """

    code = "DYN307"
    safety = Safety.UNSAFE
    nodes = (ast.Module,)
    whole_file = True
    before = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return torch.relu(x) / self.calls
"""
    after = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.tensor(0), persistent=False)

    def forward(self, x):
        self.calls = self.calls + 1
        return torch.relu(x) / self.calls
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        for attribute in attributes(context, counted, ast.AugAssign, ast.Assign):
            if not attribute.reset and _integers(attribute, context):
                built = _Counter(attribute, context).fix
                for growth in attribute.growths:
                    yield context.finding(self, growth.node, fix=built(growth))


def _integers(attribute: Attribute, context: FileContext) -> bool:
    """Whether the number surely is an int, to which ints other than 0 are added."""
    kinds = list(attribute.kinds())
    added = [context.kind(a) for g in attribute.growths for a in g.added]
    whole = all(
        k is not None and k.what in ("int", "size") and k.cls != "shape" and not k.host
        for k in [*kinds, *added]
    )
    return bool(kinds) and whole and not any(k.const == 0 for k in added)


class _Counter:
    """The fixes of one counter."""

    def __init__(self, attribute: Attribute, context: FileContext) -> None:
        self.attribute, self.context, self.attr = attribute, context, attribute.attr
        self.reads = [u for u in attribute.uses if u.what != "store" and not self._is_reported(u)]

    def _is_reported(self, use: Use) -> bool:
        node = use.node
        while node is not None and not isinstance(node, ast.stmt):
            node = self.attribute.parents.get(node)
        return use.captured and isinstance(node, ast.Expr) and only_logs(node, self.context)

    def fix(self, growth: Growth) -> Fix | Refusal:
        """The Fix for one place where it is counted, or the Refusal."""
        if not self.reads and not self.attribute.named:
            return guard_each(self.attribute.growths, _GUARDED.format(self.attr), self.context)[
                growth
            ]
        if self.attribute.named:
            return Refusal(self.attribute.read_by())
        return self._buffer()

    def _buffer(self) -> Fix | Refusal:
        found, why = self.context.torch(self.attribute.growths[0].node), self._unfit()
        if why:
            return Refusal(why)
        edits = found and self._stores(found[0])
        if not edits:
            return Refusal(f"`{self.attr}` is not plainly stored, once, in `__init__`")
        edits += self._grown()
        why = _BUFFER.format(self.attr) + (_FOREIGN if self.attribute.foreign() else "")
        return self.context.fix(
            "count in a buffer", *edits, safety=Safety.UNSAFE, why=why, imports=found[1]
        )

    def _unfit(self) -> str:
        """Why a buffer cannot take the number's place; "" where it can."""
        wrong = next((u for u in self.reads if u.captured and not self._computes(u.node)), None)
        if wrong is not None:
            return f"`{self.attr}` is needed as a Python number in `{wrong.function.name}`"
        named = next((u for u in self.reads if u.what == "trim"), None)
        if named is not None:
            return (
                f"`{named.function.name}` has another name for `{self.attr}`, under which it may be"
                " written in place"
            )
        if self.attribute.shared:
            return f"`{self.attr}` is counted in several classes, or outside captured code"
        taken = next((n for n in (self.attr, *_BY_HAND) if n in self.attribute.class_names()), None)
        return (
            f"a class has `{taken}` in its body, besides which `register_buffer` cannot be used"
            if taken
            else ""
        )

    def _computes(self, node: ast.Attribute) -> bool:
        """Whether a number goes into arithmetic that gives a tensor."""
        top = node
        while isinstance(self.attribute.parents.get(top), ast.BinOp):
            top = self.attribute.parents[top]
        return top is not node and self.context.kind(top).is_tensor

    def _stores(self, torch: str) -> list[Edit | Refusal]:
        """The edits of the places that store a number; none where one of them is not plain."""
        edits, made, registered = [], 0, 0
        for use in (u for u in self.attribute.uses if u.what == "store"):
            statement, own = self.attribute.parents[use.node], use.function.self_name
            if (
                not isinstance(statement, ast.Assign)
                or len(statement.targets) != 1
                or use.function.cls is not self.attribute.cls
            ):
                return []
            if getattr(use.node.value, "id", None) != own:
                return []
            value = self.context.segment(statement.value)
            if use.function.name == "__init__":
                made += _below_super(statement, use.function.node)
                registered += 1
                text = (
                    f'{own}.register_buffer("{self.attr}", {torch}.tensor({value}),'
                    " persistent=False)"
                )
            elif isinstance(statement.value, ast.Constant):
                text = f"{own}.{self.attr} = {torch}.full_like({own}.{self.attr}, {value})"
            else:
                return []
            edits.append(self.context.replacement(statement, text))
        return edits if made == registered == 1 else []

    def _grown(self) -> list[Edit]:
        """Autograd, or who read it, may hold the old value: a new tensor instead of a write into
        it."""
        nodes = [g.node for g in self.attribute.growths if isinstance(g.node, ast.AugAssign)]
        return [self.context.replacement(n, self._plainly(n)) for n in nodes]

    def _plainly(self, node: ast.AugAssign) -> str:
        target, value = self.context.segment(node.target), self.context.operand(node.value)
        sign = "+" if isinstance(node.op, ast.Add) else "-"
        return f"{target} = {target} {sign} {value}"


def _below_super(statement: ast.Assign, init: ast.FunctionDef) -> bool:
    """Whether a statement of `__init__` itself stands below its `super().__init__()`."""
    if statement not in init.body:
        return False
    above = init.body[: init.body.index(statement)]
    return any(
        isinstance(s, ast.Expr)
        and ast.unparse(s).startswith("super(")
        and "__init__" in ast.unparse(s)
        for s in above
    )
