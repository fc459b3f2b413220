"""`torch.utils.checkpoint` while recording: the function becomes part of the graph, marked to be
computed again in the backward."""

import functools
from types import TracebackType
from typing import Any

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import CheckpointPolicy, checkpoint

from ....runtime.programs.steps import CALL_INPUT
from ... import catalogue
from ...capture.effects import SideEffect
from ...capture.nested import tensors_in
from ...capture.trace import Recorder
from ...capture.values import TracedTensor


def takes(function: Any) -> bool:
    return function is checkpoint


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The recorded call is checkpointed for real; its function runs rewritten. Where the reentrant
    kind, which is meant where none is named, gives the same gradients as the other, it is taken for
    that."""
    named = kwargs.get("use_reentrant")
    reentrant = (named is True or named is None) and set(kwargs) <= _PLAIN
    if reentrant and torch.is_grad_enabled() and any(map(_learns, args)):
        if named is None:
            rec.effects.append(SideEffect(_warn, ()))
            with rec.paused():
                _warn()
        kwargs = {**kwargs, "use_reentrant": False}
    if kwargs.get("use_reentrant") is not False or "debug" in kwargs:
        rec.stop(catalogue.UNSUPPORTED, "checkpoint() with debug or use_reentrant=True")
        return rec.once(function, args, kwargs)
    if rec.marks:
        rec.stop(catalogue.UNSUPPORTED, "a checkpoint() inside another")
        return rec.once(function, args, kwargs)
    inner, *inputs = args
    if "context_fn" in kwargs:
        kwargs = {**kwargs, "context_fn": functools.partial(_contexts, rec, kwargs["context_fn"])}

    recording, done = True, _changes(rec)

    def watched(*given: Any, **named: Any) -> Any:
        """Called once more by the backward of the recorded call, when nothing is recorded."""
        if not (recording and rec.active):
            return inner(*given, **named)
        with rec.resumed():
            return rec.call(inner, given, named)

    try:
        with _Region(rec), rec.paused():
            result = rec.once(function, (watched, *inputs), kwargs)
    except BaseException as error:
        _leave(error.__traceback__)
        raise
    finally:
        recording = False
    if _changes(rec) != done and any(map(_learns, tensors_in(result))):
        rec.stop(
            catalogue.UNSUPPORTED, "a checkpoint() whose function changes what its second run reads"
        )
    return _checked(rec, inputs, result) if reentrant else result


def _contexts(rec: Recorder, given: Any) -> Any:
    """The user's contexts around the two runs of the function; what a policy saves is marked in the
    graph. Other contexts may do anything."""
    forward, again = given()
    policy = getattr(forward, "policy_fn", None)
    if policy is None:
        rec.stop(catalogue.UNSUPPORTED, "checkpoint() with a context_fn that is no policy")
        return forward, again

    def noted(context: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        decision = policy(context, operator, *args, **kwargs)
        if rec.marks and decision in _SAVES:
            rec.marks["recompute"] = CheckpointPolicy.MUST_SAVE
        return decision

    forward.policy_fn = noted
    return forward, again


_SAVES = (True, CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)


def _warn() -> None:
    """What torch says where no kind is named, in its own words."""
    with torch.enable_grad():
        leaf = torch.zeros((), requires_grad=True)
        checkpoint(torch.Tensor.clone, leaf, preserve_rng_state=False)


def _changes(rec: Recorder) -> tuple[int, set[TracedTensor]]:
    """What the call has done to the outside so far: how much in Python, and which tensors."""
    written = {value for segment in rec.segments for value in segment.written}
    return len(rec.effects), {value for value in written if value.home == CALL_INPUT}


def _leave(trace: TracebackType | None) -> None:
    """torch's frames keep hooks in place for as long as the error is held; what runs instead must
    find none."""
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == checkpoint.__module__:
            trace.tb_frame.clear()
        trace = trace.tb_next


_PLAIN = {"use_reentrant", "preserve_rng_state"}


def _learns(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _checked(rec: Recorder, inputs: list[Any], result: Any) -> Any:
    """The reentrant kind gives views of inputs that it hands through, and a history to every
    result."""
    with rec.paused():
        results = tensors_in(result)
        own = all(each.grad_fn is not None or not each.is_floating_point() for each in results)
        given = any(each is other for each in results for other in tensors_in(inputs))
    if given or not own:
        rec.stop(catalogue.UNSUPPORTED, "a reentrant checkpoint() that returns an input")
        if not any(each.requires_grad for each in results):
            return _without_history(inputs, result)
    return result


def _without_history(inputs: list[Any], result: Any) -> Any:
    """The result as the reentrant kind gives it of a function that records no gradients: with a
    history, whose backward raises."""

    def again(*_: Any) -> Any:
        return tree_map_only(torch.Tensor, torch.Tensor.detach, result)

    return checkpoint(again, *inputs, use_reentrant=True, preserve_rng_state=False)


class _Region:
    """Nodes made inside are marked for the partitioner, unless one draws random numbers: a second
    draw would be another."""

    def __init__(self, rec: Recorder) -> None:
        self._rec = rec
        self._mark = {"recompute": CheckpointPolicy.PREFER_RECOMPUTE, "ac_graph_id": id(self)}

    def __enter__(self) -> None:
        self._outer, self._rec.marks = self._rec.marks, dict(self._mark)
        self._rec.recomputed = self._mark
        self._first = len(self._rec.segments) - 1
        self._drew = [segment.random for segment in self._rec.segments]
        self._rec.segment.random = False

    def __exit__(self, *error: object) -> None:
        self._rec.marks = self._outer
        segments = self._rec.segments[self._first :]
        drew = any(segment.random for segment in segments)
        segments[0].random |= self._drew[self._first]
        for node in (node for segment in segments if drew for node in segment.graph.nodes):
            if node.meta.get("ac_graph_id") == id(self):
                for name in self._mark:
                    del node.meta[name]
