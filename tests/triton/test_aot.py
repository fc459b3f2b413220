"""Builds every example kernel for an NVIDIA and an AMD GPU, which needs neither, and looks at what
the assembler says of it."""

import re
import subprocess
import tempfile
from math import prod
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

import torch
from dynfix.lowering.loops.ir import (
    REDUCTIONS,
    Buffer,
    Group,
    IndexValue,
    Load,
    Nest,
    Op,
    Reduced,
    Store,
)
from dynfix.lowering.loops.kernel_graph import Ref
from dynfix.lowering.loops.ops import NUMBERS, OPS
from dynfix.lowering.loops.polynomials import Var, variable
from dynfix.lowering.loops.sizes import (
    Axis,
    atom_index,
    const,
    contiguous_strides,
    linear,
    make_axes,
)
from dynfix.lowering.targets.triton import triton_attention
from dynfix.lowering.targets.triton.triton_target import HEADER, print_group
from dynfix.lowering.targets.triton.triton_tile import Device
from dynfix.runtime.errors import BuildError
from dynfix.runtime.gpu.triton_kernels import (
    TritonGroup,
    TritonKernel,
    build,
    interpreted,
    load_source,
)
from kernel_examples import EXAMPLES, swiglu
from schedule_programs import PROGRAMS
from triton.backends.compiler import GPUTarget
from without_gpu import lowered
from without_gpu import printed_groups as groups

pytestmark = pytest.mark.skipif(interpreted(), reason="the interpreter builds nothing")
TARGETS = {"sm_90": GPUTarget("cuda", 90, 32), "gfx942": GPUTarget("hip", "gfx942", 64)}
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def made(group: TritonGroup, kernel: TritonKernel, target: str, aligned: bool = True):
    function = getattr(load_source(group.header + kernel.text, kernel.name), kernel.name)
    return build(kernel, function, TARGETS[target], aligned)


def spilled(binary, target: str, folder: Path) -> int:
    """Bytes or registers that the kernel keeps in memory for want of registers."""
    if target == "gfx942":
        return sum(
            int(n) for n in re.findall(r"\.[sv]gpr_spill_count:\s*(\d+)", binary.asm["amdgcn"])
        )
    file = folder / "kernel.cubin"
    file.write_bytes(binary.asm["cubin"])
    usage = subprocess.run(
        [CUOBJDUMP, "--dump-resource-usage", file], capture_output=True, text=True, check=True
    ).stdout
    assert "REG:" in usage
    return sum(int(n) for n in re.findall(r"(?:LOCAL|STACK):(\d+)", usage))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("make", EXAMPLES, ids=lambda make: make.__name__)
def test_kernels_build_without_spills(make, target, tmp_path):
    group = print_group(make()[0])
    for kernels in group.variants:
        binary = made(group, kernels[0], target)
        assert binary.kernel, "no machine code"
        assert spilled(binary, target, tmp_path) == 0


@pytest.mark.slow
@pytest.mark.parametrize("make", EXAMPLES, ids=lambda make: make.__name__)
def test_every_variant_builds(make):
    group = print_group(make()[0])
    for kernels in group.variants:
        for kernel in kernels:
            assert made(group, kernel, "sm_90").asm["cubin"]


def every_op(dtype):
    """One kernel that applies every function of the loop IR to `dtype`."""
    names = [name for name, signature in OPS.items() if dtype in signature.operands]
    i = atom_index(Axis(0, 1024))
    inputs = [Load(Buffer(f"in{k}", dtype, 1024), i) for k in range(3)]
    stores = []
    for k, name in enumerate(names):
        result = OPS[name].result or dtype
        stores.append(
            Store(
                Buffer(f"out{k}", result, 1024),
                i,
                Op(name, tuple(inputs[: OPS[name].arity]), result),
            )
        )
    return Group("every_op", (1024,), (Nest((1024,), (), tuple(stores)),))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [*sorted(NUMBERS, key=str), torch.bool], ids=str)
def test_every_function_builds(dtype, target):
    group = print_group(every_op(dtype))
    assert made(group, group.variants[0][0], target).kernel


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [*sorted(NUMBERS, key=str), torch.bool], ids=str)
def test_every_reduction_builds(dtype, target):
    kinds = ("any", "all") if dtype == torch.bool else sorted(REDUCTIONS - {"any", "all"})
    at, row = linear((Axis(0, 64), Axis(1, 100)), (100, 1)), atom_index(Axis(0, 64))
    stores = []
    for k, kind in enumerate(kinds):
        result = torch.int64 if kind.startswith("arg") else dtype
        value = Reduced(kind, Load(Buffer("x", dtype, 6400), at), result)
        stores.append(Store(Buffer(f"out{k}", result, 64), row, value))
    for inner in ((100,), (20000,)):
        nests = (Nest((64,), inner, tuple(stores)),) if inner == (100,) else (_long(stores),)
        group = print_group(Group("reductions", nests[0].space, nests), Device(multiprocessors=1))
        assert made(group, group.variants[0][0], target).kernel


