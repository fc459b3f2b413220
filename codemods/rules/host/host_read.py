"""DYN101 to DYN105: a tensor's value read on the host."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.kinds import ANY
from ....rewriter.analysis.output_calls import is_log, is_print
from ....rewriter.source.spans import Fix, Refusal, Safety, hidden
from ....rewriter.transforms.compiled.compiled_scalars import made_of_reads
from ....rewriter.transforms.condition import condition, host_read
from ....rewriter.transforms.deferred_read import deferred
from ...analysis.captured_walk import has_compiled_form
from ..base import Rule
from ..effects.logging_slice import only_logged

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


def in_test(node: ast.Call, context: FileContext) -> bool:
    """Whether `node` stands in the test of a branch, which has a rule of its own."""
    while isinstance(node, ast.expr):
        parent = context.parent(node)
        if isinstance(parent, (ast.If, ast.IfExp, ast.While, ast.Assert)) and parent.test is node:
            return condition(node, context) is not None
        node = parent
    return False


def is_logged(node: ast.AST, context: FileContext) -> bool:
    """Whether `node` stands in a print or a log call, which has a rule of its own."""
    while node is not None and not isinstance(node, ast.stmt):
        if is_print(node, context) or is_log(node, context):
            return True
        node = context.parent(node)
    return isinstance(node, ast.Raise)


class HostRead(Rule):
    """
    `.item()` waits for the device and hands the value to Python: the graph breaks there. Where the
    value is only kept or logged, the tensor itself (`.detach()`) says the same, and can be read
    outside. The type changes from a Python number to a tensor, so the fix is unsafe, as is a
    computation that goes on with the tensor in the tensor's own precision.
    """

    code = "DYN101"
    safety = Safety.UNSAFE
    nodes = (ast.Call,)
    before = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        m = x.mean().item()
        self.last_mean = m
        return torch.relu(x)
"""
    after = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        m = x.mean().detach()
        self.last_mean = m
        return torch.relu(x)
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if reads_unknown(node, context, "item"):
            yield context.finding(self, node)
            return
        inner = host_read(node, context)
        if (
            inner is None
            or not isinstance(node.func, ast.Attribute)
            or in_test(node, context)
            or is_logged(node, context)
        ):
            return
        built = by_argsort(node, context) or deferred(node, context) or only_logged(node, context)
        built = built or kept_when_compiled(node, context) or keep_tensor(node, context)
        yield context.finding(self, node, fix=built)


def reads_unknown(node: ast.Call, context: FileContext, method: str) -> bool:
    """Whether a method is called that tensors, arrays and NumPy scalars alone have, of a value of
    which nothing is known: the graph breaks, but no fix fits them all."""
    func = node.func
    named = isinstance(func, ast.Attribute) and func.attr == method and not node.args
    if not named or not context.supposes or context.kind(func.value) != ANY:
        return False
    return context.resolve(func) is None and not is_logged(node, context)


def kept_when_compiled(node: ast.Call, context: FileContext) -> Fix | None:
    """The Fix that keeps the tensor in compiled code, where it only goes into arithmetic."""
    made = made_of_reads(node, context)
    return made if isinstance(made, Fix) else None


def keep_tensor(node: ast.Call, context: FileContext) -> Any:
    """The Fix that keeps the tensor whose value `node` reads, with the `max` and `min` around it as
    tensor operators; or why there is none."""
    found, top = context.torch(node), reduced(node, context)
    kept = kept_as_tensor(top, context)
    if kept or found is None:
        return Refusal(kept) if kept else hidden()
    edit = context.replacement(top, shown_as_tensor(top, context, found[0]))
    why = "the value becomes a tensor where it was a Python number"
    imports = found[1] if top is not node else ()
    return context.fix("keep the tensor", edit, safety=Safety.UNSAFE, why=why, imports=imports)


def reduced(node: ast.Call, context: FileContext) -> ast.Call:
    """The outermost builtin `max` or `min` of two numbers that `node` goes into, by way of
    arithmetic; or `node`."""
    top, child, parent = node, node, context.parent(node)
    while isinstance(parent, (ast.BinOp, ast.UnaryOp)) or extreme(parent, context):
        child, parent = parent, context.parent(parent)
        if isinstance(child, ast.Call):
            top = child
    return top


