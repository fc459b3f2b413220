"""What `torch_facts` says of dtypes, memory and layouts, against torch itself: every operator of a
table, with every dtype."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from dynfix.rewriter.analysis import torch_facts as tables
from dynfix.rewriter.analysis.call_effects import DRAWS
from torch import nn

INTS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
EVERY = (torch.bool, *INTS, *FLOATS, torch.complex64)
_MASK = torch.tensor([[True, False, True, True]] * 4)
ARGUMENTS = {
    **dict.fromkeys(["masked_fill", "masked_fill_"], lambda x: (_MASK, 1)),
    **dict.fromkeys(["clamp", "clip", "clamp_"], lambda x: (0, 1)),
    **dict.fromkeys(["clamp_min", "clamp_max", "full_like", "fill_"], lambda x: (1,)),
    **dict.fromkeys(["cumsum", "cumprod", "softmax", "log_softmax", "logsumexp"], lambda x: (0,)),
    **dict.fromkeys(["flip"], lambda x: (0,)),
    **dict.fromkeys(["roll"], lambda x: (1, 0)),
    **dict.fromkeys(["add_", "sub_", "mul_", "div_", "copy_"], lambda x: (x.clone(),)),
    **dict.fromkeys(["gather"], lambda x: (0, torch.zeros(4, 4, dtype=torch.long))),
    **dict.fromkeys(["scatter_", "scatter_add_"], lambda x: (0, _indices(), x.clone())),
    **dict.fromkeys(["index_add_"], lambda x: (0, torch.tensor([0]), x[:1].clone())),
    "dropout": lambda x: (0.5, True),
    **dict.fromkeys(["quantile"], lambda x: (torch.tensor(0.5, dtype=x.dtype),)),
    **dict.fromkeys(["multinomial", "pow"], lambda x: (1,)),
    "kthvalue": lambda x: (1,),
    **dict.fromkeys(["unsqueeze", "diagonal"], lambda x: (0,)),
    **dict.fromkeys(["transpose", "swapaxes", "swapdims", "permute"], lambda x: (1, 0)),
    **dict.fromkeys(["movedim", "moveaxis", "select"], lambda x: (1, 0)),
    **dict.fromkeys(["reshape", "tile", "repeat"], lambda x: (2, 8)),
    **dict.fromkeys(["expand", "broadcast_to"], lambda x: ((4, 4),)),
    **dict.fromkeys(["expand_as", "view_as"], lambda x: (x.clone(),)),
    "narrow": lambda x: (0, 1, 2),
    "unflatten": lambda x: (0, (2, 2)),
    "unfold": lambda x: (0, 2, 1),
    "take": lambda x: (_indices(),),
    "index_select": lambda x: (0, torch.tensor([0])),
    "masked_select": lambda x: (_MASK,),
}
_PAIRS = frozenset(
    """
    eq ne lt le gt ge greater greater_equal less less_equal not_equal isclose logical_and logical_or
    logical_xor isin add sub mul div true_divide multiply subtract maximum minimum matmul mm cdist
    mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy
    binary_cross_entropy_with_logits searchsorted cross_entropy
    """.split()
)
_NOT_ELEMENTWISE = frozenset(
    """
    cat stack where conv1d conv2d conv3d layer_norm batch_norm group_norm embedding nll_loss bmm
    addmm linear bincount bucketize outer
    """.split()
)


def _indices():
    return torch.zeros(4, 4, dtype=torch.long)


def _call(name, x):
    """The operator, as a method where there is one."""
    if name in _NOT_ELEMENTWISE:
        return _special(name, x)
    args = (x.clone(),) if name in _PAIRS else ARGUMENTS.get(name, lambda x: ())(x)
    if hasattr(x, name):
        return getattr(x, name)(*args)
    owner = torch if hasattr(torch, name) else F
    return getattr(owner, name)(x, *args)


def _special(name, x):
    made = {
        "cat": lambda: torch.cat([x]),
        "stack": lambda: torch.stack([x]),
        "where": lambda: torch.where(torch.tensor(True), x, x),
        "conv1d": lambda: F.conv1d(x[None], torch.ones(2, 4, 1, dtype=x.dtype)),
        "conv2d": lambda: F.conv2d(x[None, None], torch.ones(1, 1, 1, 1, dtype=x.dtype)),
        "conv3d": lambda: F.conv3d(x[None, None, None], torch.ones(1, 1, 1, 1, 1, dtype=x.dtype)),
        "layer_norm": lambda: F.layer_norm(x, (4,)),
        "batch_norm": lambda: F.batch_norm(x, None, None, training=True),
        "group_norm": lambda: F.group_norm(x, 2),
        "embedding": lambda: F.embedding(_indices(), x),
        "nll_loss": lambda: F.nll_loss(x, torch.zeros(4, dtype=torch.long)),
        "bmm": lambda: torch.bmm(x[None], x[None]),
        "addmm": lambda: torch.addmm(x, x, x),
        "linear": lambda: F.linear(x, x.clone()),
        "bincount": lambda: torch.bincount(x[:, 0]),
        "bucketize": lambda: torch.bucketize(x, torch.tensor([0.5])),
        "outer": lambda: torch.outer(x[0], x[0]),
    }
    return made[name]()


def _result(name, x):
    """The first tensor of the result; None where the operator refuses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            out = _call(name, x)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
            return None
    return out[0] if isinstance(out, tuple) else out


