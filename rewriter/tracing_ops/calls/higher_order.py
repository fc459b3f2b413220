"""`torch.cond` and `torch.while_loop` while recording: what they are given runs rewritten, into
graphs of their own, and the call becomes a node that chooses or repeats them.

The recorded call makes these graphs of copies of the operands, then runs what eager would run.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ....lowering.graph.control_flow import Chosen, Repeated, chosen_in_truth
from ... import catalogue
from ...capture.nested import plain_in
from ...capture.repeatable import Generators
from ...capture.stops import RecordingStopped
from ...capture.trace import Recorder
from ...capture.values import Meta, storage_of
from .. import items
from .transforms import TransformedFunction, bind

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
_COND_NAMES = ("pred", "true_fn", "false_fn", "operands")
_LOOP_NAMES = ("cond_fn", "body_fn", "carried_inputs")


def takes(function: Any) -> bool:
    return _is_cond(function) or function is torch.while_loop


def _is_cond(function: Any) -> bool:
    return function is torch.cond or function is torch.ops.higher_order.cond


def call(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    items.guard_arguments(rec, args, kwargs)
    names = _COND_NAMES if _is_cond(function) else _LOOP_NAMES
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    try:
        if set(given) - {"operands"} != set(names) - {"operands"}:
            rec.stop_here(catalogue.UNSUPPORTED, "these arguments of cond() or while_loop()")
        if _is_cond(function):
            return _chosen(rec, *(given.get(name, ()) for name in names))
        return _repeated(rec, *(given[name] for name in names))
    except RecordingStopped:
        args, kwargs = plain_in(args), plain_in(kwargs)
        return chosen_in_truth(lambda inner, *own: inner(*own), function, *args, **kwargs)


def _chosen(rec: Recorder, test: Any, one: Any, two: Any, operands: Any) -> Any:
    if not isinstance(test, torch.Tensor):
        return rec.call(one if test else two, tuple(operands), {})
    operands, layout = pytree.tree_flatten(operands)
    _check(rec, operands)
    sides = [_Side(rec, side, operands, layout) for side in (one, two)]
    if sides[0].gives != sides[1].gives or sides[0].body.result != sides[1].body.result:
        rec.stop_here(catalogue.UNSUPPORTED, "the branches of cond() give different tensors")
    with rec.paused():
        test_node, target = rec.node(test), Chosen(*(side.graph() for side in sides))
        captured = [side.body.taken() for side in sides]
        result = target(test, *captured, *operands)
        _bind(rec, target, [test_node], sides, operands, result)
    return pytree.tree_unflatten(result, sides[0].body.result)


def _repeated(rec: Recorder, test: Any, body: Any, carried: Any) -> Any:
    _check(rec, carried)
    if any(each.requires_grad for each in carried) and torch.is_grad_enabled():
        rec.stop_here(catalogue.UNSUPPORTED, "gradients through while_loop()")
    layout = pytree.tree_structure(tuple(carried))
    sides = [_Side(rec, side, carried, layout) for side in (test, body)]
    with rec.paused():
        if sides[1].learns or sides[1].gives != [
            Meta.of(each.detach().contiguous()) for each in carried
        ]:
            rec.stop_here(
                catalogue.UNSUPPORTED,
                "a while_loop() whose tensors change in dtype, shape or device",
            )
        result = tuple(each.clone() for each in carried)
        while test(*result):
            result = tuple(body(*result))
        _bind(rec, Repeated(*(side.graph() for side in sides)), [], sides, carried, result)
    return result


def _check(rec: Recorder, operands: Any) -> None:
    flat = type(operands) in (tuple, list)
    if not flat or not all(isinstance(each, torch.Tensor) for each in operands):
        rec.stop_here(
            catalogue.UNSUPPORTED, "operands of cond() or while_loop() that are not tensors"
        )


def _bind(
    rec: Recorder, target: Any, ahead: list[Any], sides: Any, operands: Any, result: Any
) -> None:
    captured = [side.body.close() for side in sides]
    nodes = tuple(rec.node(each) for each in operands)
    bind(rec, target, (*ahead, *captured, *nodes), result)


class _Side:
    """A function recorded as a graph of its own. Raises Stopped."""

    def __init__(
        self, rec: Recorder, function: Callable[..., Any], operands: Any, layout: pytree.TreeSpec
    ) -> None:
        self._layout = layout
        self.body = TransformedFunction(rec, function, plain=True)
        with rec.paused():
            copies = [each.detach().clone() for each in operands]
            for copy, each in zip(copies, operands, strict=True):
                copy.requires_grad_(each.requires_grad)
        self.gives: list[Meta] | None = None
        effects, outcomes, cut = len(rec.effects), len(rec.outcomes), len(rec.segments)
        with rec.paused():
            generators = Generators()
        self._run(rec, copies)
        if self.body.may_have_drawn():
            with rec.paused():
                generators.put_back()
        if not rec.active or self.gives is None:
            rec.stop_here(
                catalogue.UNSUPPORTED,
                "cond() or while_loop() of a function that returns no tensors",
            )
        if effects != len(rec.effects):
            rec.stop(catalogue.UNSUPPORTED, "a branch that has effects")
            raise RuntimeError("cond() and while_loop() take functions without side effects")
        asked = [recipe for _, recipe, _ in rec.outcomes[outcomes:] if not recipe.sizes]
        if asked or cut != len(rec.segments):
            rec.stop_here(catalogue.UNSUPPORTED, "a branch that reads values of tensors")

    def _run(self, rec: Recorder, copies: list[torch.Tensor]) -> None:
        with contextlib.suppress(Exception), self.body.watched() as watched:
            results = pytree.tree_leaves(watched(*pytree.tree_unflatten(copies, self._layout)))
            shared = {storage_of(copy) for copy in copies}
            self._own = [storage_of(each) not in shared for each in results]
            self.gives = [Meta.of(each.detach()) for each in results]
            self.learns = any(each.requires_grad for each in results)

    def graph(self) -> torch.fx.GraphModule:
        """The graph, with copies of what it would give of its operands."""
        module = self.body.graph_module()
        output = module.graph.output_node()
        results: Any = output.args[0]
        with module.graph.inserting_before(output):
            given = [
                node if own else module.graph.call_method("clone", (node,))
                for node, own in zip(results, self._own, strict=True)
            ]
        output.args = (given,)
        module.recompile()
        return module
