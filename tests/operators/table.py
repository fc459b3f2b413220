"""docs/operators.md: what becomes of each core ATen overload.

    python -m tests.operators.table

An overload that AOTAutograd decomposes counts as lowered if lowering its example leaves no library
call but products.
"""

import functools
from pathlib import Path

import torch
from dynfix.lowering import pipeline
from dynfix.lowering.decompositions.decompose import decompositions
from dynfix.lowering.joint import compile_graph
from dynfix.lowering.loops.kernel_graph import ExternCall, Ref, leaves
from dynfix.lowering.lowerings import lower
from dynfix.lowering.lowerings.registry import LOWERINGS
from dynfix.runtime.options import Options
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten
FILE = Path(__file__).parents[2] / "docs" / "operators.md"
RANDOM = "draws from eager's stream of random numbers"
IN_KERNELS = f"{RANDOM}; on GPUs kernels make them"
PRODUCT = "the library's product; what surrounds it is fused"
NUMBER = "a number: nothing runs"

# Why the library runs what has no lowering.
LIBRARY = {
    "_cdist_forward": "no lowering yet",
    "_embedding_bag": "no lowering yet",
    "_fft_c2r": "complex numbers",
    "_fft_r2c": "complex numbers",
    "_local_scalar_dense": "reads a number on the host, between two graphs",
    "_pdist_forward": "no lowering yet",
    "atan2.out": "writes a tensor that is given; `atan2` itself is lowered",
    "bmm": f"{PRODUCT}; of vectors, on the CPU, loops",
    "convolution": PRODUCT,
    "convolution_backward": PRODUCT,
    "empty.memory_format": "memory alone: nothing to compute",
    "empty_strided": "memory alone: nothing to compute",
    "grid_sampler_2d": "the library's kernel is the better one",
    "masked_scatter": "needs a running count over two operands",
    "mm": PRODUCT,
    "native_dropout": IN_KERNELS,
    "nonzero": "the result's shape depends on data",
    "rand": IN_KERNELS,
    "randn": IN_KERNELS,
    "randperm": RANDOM,
    "resize_": "changes the memory of a tensor that is given",
    "sort": "the library's kernel is the better one",
    "topk": "the library's kernel is the better one",
    "upsample_bilinear2d.vec": "the library's kernel is the better one",
    "upsample_nearest2d.vec": "decomposed by torch before the table is asked, into `index`",
}
# Beside the core: torch's functions that are no part of a compiled graph, by the sweep.
BETWEEN = {
    "ctc_loss, gaussian_nll_loss, cov, corrcoef, linalg.lstsq": "ask for their data",
    "nonzero, unique, masked_select, bincount, x[mask]": "the result's shape depends on data",
    "to_sparse, sparse.*, sparse tensors": "other layouts than strided",
    "index_fill, index_put, x[mask] = v: values that need a gradient": "it asks for positions",
    "ormqr that is differentiated": "torch lays its gradient out otherwise where it is traced",
    "svd of complex numbers that need a gradient": "its backward looks at them",
    "t_, squeeze_, unsqueeze_ of an input": "what the input is changes under the call's guards",
    "BatchNorm with `momentum=None`": "its momentum is a number, another one at each call",
    "triplet_margin_with_distance_loss called by code of torch": "the user's code inside of it",
}
# What a lowering leaves to the library.
PARTLY = {
    "cumsum": "on GPUs except of fewer than 64 rows that are longer than 4,096",
    "index_put": "except sums where a mask is true, and sums of 16-bit floats",
    "scatter_add": "except 16-bit floats",
    "scatter_reduce.two": "except the mean, and 16-bit floats",
    "embedding_dense_backward": "except gradients divided by counts, and 16-bit floats",
    "index.Tensor": "except masks, whose result's shape depends on data",
    "arange.start_step": "with whole numbers",
    "pow.Tensor_Tensor": "except integers",
    "pow.Scalar": "except integers",
}
POSITIONS = frozenset(
    "index_put scatter.src scatter.value scatter_add scatter_reduce.two"
    " embedding_dense_backward max_pool2d_with_indices_backward".split()
)


