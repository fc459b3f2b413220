"""DYN605: statements that make a tensor of sizes alone, in a way that breaks the graph."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.proofs import sees_names
from ....rewriter.source.intents import insert_before, replace_statements
from ....rewriter.source.spans import Edit, Refusal, Safety, apply, hidden
from ...analysis.constancy import Constancy
from ..base import Rule
from .constant_helper import HelperBody

if TYPE_CHECKING:
    from ....rewriter.analysis.kinds import Kind
    from ...analysis.definitions import Function
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_NUMBERS = ("int", "float", "bool", "size")


class ConstantBlock(Rule):
    """
    What hangs on sizes and Python numbers alone (the indices off a diagonal, anchors, a grid made
    with NumPy) is the same at every call with the same sizes, though `nonzero` or NumPy break the
    graph in it. The statements move to a function marked with
    `torch.compiler.assume_constant_result`, which Dynamo calls while tracing; `range(n).stop` is
    `n` as a plain int, so that another size compiles anew. The result is cloned, so that every call
    has a tensor of its own. Safe where tensors are made of sizes alone; unsafe where NumPy is
    called or attributes are read, which no guard watches.
    """

    code = "DYN605"
    safety = Safety.SAFE
    nodes = (ast.Module,)
    whole_file = True
    before = """
import torch


@torch.compile
def off_diagonal(x: torch.Tensor):
    keep = torch.ones(x.shape) - torch.eye(x.shape[0])
    index = torch.nonzero(keep.flatten()).flatten()
    return x.flatten()[index].mean()
"""
    after = """
import torch


@torch.compiler.assume_constant_result
def constant_index(x_shape):
    x_shape = torch.Size(x_shape)
    keep = torch.ones(x_shape) - torch.eye(x_shape[0])
    index = torch.nonzero(keep.flatten()).flatten()
    return index


@torch.compile
def off_diagonal(x: torch.Tensor):
    index = constant_index(tuple(range(n).stop for n in x.shape)).clone()
    return x.flatten()[index].mean()
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        given = set()
        for function in list(context.functions.values()):
            if function.outer is None and isinstance(function.node, ast.FunctionDef):
                for block in _blocks(function.node):
                    yield from self._block(block, function, context, given)

    def _block(
        self, block: list[ast.stmt], function: Function, context: FileContext, given: set[str]
    ) -> Iterator[Any]:
        at = 0
        while at < len(block):
            stretch = _Stretch(block, at, function, context)
            if stretch.worth:
                built = stretch.fix(given)
                yield context.finding(self, stretch.run[0], fix=built)
            at += max(1, stretch.length)


def _blocks(function: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    """Every list of statements of a function, those of functions in it left out."""
    todo = [function]
    while todo:
        node = todo.pop()
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None) or []
            if block and isinstance(block, list):
                yield block
                todo += [
                    s
                    for s in block
                    if not isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
                ]


def _leaves(statement: ast.stmt) -> bool:
    """Whether a statement returns on every path."""
    if isinstance(statement, ast.If):
        return (
            bool(statement.orelse) and _leaves(statement.body[-1]) and _leaves(statement.orelse[-1])
        )
    return isinstance(statement, ast.Return)


def _returns(statement: ast.stmt) -> list[ast.Return]:
    return [n for n in ast.walk(statement) if isinstance(n, ast.Return)]


