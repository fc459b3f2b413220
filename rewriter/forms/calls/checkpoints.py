"""`torch.utils.checkpoint` while recording: the function becomes part of the graph, marked to be
computed again in the backward."""

from typing import Any

from torch.utils.checkpoint import CheckpointPolicy, checkpoint

from ... import catalogue
from ...capture import current
from ...capture.trace import Recorder


def takes(function: Any) -> bool:
    return function is checkpoint


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The recorded call is checkpointed for real; its function runs rewritten. The reentrant kind
    has gradients of its own and ends the recording."""
    if kwargs.get("use_reentrant") is not False or "context_fn" in kwargs or "debug" in kwargs:
        rec.stop(catalogue.UNSUPPORTED, "checkpoint() with use_reentrant=True, context_fn or debug")
        return function(*args, **kwargs)
    if rec.marks:
        rec.stop(catalogue.UNSUPPORTED, "a checkpoint() inside another")
        return function(*args, **kwargs)
    inner, *inputs = args

    def watched(*given: Any, **named: Any) -> Any:
        """Called once more by the backward of the recorded call, when nothing is recorded."""
        return (
            rec.call(inner, given, named) if current.recorder() is rec else inner(*given, **named)
        )

    with _Region(rec):
        return function(watched, *inputs, **kwargs)


class _Region:
    """Nodes made inside are marked for the partitioner, unless one draws random numbers: a second
    draw would be another."""

    def __init__(self, rec: Recorder) -> None:
        self._rec = rec
        self._mark = {"recompute": CheckpointPolicy.PREFER_RECOMPUTE, "ac_graph_id": id(self)}

    def __enter__(self) -> None:
        self._outer, self._rec.marks = self._rec.marks, self._mark
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
