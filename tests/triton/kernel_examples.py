"""Kernels that the Triton tests print: those of every target, and some that only a GPU cuts into
pieces."""

import importlib.util
import math
from pathlib import Path

import torch
from dynfix.lowering.loops.ir import (
    Buffer,
    Cast,
    Const,
    Group,
    IndexValue,
    Indirect,
    Load,
    Nest,
    Reduced,
    Select,
    Store,
)
from dynfix.lowering.loops.sizes import ZERO, Axis, add, atom_index, linear

_path = Path(__file__).parents[1] / "lowering" / "examples.py"
_spec = importlib.util.spec_from_file_location("lowering_examples", _path)
common = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(common)

F32, BF16 = torch.float32, torch.bfloat16
buffers, f32, op, out = common.buffers, common.f32, common.op, common.out


def wide(load):
    """The load in float32."""
    return load if load.dtype == F32 else Cast(load, F32)


def store(buffer, index, value):
    return Store(buffer, index, value if value.dtype == buffer.dtype else Cast(value, buffer.dtype))


def local(name):
    return Buffer(name, F32, 1, "local")


def full_mean(n=70001):
    """Too long for one program and not divisible: parts with a mask, then a fold with an
    epilogue."""
    x, y = torch.randn(n), out(1)
    bx, by = buffers(x=x, y=y)
    load = Load(bx, atom_index(Axis(0, n)))
    mean = op("div", Reduced("sum", op("mul", load, load), F32), f32(n))
    group = Group("full_mean", (), (Nest((), (n,), (Store(by, ZERO, mean),)),))
    return group, {"x": x, "y": y}, {"y": (x * x).mean().reshape(1)}


def long_argmax(rows=300, cols=250):
    """A split argmax: the fold picks a part, then what that part found. Two equal maxima: the first
    wins."""
    x, y, z = torch.randn(rows, cols), out(1, dtype=torch.int64), out(1)
    x[7, 3] = x[250, 9] = 9.0
    bx, by, bz = buffers(x=x, y=y, z=z)
    load = Load(bx, linear((Axis(0, rows), Axis(1, cols)), (cols, 1)))
    stores = (
        Store(by, ZERO, Reduced("argmax", load, torch.int64)),
        Store(bz, ZERO, Reduced("max", load, F32)),
    )
    group = Group("long_argmax", (), (Nest((), (rows, cols), stores),))
    return group, {"x": x, "y": y, "z": z}, {"y": x.argmax().reshape(1), "z": x.max().reshape(1)}


def long_columns(rows=3001, cols=75):
    x, y = torch.randn(rows, cols), out(cols)
    bx, by = buffers(x=x, y=y)
    at = linear((Axis(0, cols), Axis(1, rows)), (1, cols))
    nest = Nest(
        (cols,), (rows,), (Store(by, atom_index(Axis(0, cols)), Reduced("sum", Load(bx, at), F32)),)
    )
    return Group("long_columns", (cols,), (nest,)), {"x": x, "y": y}, {"y": x.sum(0)}


def batched_columns():
    x, y = torch.randn(5, 40, 33), out(5, 33)
    bx, by = buffers(x=x, y=y)
    at = linear((Axis(0, 5), Axis(1, 33), Axis(2, 40)), (40 * 33, 1, 33))
    to = linear((Axis(0, 5), Axis(1, 33)), (33, 1))
    nest = Nest((5, 33), (40,), (Store(by, to, Reduced("sum", Load(bx, at), F32)),))
    return Group("batched_columns", (5, 33), (nest,)), {"x": x, "y": y}, {"y": x.sum(1)}


def uneven_columns():
    """Planes of columns whose number no block divides, laid out as three axes."""
    x, y = torch.randn(4, 40, 3, 49), out(4, 3, 49)
    bx, by = buffers(x=x, y=y)
    space = (Axis(0, 4), Axis(1, 3), Axis(2, 49))
    at = linear((*space, Axis(3, 40)), (40 * 147, 49, 1, 147))
    to = linear(space, (147, 49, 1))
    nest = Nest((4, 3, 49), (40,), (Store(by, to, Reduced("sum", Load(bx, at), F32)),))
    return Group("uneven_columns", (4, 3, 49), (nest,)), {"x": x, "y": y}, {"y": x.sum(1)}


