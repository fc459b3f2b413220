"""`tensor.data = value`: the tensor has the value's memory from then on. Later calls do it at their
end; what the call reads of the tensor after it, without gradients, it reads of the value.
`tensor.requires_grad = True`: a node, as `requires_grad_()`."""

from typing import Any

import torch

from ..capture import made_histories
from ..capture.effects import SideEffect, constant
from ..capture.stops import RecordingStopped
from ..capture.trace import Recorder
from ..capture.values import Meta, is_plain, storage_of


def store(rec: Recorder, tensor: torch.Tensor, value: Any) -> bool:
    """Done now, and at every later call; False, and nothing done, where that is not to be
    recorded."""
    with rec.paused(), torch._C.DisableTorchFunction():
        if is_same(rec, tensor, value):
            return True
        if not _may_be_stored(rec, tensor, value):
            return False
        rec.before_change(tensor)
        tensor.data = value
        rec.tracker.move_away(tensor, rec.value(value))
        rec.effects.append(SideEffect(setattr, (tensor, constant("data"), value)))
        return True


def is_same(rec: Recorder, tensor: torch.Tensor, value: Any) -> bool:
    """Whether the store changes nothing: it ends `tensor.data *= 2`, which wrote in place. That two
    inputs share memory is of this call alone."""
    if type(value) is not torch.Tensor or rec.tracker.get(value) is None:
        return False
    others = (other for other in rec.tracker.sharing(value) if other is not tensor)
    if any(map(rec.tracker.is_input, others)):
        return False
    places = [(storage_of(t), t.storage_offset(), Meta.of(t.detach())) for t in (tensor, value)]
    return places[0] == places[1]


def _may_be_stored(rec: Recorder, tensor: torch.Tensor, value: Any) -> bool:
    """Whether a tensor from outside gets memory of the same layout, and no backward that is still
    to come needs what it held."""
    if type(value) is not torch.Tensor or not is_plain(tensor) or not is_plain(value):
        return False
    try:
        rec.value(tensor)
        rec.value(value)
    except RecordingStopped:
        return False
    alike = Meta.of(tensor.detach()) == Meta.of(value.detach())
    if not alike or value.requires_grad or not rec.tracker.is_input(tensor):
        return False
    return not tensor.requires_grad or made_histories.need_nothing_of(tensor, rec.tracker)


def _store_flag(rec: Recorder, tensor: torch.Tensor, value: Any) -> bool:
    """False, and nothing done, where the method would not do, or say, the same."""
    with rec.paused(), torch._C.DisableTorchFunction():
        alike = tensor.is_leaf and (tensor.is_floating_point() or tensor.is_complex())
    if not alike or type(value) is not bool:
        return False
    rec.call(torch.Tensor.requires_grad_, (tensor, value), {})
    return True


STORES = {"data": store, "requires_grad": _store_flag}
