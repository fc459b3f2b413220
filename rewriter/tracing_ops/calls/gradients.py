"""Differentiation inside a recorded call: `torch.autograd.grad` is one node of the graph,
`backward()` one node and stores to `.grad`."""

import dataclasses
import inspect
import operator
from collections.abc import Iterator, ValuesView
from typing import Any

import torch

from ....lowering.autograd.differentiation import leaf_gradients
from ....runtime.guards.guard import Attr
from ....runtime.programs.recipes import Apply, Input
from ....runtime.programs.steps import CALL_INPUT
from ... import catalogue
from ...capture import histories
from ...capture.effects import SideEffect, constant, set_attributes
from ...capture.nested import concretize, plain_in, tensors_in
from ...capture.stops import RecordingStopped
from ...capture.trace import Recorder
from ...capture.values import Meta, TracedTensor, is_plain
from .. import iteration
from . import custom_functions

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

_BACKWARD = inspect.signature(torch.autograd.backward)
_METHOD = inspect.signature(torch.Tensor.backward)
_BROKEN = "a graph break within the gradient history"
ATTRIBUTES = ("grad", "grad_fn", "is_leaf", "retains_grad")
_GRAD = inspect.signature(torch.autograd.grad)


def takes(function: Any) -> bool:
    return (
        function is torch.autograd.grad
        or function is torch.autograd.backward
        or function is torch.Tensor.backward
    )


def call(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    try:
        if function is torch.autograd.grad:
            return _grad(rec, args, kwargs)
        asked = _Asked.by(function, args, kwargs)
    except TypeError:  # Python says what is wrong with the arguments
        rec.stop(catalogue.UNSUPPORTED, f"{function.__name__}() with other arguments")
        return rec.once(function, plain_in(args), plain_in(kwargs))
    return _backward(rec, asked)


# -- torch.autograd.grad


def _grad(rec: Recorder, args: Args, kwargs: Kwargs) -> Any:
    call = _GRAD.bind(*args, **kwargs)
    for name in ("outputs", "inputs", "grad_outputs"):
        if isinstance(call.arguments.get(name), Iterator | ValuesView):
            call.arguments[name] = tuple(iteration.over(rec, call.arguments[name]))
    bound, args, kwargs = call.arguments, call.args, call.kwargs
    with rec.paused(), torch._C.DisableTorchFunction():
        why = _not_here(rec, _listed(bound["outputs"]) or [])
    if bound.get("is_grads_batched"):
        why = "is_grads_batched"
    if why:
        rec.stop(catalogue.UNSUPPORTED, f"torch.autograd.grad: {why}")
        with rec.off_stack():
            return torch.autograd.grad(*plain_in(args), **plain_in(kwargs))
    return custom_functions.as_node(rec, torch.autograd.grad, args, kwargs)


def _not_here(rec: Recorder, asked: list[Any]) -> str:
    """Why the history behind a tensor is not this graph's alone; empty if it is, for this call and
    every later one. `asked`: what is differentiated."""
    given = [pair for pair in rec.tracker.live_inputs() if pair[1].meta.requires_grad]
    if any(tensor.grad_fn is not None for tensor, _ in given):
        given = _reached(rec, given, tensors_in(asked))
    if not all(is_plain_leaf(tensor) for tensor, _ in given):
        return "an input has a gradient history from before the call, or hooks on its gradient"
    cut = any(value.home >= 0 and value.meta.requires_grad for value, _ in rec.segment.imports())
    if cut and not rec.continue_past_break(catalogue.UNSUPPORTED, _BROKEN):
        return _BROKEN
    inputs = tuple(Input(value.index) for _, value in given)
    rec.outcomes.append((0, Apply(_are_plain_leaves, inputs), True))
    rec.differentiates = True
    return ""


def _reached(
    rec: Recorder, given: list[tuple[torch.Tensor, Any]], asked: list[torch.Tensor]
) -> list[tuple[torch.Tensor, Any]]:
    """Of the inputs those that a gradient may arrive at: not those with a history that the graph
    does nothing with but detach them, as truncated back-propagation does; `finish` looks whether
    that is so to the end."""
    behind = set(histories.nodes_behind(asked))
    cut = {
        value
        for tensor, value in given
        if tensor.grad_fn is not None
        and tensor.grad_fn not in behind
        and rec.is_only_detached(value)
    }
    rec.detached |= cut
    return [pair for pair in given if pair[1] not in cut]


def is_plain_leaf(tensor: torch.Tensor) -> bool:
    """Whether a gradient that arrives is kept in `.grad`, and nothing else happens."""
    hooks = tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None)
    return tensor.is_leaf and not hooks


