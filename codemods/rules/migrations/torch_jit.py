"""DYN801: TorchScript, as torch.compile and plain Python have it."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.name_scopes import rebindings
from ....rewriter.source.intents import delete_statement
from ....rewriter.source.spans import Refusal, Safety
from ...analysis.definitions import last_name
from .imported_names import around, imported, named_at
from .renames import New, RenameRule, called, is_decorator, removed_decorator

if TYPE_CHECKING:
    from ....rewriter.source.spans import Edit, Fix
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding

_COMPILERS = ("torch.jit.script", "torch.jit.trace")
_MARKS = ("torch.jit.ignore", "torch.jit.unused", "torch.jit.export", "torch.jit.script_method")
_BASES = ("torch.jit.ScriptModule",)
# What a scripted module or function has, and what torch.compile gives has not.
_SCRIPT_ONLY = frozenset(
    """
    save save_to_buffer code code_with_constants graph graph_for inlined_graph get_debug_state
    original_name define _c _save_for_lite_interpreter _save_to_buffer_for_lite_interpreter
    """.split()
)
_SAME = frozenset("eval train to cuda cpu half float bfloat16 requires_grad_".split())
_TAKE_SCRIPTED = frozenset(
    f"torch.jit.{name}" for name in ("save", "freeze", "optimize_for_inference", "fork")
) | {"torch.utils.mobile_optimizer.optimize_for_mobile"}
_WITHOUT = {
    "save": "a scripted program is saved: torch.export.save takes its place",
    "load": "a saved program is loaded: torch.export.load takes its place",
    "freeze": "torch.compile has torch._inductor.config.freezing in its place",
    "optimize_for_inference": "torch.compile optimises by itself: call the module",
    "fork": "torch.compile runs what is independent side by side: call the function itself",
    "wait": "with torch.jit.fork gone, its value is there",
    "trace_module": "several methods of a module are traced: compile each",
    "script_if_tracing": "it compiles under torch.jit.trace alone: remove it with the trace",
    "isinstance": "use Python's isinstance",
}
_SETTINGS = "it configures TorchScript: remove it with what is scripted"
_NUMBERS = "torch.compile is another compiler: results may differ in the last digits"
_ELSEWHERE = "another file that scripts this code would see it change"


class TorchJit(RenameRule):
    """
    TorchScript is deprecated. `torch.jit.script` and `torch.jit.trace` become `torch.compile`,
    which takes Python as it is: what told TorchScript of types and of what to leave out
    (`annotate`, `ignore`, `unused`, `export`, `is_scripting()`) goes, once nothing in the file is
    scripted any more. `torch.jit.Final` is `typing.Final`. Where the result is saved, or asked for
    its code or graph, nothing is changed: `torch.export` takes the place of that.
    """

    code = "DYN801"
    safety = Safety.UNSAFE
    rounds = True
    roots = ("torch.jit",)
    table = {"torch.jit.Final": New("typing.Final")}  # noqa: RUF012
    before = """
import torch


@torch.jit.script
def gelu(x: torch.Tensor):
    return x * 0.5 * (1.0 + torch.erf(x / 1.41421))


def make(model, example):
    return torch.jit.trace(model, example)
"""
    after = """
import torch


@torch.compile
def gelu(x: torch.Tensor):
    return x * 0.5 * (1.0 + torch.erf(x / 1.41421))


def make(model, example):
    return torch.compile(model)
