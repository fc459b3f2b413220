"""DYN805: a loss of the logits of all tokens, as one that is computed chunk by chunk."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.source.import_places import after_imports
from ....rewriter.source.spans import Edit, Refusal, Safety
from ...analysis.definitions import last_name
from ..base import Rule
from .imported_names import imported, torch_at
from .statement_steps import ExpressionSteps, OtherForm, Unclear

if TYPE_CHECKING:
    from ....rewriter.source.spans import Fix
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding

_NAME = "chunked_cross_entropy"
_FIRST = ["hidden", "layer", "target"]  # of its parameters
_FLAT = frozenset("view reshape flatten".split())
_SAME = frozenset("contiguous float".split())
_OPTIONS = frozenset(("ignore_index", "label_smoothing"))
_FLOATS = frozenset("float double half bfloat16 softmax".split())
_FEW = 8192  # classes, below which the logits are no larger than other activations
_HELPER = '''
def {name}(hidden, layer, target, rows=4096, ignore_index=-100, label_smoothing=0.0):
    """Mean cross entropy of the logits that a linear layer makes: of `rows` tokens at once, made
    again in the backward pass."""

    def loss(part, weight, bias, wanted):
        logits = {torch}.nn.functional.linear(part, weight, bias).float()
        return {torch}.nn.functional.cross_entropy(
            logits,
            wanted,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            reduction="sum",
        )

    hidden, target = hidden.flatten(0, -2), target.flatten()
    total = hidden.new_zeros((), dtype={torch}.float32)
    for part, wanted in zip(hidden.split(rows), target.split(rows)):
        total = total + {torch}.utils.checkpoint.checkpoint(
            loss, part, layer.weight, layer.bias, wanted, use_reentrant=False
        )
    return total / (target != ignore_index).sum()
'''


class FullLogits(Rule):
    """
    A language model's logits are its largest tensor: tokens times vocabulary, in the forward pass,
    in the loss and in the gradient. Where nothing but the loss reads them, the last layer and the
    loss can be computed for some thousand tokens at a time; a function that does it, with
    `torch.utils.checkpoint`, is written into the file, and is traced into one graph. It costs the
    last layer's product once more. `F.linear_cross_entropy` of torch 2.13 saves the same memory,
    but breaks the graph of torch.compile. Unsafe: the loss is summed in another order, in float32.
    """

    code = "DYN805"
    safety = Safety.UNSAFE
    rounds = True
    nodes = (ast.Call,)
    whole_file = True
    before = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, vocab_size: int, width: int):
        super().__init__()
        self.lm_head = nn.Linear(width, vocab_size, bias=False)

    def forward(self, x, target):
        logits = self.lm_head(x)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), target.view(-1), ignore_index=-1)
"""
    after = (
        """
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

"""
        + _HELPER.format(name=_NAME, torch="torch")
        + """

class Model(nn.Module):
    def __init__(self, vocab_size: int, width: int):
        super().__init__()
        self.lm_head = nn.Linear(width, vocab_size, bias=False)

    def forward(self, x, target):
        return chunked_cross_entropy(x, self.lm_head, target, ignore_index=-1)
"""
    )

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if imported(node.func, context) != "torch.nn.functional.cross_entropy":
            return
        if context.settings.targets_before("2.0"):
            return
        try:
            loss = _Loss(node, context)
        except OtherForm:
            return
        except Unclear as why:
            yield context.finding(self, node, kept=str(why))
            return
        yield context.finding(self, node, fix=_fix(loss, context))


def _fix(loss: _Loss, context: FileContext) -> Fix | Refusal:
    found = torch_at(loss.node, context)
    helper: list[Edit] = []
    written = context.program.top.get(_NAME)
    own = written is not None and [a.arg for a in written.node.args.args][:3] == _FIRST
    if found is not None and written is None:
        text = _HELPER.format(name=_NAME, torch=found[0]).rstrip()
        made = after_imports(context.source, text, found[0])
        if made is None:
            return Refusal("torch is not imported at the top of the file")
        helper = [made]
    if found is None or (not own and context.is_hidden(_NAME, loss.node)):
        return Refusal(f"`{_NAME}` or `torch` stands for something else there")
    edits = [context.replacement(loss.node, loss.text()), *loss.deletions(), *helper]
    why = "the loss is summed in another order, in float32, and hooks of the layer do not run"
    imports = ("torch.utils.checkpoint",) if helper else ()
    title = "compute the loss chunk by chunk"
    return context.fix(title, *edits, safety=Safety.UNSAFE, why=why, imports=imports)


