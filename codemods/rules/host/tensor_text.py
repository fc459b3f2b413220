"""DYN108: text made of a tensor's value."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.output_calls import is_log, is_print
from ....rewriter.source.spans import Edit, Refusal, Safety
from ....rewriter.transforms.percent_format import as_format
from ...analysis.captured_walk import compiling
from ..base import Rule
from ..effects.compile_guards import effect_free, guard

if TYPE_CHECKING:
    from ....rewriter.source.spans import Fix
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_BREAKS = "a tensor's value is formatted as text, which breaks the graph"
_WHOLE = "`%` puts a tensor's value into text, and leaves the whole function to eager"
_RAISES = "`format(...)` of a tensor raises an error when compiled"
_WORKED = "text made of a tensor's value is worked with, which breaks the graph"
_LATE = "the compiled text is made after the graph: it shows what is written to the tensor later"
_WARNS = "`%` warns once where the tensor requires a gradient, `format` does not"
_HOLDERS = (
    ast.Tuple,
    ast.List,
    ast.Dict,
    ast.IfExp,
    ast.ListComp,
    ast.FormattedValue,
    ast.JoinedStr,
)


class TensorText(Rule):
    """
    Dynamo makes the text of `f"{t:.3f}"` and `"{:.3f}".format(t)` after the graph: no break, as
    long as the text is only kept or returned (it then shows what a later write in place put there).
    `str(t)`, `repr(t)`, `!r` and `!s` break, so does all work with the text (`+`, a comparison, a
    method); `"%.3f" % t` leaves the whole function to eager, without being counted as a break, and
    `format(t, ".3f")` raises. Where `f"{t}"` surely gives the same text, that is written. Text that
    is read under `if not torch.compiler.is_compiling():` alone is made under it, too.
    """

    code = "DYN108"
    safety = Safety.SAFE
    nodes = (ast.Call, ast.BinOp, ast.JoinedStr)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    y = torch.relu(x)
    return y, format(y.mean(), ".3f")
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    y = torch.relu(x)
    return y, f"{y.mean():.3f}"
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        found = _FORMS[type(node)](node, context)
        if found is None or _is_logged(node, context):
            return
        message, build = found
        built = _under_guard(node, context) or build()
        yield context.finding(self, node, message, fix=built)


def _is_logged(node: ast.expr, context: FileContext) -> bool:
    """Whether the text stands in a print, a log call, a warning, an exception or an assertion, or
    in a lambda."""
    while node is not None and not isinstance(node, ast.stmt):
        call = isinstance(node, ast.Call)
        if isinstance(node, ast.Lambda) or (
            call and (is_print(node, context) or is_log(node, context))
        ):
            return True
        if call and (context.resolve(node.func) or "").startswith(("warnings.", "torch._check")):
            return True
        node = context.parent(node)
    return isinstance(node, (ast.Raise, ast.Assert))


def _tensor(node: ast.expr, context: FileContext, several: bool = False) -> bool:
    kind = context.kind(node)
    return (kind.is_tensor and not kind.optional) or (several and kind.what == "tensors")


# The forms: (message, what builds the Fix, the Refusal, or nothing)


def _call(node: ast.Call, context: FileContext) -> tuple[str, Callable[..., Any]] | None:
    func, args = node.func, node.args
    if isinstance(func, ast.Attribute) and func.attr in ("__repr__", "__str__") and not args:
        return (
            (_BREAKS, lambda: _shown(node, func.value, context))
            if _tensor(func.value, context)
            else None
        )
    if isinstance(func, ast.Attribute) and func.attr == "format" and _is_text(func.value, context):
        return _late(node, [*args, *(k.value for k in node.keywords)], context)
    name = context.resolve(func) if isinstance(func, ast.Name) and not node.keywords else None
    if name in ("str", "repr") and len(args) == 1 and _tensor(args[0], context, several=True):
        return _BREAKS, lambda: _shown(node, args[0], context)
    if name == "format" and args and _tensor(args[0], context):
        return _RAISES, lambda: _formatted(node, context)
    return None


def _is_text(node: Any, context: FileContext) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _percent(node: ast.BinOp, context: FileContext) -> tuple[str, Callable[..., Any]] | None:
    values = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
    if not isinstance(node.op, ast.Mod) or context.kind(node.left).what != "str":
        return None
    return (
        (_WHOLE, lambda: _as_call(node, context))
        if any(_tensor(v, context) for v in values)
        else None
    )


def _joined(node: ast.JoinedStr, context: FileContext) -> tuple[str, Callable[..., Any]] | None:
    fields = [
        v
        for v in node.values
        if isinstance(v, ast.FormattedValue) and _tensor(v.value, context, several=True)
    ]
    converted = [f for f in fields if f.conversion in (ord("r"), ord("s"))]
    if converted:
        return _BREAKS, lambda: _unconverted(node, converted, context)
    return _late(node, [f.value for f in fields if _tensor(f.value, context)], context)


_FORMS = {ast.Call: _call, ast.BinOp: _percent, ast.JoinedStr: _joined}


def _late(
    node: ast.expr, values: list[ast.expr], context: FileContext
) -> tuple[str, Callable[..., Any]] | None:
    """Text that is made after the graph: no break, unless it is needed earlier, and wrong where the
    tensor changes."""
    tensors = [v for v in values if _tensor(v, context)]
    if tensors and _use(node, context) == "worked with":
        return _WORKED, lambda: None
    named = {(v.id, v.lineno): v for v in tensors if isinstance(v, ast.Name)}
    changed = any(_written_below(v, context) for v in named.values())
    return (_LATE, lambda: None) if changed else None


# Where text goes


def _use(node: ast.expr, context: FileContext) -> str:
    """What becomes of text: "kept", "worked with", or "passed" to something that is not known."""
    child, parent = node, context.parent(node)
    while isinstance(parent, _HOLDERS) and getattr(parent, "test", None) is not child:
        child, parent = parent, context.parent(parent)
    if isinstance(parent, (ast.BinOp, ast.Compare, ast.AugAssign, ast.Attribute)):
        return "worked with"
    if isinstance(parent, ast.Subscript):
        return "worked with" if parent.value is child else "kept"
    if isinstance(parent, ast.Call):
        return "worked with" if _works(parent) else "passed"
    if isinstance(parent, (ast.Return, ast.Expr)):
        return "kept"
    if not isinstance(parent, (ast.Assign, ast.AnnAssign)):
        return "passed"
    if child is not node:
        return "kept"  # in a container, which may be read later
    uses = {_use(n, context) for n in _loads(parent, context)}
    return next((u for u in ("worked with", "passed") if u in uses), "kept")


def _works(call: ast.Call) -> bool:
    """`len(text)`, `", ".join([text])`."""
    if isinstance(call.func, ast.Name):
        return call.func.id == "len"
    return call.func.attr == "join" if isinstance(call.func, ast.Attribute) else False


def _loads(statement: Any, context: FileContext) -> list[ast.Name]:
    """Where the names that a statement binds are read."""
    names = {
        t.id
        for t in getattr(statement, "targets", [getattr(statement, "target", None)])
        if isinstance(t, ast.Name)
    }
    function = context.function(statement)
    return [
        n
        for n in ast.walk(function.node)
        if isinstance(n, ast.Name) and n.id in names and isinstance(n.ctx, ast.Load)
    ]


def _written_below(name: ast.Name, context: FileContext) -> bool:
    """Whether the tensor under a name is written to in place after the text is made, or anywhere in
    a loop around both."""
    body = list(ast.walk(context.function(name).node))
    return any(
        _writes(n, name.id, context) and n.lineno > name.lineno
        for n in body
        if isinstance(n, (ast.stmt, ast.Call))
    )


def _writes(node: ast.AST, name: str, context: FileContext) -> bool:
    if isinstance(node, ast.Call):
        func = node.func
        method = (
            isinstance(func, ast.Attribute)
            and func.attr.endswith("_")
            and not func.attr.endswith("__")
        )
        return method and isinstance(func.value, ast.Name) and func.value.id == name
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AugAssign)
        else []
    )
    plain = isinstance(node, ast.AugAssign)
    bases = [t.value if isinstance(t, ast.Subscript) else t if plain else None for t in targets]
    return any(isinstance(b, ast.Name) and b.id == name for b in bases)


# The fixes


def _under_guard(node: ast.expr, context: FileContext) -> Fix | None:
    """The Fix that makes text under a guard, where all that reads it is guarded already."""
    statement = context.parent(node)
    while isinstance(statement, (ast.BinOp, ast.Call, ast.JoinedStr, ast.FormattedValue)):
        statement = context.parent(statement)
    one = (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
    )
    if (
        not one
        or not effect_free(statement.value, context)
        or _shared(statement.targets[0].id, context, statement)
    ):
        return None
    loads = _loads(statement, context)
    if not loads or not all(_in_eager(n, context) for n in loads):
        return None
    built = guard([statement], context)
    return None if isinstance(built, Refusal) else built


def _shared(name: str, context: FileContext, statement: ast.Assign) -> bool:
    """Whether a name is bound elsewhere in the function, or known outside of it."""
    body = list(ast.walk(context.function(statement).node))
    stores = [
        n
        for n in body
        if isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load)
    ]
    scopes = (ast.Global, ast.Nonlocal, ast.FunctionDef, ast.Lambda, ast.AsyncFunctionDef)
    return len(stores) > 1 or any(isinstance(n, scopes) for n in body[1:])


def _in_eager(node: ast.Name, context: FileContext) -> bool:
    child, parent = node, context.parent(node)
    while parent is not None:
        if (
            isinstance(parent, ast.If)
            and child in parent.body
            and compiling(parent.test, context.names) is False
        ):
            return True
        child, parent = parent, context.parent(parent)
    return False


def _kept(node: ast.expr, values: list[ast.expr], context: FileContext) -> str:
    """Why an f-string in the place of `node` would not do."""
    use = _use(node, context)
    if context.lost_comments(*context.source.span(node)):
        return "a comment stands in it"
    if use != "kept":
        return (
            "the text is worked with"
            if use == "worked with"
            else "what takes the text is not known"
        )
    names = [n for v in values for n in ast.walk(v) if isinstance(n, ast.Name)]
    return (
        "a later write to the tensor would show in the compiled text"
        if any(_written_below(n, context) for n in names)
        else ""
    )


def _ranked(value: ast.expr, context: FileContext) -> str:
    kind = context.kind(value)
    known = kind.is_tensor and kind.least_rank() > 0
    return "" if known else "of a tensor without axes `str` shows more than an f-string does"


def _shown(node: ast.Call, value: ast.expr, context: FileContext) -> Any:
    kept = _ranked(value, context) or _kept(node, [value], context)
    return Refusal(kept) if kept else _field(node, value, "", context)


def _formatted(node: ast.Call, context: FileContext) -> Any:
    spec = node.args[1] if len(node.args) == 2 else None
    plain = spec is None or (
        isinstance(spec, ast.Constant) and isinstance(spec.value, str) and spec.value.isascii()
    )
    if not plain or (spec is not None and set(spec.value) & set("{}\\\"'\n")):
        return Refusal("its format is no plain literal")
    kept = _kept(node, [node.args[0]], context)
    return (
        Refusal(kept) if kept else _field(node, node.args[0], spec.value if spec else "", context)
    )


def _field(node: ast.Call, value: ast.expr, spec: str, context: FileContext) -> Any:
    """The Fix that writes an f-string of one field."""
    text = context.segment(value)
    quote = "'" if '"' in text else '"'
    if "\n" in text or "\\" in text or quote in text or "{" in text or _inside(node, context):
        return Refusal("the expression does not fit into an f-string")
    text = (
        f"({text})"
        if isinstance(value, (ast.Lambda, ast.NamedExpr, ast.IfExp)) or "!=" in text or ":" in text
        else text
    )
    edit = context.replacement(node, f"f{quote}{{{text}{':' + spec if spec else ''}}}{quote}")
    return context.fix("use an f-string", edit)


def _inside(node: ast.expr, context: FileContext) -> bool:
    """Whether a node stands in an f-string already."""
    while isinstance(node, ast.expr):
        node = context.parent(node)
        if isinstance(node, ast.JoinedStr):
            return True
    return False


def _unconverted(
    node: ast.JoinedStr, fields: list[ast.FormattedValue], context: FileContext
) -> Any:
    """The Fix that takes `!r` and `!s` out of an f-string."""
    for field in fields:
        kept = _ranked(field.value, context) or _kept(node, [field.value], context)
        if kept or field.format_spec is not None:
            return Refusal(kept or "the conversion has a format")
    text, start = context.segment(node), context.source.span(node)[0]
    edits = []
    for field in fields:
        shown = ast.unparse(field.value)
        for mark in ("!r}", "!s}"):
            if text.count("{" + shown + mark) == 1:
                at = start + text.index("{" + shown + mark) + 1 + len(shown)
                edits.append(Edit(at, at + 2, ""))
    if len(edits) != len(fields):
        return Refusal("the f-string's text is not plain")
    return context.fix("leave the conversion out", *edits)


def _as_call(node: ast.BinOp, context: FileContext) -> Any:
    text = as_format(node, context)
    values = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
    kept = text[1:] if text.startswith("!") else _kept(node, values, context)
    kept = kept or ("it stands in an f-string" if _inside(node, context) else "")
    if kept:
        return Refusal(kept)
    edit = context.replacement(node, text)
    return context.fix("use format", edit, safety=Safety.UNSAFE, why=_WARNS)
