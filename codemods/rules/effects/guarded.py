"""Calls that only tell something (print, log): what they have in common, and the guard that mutes
them under torch.compile."""

import ast

from ....rewriter.edits.spans import Edit
from ....rewriter.patterns.condition import condition
from ....rewriter.patterns.kinds import LOGGER
from ....rewriter.patterns.torch_facts import FUNCTION, RANDOM

_LOG_METHODS = frozenset(
    [
        "debug",
        "info",
        "warning",
        "warn",
        "error",
        "critical",
        "exception",
        "log",
        "warning_once",
        "info_once",
        "warning_advice",
    ]
)
_QUIET_CALLS = frozenset(
    [
        "str",
        "repr",
        "len",
        "format",
        "int",
        "float",
        "bool",
        "type",
        "round",
        "list",
        "tuple",
        "min",
        "max",
        "sum",
        "abs",
        "id",
        "sorted",
    ]
)


def is_print(node, context):
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and context.resolve(node.func) == "print"
    )


def is_log(node, context):
    """A call of a method of a logger, or of the logging module."""
    if (
        not isinstance(node, ast.Call)
        or not isinstance(node.func, ast.Attribute)
        or node.func.attr not in _LOG_METHODS
    ):
        return False
    if context.kind(node.func.value).what == "logger":
        return True
    return (context.resolve(node.func) or "").startswith(("logging.", "loguru.logger."))


def mute(statement, context):
    """Whether a statement does nothing but tell: a print, a log call, or an `if` around such."""
    if isinstance(statement, ast.Expr):
        return (is_print(statement.value, context) or is_log(statement.value, context)) and quiet(
            statement, context
        )
    if isinstance(statement, ast.If):
        return (
            quiet(statement.test, context)
            and mute_only(statement.body, context)
            and all(mute(s, context) for s in statement.orelse)
        )
    return isinstance(statement, ast.Pass)


def joins(statement, context):
    """Whether a statement goes under the guard as a whole: it only tells, and an `if` in it needs a
    tensor's value (else the guard is better off inside)."""
    if isinstance(statement, ast.If):
        return mute(statement, context) and condition(statement.test, context) is not None
    return isinstance(statement, ast.Expr) and mute(statement, context)


def mute_only(body, context):
    return (
        bool(body)
        and all(mute(s, context) for s in body)
        and not all(isinstance(s, ast.Pass) for s in body)
    )


def quiet(node, context):
    """Whether leaving out what `node` evaluates changes nothing else: no stores, no calls but known
    ones."""
    for part in ast.walk(node):
        if isinstance(part, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
            return False
        if isinstance(part, ast.Call) and not _quiet_call(part, context):
            return False
    return True


def _quiet_call(call, context):
    if is_print(call, context) or is_log(call, context):
        return True
    if isinstance(call.func, ast.Name):
        return (
            call.func.id in _QUIET_CALLS
            and call.func.id not in context.names.bound | context.local_names(call)
        )
    name = call.func.attr if isinstance(call.func, ast.Attribute) else "_"
    base = context.kind(call.func.value) if isinstance(call.func, ast.Attribute) else None
    if base is not None and (base.is_tensor or base.what in ("str", "size")):
        return not name.endswith("_") and name not in (
            "backward",
            "register_hook",
            "bernoulli",
            "multinomial",
        )
    if base is not None and base.what == LOGGER and name == "isEnabledFor":
        return True
    full = context.resolve(call.func) or ""
    return full.startswith(("math.", "torch.cuda.memory_")) or _computes(call, full)


def _computes(call, full):
    """Whether a call is one of a function of torch that only computes."""
    last = full.rpartition(".")[2]
    known = full == f"torch.{last}" and last in FUNCTION and last not in RANDOM
    return known and last[-1] != "_" and not any(k.arg == "out" for k in call.keywords)


def count_calls(statement, context):
    return sum(is_print(n, context) or is_log(n, context) for n in ast.walk(statement))


def run_of(statement, context, accept):
    """The adjacent statements around `statement` that `accept` takes, as one run."""
    block, index = context.block(statement)
    first = last = index
    while first > 0 and accept(block[first - 1]):
        first -= 1
    while last + 1 < len(block) and accept(block[last + 1]):
        last += 1
    return block[first : last + 1]


def guard(run, context, silent=None):
    """The Fix that puts a run of statements under `if not torch.compiler.is_compiling():`, or why
    there is none."""
    source, found = context.source, context.torch(run[0])
    if found is None:
        return "`torch` is hidden by a local name, or not imported at the top of the file"
    head = f"if not {found[0]}.compiler.is_compiling():"
    silent = sum(count_calls(s, context) for s in run) if silent is None else silent
    indent = source.indent_of(run[0])
    if indent is None:
        edit = _after_colon(run, context, head)
        if edit is None:
            return "the statement shares its line with others"
    else:
        edit = _block(run, context, head, indent)
        if edit is None:
            return "a string over several lines, or a shared line, stands in the way of indenting"
    return context.fix("run it in eager only", edit, imports=found[1], silent=silent)


def _block(run, context, head, indent):
    source, unit = context.source, context.source.indent_unit()
    start, end = source.starts[run[0].lineno - 1], source.span(run[-1])[1]
    rest = source.line(run[-1].end_lineno)[
        source.column(run[-1].end_lineno, run[-1].end_col_offset) - 1 :
    ]
    if rest.strip() and not rest.strip().startswith("#"):
        return None
    if source.has_long_string(start, end) or any(source.indent_of(s) != indent for s in run):
        return None
    stops = [s for s in source.starts if start < s < end]
    lines = [source.text[a:b] for a, b in zip([start, *stops], [*stops, end], strict=True)]
    body = "".join(unit + line if line.strip() else line for line in lines)
    return Edit(start, end, f"{indent}{head}{source.newline}{body}")


def _after_colon(run, context, head):
    """`if a: print(x)` on one line: the print moves to lines of its own."""
    source, parent = context.source, context.parent(run[0])
    outer = source.indent_of(parent) if isinstance(parent, ast.stmt) else None
    one = (
        len(run) == 1 and len(context.block(run[0])[0]) == 1 and run[0].lineno == run[0].end_lineno
    )
    if outer is None or not one:
        return None
    start, end = source.span(run[0])
    colon = source.text.rindex(":", 0, start) + 1
    unit, newline = source.indent_unit(), source.newline
    text = f"{newline}{outer}{unit}{head}{newline}{outer}{unit}{unit}{source.text[start:end]}"
    return Edit(colon, end, text) if not source.text[colon:start].strip() else None