class _Loss(ExpressionSteps):
    """`hidden`: the text of what the last layer is given; `layer`: that of the layer."""

    def __init__(self, node: ast.Call, context: FileContext) -> None:
        super().__init__(node, context)
        self.options = [k for k in node.keywords if k.arg in _OPTIONS]
        self.flat, slices = False, ""
        inner, self.target = self._arguments(node)
        while True:
            inner = self.resolved(inner)
            if isinstance(inner, ast.Subscript):
                slices = self._slice(inner) + slices
                inner = inner.value
                continue
            name = getattr(getattr(inner, "func", None), "attr", "")
            layer = self._layer(inner)
            if layer is not None:
                break
            if not isinstance(inner, ast.Call) or name not in _FLAT | _SAME:
                raise OtherForm
            self.flat = self.flat or name in _FLAT
            inner = inner.func.value
        self._check_size(layer)
        self.hidden = f"{context.atom(inner.args[0])}{slices}" if slices else ""
        self.hidden = self.hidden or context.shown(inner.args[0])
        self.layer = context.segment(inner.func)
        self.moved += [inner.args[0], inner.func]
        if len(node.args) > 2 or len(self.options) != len(node.keywords) - self._named(node):
            raise Unclear("it is given more than a target, ignore_index and label_smoothing")
        kind = context.kind(self.target)
        floats = kind.is_tensor and context.inference.tokens.category(kind.dtype) == "float"
        if floats or last_name(getattr(self.target, "func", None)) in _FLOATS:
            raise Unclear("its target is of probabilities")
        self.check()

    def _arguments(self, node: ast.Call) -> tuple[ast.expr, ast.expr]:
        named = {k.arg: k.value for k in node.keywords}
        given = [*node.args, *(named[n] for n in ("input", "target") if n in named)]
        if len(given) < 2 or any(isinstance(a, ast.Starred) for a in given):
            raise OtherForm
        return given[0], given[1]

    def _named(self, node: ast.Call) -> int:
        return sum(k.arg in ("input", "target") for k in node.keywords)

    def _layer(self, node: ast.expr) -> ast.Call | None:
        """The call that made the linear layer which a node calls."""
        if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
            return None
        made = self.constructor(node.func)
        known = made is not None and imported(made.func, self.context) == "torch.nn.Linear"
        return made if known else None

    def _slice(self, node: ast.Subscript) -> str:
        """A subscript that leaves the last axis whole: `[..., :-1, :]`, `[:, :-1]`."""
        index = node.slice
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        last = parts[-1]
        whole = isinstance(last, ast.Slice) and not (last.lower or last.upper or last.step)
        dots = any(getattr(p, "value", None) is Ellipsis for p in parts)
        plain = all(isinstance(p, ast.Slice) for p in parts)
        if not (dots and whole) and not (plain and len(parts) == 2 and self.flat):
            raise OtherForm
        return f"[{self.context.segment(index)}]"

    def _check_size(self, layer: ast.Call) -> None:
        """OtherForm where there are few classes, or no sign of many."""
        named = {k.arg: k.value for k in layer.keywords}
        size = layer.args[1] if len(layer.args) > 1 else named.get("out_features")
        number = getattr(size, "value", None)
        large = isinstance(number, int) and number >= _FEW
        named = size is not None and "vocab" in ast.unparse(size).lower()
        if isinstance(number, int) and not large:
            raise OtherForm
        if not (self.flat or large or named):
            raise OtherForm

    def text(self) -> str:
        segment = self.context.segment
        given = [self.hidden, self.layer, _plain(self.target, self.context)]
        given += [segment(k) for k in self.options]
        return f"{_NAME}({', '.join(given)})"


def _plain(target: ast.expr, context: FileContext) -> str:
    """A target without the `.view(-1)` that the function makes up for."""
    if isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
        texts = [ast.unparse(a) for a in target.args]
        if target.func.attr in _FLAT and texts in (["-1"], []) and not target.keywords:
            return context.shown(target.func.value)
    return context.shown(target)
