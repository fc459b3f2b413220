# mypy: ignore-errors
"""Device functions that printed Triton kernels call as `m.erf(x)`.

Only names that Triton 3.6 and 3.7 both have are used. Under TRITON_INTERPRET=1 there is no
libdevice; `triton_numpy` then stands in for it, while everything written out here (erf, tanh,
division, …) is the same text in both.
"""

import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction


@triton.jit
def _probe(x):
    return x


INTERPRETED = isinstance(_probe, InterpretedFunction)

if INTERPRETED:
    from . import triton_numpy as ext
else:
    from triton.language.extra import libdevice as ext
    from triton.language.extra.cuda import gdc_wait

LOG2E = tl.constexpr(1.4426950408889634)


# ---- what only NVIDIA's assembler has: functions that Triton's own cache of kernels does not look
# into, so that one of them gets another name when it gets another instruction


def _is_cuda(semantic):
    """Whether the kernel that is being built is for NVIDIA."""
    return semantic.builder.options.backend_name == "cuda"


def _assembled(text, x, dtype, semantic):
    """One instruction for each register of the result: of two elements if they have 16 bits."""
    pack = 32 // dtype.primitive_bitwidth
    registers = "=r,f,f" if pack == 2 else "=f,f"
    return tl.inline_asm_elementwise(
        text, registers, [x], dtype, is_pure=True, pack=pack, _semantic=semantic
    )


# ---- kernels that start before the one ahead of them has ended


if INTERPRETED:

    @triton.jit
    def after_earlier():
        pass

else:

    @tl.core.builtin
    def after_earlier(_semantic=None):
        """Wait for what stands ahead in the stream, where that can be (griddepcontrol.wait), before
        memory is touched; free where the kernel was not started early."""
        if _is_cuda(_semantic) and int(_semantic.builder.options.arch.removeprefix("sm")) >= 90:
            gdc_wait(_semantic=_semantic)


# ---- random numbers


@triton.jit
def _philox(seed, stream, counter):
    """Four numbers of 32 bits for each counter."""
    low = counter.to(tl.uint32)
    high = low * 0
    if counter.dtype.primitive_bitwidth == 64:
        high = (counter >> 32).to(tl.uint32)
    return tl.philox(seed, low, high, (low * 0 + stream).to(tl.uint32), low * 0)


@triton.jit
def _unit_interval(bits):
    return (bits >> 8).to(tl.int32, bitcast=True).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def uniform(seed, stream, place):
    """The number at `place`."""
    a, b, c, d = _philox(seed, stream, place >> 2)
    which = place & 3
    first, last = tl.where(which == 0, a, b), tl.where(which == 2, c, d)
    return _unit_interval(tl.where(which < 2, first, last))


@triton.jit
def uniform_block(seed, stream, first, block: tl.constexpr):
    """Those of `block` places from `first` on, both multiples of 4: four of each counter."""
    counter = first // 4 + tl.arange(0, block // 4)
    a, b, c, d = _philox(seed, stream, counter)
    bits = tl.join(tl.join(a, c), tl.join(b, d))
    return tl.reshape(_unit_interval(bits), [block])


# ---- conversions


# the interpreter truncates, and loses what is denormal; the device rounds to nearest even
if INTERPRETED:
    to_bf16 = to_bf16_pairs = ext.to_bf16
    from_bf16 = ext.from_bf16

    @triton.jit
    def to_f16_pairs(x):
        return x.to(tl.float16)

    @triton.jit
    def to_tf32(x):
        bits = (x.to(tl.int32, bitcast=True) + 0x1000) & ~0x1FFF
        return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)