def batch_norm(n=6, c=4, h=64 * 48):
    """Three passes over few channels: cut into five kernels with the statistics in scratch."""
    x, y = torch.randn(n, c, h), out(n, c, h)
    bx, by = buffers(x=x, y=y)
    mean, variance = local("m"), local("v")
    at = linear((Axis(0, c), Axis(1, n), Axis(2, h)), (h, c * h, 1))
    load = Load(bx, at)
    centred = op("sub", load, Load(mean, ZERO))
    count = f32(n * h)
    scale = op("rsqrt", op("add", Load(variance, ZERO), f32(1e-5)))
    nests = (
        Nest((c,), (n, h), (Store(mean, ZERO, op("div", Reduced("sum", load, F32), count)),)),
        Nest(
            (c,),
            (n, h),
            (
                Store(
                    variance,
                    ZERO,
                    op("div", Reduced("sum", op("mul", centred, centred), F32), count),
                ),
            ),
        ),
        Nest((c,), (n, h), (Store(by, at, op("mul", centred, scale)),)),
    )
    expected = (x - x.mean((0, 2), keepdim=True)) / (
        x.var((0, 2), keepdim=True, unbiased=False) + 1e-5
    ).sqrt()
    return Group("batch_norm", (c,), nests), {"x": x, "y": y}, {"y": expected}


def softmax_rows(rows, cols, dtype=F32, name="softmax_rows"):
    """softmax(x / 8 + mask) along the last axis."""
    x, mask, y = (
        torch.randn(rows, cols).to(dtype),
        torch.randn(cols).to(dtype),
        out(rows, cols, dtype=dtype),
    )
    bx, bm, by = buffers(x=x, mask=mask, y=y)
    biggest, total = local("m"), local("s")
    at = linear((Axis(0, rows), Axis(1, cols)), (cols, 1))
    scores = op(
        "add", op("mul", wide(Load(bx, at)), f32(0.125)), wide(Load(bm, atom_index(Axis(1, cols))))
    )
    shifted = op("exp", op("sub", scores, Load(biggest, ZERO)))
    nests = (
        Nest((rows,), (cols,), (Store(biggest, ZERO, Reduced("max", scores, F32)),)),
        Nest((rows,), (cols,), (Store(total, ZERO, Reduced("sum", shifted, F32)),)),
        Nest((rows,), (cols,), (store(by, at, op("div", shifted, Load(total, ZERO))),)),
    )
    expected = torch.softmax(x.float() * 0.125 + mask.float(), -1).to(dtype)
    return Group(name, (rows,), nests), {"x": x, "mask": mask, "y": y}, {"y": expected}


def long_softmax():
    return softmax_rows(3, 20000, name="long_softmax")


def many_softmax():
    """Enough short rows that a program holds several."""
    return softmax_rows(1100, 48, BF16, "many_softmax")


def add_layer_norm(rows=30, cols=768, dtype=BF16):
    """z = x + r is stored and normalised: a stored value that later nests use from registers."""
    x, r, w, b = (
        torch.randn(*shape).to(dtype) for shape in ((rows, cols), (rows, cols), (cols,), (cols,))
    )
    z, y = out(rows, cols, dtype=dtype), out(rows, cols, dtype=dtype)
    bx, br, bw, bb, bz, by = buffers(x=x, r=r, w=w, b=b, z=z, y=y)
    mean, variance = local("m"), local("v")
    at, col = linear((Axis(0, rows), Axis(1, cols)), (cols, 1)), atom_index(Axis(1, cols))
    total = op("add", wide(Load(bx, at)), wide(Load(br, at)))
    again = wide(Load(bz, at))
    centred = op("sub", again, Load(mean, ZERO))
    scale = op("rsqrt", op("add", Load(variance, ZERO), f32(1e-5)))
    normal = op(
        "add", op("mul", op("mul", centred, scale), wide(Load(bw, col))), wide(Load(bb, col))
    )
    nests = (
        Nest((rows,), (cols,), (store(bz, at, total),)),
        Nest(
            (rows,), (cols,), (Store(mean, ZERO, op("div", Reduced("sum", again, F32), f32(cols))),)
        ),
        Nest(
            (rows,),
            (cols,),
            (
                Store(
                    variance,
                    ZERO,
                    op("div", Reduced("sum", op("mul", centred, centred), F32), f32(cols)),
                ),
            ),
        ),
        Nest((rows,), (cols,), (store(by, at, normal),)),
    )
    summed = x + r
    expected = torch.nn.functional.layer_norm(summed.float(), (cols,), w.float(), b.float()).to(
        dtype
    )
    group = Group("add_layer_norm", (rows,), nests)
    return group, {"x": x, "r": r, "w": w, "b": b, "z": z, "y": y}, {"z": summed, "y": expected}


