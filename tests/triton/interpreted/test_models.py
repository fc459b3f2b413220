"""Whole graphs, forward and backward, through the joint graph, the loop IR and the interpreter."""

import pytest
import torch
from dynfix.runtime.errors import BuildError
from dynfix.runtime.options import Options
from lowering_tests.harness import check, check_gradients, compiled

F = torch.nn.functional
DTYPES = [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.slow)]


def loose(dtype):
    return {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}


def gelu_chain(x, b):
    return F.gelu(F.gelu(x + b) * x) + b


def softmax_mask(x, mask):
    return torch.softmax((x / 8).masked_fill(mask < 0, -1e9), -1)


def swiglu(x, g):
    return F.silu(g) * x


def rms_norm(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def add_layer_norm(x, r, w, b):
    return F.layer_norm(x + r, (x.shape[-1],), w, b)


def inputs(name, dtype):
    rows, cols = 24, 40
    x, y = torch.randn(rows, cols).to(dtype), torch.randn(rows, cols).to(dtype)
    w, b = torch.randn(cols).to(dtype), torch.randn(cols).to(dtype)
    return {
        "gelu_chain": (x, b),
        "softmax_mask": (x, y),
        "swiglu": (x, y),
        "rms_norm": (x, w),
        "add_layer_norm": (x, y, w, b),
    }[name]


FUNCTIONS = (gelu_chain, softmax_mask, swiglu, rms_norm, add_layer_norm)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_forward(fn, dtype):
    torch.manual_seed(0)
    check(fn, *inputs(fn.__name__, dtype), **loose(dtype))


@pytest.mark.parametrize(
    "fn",
    [
        add_layer_norm,
        *(pytest.param(fn, marks=pytest.mark.slow) for fn in FUNCTIONS if fn is not add_layer_norm),
    ],
    ids=lambda fn: fn.__name__,
)
def test_backward(fn):
    torch.manual_seed(0)
    check_gradients(fn, *inputs(fn.__name__, torch.float32))


def test_mlp_with_loss():
    torch.manual_seed(0)

    def fn(x, w1, b1, w2, b2, y):
        hidden = F.gelu(F.linear(x, w1, b1))
        return F.mse_loss(F.linear(hidden, w2, b2), y)

    shapes = ((16, 12), (32, 12), (32,), (5, 32), (5,), (16, 5))
    check_gradients(fn, *(torch.randn(shape) for shape in shapes))


def test_embedding_and_cross_entropy():
    torch.manual_seed(0)
    ids, labels = torch.randint(0, 20, (6, 4)), torch.randint(0, 11, (24,))

    def fn(table, w, ids, labels):
        return F.cross_entropy(F.embedding(ids, table).view(24, 8) @ w, labels)

    check_gradients(fn, torch.randn(20, 8), torch.randn(8, 11), ids, labels)


def test_attention_with_transposes():
    torch.manual_seed(0)

    def fn(q, k, v, mask):
        scores = q.transpose(1, 2) @ k.transpose(1, 2).transpose(-1, -2) / 4 + mask
        return (scores.softmax(-1) @ v.transpose(1, 2)).transpose(1, 2).reshape(2, 6, 32)

    q, k, v = (torch.randn(2, 6, 2, 16) for _ in range(3))
    check_gradients(fn, q, k, v, torch.randn(2, 1, 1, 6))


def test_reading_inputs_that_are_not_contiguous():
    torch.manual_seed(0)
    wide = torch.randn(40, 64)
    check(lambda x, y: (x + y).sum(0) + x[0], wide.t()[3:19], torch.randn(16, 40))


def test_long_sums_and_columns_in_one_graph():
    torch.manual_seed(0)
    check(
        lambda x: (x.sum(), x.amax(0), x.mean(1), x.argmax()),
        torch.randn(500, 40),
        rtol=1e-4,
        atol=1e-4,
    )


def test_without_the_interpreter_cpu_tensors_are_refused(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    call = None
    with pytest.raises(BuildError, match="TRITON_INTERPRET"):
        call = compiled(lambda x: x + 1, torch.randn(3), options=Options(target="triton"))
    assert call is None
