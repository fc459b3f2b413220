"""What the core operators may do that only their data decides: the proof that one may be run though
eager would not have run it.

An operator is *total* when it gives a result for every value of arguments of these shapes and
dtypes: it raises nothing, draws nothing, writes nothing, reads nothing on the host. Its backward is
*exact at zero* when a zero gradient coming in gives zeros, whatever the values: a product with
a tensor is not (0 * inf is NaN), a product with a number is.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

_TOTAL = frozenset(
    """
    view _unsafe_view reshape _reshape_alias expand permute transpose t unsqueeze squeeze select
    slice split split_with_sizes unbind unfold diagonal alias detach view_as_real
    clone _to_copy contiguous lift_fresh lift_fresh_copy
    cat stack repeat flip roll constant_pad_nd tril triu masked_fill where
    zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full arange scalar_tensor
    eye linspace
    mm bmm addmm baddbmm addmv mv dot linear matmul convolution
    sum mean var std var_mean amax amin max min argmax argmin any all prod cumsum logsumexp
    linalg_vector_norm norm _softmax _log_softmax native_layer_norm native_group_norm
    _native_batch_norm_legit_no_training _fused_rms_norm
    avg_pool2d avg_pool1d max_pool2d_with_indices _adaptive_avg_pool2d adaptive_avg_pool1d
    upsample_nearest2d upsample_bilinear2d upsample_nearest1d upsample_linear1d
    topk sort _cdist_forward isnan isinf isfinite glu _assert_tensor_metadata
    """.split()
)
# Of integers these raise at zero, or at a negative exponent.
_PARTIAL_OF_INTEGERS = frozenset(
    "div floor_divide remainder fmod pow true_divide lcm gcd __lshift__ __rshift__".split()
)
_EXACT_AT_ZERO = frozenset(
    """
    view _unsafe_view reshape _reshape_alias expand permute transpose t unsqueeze squeeze select
    slice split split_with_sizes unbind diagonal alias detach clone _to_copy contiguous lift_fresh
    cat stack repeat flip roll constant_pad_nd tril triu masked_fill where add sub rsub neg relu
    sum mean clamp clamp_min clamp_max sgn sign threshold cumsum
    zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full arange scalar_tensor
    eq ne lt le gt ge logical_and logical_or logical_not isnan isinf isfinite any all argmax argmin
    bitwise_and bitwise_or bitwise_not floor ceil round trunc
    """.split()
)
_BY_NUMBERS = frozenset({"mul", "div"})
_TAKES_NUMBERS = frozenset("masked_fill full_like new_full constant_pad_nd".split())
_OF_SOME = frozenset("max min amax amin argmax argmin".split())  # raise where there is nothing


def why_not_total(func: Any, args: Any) -> str:
    """Why running `func` where eager would not may be seen; "" where it cannot."""
    name = func.overloadpacket.__name__
    if func._schema.is_mutable:
        return f"{name} writes"
    if torch.Tag.nondeterministic_seeded in func.tags:
        return f"{name} draws random numbers"
    pointwise = torch.Tag.pointwise in func.tags
    if pointwise or name in _TOTAL:
        return "" if _fits(name, args, pointwise) else f"{name} may raise"
    if name == "native_batch_norm" and args[5] is False:
        return ""
    return f"{name} may raise, or do more than compute"


def _fits(name: str, args: Any, pointwise: bool) -> bool:
    if (name in _TAKES_NUMBERS or pointwise) and not all(map(_has_room(args), args)):
        return False
    if name in _PARTIAL_OF_INTEGERS:
        return any(isinstance(arg, torch.Tensor) and arg.is_floating_point() for arg in args)
    return name not in _OF_SOME or args[0].numel() > 0


def _has_room(args: Any) -> Callable[[Any], bool]:
    """Whether a Python number is one that the tensors' dtypes have: torch raises for others. (Bools
    are masks beside tensors of numbers.)"""
    dtypes = {arg.dtype for arg in args if isinstance(arg, torch.Tensor)} - {torch.bool}

    def fits(number: Any) -> bool:
        if not isinstance(number, int | float) or isinstance(number, bool):
            return True
        return all(_is_in(number, dtype) for dtype in dtypes)

    return fits


def _is_in(number: float, dtype: torch.dtype) -> bool:
    if dtype.is_floating_point:
        return not math.isfinite(number) or abs(number) <= torch.finfo(dtype).max
    if dtype.is_complex or isinstance(number, float):
        return abs(number) <= torch.finfo(torch.float32).max
    return torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max


def why_backward_inexact(func: Any, args: Any) -> str:
    """Why the backward of `func` may make more than zeros of zeros; "" where it cannot."""
    name = func.overloadpacket.__name__
    if name in _EXACT_AT_ZERO or (name in _BY_NUMBERS and _by_number(name, args)):
        return ""
    return f"the backward of {name} may turn zeros into NaN"


def _by_number(name: str, args: Any) -> bool:
    """A product with, or a quotient by, a finite Python number."""
    finite = [isinstance(arg, int | float) and math.isfinite(arg) for arg in args[:2]]
    return finite[1] and args[1] != 0 if name == "div" else any(finite)
