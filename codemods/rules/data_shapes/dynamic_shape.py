"""DYN501, DYN503: shapes that depend on data."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.kinds import UNKNOWN, literal
from ....rewriter.source.spans import Refusal, Safety
from ..base import Rule
from ..effects.logging_slice import only_logged
from .masked_sums import masked_sum

if TYPE_CHECKING:
    from ....rewriter.analysis.kinds import Kind
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_ALWAYS = frozenset(["nonzero", "masked_select", "unique", "unique_consecutive", "argwhere"])
_COUNTS = (
    "a value of `minlength` or more (any value, where that is 0) raises, where bincount gives more"
    " counts; bools, floats and a tensor of no axis are counted, where bincount raises"
)


class DynamicShape(Rule):
    """
    The size of the result is known only when the operator has run, so the graph breaks there:
    `nonzero`, `unique`, `masked_select`, one-argument `where`, an index with a bool tensor. Work on
    the full tensor with `torch.where` or a mask, or pad to a fixed size. Of a whole `sum` or `mean`
    over what a mask chooses, zeros for the others make a fixed shape: unsafe, for the additions
    round in another order.
    """

    code = "DYN501"
    safety = Safety.UNSAFE
    nodes = (ast.Call, ast.Subscript)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    return x[x > 0].sum()
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    return torch.where(x > 0, x, 0).sum()
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if isinstance(node, ast.Subscript):
            if isinstance(node.ctx, ast.Load) and _chooses(node, context):
                if _written_under(node, context):
                    return  # DYN504 speaks for the whole statement
                message = "an index with a bool tensor gives a shape that depends on data"
                yield self._finding(node, message, context)
            return
        name = self._name(node, context)
        if name in _ALWAYS or (name == "where" and len(node.args) == 1 and not node.keywords):
            message = f"the shape of `{name}`'s result depends on data"
            yield (
                self._finding(node, message, context)
                if name == "masked_select"
                else context.finding(self, node, message, fix=only_logged(node, context))
            )

    def _finding(self, node: ast.expr, message: str, context: FileContext) -> Finding:
        built = only_logged(node, context) or masked_sum(node, context)
        return context.finding(self, node, message, fix=built)

    def _name(self, node: ast.Call, context: FileContext) -> str:
        """The operator's name, of a function of torch or a method of a tensor."""
        full = context.resolve(node.func) or ""
        if full.startswith("torch.") and full.count(".") == 1:
            return full[6:]
        method = isinstance(node.func, ast.Attribute) and context.kind(node.func.value).is_tensor
        return node.func.attr if method and node.func.attr != "where" else ""


def _chooses(node: ast.Subscript, context: FileContext) -> bool:
    """Whether a bool tensor is among the indices; nothing but a tensor or an array takes one."""
    known = context.kind(node.value)
    if known.is_tensor and is_mask(node.slice, context):
        return True
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    taken = known.is_tensor or known.what == UNKNOWN
    return taken and any(is_mask(part, context, sure=True) for part in parts)


def _written_under(node: ast.Subscript, context: FileContext) -> bool:
    """Whether `node` stands on the right of a write under the same mask."""
    statement = context.statement(node)
    target = (
        statement.targets[0]
        if isinstance(statement, ast.Assign)
        else getattr(statement, "target", None)
    )
    return isinstance(target, ast.Subscript) and ast.dump(target.slice) == ast.dump(node.slice)


def _raises(kind: Kind, context: FileContext) -> bool:
    return context.inference.tokens.category(kind.dtype) in ("bool", "float") or kind.rank not in (
        None,
        1,
    )


def is_mask(index: ast.expr, context: FileContext, sure: bool = False) -> bool:
    """Whether an index is a bool tensor; `sure`: whatever it was made of."""
    kind = context.kind(index)
    tokens = context.inference.tokens
    return kind.is_tensor and (
        kind.dtype == tokens.bool or (kind.dtype == tokens.mask and not sure)
    )


class MissingSize(Rule):
    """
    With a size named, these know their output's shape before they run: `repeat_interleave(...,
    output_size=n)`, `one_hot(..., num_classes=n)`. The number must be a Python int that is known
    without reading the tensor. `bincount(n, minlength=k)` is not enough, for values may be larger:
    counts of the values below k are a `scatter_add_` into k zeros. Unsafe, for it raises where a
    value is larger, and where bincount raises (bools, floats, a tensor of no axis) it counts.
    """

    code = "DYN503"
    safety = Safety.UNSAFE
    nodes = (ast.Call,)
    before = """
import torch


@torch.compile
def step(n: torch.Tensor):
    return torch.bincount(n, minlength=10)
"""
    after = """
import torch


@torch.compile
def step(n: torch.Tensor):
    return torch.zeros(10, dtype=torch.int64, device=n.device).scatter_add_(0, n.long(), torch.ones_like(n, dtype=torch.int64))
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        full = context.resolve(node.func) or ""
        method = isinstance(node.func, ast.Attribute) and context.kind(node.func.value).is_tensor
        name = (
            node.func.attr
            if method
            else full.rpartition(".")[2]
            if full.startswith("torch.")
            else ""
        )
        named = {k.arg for k in node.keywords}
        if (
            name == "repeat_interleave"
            and "output_size" not in named
            and self._by_tensor(node, method, context)
        ):
            yield context.finding(
                self,
                node,
                "repeat_interleave without output_size: the result's shape depends on data",
            )
        elif name == "one_hot" and "num_classes" not in named and len(node.args) < 2:
            yield context.finding(
                self, node, "one_hot without num_classes: the result's shape depends on data"
            )
        elif name == "bincount" and (
            method or (node.args and context.kind(node.args[0]).is_tensor)
        ):
            built = self._counted(node, method, context)
            yield context.finding(
                self, node, "the shape of `bincount`'s result depends on data", fix=built
            )

    def _counted(self, node: ast.Call, method: bool, context: FileContext) -> Any:
        """The Fix that counts into as many zeros as `minlength` says, or the Refusal."""
        found, counted = context.torch(node), node.func.value if method else node.args[0]
        given = {k.arg: k.value for k in node.keywords}
        size = given.get("minlength")
        sized = (
            size is not None
            and context.kind(size).what in ("int", "size")
            and not context.kind(size).host
        )
        if found is None or not sized or len(given) != 1 or len(node.args) != (0 if method else 1):
            return Refusal(
                "only a bincount without weights, of a `minlength` that is a Python int, has as"
                " many counts"
            )
        if _raises(context.kind(counted), context):
            return Refusal("bincount takes whole numbers along one axis alone")
        if literal(size) == 0:
            return Refusal("a `minlength` of 0 leaves no counts to count into")
        if not isinstance(counted, ast.Name):
            return Refusal("what is counted would be computed more than once")
        name, torch = counted.id, found[0]
        zeros = f"{torch}.zeros({context.segment(size)}, dtype={torch}.int64, device={name}.device)"
        shown = (
            f"{zeros}.scatter_add_(0, {name}.long(), {torch}.ones_like({name},"
            f" dtype={torch}.int64))"
        )
        edit = context.replacement(node, shown)
        return context.fix(
            "count into zeros", edit, safety=Safety.UNSAFE, why=_COUNTS, imports=found[1]
        )

    def _by_tensor(self, node: ast.Call, method: bool, context: FileContext) -> bool:
        """Whether the counts are a tensor."""
        position = 0 if method else 1
        counts = (
            node.args[position]
            if len(node.args) > position
            else next((k.value for k in node.keywords if k.arg == "repeats"), None)
        )
        return counts is not None and context.kind(counts).is_tensor