"""

    def of_name(self, node: Any, name: str, context: FileContext) -> Iterable[Finding]:
        if name in self.table:
            yield from super().of_name(node, name, context)
        elif name != "torch.jit.is_tracing" and not context.settings.targets_before("2.0"):
            said = f"`{name}` belongs to TorchScript, which torch.compile replaces"
            yield context.finding(self, node, said, fix=_fix(node, name, context))


def _fix(node: Any, name: str, context: FileContext) -> Fix | Refusal:
    if name in _COMPILERS:
        return _compiled(node, context)
    makers = {"torch.jit.annotate": _annotated, "torch.jit.is_scripting": _unguarded}
    make = makers.get(name) or (_unmarked if name in _MARKS else None)
    if name in _BASES and _class_of(node, context) is not None:
        return _plain_module(node, context)
    if make is None:
        return Refusal(_WITHOUT.get(name.rpartition(".")[2], _SETTINGS))
    scripts = _scripts(context)
    if scripts and name != "torch.jit.script_method":
        return Refusal(f"the file still scripts code, in line {scripts}")
    return make(node, context)


def _scripts(context: FileContext) -> int:
    """A line in which the file compiles for TorchScript; 0 where it does not."""
    named = (*context.index.get(ast.Attribute, ()), *context.index.get(ast.Name, ()))
    known = (*_COMPILERS, "torch.jit.trace_module", *_BASES)
    return next((n.lineno for n in named if imported(n, context) in known), 0)


# torch.jit.script and torch.jit.trace


def _compiled(node: Any, context: FileContext) -> Fix | Refusal:
    call = called(node, context)
    if call is None and not is_decorator(node, context):
        return Refusal(f"`{ast.unparse(node)}` is used in another way than called")
    found = named_at("torch.compile", node, context)
    if isinstance(found, Refusal):
        return found
    if call is not None and not is_decorator(call, context):
        return _compiled_call(call, found, context)
    place = node if call is None else call
    parent = context.whole_parents()[place]
    if isinstance(parent, ast.ClassDef):
        return _without_decorator(place, context)
    kept = _needed_as_script(parent.name, [], context)
    return kept or _changed(context.replacement(place, found[0]), found[1], context)


def _compiled_call(call: ast.Call, found: Any, context: FileContext) -> Fix | Refusal:
    first = call.args[0] if call.args else None
    named = {k.arg: k.value for k in call.keywords}
    value = named.get("obj", named.get("func")) if first is None else first
    if value is None or isinstance(value, ast.Starred):
        return Refusal("not all of its arguments can be seen")
    if isinstance(value, ast.Name) and value.id in context.program.classes:
        return Refusal("a class is scripted, which torch.compile does not take")
    kept = _needed_as_script("", [call], context)
    text = f"{found[0]}({context.shown(value)})"
    edit = context.replacement(call, text)
    return kept or _changed(edit, found[1], context)


def _changed(edit: Edit | Refusal, imports: tuple[str, ...], context: FileContext) -> Fix | Refusal:
    return context.fix(
        "use torch.compile", edit, safety=Safety.UNSAFE, why=_NUMBERS, imports=imports
    )


def _needed_as_script(name: str, made: list[ast.Call], context: FileContext) -> Refusal | None:
    """Why a scripted function, or the results of calls, must stay what they are: some are saved,
    or asked for what torch.compile does not have. Names, attributes and functions are followed
    that they are given to."""
    names, done = {name} - {""}, set[str]()
    results: list[ast.AST] = list(made)
    while results or names - done:
        for result in results:
            why, more = _use_of(result, context)
            if why:
                return Refusal(why)
            names |= more
        todo, results = names - done, []
        done |= todo
        named = (*context.index.get(ast.Attribute, ()), *context.index.get(ast.Name, ()))
        loads = [n for n in named if isinstance(n.ctx, ast.Load) and last_name(n) in todo]
        calls = (called(n, context) for n in loads)
        results = [*loads, *(c for c in calls if c is not None and _gives(c, context))]
    return None


def _gives(call: ast.Call, context: FileContext) -> bool:
    """Whether a call is one of a function of the file that gives what was scripted, not one of
    what was scripted."""
    name = last_name(call.func)
    known = [f for f in context.program.functions if f.name == name]
    return any(not context.program.scripted(f) for f in known)


def _use_of(node: ast.AST, context: FileContext) -> tuple[str, set[str]]:
    """(why something must stay TorchScript, names that it goes by further on)."""
    parents = context.whole_parents()
    parent = parents.get(node)
    while getattr(parent, "attr", "") in _SAME and called(parent, context) is not None:
        node = called(parent, context)
        parent = parents.get(node)
    if isinstance(parent, ast.Attribute) and parent.attr in _SCRIPT_ONLY:
        return f"line {parent.lineno} uses `.{parent.attr}` of the result: see torch.export", set()
    if isinstance(parent, ast.Call) and node in parent.args:
        taken = imported(parent.func, context)
        if taken in _TAKE_SCRIPTED:
            return f"line {parent.lineno} gives it to `{taken}`: see torch.export", set()
    while isinstance(parent, (ast.IfExp, ast.Await, ast.Tuple, ast.List, ast.Dict)):
        parent = parents.get(parent)
    if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        names = (last_name(n) for t in targets for n in ast.walk(t))
        return "", {n for n in names if n and n != "self"}
    if isinstance(parent, ast.Return):
        functions = (f for f in around(parent, context) if isinstance(f, _FUNCTIONS))
        return "", {f.name for f in functions}
    return "", set()


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# Marks, types and base classes


def _without_decorator(node: ast.expr, context: FileContext) -> Fix | Refusal:
    edit = removed_decorator(node, context)
    return context.fix("remove the decorator", edit, safety=Safety.UNSAFE, why=_ELSEWHERE)


def _unmarked(node: Any, context: FileContext) -> Fix | Refusal:
    call = called(node, context)
    place = node if call is None else call
    if not is_decorator(place, context):
        return Refusal(f"`{ast.unparse(node)}` is used in another way than as a decorator")
    cls = next((n for n in around(place, context) if isinstance(n, ast.ClassDef)), None)
    if last_name(node) == "script_method" and cls is not None:
        base = next((b for b in cls.bases if imported(b, context) in _BASES), None)
        if base is not None:
            return _plain_module(base, context)
    return _without_decorator(place, context)


def _class_of(node: ast.AST, context: FileContext) -> ast.ClassDef | None:
    parent = context.whole_parents().get(node)
    return parent if isinstance(parent, ast.ClassDef) and node in parent.bases else None


def _plain_module(node: Any, context: FileContext) -> Fix | Refusal:
    """A ScriptModule as a plain one, and its script methods as plain ones."""
    cls, found = _class_of(node, context), named_at("torch.nn.Module", node, context)
    if isinstance(found, Refusal) or cls is None:
        return found if isinstance(found, Refusal) else Refusal("it is no base class")
    kept = _needed_as_script(cls.name, [], context)
    if kept is not None:
        return kept
    methods = (n for n in cls.body if isinstance(n, _FUNCTIONS))
    marks = (d for m in methods for d in m.decorator_list)
    scripted = [d for d in marks if imported(d, context) == "torch.jit.script_method"]
    return context.fix(
        "make it a plain module",
        context.replacement(node, found[0]),
        *(removed_decorator(d, context) for d in scripted),
        safety=Safety.UNSAFE,
        why=_NUMBERS,
        imports=found[1],
    )


def _annotated(node: Any, context: FileContext) -> Fix | Refusal:
    """`annotate(T, v)` is `v`; an assignment of it keeps the type as an annotation."""
    call = called(node, context)
    if call is None or len(call.args) != 2 or call.keywords:
        return Refusal("it is used in another way than called with a type and a value")
    kind, value = call.args
    parent = context.whole_parents().get(call)
    edit = context.replacement(call, context.shown(value))
    if isinstance(parent, ast.Assign) and _may_annotate(parent, context):
        text = f"{parent.targets[0].id}: {context.segment(kind)} = {context.shown(value)}"
        edit = context.replacement(parent, text)
    return context.fix("leave the value alone", edit, safety=Safety.UNSAFE, why=_ELSEWHERE)


def _may_annotate(statement: ast.Assign, context: FileContext) -> bool:
    """Whether an assignment in a function gives one plain name of its own."""
    target = statement.targets[0]
    function = next((n for n in around(statement, context) if isinstance(n, _FUNCTIONS)), None)
    if function is None or len(statement.targets) != 1 or not isinstance(target, ast.Name):
        return False
    return target.id not in rebindings(function).shared


def _unguarded(node: Any, context: FileContext) -> Fix | Refusal:
    call = called(node, context)
    if call is None:
        return Refusal("it is used in another way than called")
    edit = _without_guard(call, context)
    return context.fix("keep what runs in Python", edit, safety=Safety.UNSAFE, why=_ELSEWHERE)


# torch.jit.is_scripting(): what Python runs of a condition where it is always False


def _without_guard(node: ast.expr, context: FileContext) -> Edit | Refusal:
    """The edit that leaves of a condition, and of what hangs on it, what Python runs where `node`
    is False."""
    parents, value = context.whole_parents(), False
    parent = parents[node]
    while isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
        node, value, parent = parent, not value, parents[parent]
    if isinstance(parent, ast.BoolOp):
        return _operand(node, value, parent, context)
    if isinstance(parent, ast.IfExp) and parent.test is node:
        side = parent.body if value else parent.orelse
        return context.replacement(parent, context.shown(side))
    if isinstance(parent, ast.If) and parent.test is node:
        return _statement(parent, parent.body if value else parent.orelse, context)
    return Refusal("it is asked in another way than in a condition")


def _operand(
    node: ast.expr, value: bool, parent: ast.BoolOp, context: FileContext
) -> Edit | Refusal:
    if isinstance(parent.op, ast.And) is not value:
        return Refusal("the rest of the condition decides nothing: simplify it by hand")
    word = " and " if value else " or "
    rest = [v for v in parent.values if v is not node]
    texts = [context.segment(v) for v in rest]
    if any(isinstance(v, (ast.IfExp, ast.Lambda, ast.NamedExpr, ast.BoolOp)) for v in rest):
        texts = [context.operand(v) for v in rest]
    return context.replacement(parent, word.join(texts))


def _statement(node: ast.If, kept: list[ast.stmt], context: FileContext) -> Edit | Refusal:
    source = context.source
    outer = source.indent_of(node)
    if outer is None:
        return Refusal("it is an `elif`, or shares its line")
    if not kept:
        return delete_statement(source, node)
    if len(kept) == 1 and isinstance(kept[0], ast.If) and source.indent_of(kept[0]) is None:
        start, end = source.span(kept[0])  # an `elif`, which goes first now
        return context.replacement(node, source.text[start + len("el") : end])
    inner = source.white_before(kept[0])
    start, end = source.begin(kept[0]), source.span(kept[-1])[1]
    if inner is None or source.has_long_string(start, end):
        return Refusal("its block cannot be moved to the left")
    lines = source.text[start:end].split(source.newline)
    if any(line.strip() and not line.startswith(inner) for line in lines[1:]):
        return Refusal("its block cannot be moved to the left")
    moved = (outer + line[len(inner) :] if line.strip() else line for line in lines[1:])
    return context.replacement(node, source.newline.join([lines[0], *moved]))