else:

    @triton.jit
    def from_bf16(x):
        return x.to(tl.float32)

    @triton.jit
    def to_bf16(x):
        return x.to(tl.bfloat16)

    # Two at once: of values that are taken apart again the compiler converts one by one, at a
    # quarter of the speed.

    @tl.core.builtin
    def to_bf16_pairs(x, _semantic=None):
        if not _is_cuda(_semantic):
            return x.to(tl.bfloat16, _semantic=_semantic)
        return _assembled("cvt.rn.bf16x2.f32 $0, $2, $1;", x, tl.bfloat16, _semantic)

    @tl.core.builtin
    def to_tf32(x, _semantic=None):
        """Rounded to nearest, as the libraries of NVIDIA do; tensor cores themselves cut off."""
        if not _is_cuda(_semantic):
            return x
        return _assembled("cvt.rna.tf32.f32 $0, $1;", x, tl.float32, _semantic)

    @tl.core.builtin
    def to_f16_pairs(x, _semantic=None):
        if not _is_cuda(_semantic):
            return x.to(tl.float16, _semantic=_semantic)
        return _assembled("cvt.rn.f16x2.f32 $0, $2, $1;", x, tl.float16, _semantic)

# ---- functions with a cheaper form than libdevice's


if INTERPRETED:

    @triton.jit
    def exp2_flush(x):
        return tl.exp2(x)

    @triton.jit
    def reciprocal_flush(x):
        return 1.0 / x

else:

    @tl.core.builtin
    def exp2_flush(x, _semantic=None):
        """exp2 that may give zero for what is denormal: one instruction in place of four."""
        if not _is_cuda(_semantic):
            return tl.exp2(x, _semantic=_semantic)
        return _assembled("ex2.approx.ftz.f32 $0, $1;", x, tl.float32, _semantic)

    @tl.core.builtin
    def reciprocal_flush(x, _semantic=None):
        """1 / x to one ulp, that may give zero for what is denormal: one instruction in place of
        five."""
        if not _is_cuda(_semantic):
            return tl.fdiv(1.0, x, _semantic=_semantic)
        return _assembled("rcp.approx.ftz.f32 $0, $1;", x, tl.float32, _semantic)


@triton.jit
def _with_sign(y, x):
    """`y`, which is not negative, with the sign of `x`."""
    sign = x.to(tl.int32, bitcast=True) & -2147483648
    return (y.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@triton.jit
def exp_fast(x):
    """One multiply and one ex2: relative error |x| * 1e-7. For values that are rounded to 16
    bits."""
    return tl.exp2(x * LOG2E)


@triton.jit
def erf_fast(x, factor: tl.constexpr = 1.0):
    """erf(x * factor), branch-free: 1 - exp2(P5(|x|)). Absolute error 1.1e-5, less than 2.4e-4 of
    erf near zero, and so small towards -1 that GELU is right to half an ulp of float16.

    P5 is a minimax fit (Lawson's iteration) of log2(erfc) on [0, 4.2] under these weights, without
    a constant term so that erf(0) is 0; its leading coefficient is negative, so that the value goes
    to 1 beyond. A positive factor goes into its coefficients.
    """
    a = tl.abs(x)
    p = -0.0022257193421648122 * factor * factor * factor * factor * factor
    p = tl.fma(p, a, 0.026299405913754556 * factor * factor * factor * factor)
    p = tl.fma(p, a, -0.1438428565202503 * factor * factor * factor)
    p = tl.fma(p, a, -0.9210306367366907 * factor * factor)
    p = tl.fma(p, a, -1.6275213692544308 * factor)
    return _with_sign(1.0 - exp2_flush(p * a), x)


@triton.jit
def erf(x):
    """erf to 4 ulp of float32: an odd polynomial (Maclaurin series) below 0.5, 1 - exp2(P8(|x|))
    above; see `erf_fast`."""
    a = tl.abs(x)
    p = -4.53607306337604e-05
    p = tl.fma(p, a, 0.00044552262193031655)
    p = tl.fma(p, a, -0.001489482746551296)
    p = tl.fma(p, a, -0.0007745733727662548)
    p = tl.fma(p, a, 0.028253640491584166)
    p = tl.fma(p, a, -0.1484816001375986)
    p = tl.fma(p, a, -0.9184163957264432)
    p = tl.fma(p, a, -1.627908592932908)
    y = 1.0 - tl.exp2(p * a)
    y = tl.where(x < 0, -y, y)
    s = x * x
    q = -0.0008548327023450852
    q = tl.fma(q, s, 0.005223977625442188)
    q = tl.fma(q, s, -0.026866170645131252)
    q = tl.fma(q, s, 0.11283791670955126)
    q = tl.fma(q, s, -0.37612638903183754)
    q = tl.fma(q, s, 1.1283791670955126)
    return tl.where(a < 0.5, q * x, y)


@triton.jit
def tanh(x):
    """tanh to 4 ulp: an odd polynomial below 0.625 (netlib.org/cephes, tanhf.c), 1 - 2 / (exp(2|x|)
    + 1) above."""
    a = tl.abs(x)
    y = 1.0 - 2.0 / (tl.exp2(a * (2.0 * LOG2E)) + 1.0)
    y = tl.where(x < 0, -y, y)
    s = x * x
    q = -5.70498872745e-3
    q = tl.fma(q, s, 2.06390887954e-2)
    q = tl.fma(q, s, -5.37397155531e-2)
    q = tl.fma(q, s, 1.33314422036e-1)
    q = tl.fma(q, s, -3.33332819422e-1)
    return tl.where(a < 0.625, tl.fma(q, s, 1.0) * x, y)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + ext.exp(-x))


