"""What the host does beside the work of a GPU, apart from it: a CUDA graph holds that alone."""

from __future__ import annotations

import dataclasses

from .host_scalars import TO_GPU
from .loops.ir import Buffer
from .loops.kernel_graph import ExternCall, Item, Ref, Unit
from .loops.polynomials import is_known
from .loops.storage import touched


@dataclasses.dataclass(frozen=True)
class Parts:
    """A unit in two.

    graphed: the GPU's work, with None for the host's outputs; it takes the inputs `taken`, then
    what the host hands over. host: takes the inputs `given`; gives the outputs at `places`, then
    what it hands over. None where the host does nothing.
    """

    graphed: Unit
    host: Unit | None = None
    given: tuple[int, ...] = ()
    taken: tuple[int, ...] = ()
    places: tuple[int, ...] = ()


def split_host_device(unit: Unit) -> Parts:
    """The unit in two, where nothing goes from the GPU to the host: random numbers, an optimizer's
    step count and what is made of it. Whole where that cannot be."""
    items = [item for item in unit.items if is_of_host(item, unit) or _hands_over(item)]
    others = [item for item in unit.items if item not in items]
    handed = [item.result for item in items if _hands_over(item)]  # type: ignore[union-attr]
    given = tuple(k for k, ref in enumerate(unit.inputs) if _is_host_input(ref, unit))
    inside = {unit.inputs[k].buffer for k in given} | {b for item in items for b in touched(item)}
    inside -= {ref.buffer for ref in handed}
    shared = {buffer for item in others for buffer in touched(item)} & inside
    sizes = [size for b in inside for size in (*unit.layouts[b].shape, *unit.layouts[b].strides)]
    known = all(map(is_known, sizes)) and not (given and unit.variables)
    if not inside or shared or not known:
        return Parts(unit)
    of_host = [isinstance(out, Ref) and out.buffer in inside for out in unit.outputs]
    places = tuple(k for k, is_host in enumerate(of_host) if is_host)
    taken = tuple(k for k in range(len(unit.inputs)) if k not in given)
    host = unit.replace(
        items=tuple(items),
        inputs=tuple(unit.inputs[k] for k in given),
        outputs=(*(unit.outputs[k] for k in places), *handed),
        variables=(),
        returned=sum(k < unit.returned for k in places),
    )
    pairs = zip(unit.outputs, of_host, strict=True)
    graphed = unit.replace(
        items=tuple(others),
        inputs=(*(unit.inputs[k] for k in taken), *handed),
        outputs=tuple(None if is_host else out for out, is_host in pairs),
    )
    return Parts(graphed, host, given, taken, places)


def is_of_host(item: Item, unit: Unit) -> bool:
    """Whether the item touches memory of the host, and none of a GPU."""
    buffers = touched(item)
    return bool(buffers) and all(on_host(buffer, unit) for buffer in buffers)


def on_host(buffer: Buffer, unit: Unit) -> bool:
    return unit.layouts[buffer].device.type == "cpu"


def _hands_over(item: Item) -> bool:
    return isinstance(item, ExternCall) and item.target is TO_GPU


def _is_host_input(ref: object, unit: Unit) -> bool:
    return isinstance(ref, Ref) and on_host(ref.buffer, unit)
