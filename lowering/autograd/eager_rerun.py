"""Gradients of a call (`double_backward.Call`) by a second run of its segment's graph, in eager."""

import contextlib
import importlib
import types
from collections.abc import Sequence
from typing import Any

import torch

from .call_modes import generators
from .eager_history import targets_of


def gradients(
    ctx: Any, call: Any, grads: Sequence[Any], written: int | None = None
) -> tuple[Any, ...]:
    """The gradients of the inputs, for `grads` of what AOTAutograd's node `ctx` gave. `written`:
    the result that was written since; where eager had kept it, too, autograd raises as it does
    there. RuntimeError where an input that they are computed from is no longer what it was."""
    if not call.fit_for(grads, ctx._forward_cls):
        raise RuntimeError(
            "an input of a compiled call was written before the call's backward, which has to run "
            "the call again in eager, since no program gives these gradients; give the call a copy "
            "of the input"
        )
    metadata = ctx._forward_cls.metadata
    unread = call.unread_for(grads, ctx._forward_cls)
    inputs, fed, results = _again(call, unread)
    targets = targets_of(metadata, fed, results)
    if unread and any(t is _UNREAD for t, g in zip(targets, grads, strict=False) if g is not None):
        inputs, fed, results = _again(call, frozenset())
        targets = targets_of(metadata, fed, results)
    changed = None if written is None or written >= len(targets) else targets[written]
    if isinstance(changed, torch.Tensor):
        torch.autograd.graph.increment_version(changed)
    pairs = [
        (target, grad)
        for target, grad in zip(targets, grads, strict=False)
        if grad is not None and isinstance(target, torch.Tensor) and target.requires_grad
    ]
    wanted = [
        i
        for i, tensor in enumerate(inputs)
        if i < len(ctx.needs_input_grad)
        and ctx.needs_input_grad[i]
        and isinstance(tensor, torch.Tensor)
        and tensor.requires_grad
    ]
    found: dict[int, Any] = {}
    if pairs and wanted:
        outs, given = zip(*pairs, strict=True)
        asked = [inputs[i] for i in wanted]
        grad_of = torch.autograd.grad(
            outs, asked, given, create_graph=torch.is_grad_enabled(), allow_unused=True
        )
        found = dict(zip(wanted, grad_of, strict=True))
    return tuple(found.get(i) for i in range(len(ctx.needs_input_grad)))


def _again(call: Any, unread: frozenset[int]) -> tuple[list[Any], list[Any], Sequence[Any]]:
    """The inputs, each a leaf-like view of its own, what the graph is run on, and its results,
    without what comes from the inputs `unread`: they are `_UNREAD`."""
    owner = call.owner
    with torch.enable_grad(), generators(call.rng, call.cuda), contextlib.ExitStack() as stack:
        inputs = [
            tensor.clone() if position in (owner.writes or ()) else _view(tensor)
            for position, tensor in enumerate(call.tensors)
        ]
        for make in call.autocast:
            stack.enter_context(make())
        fed = [_view(tensor) for tensor in inputs] if owner.writes else inputs
        if owner.drawing:
            stack.enter_context(_random_numbers().Redrawn(owner.drawing))
        if unread:
            given = [_UNREAD if i in unread else each for i, each in enumerate(fed)]
            results = _Part(owner.graph.module).run(*given)
        else:
            results = owner.graph.module(*fed)
    return inputs, fed, results if isinstance(results, tuple | list) else (results,)


class _Unread:
    """What a second run leaves out."""


_UNREAD = _Unread()


class _Part(torch.fx.Interpreter):
    """A graph without what reads `_UNREAD`."""

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.op != "output" and any(self.env[each] is _UNREAD for each in n.all_input_nodes):
            return _UNREAD
        return super().run_node(n)


def _random_numbers() -> types.ModuleType:
    """Operators of ours, which take long to register."""
    return importlib.import_module("..decompositions.random_numbers", __package__)


def _view(tensor: Any) -> Any:
    return tensor.view_as(tensor) if isinstance(tensor, torch.Tensor) else tensor
