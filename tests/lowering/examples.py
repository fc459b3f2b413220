"""Hand-made kernels that every target prints, with what they should compute. `make()` gives (group,
tensors, expected): `tensors` maps buffer names to contiguous tensors (outputs filled with 7),
`expected` output names to results."""

import math

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
    Op,
    Reduced,
    Select,
    Store,
)
from dynfix.lowering.loops.sizes import (
    ZERO,
    Axis,
    Index,
    add,
    atom_index,
    const,
    floordiv,
    linear,
    mod,
)

F32 = torch.float32


def buffers(**tensors):
    return [Buffer(name, tensor.dtype, tensor.numel()) for name, tensor in tensors.items()]


def f32(value):
    return Const(float(value), F32)


def op(name, *args):
    return Op(
        name, args, torch.bool if name in ("lt", "ge", "eq", "ne", "gt", "le") else args[0].dtype
    )


def out(*shape, dtype=F32):
    return torch.full(shape, 7, dtype=dtype)


def gelu():
    x, y = torch.randn(1003), out(1003)
    bx, by = buffers(x=x, y=y)
    i = atom_index(Axis(0, 1003))
    load = Load(bx, i)
    erf = op("erf", op("mul", load, f32(math.sqrt(0.5))))
    value = op("mul", op("mul", load, f32(0.5)), op("add", erf, f32(1)))
    group = Group("gelu", (1003,), (Nest((1003,), (), (Store(by, i, value),)),))
    return group, {"x": x, "y": y}, {"y": torch.nn.functional.gelu(x)}


def softmax():
    """Rows of `2 * x`: a maximum and a sum with a prologue each, then an epilogue over the row."""
    rows, cols = 37, 129
    x, y = torch.randn(rows, cols), out(rows, cols)
    bx, by = buffers(x=x, y=y)
    biggest, total = Buffer("m", F32, 1, "local"), Buffer("s", F32, 1, "local")
    at = linear((Axis(0, rows), Axis(1, cols)), (cols, 1))
    scaled = op("mul", Load(bx, at), f32(2))
    shifted = op("exp", op("sub", scaled, Load(biggest, ZERO)))
    nests = (
        Nest((rows,), (cols,), (Store(biggest, ZERO, Reduced("max", scaled, F32)),)),
        Nest((rows,), (cols,), (Store(total, ZERO, Reduced("sum", shifted, F32)),)),
        Nest((rows,), (cols,), (Store(by, at, op("div", shifted, Load(total, ZERO))),)),
    )
    return Group("softmax", (rows,), nests), {"x": x, "y": y}, {"y": torch.softmax(2 * x, -1)}


def mean_variance():
    """Two reductions in one pass with an epilogue, stored to memory: mean and mean of squares of
    each row."""
    rows, cols = 9, 260
    x, mean, rms = torch.randn(rows, cols), out(rows), out(rows)
    bx, bm, br = buffers(x=x, mean=mean, rms=rms)
    i, at = atom_index(Axis(0, rows)), linear((Axis(0, rows), Axis(1, cols)), (cols, 1))
    load = Load(bx, at)
    stores = (
        Store(bm, i, op("div", Reduced("sum", load, F32), f32(cols))),
        Store(br, i, op("sqrt", op("div", Reduced("sum", op("mul", load, load), F32), f32(cols)))),
    )
    group = Group("mean_variance", (rows,), (Nest((rows,), (cols,), stores),))
    return (
        group,
        {"x": x, "mean": mean, "rms": rms},
        {"mean": x.mean(1), "rms": (x * x).mean(1).sqrt()},
    )


def transpose_add():
    a, b, y = torch.randn(70, 33), torch.randn(33, 70), out(70, 33)
    ba, bb, by = buffers(a=a, b=b, y=y)
    axes = (Axis(0, 70), Axis(1, 33))
    value = op("add", Load(ba, linear(axes, (33, 1))), Load(bb, linear(axes, (1, 70))))
    group = Group(
        "transpose_add", (70, 33), (Nest((70, 33), (), (Store(by, linear(axes, (33, 1)), value),)),)
    )
    return group, {"a": a, "b": b, "y": y}, {"y": a + b.t()}


