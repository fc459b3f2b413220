"""Calls that only tell something (print, log): what they have in common, and the guard that mutes
them under torch.compile."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.call_effects import (
    MAY_READ,
    ONLY_COMPUTES,
    QUIET_BUILTINS,
    allows,
    of_function,
    of_method,
)
from ....rewriter.analysis.kinds import LOGGER, MODULE, MODULES
from ....rewriter.analysis.name_scopes import rebindings
from ....rewriter.analysis.output_calls import is_log, is_print
from ....rewriter.analysis.torch_facts import FUNCTION, REDUCTIONS
from ....rewriter.analysis.tree_walk import only_value
from ....rewriter.source.intents import wrap
from ....rewriter.source.spans import Safety, hidden
from ....rewriter.transforms.condition import condition
from ...analysis.definitions import last_name

if TYPE_CHECKING:
    from ....rewriter.source.spans import Fix, Refusal
    from ...analysis.file_context import FileContext


_TIMES = ("time", "perf_counter", "monotonic", "process_time", "time_ns", "perf_counter_ns")
_ITERATORS = frozenset("iter zip map filter enumerate reversed open".split())
_STREAMS = frozenset(["sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__"])
CLOCKS = frozenset(f"time.{name}" for name in _TIMES)
# Methods that only read, whatever sort of object has them.
_ONLY_READ = REDUCTIONS | frozenset(
    "item tolist numel dim size abs sqrt square detach items values keys get format strip".split()
)


def only_logs(statement: ast.stmt, context: FileContext) -> bool:
    """Whether a statement does nothing but tell: a print, a log call, or an `if` around such."""
    if isinstance(statement, ast.Expr):
        return tells(statement.value, context) and effect_free(statement, context)
    if isinstance(statement, ast.If):
        return (
            effect_free(statement.test, context)
            and only_logging(statement.body, context)
            and all(only_logs(s, context) for s in statement.orelse)
        )
    return isinstance(statement, ast.Pass)


def tells(node: ast.expr, context: FileContext) -> bool:
    """Whether an expression, whose value nobody uses, is there for prints and log calls alone:
    `print(a), print(b)`, `verbose and print(a)`, `print(a) if verbose else None`."""
    if isinstance(node, ast.Tuple):
        return bool(node.elts) and all(tells(n, context) for n in node.elts)
    if isinstance(node, ast.BoolOp):
        return tells(node.values[-1], context)
    if isinstance(node, ast.IfExp):
        sides = [n for n in (node.body, node.orelse) if not isinstance(n, ast.Constant)]
        return bool(sides) and all(tells(n, context) for n in sides)
    return is_print(node, context) or is_log(node, context)


def used_call(node: ast.Call, context: FileContext) -> bool:
    """Whether a call that tells stands in an expression that is there for more."""
    top: Any = node
    while isinstance(context.parent(top), ast.expr):
        top = context.parent(top)
        if is_print(top, context) or is_log(top, context):
            return False
    parent = context.parent(top)
    return not (isinstance(parent, ast.Expr) and tells(top, context))


def joins(statement: ast.stmt, context: FileContext) -> bool:
    """Whether a statement goes under the guard as a whole: it only tells, and an `if` in it needs a
    tensor's value, or calls (else the guard is better off inside)."""
    if isinstance(statement, ast.If):
        asks = any(isinstance(n, ast.Call) for n in ast.walk(statement.test))
        asks = asks or condition(statement.test, context) is not None
        return only_logs(statement, context) and asks
    return isinstance(statement, ast.Expr) and only_logs(statement, context)


def logging_statements(
    tells: Callable[..., bool], context: FileContext
) -> Callable[[ast.stmt], bool]:
    """What a guard takes along: statements in which something tells, in that way."""

    def accept(statement: ast.stmt) -> bool:
        tell = joins(statement, context)
        return tell and any(tells(n, context) for n in ast.walk(statement))

    return accept


def only_logging(body: list[ast.stmt], context: FileContext) -> bool:
    return (
        bool(body)
        and all(only_logs(s, context) for s in body)
        and not all(isinstance(s, ast.Pass) for s in body)
    )


def raised(body: list[ast.stmt], context: FileContext) -> ast.Raise | None:
    """The `raise` that a block comes to, where all before it only tells something, or makes the
    text; None where there is more to it."""
    *before, last = body
    ends = isinstance(last, ast.Raise) and all(_leads_up(s, context) for s in before)
    return last if ends else None


def _leads_up(statement: ast.stmt, context: FileContext) -> bool:
    if not isinstance(statement, ast.Assign):
        return only_logs(statement, context)
    names = {t.id for t in statement.targets if isinstance(t, ast.Name)}
    shared = rebindings(context.function(statement).node).shared
    own = len(names) == len(statement.targets) and not names & shared
    return own and effect_free(statement.value, context)