@triton.jit
def sigmoid_fast(x):
    return reciprocal_flush(1.0 + exp2_flush(x * -LOG2E))


@triton.jit
def of_pairs(x, second: tl.constexpr):
    """Of each two neighbours one, in place of both."""
    half: tl.constexpr = x.shape[0] // 2
    one, two = tl.split(tl.reshape(x, [half, 2]))
    chosen = two if second else one
    return tl.reshape(tl.join(chosen, chosen), [2 * half])


# ---- torch's integer and float division


@triton.jit
def div_floor_int(a, b):
    """Rounds toward minus infinity, as torch does; Triton's `//` truncates."""
    q = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), q - 1, q)


@triton.jit
def remainder_int(a, b):
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def remainder_float(a, b):
    """fmod with the divisor's sign, as c10's `remainder` computes it."""
    r = ext.fmod(a, b)
    return tl.where((r != 0) & ((b < 0) != (r < 0)), r + b, r)


@triton.jit
def div_floor_float(a, b):
    """c10::div_floor_floating: exact quotient by fmod, corrected to the nearest integer below."""
    mod = ext.fmod(a, b)
    div = (a - mod) / b
    div = tl.where((mod != 0) & ((b < 0) != (mod < 0)), div - 1.0, div)
    low = tl.floor(div)
    low = tl.where(div - low > 0.5, low + 1.0, low)
    signed_zero = tl.where((a < 0) != (b < 0), -0.0, 0.0)
    out = tl.where(div != 0, low, signed_zero)
    return tl.where(b == 0, a / b, out)


@triton.jit
def sign(x):
    """0 for NaN, as torch."""
    return ((x > 0).to(tl.int8) - (x < 0).to(tl.int8)).to(x.dtype)


@triton.jit
def invert(x):
    return (x * 0 - 1) - x  # the interpreter's `~` fails for unsigned integers


@triton.jit
def shl(a, b):
    """A shift outside [0, bits) gives 0."""
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    inside = (b >= 0) & (b < bits)
    return tl.where(inside, a << tl.where(inside, b, b * 0), a * 0)


@triton.jit
def shr(a, b):
    """Arithmetic; a shift outside [0, bits) gives the sign (0 for unsigned)."""
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    inside = (b >= 0) & (b < bits)
    zero = a * 0
    last = tl.where(a < 0, zero - 1, zero)
    return tl.where(inside, a >> tl.where(inside, b, b * 0), last)


@triton.jit
def signbit(x):
    kind: tl.constexpr = tl.int64 if x.dtype == tl.float64 else tl.int32
    return x.to(kind, bitcast=True) < 0


@triton.jit
def digamma(x):
    """Ten steps of the recurrence, then the asymptotic series; reflection below 0 (as ATen's
    calc_digamma)."""
    pi = 3.141592653589793
    negative = x < 0
    y = tl.where(negative, 1.0 - x, x)
    total = x * 0.0
    for _ in tl.static_range(10):
        small = y < 10.0
        total = tl.where(small, total - 1.0 / y, total)
        y = tl.where(small, y + 1.0, y)
    z = 1.0 / (y * y)
    series = z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132)))))
    total = total + ext.log(y) - 0.5 / y - series
    fraction = x - ext.trunc(x)
    reflected = total - pi / ext.tan(pi * fraction)
    pole = negative & (fraction == 0)
    return tl.where(pole, float("nan"), tl.where(negative, reflected, total))