_LEAF_STATE = operator.attrgetter("is_leaf", "_backward_hooks", "_post_accumulate_grad_hooks")


def _are_plain_leaves(*tensors: torch.Tensor) -> bool:
    untouched = all(map((True, None, None).__eq__, map(_LEAF_STATE, tensors)))
    return untouched or all(map(is_plain_leaf, tensors))


# -- backward()


@dataclasses.dataclass(frozen=True)
class _Asked:
    """The arguments of a `backward()`."""

    tensors: list[Any]
    given: list[Any] | None
    inputs: list[Any] | None
    retain: bool
    create: bool

    @classmethod
    def by(cls, function: Any, args: Args, kwargs: Kwargs) -> "_Asked":
        """Raises TypeError."""
        if function is torch.Tensor.backward:
            bound = _METHOD.bind(*args, **kwargs).arguments
            tensors, given = [bound["self"]], bound.get("gradient")
        else:
            bound = _BACKWARD.bind(*args, **kwargs).arguments
            if bound.get("grad_variables") is not None:
                raise TypeError("grad_variables")
            tensors, given = _listed(bound["tensors"]) or [], bound.get("grad_tensors")
        create, retain = concretize((bound.get("create_graph", False), bound.get("retain_graph")))
        kept = bool(create if retain is None else retain)
        return cls(tensors, _listed(given), _listed(bound.get("inputs")), kept, bool(create))

    def run(self) -> None:
        torch.autograd.backward(
            self.tensors, self.given, self.retain, self.create, inputs=self.inputs
        )

    def leaves(self) -> list[torch.Tensor]:
        return self.inputs or histories.leaves_behind(self.tensors)

    def nodes(self, rec: Recorder, leaves: list[torch.Tensor]) -> tuple[Any, ...]:
        """The arguments of `leaf_gradients`. Raises Stopped."""
        sent = self.given and [None if each is None else rec.node(each) for each in self.given]
        groups = ([rec.node(each) for each in group] for group in (self.tensors, leaves))
        return next(groups), sent, next(groups), self.retain, self.create


def _listed(given: Any) -> list[Any] | None:
    if given is None:
        return None
    return [given] if isinstance(given, torch.Tensor) else list(given)


def _backward(rec: Recorder, asked: _Asked) -> None:
    with rec.paused(), torch._C.DisableTorchFunction():
        leaves = asked.leaves()
        why = _refused(rec, asked, leaves)
        try:
            if why:
                rec.stop_here(catalogue.UNSUPPORTED, f"backward(): {why}")
            arguments = asked.nodes(rec, leaves)
            held = [_SavedGrad.of(rec, leaf) for leaf in leaves]
        except RecordingStopped:
            return asked.run()
        try:
            asked.run()
        except Exception as error:
            rec.stop(catalogue.UNSUPPORTED, f"backward() raised {type(error).__name__}")
            raise
        origin = rec.origin_text()
        node = rec.segment.call("call_function", leaf_gradients, arguments, {}, origin)
        try:
            for index, each in enumerate(held):
                _left(rec, each, node, index)
        except RecordingStopped:
            return None
        except Exception as error:  # the backward has run: it must not run again
            rec.fault(error)


def _refused(rec: Recorder, asked: _Asked, leaves: list[torch.Tensor]) -> str:
    if not tensors_in([*asked.tensors, *leaves]) or not leaves:
        return "nothing to differentiate"
    if any(not leaf.is_leaf for leaf in leaves):
        return "it takes gradients of tensors that are not leaves"
    for leaf in leaves:
        if rec.tracker.get(leaf) is None and rec.known.path_of(leaf) is None:
            return "it reaches a tensor that the call was not given"
        if not is_plain_leaf(leaf):
            return "a parameter has hooks on its gradient"
        if leaf.grad is not None and leaf.grad.requires_grad:
            return "a gradient has a history"
    homes = [_home(rec, each) for each in tensors_in(asked.tensors) if each.grad_fn is not None]
    if CALL_INPUT in homes:
        return "what it differentiates was made before the call"
    cut = any(home != rec.segment.index for home in homes)
    if cut and not rec.continue_past_break(catalogue.UNSUPPORTED, _BROKEN):
        return _BROKEN
    return _not_here(rec, asked.tensors)


def _home(rec: Recorder, tensor: torch.Tensor) -> int:
    tracked = rec.tracker.get(tensor)
    return CALL_INPUT if tracked is None else tracked.value.home