def effect_free(node: ast.AST, context: FileContext) -> bool:
    """Whether leaving out what `node` evaluates changes nothing else: no stores, no calls but known
    ones."""
    return context.once(_changes_nothing, node)


def _changes_nothing(node: ast.AST, context: FileContext) -> bool:
    program = context.program
    for part in ast.walk(node):
        if isinstance(part, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
            return False
        if isinstance(part, ast.Attribute) and part.attr in program.acting:
            return False
        if _may_look_up(part, context):
            return False
        if program.acting_texts and _may_be_shown(part, context):
            return False
        if isinstance(part, ast.Call) and not _effect_free_call(part, context):
            return False
        if isinstance(part, ast.Name) and _iterator(part, context):
            return False
    return True


def _iterator(name: ast.Name, context: FileContext) -> bool:
    """Whether a name stands for an iterator, which reading it uses up."""
    value = only_value(name, context)
    if isinstance(value, ast.Call):
        made = context.resolve(value.func) or ""
        return made in _ITERATORS or made.startswith("itertools.")
    return isinstance(value, ast.GeneratorExp)


def _may_look_up(node: ast.AST, context: FileContext) -> bool:
    """Whether a lookup may run a method of the file that does more than read, or make an entry."""
    if not isinstance(node, (ast.Attribute, ast.Subscript)):
        return False
    if isinstance(node, ast.Subscript) and last_name(node.value) in context.program.filling:
        return True
    of_name, parent = isinstance(node, ast.Attribute), context.parent(node)
    if isinstance(parent, ast.Call) and parent.func is node:
        return False  # what is called has a list of its own
    names = {"__getattr__", "__getattribute__"} if of_name else {"__getitem__", "__missing__"}
    known = context.kind(node.value).what not in ("unknown", "dict") or context.resolve(node)
    return bool(names & context.program.acting_lookups) and not known


def _may_be_shown(node: ast.AST, context: FileContext) -> bool:
    """Whether something of a class of one's own may be made text of."""
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        return False
    parent, what = context.parent(node), context.kind(node).what
    called = isinstance(parent, ast.Call) and parent.func is node
    read = isinstance(parent, ast.Attribute)
    return what in ("unknown", "self", MODULE, MODULES) and not called and not read


def _effect_free_call(call: ast.Call, context: FileContext) -> bool:
    if is_print(call, context):
        files = (k.value for k in call.keywords if k.arg == "file")
        return all(context.resolve(f) in _STREAMS for f in files)
    if is_log(call, context):
        return True
    if isinstance(call.func, ast.Name):
        return (
            call.func.id in QUIET_BUILTINS
            and call.func.id not in context.names.bound | context.local_names(call)
        )
    name = call.func.attr if isinstance(call.func, ast.Attribute) else "_"
    base = context.kind(call.func.value) if isinstance(call.func, ast.Attribute) else None
    if base is not None and (base.is_tensor or base.what in ("str", "size")):
        return allows(MAY_READ, of_method(name))
    if base is not None and base.what == LOGGER and name in ("isEnabledFor", "getEffectiveLevel"):
        return True
    if base is not None and base.what not in (MODULE, MODULES, "self") and name in _ONLY_READ:
        return True
    full = context.resolve(call.func) or ""
    if full in CLOCKS or full == "logging.getLogger":
        return True
    return full.startswith(("math.", "torch.cuda.memory_")) or _computes(call, full)


def _computes(call: ast.Call, full: str) -> bool:
    """Whether a call is one of a function of torch that only computes."""
    last = full.rpartition(".")[2]
    known = full == f"torch.{last}" and last in FUNCTION
    return known and allows(ONLY_COMPUTES, of_function(call, full))


def count_calls(statement: ast.stmt, context: FileContext) -> int:
    return sum(is_print(n, context) or is_log(n, context) for n in ast.walk(statement))


def run_of(statement: ast.stmt, context: FileContext, accept: Callable[..., Any]) -> list[ast.stmt]:
    """The adjacent statements around `statement` that `accept` takes, as one run."""
    block, index = context.block(statement)
    first = last = index
    while first > 0 and accept(block[first - 1]):
        first -= 1
    while last + 1 < len(block) and accept(block[last + 1]):
        last += 1
    return block[first : last + 1]


def guard(
    run: list[ast.stmt], context: FileContext, silent: int | None = None, why: str = ""
) -> Fix | Refusal:
    """The Fix that puts a run of statements under `if not torch.compiler.is_compiling():`, or the
    Refusal. `why`: what compiled code lacks then, which makes the fix unsafe."""
    found = context.torch(run[0])
    if found is None:
        return hidden()
    silent = sum(count_calls(s, context) for s in run) if silent is None else silent
    edit = wrap(context.source, run, f"if not {found[0]}.compiler.is_compiling():")
    safety = Safety.UNSAFE if why else Safety.SAFE
    return context.fix(
        "run it in eager only", edit, safety=safety, why=why, imports=found[1], silent=silent
    )
