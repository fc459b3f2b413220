"""The Fix that gives a function one path for compiled code, where choices by tensors are
predicates:

    if torch.compiler.is_compiling():
        condition = keep.any()
        x = torch.where(condition, x * 2, x)
        return x
    if keep.any():
        x = x * 2
    return x

Eager runs the statements that it ran. Compiled code computes every side."""

import ast
from dataclasses import replace

from ...source.intents import insert_before
from ...source.spans import Fix, Refusal, Safety
from ..condition import host_read
from .path import PredicatedPath, place_of, stored
from .predicated_values import DifferentRows, NotPredicated

_WHY = (
    "in compiled code every side and every turn is computed: one may raise, draw, turn a gradient"
    " into NaN, or give zero gradients where there were none; sides must agree in shape; numbers"
    " are computed in the tensor's precision, torch draws what Python drew, logs are silent, and"
    " errors are RuntimeErrors"
)
_LONGEST = 120


def predicated(function, context):
    """The Fix for a function, or the Refusal that says why there is none."""
    found = context.torch(function.body[0])
    if found is None or isinstance(function, ast.AsyncFunctionDef):
        return Refusal("`torch` is hidden by a local name, or not imported at the top of the file")
    if any(is_path(s) for s in function.body):
        return Refusal("it has a path for compiled code")
    try:
        path, first, made = _path_of(function, context, found[0])
    except NotPredicated as error:
        return Refusal(str(error))
    if not path.values.chosen:
        return Refusal("nothing in it decides by a tensor")
    texts = (ast.unparse(ast.fix_missing_locations(s)) for s in made)
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    if len(lines) > _LONGEST:
        return Refusal("its path would be too long to read")
    unit, newline = context.source.indent_unit(), context.source.newline
    head = f"if {found[0]}.compiler.is_compiling():"
    text = newline.join([head, *(unit + line for line in lines)])
    why = "; ".join([_WHY, *path.doubts, *path.values.assumed])
    edit = insert_before(context.source, first, text)
    title = "select by predicates when compiled"
    fix = context.fix(title, edit, safety=Safety.UNSAFE, why=why, imports=found[1])
    shown = (
        not path.values.assumed
        and not path.asserts
        and not path.draws
        and not path.values.draws
        and context.ran(path.values.sides)
    )
    if not isinstance(fix, Fix):
        return fix
    reads, conds = any(map(_reads, made)), bool(path.conds)
    return replace(fix, compiled=True, ran=shown, needs_next=reads, needs_whole=conds)


_MOST_CONDS = 4


def _path_of(function, context, torch):
    """(the path, the first statement that it stands for, its statements). A choice in which, or
    behind which, nothing selects what is needed is made by torch.cond."""
    conds, why = frozenset(), None
    while len(conds) <= _MOST_CONDS:
        path = PredicatedPath(function, context, torch, conds)
        try:
            return path, *_converted(path, function.body)
        except NotPredicated as error:
            why = why or error
            at = path.open_choice and place_of(path.open_choice)
            if at is None or at in conds or not isinstance(error, DifferentRows):
                raise why from None
            conds |= {at}
    raise why


def _reads(statement):
    """Whether a number is still read on the host in it: what takes it may need another fix."""
    calls = (n.func for n in ast.walk(statement) if isinstance(n, ast.Call))
    return any(isinstance(f, ast.Attribute) and f.attr in ("item", "tolist") for f in calls)


def _converted(path, body):
    """(the first statement that reads or decides, the statements in its place and after it)."""
    args = path.function.args
    every = (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg)
    path.bound |= {a.arg for a in every if a is not None}
    for index, statement in enumerate(body):
        if _needs(statement, path):
            made = path.block(body[index:], None)
            falls = path.returns.state != "none" and not isinstance(made[-1], ast.Return)
            if falls and path.returns.results:
                raise NotPredicated("it may return nothing at its end")
            ends = isinstance(made[-1], ast.Return)
            return statement, made if ends else [*made, ast.Return(None)]
        path.bound |= stored([statement])
        path.note(statement)
    raise NotPredicated("nothing in it decides by a tensor")


def is_path(statement):
    """Whether a statement is a path for compiled code, to the end of the function."""
    tested = isinstance(statement, ast.If) and ast.unparse(statement.test)
    compiled = bool(tested) and tested.endswith("compiler.is_compiling()")
    return compiled and isinstance(statement.body[-1], ast.Return)


def _needs(statement, path):
    values, context = path.values, path.context
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and host_read(node, context) is not None:
            return True
        if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert)) and values.decides(
            node.test
        ):
            return True
        if isinstance(node, (ast.Call, ast.Subscript)) and values._is_source(node):
            return True
        if isinstance(node, ast.Call) and values.list_tensor(node):
            return True
    return False
