"""DYN802: the names of mixed precision that belong to one device, as torch.amp has them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Edit, Refusal, Safety
from .imported_names import around, torch_at
from .renames import Change, New, RenameRule, called, first_argument, inserted, is_decorator

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext

_ORDER = ("enabled", "dtype", "cache_enabled")  # of what `torch.cuda.amp.autocast` takes
_DTYPES = {"cuda": "float16", "cpu": "bfloat16"}
_OTHER_CLASS = "it is an object of another class, which torch.cuda.amp derives from"


def _table() -> dict[str, New]:
    found = {}
    for device in _DTYPES:
        for module in ("", "autocast_mode.", "grad_scaler."):
            old = f"torch.{device}.amp.{module}"
            found[f"{old}autocast"] = New("torch.amp.autocast", "", device, "autocast")
            found[f"{old}GradScaler"] = New("torch.amp.GradScaler", "2.3", device, "scaler")
    for module in ("", "autocast_mode."):
        for name in ("custom_fwd", "custom_bwd"):
            new = New(f"torch.amp.{name}", "2.4", "cuda", "custom")
            found[f"torch.cuda.amp.{module}{name}"] = new
    for device, old in (("cuda", "gpu"), ("cpu", "cpu")):
        for verb in ("get", "set"):
            new = New(f"torch.{verb}_autocast_dtype", "2.4", device, "function")
            found[f"torch.{verb}_autocast_{old}_dtype"] = new
    return found


class DeviceAmp(RenameRule):
    """
    `torch.cuda.amp` and `torch.cpu.amp` are deprecated, and warn at every use: `torch.amp` has the
    same classes and functions, which take the device as an argument. The old `autocast` computes in
    float16 (on the CPU in bfloat16) whatever is set around it, so the new one is given that dtype.
    Names that the oldest torch (`target-torch`) does not have yet are left alone: `GradScaler` is
    in `torch.amp` since 2.3, `custom_fwd` and `custom_bwd` since 2.4. Unsafe where the object is
    kept, for it is of another class then.
    """

    code = "DYN802"
    safety = Safety.SAFE
    roots = ("torch.cuda.amp", "torch.cpu.amp")
    table = _table()
    before = """
import torch
from torch.cuda.amp import GradScaler, autocast


def train(model, batches, optimizer):
    scaler = GradScaler()
    for x, y in batches:
        with autocast():
            loss = torch.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
    after = """
import torch
from torch.amp import GradScaler, autocast


def train(model, batches, optimizer):
    scaler = GradScaler("cuda")
    for x, y in batches:
        with autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

    def change(self, node: Any, new: New, context: FileContext) -> Change | Refusal:
        forms = {"autocast": _autocast, "scaler": _scaler, "custom": _custom, "function": _function}
        return forms[new.form](node, new, context)


def _made(edits: list[Edit | Refusal], why: str = "", imports: Any = ()) -> Change | Refusal:
    refused = [e for e in edits if isinstance(e, Refusal)]
    made = tuple(e for e in edits if isinstance(e, Edit))
    return refused[0] if refused else Change(made, why, tuple(imports))


def _not_called(node: Any) -> Refusal:
    return Refusal(f"`{ast.unparse(node)}` is used in another way than called")


def _autocast(node: Any, new: New, context: FileContext) -> Change | Refusal:
    call = called(node, context)
    if call is None:
        return _not_called(node)
    if any(isinstance(a, ast.Starred) for a in call.args) or len(call.args) > len(_ORDER):
        return Refusal("not all of its arguments can be seen")
    given = [*_ORDER[: len(call.args)], *(k.arg for k in call.keywords)]
    if None in given:
        return Refusal("not all of its arguments can be seen")
    text, imports = f'"{new.device}"', ()
    if "dtype" not in given:
        found = torch_at(node, context)
        if found is None:
            return Refusal("torch is not imported at the top of the file")
        text, imports = f"{text}, dtype={found[0]}.{_DTYPES[new.device]}", found[1]
    edits = [first_argument(call, text, context), *_named(call, context)]
    return _made(edits, "" if _unseen(call, context) else _OTHER_CLASS, imports)


def _named(call: ast.Call, context: FileContext) -> list[Edit | Refusal]:
    """The edits that name the arguments of a call that are given by their place."""
    source, found = context.source, []
    last = source.text.find("(", source.span(call.func)[1]) + 1
    for name, value in zip(_ORDER, call.args, strict=False):
        start, end = source.span(value)
        if source.text[last:start].strip() not in ("", ","):
            return [Refusal("an argument stands in parentheses, or behind a comment")]
        found.append(inserted(start, f"{name}="))
        last = end
    return found


def _unseen(call: ast.Call, context: FileContext) -> bool:
    """Whether nobody gets at the object: it is entered, or a decorator."""
    parent = context.whole_parents().get(call)
    entered = isinstance(parent, ast.withitem) and parent.optional_vars is None
    return entered or is_decorator(call, context)


def _scaler(node: Any, new: New, context: FileContext) -> Change | Refusal:
    call = called(node, context)
    if call is not None:
        edit = first_argument(call, f'"{new.device}"', context)
        return _made([edit], "" if _only_methods(call, context) else _OTHER_CLASS)
    if _is_named_as_type(node, context):
        return Change((), _OTHER_CLASS)
    return _not_called(node)


def _is_named_as_type(node: Any, context: FileContext) -> bool:
    """Whether a class stands in an annotation, or is what `isinstance` asks for."""
    inner = node
    for parent in around(node, context):
        if inner in (getattr(parent, "annotation", None), getattr(parent, "returns", None)):
            return True
        if isinstance(parent, ast.Call):
            return ast.unparse(parent.func) == "isinstance" and inner in parent.args[1:]
        if isinstance(parent, ast.stmt):
            return False
        inner = parent
    return False


_METHODS = frozenset(
    """
    scale unscale_ step update get_scale get_growth_factor set_growth_factor get_backoff_factor
    set_backoff_factor get_growth_interval set_growth_interval is_enabled state_dict load_state_dict
    """.split()
)


def _only_methods(call: ast.Call, context: FileContext) -> bool:
    """Whether what a call makes is given one name, of which the file uses the methods alone."""
    parent = context.whole_parents().get(call)
    if not isinstance(parent, ast.Assign) or [type(t) for t in parent.targets] != [ast.Name]:
        return False
    name = parent.targets[0].id
    parents = context.whole_parents()
    read = [n for n in context.index.get(ast.Name, ()) if n.id == name]
    loads = [n for n in read if isinstance(n.ctx, ast.Load)]
    local = any(
        isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) for n in around(call, context)
    )
    return local and all(getattr(parents[n], "attr", "") in _METHODS for n in loads)


def _custom(node: Any, new: New, context: FileContext) -> Change | Refusal:
    device = f'device_type="{new.device}"'
    if is_decorator(node, context):
        end = context.source.span(node)[1]
        return Change((inserted(end, f"({device})"),))
    call = called(node, context)
    if call is None:
        return _not_called(node)
    if not call.args:
        return _made([first_argument(call, device, context)])
    end = context.source.span(call)[1] - 1
    if context.source.text[:end].rstrip().endswith(","):
        return Refusal("the call ends in a comma")
    return Change((inserted(end, f", {device}"),))


def _function(node: Any, new: New, context: FileContext) -> Change | Refusal:
    call = called(node, context)
    if call is None:
        return _not_called(node)
    return _made([first_argument(call, f'"{new.device}"', context)])