def rms_norm(rows=64, cols=1000, dtype=BF16):
    x, w, y = (
        torch.randn(rows, cols).to(dtype),
        torch.randn(cols).to(dtype),
        out(rows, cols, dtype=dtype),
    )
    bx, bw, by = buffers(x=x, w=w, y=y)
    square = local("q")
    at = linear((Axis(0, rows), Axis(1, cols)), (cols, 1))
    load = wide(Load(bx, at))
    scale = op(
        "rsqrt",
        op("add", op("div", Reduced("sum", op("mul", load, load), F32), f32(cols)), f32(1e-6)),
    )
    value = op(
        "mul", op("mul", load, Load(square, ZERO)), wide(Load(bw, atom_index(Axis(1, cols))))
    )
    nests = (
        Nest((rows,), (cols,), (Store(square, ZERO, scale),)),
        Nest((rows,), (cols,), (store(by, at, value),)),
    )
    wanted = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6) * w.float()
    return Group("rms_norm", (rows,), nests), {"x": x, "w": w, "y": y}, {"y": wanted.to(dtype)}


def swiglu(n=5000, dtype=BF16):
    a, b, y = torch.randn(n).to(dtype), torch.randn(n).to(dtype), out(n, dtype=dtype)
    ba, bb, by = buffers(a=a, b=b, y=y)
    i = atom_index(Axis(0, n))
    gate = wide(Load(ba, i))
    value = op("mul", op("mul", gate, op("sigmoid", gate)), wide(Load(bb, i)))
    group = Group("swiglu", (n,), (Nest((n,), (), (store(by, i, value),)),))
    return (
        group,
        {"a": a, "b": b, "y": y},
        {"y": (torch.nn.functional.silu(a.float()) * b.float()).to(dtype)},
    )


def scatter_add():
    """Atomic addition at indices from memory."""
    ids, source, y = torch.randint(10, (100,)), torch.randn(100, 8), torch.zeros(10, 8)
    bi, bs, by = buffers(ids=ids, source=source, y=y)
    axes = (Axis(0, 100), Axis(1, 8))
    row = atom_index(Indirect(Load(bi, atom_index(axes[0])), 10), 8)
    target = Store(by, add(row, atom_index(axes[1])), Load(bs, linear(axes, (8, 1))), "sum")
    group = Group("scatter_add", (100, 8), (Nest((100, 8), (), (target,)),))
    return (
        group,
        {"ids": ids, "source": source, "y": y},
        {"y": torch.zeros(10, 8).index_add(0, ids, source)},
    )


def scatter_rows():
    """Atomic addition of every inner element to one cell a row: the index does not use the inner
    axis."""
    x, y = torch.randn(20, 30), torch.zeros(20)
    bx, by = buffers(x=x, y=y)
    axes = (Axis(0, 20), Axis(1, 30))
    target = Store(by, atom_index(axes[0]), Load(bx, linear(axes, (30, 1))), "sum")
    return (
        Group("scatter_rows", (20,), (Nest((20,), (30,), (target,)),)),
        {"x": x, "y": y},
        {"y": x.sum(1)},
    )


