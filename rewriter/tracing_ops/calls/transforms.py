"""`torch.func` while recording: `vmap`, `grad`, `vjp`, `jvp`, `jacrev`, `jacfwd` run for real; the
function that they transform runs rewritten, into a graph of its own, and the call becomes a node
that transforms that graph."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ....lowering.graph.func_transforms import (
    DIRECT,
    PulledBack,
    Transformed,
    applied_to,
    is_mapped,
    is_pullback,
    results_in,
)
from ....runtime.guards.guard import Attr, Item, Obj
from ... import catalogue
from ...capture import current
from ...capture.nested import concretize, plain_in
from ...capture.node_arguments import CONSTANTS
from ...capture.numbers import open_shapes, traced_sizes
from ...capture.segments import SegmentBuilder
from ...capture.stops import RecordingStopped
from ...capture.trace import Recorder
from ...capture.values import Meta, Number, TracedTensor
from .. import items

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def takes(function: Any) -> bool:
    return is_mapped(function) or is_pullback(function) or any(function is one for one in DIRECT)


def call(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    items.guard_arguments(rec, args, kwargs)
    args, kwargs = concretize(args), concretize(kwargs)
    if not rec.active:
        return function(*args, **kwargs)
    if is_pullback(function):
        return _pulled_back(rec, function, args, kwargs)
    if function in DIRECT:
        return _transformed(rec, function, args[0], args[1:], kwargs)
    return _transformed(rec, function, _inner(rec, function), args, kwargs)


def _inner(rec: Recorder, function: Any) -> Any:
    """The function that was transformed; what was asked of it is guarded where it comes from
    outside."""
    closure = Attr(Obj(function, function.__name__), "__closure__")
    names = function.__code__.co_freevars
    cells = dict(zip(names, (cell.cell_contents for cell in function.__closure__), strict=True))
    if rec.known.path_of(function) is not None:
        for index, name in enumerate(names):
            rec.known.fixed(cells[name], Attr(Item(closure, index), "cell_contents"))
            if name != "func":
                items.guard_content(rec, cells[name])
    return cells["func"]


def _transformed(rec: Recorder, transform: Any, inner: Any, args: Args, kwargs: Kwargs) -> Any:
    leaves, given = pytree.tree_flatten((args, kwargs))
    body = TransformedFunction(rec, inner)
    try:
        nodes = tuple(_node(rec, leaf) for leaf in leaves)
    except RecordingStopped:
        return applied_to(transform, inner)(*args, **kwargs)
    with body.watched() as watched:
        result = rec.once(applied_to(transform, watched), args, kwargs)
    with rec.paused(), contextlib.suppress(RecordingStopped):
        captured = body.close()
        target = Transformed(transform, body.graph_module(), given, body.result)
        # AOTAutograd ends the process where zeros without memory are differentiated
        as_it_is = target.is_forward_mode() and any(map(_has_history, results_in(result)))
        if as_it_is and not open_shapes.may_stay(rec):
            rec.stop_here(catalogue.UNSUPPORTED, "a gradient of forward-mode derivatives")
        bind(rec, target, (captured, *nodes), result)
        if as_it_is:
            rec.segment.call_library(target)
        body.write()
    return result


def _has_history(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.requires_grad


def _node(rec: Recorder, leaf: Any) -> Any:
    """A leaf of the arguments as the node takes it. What is no tensor stands in the body already.
    Raises Stopped."""
    if isinstance(leaf, torch.Tensor):
        with rec.paused():
            return rec.node(leaf)
    return leaf if leaf is None or type(leaf) in CONSTANTS else None


def bind(rec: Recorder, target: Any, arguments: Args, result: Any) -> None:
    """Record the node, and its results as values. Raises Stopped."""
    node = rec.segment.call("call_function", target, arguments, {}, rec.origin_text())
    for index, each in enumerate(results_in(result)):
        made = rec._item(node, index)
        if isinstance(each, torch.Tensor):
            rec._bind_tensor(each, made)
        else:
            value = TracedTensor(rec.segment.index, made, -1, _NO_TENSOR)
            rec.pullbacks[id(each)] = (each, value)


_NO_TENSOR: Any = None


class TransformedFunction:
    """The function that is transformed, while it is called. Each call makes a graph (vmap in chunks
    calls several times); they have to be equal."""

    def __init__(self, rec: Recorder, function: Any, plain: bool = False) -> None:
        """`plain`: whether it is called with tensors as they are, not with a transform's."""
        self._rec, self._function, self._plain = rec, function, plain
        self._made: list[tuple[SegmentBuilder, torch.fx.Graph, pytree.TreeSpec]] = []
        self._written: list[TracedTensor] = []

    @contextlib.contextmanager
    def watched(self) -> Iterator[Callable[..., Any]]:
        """What to transform instead of the function."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            if not self._rec.active:
                return self._function(*plain_in(args), **plain_in(kwargs))
            return self._called(args, kwargs)

        watched.__name__ = str(getattr(self._function, "__name__", self._function))
        try:
            with self._rec.paused():
                yield watched
        except Exception as error:
            self._rec.stop(catalogue.UNSUPPORTED, f"a transform raised {type(error).__name__}")
            raise

    def _called(self, args: Args, kwargs: Kwargs) -> Any:
        rec = self._rec
        builder = SegmentBuilder(rec.next_body())
        builder.plain = self._plain
        rec.bodies.append(builder)
        before = current.install(rec)
        try:
            with rec.paused():
                self._take(builder, args, kwargs)
            result = concretize(rec.call(self._function, args, kwargs))
            with rec.paused(), contextlib.suppress(RecordingStopped):
                self._give(builder, result)
            return result
        finally:
            current.install(before)
            rec.bodies.pop()
            rec.tracker.drop(builder.index)
            traced_sizes.leave(builder)

    def _take(self, builder: SegmentBuilder, args: Args, kwargs: Kwargs) -> None:
        """The tensors that the transform hands in, but those that it hands through."""
        rec = self._rec
        for leaf in pytree.tree_leaves((args, kwargs)):
            if not isinstance(leaf, torch.Tensor):
                continue
            node = builder.argument()
            if rec.tracker.get(leaf) is None and rec.known.path_of(leaf) is None:
                rec.tracker.add(leaf, TracedTensor(builder.index, node, -1, Meta.of(leaf)))

    def _give(self, builder: SegmentBuilder, result: Any) -> None:
        """Raises Stopped."""
        rec = self._rec
        leaves, layout = pytree.tree_flatten(result)
        nodes = [rec.node(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        constants = (torch.fx.Node, type(None), *CONSTANTS)
        builder.graph.output([node if type(node) in constants else None for node in nodes])
        written = [value for value in builder.written if value.home != builder.index]
        if written and self._plain:
            rec.stop_here(catalogue.UNSUPPORTED, "a function that is transformed writes a tensor")
        self._written += written
        self._made.append((builder, builder.graph, layout))

    @property
    def result(self) -> pytree.TreeSpec:
        return self._made[0][2]

    def write(self) -> None:
        """The tensors from around it that it has written are written by the node."""
        for value in self._written:
            tensor = self._rec.tracker.tensor(value)
            if tensor is not None:
                self._rec._written(tensor)

    def may_have_drawn(self) -> bool:
        """Whether a call drew random numbers, or was not recorded to its end."""
        return not self._made or any(builder.random for builder, _, _ in self._made)

    def graph_module(self) -> torch.fx.GraphModule:
        return torch.fx.GraphModule({}, self._made[0][1])

    def taken(self) -> list[Any]:
        """The tensors and numbers that the body takes from around it. Raises Stopped."""
        found = [
            meta.seen if isinstance(meta, Number) else self._rec.tracker.tensor(value)
            for value, meta in self._made[0][0].taken()
        ]
        tensors = [tensor for tensor in found if tensor is not None]
        if len(tensors) < len(found):
            self._rec.stop_here(
                catalogue.UNSUPPORTED,
                "a transformed function that reads a traced number from outside",
            )
        return tensors

    def close(self) -> list[Any]:
        """The nodes of what the body takes from around it. Raises Stopped."""
        rec = self._rec
        if not rec.active or not self._made:
            rec.stop_here(catalogue.UNSUPPORTED, "a transformed function is not called")
        codes = {graph.python_code("self").src for _, graph, _ in self._made}
        taken = [builder.taken() for builder, _, _ in self._made]
        if len(codes) > 1 or any(one != taken[0] for one in taken):
            rec.stop_here(
                catalogue.UNSUPPORTED, "a function that differs from one chunk to another"
            )
        rec.segment.random |= any(builder.random for builder, _, _ in self._made)
        return [rec.segment.node(value, meta) for value, meta in taken[0]]


def _pulled_back(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    leaves, given = pytree.tree_flatten((args, kwargs))
    known = rec.pullbacks.get(id(function))
    try:
        if known is None or not rec.is_open(known[1].home):
            rec.stop(catalogue.UNSUPPORTED, "the second result of a vjp that is elsewhere")
            return function(*args, **kwargs)
        nodes = tuple(_node(rec, leaf) for leaf in leaves)
    except RecordingStopped:
        return function(*args, **kwargs)
    with rec.paused():
        result = rec.once(function, args, kwargs)
        with contextlib.suppress(RecordingStopped):
            source = rec.segment.node(known[1], _NO_TENSOR)
            bind(rec, PulledBack(given), (source, *nodes), result)
    return result