@dataclasses.dataclass(frozen=True)
class _SavedGrad:
    """A leaf, and its `.grad` before a backward."""

    leaf: torch.Tensor
    gradient: torch.Tensor | None
    version: int

    @classmethod
    def of(cls, rec: Recorder, leaf: torch.Tensor) -> "_SavedGrad":
        """Raises Stopped."""
        gradient = read(rec, leaf)
        if rec.known.path_of(leaf) is not None:
            rec.before_change(leaf)
        return cls(leaf, gradient, 0 if gradient is None else gradient._version)


def _left(rec: Recorder, held: _SavedGrad, node: torch.fx.Node, index: int) -> None:
    """What backward() did to one leaf's `.grad`: a new tensor, or an addition to the one there."""
    now, before = held.leaf.grad, held.gradient
    if now is None or (now is before and now._version == held.version):
        return
    if not is_plain(now):
        rec.stop_here(catalogue.UNSUPPORTED, f"a gradient is a {now.layout} tensor")
    made, origin = rec._item(node, index), rec.origin_text()
    if now is before:
        target = rec.segment.node(_known(rec, now), Meta.of(now))
        rec.segment.call("call_method", "add_", (target, made), {}, origin)
        rec.tracker.restamp(now)
        return rec._written(now)
    if before is not None:
        made = rec.segment.call("call_method", "add", (rec.node(before), made), {}, origin)
    rec.tracker.add(now, TracedTensor(rec.segment.index, made, -1, Meta.of(now)))
    return _stored(rec, held.leaf, now)


def _known(rec: Recorder, tensor: torch.Tensor) -> TracedTensor:
    tracked = rec.tracker.get(tensor)
    assert tracked is not None
    return tracked.value


# -- .grad


def read(rec: Recorder, tensor: torch.Tensor) -> torch.Tensor | None:
    """`tensor.grad`, guarded where it comes from outside. Raises Stopped."""
    with rec.paused(), torch._C.DisableTorchFunction():
        if not tensor.is_leaf:
            rec.stop_here(catalogue.UNSUPPORTED, "the gradient of a tensor that is no leaf")
        held = tensor.grad
        path = rec.known.path_of(tensor)
        if path is None or rec.known.is_own(tensor, "grad"):
            return held
        rec.known.loaded(held, Attr(path, "grad"))
        if held is not None:
            rec.value(held)
        return held


def load(rec: Recorder, tensor: torch.Tensor, name: str) -> Any:
    """`tensor.grad`, `tensor.grad_fn` and the like in the user's code."""
    try:
        return read(rec, tensor) if name == "grad" else _place_in_history(rec, tensor, name)
    except RecordingStopped:
        return getattr(tensor, name)


def _place_in_history(rec: Recorder, tensor: torch.Tensor, name: str) -> Any:
    """What follows from `requires_grad`, which is guarded, or from the graph."""
    with rec.paused(), torch._C.DisableTorchFunction():
        value, found = rec.value(tensor), getattr(tensor, name)
        if tensor.requires_grad and value.home == CALL_INPUT:
            if not value.meta.requires_grad:
                rec.stop_here(catalogue.UNSUPPORTED, f"{name} of an input that got a history")
            asked = "retains_grad" if name == "retains_grad" else "is_leaf"
            place = Apply(getattr(torch.Tensor, asked).__get__, (Input(value.index),))
            rec.outcomes.append((0, place, getattr(tensor, asked)))
    if name == "grad_fn" and found is not None:
        rec.stop_here(catalogue.UNSUPPORTED, "a node of autograd's graph is asked for")
    return found


def store(rec: Recorder, tensor: torch.Tensor, value: Any) -> None:
    """`tensor.grad = value`."""
    with rec.paused(), torch._C.DisableTorchFunction():
        try:
            if rec.known.path_of(tensor) is not None:
                rec.before_change(tensor)
            if isinstance(value, torch.Tensor):
                rec.value(value)
        except RecordingStopped:
            tensor.grad = value
            return
        tensor.grad = value
        _stored(rec, tensor, value)


def _stored(rec: Recorder, tensor: torch.Tensor, value: Any) -> None:
    """Later calls store it as well. Of several stores only the last can be seen."""
    if rec.known.path_of(tensor) is None:
        return set_attributes(rec.dressed, tensor, "grad", value)
    before = rec.gradient_stores.get(id(tensor))
    if before is not None:
        rec.effects.remove(before)
    effect = rec.gradient_stores[id(tensor)] = SideEffect(
        setattr, (tensor, constant("grad"), value)
    )
    rec.effects.append(effect)
    rec.known.wrote(tensor, "grad")
