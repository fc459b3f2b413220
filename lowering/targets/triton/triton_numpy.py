# mypy: ignore-errors
"""NumPy stand-ins for libdevice and for custom reductions, used under Triton's interpreter alone
(TRITON_INTERPRET=1)."""

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle


def _tensor(data, dtype, block=True):
    """A tensor of `data`; a scalar is an array of one element in the interpreter."""
    data = np.atleast_1d(data)
    return tl.core.tensor(
        TensorHandle(data, dtype), tl.block_type(dtype, list(data.shape)) if block else dtype
    )


def _is_block(*values):
    return any(isinstance(v, tl.core.tensor) and v.type.is_block() for v in values)


def _data(x):
    return x.handle.data if isinstance(x, tl.core.tensor) else np.asarray(x)


def _unary(name):
    function = getattr(torch.special, name, None) or getattr(torch, name)

    def run(x):
        data = np.ascontiguousarray(_data(x))
        return _tensor(function(torch.from_numpy(data)).numpy(), x.dtype, _is_block(x))

    return run


def _binary(function):
    def run(a, b):
        dtype = a.dtype if isinstance(a, tl.core.tensor) else b.dtype
        left, right = np.broadcast_arrays(_data(a), _data(b))
        with np.errstate(all="ignore"):
            return _tensor(function(left, right).astype(left.dtype), dtype, _is_block(a, b))

    return run


def _torch_binary(function):
    return _binary(
        lambda a, b: function(torch.from_numpy(a.copy()), torch.from_numpy(b.copy())).numpy()
    )


exp, expm1, log1p, erfc, erfinv = (_unary(n) for n in ("exp", "expm1", "log1p", "erfc", "erfinv"))
erf, tanh, rsqrt = (_unary(n) for n in ("erf", "tanh", "rsqrt"))
log, log2, log10, trunc, sin, cos, tan = (
    _unary(n) for n in ("log", "log2", "log10", "trunc", "sin", "cos", "tan")
)
asin, acos, atan, sinh, cosh = (_unary(n) for n in ("asin", "acos", "atan", "sinh", "cosh"))
asinh, acosh, atanh, lgamma = (_unary(n) for n in ("asinh", "acosh", "atanh", "lgamma"))
nearbyint = _unary("round")
fmod, atan2, copysign, hypot = (_binary(f) for f in (np.fmod, np.arctan2, np.copysign, np.hypot))
nextafter = _binary(np.nextafter)
pow = _torch_binary(torch.pow)


def to_bf16(x):
    """Rounds float32 to nearest even; keeps NaN a NaN."""
    bits = np.ascontiguousarray(_data(x)).astype(np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return _tensor(
        np.where(nan, np.uint32(0x7FC0), rounded).astype(np.uint16), tl.bfloat16, _is_block(x)
    )


def from_bf16(x):
    bits = np.ascontiguousarray(_data(x)).astype(np.uint32) << np.uint32(16)
    return _tensor(bits.view(np.float32), tl.float32, _is_block(x))


def _reduction(function):
    def run(x, axis):
        return _tensor(function(_data(x), axis=axis), x.dtype, len(x.shape) > 1)

    return run


reduce_max, reduce_min, reduce_prod = _reduction(np.max), _reduction(np.min), _reduction(np.prod)
