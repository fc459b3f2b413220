"""The end of a graph: new values copied to the inputs that it overwrites."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..loops.ir import Buffer
from ..loops.kernel_graph import KERNEL_DTYPES, ExternCall, Layout, Ref, extent, is_distinct
from .lowering_context import LoweringContext
from .value_builders import cast

aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class Write:
    """`source` goes to the input `target`. loops: whether kernels can do it."""

    target: Any
    source: Any
    origin: str
    loops: bool


def write_back(
    ctx: LoweringContext, writes: Sequence[Write], outputs: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Adds the writes to the items. Returns the outputs, with copies of those that a write
    changes."""
    stored = {w.target.buffer for w in writes if isinstance(w.target, Ref)}
    stored |= set(_aliases(ctx, stored))
    outputs = tuple(_kept(ctx, output, stored) for output in outputs)
    for write in writes:
        ctx.origin = write.origin
        if not _is_loop(write):
            source = _kept(ctx, write.source, stored)
            call = aten.copy_.default
            ctx.items.append(
                ExternCall(call, (write.target, source), {}, write.target, write.origin)
            )
        elif 0 not in write.target.shape:
            target, source = write.target, write.source
            ctx.fill(target, lambda at, t=target, s=source: cast(s.load(at), t.dtype))  # type: ignore[misc]
    return outputs


def _is_loop(write: Write) -> bool:
    refs = (write.target, write.source)
    if not write.loops or not all(isinstance(ref, Ref) for ref in refs):
        return False
    plain = all(ref.dtype in KERNEL_DTYPES for ref in refs)
    return plain and is_distinct(write.target.shape, write.target.strides)


def _aliases(ctx: LoweringContext, stored: Iterable[Buffer]) -> Iterable[Buffer]:
    """Buffers that are views, made by extern calls, of those stored."""
    known = set(stored)
    for item in ctx.items:
        if isinstance(item, ExternCall) and item.aliases and known & set(item.reads()):
            known |= set(item.writes())
    return known


def _kept(ctx: LoweringContext, value: Any, stored: set[Buffer]) -> Any:
    """The value as it is before the writes."""
    if not isinstance(value, Ref) or value.buffer not in stored:
        return value
    device = ctx.device_of(value)
    buffer = Buffer(ctx.fresh("old"), value.dtype, extent(value.shape, value.strides))
    ctx.layouts[buffer] = Layout(value.shape, value.strides, device)
    made = Ref(buffer, value.shape, value.strides)
    ctx.items.append(ExternCall(aten.clone.default, (value,), {}, made, ctx.origin))
    return made
