"""DYN606: a function that works on a tensor outside torch becomes an operator of its own."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.kinds import ANY, constant
from ....rewriter.source.intents import insert_after, insert_before
from ....rewriter.source.signatures import annotate_parameter, annotate_result
from ....rewriter.source.spans import Edit, Safety
from ...analysis.numpy_flow import IN_TORCH, LIBRARIES, InTorch, NumpyFlow, Unfollowed
from ..base import Rule

if TYPE_CHECKING:
    from ...analysis.definitions import Function
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding
    from ...analysis.numpy_flow import Array


_TYPES = {"int": "int", "size": "int", "float": "float", "bool": "bool", "str": "str"}
_SIMPLE = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
_WHY = (
    "the operator takes values of the annotated types alone, and has no gradient (nor has a"
    " detached array): callers in other files must detach what they give it"
)


class CustomOp(Rule):
    """
    Dynamo traces NumPy, but not SciPy, PIL, OpenCV or pandas, nor all of NumPy. A function that
    hands a tensor to them and gives a tensor back can be made an operator:
    `torch.library.custom_op` runs it as it is, and the function registered by `register_fake` tells
    what it returns. That is written where the text says of which parameter the result has the shape
    and dtype. Calls in the file hand on detached tensors, so that the result carries no gradient,
    as before.
    """

    code = "DYN606"
    safety = Safety.UNSAFE
    nodes = (ast.Module,)
    whole_file = True
    before = """
import torch
from scipy.ndimage import gaussian_filter


def smooth(x, sigma):
    return torch.from_numpy(gaussian_filter(x.detach().numpy(), sigma))


@torch.compile
def step(x: torch.Tensor):
    return x - smooth(x, 2.0)
"""
    after = """
import torch
from scipy.ndimage import gaussian_filter


@torch.library.custom_op("model::smooth", mutates_args=())
def smooth(x: torch.Tensor, sigma: float) -> torch.Tensor:
    return torch.from_numpy(gaussian_filter(x.detach().numpy(), sigma))


@smooth.register_fake
def _(x, sigma):
    return x.new_empty(x.shape)


@torch.compile
def step(x: torch.Tensor):
    return x - smooth(x.detach(), 2.0)
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        roots = {full.split(".")[0] for full in context.names.aliases.values()}
        if not roots & {"numpy", *LIBRARIES}:
            return
        captured = list(context.functions.values())
        named = _named_calls(context)
        for function in captured:
            own = (
                function.cls is None and function.outer is None and not function.node.decorator_list
            )
            calls = (
                _calls(function, named, context)
                if own and isinstance(function.node, ast.FunctionDef)
                else []
            )
            if calls:
                yield from self._function(function, calls, context)

    def _function(
        self, function: Function, calls: list[ast.Call], context: FileContext
    ) -> Iterator[Finding]:
        operator = _Operator(function, calls, context)
        if not operator.tensors or not context.kind(calls[0]).is_tensor or not operator.leaves():
            return
        try:
            edits, imports, note = operator.edits()
        except Unfollowed as unknown:
            help = "call torch's own" if isinstance(unknown, InTorch) else operator.advice()
            yield context.finding(self, calls[0], kept=str(unknown), help=help)
            return
        fix = context.fix(
            "make it an operator", *edits, safety=Safety.UNSAFE, why=_WHY + note, imports=imports
        )
        yield context.finding(self, calls[0], fix=fix)


def _named_calls(context: FileContext) -> dict[str, list[ast.Call]]:
    """The calls of names in captured code."""
    found = {}
    for call in context.program.calls:
        if isinstance(call.func, ast.Name) and context.function(call):
            found.setdefault(call.func.id, []).append(call)
    return found


def _calls(
    function: Function, named: dict[str, list[ast.Call]], context: FileContext
) -> list[ast.Call]:
    """The calls of a function in captured code, but for its own."""
    calls = named.get(function.name, ())
    found = [call for call in calls if context.function(call) is not function]
    return sorted(found, key=lambda n: (n.lineno, n.col_offset))


