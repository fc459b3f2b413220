"""Tensors that hold the same numbers in every call that the guards and outcomes let through: made
of constants alone, or of small inputs whose content each call compares first. What Python reads
of them decides nothing."""

import ctypes
import operator
from collections.abc import Iterable
from typing import Any

import torch
import torch.fx

from ....lowering.graph.func_transforms import PulledBack, Transformed
from ....runtime.guards.guard import Obj
from ....runtime.programs.recipes import Apply, Input
from ....runtime.programs.steps import CALL_INPUT
from ... import catalogue
from .. import opsets
from ..dynamic_inputs import is_argument
from ..nested import tensors_in
from ..values import Meta, TracedTensor, is_plain

MAX_COMPARED_ELEMENTS = (
    64  # elements of an input that a call compares, so that what follows from it is constant
)


def are(recorder: Any, args: Any, given: bool = False) -> bool:
    """Whether all tensors in `args` are constant: nothing from outside the graph went into them
    but small inputs that later calls compare, nothing random, and nothing that was written in this
    recording. `given`: inputs themselves may be among them, and parameters that learn."""
    tracked = [recorder.tracker.get(tensor) for tensor in tensors_in(args)]
    if not tracked or any(t is None or not (given or t.value.home >= 0) for t in tracked):
        return False
    found = _inputs_below(recorder, [t.value for t in tracked if t is not None])
    return found is not None and _pinned(recorder, found, given)


def as_array(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """`t.numpy()` of a constant tensor. Whoever writes into the array writes into the tensor: that
    is looked for at the end of the recording (`written`)."""
    recorder.arrays_of.append((args[0], args[0].clone()))
    return func(*args, **kwargs)


def is_array(value: Any) -> bool:
    """A NumPy array of numbers."""
    plain = type(value).__name__ == "ndarray" and type(value).__module__ == "numpy"
    return plain and not value.dtype.hasobject


def as_tensor(recorder: Any, make: Any, array: Any, **how: Any) -> Any:
    """`make(array)`, a tensor of a constant array: the graph copies one that is kept."""
    with recorder.paused():
        result = make(array, **how)
        recorder.arrays_of.append((result, bind(recorder, result)))
    return result


def bind(recorder: Any, result: torch.Tensor) -> torch.Tensor:
    """A tensor that no operator of the graph made, the same in each call: the graph copies one that
    is kept, which is returned. Call while the recorder is paused."""
    kept = result.clone()
    if kept.stride() != result.stride():
        recorder.stop_here(catalogue.UNSUPPORTED, "a tensor on part of an array's memory")
    recorder.known.register(kept, Obj(kept, "constant"))
    origin, segment = recorder.origin_text(), recorder.segment
    node = segment.call("call_method", "clone", (recorder.node(kept),), {}, origin)
    recorder.tracker.add(result, TracedTensor(segment.index, node, -1, Meta.of(result)))
    recorder.constants.add(recorder.value(kept))
    return kept


def written(recorder: Any) -> bool:
    """Whether an array that a constant tensor shares, or one from outside that was read, holds
    something else by now."""
    shared = any(not torch.equal(tensor, copy) for tensor, copy in recorder.arrays_of)
    return shared or any(not check.passes(array) for array, check in recorder.known.arrays)


def _inputs_below(recorder: Any, values: Iterable[TracedTensor]) -> set[TracedTensor] | None:
    """The inputs that went into `values`; None where something did that is not constant."""
    changed = {value for segment in recorder.segments for value in segment.written}
    nodes = {value.node for value in changed}
    found: set[TracedTensor] = set()
    met: set[Any] = set()
    todo: list[Any] = list(values)
    while todo:
        step = todo.pop()
        if step in met:
            continue
        met.add(step)
        if isinstance(step, TracedTensor):
            if step in changed or step.home < CALL_INPUT:
                return None
            if step in recorder.constants:
                continue
            if step.home == CALL_INPUT:
                found.add(step)
            else:
                todo.append(step.node)
        elif step.op == "placeholder":
            todo.append(_imported(recorder, step))
        elif step in nodes or not _computes(step):
            return None
        else:
            todo += _below(step)
    return found


def _below(node: torch.fx.Node) -> list[torch.fx.Node]:
    """What goes into a node's value."""
    source, index = node.args[:2] if node.target is operator.getitem else (None, None)
    packed = isinstance(source, torch.fx.Node) and source.target is torch._VF._pack_padded_sequence
    if packed and index == 1:  # how many sequences are that long follows from the lengths alone
        return [source.args[1]]  # type: ignore[union-attr, list-item]
    return node.all_input_nodes


def _imported(recorder: Any, placeholder: torch.fx.Node) -> TracedTensor:
    builder = next(each for each in recorder.segments if each.graph is placeholder.graph)
    value: TracedTensor = builder.imported(placeholder)
    return value


_OPAQUE = (type, Transformed, PulledBack)


def _computes(node: torch.fx.Node) -> bool:
    """Whether the node makes what its arguments decide."""
    if node.op not in ("call_function", "call_method") or isinstance(node.target, _OPAQUE):
        return False
    name = node.target if isinstance(node.target, str) else node.target.__name__
    return not opsets.draws(name) and "empty" not in name


def _pinned(recorder: Any, values: set[TracedTensor], learnt: bool) -> bool:
    """Whether later calls can be told apart by the content of these inputs; from now on they
    are. `learnt`: parameters may be among them."""
    tensors = {value: tensor for tensor, value in recorder.tracker.live_inputs()}
    if values - tensors.keys():
        return False
    pins = [(recorder.path_at(value.index), value, tensors[value]) for value in values]
    if not all(_may_pin(recorder, learnt, *pin) for pin in pins):
        return False
    for path, value, tensor in pins:
        if value not in recorder.pinned:
            recorder.pinned[value] = recorder.moving.contents[path] = content(tensor)
            recorder.outcomes.append(
                (0, Apply(content, (Input(value.index),)), recorder.pinned[value])
            )
    return True


def _may_pin(
    recorder: Any, learnt: bool, path: Any, value: TracedTensor, tensor: torch.Tensor
) -> bool:
    """A small tensor that holds what an earlier recording compared, if there was one; of what the
    call is given, only numbers that count or choose."""
    if not is_plain(tensor) or value.index in recorder.dynamic_inputs:
        return False
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_complex():
        return False
    learns = tensor.requires_grad and recorder.grad_mode and not learnt
    if (
        tensor.numel() > MAX_COMPARED_ELEMENTS
        or learns
        or (tensor.is_floating_point() and is_argument(path))
    ):
        return False
    before = recorder.moving.contents.get(path)
    return before is None or value in recorder.pinned or before == content(tensor)


def content(tensor: torch.Tensor) -> bytes:
    """What a contiguous tensor on the CPU holds, byte by byte, read without an operator."""
    size = tensor.numel() * tensor.element_size()
    return ctypes.string_at(tensor.data_ptr(), size) if size else b""
