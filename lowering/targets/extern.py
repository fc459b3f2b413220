"""Extern calls as steps of a program."""

from collections import Counter
from collections.abc import Callable, Container, Iterable
from typing import Any

import torch

from ...runtime.programs.program import Expression, Extern, Name, Shape, Size, View
from ...runtime.programs.result_memory import MIN_POOLED_BYTES
from ..loops.ir import Buffer
from ..loops.kernel_graph import ExternCall, Layout, Ref, Symbol, Unit, is_dense, leaves
from ..loops.polynomials import Poly, variables
from ..loops.sizes import contiguous_strides
from ..loops.storage import given_buffers, touched

aten = torch.ops.aten

# By their public names, which Python calls faster. Their one meta function, used for fake and for
# real tensors alike (`structured_delegate` in native_functions.yaml), makes their results
# contiguous.
PRODUCTS: dict[Any, Callable[..., Any]] = {
    aten.mm.default: torch.mm,
    aten.bmm.default: torch.bmm,
    aten.addmm.default: torch.addmm,
    aten._addmm_activation.default: torch._addmm_activation,
    aten.baddbmm.default: torch.baddbmm,
}

CONVOLUTIONS: dict[Any, Callable[..., Any]] = {
    aten.convolution.default: torch.convolution,
    aten.cudnn_convolution_relu.default: torch.cudnn_convolution_relu,
    aten.cudnn_convolution_add_relu.default: torch.cudnn_convolution_add_relu,
}

_OTHERS = (
    *("mul.Tensor", "add.Tensor", "sub.Tensor", "div.Tensor", "conj_physical", "_conj"),
    *("view_as_real", "view_as_complex", "polar", "complex", "_fft_r2c", "_fft_c2r", "_fft_c2c"),
    *("gather", "scatter_reduce.two", "index_select", "clone", "constant_pad_nd", "slice_scatter"),
    *("sort", "topk", "cummax", "searchsorted.Tensor", "grid_sampler_2d"),
    *("_embedding_bag", "_embedding_bag_forward_only"),
    "_scaled_dot_product_flash_attention_for_cpu",
)


def _by_public_names() -> dict[Any, Callable[..., Any]]:
    found = {}
    for name in _OTHERS:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(aten, packet), overload or "default")
        found[operator] = getattr(torch, packet, operator)
    return found


PUBLIC = PRODUCTS | CONVOLUTIONS | _by_public_names()


# Their results are new memory, and they keep nothing of their arguments.
LIBRARY = frozenset(
    (
        *PRODUCTS,
        *CONVOLUTIONS,
        aten.convolution_backward.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
        aten.embedding_dense_backward.default,
    )
)


def number(size: Any) -> Size:
    """The size as a program's number."""
    return (
        Expression(str(size), tuple(var.name for var in variables(size)))
        if isinstance(size, Poly)
        else size
    )


def numbers(sizes: Iterable[Any]) -> Shape:
    return tuple(number(size) for size in sizes)


def tensor(ref: Ref, layout: Layout) -> Name | View:
    """The variable of the buffer's tensor, or a view of it."""
    if ref.shape == layout.shape and ref.strides == layout.strides and ref.offset == 0:
        return Name(ref.buffer.name)
    return View(ref.buffer.name, numbers(ref.shape), numbers(ref.strides), number(ref.offset))


def convert(tree: Any, variable: Callable[[Ref], Name | View]) -> Any:
    """Arguments with `Ref`, sizes and `Symbol` replaced by what a program understands."""
    if isinstance(tree, Ref):
        return variable(tree)
    if isinstance(tree, Symbol):
        return Name(tree.name)
    if isinstance(tree, Poly):
        return number(tree)
    if isinstance(tree, list | tuple):
        return type(tree)(convert(item, variable) for item in tree)
    if isinstance(tree, dict):
        return {key: convert(item, variable) for key, item in tree.items()}
    return (
        slice(*(convert(part, variable) for part in (tree.start, tree.stop, tree.step)))
        if isinstance(tree, slice)
        else tree
    )