def extreme(node: ast.AST, context: FileContext) -> bool:
    """Whether `node` is `max(a, b)` or `min(a, b)` of numbers."""
    named = (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("max", "min")
    )
    if (
        not named
        or context.resolve(node.func) != node.func.id
        or len(node.args) != 2
        or node.keywords
    ):
        return False
    return all(context.kind(a).is_number for a in node.args)


def shown_as_tensor(node: ast.expr, context: FileContext, torch: str) -> str:
    """The source of an expression with its host reads left as tensors."""
    inner = host_read(node, context)
    if inner is not None:
        text = context.segment(inner)
        text = (
            text
            if isinstance(inner, (ast.Name, ast.Call, ast.Attribute, ast.Subscript))
            else f"({text})"
        )
        kind = context.kind(inner)
        own = kind.fresh and not isinstance(
            inner, (ast.Name, ast.Attribute)
        )  # else a later write would show
        return (
            f"{text}.detach()"
            + ("" if kind.rank == 0 else ".reshape(())")
            + ("" if own else ".clone()")
        )
    if extreme(node, context):
        return _extreme_of_tensors(node, context, torch)
    parts = [c for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr)]
    shown = {part: shown_as_tensor(part, context, torch) for part in parts}
    return context.source.substituted(node, shown)


def _extreme_of_tensors(node: Any, context: FileContext, torch: str) -> str:
    reads = [any(host_read(n, context) is not None for n in ast.walk(a)) for a in node.args]
    shown = [shown_as_tensor(a, context, torch) for a in node.args]
    if all(reads):
        return (
            f"{torch}.{'maximum' if node.func.id == 'max' else 'minimum'}({shown[0]}, {shown[1]})"
        )
    tensor, bound = (shown[0], shown[1]) if reads[0] else (shown[1], shown[0])
    return f"{torch}.clamp({tensor}, {'min' if node.func.id == 'max' else 'max'}={bound})"


def kept_as_tensor(node: ast.Call, context: FileContext) -> str:
    """Why the value cannot stay a tensor; "" where it is only kept, returned, formatted or used in
    arithmetic."""
    child, parent = node, context.parent(node)
    while isinstance(
        parent, (ast.BinOp, ast.UnaryOp, ast.Tuple, ast.List, ast.Dict, ast.keyword, ast.IfExp)
    ):
        child, parent = parent, context.parent(parent)
    if isinstance(parent, (ast.Return, ast.AugAssign)):
        return ""
    if isinstance(parent, (ast.Assign, ast.AnnAssign)):
        return _kept_names(parent, context)
    if isinstance(parent, ast.Call):
        return _kept_call(parent, child)
    if isinstance(parent, (ast.FormattedValue, ast.Expr)):
        return ""
    return "the number is needed as a Python number"


def _kept_call(call: ast.Call, argument: ast.expr) -> str:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    holds = name in ("append", "dict", "update") or name[:1].isupper()
    return "" if holds else f"`{name}(...)` takes it as a Python number"