def gather():
    """Rows of a table picked by an int64 tensor: an indirect load."""
    table, ids, y = torch.randn(50, 16), torch.randint(50, (21,)), out(21, 16)
    bt, bi, by = buffers(table=table, ids=ids, y=y)
    axes = (Axis(0, 21), Axis(1, 16))
    row = atom_index(Indirect(Load(bi, atom_index(axes[0])), 50), 16)
    store = Store(by, linear(axes, (16, 1)), Load(bt, add(row, atom_index(axes[1]))))
    group = Group("gather", (21, 16), (Nest((21, 16), (), (store,)),))
    return group, {"table": table, "ids": ids, "y": y}, {"y": table[ids]}


def column_sum():
    x, y = torch.randn(301, 75), out(75)
    bx, by = buffers(x=x, y=y)
    at = linear((Axis(0, 75), Axis(1, 301)), (1, 75))
    store = Store(by, atom_index(Axis(0, 75)), Reduced("sum", Load(bx, at), F32))
    return (
        Group("column_sum", (75,), (Nest((75,), (301,), (store,)),)),
        {"x": x, "y": y},
        {"y": x.sum(0)},
    )


def full_argmax():
    """No space at all, two inner axes, and a NaN that must win."""
    x, y, z = torch.randn(13, 40), out(1, dtype=torch.int64), out(1)
    x[5, 7] = math.nan
    bx, by, bz = buffers(x=x, y=y, z=z)
    load = Load(bx, linear((Axis(0, 13), Axis(1, 40)), (40, 1)))
    stores = (
        Store(by, ZERO, Reduced("argmax", load, torch.int64)),
        Store(bz, ZERO, Reduced("max", load, F32)),
    )
    group = Group("full_argmax", (), (Nest((), (13, 40), stores),))
    return group, {"x": x, "y": y, "z": z}, {"y": x.argmax().reshape(1), "z": x.max().reshape(1)}


def pad_bf16():
    """A masked load, a cast from and to bfloat16, an index used as a value, floor division and
    modulo."""
    x, y = torch.randn(6, 10).bfloat16(), out(96, dtype=torch.bfloat16)
    bx, by = buffers(x=x, y=y)
    flat = atom_index(Axis(0, 96))
    row, col = floordiv(flat, 12), mod(flat, 12)
    inside = op(
        "and",
        op("lt", IndexValue(row), Const(6, torch.int64)),
        op("ge", IndexValue(col), Const(2, torch.int64)),
    )
    load = Load(bx, add(Index((), -2), linear((row, col), (10, 1))), inside)
    even = op("eq", op("remainder", IndexValue(col), Const(2, torch.int64)), Const(0, torch.int64))
    value = Select(even, Cast(load, F32), op("neg", Cast(load, F32)))
    group = Group(
        "pad_bf16", (96,), (Nest((96,), (), (Store(by, flat, Cast(value, torch.bfloat16)),)),)
    )
    padded = torch.nn.functional.pad(x, (2, 0, 0, 2))
    padded[:, 1::2] *= -1
    return group, {"x": x, "y": y}, {"y": padded.flatten()}


def integers():
    """Wrap-around, floor division and shifts of int32, and a bool output."""
    a = torch.tensor([2**31 - 1, -7, 7, 5, -(2**31), 0], dtype=torch.int32)
    b = torch.tensor([1, 2, -2, 31, 3, 40], dtype=torch.int32)
    y, z = out(6, 4, dtype=torch.int32), out(6, dtype=torch.bool)
    ba, bb, by, bz = buffers(a=a, b=b, y=y, z=z)
    i = atom_index(Axis(0, 6))
    x, d = Load(ba, i), Load(bb, i)
    values = [op("add", x, d), op("floordiv", x, d), op("remainder", x, d), op("shl", x, d)]
    stores = [
        Store(by, add(linear((Axis(0, 6),), (4,)), const(k)), value)
        for k, value in enumerate(values)
    ]
    stores.append(Store(bz, i, op("lt", x, d)))
    expected = torch.stack([a + b, a // b, a % b, a << b], 1)
    group = Group("integers", (6,), (Nest((6,), (), tuple(stores)),))
    return group, {"a": a, "b": b, "y": y, "z": z}, {"y": expected, "z": a < b}


EXAMPLES = (
    gelu,
    softmax,
    mean_variance,
    transpose_add,
    gather,
    column_sum,
    full_argmax,
    pad_bf16,
    integers,
)
