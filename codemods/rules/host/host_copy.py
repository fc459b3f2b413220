"""DYN104: a tensor that becomes a NumPy array in captured code."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.kinds import NDARRAY
from ....rewriter.analysis.torch_facts import NUMPY_ELEMENTWISE
from ....rewriter.analysis.tree_walk import only_value
from ....rewriter.source.spans import Refusal, Safety
from ...analysis.numpy_flow import LIBRARIES
from ..base import Rule
from ..libraries.custom_op import CustomOp
from .host_read import is_logged

if TYPE_CHECKING:
    from ....rewriter.source.spans import Fix
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_TORCH = {"power": "pow"} | {n: n for n in NUMPY_ELEMENTWISE if n not in ("power", "cbrt")}
_READS = ("tolist", "item", "tobytes")
_NUMBERS = ("float", "int", "bool")
_WAY = ("numpy", "cpu", "detach")
_ABOUT = ("finfo", "iinfo", "dtype", "shape", "ndim", "size", "result_type")
_ARRAYS = ("numpy.asarray", "numpy.array", "numpy.ascontiguousarray")
# Public functions of NumPy on arrays that torch._numpy, by which Dynamo traces NumPy, does not have
# (torch 2.13).
_UNTRACED = frozenset(
    """
    apply_along_axis apply_over_axes argpartition array2string array_repr array_str asanyarray
    asmatrix bitwise_count block
    compress cumulative_prod cumulative_sum delete digitize ediff1d extract frexp
    histogram_bin_edges in1d insert interp
    intersect1d isin ix_ lexsort nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian
    nanmin nanpercentile nanprod
    nanquantile nanstd nansum nanvar packbits partition piecewise place poly polyadd polyder polydiv
    polyfit polyint polymul
    polysub polyval putmask ravel_multi_index roots select setdiff1d setxor1d spacing trapezoid
    trapz trim_zeros union1d
    unique_all unique_counts unique_inverse unique_values unpackbits unravel_index unwrap vecdot
    """.split()
)
_SHAPED_BY_DATA = frozenset(["unique", "nonzero", "flatnonzero", "argwhere"])
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_READ = "an array made of a tensor is read as a Python value"
_COPY = "a tensor is copied to the host, and NumPy goes on there"
_READ_WHY = (
    "NumPy has no bfloat16, and no arrays of tensors that require a gradient, for which the"
    " original raises"
)
_TORCH_WHY = (
    "torch computes in the tensor's precision, NumPy of ints and of mixed dtypes in double; a"
    " device rounds in its own way"
)


class HostCopy(Rule):
    """
    Dynamo traces NumPy as torch operators, and `.numpy()` by itself breaks nothing. But
    `t.cpu().numpy()` keeps the copy: what follows runs on the host, in the middle of the graph,
    which waits for it, and CUDA graphs are cut there (a sine of a million floats by way of the host
    took 1.2 ms on an H200, in torch 0.03 ms). An array that is read (`.tolist()`, `.item()`,
    `float(...)`) breaks as the tensor's own value does, and so do functions that torch's NumPy does
    not have (`np.interp`). A read goes to the tensor itself; elementwise NumPy that goes back to
    the tensor's device becomes torch. Both are unsafe.
    """

    code = "DYN104"
    safety = Safety.UNSAFE
    nodes = (ast.Module,)
    whole_file = True
    before = """
import numpy as np
import torch


@torch.compile
def step(x: torch.Tensor):
    wave = torch.from_numpy(np.sin(x.detach().cpu().numpy() * 2)).to(x.device)
    return torch.relu(x) + wave
"""
    after = """
import numpy as np
import torch


@torch.compile
def step(x: torch.Tensor):
    wave = torch.sin(x.detach() * 2).to(x.device)
    return torch.relu(x) + wave
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if "numpy" not in context.source.text:
            return
        found = [
            (p, f)
            for p in context.alive
            if isinstance(p, (ast.Call, ast.If)) and not is_logged(p, context)
            for f in self._finding(p, context)
        ]
        operators = _operators(node, context) if found else ()
        yield from (
            finding for part, finding in found if context.function(part).name not in operators
        )

    def _finding(self, node: ast.AST, context: FileContext) -> Iterator[Any]:
        return (
            self._branch(node, context) if isinstance(node, ast.If) else self._call(node, context)
        )

    def _branch(self, node: ast.If, context: FileContext) -> Iterator[Finding]:
        if _array(node.test, context) or _asks_array(node.test, context):
            yield context.finding(self, node.test, _READ)

    def _call(self, call: Any, context: FileContext) -> Iterator[Finding]:
        read, missing = _read(call, context), _untraced(call, context)
        if read is not None:
            yield context.finding(self, call, _READ, fix=_direct(call, read, context))
        elif missing:
            yield context.finding(
                self, call, f"NumPy's `{missing}` cannot be traced: the graph breaks"
            )
        elif shaped := _shaped_by_data(call, context):
            yield context.finding(
                self, call, f"the shape of NumPy's `{shaped}` depends on data: the graph breaks"
            )
        elif _copied(call, context) and not _reported_elsewhere(call, context):
            built = _in_torch(call, context)
            yield context.finding(self, call, fix=built)