def _kept_names(statement: Any, context: FileContext, seen: frozenset[Any] = frozenset()) -> str:
    """A local name that holds the number, or what is computed of it, must not be used as a size, an
    index or a condition."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    parts = [n for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
    names = {n.id for n in parts if isinstance(n.ctx, ast.Store)}
    function = context.function(statement)
    for node in ast.walk(function.node):
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load):
            reason = _kept_use(node, context, seen | {statement})
            if reason:
                return reason
    return ""


def _kept_use(node: ast.Name, context: FileContext, seen: frozenset[Any]) -> str:
    child, parent = node, context.parent(node)
    held = (ast.Tuple, ast.List, ast.Dict, ast.keyword)
    while isinstance(parent, (ast.BinOp, ast.UnaryOp, *held)):
        child, parent = parent, context.parent(parent)
    if isinstance(parent, (ast.Assign, ast.AnnAssign)):
        again = parent not in seen and context.kind(child).is_number
        return _kept_names(parent, context, seen) if again else ""
    if isinstance(parent, ast.Subscript) and parent.slice is child:
        return f"`{node.id}` is used as an index"
    if isinstance(parent, (ast.Compare, ast.If, ast.While, ast.BoolOp)):
        return f"`{node.id}` decides a branch"
    if isinstance(parent, ast.Slice):
        return f"`{node.id}` bounds a slice"
    if isinstance(parent, ast.Call) and not (is_print(parent, context) or is_log(parent, context)):
        return _kept_call(parent, child)
    return ""


class HostNumber(Rule):
    """
    `float(t)`, `int(t)` and `bool(t)` read the tensor just as `.item()` does. Where the number is
    only kept, the tensor can stay one: unsafe, for the type changes.
    """

    code = "DYN102"
    safety = Safety.UNSAFE
    nodes = (ast.Call,)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    return torch.relu(x), float(x.float().sum())
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    return torch.relu(x), x.float().sum().detach()
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        inner = host_read(node, context)
        if (
            inner is None
            or not isinstance(node.func, ast.Name)
            or in_test(node, context)
            or is_logged(node, context)
            or has_compiled_form(node, context)
        ):
            return
        found = deferred(node, context) or only_logged(node, context)
        found = found or kept_when_compiled(node, context)
        found = found or _quotient(node, inner, context)
        if found:
            yield context.finding(self, node, fix=found)
            return
        category = context.inference.tokens.category(context.kind(inner).dtype)
        kept = ""
        if category != node.func.id:
            kept = (
                "the conversion changes the value, and the tensor's dtype is not known to be the"
                " same"
            )
        built = Refusal(kept) if kept else keep_tensor(node, context)
        yield context.finding(self, node, fix=built)


def _quotient(node: ast.Call, inner: ast.expr, context: FileContext) -> Fix | None:
    """`int(torch.div(n, 2))` of Python numbers, which never needed a tensor."""
    name = context.resolve(inner.func) if isinstance(inner, ast.Call) else None
    divides = (
        name in ("torch.div", "torch.true_divide", "torch.divide")
        and len(inner.args) == 2
        and not inner.keywords
    )
    if node.func.id != "int" or not divides or not all(_plain_int(a, context) for a in inner.args):
        return None
    left, right = map(context.operand, inner.args)
    torch, number = context.torch(node), f"int({left} / {right})"
    if torch is not None and _positive(inner.args[1]) and _repeats(inner.args[0], context):
        exact = f"{torch[0]}.get_default_dtype() == {torch[0]}.float32 and 0 <= {left} < 2**23"
        return _when_compiled(
            node, f"{left} // {right}", exact, "divide in Python when compiled", context
        )
    why = "torch divides in its default precision, Python in double"
    edit = context.replacement(node, number)
    return context.fix("divide in Python", edit, safety=Safety.UNSAFE, why=why)


def _when_compiled(
    node: ast.Call, text: str, asked: str, title: str, context: FileContext
) -> Fix | Refusal:
    """The Fix that has compiled code evaluate `text` where `asked`, a fact of numbers, holds."""
    torch = context.torch(node)
    if torch is None:
        return hidden()
    test = f"{torch[0]}.compiler.is_compiling() and {asked}"
    edit = context.replacement(node, f"({text} if {test} else {context.segment(node)})")
    return replace(context.fix(title, edit, imports=torch[1]), asked=True)


def _positive(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value > 0


def _repeats(node: ast.expr, context: FileContext) -> bool:
    """Whether an expression may be evaluated once more: names, constants, sizes and operators."""
    parts = list(ast.walk(node))
    calls = [n for n in parts if isinstance(n, ast.Call)]
    known = all(
        context.resolve(c.func) == "len" or getattr(c.func, "attr", "") == "size" for c in calls
    )
    return known and not any(isinstance(n, ast.NamedExpr) for n in parts)


def _plain_int(node: ast.expr, context: FileContext) -> bool:
    kind = context.kind(node)
    return kind.what in ("int", "size") and kind.cls != "shape" and not kind.host


class ToList(Rule):
    """
    `.tolist()` reads every element on the host and makes Python numbers of them; loops and indices
    over such a list depend on data. There is no general rewriting: index with the tensor, or read
    the list before the compiled code and pass it in. `torch.arange(a, b).tolist()` of Python
    numbers becomes `list(range(a, b))` in compiled code, where `b` is not less than `a`, of which
    `arange` raises.
    """

    code = "DYN103"
    nodes = (ast.Call,)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor, lengths: torch.Tensor):
    return [x[:n] for n in lengths.tolist()]
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        func = node.func
        reads = (
            isinstance(func, ast.Attribute)
            and func.attr == "tolist"
            and context.kind(func.value).is_tensor
        )
        if reads_unknown(node, context, "tolist"):
            yield context.finding(self, node)
        elif reads and not is_logged(node, context) and not has_compiled_form(node, context):
            built = only_logged(node, context) or self._range(node, context)
            yield context.finding(self, node, fix=built)

    def _range(self, node: ast.Call, context: FileContext) -> Fix | None:
        """`torch.arange(2, n).tolist()` never needed a tensor."""
        call = node.func.value
        made = (
            isinstance(call, ast.Call)
            and context.resolve(call.func) == "torch.arange"
            and not call.keywords
        )
        if not made or node.args or not all(_plain_int(a, context) for a in call.args):
            return None
        shown = ", ".join(context.segment(a) for a in call.args)
        repeats = all(_repeats(a, context) for a in call.args) and "\n" not in shown
        if repeats and len(call.args) < 3:
            first, last = ["0", *(context.operand(a) for a in call.args)][-2:]
            title, asked = "use range when compiled", f"{first} <= {last}"
            return _when_compiled(node, f"list(range({shown}))", asked, title, context)
        why = "where the bounds are out of order, torch.arange raises and range is empty"
        edit = context.replacement(node, f"list(range({shown}))")
        return context.fix("use range", edit, safety=Safety.UNSAFE, why=why)


_SORT_WHY = "NaN is sorted to the end; a tensor with fewer elements than indices does not raise"


@dataclass(frozen=True)
class _Sorted:
    """`call` sorts indices below `count` by the elements of `values`."""

    call: ast.Call
    count: ast.expr
    values: ast.expr
    descending: bool


def by_argsort(read: ast.Call, context: FileContext) -> Fix | Refusal | None:
    """The Fix for the sorting whose key `read` reads; None where it is none."""
    found, torch = _sorted_by(read, context), context.torch(read)
    if found is None or torch is None or not context.kind(found.values).is_tensor:
        return None
    text, count = context.atom(found.values), context.segment(found.count)
    every = {f"len({text})", f"{text}.shape[0]", f"{text}.size(0)"}
    shown = text if "".join(count.split()) in every else f"{text}[:{count}]"
    down = ", descending=True" if found.descending else ""
    made = f"{torch[0]}.argsort({shown}.detach(){down}, stable=True).tolist()"
    edit = context.replacement(found.call, made)
    title = "sort with torch.argsort"
    return context.fix(title, edit, safety=Safety.UNSAFE, why=_SORT_WHY, imports=torch[1])


def _sorted_by(read: ast.Call, context: FileContext) -> _Sorted | None:
    negated, top = False, context.parent(read)
    if isinstance(top, ast.UnaryOp) and isinstance(top.op, ast.USub):
        negated, top = True, context.parent(top)
    call = context.parent(context.parent(top)) if isinstance(top, ast.Lambda) else None
    element = read.func.value if isinstance(read.func, ast.Attribute) else None
    if not isinstance(call, ast.Call) or not isinstance(element, ast.Subscript):
        return None
    given = {k.arg: k.value for k in call.keywords}
    reverse = given.get("reverse", ast.Constant(False))
    counts = call.args[0] if call.args else None
    plain = context.resolve(call.func) == "sorted" and given.get("key") is top
    ranged = isinstance(counts, ast.Call) and context.resolve(counts.func) == "range"
    if not plain or not ranged or len(counts.args) != 1 or not isinstance(reverse, ast.Constant):
        return None
    names = [a.arg for a in top.args.args]
    whole = element.value
    same = [n.id for n in ast.walk(whole) if isinstance(n, ast.Name)]
    if names != [ast.unparse(element.slice)] or names[0] in same:
        return None
    return _Sorted(call, counts.args[0], whole, negated != bool(reverse.value))
