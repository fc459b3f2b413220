"""Where the text of a file shows a training step: the statements from the forward to the update, in
one block of a loop or a function."""

import ast
import dataclasses
import re
from collections.abc import Iterator

from .bound_names import Names, all_stores
from .statement_texts import parameters_of
from .tree_walks import all_nodes, children, own_nodes

MOST_STARTS = 24
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NO_OPTIMIZER = re.compile(r"sch|warm|prof|env|writer|progress|bar|timer|track|log|ema", re.I)
_PREPARES = re.compile(r"\bclip_grad|\.unscale_\(")
_AFTER = {"zero_grad": re.compile(""), "update": re.compile("scaler", re.I)}


@dataclasses.dataclass(frozen=True)
class StepScope:
    """A function, or the file itself. `containers`: (name, is a class) of what it stands in;
    `around`: variables of the functions around it."""

    node: ast.Module | ast.FunctionDef
    containers: tuple[tuple[str, bool], ...]
    around: Names

    @property
    def is_file(self) -> bool:
        return isinstance(self.node, ast.Module)


@dataclasses.dataclass(frozen=True, eq=False)
class StepRegion:
    """`block[start : last + 1]`, for one of the `starts`, is a step: the last start whose values
    have no gradient history is the right one, which only a run can tell. `loops`: those around it,
    from outside in. `rest`: statements at the end of an `if`'s body, behind the update in it, that
    are no part of the step. `only_updates`: the gradients were accumulated by a loop before."""

    scope: StepScope
    block: list[ast.stmt]
    starts: tuple[int, ...]
    last: int
    loops: tuple[ast.stmt, ...]
    rest: tuple[ast.stmt, ...] = ()
    only_updates: bool = False


def regions(tree: ast.Module) -> Iterator[StepRegion]:
    """Every step of a file, inner functions and methods included."""
    for scope in _scopes(tree, StepScope(tree, (), frozenset())):
        yield from _in_block(scope, scope.node.body, ())


def _scopes(node: ast.AST, scope: StepScope) -> Iterator[StepScope]:
    if node is scope.node:
        yield scope
    for child in children(node):
        if isinstance(child, ast.ClassDef):
            inside = (*scope.containers, *_own_name(scope), (child.name, True))
            yield from _below(child, dataclasses.replace(scope, containers=inside), scope)
        elif isinstance(child, ast.FunctionDef):
            yield from _scopes(child, _function_scope(child, scope))
        elif not isinstance(child, ast.AsyncFunctionDef | ast.Lambda):
            yield from _scopes(child, scope)


def _own_name(scope: StepScope) -> tuple[tuple[str, bool], ...]:
    node = scope.node
    return () if isinstance(node, ast.Module) else ((node.name, False),)


def _below(cls: ast.ClassDef, inside: StepScope, outside: StepScope) -> Iterator[StepScope]:
    """Methods: names of the class are not visible in them."""
    for child in cls.body:
        if isinstance(child, ast.FunctionDef):
            around = outside.around | _locals(outside)
            yield from _scopes(child, StepScope(child, inside.containers, around))


def _function_scope(node: ast.FunctionDef, scope: StepScope) -> StepScope:
    return StepScope(node, (*scope.containers, *_own_name(scope)), scope.around | _locals(scope))


def _locals(scope: StepScope) -> Names:
    node = scope.node
    return frozenset() if isinstance(node, ast.Module) else local_names(node)


def local_names(node: ast.FunctionDef) -> Names:
    """Variables of a function."""
    return (parameters_of(node) | all_stores(node.body)) - declared(node, ast.Global, ast.Nonlocal)


def declared(node: ast.AST, *kinds: type) -> Names:
    """Names in `global` or `nonlocal` statements of a function, not of those made in it."""
    body = getattr(node, "body", [])
    found = (n for stmt in body for n in own_nodes(stmt) if isinstance(n, kinds))
    return frozenset(name for statement in found for name in statement.names)  # type: ignore[attr-defined]


# -- which statements


def _in_block(
    scope: StepScope, block: list[ast.stmt], loops: tuple[ast.stmt, ...], whole: bool = False
) -> Iterator[StepRegion]:
    """Steps in a block and in those inside. `whole`: the block belongs to an `if`, `with` or `try`:
    what it has is a step only with everything from forward to update."""
    segment: list[int] = []
    accumulated = False  # by a loop before this segment
    for index, stmt in enumerate(block):
        inner = list(_in_statement(scope, stmt, loops))
        yield from inner
        if inner or _is_border(stmt):
            yield from _of_segment(scope, block, segment, loops, whole, accumulated)
            segment, accumulated = [], isinstance(stmt, _LOOPS) and not _updates(stmt)
        else:
            segment.append(index)
    yield from _of_segment(scope, block, segment, loops, whole, accumulated)


def _is_border(stmt: ast.stmt) -> bool:
    """Whether it is a loop of steps, and no part of one: updating several optimizers is."""
    if not isinstance(stmt, _LOOPS) or not (_calls(stmt, "backward") or _updates(stmt)):
        return False
    several = isinstance(stmt, ast.For) and not _NO_OPTIMIZER.search(ast.unparse(stmt.iter))
    return not (several and all(_is_update(each) or _follows(each) for each in stmt.body))


def _in_statement(
    scope: StepScope, stmt: ast.stmt, loops: tuple[ast.stmt, ...]
) -> Iterator[StepRegion]:
    if isinstance(stmt, ast.For | ast.While):
        yield from _in_block(scope, stmt.body, (*loops, stmt))
    elif isinstance(stmt, ast.If | ast.With | ast.Try):
        for name in ("body", "orelse", "finalbody"):
            yield from _in_block(scope, getattr(stmt, name, []), loops, whole=True)


