"""The dispatch modes of this package, and the one that makes its fake tensors, whose every operator
is a place where background work may rest."""

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._higher_order_ops import utils as higher_order
from torch._ops import HigherOrderOperator, OpOverload
from torch._prims_common import (
    ELEMENTWISE_TYPE_PROMOTION_KIND,
    compute_elementwise_output_strides,
    elementwise_dtypes,
)
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode

from ..runtime.background_budget import checkpoint
from ..runtime.programs.autocast_state import AutocastState

# Operators on functions whose rule the mode itself calls.
_OF_THE_MODE: Any = getattr(higher_order, "registered_hop_fake_fns", {})

# Operators whose shapes depend on data, which torch before 2.13 does not say of them: its mode runs
# their kernels on zeros, and believes what comes of that.
_DYNAMIC = torch.Tag.dynamic_output_shape
UNTAGGED = frozenset(op for op in (torch.ops.aten._unique.default,) if _DYNAMIC not in op.tags)

# Rules that leave out bfloat16 where the kernels for the host take it as they take float16.
_AS_HALF = (
    torch.ops.aten._embedding_bag.default,
    torch.ops.aten._embedding_bag_forward_only.default,
)


def _type_of_first(x: Any, *others: Any) -> torch.dtype:
    return x.dtype  # type: ignore[no-any-return]


def _type_of_all(tensors: Sequence[Any]) -> torch.dtype:
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH
    return elementwise_dtypes(*tensors, type_promotion_kind=kind)[1]


# The types of results of which torch's rules give another: losses have that of their input, and a
# number adds its kind alone to the blocks of a matrix.
_TYPES: dict[Any, Any] = {
    torch.ops.aten.huber_loss.default: _type_of_first,
    torch.ops.aten.soft_margin_loss.default: _type_of_first,
    torch.ops.aten.block_diag.default: _type_of_all,
}

# torch before 2.13 keeps axes of length one that are counted from the end.
_NORM = torch.ops.aten.linalg_vector_norm.default
# Their kernels read sizes that are symbols as numbers, which ends the process.
_SQUEEZES = {
    torch.ops.aten.squeeze_.dim: torch.ops.aten.squeeze.dim,
    torch.ops.aten.squeeze_.dims: torch.ops.aten.squeeze.dims,
}
# Its rule does not say in which order MKL leaves the axes.
_SPECTRUM = torch.ops.aten._fft_r2c.default