# ---- NaN-propagating extrema and reductions


@triton.jit
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _mul(a, b):
    return a * b


@triton.jit
def reduce_any(x, axis: tl.constexpr):
    return tl.max(x.to(tl.int32), axis) > 0


@triton.jit
def reduce_all(x, axis: tl.constexpr):
    return tl.min(x.to(tl.int32), axis) > 0


@triton.jit
def arg_max_next(v, i, w, j):
    """The larger of `v` and a `w` of a later place, NaN above all, the first among equals."""
    take = ((v >= w) == 0) & (v == v)
    return tl.where(take, w, v), tl.where(take, j, i)


@triton.jit
def arg_min_next(v, i, w, j):
    take = ((v <= w) == 0) & (v == v)
    return tl.where(take, w, v), tl.where(take, j, i)


# ---- reductions with two accumulators (triton_one_pass)


if INTERPRETED:

    @triton.jit
    def _at_most_zero(x):
        return tl.where(x < 0, x, 0.0)

else:

    @triton.jit
    def _at_most_zero(x):
        """Zero for NaN: the device's minimum gives the number."""
        return tl.minimum(x, 0.0, propagate_nan=tl.PropagateNan.NONE)


@triton.jit
def exponentials_step(top, total, x):
    """`total` of exp(x - top) with one more x, which may be the new top; lanes that saw -inf alone
    count for nothing in the end."""
    d = x - top
    t = exp2_flush(_at_most_zero(-tl.abs(d) * LOG2E))  # of two infinities d is NaN
    total = tl.where(d > 0, total * t + 1.0, total + t)
    return tl.maximum(top, x, propagate_nan=tl.PropagateNan.ALL), total


@triton.jit
def exponentials_steps(top, total, x):
    """The same with neighbours at a time, as many as `x` has for each of `top`: one rescaling for
    all of them. Finite elements beside an infinite one add what they like to what is infinite."""
    x = tl.reshape(x, [top.shape[0], x.shape[0] // top.shape[0]])
    found = tl.maximum(top, reduce_max(x, 1), propagate_nan=tl.PropagateNan.ALL)
    base = tl.where(tl.abs(found) == float("inf"), 0.0, found)
    kept = exp2_flush(_at_most_zero((top - found) * LOG2E))  # of two infinities it is NaN
    return found, total * kept + tl.sum(exp2_flush((x - base[:, None]) * LOG2E), 1)


@triton.jit
def squares_step(mean, total, x, turn):
    """Welford's step with the value number `turn` of each lane."""
    d = x - mean
    mean = tl.fma(d, 1.0 / turn, mean)
    return mean, tl.fma(d, x - mean, total)


if INTERPRETED:
    # the interpreter runs a custom combine function one element at a time
    reduce_max = ext.reduce_max
    reduce_min = ext.reduce_min
    reduce_prod = ext.reduce_prod
else:

    @triton.jit
    def reduce_max(x, axis: tl.constexpr):
        return tl.reduce(x, axis, maximum)

    @triton.jit
    def reduce_min(x, axis: tl.constexpr):
        return tl.reduce(x, axis, minimum)

    @triton.jit
    def reduce_prod(x, axis: tl.constexpr):
        return tl.reduce(x, axis, _mul)


@triton.jit
def _first_of(best, v, i, axis: tl.constexpr):
    """The smallest place at which `v` is the best, which is NaN if any is."""
    every = best
    if len(v.shape) > 1:
        every = tl.expand_dims(best, axis)
    last: tl.constexpr = (1 << (i.dtype.primitive_bitwidth - 1)) - 1
    return best, tl.min(tl.where((v == every) | (v != v), i, last), axis)


@triton.jit
def argmax(v, i, axis: tl.constexpr):
    return _first_of(reduce_max(v, axis), v, i, axis)


@triton.jit
def argmin(v, i, axis: tl.constexpr):
    return _first_of(reduce_min(v, axis), v, i, axis)
