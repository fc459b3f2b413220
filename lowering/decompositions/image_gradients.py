"""Gradients of resizing and padding as sums over what each element was given to, instead of stores
to where it came from, which may meet. What they return lies in memory as the gradient they take.
And linear and bicubic resizing themselves."""

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import product
from math import ceil, prod
from operator import or_
from typing import Any

import torch
from torch._prims_common import get_computation_dtype, suggest_memory_format

aten = torch.ops.aten
MOST_TAPS = 16  # elements along an axis that one element of the input goes to
Resize = Callable[..., torch.Tensor]
Gradient = Callable[[torch.Tensor], torch.Tensor]
# Whether an element is reached, and by what share, if not by all.
Weight = tuple[torch.Tensor, torch.Tensor | None]


# Of channels-last images between these what is made along one axis is better read across channels.
FEW_CHANNELS, MANY_CHANNELS = 4, 16


class _Linear(torch.autograd.Function):
    """A linear operator with a gradient of its own."""

    @staticmethod
    def forward(x: torch.Tensor, apply: Gradient, gradient: Gradient) -> torch.Tensor:
        return apply(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _, ctx.apply_, ctx.gradient = inputs

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return ctx.gradient(grad), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: Any) -> Any:
        return ctx.apply_(tangent)


# resizing


def _is_whole(number: float) -> bool:
    return number == int(number)


def _shaped(vector: torch.Tensor, grad: torch.Tensor, dim: int) -> torch.Tensor:
    return vector.reshape(*(-1 if d == dim else 1 for d in range(grad.dim())))


def _gathered(
    grad: torch.Tensor,
    dim: int,
    first: torch.Tensor,
    taps: int,
    weight: Callable[[torch.Tensor], Weight],
) -> torch.Tensor:
    """For each element of `first`, the sum along `dim` of `taps` elements from there on, times
    their weights; those that do not reach it, or outside of the axis, count for nothing, NaN
    either. Strides as those of `grad`."""
    size, memory = grad.shape[dim], suggest_memory_format(grad)
    in_order = not FEW_CHANNELS < grad.shape[1] < MANY_CHANNELS
    total: torch.Tensor | None = None
    for tap in range(taps):
        at = first + tap
        reached, weights = weight(at)
        reached = reached & (at >= 0) & (at < size)
        picked = grad.index_select(dim, at.clamp(0, size - 1))
        picked = picked.contiguous(memory_format=memory) if in_order else picked
        if weights is not None:
            picked = picked * _shaped(weights.to(grad.dtype), grad, dim)
        taken = torch.where(_shaped(reached, grad, dim), picked, 0)
        total = taken if total is None else total + taken
    assert total is not None
    return total.contiguous(memory_format=memory)


def _linear_axis(
    grad: torch.Tensor, dim: int, size: int, scale: float, align_corners: bool
) -> torch.Tensor:
    """scale: steps of the input for one of the output."""
    kind, steps = grad.dtype, 1 / scale
    taps = ceil(2 * steps) + (not _is_whole(steps))
    places = torch.arange(size, device=grad.device)
    low = (places - 1) * steps if align_corners else (places - 0.5) * steps - 0.5
    first = low.to(torch.float64).floor().to(torch.int64) + 1

    def weight(at: torch.Tensor) -> Weight:
        where = at.to(kind)
        source = scale * where if align_corners else scale * (where + 0.5) - 0.5
        source = source.clamp(min=0.0)
        before = source.to(torch.int64)
        behind = (before + 1).clamp(max=size - 1)
        share = (source - before).clamp(0.0, 1.0)
        one, two = before == places, behind == places
        return one | two, torch.where(one, 1 - share, 0) + torch.where(two, share, 0)

    return _gathered(grad, dim, first, taps, weight)