def core():
    names = sorted(n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::"))
    parts = [name.removeprefix("aten::").partition(".") for name in names]
    packets = [(getattr(aten, name), overload or "default") for name, _, overload in parts]
    overloads = [getattr(packet, name) for packet, name in packets if hasattr(packet, name)]
    return [overload for overload in overloads if torch.Tag.core in overload.tags]


def short(overload):
    return str(overload).removeprefix("aten.").removesuffix(".default")


def _examples():
    x, image, volume = torch.randn(2, 4, 6), torch.randn(2, 4, 6, 6), torch.randn(1, 2, 4, 4, 4)
    channel = torch.ones(4)
    norms = (image, channel, channel, channel, channel)
    mean, scale = torch.zeros(2, 2), torch.ones(2, 2)
    return {
        "_softmax": (x, 1, False),
        "_log_softmax": (x, 1, False),
        "_native_batch_norm_legit": (*norms, True, 0.1, 1e-5),
        "_native_batch_norm_legit.no_stats": (*norms[:3], True, 0.1, 1e-5),
        "_native_batch_norm_legit_no_training": (*norms, 0.1, 1e-5),
        "adaptive_avg_pool1d": (x, 3),
        "addmm": (torch.ones(5), torch.randn(3, 4), torch.randn(4, 5)),
        "avg_pool1d": (x, 2),
        "col2im": (torch.randn(1, 12, 4), (4, 4), (2, 2), (1, 1), (0, 0), (2, 2)),
        "elu": (x,),
        "gelu": (x,),
        "hardtanh": (x,),
        "leaky_relu": (x,),
        "native_group_norm": (image, channel, channel, 2, 4, 36, 2, 1e-5),
        "native_group_norm_backward": (
            *(image, image, mean, scale, channel, 2, 4, 36, 2),
            [True, True, True],
        ),
        "native_layer_norm": (x, [6], torch.ones(6), torch.ones(6), 1e-5),
        "native_layer_norm_backward": (
            *(x, x, [6], torch.zeros(2, 4, 1), torch.ones(2, 4, 1)),
            *(torch.ones(6), torch.ones(6), [True, True, True]),
        ),
        "reflection_pad1d": (x, (1, 2)),
        "reflection_pad2d": (image, (1, 2, 1, 0)),
        "reflection_pad3d": (volume, (1, 2, 1, 0, 1, 1)),
        "replication_pad2d": (image, (1, 2, 1, 0)),
        "replication_pad3d": (volume, (1, 2, 1, 0, 1, 1)),
        "var.dim": (x, [1]),
    }


class _Lowered(Exception):
    """Stops compiling after lowering."""


def _gives_nothing(call):
    return all(isinstance(ref, Ref) and ref.numel == 0 for ref in leaves(call.result))


def library_calls(overload):
    """Names of library calls, but products, in the lowered example of an overload."""
    calls = []

    def stop(unit, *rest):
        made = [item for item in unit.items if isinstance(item, ExternCall)]
        calls.extend(str(c.target) for c in made if not _gives_nothing(c))
        raise _Lowered

    args = _examples()[short(overload)]
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]

    def call(*given):
        supply = iter(given)
        return overload(*(next(supply) if isinstance(a, torch.Tensor) else a for a in args))

    finish, pipeline.finish = pipeline.finish, stop
    try:
        compile_graph(make_fx(call)(*tensors), tensors, Options())
    except Exception as error:
        if not isinstance(error, _Lowered) and not isinstance(error.__cause__, _Lowered):
            raise
    finally:
        pipeline.finish = finish
    return [call for call in calls if call not in ("aten.mm.default", "aten.bmm.default")]


@functools.cache
def state(overload):
    """(lowered | library, the reason or what remains)."""
    name = short(overload)
    if overload in LOWERINGS:
        notes = [PARTLY[name]] if name in PARTLY else []
        notes += ["C++ target alone"] if name in POSITIONS else []
        return "lowered", "; ".join(notes)
    if overload.is_view or overload in lower._VIEWS:
        return "lowered", "a view: an index map"
    if name.startswith("sym_"):
        return "lowered", NUMBER
    if overload in decompositions() and name not in LIBRARY:
        calls = library_calls(overload)
        if not calls:
            return "lowered", "by its decomposition"
        return "library", f"its decomposition calls {', '.join(sorted(set(calls)))}"
    return "library", LIBRARY[name]


def text():
    rows = [(short(overload), *state(overload)) for overload in core()]
    lowered = sum(kind == "lowered" for _, kind, _ in rows)
    lines = [
        "# Core ATen operators",
        "",
        "Generated by `python -m tests.operators.table`, checked by `tests/operators`. *lowered*:"
        " loops of ours;",
        "*library*: a call of ATen inside of the compiled program. No core operator makes a"
        " function stay in eager.",
        "",
        f"{lowered} of {len(rows)} overloads are lowered.",
        "",
        "| overload | state | |",
        "|---|---|---|",
        *(f"| `{name}` | {kind} | {note} |" for name, kind, note in rows),
        "",
        "## Beside the core",
        "",
        "What `python -m tests.operators.sweep` finds not to be in a compiled graph on the CPU.",
        "*between*: it runs as it is, between compiled parts of the graph or between two graphs.",
        "",
        "| functions | state | |",
        "|---|---|---|",
        *(f"| {names} | between | {why} |" for names, why in BETWEEN.items()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