def _tensor(dtype):
    return torch.tensor([[0, 1, 1, 0]] * 4).to(dtype)


def _dtypes(name, dtypes=EVERY):
    results = ((d, _result(name, _tensor(d))) for d in dtypes)
    return {d: r.dtype for d, r in results if isinstance(r, torch.Tensor)}


@pytest.mark.parametrize("name", sorted(tables.KEEPS))
def test_keeps(name):
    assert all(d == r for d, r in _dtypes(name).items())


@pytest.mark.parametrize("name", sorted(tables.KEEPS_NUMBERS))
def test_keeps_numbers(name):
    kept = _dtypes(name, (*INTS, *FLOATS))
    assert kept
    assert all(d == r for d, r in kept.items())


@pytest.mark.parametrize("name", sorted(tables.SAME_FLOAT))
def test_same_float(name):
    found = _dtypes(name)
    assert all(r == d for d, r in found.items() if d in (*FLOATS, torch.complex64))
    assert all(r == torch.float32 for d, r in found.items() if d in (torch.bool, *INTS))


@pytest.mark.parametrize("name", sorted(tables.REAL_ONLY))
def test_real_only(name):
    found = _dtypes(name)
    assert torch.complex64 not in found
    assert all(r.is_floating_point for r in found.values())


@pytest.mark.parametrize("name", sorted(tables.SUMS_UP))
def test_sums_up(name):
    for dtype, result in _dtypes(name).items():
        assert result == (dtype if dtype in (*FLOATS, torch.complex64) else torch.int64)


@pytest.mark.parametrize("name", sorted(tables.BOOL_RESULT))
def test_bool_result(name):
    for dtype, result in _dtypes(name).items():
        bytes_ = name in tables.BYTES_STAY and dtype == torch.uint8
        assert result == (torch.uint8 if bytes_ else torch.bool)


@pytest.mark.parametrize("name", sorted(tables.INT_RESULT))
def test_int_result(name):
    assert set(_dtypes(name).values()) <= {torch.int64}


def _layouts(dtype):
    """Tensors with gaps, with elements that share memory, permuted, without elements."""
    x = _tensor(dtype)
    yield from (x, x.t(), x[:1].expand(4, 4), torch.cat([x, x], 1)[:, ::2], x[:, :0], x[:1, :1])


def _dense(x):
    sizes = sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n > 1)
    step = 1
    for stride, size in sizes:
        if stride != step:
            return False
        step *= size
    return True


