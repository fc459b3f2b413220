"""DYN602, DYN603: NumPy where a Python number would do."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.import_names import dotted
from ....rewriter.source.spans import Fix, Safety, hidden
from ....rewriter.transforms.compiled import compiled_math
from ...analysis.captured_walk import has_compiled_form
from ..base import Rule

if TYPE_CHECKING:
    from ....rewriter.source.spans import Edit
    from ...analysis.definitions import Function
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_MATH = {
    "numpy.sqrt": "sqrt",
    "numpy.exp": "exp",
    "numpy.log": "log",
    "numpy.log2": "log2",
    "numpy.log10": "log10",
    "numpy.sin": "sin",
    "numpy.cos": "cos",
    "numpy.tan": "tan",
    "numpy.prod": "prod",
    "numpy.lcm": "lcm",
    "numpy.gcd": "gcd",
}
_OF_TWO = ("lcm", "gcd")
_LIMITS = ("min", "max", "eps", "tiny")


class NumpyScalar(Rule):
    """
    Dynamo makes a tensor of every NumPy scalar that it meets: a module's attribute, a global, or
    the result of `np.sqrt(2)`. Where it is then used as a number (`if`, `float()`, a size), the
    graph breaks. A Python number is a constant. `.item()` where the value is made outside the
    captured code, `math` inside; unsafe, for the type changes, and `math` raises where NumPy gives
    nan. Of a literal or a size, where the result only goes into arithmetic with tensors, compiled
    code alone calls `math`: safe.
    """

    code = "DYN602"
    safety = Safety.UNSAFE
    nodes = (ast.Module,)
    whole_file = True
    before = """
import numpy as np
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = np.sqrt(2)

    def forward(self, x):
        if self.gain != 1:
            x = x * self.gain
        return x
"""
    after = """
import numpy as np
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = np.sqrt(2).item()

    def forward(self, x):
        if self.gain != 1:
            x = x * self.gain
        return x
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if not any(full.split(".")[0] == "numpy" for full in context.names.aliases.values()):
            return
        captured = [context.functions[n] for n in context.functions]
        nodes = [n for f in captured for n in context.program.nodes(f.node)]
        used = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
        loaded = {n.id for n in nodes if isinstance(n, ast.Name)}
        for call in self._made_outside(node, context, used, loaded):
            edit = context.replacement(call, f"{context.atom(call)}.item()")
            yield self._finding(call, edit, "use .item()", "the number's type changes", (), context)
        for function in captured:
            yield from self._inside(function, context)

    def _made_outside(
        self, tree: ast.Module, context: FileContext, used: set[str], loaded: set[str]
    ) -> Iterator[ast.Call]:
        """NumPy scalars that become attributes of modules or globals, and that captured code
        reads."""
        for cls in context.program.classes.values():
            init = cls.methods.get("__init__") if cls.is_module else None
            if init is None:
                continue
            context.inference.class_attributes(cls)
            for statement in ast.walk(init.node):
                if isinstance(statement, ast.Assign) and _attributes(statement) & used:
                    yield from _stored(statement.value, context)
        for statement in tree.body:
            names = statement.targets if isinstance(statement, ast.Assign) else []
            if any(isinstance(t, ast.Name) and t.id in loaded for t in names):
                yield from _stored(statement.value, context)

    def _inside(self, function: Function, context: FileContext) -> Iterator[Finding]:
        for call in _scalars(function.node, context):
            wanted = _MATH.get(context.resolve(call.func) or "")
            if not wanted or len(call.args) != (2 if wanted in _OF_TWO else 1) or call.keywords:
                continue
            if wanted == "prod" and not _is_shape(call.args[0], context):
                continue
            imports = context.module("math", call)
            if imports is None:
                yield context.finding(self, call, fix=hidden("math"))
                continue
            if wanted not in (*_OF_TWO, "prod"):
                fix = compiled_math.made(call, wanted, context, imports)
                if isinstance(fix, Fix):
                    yield context.finding(self, call, fix=fix)
                    continue
            edit = context.replacement(
                call, f"math.{wanted}({', '.join(context.shown(a) for a in call.args)})"
            )
            why = "the number's type changes, and math raises where NumPy gives nan"
            yield self._finding(call, edit, f"use math.{wanted}", why, imports, context)

    def _finding(
        self,
        call: ast.Call,
        edit: Edit,
        title: str,
        why: str,
        imports: tuple[str, ...],
        context: FileContext,
    ) -> Finding:
        fix = context.fix(title, edit, safety=Safety.UNSAFE, why=why, imports=imports)
        return context.finding(self, call, fix=fix)


def _is_shape(node: ast.expr, context: FileContext) -> bool:
    """Whether an expression is the shape of a tensor, or a part of it."""
    while isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        node = node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        return node.func.attr == "size" and context.kind(node.func.value).is_tensor
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "shape"
        and context.kind(node.value).is_tensor
    )


def _attributes(statement: ast.Assign) -> set[str]:
    return {t.attr for t in statement.targets if isinstance(t, ast.Attribute) and dotted(t)}


