"""What is read from tensors in a function that is compiled by itself, where Dynamo can go on with
it as a symbol: the numbers go into arithmetic, sizes, slices, tensors and results, and decide
nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ....rewriter.analysis.kinds import MODULE, MODULES, TENSOR, UNKNOWN
from ....rewriter.transforms.condition import host_read
from ...analysis.findings import ERROR
from ..libraries.eager_part import written_into

if TYPE_CHECKING:
    from ...analysis.definitions import Function
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_CAPTURED = frozenset("DYN101 DYN102 DYN103 DYN105 DYN501 DYN503 DYN504 DYN506".split())
RECOMPILES = frozenset(["DYN307", "DYN308"])  # no break
# What goes on with a symbol, as torch 2.13 was seen to; what is not here breaks the graph.
_PASSES = frozenset(
    "zip enumerate reversed list tuple map float int bool min max sum abs round len isinstance type"
    " math.acos math.asin math.atan math.ceil math.cos math.cosh math.floor math.log2 math.radians"
    " math.sin math.sinh math.sqrt math.tan math.tanh math.trunc".split()
)
_LISTS = frozenset("zip enumerate reversed list tuple".split())
_METHODS = frozenset(
    "append appendleft extend insert items values keys get setdefault update copy tolist".split()
)
_NEED_NUMBERS = (
    ast.BoolOp,
    ast.FormattedValue,
    ast.Match,
    ast.Starred,
    ast.NamedExpr,
    ast.Lambda,
    ast.Set,
    ast.SetComp,
)
_TRUTHS = (ast.If, ast.IfExp, ast.While, ast.Assert)


def reached(function: Function, context: FileContext) -> list[Function]:
    """A function and those of this file that it surely calls, each once."""
    found, todo = [], [function]
    while todo:
        one = todo.pop()
        if one not in found:
            found.append(one)
            calls = (n for n in ast.walk(one.node) if isinstance(n, ast.Call))
            todo += [f for f in map(context.called, calls) if f is not None]
    return found


def captured_below(
    function: Function, found: list[Finding], context: FileContext
) -> list[Finding] | None:
    """The findings at and below a function, all of which capturing resolves; None where something
    else breaks the graph there too, or where what is read decides something."""
    inside = reached(function, context)
    below = [f for f in found if f.level == ERROR and any(_within(f, g.node) for g in inside)]
    errors = [f for f in below if f.code not in RECOMPILES]
    reads = {g: _likely_reads(g.node, context) for g in inside}
    if not (errors or any(reads.values())) or any(f.code not in _CAPTURED for f in errors):
        return None
    readers = {g for g in inside if reads[g] or any(_within(f, g.node) for f in errors)}
    flows = [_Flow(g.node, errors, readers, context) for g in inside]
    stays = all(flow.decides_nothing() for flow in flows)
    if stays and _reads_written(inside, context):
        stays = not any(flow.feeds_tensors() for flow in flows)
    return errors if stays else None


def _reads_written(inside: list[Function], context: FileContext) -> bool:
    """Whether a float is read from a tensor that is written in place there, too: torch may read it
    again in the backward, and find the number of then."""
    nodes = [n for g in inside for n in _compiled_nodes(g.node, context)]
    written = {_root_text(t) for n in nodes if (t := _written_in_place(n, context)) is not None}
    tensors = [_read_float(n, context) for n in nodes]
    return any(
        _root_text(n) in written - {""} for t in tensors if t is not None for n in ast.walk(t)
    )


def _written_in_place(node: ast.AST, context: FileContext) -> ast.AST | None:
    if isinstance(node, ast.Attribute):  # that binds it anew
        return None
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
        return None if context.kind(node.target).is_number else node.target
    return written_into(node, context)


def _read_float(node: ast.AST, context: FileContext) -> ast.expr | None:
    """The tensor that may give a float here; None of other nodes."""
    tensor = host_read(node, context)
    if tensor is None and _is_likely_read(node, context) and node.func.attr == "item":
        tensor = node.func.value
    if tensor is None or getattr(node.func, "id", "") in ("int", "bool"):
        return None
    category = context.inference.tokens.category(context.kind(tensor).dtype)
    return None if category in ("int", "bool") else tensor


def _root_text(node: ast.AST) -> str:
    """The source of what a node is a part, a view or a result of."""
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = getattr(node.func if isinstance(node, ast.Call) else node, "value", None)
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""


def _likely_reads(function: ast.FunctionDef, context: FileContext) -> list[ast.Call]:
    """`.item()` and `.tolist()` of what is not known to be something else than a tensor."""
    return [n for n in _compiled_nodes(function, context) if _is_likely_read(n, context)]


def _compiled_nodes(function: ast.FunctionDef, context: FileContext) -> list[ast.AST]:
    """The nodes of a function that run when it is compiled."""
    alive = set(context.alive)
    return [n for n in ast.walk(function) if n in alive]


def _is_likely_read(node: ast.AST, context: FileContext) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    named = node.func.attr in ("item", "tolist") and not node.args and not node.keywords
    known = context.kind(node.func.value).what
    return named and known in (TENSOR, UNKNOWN)


def _asks_none(test: ast.expr) -> bool:
    identity = isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Is, ast.IsNot))
    return identity and ast.unparse(test.comparators[0]) == "None"


def _end(finding: Finding) -> tuple[int, int]:
    return finding.end_line, finding.end_column


def _within(finding: Finding, node: ast.AST) -> bool:
    return node.lineno <= finding.line <= node.end_lineno


def _stored_at(target: ast.expr) -> Iterator[str]:
    """The names and attributes that hold what is stored at a target, the keys left out."""
    for part in getattr(target, "elts", ()):
        yield from _stored_at(part)
    if isinstance(target, (ast.Subscript, ast.Starred)):
        yield from _stored_at(target.value)
    elif isinstance(target, (ast.Name, ast.Attribute)):
        yield ast.unparse(target)


class _Flow:
    """Where the numbers and shapes that one function reads go."""

    def __init__(
        self,
        function: ast.FunctionDef,
        errors: list[Finding],
        readers: set[Function],
        context: FileContext,
    ) -> None:
        self.function, self.context, self.readers = function, context, readers
        self.places = {(f.line, f.column) for f in errors}
        self.sizes = {_end(f) for f in errors if f.code[:4] == "DYN5"}
        self.names: set[str] = set()

    def decides_nothing(self) -> bool:
        nodes = _compiled_nodes(self.function, self.context)
        statements = [n for n in nodes if isinstance(n, (ast.stmt, ast.comprehension))]
        before = None
        while before != self.names:
            before = set(self.names)
            for statement in statements:
                self._bind(statement)
        return not any(map(self._decides, nodes)) and all(map(self._is_whole, nodes))

    def feeds_tensors(self) -> bool:
        """Whether tensors are computed of what was read."""
        return any(map(self._feeds, _compiled_nodes(self.function, self.context)))

    def _feeds(self, node: ast.AST) -> bool:
        if isinstance(node, ast.BinOp):
            return self._read(node) and any(map(self._may_be_tensor, (node.left, node.right)))
        if not isinstance(node, ast.Call) or not any(map(self._read, node.args)):
            return False
        return self.context.resolve(node.func) not in _PASSES

    def _may_be_tensor(self, node: ast.expr) -> bool:
        kind = self.context.kind(node)
        attribute = isinstance(node, ast.Attribute) and not kind.is_tensor
        return not (attribute or kind.is_number or self._is_read(node))

    def _is_whole(self, node: ast.AST) -> bool:
        """False for a list of what may be no integers, or of as many as data says, which Dynamo
        does not capture."""
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "tolist":
            return True
        if any(self._is_sized(n) for n in ast.walk(node.func.value)):
            return False
        kind = self.context.kind(node.func.value)
        category = self.context.inference.tokens.category(kind.dtype)
        places = (n for n in ast.walk(self.function) if isinstance(n, (ast.Slice, ast.Subscript)))
        indices = (getattr(n, "slice", n) for n in places)
        taker = self.context.parent(node)
        sizes = isinstance(taker, ast.Call) and self.context.resolve(taker.func) not in _PASSES
        return category == "int" or (
            category is None and ((sizes and node in taker.args) or any(map(self._read, indices)))
        )

    def _is_sized(self, node: ast.AST) -> bool:
        """Whether data says how many elements there are."""
        if isinstance(node, ast.Name):
            return node.id in self.names
        if not isinstance(node, (ast.Call, ast.Subscript)):
            return False
        source = self.context.source
        return (node.end_lineno, source.column(node.end_lineno, node.end_col_offset)) in self.sizes

    def _bind(self, statement: ast.AST) -> None:
        """The names, and attributes, that hold what was read, or what is computed of it."""
        value = getattr(statement, "iter", None) or getattr(statement, "value", None)
        targets = [*getattr(statement, "targets", ()), getattr(statement, "target", None)]
        if isinstance(value, ast.expr) and self._read(value):
            self.names |= {name for t in targets if t is not None for name in _stored_at(t)}

    def _read(self, node: ast.AST) -> bool:
        return any(self._is_read(n) for n in ast.walk(node))

    def _is_read(self, node: ast.AST) -> bool:
        if isinstance(node, (ast.Name, ast.Attribute)):
            return ast.unparse(node) in self.names
        if isinstance(node, ast.Call) and self.context.called(node) in self.readers:
            return True
        if _is_likely_read(node, self.context):
            return True
        if not isinstance(node, (ast.Call, ast.Subscript)):
            return False
        column = self.context.source.column(node.lineno, node.col_offset)
        return (node.lineno, column) in self.places or host_read(node, self.context) is not None

    def _decides(self, node: ast.AST) -> bool:
        """Whether a read number must be known at this node while the graph is made."""
        if isinstance(node, _TRUTHS):
            return self._read(node.test) and not _asks_none(node.test)
        if isinstance(node, ast.comprehension):
            return any(map(self._read, node.ifs)) or self._turns(node.iter)
        if isinstance(node, ast.For):
            return self._turns(node.iter)
        if isinstance(node, ast.Compare):
            member = any(isinstance(o, (ast.In, ast.NotIn)) for o in node.ops)
            return (member or len(node.ops) > 1) and self._read(node)
        if isinstance(node, ast.Dict):
            return any(self._read(k) for k in node.keys if k is not None)
        if isinstance(node, ast.BinOp):
            return self._asked_by_operator(node)
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.Not) and self._read(node)
        if isinstance(node, ast.Subscript):
            return self._looked_up(node)
        if isinstance(node, ast.Call):
            return self._taken(node)
        return isinstance(node, _NEED_NUMBERS) and self._read(node)

    def _asked_by_operator(self, node: ast.BinOp) -> bool:
        """`[0] * n`, `"%d" % n`, `2**n`."""
        if isinstance(node.op, ast.Pow):
            return not self.context.kind(node.left).is_tensor and self._read(node.right)
        display = (ast.List, ast.Tuple, ast.Constant, ast.JoinedStr)
        sides = [s for s in (node.left, node.right) if isinstance(s, display)]
        literal = any(not isinstance(getattr(s, "value", ""), (int, float)) for s in sides)
        repeats = isinstance(node.op, (ast.Mult, ast.Mod)) and literal
        return repeats and self._read(node)

    def _turns(self, iterated: ast.expr) -> bool:
        """Whether what was read says how many turns there are. A list has as many as its tensor."""
        if isinstance(iterated, ast.Call) and isinstance(iterated.func, ast.Name):
            known = self.context.resolve(iterated.func) in _LISTS
            return (
                not known or any(map(self._turns, iterated.args)) if self._read(iterated) else False
            )
        listed = isinstance(iterated, ast.Call) and getattr(iterated.func, "attr", "") == "tolist"
        named = isinstance(iterated, ast.Name) and not self.context.kind(iterated).is_tensor
        return self._read(iterated) and not listed and not named

    def _looked_up(self, node: ast.Subscript) -> bool:
        """Whether a container of Python is asked for the place that was read. Of several axes,
        slices among them, it is none."""
        axes = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
        held, index = self.context.kind(node.value), self.context.kind(node.slice)
        tensor = held.is_tensor or held.of_input or index.is_tensor
        tensor = tensor or any(isinstance(axis, ast.Slice) for axis in axes)
        return not tensor and self._read(node.slice)

    def _taken(self, call: ast.Call) -> bool:
        """Whether a call that takes what was read may need it as a number."""
        given = [*call.args, *(k.value for k in call.keywords)]
        if not any(map(self._read, given)):
            return False
        context, full = self.context, self.context.resolve(call.func) or ""
        if full.startswith("torch.") or full in _PASSES:
            return any(k.arg == "key" for k in call.keywords)
        if context.called(call) is not None or context.kind(call.func).what in (MODULE, MODULES):
            return False
        method = isinstance(call.func, ast.Attribute)
        tensor = method and context.kind(call.func.value).is_tensor
        return not tensor and not (method and call.func.attr in _METHODS)