def _operators(tree: ast.Module, context: FileContext) -> set[str]:
    """The functions that DYN606 speaks of."""
    places = {(f.line, f.column) for f in CustomOp().check(tree, context)}
    calls = [c for c in context.program.calls if isinstance(c.func, ast.Name)] if places else []
    return {
        c.func.id
        for c in calls
        if (c.lineno, context.source.column(c.lineno, c.col_offset)) in places
    }


# What an expression is


def _shaped_by_data(call: ast.Call, context: FileContext) -> str:
    """The function of NumPy that is called, where the size of its result depends on values."""
    full = context.resolve(call.func) or ""
    name = full.removeprefix("numpy.")
    alone = name == "where" and len(call.args) == 1
    return name if full != name and (alone or name in _SHAPED_BY_DATA) else ""


def _array(node: ast.expr, context: FileContext, depth: int = 0) -> bool:
    """Whether an expression surely is an array, or a NumPy scalar, made of a tensor."""
    if isinstance(node, ast.Name):
        value = only_value(node, context) if depth < 5 else None
        return value is not None and _array(value, context, depth + 1)
    if isinstance(node, (ast.Subscript, ast.UnaryOp)):
        return _array(
            node.value if isinstance(node, ast.Subscript) else node.operand, context, depth
        )
    if isinstance(node, (ast.BinOp, ast.Compare)):
        sides = (
            [node.left, node.right]
            if isinstance(node, ast.BinOp)
            else [node.left, *node.comparators]
        )
        return any(_array(s, context, depth) for s in sides)
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and _array(node.func.value, context, depth):
        return node.func.attr not in _READS
    if _is_numpy(node, context):
        return True
    name = context.resolve(node.func) or ""
    made = name.startswith("numpy.") and name.rpartition(".")[2] not in _ABOUT
    return made and any(context.kind(a).is_tensor or _array(a, context, depth) for a in node.args)


def _asks_array(test: ast.expr, context: FileContext) -> bool:
    """Whether a test compares elements of an array, which Dynamo traces as a tensor."""
    if isinstance(test, ast.BoolOp):
        return any(_asks_array(value, context) for value in test.values)
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], _COMPARISONS):
        return False
    sides = (test.left, *test.comparators)
    return any(context.kind(s).what == NDARRAY and not isinstance(s, ast.Call) for s in sides)


def _is_numpy(node: ast.expr, context: FileContext) -> bool:
    """`t.numpy()` of a tensor."""
    method = (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "numpy"
    )
    return method and not node.args and context.kind(node.func.value).is_tensor


def _read(call: ast.Call, context: FileContext) -> ast.expr | None:
    """What a call reads as a Python value, where that is an array."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in _READS and not call.args:
        return call.func.value if _array(call.func.value, context) else None
    named = (
        isinstance(call.func, ast.Name)
        and context.resolve(call.func) in _NUMBERS
        and len(call.args) == 1
    )
    return call.args[0] if named and not call.keywords and _array(call.args[0], context) else None


def _untraced(call: ast.Call, context: FileContext) -> str:
    """The name of a NumPy function on such arrays that Dynamo cannot trace; "" for anything
    else."""
    name = context.resolve(call.func) or ""
    if not name.startswith("numpy.") or name[6:] not in _UNTRACED:
        return ""
    parts = [
        n for a in call.args for n in (a.elts if isinstance(a, (ast.List, ast.Tuple)) else [a])
    ]
    return name[6:] if any(context.kind(p).is_tensor or _array(p, context) for p in parts) else ""


def _behind(node: ast.expr, context: FileContext) -> tuple[ast.expr, list[str]]:
    """(the tensor behind `t.detach().cpu().numpy()`, the methods on the way)."""
    names = []
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.keywords:
        to_host = node.func.attr == "to" and [getattr(a, "value", None) for a in node.args] == [
            "cpu"
        ]
        if not to_host and (node.func.attr not in _WAY or node.args):
            break
        names.append("cpu" if to_host else node.func.attr)
        node = node.func.value
    return node, names


def _copied(call: ast.Call, context: FileContext) -> bool:
    """Whether a call makes an array of a tensor's copy on the host."""
    made = _is_numpy(call, context)
    if not made and (context.resolve(call.func) not in _ARRAYS or not call.args):
        return False
    inner = call.func.value if made else call.args[0]
    names = _behind(inner, context)[1]
    if isinstance(inner, ast.Name):
        value = only_value(inner, context)
        names = _behind(value, context)[1] if value is not None else []
    return "cpu" in names and context.kind(inner).is_tensor