def extern_step(
    call: ExternCall,
    variable: Callable[[Ref], Name | View],
    exact: Container[Buffer],
    placed: Container[Buffer],
) -> Extern:
    """exact: buffers whose readers were compiled for their layout; placed: those that have memory
    before the call."""
    args, kwargs = convert(call.args, variable), convert(call.kwargs, variable)
    if isinstance(call.result, Ref) and call.result.buffer in placed:
        kwargs = {**kwargs, "out": variable(call.result)}
        target, origins, large = PRODUCTS[call.target], (call.origin,), _is_large(call)
        return Extern(target, args, kwargs, None, (), origins, pure=True, large=large)
    layouts = tuple(
        (ref.buffer.name, numbers(ref.shape), numbers(ref.strides), ref.buffer.dtype)
        for ref in leaves(call.result)
        if isinstance(ref, Ref) and ref.buffer in exact and not _known(call, ref)
    )
    target, names = PUBLIC.get(call.target, call.target), _names(call.result)
    pure, large = _is_pure(call), _is_large(call)
    return Extern(target, args, kwargs, names, layouts, (call.origin,), pure, large)


def _is_large(call: ExternCall) -> bool:
    """Whether the call may make large tensors: if it takes or gives one, or what no size tells."""
    parts = [*leaves((call.args, call.kwargs, call.result))]
    if any(isinstance(part, Symbol) for part in parts):
        return True
    return any(
        not isinstance(part.numel, int) or part.numel * part.dtype.itemsize >= MIN_POOLED_BYTES
        for part in parts
        if isinstance(part, Ref)
    )


def placeable(unit: Unit) -> set[Buffer]:
    """Buffers of known sizes on the CPU that library calls alone touch, apart from kernels: their
    memory may be anywhere."""
    found, barred = set(unit.extern_buffers()), set[Buffer]()
    for call in unit.items:
        if isinstance(call, ExternCall):
            read = [ref for ref in leaves((call.args, call.kwargs)) if isinstance(ref, Ref)]
            made = [ref for ref in leaves(call.result) if isinstance(ref, Ref)]
            placing = call.target in PRODUCTS and all(_known(call, ref) for ref in made)
            barred.update(
                ref.buffer for ref in read if call.target not in LIBRARY or not _is_plain(ref, unit)
            )
            barred.update(ref.buffer for ref in made if not placing or not _is_plain(ref, unit))
    return found - barred


def _is_plain(ref: Ref, unit: Unit) -> bool:
    known = all(
        isinstance(size, int) for size in (*ref.shape, *ref.strides, ref.offset, ref.buffer.size)
    )
    return known and ref.buffer.size > 0 and unit.layouts[ref.buffer].device.type == "cpu"


def _known(call: ExternCall, result: Ref) -> bool:
    return call.target in PRODUCTS and result.strides == contiguous_strides(result.shape)


def _is_pure(call: ExternCall) -> bool:
    """Of ATen's operators alone is it known what they do with their arguments."""
    schema = getattr(call.target, "_schema", None)
    return (
        schema is not None
        and schema.name.startswith("aten::")
        and not (schema.is_mutable or call.aliases)
    )


def _names(result: Any) -> Any:
    if isinstance(result, tuple):
        return tuple(_names(item) for item in result)
    return (
        result.buffer.name
        if isinstance(result, Ref)
        else result.name
        if isinstance(result, Symbol)
        else None
    )


def exact_layouts(unit: Unit) -> set[Buffer]:
    """Buffers whose layout something relies on: kernels and views read them by strides, and the
    graph's results have strides of their own. An extern call alone takes what it is given, an
    undefined tensor included."""
    found = set(unit.outputs_buffers())
    for item in unit.items:
        if isinstance(item, ExternCall):
            refs = [ref for ref in leaves((item.args, item.kwargs)) if isinstance(ref, Ref)]
            found |= {
                ref.buffer
                for ref in refs
                if isinstance(tensor(ref, unit.layouts[ref.buffer]), View)
            }
        else:
            found |= touched(item)
    return found


def common_layouts(unit: Unit) -> dict[Buffer, Layout]:
    """The unit's layouts, with each buffer that is allocated here in the shape in which extern
    calls and the graph's results use it most: these need no view of it then. Kernels take addresses
    alone."""
    calls = [item for item in unit.items if isinstance(item, ExternCall)]
    fixed = given_buffers(unit).union(*(call.writes() for call in calls))
    uses: dict[Buffer, Counter[tuple[Any, Any]]] = {}
    for ref in leaves([unit.outputs, *((call.args, call.kwargs) for call in calls)]):
        if isinstance(ref, Ref) and ref.buffer not in fixed and _is_whole(ref):
            uses.setdefault(ref.buffer, Counter())[ref.shape, ref.strides] += 1
    best = {buffer: counter.most_common(1)[0][0] for buffer, counter in uses.items()}
    return unit.layouts | {b: Layout(*layout, unit.layouts[b].device) for b, layout in best.items()}


def _is_whole(ref: Ref) -> bool:
    return ref.offset == 0 and ref.numel == ref.buffer.size and is_dense(ref.shape, ref.strides)
