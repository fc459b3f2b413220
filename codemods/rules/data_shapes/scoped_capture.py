"""DYN506: numbers and shapes that are read from tensors, captured below one root alone."""

import ast
import os

from ....rewriter.edits.import_places import after_imports
from ....rewriter.edits.spans import Edit, Safety
from ...trace.reads_left import Text, stands
from ..base import Rule

_NAME = "captures_reads"
_HELPER = '''
def {name}(forward):
    """`forward`, below which torch.compile captures numbers and shapes that are read from tensors."""

    @functools.wraps(forward)
    def run(*args, **kwargs):
        dynamo = None if {torch}.compiler.is_compiling() else {torch}.__dict__.get("_dynamo")
        if dynamo is None:
            return forward(*args, **kwargs)
        with dynamo.config.patch(
            capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True, suppress_errors=True
        ):
            return forward(*args, **kwargs)

    # `run` itself is plain Python to Dynamo, which goes on with what it calls
    frames = {torch}._C._dynamo.eval_frame
    frames.set_code_exec_strategy(
        run.__code__, frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
    )
    return run'''
_WHY = (
    "two options of torch._dynamo are on while this forward is compiled; sizes that depend on data"
    " stay symbols, and where Dynamo cannot go on with one, the whole forward runs in eager"
)


class ScopedCapture(Rule):
    """
    Where what is read from tensors depends on activations (how many tokens go to an expert, how
    many frames are predicted), no other form keeps it in the graph. Dynamo can capture it as a
    symbol, by two options that hold for the whole process. The helper sets them while one forward
    is compiled, and puts them back: other code is compiled as before, eager code runs as before,
    and inside another compiled module the forward is inlined as it was. With `--trace` alone, on
    the outermost modules of the run, where after all other fixes something that was read there
    still stands. Unsafe, for the options change what is compiled below the forward; it uses torch's
    internals.
    """

    code = "DYN506"
    safety = Safety.UNSAFE
    shown = (("Model.forward", "Model.forward", "x[x > x.mean()]"),)
    before = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.sort(x[x > x.mean()]).values
"""
    after = f"""
import functools
import torch
from torch import nn

{_HELPER.format(name=_NAME, torch="torch")}


class Model(nn.Module):
    @{_NAME}
    def forward(self, x):
        return torch.sort(x[x > x.mean()]).values
"""

    def check(self, node, context):
        return ()

    def conclude(self, context):
        roots = context.facts.roots if context.facts else {}
        for function in context.program.functions:
            ways = roots.get(function.qualified, ())
            if ways and not _captures(function.node) and _reads(ways, context):
                yield self._told(function, context)

    def _told(self, function, context):
        built = self._fix(function.node, context)
        fix, kept = (None, built) if isinstance(built, str) else (built, "")
        return context.finding(self, function.node, fix=fix, kept=kept)

    def _fix(self, node, context):
        """The Fix: the helper, where the file has none yet, and the outermost decorator."""
        source, found = context.source, context.torch(node)
        if found is None or found[1] or "functools" in context.names.bound:
            return (
                "`torch` or `functools` is hidden by another name, or torch is not imported by its"
                " name"
            )
        edits = [self._decorator(node, source)]
        if _NAME not in context.program.top:
            helper = _HELPER.format(name=_NAME, torch=found[0]).replace("\n", source.newline)
            edits.append(after_imports(source, helper, found[0]))
        if None in edits:
            return "the imports, or the function's own line, leave no place for it"
        title = "capture what is read, below it alone"
        imports = () if context.names.top.get("functools") == "functools" else ("functools",)
        return context.fix(title, *edits, safety=Safety.UNSAFE, why=_WHY, imports=imports)

    def _decorator(self, node, source):
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        indent = source.indent_of(node)
        start = source.starts[first - 1]
        return None if indent is None else Edit(start, start, f"{indent}@{_NAME}{source.newline}")


def _reads(ways, context):
    """Whether a number or a shape is still read below a root: in this file, or, as the run of all
    files found, elsewhere (an empty way)."""
    own = os.path.realpath(context.source.path)
    text = Text(context.source.tree, context.names)
    here = [way for way in ways if way and way[-1][0] == own and not _is_truth(way[-1], context)]
    return [] in ways or any(stands(way, {own: text}) for way in here)


def _is_truth(read, context):
    """Whether what was read is a bool, which can only decide a branch: a symbol is no help
    there."""
    fact = context.facts.table.get((read[1], read[2]))
    return fact is not None and fact.what == "bool"


def _captures(node):
    """Whether the helper is on it already."""
    return any(isinstance(d, ast.Name) and d.id == _NAME for d in node.decorator_list)