@pytest.mark.parametrize("name", sorted(tables.MAKES))
def test_makes(name):
    """A new dense tensor, whatever the operator is given."""
    worked = 0
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float32, torch.bfloat16):
        for x in _layouts(dtype):
            result = _result(name, x)
            if isinstance(result, torch.Tensor) and result.numel():
                worked += 1
                assert result is not x
                assert result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
                assert _dense(result), (dtype, x.stride(), result.stride())
    assert worked


@pytest.mark.parametrize("name", sorted(tables.STRIDED))
@pytest.mark.parametrize("sparse", ["to_sparse", "to_sparse_csr"])
def test_strided(name, sparse):
    for dtype in (torch.float32, torch.int64):
        result = _result(name, getattr(_tensor(dtype), sparse)())
        assert result is None or result.layout == torch.strided


def test_reductions_of_all_elements_are_strided():
    for name in tables.REDUCTIONS - {"logsumexp", "norm"}:
        for x in (_tensor(torch.float32).to_sparse(), _tensor(torch.float32).to_sparse_csr()):
            result = _result(name, x)
            assert result is None or result.layout == torch.strided


_NEUTRAL = (tables.SAME | tables.SAME_FLOAT | tables.REDUCTIONS) - tables.AUTOCAST


@pytest.mark.parametrize("name", sorted(_NEUTRAL - {"abs"}))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_autocast_changes_no_other(name, dtype):
    plain = _dtypes(name, (dtype,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert _dtypes(name, (dtype,)) == plain


@pytest.mark.parametrize("name", sorted(tables.RETURNS_ITSELF))
def test_returns_itself(name):
    x = _tensor(torch.float32)
    assert _result(name, x) is x


_LAYERS = {
    "Linear": (4, 4),
    "Bilinear": (4, 4, 4),
    "LazyLinear": (4,),
    "GroupNorm": (2, 4),
    "LayerNorm": (4,),
    "RMSNorm": (4,),
    "Embedding": (4, 4),
    "PReLU": (),
}


@pytest.mark.parametrize("name", sorted(tables.NEW_LAYERS | tables.FLOATING_LAYERS))
def test_layers(name):
    """Floats come out of those that work in floating point; those that make a tensor make one."""
    args = (4,) if "Norm" in name else _LAYERS.get(name, (4, 4, 1) if "Conv" in name else ())
    args = (4, 1) if name.startswith("LazyConv") else _LAYERS.get(name, args)
    axes = {"1d": (), "2d": (4,), "3d": (4, 4)}.get(name[-2:])
    shape = (4, 4) if axes is None or "Norm1d" in name else (2, 4, 4, *axes)
    for dtype in EVERY:
        x = torch.ones(shape).to(dtype)
        try:
            layer = getattr(nn, name)(*args)
            out = layer(x, x) if name == "Bilinear" else layer(x)
        except (RuntimeError, TypeError, ValueError):
            continue
        real = dtype != torch.complex64
        assert not real or name not in tables.FLOATING_LAYERS or out.is_floating_point()
        if name in tables.NEW_LAYERS:
            assert out.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
            assert _dense(out)


def test_what_draws_random_numbers_is_known():
    """torch marks its operators that ask a generator."""
    drawing = set()
    every = (name.partition("::") for name in torch._C._dispatch_get_all_op_names())
    for name in {name.partition(".")[0] for space, _, name in every if space == "aten"}:
        packet = getattr(torch.ops.aten, name, None)
        overloads = packet.overloads() if hasattr(packet, "overloads") else ()
        tags = (getattr(packet, o).tags for o in overloads)
        if any(torch.Tag.nondeterministic_seeded in t for t in tags):
            drawing.add(name)
    unnamed = {"miopen_rnn", "normal_functional", "random"}  # no function of Python's is named so
    public = {n for n in drawing if not n.startswith("_")} - unnamed
    assert public <= DRAWS
    assert {"rand", "dropout", "lstm"} <= public