def _long(stores):
    """The same reductions over rows that need a loop."""
    at, row = linear((Axis(0, 64), Axis(1, 20000)), (20000, 1)), atom_index(Axis(0, 64))
    longer = []
    for store in stores:
        buffer = Buffer("x", store.value.value.dtype, 64 * 20000)
        longer.append(
            Store(store.buffer, row, Reduced(store.value.kind, Load(buffer, at), store.value.dtype))
        )
    return Nest((64,), (20000,), tuple(longer))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_a_product_is_rounded_before_it_is_added(dtype):
    """As eager's is: a product less its own maximum is never above zero."""
    i = atom_index(Axis(0, 1024))
    a, b, c = (Load(Buffer(name, dtype, 1024), i) for name in "abc")
    value = Op("sub", (Op("mul", (a, b), dtype), c), dtype)
    nest = Nest((1024,), (), (Store(Buffer("out", dtype, 1024), i, value),))
    group = print_group(Group("product", (1024,), (nest,)))
    text = assembly(made(group, group.variants[0][0], "sm_90"))
    assert re.search("[FDH]MUL", text) and not re.search("[FDH]FMA|HFMA2", text)


def assembly(binary) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        command = [CUOBJDUMP.with_name("nvdisasm"), "-c", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_aligned_pointers_are_read_in_vectors():
    group = print_group(swiglu(1 << 20)[0])
    kernel = group.variants[0][0]
    assert "ld.global.v" in made(group, kernel, "sm_90").asm["ptx"]
    assert "ld.global.v" not in made(group, kernel, "sm_90", aligned=False).asm["ptx"]


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("row softmax of channels", 8),
        ("row norm of channels", 12),
        ("row softmax over W of NHWC", 12),
        ("row LayerNorm of patches", 21),
        ("RMSNorm of channels", 4),
    ],
)
def test_columns_are_folded_inside_threads(name, most):
    """Shuffles between lanes bound these kernels where each lane has many columns, a few rows of
    each."""
    assert 0 < only_kernel(name).count("shfl.sync") <= most


def test_the_place_of_an_extreme_takes_two_comparisons():
    text = only_kernel("argmax over the middle")
    assert text.count("setp.") <= 4.5 * text.count("ld.global")  # and two once all are seen


def test_interleaved_parts_come_in_vectors():
    """Every other element, out of registers."""
    text = only_kernel("row interleaved rope")
    assert text.count("ld.global") == text.count("ld.global.v4") == 3


def only_kernel(name) -> str:
    """The PTX of a program of one kernel."""
    ((kernels,),) = (g.variants for unit in lowered(*PROGRAMS[name]()) for _, g in groups(unit))
    return made(TritonGroup("", (), (), HEADER), kernels[0], "sm_90").asm["ptx"]


@pytest.mark.parametrize("target", TARGETS)
def test_sizes_as_arguments_build(target):
    """One binary where they are multiples of 16, one where they are not, one that counts in 64
    bits."""
    rows = variable(Var("rows", 1000, 2))
    at = linear((Axis(0, rows), Axis(1, 64)), (64, 1))
    x, y = (Buffer(name, torch.bfloat16, rows * 64) for name in "xy")
    nest = Nest((rows, 64), (), (Store(y, at, Load(x, at)),))
    group = print_group(Group("copied", (rows, 64), (nest,)))
    kernel = group.variants[0][0]
    for one in (kernel, kernel.wider):
        function = getattr(load_source(group.header + one.text, one.name), one.name)
        for even in (True, False):
            assert build(one, function, TARGETS[target], even=(even,)).kernel


def test_what_triton_rejects_is_named():
    group = print_group(EXAMPLES[0]()[0])
    good = group.variants[0][0]
    broken = TritonKernel(
        good.name, good.text.replace("tl.load", "tl.lode"), *list(vars(good).values())[2:]
    )
    with pytest.raises(BuildError, match=good.name):
        made(group, broken, "sm_90")


def _attention(made, **shapes):
    """Causal attention with a soft cap, of 2 x 4 heads of 64 elements."""
    axes = make_axes((2, 4, 256, 256))
    tensors = {}
    for name, (dtype, shape) in shapes.items():
        buffer = Buffer(name, dtype, prod(shape))
        tensors[name] = Ref(buffer, shape, contiguous_strides(shape))
    row, column = (IndexValue(atom_index(axis)) for axis in axes[2:])
    given = Load(triton_attention.GIVEN, const(0))
    changed = Load(triton_attention.CHANGED, const(0))
    return triton_attention.AttentionSpec(
        tensors,
        axes,
        block=(128, 128),
        scale=0.125,
        precision="ieee",
        score=Op("tanh", (given,), torch.float32),
        mask=Op("ge", (row, column), torch.bool),
        gradient=Op("mul", (changed, given), torch.float32) if "dq" in made else None,
        made=made,
    )


@pytest.mark.parametrize("target", TARGETS)
def test_attention(target):
    half, number, index = torch.bfloat16, torch.float32, torch.int32
    heads, rows = (half, (2, 4, 256, 64)), (number, (2, 4, 256))
    given = dict.fromkeys(("q", "k", "v", "out"), heads)
    for kind in ("kv", "full_kv", "q", "full_q"):
        given |= {f"{kind}_num": (index, (1, 1, 2)), f"{kind}_indices": (index, (1, 1, 2, 2))}
    forward = _attention(("out", "lse"), **given, lse=rows)
    gradients = dict.fromkeys(("dout", "dq", "dk", "dv"), heads)
    backward = _attention(
        ("dq", "dk", "dv", "delta"), **given, **gradients, lse=rows, dlse=rows, delta=rows
    )
    printed = (*triton_attention.forward(forward, ()), *triton_attention.backward(backward, ()))
    assert len(printed) == 4
    on_cuda = target == "sm_90"
    for kernels in printed if on_cuda else printed[:1]:  # LLVM takes long over the others
        kernel = kernels[0 if on_cuda else -1]
        made(TritonGroup("attention", (kernels,), (), HEADER), kernel, target)
