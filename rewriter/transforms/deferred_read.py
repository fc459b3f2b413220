"""A number that is read from a tensor and only decides branches, or is shown: read where that is.

    m = y.abs().max().item()        m = y.abs().max().detach()
    if m > 1:                       if m.item() > 1:
        y = y / 2                       y = y / 2
    print(m)                        print(m.item())

The same number, for nobody else has the tensor. The branch, and what is shown, have patterns of
their own, which then see a tensor."""

import ast

from ..analysis.name_scopes import rebindings
from ..analysis.output_calls import is_log, is_print
from ..analysis.proofs import sees_names
from ..source.spans import Edit, Fix
from .condition import Condition, condition, host_read

_TESTS = (ast.If, ast.IfExp, ast.While, ast.Assert)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_TRUTHS = (ast.UnaryOp, ast.BoolOp)


def deferred(node: ast.Call | ast.UnaryOp | ast.BoolOp, oracle) -> Fix | None:
    """The Fix that reads what `node` (`t.item()`, `bool(t)`, `not t`, `t and u`) reads where it is
    used; None where it is used for more."""
    name, function = _bound(node, oracle), oracle.function(node).node
    if not name or sees_names(function):
        return None
    made = _kept(node, oracle)
    loads = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name]
    loads = [n for n in loads if isinstance(n.ctx, ast.Load)]
    truth = not isinstance(node, ast.Call) or getattr(node.func, "id", "") == "bool"
    texts = {n: _at_use(n, node, truth, oracle) for n in loads}
    if not made or not loads or None in texts.values():
        return None
    kept = [oracle.replacement(n, text) for n, text in texts.items() if text != n.id]
    return oracle.fix("read it where it is used", oracle.replacement(node, made), *kept)


def of_value(node: ast.Assign, oracle) -> Fix | None:
    """The same for a statement that binds what a tensor's truth is."""
    value = node.value
    if isinstance(value, ast.Call) and getattr(value.func, "id", "") != "bool":
        return None
    return (
        deferred(value, oracle) if isinstance(value, ast.Call | ast.UnaryOp | ast.BoolOp) else None
    )


def of_test(node: ast.If | ast.IfExp, oracle) -> Fix | None:
    """The same for the numbers that the test of a branch asks, which were read before it."""
    names = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name) and oracle.kind(n).host}
    edits: list[Edit] = []
    for read in _reads(oracle.function(node).node):
        found = deferred(read, oracle) if _bound(read, oracle) in names else None
        edits += found.edits if found is not None else ()
    return oracle.fix("read it where it is used", *edits) if edits else None


def _reads(function):
    """The calls that are all of what an assignment gives to a name."""
    for statement in ast.walk(function):
        value = statement.value if isinstance(statement, ast.Assign) else None
        for part in value.elts if isinstance(value, ast.Tuple) else [value]:
            if isinstance(part, ast.Call):
                yield part


def _kept(node, oracle):
    """The source of the tensor that takes the number's place; "" where there is none."""
    if isinstance(node, _TRUTHS):
        return _condition(node, oracle)
    inner = host_read(node, oracle)
    if inner is None or not _one(inner, oracle) or not oracle.new(inner):
        return ""
    truth = getattr(node.func, "id", "") == "bool"
    boolean = oracle.kind(inner).dtype == oracle.inference.tokens.bool
    return oracle.segment(inner) if truth or boolean else f"{oracle.atom(inner)}.detach()"


def _condition(node, oracle):
    test, found = condition(node, oracle), oracle.torch(node)
    if not isinstance(test, Condition) or found is None or found[1]:
        return ""
    shown = f"{found[0]}.logical_not({test.text})" if test.negated else test.text
    if isinstance(node, ast.UnaryOp) and _one(node.operand, oracle):
        return shown if oracle.new(node.operand) else ""
    return "" if test.doubt or test.kind.rank != 0 else shown


def _one(node, oracle):
    return oracle.kind(node).is_tensor and oracle.kind(node).rank == 0


def _bound(node, oracle):
    """The one name that is bound to a value, in one place; "" where there is none."""
    statement, target = oracle.parent(node), None
    if isinstance(statement, ast.Tuple):
        whole = oracle.parent(statement)
        pair = isinstance(whole, ast.Assign) and len(whole.targets) == 1 and whole.targets[0]
        if isinstance(pair, ast.Tuple) and len(pair.elts) == len(statement.elts):
            target = pair.elts[statement.elts.index(node)]
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    once = rebindings(oracle.function(node).node).once
    return target.id if isinstance(target, ast.Name) and target.id in once else ""


def _at_use(load, node, truth, oracle):
    """What one use becomes; None where there is no form."""
    if truth and _asks(load, oracle):
        return load.id
    if isinstance(node, _TRUTHS) or not _tested_or_shown(load, oracle):
        return None
    method = isinstance(node.func, ast.Attribute)
    return f"{load.id}.item()" if method else f"{node.func.id}({load.id})"


def _asks(load, oracle):
    """Whether a branch asks for the truth of a name, and nobody for more."""
    at, parent = load, oracle.parent(load)
    negated = isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not)
    while isinstance(parent, ast.BoolOp) or negated:
        at, parent = parent, oracle.parent(parent)
        negated = isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not)
    return isinstance(parent, _TESTS) and parent.test is at


def _tested_or_shown(load, oracle):
    at, found = load, False
    while not isinstance(at, ast.stmt) and at is not None:
        parent = oracle.parent(at)
        if isinstance(parent, (*_SCOPES, ast.JoinedStr, ast.FormattedValue)):
            return False  # its place within a text is not known before Python 3.12
        found = found or (isinstance(parent, _TESTS) and parent.test is at)
        found = found or is_print(at, oracle) or is_log(at, oracle)
        at = parent
    return found