def _cubic_taps(source: torch.Tensor, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The four elements of an axis of `size` that cubic convolution (a = -0.75) takes at places
    `source` between them, and their weights, as aten/src/ATen/native/UpSample.h has them."""
    before = source.floor()
    share = (source - before).clamp(0.0, 1.0)
    first, a = before.to(torch.int64) - 1, -0.75
    for tap, t in enumerate((share + 1.0, share, 1.0 - share, 2.0 - share)):
        far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
        near = ((a + 2) * t - (a + 3)) * t * t + 1
        yield (first + tap).clamp(0, size - 1), far if tap in (0, 3) else near


def _cubic_axis(
    x: torch.Tensor, dim: int, size: int, scale: Any, align_corners: bool
) -> torch.Tensor:
    places = torch.arange(size, device=x.device).to(x.dtype)
    source = scale * places if align_corners else scale * (places + 0.5) - 0.5
    taps = _cubic_taps(source, x.shape[dim])
    return _added(x.index_select(dim, at) * _shaped(weight, x, dim) for at, weight in taps)


def _cubic_gradient(
    grad: torch.Tensor, dim: int, size: int, scale: float, align_corners: bool
) -> torch.Tensor:
    kind, steps = grad.dtype, 1 / scale
    places = torch.arange(size, device=grad.device)
    low = (places - 2) * steps if align_corners else (places - 1.5) * steps - 0.5
    first = low.to(torch.float64).floor().to(torch.int64) + 1

    def weight(at: torch.Tensor) -> Weight:
        where = at.to(kind)
        source = scale * where if align_corners else scale * (where + 0.5) - 0.5
        taps = [(at == places, weight) for at, weight in _cubic_taps(source, size)]
        reached = reduce(or_, (here for here, _ in taps))
        return reached, _added(torch.where(here, weight, 0) for here, weight in taps)

    return _gathered(grad, dim, first, ceil(4 * steps) + (not _is_whole(steps)), weight)


def _single(number: float) -> float:
    (made,) = struct.unpack("f", struct.pack("f", number))
    return float(made)


def _repeats(size: int, steps: float, scale: float, exact: bool) -> bool:
    """Whether element `i` of the output is `i // steps` of the input, by arithmetic in float32."""
    factor, half = _single(scale), 0.5 * exact
    return _is_whole(steps) and all(
        int(_single((i * int(steps) + half) * factor)) == i
        and int(_single((i * int(steps) + steps - 1 + half) * factor)) == i
        for i in range(size)
    )


def _nearest_axis(
    grad: torch.Tensor, dim: int, size: int, scale: float, exact: bool
) -> torch.Tensor:
    places = torch.arange(size, device=grad.device)
    first = (places * (1 / scale)).to(torch.float64).floor().to(torch.int64) - 1

    def weight(at: torch.Tensor) -> Weight:
        source = ((at.to(torch.float32) + 0.5 * exact) * scale).to(torch.int64)
        return source == places, None

    return _gathered(grad, dim, first, ceil(1 / scale) + 2, weight)


def _spans(grad: torch.Tensor, dims: Sequence[int], steps: Sequence[int]) -> Iterator[torch.Tensor]:
    """For each place of blocks of `steps` along `dims`, the elements there."""
    for start in product(*map(range, steps)):
        part = grad
        for dim, at, step in zip(dims, start, steps, strict=True):
            part = aten.slice.Tensor(part, dim, at, part.shape[dim], step)
        yield part


def _added(parts: Iterator[torch.Tensor]) -> torch.Tensor:
    total = next(parts)
    for part in parts:
        total = total + part
    return total


def _in_computation_dtype(gradient: Gradient) -> Gradient:
    def made(grad: torch.Tensor) -> torch.Tensor:
        memory = suggest_memory_format(grad)
        found = gradient(grad.to(get_computation_dtype(grad.dtype)))
        return found.to(grad.dtype).contiguous(memory_format=memory)

    return made


def _known(x: torch.Tensor, output: Sequence[Any]) -> bool:
    """Whether the sizes are known, and there is anything to differentiate."""
    sizes = (*x.shape[2:], *output)
    return x.is_floating_point() and all(isinstance(size, int) and size > 0 for size in sizes)


def _steps(
    x: torch.Tensor, output: Sequence[Any], align_corners: bool, scales: Sequence[Any]
) -> list[Any]:
    """Along each axis, the step of the input for one of the output."""
    sizes = x.shape[2:]
    if align_corners:
        return [(n - 1) / (m - 1) if m > 1 else 0 for n, m in zip(sizes, output, strict=True)]
    return [1 / s if s else n / m for n, m, s in zip(sizes, output, scales, strict=True)]


def _along_axes(
    x: torch.Tensor, steps: Sequence[float], taps: int, align_corners: bool, axis: Any
) -> Gradient | None:
    """The gradient of a resizing, axis by axis; None if an element goes to too many. taps: how many
    elements of the input one of the output takes."""
    sizes = x.shape[2:]
    if not all(steps) or max(taps / step for step in steps) > MOST_TAPS:
        return None

    def gradient(grad: torch.Tensor) -> torch.Tensor:
        for dim, (size, step) in enumerate(zip(sizes, steps, strict=True), 2):
            grad = axis(grad, dim, size, step, align_corners)
        return grad

    return _in_computation_dtype(gradient)


def linear(
    x: torch.Tensor, output: Sequence[int], align_corners: bool, scales: Any
) -> Gradient | None:
    """The gradient of a linear, bilinear or trilinear resizing; None if it is not worked out."""
    if not _known(x, output):
        return None
    steps = _steps(x, output, align_corners, scales)
    return _along_axes(x, steps, 2, align_corners, _linear_axis)


def cubic(
    x: torch.Tensor, output: Sequence[int], align_corners: bool, scales: Any
) -> Gradient | None:
    """The same for a bicubic resizing, whose gradient eager has in contiguous order."""
    if not _known(x, output):
        return None
    steps = _steps(x, output, align_corners, scales)
    found = _along_axes(x, steps, 4, align_corners, _cubic_gradient)
    return None if found is None else lambda grad: found(grad).contiguous()


def resized_cubic(
    x: torch.Tensor, output: Sequence[Any], align_corners: bool, scales: Any
) -> torch.Tensor:
    """A bicubic resizing: along rows first, whose results the columns share."""
    steps = _steps(x, output, align_corners, scales)
    made = x.to(get_computation_dtype(x.dtype))
    for dim in (3, 2):
        made = _cubic_axis(made, dim, output[dim - 2], steps[dim - 2], align_corners)
    return made.to(x.dtype).contiguous(memory_format=suggest_memory_format(x))


def resized_linear(x: torch.Tensor, output: Sequence[Any], align_corners: bool, scales: Any) -> Any:
    """A linear, bilinear or trilinear resizing, by eager's weights: what is infinite stays so, and
    along an axis that is kept an element is made of itself alone."""
    kind, rank = get_computation_dtype(x.dtype), len(output)
    steps = _steps(x, output, align_corners, scales)
    axes = [
        _linear_taps(x.device, kind, size, wanted, step, align_corners)
        for size, wanted, step in zip(x.shape[2:], output, steps, strict=True)
    ]
    few = x.device.type == "cuda" and x.shape[1] < 16
    memory = torch.contiguous_format if few else suggest_memory_format(x)
    ends = [
        [end.reshape(-1, *(1,) * (rank - 1 - k)) for end in axis] for k, axis in enumerate(axes)
    ]
    along = x.device.type == "cpu" and suggest_memory_format(x) is torch.contiguous_format
    if along and not any(map(_is_regular, steps)):  # vectors of channels read all as they lie
        made = x.to(kind)
        for dim, (*places, share) in reversed([*enumerate(ends, 2)]):
            one, two = (made.index_select(dim, place.reshape(-1)) for place in places)
            made = one * (1 - share) + two * share
        return made.to(x.dtype).contiguous(memory_format=memory)
    parts: list[torch.Tensor] = [
        aten._unsafe_index(x, [None, None, *at]).to(kind) for at in product(*(e[:-1] for e in ends))
    ]
    for *places, share in reversed(ends):
        if len(places) == 1:
            parts = [part + part * share for part in parts]
            continue
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [one * (1 - share) + two * share for one, two in pairs]
    return parts[0].to(x.dtype).contiguous(memory_format=memory)


def _is_regular(step: Any) -> bool:
    """Whether positions have a period that loops are cut by: the same elements are read again by
    few instructions, in place of what is made along one axis."""
    known = isinstance(step, int | float) and step > 0
    return not known or _is_whole(step) or _is_whole(1 / step)


def _is_kept(size: Any, wanted: Any) -> bool:
    if isinstance(size, int) and isinstance(wanted, int):
        return size == wanted
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # which loads SymPy

    return bool(statically_known_true(size == wanted))


def _linear_taps(
    device: torch.device, kind: torch.dtype, size: Any, wanted: Any, step: Any, align_corners: bool
) -> list[torch.Tensor]:
    """For each element of the output the one or two of an axis that it is made of, and the share
    of the second."""
    places = torch.arange(wanted, device=device)
    if _is_kept(size, wanted):
        return [places, torch.zeros_like(places, dtype=kind)]
    source = step * places.to(kind) if align_corners else step * (places.to(kind) + 0.5) - 0.5
    source = source.clamp(min=0.0)
    first = source.to(torch.int64)
    return [first, (first + 1).clamp(max=size - 1), (source - first).clamp(0.0, 1.0)]


def nearest(x: torch.Tensor, output: Sequence[int], scales: Any, exact: bool) -> Gradient | None:
    """The same for nearest neighbours."""
    sizes = x.shape[2:]
    if not _known(x, output):
        return None
    steps = [n / (n * s) if s else n / m for n, m, s in zip(sizes, output, scales, strict=True)]
    if max(1 / step for step in steps) > MOST_TAPS:
        return None
    dims = range(2, x.dim())
    spans = [m // n for n, m in zip(sizes, output, strict=True)]
    whole = all(n * s == m for n, m, s in zip(sizes, output, spans, strict=True))
    repeats = whole and all(map(_repeats, sizes, spans, steps, [exact] * len(sizes)))

    def gradient(grad: torch.Tensor) -> torch.Tensor:
        if repeats and prod(spans) <= MOST_TAPS:
            return _added(_spans(grad, dims, spans))
        for dim, size, step in zip(dims, sizes, steps, strict=True):
            grad = _nearest_axis(grad, dim, size, step, exact)
        return grad

    return _in_computation_dtype(gradient)


def with_gradient(x: torch.Tensor, apply: Gradient, gradient: Gradient | None) -> Any:
    """`apply(x)`; under `vmap` and `grad`, which know no autograd functions while a graph is made,
    it is differentiated as it stands."""
    if gradient is None or torch._C._functorch.peek_interpreter_stack() is not None:
        return apply(x)
    return _Linear.apply(x, apply, gradient)  # type: ignore[no-untyped-call]


# padding

_LIBRARY: Any = torch.library.Library("dynfix", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("reflection_pad_backward(Tensor grad, SymInt[] size, int[] padding) -> Tensor")


def _unpadded(grad: torch.Tensor, size: Sequence[Any], padding: Sequence[int]) -> torch.Tensor:
    op = getattr(aten, f"reflection_pad{len(padding) // 2}d_backward").default
    made: torch.Tensor = op(grad, grad.new_empty(size), padding)
    return made.contiguous(memory_format=suggest_memory_format(grad))


def _unpadded_fake(grad: torch.Tensor, size: Sequence[Any], padding: Sequence[int]) -> torch.Tensor:
    return grad.new_empty(size).contiguous(memory_format=suggest_memory_format(grad))


_LIBRARY.impl("reflection_pad_backward", _unpadded, "CompositeExplicitAutograd")
torch.library.register_fake("dynfix::reflection_pad_backward", _unpadded_fake, lib=_LIBRARY)
REFLECTION_BACKWARD = torch.ops.dynfix.reflection_pad_backward.default


def _reflection_backward(grad: torch.Tensor, x: torch.Tensor, padding: Sequence[int]) -> Any:
    return REFLECTION_BACKWARD(grad, x.shape, padding)


def _added_rows(part: torch.Tensor, dim: int) -> torch.Tensor:
    return _added(part.narrow(dim, at, 1) for at in range(part.shape[dim]))


def _replicated(part: torch.Tensor, dim: int, size: int, low: int, high: int) -> Iterator[Any]:
    """The parts of a padded axis, with the zeros before and behind each in an axis of `size`."""
    yield part.narrow(dim, low, size), 0, 0
    if low:
        yield _added_rows(part.narrow(dim, 0, low), dim), 0, size - 1
    if high:
        yield _added_rows(part.narrow(dim, low + size, high), dim), size - 1, 0


def _replication_backward(grad: torch.Tensor, x: torch.Tensor, padding: Sequence[int]) -> Any:
    rank = len(padding) // 2
    parts: list[tuple[torch.Tensor, list[int]]]
    parts = [(grad.to(get_computation_dtype(grad.dtype)), [])]
    for number in range(rank):
        dim, (low, high) = x.dim() - 1 - number, padding[2 * number : 2 * number + 2]
        parts = [
            (made, [*zeros, before, behind])
            for part, zeros in parts
            for made, before, behind in _replicated(part, dim, x.shape[dim], low, high)
        ]
    padded = (
        aten.constant_pad_nd.default(part, zeros, 0) if any(zeros) else part
        for part, zeros in parts
    )
    return _added(padded).to(grad.dtype).contiguous(memory_format=suggest_memory_format(x))


def _where_known(gradient: Any, otherwise: Any) -> Any:
    """The gradient for images of known sizes, with padding that is known not to cut."""

    def backward(grad: torch.Tensor, x: torch.Tensor, padding: Sequence[int]) -> Any:
        numbers = (*padding, *x.shape)
        known = all(isinstance(n, int) and n >= 0 for n in numbers) and 0 not in x.shape
        if known and max(padding) <= MOST_TAPS:
            return gradient(grad, x, padding)
        return otherwise(grad, x, padding) if otherwise else NotImplemented

    return backward


def padding_gradients(table: dict[Any, Any]) -> dict[Any, Any]:
    """Decompositions of the gradients of padding, in front of those of the table."""
    kinds = {"reflection": _reflection_backward, "replication": _replication_backward}
    ops = {
        getattr(aten, f"{kind}_pad{rank}d_backward").default: gradient
        for kind, gradient in kinds.items()
        for rank in (1, 2)
    }
    return {op: _where_known(gradient, table.get(op)) for op, gradient in ops.items()}