class _Operator:
    """What is written for one function."""

    def __init__(self, function: Function, calls: list[ast.Call], context: FileContext) -> None:
        self.function, self.node, self.calls, self.context = function, function.node, calls, context
        args = self.node.args
        self.positional = [*args.posonlyargs, *args.args]  # positional-only ones are refused later
        self.args = [*self.positional, *args.kwonlyargs]
        first = len(self.positional) - len(args.defaults)
        self.defaults = {
            a.arg: d for a, d in zip(self.positional[first:], args.defaults, strict=True)
        }
        self.defaults |= {
            a.arg: d
            for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)
            if d is not None
        }
        self.given = {
            a.arg: [v for c in calls for v in [self._argument(c, a.arg)] if v is not None]
            for a in self.args
        }
        self.tensors = [a.arg for a in self.args if self._type(a) == "torch.Tensor"]

    def _argument(self, call: Any, name: str) -> ast.expr | None:
        """What a call gives for a parameter; None where it gives nothing by name or place."""
        names = [a.arg for a in self.positional]
        if name in names and names.index(name) < len(call.args):
            return call.args[names.index(name)]
        return next((k.value for k in call.keywords if k.arg == name), None)

    def _type(self, arg: ast.arg) -> str | None:
        """The type of a parameter, as `custom_op` reads it; None where it is not known to be one
        that it can read."""
        if arg.annotation is not None:
            name = self.context.names.resolve(arg.annotation)
            return name if name in ("torch.Tensor", "int", "float", "bool", "str") else None
        values = [self.context.kind(v) for v in self.given[arg.arg]]
        default = self.defaults.get(arg.arg)
        if default is not None:
            values.append(constant(default.value) if isinstance(default, ast.Constant) else ANY)
        if values and all(v.is_tensor and not v.optional for v in values):
            return "torch.Tensor"
        types = {_TYPES.get(v.what) for v in values}
        types = {"float"} if types == {"int", "float"} else types
        return types.pop() if len(types) == 1 else None

    def leaves(self) -> bool:
        """Whether a library's function is called in it."""
        calls = (n for n in ast.walk(self.node) if isinstance(n, ast.Call))
        names = [self.context.resolve(c.func) or "" for c in calls]
        numpy = any(n.startswith("numpy.") for n in names)
        return any(n.split(".")[0] in LIBRARIES for n in names) or (numpy and self._overlaps())

    def _overlaps(self) -> bool:
        try:
            return bool(self._flow()[0].met)
        except Unfollowed:
            return False

    def _flow(self) -> Any:
        numbers = [a.arg for a in self.args if a.arg not in self.tensors]
        flow = NumpyFlow(self.context, self.function, self.tensors, numbers)
        return flow, flow.result()

    def edits(self) -> tuple[list[Edit], tuple[Any, ...], str] | None:
        """(edits, imports, what else makes it unsafe); Unfollowed with the reason why there are
        none."""
        args = self.node.args
        found = self.context.torch(self.node)
        untyped = [a.arg for a in self.args if self._type(a) is None]
        if args.vararg or args.kwarg or args.posonlyargs or untyped or found is None:
            raise Unfollowed(
                f"the type of `{untyped[0]}` is not known"
                if untyped
                else "its parameters cannot be those of an operator"
            )
        self._only_called()
        flow, result = self._flow()
        known = next((n for n in flow.met if n in IN_TORCH), None)
        if known:
            raise InTorch(
                f"`{known.rpartition('.')[2]}` is a function of torch.special or"
                " torch.nn.functional"
            )
        if (
            result is None
            or result.host
            or not result.shape
            or not result.dtype
            or not result.device
            or not result.fresh
        ):
            raise Unfollowed("the shape, dtype or memory of its result is not known from the text")
        torch = found[0]
        edits = [
            *self._head(torch),
            *self._annotations(torch),
            *self._result(torch, result),
            *self._detached(),
        ]
        floats = (
            f"; `{'`, `'.join(sorted(flow.floating))}` is taken to be float32 or float64"
            if flow.floating
            else ""
        )
        return edits, found[1], floats

    def _only_called(self) -> None:
        """Unfollowed where the function's name is used otherwise than in calls."""
        called = {id(c.func) for c in self.context.program.calls}
        names = self.context.index.get(ast.Name, [])
        if any(n.id == self.function.name and id(n) not in called for n in names):
            raise Unfollowed("it is not only called")

    @property
    def _operator_name(self) -> str:
        folder, name = os.path.split(self.context.source.path)
        stem = os.path.splitext(name)[0]
        stem = os.path.basename(folder) if stem == "__init__" else stem
        space = re.sub(r"\W", "_", stem).strip("_") or "project"
        return f"{space if not space[0].isdigit() else '_' + space}::{self.function.name}"

    def _head(self, torch: str) -> Iterator[Edit]:
        decorator = f'@{torch}.library.custom_op("{self._operator_name}", mutates_args=())'
        yield insert_before(self.context.source, self.node, decorator)

    def _annotations(self, torch: str) -> Iterator[Any]:
        source = self.context.source
        for arg in self.args:
            if arg.annotation is None:
                text = self._type(arg).replace("torch.", f"{torch}.")
                yield annotate_parameter(source, arg, arg.arg in self.defaults, text)
        if self.node.returns is None:
            yield annotate_result(source, self.node, f"{torch}.Tensor")

    def _result(self, torch: str, result: Array) -> Iterator[Edit]:
        """The fake function below; the returned value made contiguous where that is not sure."""
        source, last = self.context.source, self.node.body[-1]
        if not result.c_order:
            yield self.context.replacement(
                last.value, f"{self.context.atom(last.value)}.contiguous()"
            )
        indent = source.indent_unit()
        like = result.shape
        parts = [f"{like}.shape", *self._dtype(result, torch)]
        if result.device != like:
            parts.append(
                'device="cpu"' if result.device == "cpu" else f"device={result.device}.device"
            )
        name = "_" if "_" not in self.context.names.aliases else f"_{self.function.name}_fake"
        head = f"def {name}({', '.join(self._parameters())}):"
        made = f"{indent}return {like}.new_empty({', '.join(parts)})"
        lines = ["", "", f"@{self.function.name}.register_fake", head, made]
        yield insert_after(source, self.node, "\n".join(lines))

    def _parameters(self) -> Iterator[str]:
        """The parameters, with their defaults, as the fake function has them."""
        args = self.node.args
        for arg in self.args:
            if args.kwonlyargs and arg is args.kwonlyargs[0]:
                yield "*"
            default = self.defaults.get(arg.arg)
            yield arg.arg if default is None else f"{arg.arg}={self.context.shown(default)}"

    def _dtype(self, result: Array, torch: str) -> Iterator[str]:
        how, what = result.dtype
        if how == "is":
            yield f"dtype={torch}.{what}"
        elif what != result.shape:
            yield f"dtype={what}.dtype"

    def _detached(self) -> Iterator[Edit]:
        """Every call in the file gives detached tensors."""
        calls = (
            c
            for c in self.context.program.calls
            if isinstance(c.func, ast.Name) and c.func.id == self.function.name
        )
        for call in calls:
            values = (self._argument(call, name) for name in self.tensors)
            for value in (v for v in values if v is not None and not _is_detached(v)):
                yield self.context.replacement(value, f"{self.context.atom(value)}.detach()")

    def advice(self) -> str:
        name = self.function.name
        return (
            f'write `@torch.library.custom_op("{self._operator_name}", mutates_args=())` above it,'
            f" annotate its parameters and result, and below it `@{name}.register_fake` with a"
            f" function of the same parameters that returns `{self.tensors[0]}.new_empty(<shape of"
            " the result>)`"
        )


def _is_detached(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "detach"
    )
