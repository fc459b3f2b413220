"""DYN604: a helper that makes a constant with NumPy."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.call_effects import CONSTANT_BUILTINS, MAY_WRITE, allows, of_function
from ....rewriter.analysis.torch_facts import (
    ONLY_TENSOR_METHODS,
    SUGGESTIVE,
    SUGGESTIVE_ATTRIBUTES,
)
from ....rewriter.analysis.tree_walk import only_store
from ....rewriter.source.intents import insert_before
from ....rewriter.source.spans import Edit, Refusal, Safety, hidden
from ...analysis.constancy import number_by_default, several, sized
from ..base import Rule

if TYPE_CHECKING:
    from ...analysis.definitions import Function
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_MAKERS = frozenset(
    ["Tensor", "FloatTensor", "DoubleTensor", "LongTensor", "tensor", "from_numpy", "as_tensor"]
)
_FIXED = ("int", "float", "bool", "str", "none", "number", "size")
_CHANGES = (
    ast.Global,
    ast.Nonlocal,
    ast.Yield,
    ast.YieldFrom,
    ast.Await,
    ast.Delete,
    ast.With,
    ast.Try,
    ast.ClassDef,
)


class ConstantHelper(Rule):
    """
    A function that makes a tensor with NumPy from Python numbers alone (a Gaussian window, anchors,
    a filter) gives the same at every call with the same numbers.
    `torch.compiler.assume_constant_result` has Dynamo call it while tracing and keep the tensor, of
    which compiled code takes a copy. Unsafe where it is not sure to give one tensor: compiled calls
    would share what it gives, and a write into that would stay.
    """

    code = "DYN604"
    safety = Safety.UNSAFE
    nodes = (ast.Module,)
    whole_file = True
    before = """
import numpy as np
import torch


def window(size):
    grid = np.exp(-(np.mgrid[0:size] ** 2) / 2)
    return torch.from_numpy(grid / grid.sum())


@torch.compile
def step(x: torch.Tensor):
    return x * window(4)
"""
    after = """
import numpy as np
import torch


@torch.compiler.assume_constant_result
def window(size):
    grid = np.exp(-(np.mgrid[0:size] ** 2) / 2)
    return torch.from_numpy(grid / grid.sum())


@torch.compile
def step(x: torch.Tensor):
    return x * (window(4).clone() if torch.compiler.is_compiling() else window(4))
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if not any(full.split(".")[0] == "numpy" for full in context.names.aliases.values()):
            return
        captured = list(context.functions.values())
        for function in captured:
            if function.cls is None and function.outer is None and not function.node.decorator_list:
                yield from self._function(function, captured, context)

    def _function(
        self, function: Function, captured: list[Function], context: FileContext
    ) -> Iterator[Finding]:
        used = HelperBody(context)
        if _takes_tensors(function):
            return
        if not used.constant(function, ()) or not (used.numpy and used.makes):
            return
        calls = [
            n
            for other in captured
            if other.node not in used.seen
            for n in ast.walk(other.node)
            if isinstance(n, ast.Call)
            and isinstance(n.func, ast.Name)
            and n.func.id == function.name
        ]
        if not calls:
            return
        found, kept = context.torch(function.node), _not_fixed(calls, context)
        if found is None or kept:
            yield context.finding(self, calls[0], fix=Refusal(kept) if kept else hidden())
            return
        decorator = f"@{found[0]}.compiler.assume_constant_result"
        edit = insert_before(context.source, function.node, decorator)
        title = "take its result for constant"
        if used.detached and _distinct(calls, context):
            form = f"({{}}.clone() if {found[0]}.compiler.is_compiling() else {{}})"
            edits = [edit, *(_own_copy(call, form, context) for call in calls)]
            yield context.finding(self, calls[0], fix=context.fix(title, *edits, imports=found[1]))
            return
        why = "compiled calls share one tensor: a write into it would stay"
        edits = [edit, *(e for call in calls for e in _at_call(call, context))]
        fix = context.fix(title, *edits, safety=Safety.UNSAFE, why=why, imports=found[1])
        yield context.finding(self, calls[0], fix=fix)


def _distinct(calls: list[ast.Call], context: FileContext) -> bool:
    """Whether each call surely gives one tensor, and none stands in another."""
    kinds = [context.kind(c) for c in calls]
    inner = {n for c in calls for n in ast.walk(c) if n is not c}
    plain = not inner.intersection(calls) and all("\n" not in context.segment(c) for c in calls)
    return plain and all(k.is_tensor and not k.optional for k in kinds)


def _own_copy(call: ast.Call, form: str, context: FileContext) -> Edit:
    """Compiled code gets a copy of the one tensor; eager makes its own, as before."""
    made = context.source.substituted(call, _plain_sizes(call, context))
    return context.replacement(call, form.format(made, context.segment(call)))


def _not_fixed(calls: list[ast.Call], context: FileContext) -> str:
    for call in calls:
        for value in [*call.args, *(k.value for k in call.keywords)]:
            kind = context.kind(value)
            known = (
                kind.what in _FIXED
                or number_by_default(value, context)
                or _one_size(value, context)
            )
            if (not known and not _is_cuda(value, context)) or kind.host:
                return f"`{context.segment(value)}` is not known to be a Python number"
        if _kept_in_attribute(call, context) and not context.kind(call).is_tensor:
            return "its result is kept in an attribute, which Dynamo cannot make of a constant"
    return ""