def _of_segment(
    scope: StepScope,
    block: list[ast.stmt],
    segment: list[int],
    loops: tuple[ast.stmt, ...],
    whole: bool,
    accumulated: bool,
) -> Iterator[StepRegion]:
    if scope.is_file and not loops:
        return  # what a file runs once is not worth it
    backward = [i for i in segment if _calls(block[i], "backward")]
    if not backward:
        if accumulated:
            yield from _update(scope, block, segment, loops)
        return
    later = [i for i in segment if i >= backward[-1]]
    updates = [i for i in later if _updates(block[i]) or _updates_by_hand(block[i])]
    latest = _latest_start(block, segment[0], backward[0])
    if whole and not (updates and _makes_what_is_differentiated(block, segment[0], backward[0])):
        return
    at = updates[0] if updates else backward[-1]
    starts = range(max(segment[0], latest - MOST_STARTS + 1), latest + 1)
    yield _ended(StepRegion(scope, block, tuple(starts), at, loops), segment)


def _update(
    scope: StepScope, block: list[ast.stmt], segment: list[int], loops: tuple[ast.stmt, ...]
) -> Iterator[StepRegion]:
    """The update behind a loop that accumulated gradients, with their clipping."""
    at = next((i for i in segment if _updates(block[i]) or _updates_by_hand(block[i])), None)
    if at is not None:
        start = at
        while start - 1 in segment and _PREPARES.search(ast.unparse(block[start - 1])):
            start -= 1
        yield _ended(StepRegion(scope, block, (start,), at, loops, only_updates=True), segment)


def _ended(region: StepRegion, segment: list[int]) -> StepRegion:
    """The region with what else belongs to the update at its end."""
    block, last = region.block, region.last
    rest = _behind_update(block[last])
    while last + 1 in segment and (_follows(block[last + 1]) or _is_update(block[last + 1])):
        last += 1
    return dataclasses.replace(region, last=last, rest=rest)


def _behind_update(stmt: ast.stmt) -> tuple[ast.stmt, ...]:
    """What stands in an `if`'s body behind the update: a scheduler's step, a log line."""
    if not isinstance(stmt, ast.If):
        return ()
    update = [_updates(each) or _updates_by_hand(each) for each in stmt.body]
    if True not in update:
        return ()
    end = update.index(True)
    while end < len(update) and (update[end] or _follows(stmt.body[end])):
        end += 1
    return tuple(stmt.body[end:])


def _latest_start(block: list[ast.stmt], first: int, backward: int) -> int:
    """The last statement at which a step may begin: where it differentiates an attribute that it
    made (`self.loss`), not behind the making."""
    needed, latest = _dotted(block[backward], ast.Load), backward
    for index in range(backward - 1, first - 1, -1):
        made = _dotted(block[index], ast.Store) & needed
        if made:
            needed |= _dotted(block[index], ast.Load)
        if any("." in name for name in made):
            latest = index
    return latest


def _dotted(stmt: ast.stmt, kind: type) -> set[str]:
    """`name` and `name.attribute` of what a statement reads, or stores."""
    return {
        ast.unparse(node)
        for node in own_nodes(stmt)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, kind)
    }


def _makes_what_is_differentiated(block: list[ast.stmt], first: int, backward: int) -> bool:
    """Whether the block has the forward: what `backward()` is called on is stored in it, or made on
    the spot."""
    receivers = [call.func.value for call in _calls(block[backward], "backward")]  # type: ignore[attr-defined]
    inside = [node for each in receivers for node in all_nodes(each)]
    names = {node.id for node in inside if isinstance(node, ast.Name)}
    stored = all_stores(block[first : backward + 1])
    return bool(names & stored) or sum(isinstance(node, ast.Call) for node in inside) > 1


def _calls(stmt: ast.AST, method: str) -> list[ast.Call]:
    return [
        node
        for node in own_nodes(stmt)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == method
    ]


def _updates(stmt: ast.stmt) -> bool:
    """Whether an optimizer's (or a scaler's) `step` is called, as far as the name tells."""
    return any(
        len(call.args) < 2 and not _NO_OPTIMIZER.search(ast.unparse(call.func.value))  # type: ignore[attr-defined]
        for call in _calls(stmt, "step")
    )


def _is_update(stmt: ast.stmt) -> bool:
    """Whether a statement is `….step()` of an optimizer, and no more."""
    return isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Call) and _updates(stmt)


def _updates_by_hand(stmt: ast.stmt) -> bool:
    """Whether a loop over parameters reads their gradients."""
    return any(
        isinstance(node, ast.For)
        and "parameters" in ast.unparse(node.iter)
        and any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in own_nodes(node))
        for node in own_nodes(stmt)
    )


def _follows(stmt: ast.stmt) -> bool:
    """`optimizer.zero_grad()` or `scaler.update()` behind an update belong to it."""
    if not isinstance(stmt, ast.Expr) or not isinstance(stmt.value, ast.Call):
        return False
    func = stmt.value.func
    wanted = _AFTER.get(func.attr) if isinstance(func, ast.Attribute) else None
    return wanted is not None and bool(wanted.search(ast.unparse(func)))


def clears_gradients(stmt: ast.stmt) -> bool:
    """Whether a statement is `….zero_grad(…)`."""
    return _follows(stmt) and stmt.value.func.attr == "zero_grad"  # type: ignore[attr-defined]
