"""Tensors of NumPy's arrays that hold something else at every call: they are inputs of the graph,
on the memory of the array."""

from typing import Any

import torch

from ....runtime.guards.guard import ArrayContent, Obj, OnArray
from ..provenance import share_memory


def as_input(recorder: Any, array: Any, moves: bool = False) -> torch.Tensor | None:
    """`torch.from_numpy(array)` of an array from outside; None where it is better a constant: it
    was not seen to change (`moves`: will change in any case) and is no large one, or something of
    it is relied upon."""
    known = recorder.known
    path = known.path_of(array)
    if path is None or isinstance(path, Obj) or not array.flags.writeable:
        return None
    moves = moves or path in recorder.moving.arrays
    if not moves and array.nbytes <= ArrayContent.MOST:
        return None
    for lent, tensor, _ in known.lent:
        if lent is array:
            return torch.ops.aten.alias.default(tensor)  # type: ignore[no-any-return]
    relied_upon = any(share_memory(array, given) for given, _ in known.arrays)
    if relied_upon or known.is_lent(array) or known.was_written(array):
        return None
    with recorder.paused():
        try:
            tensor = torch.from_numpy(array)
        except (TypeError, ValueError):  # a type, or an order, that torch does not have
            return None
    known.register(tensor, OnArray(path))
    known.lent.append((array, tensor, array.tobytes()))
    return tensor


def written(recorder: Any) -> bool:
    """Whether the call wrote to such an array, be it through the tensor, or stored to an array on
    whose memory an input is: the store is done again when the graph has run."""
    known = recorder.known
    inputs = [tensor for tensor, _ in recorder.tracker.live_inputs()]
    return any(array.tobytes() != held for array, _, held in known.lent) or any(
        _overlap(tensor, array) for array in known.stored_to for tensor in inputs
    )


def _overlap(tensor: torch.Tensor, array: Any) -> bool:
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not array.size:
        return False
    memory = tensor.untyped_storage()
    first, last = memory.data_ptr(), memory.data_ptr() + memory.nbytes()
    steps = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    start = array.__array_interface__["data"][0]
    low = start + sum(step for step in steps if step < 0)
    high = start + sum(step for step in steps if step > 0) + array.itemsize
    return bool(first < high and low < last)