def causal_mask(n=70):
    """Comparisons of indices, and a bool reduction of each row."""
    x, y, z = torch.randn(n, n), out(n, n), out(n, dtype=torch.bool)
    bx, by, bz = buffers(x=x, y=y, z=z)
    axes = (Axis(0, n), Axis(1, n))
    at = linear(axes, (n, 1))
    below = op("le", IndexValue(atom_index(axes[1])), IndexValue(atom_index(axes[0])))
    value = Select(below, Load(bx, at), f32(-math.inf))
    nests = (
        Nest((n,), (n,), (Store(by, at, value),)),
        Nest(
            (n,),
            (n,),
            (
                Store(
                    bz, atom_index(axes[0]), Reduced("any", op("gt", value, f32(2.0)), torch.bool)
                ),
            ),
        ),
    )
    expected = x.masked_fill(~torch.ones(n, n).tril().bool(), -math.inf)
    return (
        Group("causal_mask", (n,), nests),
        {"x": x, "y": y, "z": z},
        {"y": expected, "z": (expected > 2).any(1)},
    )


def swap_in_row():
    """A later nest reads what other points of the row stored: memory, not registers, and a barrier
    between."""
    x, y, z = torch.randn(7, 64), out(7, 64), out(7, 64)
    bx, by, bz = buffers(x=x, y=y, z=z)
    axes = (Axis(0, 7), Axis(1, 64))
    at, back = linear(axes, (64, 1)), linear(axes, (64, -1), 63)
    nests = (
        Nest((7,), (64,), (Store(by, at, op("mul", Load(bx, at), f32(2))),)),
        Nest((7,), (64,), (Store(bz, at, op("add", Load(by, back), Load(bx, at))),)),
    )
    return (
        Group("swap_in_row", (7,), nests),
        {"x": x, "y": y, "z": z},
        {"y": 2 * x, "z": 2 * x.flip(1) + x},
    )


def empty_inner():
    """A sum over nothing is 0."""
    x, y = torch.empty(4, 0), out(4)
    bx, by = Buffer("x", F32, 0), Buffer("y", F32, 4)
    at = linear((Axis(0, 4), Axis(1, 0)), (1, 1))
    nest = Nest((4,), (0,), (Store(by, atom_index(Axis(0, 4)), Reduced("sum", Load(bx, at), F32)),))
    return Group("empty_inner", (4,), (nest,)), {"x": x, "y": y}, {"y": torch.zeros(4)}


def integer_sums():
    """int64 sums and products, minima of int32 with masked lanes."""
    x, y, z = torch.randint(-9, 9, (6, 37)), out(6, dtype=torch.int64), out(6, dtype=torch.int32)
    w = x.int()
    bx, bw, by, bz = buffers(x=x, w=w, y=y, z=z)
    at, row = linear((Axis(0, 6), Axis(1, 37)), (37, 1)), atom_index(Axis(0, 6))
    stores = (
        Store(by, row, Reduced("sum", Load(bx, at), torch.int64)),
        Store(bz, row, Reduced("min", Load(bw, at), torch.int32)),
    )
    group = Group("integer_sums", (6,), (Nest((6,), (37,), stores),))
    return group, {"x": x, "w": w, "y": y, "z": z}, {"y": x.sum(1), "z": w.min(1).values}


def constants():
    """Nothing but numbers: a select between constants of int64, and a bfloat16 fill."""
    y, z = out(40, dtype=torch.int64), out(40, dtype=BF16)
    by, bz = buffers(y=y, z=z)
    i = atom_index(Axis(0, 40))
    early = op("lt", IndexValue(i), Const(7, torch.int64))
    value = Select(early, Const(2**40, torch.int64), Const(-1, torch.int64))
    stores = (Store(by, i, value), Store(bz, i, Cast(f32(1 / 3), BF16)))
    expected = torch.where(torch.arange(40) < 7, 2**40, -1)
    group = Group("constants", (40,), (Nest((40,), (), stores),))
    return group, {"y": y, "z": z}, {"y": expected, "z": torch.full((40,), 1 / 3, dtype=BF16)}


EXAMPLES = (
    *common.EXAMPLES,
    full_mean,
    long_argmax,
    long_columns,
    batched_columns,
    uneven_columns,
    batch_norm,
    long_softmax,
    many_softmax,
    add_layer_norm,
    rms_norm,
    swiglu,
    scatter_add,
    scatter_rows,
    causal_mask,
    swap_in_row,
    empty_inner,
    integer_sums,
    constants,
)