class _Stretch:
    """The longest run of constant statements of `block` from `at` on, cut down to what it needs."""

    def __init__(
        self, block: list[ast.stmt], at: int, function: Function, context: FileContext
    ) -> None:
        self.context, self.function = context, function
        end = at
        scan = self._scan([])
        while end < len(block) and scan.takes(block[end]):
            end += 1
        self.length = end - at
        self.run = self._cut(block[at:end]) if scan.numpy or scan.dynamic else []
        if not self.run:
            return
        self.scan = self._scan(self.run)
        self.inputs, self.uses = self.scan.settled()
        self.outputs = self._outputs(self.run)

    def _scan(self, run: Any) -> Constancy | None:
        scan = Constancy(
            self.context, self.function, lambda f: HelperBody(self.context).constant(f, ())
        )
        return scan if all(scan.takes(s) for s in run) else None

    @property
    def worth(self) -> bool:
        """Whether something in it breaks the graph, and a tensor comes out."""
        if not self.run or not (self.scan.numpy or self.scan.dynamic):
            return False
        returned = [r.value for r in _returns(self.run[-1])] if _leaves(self.run[-1]) else []
        if any(_returns(s) for s in self.run[: -1 if returned else None]):
            return False
        if returned:
            return all(self.context.kind(v).is_tensor for v in returned)
        kinds = [k for _, k in self.outputs]
        return any(k.is_tensor for k in kinds) and all(map(_known, kinds))

    # Which statements

    def _cut(self, run: list[ast.stmt]) -> list[ast.stmt]:
        """Without what comes after the last breaking statement and its tensors, and without what
        may stay before."""
        last = max(
            (i for i, s in enumerate(run) if self._breaks(run[: i + 1]) > self._breaks(run[:i])),
            default=-1,
        )
        if last < 0:
            return []
        if not _leaves(run[-1]):
            ends = range(last + 1, len(run) + 1)
            run = next(
                (run[:e] for e in ends if all(_known(k) for _, k in self._outputs(run[:e]))), []
            )
        breaks = self._breaks(run)
        while (
            len(run) > 1 and self._breaks(run[1:]) == breaks and not self._needed(run[0], run[1:])
        ):
            run = run[1:]
        return run

    def _breaks(self, run: list[ast.stmt]) -> int:
        scan = self._scan(run)
        return scan.numpy + scan.dynamic if scan else -1

    def _needed(self, first: Any, rest: Any) -> bool:
        """Whether a statement makes more than numbers for the others."""
        stores = [
            n for n in ast.walk(first) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        ]
        return (
            any(self.context.kind(n).what not in ("int", "size") for n in stores)
            and self._scan(rest) is None
        )

    def _outputs(self, run: list[ast.stmt]) -> list[tuple[str, Kind]]:
        """(name, kind) of what is read outside the statements, in the order of its making."""
        inside = {n for s in run for n in ast.walk(s)}
        every = [n for n in ast.walk(self.function.node) if isinstance(n, ast.Name)]
        outside = {n for n in every if n not in inside}
        changed = (s.target for s in ast.walk(self.function.node) if isinstance(s, ast.AugAssign))
        read = {n.id for n in outside if not isinstance(n.ctx, ast.Store)}
        read |= {n.id for n in outside.intersection(changed)}
        found = {
            n.id: self.context.kind(n)
            for n in every
            if n in inside and isinstance(n.ctx, ast.Store)
        }
        return [(name, kind) for name, kind in found.items() if name in read]

    def _half_bound(self) -> Any:
        """A name that is bound on one path alone, and elsewhere as well."""
        inside = {n for s in self.run for n in ast.walk(s)}
        sure = {
            t.id
            for s in self.run
            if isinstance(s, ast.Assign)
            for t in ast.walk(s)
            if isinstance(t, ast.Name)
        }
        arguments = {a.arg for a in ast.walk(self.function.node.args) if isinstance(a, ast.arg)}
        every = [
            n for n in ast.walk(self.function.node) if isinstance(n, ast.Name) and n not in inside
        ]
        elsewhere = arguments | {n.id for n in every if isinstance(n.ctx, ast.Store)}
        open_ = {name for name, _ in self.outputs} | elsewhere
        return next(iter(sorted((self.scan.bound - sure) & open_)), None)

    # The fix

    def fix(self, given: set[str]) -> Any:
        """The Fix, or the Refusal; `given`: names of functions that other fixes add."""
        context, source = self.context, self.context.source
        found, half = context.torch(self.run[0]), self._half_bound()
        start, end = source.span(self.run[0])[0], source.span(self.run[-1])[1]
        if found is None:
            return hidden()
        if half:
            return Refusal(f"`{half}` is bound on one path alone")
        seen = sees_names(self.function.node)
        if seen:
            return Refusal(f"`{seen}` sees the names that would go")
        alone = all(source.indent_of(s) is not None for s in self.run)
        if not alone or source.has_long_string(start, end) or self._tail().strip():
            return Refusal("the statements share their lines with others")
        name, parameters = self._name(given), self._parameters()
        helper, call = self._helper(name, parameters, found[0]), self._call(name, parameters)
        edits = replace_statements(source, self.run, call, moved=helper.text), helper
        why = self._doubt()
        safety = Safety.UNSAFE if why else Safety.SAFE
        return context.fix(
            "make it while tracing", *edits, safety=safety, why=why, imports=found[1]
        )

    def _tail(self) -> str:
        source, last = self.context.source, self.run[-1]
        tail = source.line(last.end_lineno)[
            source.column(last.end_lineno, last.end_col_offset) - 1 :
        ]
        return "" if tail.strip().startswith("#") else tail

    def _doubt(self) -> str:
        if self.scan.attributes:
            return f"compiled code does not notice a change of `self.{min(self.scan.attributes)}`"
        if self.scan.doubts:
            return f"`{min(self.scan.doubts)}` is not known to be a tensor"
        if self.scan.numpy:
            return "NumPy may have been traced for every size; now each size compiles anew"
        many = sum(k.is_tensor for _, k in self.outputs) > 1
        return "results that shared memory no longer do" if many else ""

    def _name(self, given: set[str]) -> str:
        wish = (
            "_".join(["constant", *(name for name, _ in self.outputs[:1])])
            if self.outputs
            else "constant"
        )
        wish = wish if self.outputs else f"constant_{self.function.name}"
        taken = {f.name for f in self.context.program.functions} | set(self.context.names.aliases)
        taken |= self.context.names.bound | self.context.local_names(self.run[0]) | given
        numbered = [wish, *(f"{wish}_{i}" for i in range(1, 1000))]
        name = next(n for n in numbered if n not in taken)
        given.add(name)
        return name

    def _parameters(self) -> dict[str, str]:
        """{source of an input: the parameter's name}."""
        found = {}
        for text in self.inputs:
            wish = "".join(c if c.isalnum() else "_" for c in text).strip("_")
            wishes = [w for w in (wish, f"{wish}_given") if w not in found.values()]
            fresh = text if text.isidentifier() else self.context.fresh_name(self.run[0], *wishes)
            found[text] = fresh
        return found

    def _arguments(self, parameters: dict[str, str]) -> str:
        forms = {"shape": "tuple(range(n).stop for n in {})", "int": "range({}).stop"}
        return ", ".join(forms[self.inputs[text]].format(text) for text in parameters)

    def _call(self, name: str, parameters: dict[str, str]) -> str:
        own = f"{self.function.self_name}." if self.scan.attributes else ""
        call = f"{own}{name}({self._arguments(parameters)})"
        if not self.outputs:
            return f"return {call}.clone()"
        names = ", ".join(n for n, _ in self.outputs)
        if len(self.outputs) == 1:
            return f"{names} = {call}.clone()"
        newline = self.context.source.newline + self.context.source.indent_of(self.run[0])
        tensors = [n for n, k in self.outputs if k.is_tensor]
        return (
            f"{names} = {call}{newline}{', '.join(tensors)} ="
            f" {', '.join(f'{n}.clone()' for n in tensors)}"
        )

    def _helper(self, name: str, parameters: dict[str, str], torch: str) -> Edit:
        """The edit that adds the function: beside the method, or before what holds it at the file's
        top level."""
        source, method = self.context.source, bool(self.scan.attributes)
        place = self.function.node if method else self._top()
        unit = source.indent_unit()
        own = [self.function.self_name] if method else []
        lines = [
            f"@{torch}.compiler.assume_constant_result",
            f"def {name}({', '.join([*own, *parameters.values()])}):",
            *(
                f"{unit}{p} = {torch}.Size({p})"
                for t, p in parameters.items()
                if self.inputs[t] == "shape"
            ),
            *(unit + text if text else "" for text in self._body(parameters)),
            *([f"{unit}return {', '.join(n for n, _ in self.outputs)}"] if self.outputs else []),
        ]
        return insert_before(source, place, "\n".join([*lines, *([""] * (1 if method else 2))]))

    def _top(self) -> ast.stmt:
        body = self.context.source.tree.body
        return next(
            s for s in body if s.lineno <= self.function.node.lineno <= s.end_lineno and _holds(s)
        )

    def _body(self, parameters: dict[str, str]) -> list[str]:
        """The lines of the statements, with the parameters in the place of what they stand for."""
        source, indent = self.context.source, self.context.source.indent_of(self.run[0])
        start, end = source.span(self.run[0])[0], source.span(self.run[-1])[1]
        spans = {source.span(node): parameters[text] for node, text in self.uses}
        edits = [Edit(a - start, b - start, name) for (a, b), name in spans.items()]
        lines = apply(source.text[start:end], edits).splitlines()
        return [lines[0], *(text.removeprefix(indent) for text in lines[1:])]


def _holds(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.FunctionDef, ast.ClassDef))


def _known(kind: Kind) -> bool:
    number = kind.what in _NUMBERS and not kind.host and kind.cls != "shape"
    return number or (kind.is_tensor and not kind.optional)