def _parts(node: ast.expr, context: FileContext) -> Iterator[ast.expr]:
    """The expressions that an assigned value is made of: through operators, displays and plain
    classes of the file."""
    yield node
    inner = ()
    if isinstance(
        node,
        (ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.BoolOp, ast.Dict, ast.List, ast.Tuple),
    ):
        inner = (c for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        cls = context.program.classes.get(node.func.id)
        if node.func.id == "dict" or (cls is not None and not cls.is_module):
            inner = (*node.args, *(k.value for k in node.keywords))
    for part in inner:
        yield from _parts(part, context)


def _stored(node: ast.expr, context: FileContext) -> list[ast.Call]:
    return [
        n
        for n in _parts(node, context)
        if isinstance(n, ast.Call) and context.kind(n).what == "numpy scalar"
    ]


def _scalars(node: Any, context: FileContext) -> Iterator[ast.Call]:
    """The calls in `node` that surely give a NumPy scalar, and are not made a number already."""
    calls = [n for n in context.program.nodes(node) if isinstance(n, ast.Call)]
    converted = {
        n.func.value for n in calls if isinstance(n.func, ast.Attribute) and n.func.attr == "item"
    } | {
        a
        for n in calls
        if isinstance(n.func, ast.Name) and n.func.id in ("int", "float", "bool")
        for a in n.args
    }
    for call in calls:
        made = context.kind(call).what == "numpy scalar" and call not in converted
        if made and not has_compiled_form(call, context):
            yield call


class NumpyLimits(Rule):
    """
    `numpy.finfo(t.numpy().dtype).min` asks NumPy for what `torch.finfo(t.dtype).min` says without
    leaving torch. NumPy has no bfloat16, for which the original raises, and numbers of its own
    type: unsafe, but where `float()` is around it and compiled code asks for the dtype.
    """

    code = "DYN603"
    safety = Safety.SAFE
    nodes = (ast.Attribute,)
    before = """
import numpy
import torch


@torch.compile
def step(x: torch.Tensor):
    low = float(numpy.finfo(torch.tensor(0, dtype=x.dtype).numpy().dtype).min)
    return x.masked_fill(x < 0, low)
"""
    after = (
        """
import numpy
import torch


@torch.compile
def step(x: torch.Tensor):
"""
        + (
            "    low = (torch.finfo(x.dtype).min if torch.compiler.is_compiling() and x.dtype in"
            " (torch.float16, torch.float32, torch.float64)"
            " else float(numpy.finfo(torch.tensor(0, dtype=x.dtype).numpy().dtype).min))"
        )
        + """
    return x.masked_fill(x < 0, low)
"""
    )

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        call = node.value
        asks = (
            isinstance(call, ast.Call)
            and context.resolve(call.func) == "numpy.finfo"
            and len(call.args) == 1
        )
        if not asks or node.attr not in _LIMITS:
            return
        dtype, found = _dtype_behind(call.args[0], context), context.torch(node)
        if dtype is None or found is None:
            return
        parent = context.parent(node)
        whole = (
            isinstance(parent, ast.Call)
            and context.resolve(parent.func) == "float"
            and parent.args == [node]
        )
        if whole and has_compiled_form(parent, context):
            return
        text = f"{found[0]}.finfo({dtype}).{node.attr}"
        if whole and "(" not in dtype and "\n" not in context.segment(parent):
            known = ", ".join(f"{found[0]}.float{bits}" for bits in (16, 32, 64))
            test = f"{found[0]}.compiler.is_compiling() and {dtype} in ({known})"
            form = f"({text} if {test} else {context.segment(parent)})"
            title, edit = "use torch.finfo when compiled", context.replacement(parent, form)
            fix = replace(context.fix(title, edit, imports=found[1]), asked=True)
            yield context.finding(self, node, fix=fix)
            return
        edit = context.replacement(parent if whole else node, text)
        why = "NumPy has no bfloat16, for which the original raises" + (
            "" if whole else "; the number's type changes"
        )
        fix = context.fix("use torch.finfo", edit, safety=Safety.UNSAFE, why=why, imports=found[1])
        yield context.finding(self, node, fix=fix)


def _dtype_behind(node: ast.Attribute, context: FileContext) -> str | None:
    """The source of the torch dtype behind `<tensor>.numpy().dtype`; None for anything else."""
    if (
        not isinstance(node, ast.Attribute)
        or node.attr != "dtype"
        or not isinstance(node.value, ast.Call)
    ):
        return None
    tensor, seen = node.value, False
    while (
        isinstance(tensor, ast.Call) and isinstance(tensor.func, ast.Attribute) and not tensor.args
    ):
        if tensor.func.attr not in ("numpy", "cpu", "detach"):
            break
        seen = seen or tensor.func.attr == "numpy"
        tensor = tensor.func.value
    if not seen:
        return None
    if isinstance(tensor, ast.Call) and context.resolve(tensor.func) in (
        "torch.tensor",
        "torch.zeros",
        "torch.empty",
    ):
        named = [k.value for k in tensor.keywords if k.arg == "dtype"]
        return context.segment(named[0]) if named else None
    simple = isinstance(tensor, (ast.Name, ast.Attribute)) and context.kind(tensor).is_tensor
    return f"{context.segment(tensor)}.dtype" if simple else None