# torch before 2.13 has the sums of its rows in float32, whatever is attended to.
_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode whose every operator does not first go through Dynamo's `disable`, which costs more
    than most operators and keeps the frames that an exception leaves."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class PacedFakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """torch's, with a checkpoint before each operator, and as a `DispatchMode`. Under it autocast
    keeps no casts: one of a parameter of the user's would be served after it, a fake. What a run
    that failed has entered is left with it."""

    supports_higher_order_operators = True  # by the rules that are registered for torch's mode

    def __enter__(self) -> Any:
        vars(self).setdefault("keeping", []).append(AutocastState())
        torch.set_autocast_cache_enabled(False)
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        vars(self)["keeping"].pop().put_back()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        checkpoint()
        rule = _higher_order_rule(func)
        if rule is not None:
            return rule(self, *args, **(kwargs or {}))
        if func in UNTAGGED:
            raise DynamicOutputShapeException(func)
        if func in _AS_HALF and _is_bfloat16_on_host(args[0]):
            return self._as_half(func, args, kwargs)
        if func in _SQUEEZES and args[0]._has_symbolic_sizes_strides:
            with self:
                flat = _SQUEEZES[func](*args, **(kwargs or {}))
                return args[0].as_strided_(flat.shape, flat.stride(), flat.storage_offset())
        if func is _NORM:
            args = _counted_from_the_start(*args)
        made: Any = self.dispatch(func, types, args, kwargs or {})
        if func is _SPECTRUM and _is_transformed_by_mkl(args[0]):
            return self._transformed(args[0], args[1], made)
        if func in _TYPES:
            with self:
                return made.to(_TYPES[func](*args))
        if func is _ATTENTION and args[0].dtype is torch.float64:
            with self:
                attended, sums = made
                return attended, sums.to(torch.float64)
        operands = _operands(func, args)
        if operands and type(made) is FakeTensor and made.dim() > 1:
            return self._in_order_of(operands, made)
        return made

    def _as_half(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What the operator gives for a bfloat16 tensor before others."""
        with self:
            first, *others = func(args[0].to(torch.float16), *args[1:], **(kwargs or {}))
            return first.to(torch.bfloat16), *others

    def _transformed(self, given: Any, axes: Sequence[int], made: Any) -> Any:
        """The spectrum with the axes that were transformed innermost, as the library gives it."""
        steps = [_known(step) for step in given.stride()]
        *others, last = axes
        others.sort(key=lambda axis: steps[axis], reverse=True)
        batch = sorted({*range(given.dim())} - {*axes}, key=lambda axis: steps[axis], reverse=True)
        strides: list[Any] = [1] * given.dim()
        step: Any = 1
        for axis in reversed((*batch, *others, last)):
            strides[axis], step = step, step * made.shape[axis]
        with self:
            return torch.empty_strided(made.shape, strides, dtype=made.dtype, device=made.device)

    def _in_order_of(self, operands: Sequence[Any], made: Any) -> Any:
        """The result laid out as eager does by its operands: torch's rules compute in float32, and
        convert them first, which writes repeated elements out in an order of their own."""
        with self:
            shaped = torch.broadcast_tensors(*operands)  # type: ignore[no-untyped-call]
            strides = compute_elementwise_output_strides(*shaped)
            return torch.empty_strided(made.shape, strides, dtype=made.dtype, device=made.device)


def _counted_from_the_start(x: Any, order: Any = 2, axes: Any = None, *others: Any) -> Any:
    return x, order, axes and [axis % max(x.dim(), 1) for axis in axes], *others


def _known(step: Any) -> Any:
    return step.node.hint if isinstance(step, torch.SymInt) else step


def _is_transformed_by_mkl(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]


def _is_bfloat16_on_host(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.bfloat16 and tensor.device.type == "cpu"


def _operands(operator: Any, args: Sequence[Any]) -> list[Any]:
    """The tensors of a half type that a new one is computed from, element by element, if there are
    several and one of them repeats elements."""
    if not isinstance(operator, OpOverload) or torch.Tag.pointwise not in operator.tags:
        return []
    found = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.dim()]
    if len(found) < 2 or operator._schema.is_mutable:
        return []
    kind = found[0].dtype
    same = all((each.dtype, each.layout) == (kind, torch.strided) for each in found)
    is_half = same and kind in (torch.float16, torch.bfloat16)
    return found if is_half and any(map(_repeats, found)) else []


def _repeats(tensor: torch.Tensor) -> bool:
    """Whether an axis has several elements in one place; what only a call knows is not asked."""
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    return any(
        type(step) is int and step == 0 and not (type(size) is int and size == 1)
        for size, step in axes
    )


def _higher_order_rule(operator: Any) -> Any:
    """What is registered for torch's mode by its type, if that is no way back to the mode."""
    if not isinstance(operator, HigherOrderOperator) or operator in _OF_THE_MODE:
        return None
    return operator.python_key_table.get(FakeTensorMode)


class _Unlogged(threading.local):
    within = 0


_unlogged = _Unlogged()
logging.getLogger("torch._subclasses.fake_tensor").addFilter(lambda record: not _unlogged.within)


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """torch logs each operator that raises on fake tensors as an error, with a traceback; what
    comes of it is said here. Other threads' are logged."""
    _unlogged.within += 1
    try:
        yield
    finally:
        _unlogged.within -= 1
