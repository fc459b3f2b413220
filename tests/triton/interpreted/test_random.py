"""Random numbers that kernels make: a function of the generator's state alone, never twice the same,
and the same again in the backward."""

import dynfix
import pytest
import torch
from dynfix.lowering.autograd import double_backward
from dynfix.lowering.decompositions.random_numbers import uniform
from torch.utils.checkpoint import checkpoint

F = torch.nn.functional
OPTIONS = {"target": "triton", "strict": True}


def compiled(fn, **options):
    return dynfix.compile(fn, fullgraph=True, options={**OPTIONS, **options})


def expected(state, stream, size):
    """What operator number `stream` of a call that began at `state` draws."""
    now = torch.get_rng_state()
    torch.set_rng_state(state)
    seed = torch.randint(-(2**63), 2**63 - 1, (1,))
    torch.set_rng_state(now)
    return uniform(seed, stream, size)


@pytest.mark.parametrize("shape", [(1,), (3,), (127,), (130, 7), (2, 3, 36), (4, 1000)])
def test_numbers_hang_on_state_stream_and_place_alone(shape):
    call = compiled(lambda: (torch.rand(shape), torch.rand(shape)))
    call()
    for _ in range(3):
        state = torch.get_rng_state()
        for stream, found in enumerate(call()):
            assert torch.equal(found, expected(state, stream, shape))


def test_the_generator_advances_and_a_seed_repeats():
    call = compiled(lambda x: F.dropout(x, 0.5, True))
    x = torch.ones(400)
    call(x)
    torch.manual_seed(5)
    one, two = call(x), call(x)
    torch.manual_seed(5)
    assert torch.equal(call(x), one) and torch.equal(call(x), two) and not torch.equal(one, two)


def test_numbers_look_random():
    seed = torch.tensor([77])
    a, b = uniform(seed, 0, (200_000,)), uniform(seed, 1, (200_000,))
    assert a.min() >= 0 and a.max() < 1 and len(a.unique()) > 197_000
    for x in (a, b):
        assert abs(x.mean() - 0.5) < 3e-3 and abs(x.var() - 1 / 12) < 1e-3
        counts = torch.histc(x, 64, 0, 1)
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 120  # 63 expected
        assert abs(torch.corrcoef(torch.stack((x[1:], x[:-1])))[0, 1]) < 0.01
    assert abs(torch.corrcoef(torch.stack((a, b)))[0, 1]) < 0.01


def test_normal_numbers_and_choices():
    p = torch.rand(50, 80)

    def fn(p):
        return torch.randn_like(p), torch.bernoulli(p), torch.randn(40, 100), p.bernoulli(0.25)

    normal, chosen, other, quarter = (call := compiled(fn))(p)
    normal, chosen, other, quarter = call(p)
    for x in (normal, other):
        assert abs(x.mean()) < 0.06 and abs(x.std() - 1) < 0.06 and x.isfinite().all()
    assert abs(chosen.mean() - p.mean()) < 0.03 and abs(quarter.mean() - 0.25) < 0.03
    assert set(chosen.unique().tolist()) == {0.0, 1.0}


def attention(x, w):
    return F.dropout(torch.softmax(x @ w, -1), 0.2, True) @ w


def test_the_backward_has_the_mask_of_the_forward_and_saves_none(monkeypatch):
    monkeypatch.setattr(double_backward, "torch_parts", lambda: None)  # whose nodes do not show it
    call = compiled(attention)
    w = torch.randn(36, 36)
    for turn in range(3):
        x = torch.randn(20, 36, requires_grad=True)
        state = torch.get_rng_state()
        out = call(x, w)
        saved = out.grad_fn.saved_tensors if turn else ()
        (found,) = torch.autograd.grad(out.square().sum(), x)
        if turn:
            mask = expected(state, 0, (20, 36)) < 0.8
            wanted = (torch.softmax(x @ w, -1) * mask / 0.8) @ w
            torch.testing.assert_close(out, wanted)
            (gradient,) = torch.autograd.grad(wanted.square().sum(), x)
            torch.testing.assert_close(found, gradient, rtol=1e-3, atol=1e-3)
            assert not [t for t in saved if t.dtype == torch.bool]


def test_checkpointed_parts_draw_the_same_again():
    def part(x):
        return F.dropout(x.sin(), 0.5, True)

    call = compiled(lambda x: checkpoint(part, x, use_reentrant=False) * 3)
    for _ in range(3):
        x = torch.rand(300, requires_grad=True)
        out = call(x)
        (found,) = torch.autograd.grad(out.sum(), x)
        torch.testing.assert_close(found, 6 * x.cos() * (out != 0))


def test_a_second_derivative_has_the_mask_of_the_forward():
    call = compiled(lambda x: F.dropout(x * x * x, 0.5, True))
    for _ in range(4):
        x = torch.rand(200, requires_grad=True) + 0.1
        out = call(x)
        (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        torch.testing.assert_close(second, 12 * x * (out != 0))


def test_eagers_own_numbers_on_demand():
    def fn(x):
        return F.dropout(x, 0.5, True), torch.rand(7)

    call, x = compiled(fn, fallback_random=True), torch.ones(300)
    for seed in range(3):
        torch.manual_seed(seed)
        found = call(x)
        torch.manual_seed(seed)
        for one, two in zip(found, fn(x), strict=True):
            assert torch.equal(one, two)