def _one_size(node: ast.expr, context: FileContext) -> bool:
    """Whether `node` asks for one size of a name that surely is no plain object of another sort."""
    if isinstance(node, ast.Name) and context.kind(node).what == "unknown":
        return _unpacked_size(node, context)
    base = sized(node, context)
    return (
        base is not None and not several(node) and context.kind(base).what in ("tensor", "unknown")
    )


def _unpacked_size(name: ast.Name, context: FileContext) -> bool:
    """Whether a name is bound once, by `_, name = x.shape`."""
    store = only_store(name.id, context.function(name).node)
    target = context.parent(store) if store is not None else None
    statement = context.parent(target) if isinstance(target, ast.Tuple) else None
    value = statement.value if isinstance(statement, ast.Assign) else None
    return value is not None and sized(value, context) is not None and several(value)


def _is_cuda(node: ast.expr, context: FileContext) -> bool:
    """Whether `node` asks a tensor, or what may be one, where it lies."""
    asks = isinstance(node, ast.Attribute) and node.attr == "is_cuda"
    return asks and context.kind(node.value).what in ("tensor", "unknown")


def _at_call(call: ast.Call, context: FileContext) -> Iterator[Edit]:
    """The edits of a call: sizes become plain ints, since a size that changes from call to call is
    no constant to Dynamo; what an attribute keeps becomes a tensor of its own."""
    plain = _plain_sizes(call, context)
    if _kept_in_attribute(call, context):
        plain = {call: f"{context.source.substituted(call, plain)}.clone()"}
    yield from (context.replacement(value, text) for value, text in plain.items())


def _plain_sizes(call: ast.Call, context: FileContext) -> dict[ast.expr, str]:
    """{argument that is a size: its source as a plain int}."""
    plain = {}
    for value in [*call.args, *(k.value for k in call.keywords)]:
        kind = context.kind(value)
        if (kind.what == "size" and kind.cls != "shape") or _one_size(value, context):
            plain[value] = f"range({context.segment(value)}).stop"
    return plain


def _kept_in_attribute(call: ast.Call, context: FileContext) -> bool:
    """Whether the result itself, or a name for it, is stored in an attribute."""
    statement = context.statement(call)
    targets = (
        statement.targets if isinstance(statement, ast.Assign) and statement.value is call else []
    )
    names = {t.id for t in targets if isinstance(t, ast.Name)}
    stores = [s for s in ast.walk(context.function(call).node) if isinstance(s, ast.Assign)]
    named = [
        t
        for s in stores
        if isinstance(s.value, ast.Name) and s.value.id in names
        for t in s.targets
    ]
    return any(isinstance(t, ast.Attribute) for t in [*targets, *named])


def _takes_tensors(function: Function) -> bool:
    """Whether what a function asks of a parameter is asked of tensors."""
    args = function.node.args
    given = {a.arg for a in [*args.posonlyargs, *args.args, *args.kwonlyargs]}
    asked = {
        n.attr
        for n in ast.walk(function.node)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id in given
    }
    return not asked.isdisjoint(SUGGESTIVE | SUGGESTIVE_ATTRIBUTES | ONLY_TENSOR_METHODS)


class HelperBody:
    """Whether a function is one of its arguments alone; whether it uses NumPy, makes a tensor, and
    asks for no gradients of it."""

    def __init__(self, context: FileContext) -> None:
        self.context, self.numpy, self.makes, self.seen = context, False, False, set()
        self.detached = True

    def constant(self, function: Function, above: tuple[ast.FunctionDef, ...]) -> bool:
        node = function.node
        if node in above:
            return False
        self.seen.add(node)
        if any(isinstance(n, _CHANGES) for n in ast.walk(node)):
            return False
        local = self.context.local_names(node) | {
            n.arg for n in ast.walk(node) if isinstance(n, ast.arg)
        }
        stores = (
            n
            for n in ast.walk(node)
            if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
        )
        names = (
            n
            for s in node.body
            for n in ast.walk(s)
            if isinstance(n, ast.Name) and n.id not in local
        )
        return (
            not any(stores)
            and all(self._name(n, (*above, node)) for n in names)
            and self._calls(node)
        )

    def _name(self, name: ast.Name, above: tuple[ast.FunctionDef, ...]) -> bool:
        other = self.context.program.top.get(name.id)
        if other is not None:
            return self.constant(other, above)
        full = self.context.names.aliases.get(name.id, "")
        if full.split(".")[0] == "numpy":
            self.numpy = True
        known = full.split(".")[0] in ("numpy", "math", "torch")
        return known or (
            name.id in CONSTANT_BUILTINS | {"ValueError"}
            and name.id not in self.context.names.bound
        )

    def _calls(self, node: Any) -> bool:
        for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
            name = self.context.resolve(call.func) or ""
            last = name.rpartition(".")[2]
            known = name.startswith(("torch.", "numpy."))
            if known and not allows(MAY_WRITE, of_function(call, name)):
                return False
            asks = (k.value for k in call.keywords if k.arg in (None, "requires_grad"))
            off = all(isinstance(v, ast.Constant) and v.value is False for v in asks)
            self.detached = self.detached and off and last not in ("Parameter", "requires_grad_")
            self.makes = self.makes or (name.startswith("torch.") and last in _MAKERS)
        return True
