"""Custom operators that no graph can hold: fake tensors cannot tell their results (sizes depend on
data, or there is no fake form, or a wrong one), or gradients pass through their kernels."""

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._pytree import tree_map_only

from ...runtime import diagnostics
from .. import catalogue
from .nested import tensors_in
from .values import Meta

REFUSALS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
_OWN = frozenset({"aten", "prims", "prim", "dynfix"})
_WITHOUT_GRADIENTS = frozenset({"_c10d_functional", "c10d"})
_DERIVATIVES = ("Autograd", "AutogradCPU", "AutogradCUDA", "CompositeImplicitAutograd")
_refused: dict[Any, bool] = {}  # by operator, as its first call answered, or a wrong fake form did


def packet_of(func: Any) -> Any:
    """The custom operator that is called; None for another function."""
    packet = getattr(func, "overloadpacket", func)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return None
    return None if _parts(packet)[0] in _OWN else packet


def _parts(packet: Any) -> tuple[str, str]:
    """Namespace and name."""
    space, name = packet._qualified_op_name.split("::")
    return space, name


def why_between_graphs(func: Any, args: Any, kwargs: Any) -> str:
    """Why the call runs between graphs; empty if it need not."""
    packet = packet_of(func)
    if packet is None:
        return ""
    space, name = _parts(packet)
    if packet not in _refused:
        _refused[packet] = _is_refused(func, args, kwargs)
    if _refused[packet]:
        return f"the result of {name} is known when it has run"
    counts = space not in _WITHOUT_GRADIENTS and _is_differentiated(args, kwargs)
    if counts and any(map(_has_no_derivative, _names(func))):
        return f"gradients go through the kernel of {name}, which has no derivative"
    return ""


def _is_refused(func: Any, args: Any, kwargs: Any) -> bool:
    try:
        _faked(func, args, kwargs)
    except REFUSALS:
        return True
    except Exception as error:  # others will come again from the operator itself
        return "no fake impl" in str(error) or _launches_kernels(func)
    return False


def _launches_kernels(func: Any) -> bool:
    """Whether `torch.library.triton_op` made the operator; fakes have no memory for kernels that
    are interpreted."""
    library = sys.modules.get("torch._library.triton")
    names = {name.partition(".")[0] for name in _names(func)}
    return library is not None and not names.isdisjoint(library.triton_ops_to_kernels)


def _faked(func: Any, args: Any, kwargs: Any) -> Any:
    with torch._C.DisableTorchFunction(), FakeTensorMode(), torch.no_grad():
        like = tree_map_only(torch.Tensor, lambda each: Meta.of(each).fake(), (args, kwargs))
        return func(*like[0], **like[1])


def record_effects(recorder: Any, func: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Have the graph lay out what a custom operator gave as it lies, whatever its fake form says.
    Where that gives another shape, dtype or device, the recording ends, and at the next one the
    operator runs between graphs."""
    packet = packet_of(func)
    if packet is None or _refused.get(packet) or not recorder.active:
        return
    for tensor in tensors_in(result):
        recorder.segment.note_strides(recorder.tracker.get(tensor).value)
    try:
        given, said = (_looks(each) for each in (result, _faked(func, args, kwargs)))
    except Exception as error:  # compiling tells
        diagnostics.log.debug("the fake form of %s: %r", packet, error)
        return
    if given != said:
        _refused[packet] = True
        name = _parts(packet)[1]
        why = f"{name} gives {_text(given)}, where its fake form says {_text(said)}"
        recorder.stop(catalogue.UNSUPPORTED, why)


_Looks = list[tuple[tuple[int, ...], torch.dtype, torch.device]]


def _looks(result: Any) -> _Looks:
    return [(tuple(each.shape), each.dtype, each.device) for each in tensors_in(result)]


def _text(looks: _Looks) -> str:
    return ", ".join(f"{shape} of {dtype} on {device}" for shape, dtype, device in looks) or "none"


def _is_differentiated(args: Any, kwargs: Any) -> bool:
    given = tensors_in((args, tuple(kwargs.values())))
    return torch.is_grad_enabled() and any(each.requires_grad for each in given)


def _names(func: Any) -> Iterator[str]:
    if isinstance(func, torch._ops.OpOverload):
        yield func.name()  # type: ignore[no-untyped-call]
    else:
        yield from (getattr(func, overload).name() for overload in func.overloads())


def _has_no_derivative(name: str) -> bool:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return not any(has_kernel(name, key) for key in _DERIVATIVES)