def _reported_elsewhere(call: ast.Call, context: FileContext) -> bool:
    """Whether the array goes at once to what has a finding of its own, or is asked for its shape or
    dtype alone."""
    parent = context.parent(call)
    if isinstance(parent, ast.Attribute) and parent.attr in ("dtype", "shape", "ndim"):
        return True
    while isinstance(parent, ast.expr):
        if isinstance(parent, ast.Call):
            library = (context.resolve(parent.func) or "").split(".")[0] in LIBRARIES
            if library or _read(parent, context) is not None or _untraced(parent, context):
                return True
        parent = context.parent(parent)
    return False


# The fixes


def _source(node: ast.expr, context: FileContext) -> str:
    text = context.segment(node)
    return (
        text
        if isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
        else f"({text})"
    )


def _direct(call: ast.Call, read: ast.expr, context: FileContext) -> Fix | None:
    """The Fix that reads the tensor itself."""
    tensor, names = _behind(read, context)
    bytes_ = isinstance(call.func, ast.Attribute) and call.func.attr == "tobytes"
    if bytes_ or "numpy" not in names or not context.kind(tensor).is_tensor:
        return None
    edit = context.replacement(read, _source(tensor, context))
    return context.fix("read the tensor itself", edit, safety=Safety.UNSAFE, why=_READ_WHY)


def _in_torch(call: ast.Call, context: FileContext) -> Any:
    """The Fix that computes with torch what goes from the device to NumPy and back; or why there is
    none."""
    inner = call
    while isinstance(context.parent(inner), (ast.BinOp, ast.UnaryOp)) or _elementwise(
        context.parent(inner), context
    ):
        inner = context.parent(inner)
    outer, found = context.parent(inner), context.torch(call)
    back = (
        isinstance(outer, ast.Call)
        and context.resolve(outer.func) == "torch.from_numpy"
        and outer.args == [inner]
    )
    device = _back_on(outer, context) if back and not outer.keywords and inner is not call else None
    if device is None or found is None:
        return Refusal(
            "what NumPy computes does not go back to the device at once, through torch.from_numpy"
        )
    texts: dict[ast.expr, str] = {}
    if not _rewritten(inner, device, found[0], texts, context):
        return Refusal("it is more than elementwise functions of tensors on one device")
    edit = context.replacement(outer, context.source.substituted(inner, texts))
    return context.fix(
        "compute with torch", edit, safety=Safety.UNSAFE, why=_TORCH_WHY, imports=found[1]
    )


def _elementwise(node: ast.AST, context: FileContext) -> bool:
    name = context.resolve(node.func) or "" if isinstance(node, ast.Call) else ""
    return name.startswith("numpy.") and name[6:] in _TORCH and not node.keywords


def _back_on(outer: ast.Call, context: FileContext) -> int | None:
    """The token of the device of `t`, where `outer` stands in `outer.to(t.device)`."""
    method = context.parent(outer)
    call = (
        context.parent(method)
        if isinstance(method, ast.Attribute) and method.attr == "to"
        else None
    )
    given = [*call.args, *(k.value for k in call.keywords)] if isinstance(call, ast.Call) else []
    like = given[0].value if len(given) == 1 and getattr(given[0], "attr", "") == "device" else None
    kind = context.kind(like) if like is not None else None
    return kind.device if kind is not None and kind.is_tensor else None


def _rewritten(
    node: ast.expr, device: int, torch: str, texts: dict[ast.expr, str], context: FileContext
) -> bool:
    """Whether all of an expression has a torch form; `texts`: what comes in the place of parts."""
    if _is_numpy(node, context):
        tensor, _ = _behind(node, context)
        texts[node] = f"{_source(tensor, context)}.detach()"
        return context.kind(tensor).is_tensor and context.kind(tensor).device == device
    if _elementwise(node, context):
        texts[node.func] = f"{torch}.{_TORCH[context.resolve(node.func)[6:]]}"
        arrays = bool(node.args) and all(_array(a, context) for a in node.args)
        return arrays and all(_rewritten(a, device, torch, texts, context) for a in node.args)
    if isinstance(node, (ast.BinOp, ast.UnaryOp)):
        sides = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
        known = isinstance(node, ast.UnaryOp) or isinstance(
            node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
        )
        return known and all(_rewritten(s, device, torch, texts, context) for s in sides)
    kind = context.kind(node)
    return kind.is_number and not kind.host
