"""Random numbers that kernels make on a GPU, and what came with them."""

from itertools import pairwise

import dynfix
import pytest
import torch
from dynfix.lowering.decompositions.random_numbers import uniform

pytestmark = pytest.mark.gpu
F = torch.nn.functional


def expected(state, stream, size):
    """What operator number `stream` of a call that began at `state` draws."""
    now = torch.cuda.get_rng_state()
    torch.cuda.set_rng_state(state)
    seed = torch.randint(-(2**63), 2**63 - 1, (1,), device="cuda")
    torch.cuda.set_rng_state(now)
    return uniform(seed, stream, size)


@pytest.mark.parametrize("shape", [(1,), (127,), (130, 7), (300, 1000), (8, 12, 33, 36)])
def test_numbers_hang_on_state_stream_and_place_alone(shape):
    def fn():
        return torch.rand(shape, device="cuda"), torch.rand(shape, device="cuda")

    call = dynfix.compile(fn, fullgraph=True)
    call()
    for _ in range(3):
        state = torch.cuda.get_rng_state()
        for stream, found in enumerate(call()):
            assert torch.equal(found, expected(state, stream, shape))


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_dropouts_backward_has_its_mask(dtype, mode):
    call = dynfix.compile(lambda x: F.dropout(torch.softmax(x, -1), 0.25, True) * 2, mode=mode)
    seen = []
    for turn in range(6):
        x = torch.randn(64, 500, device="cuda", dtype=dtype, requires_grad=True)
        out = call(x)
        out.float().sum().backward()
        if turn == 0:
            continue
        y = x.detach().float().requires_grad_()
        (torch.softmax(y, -1) * (out != 0) / 0.75 * 2).sum().backward()
        torch.testing.assert_close(x.grad.float(), y.grad, rtol=2e-2, atol=1e-4)
        assert abs((out == 0).float().mean() - 0.25) < 0.02
        seen.append((out == 0).flatten().tolist())
    assert all(one != two for one, two in pairwise(seen))


def test_a_seed_repeats_under_cuda_graphs():
    call = dynfix.compile(lambda x: F.dropout(x, 0.5, True), mode="reduce-overhead")
    x = torch.ones(5000, device="cuda")
    for _ in range(4):
        call(x)
    torch.manual_seed(1)
    one, two = call(x).clone(), call(x).clone()
    torch.manual_seed(1)
    assert torch.equal(call(x), one) and torch.equal(call(x), two) and not torch.equal(one, two)


def test_eagers_own_numbers_on_demand():
    def fn(x):
        return F.dropout(x, 0.5, True), torch.rand(7, device="cuda")

    call = dynfix.compile(fn, options={"fallback_random": True})
    x = torch.ones(300, device="cuda")
    for seed in range(3):
        torch.manual_seed(seed)
        found = call(x)
        torch.manual_seed(seed)
        for one, two in zip(found, fn(x), strict=True):
            assert torch.equal(one, two)


DRAWN_IN_PLACE = {
    "turned": lambda x: x.t().contiguous().t().bernoulli_(0.5),
    "an input": lambda x: x.t().bernoulli_(0.5),
    "dropout": lambda x: F.dropout(x.t() * 2, 0.5, True, inplace=True),
    "a mask": lambda x: x.t() * torch.empty_like(x.t(), dtype=torch.bool).bernoulli_(0.5),
    "every other": lambda x: x.t()[:, ::2].bernoulli_(0.5),
    "channels last": lambda x: (
        x.view(2, 11, 3, 5).to(memory_format=torch.channels_last).bernoulli_(0.5)
    ),
}


@pytest.mark.parametrize("draw", DRAWN_IN_PLACE.values(), ids=DRAWN_IN_PLACE)
def test_numbers_drawn_in_place_follow_memory(draw):
    call = dynfix.compile(lambda x: draw(x) + 1, options={"fallback_random": True})
    for seed in range(3):
        given = torch.randn(33, 10, device="cuda")
        one, two = given.clone(), given.clone()
        torch.manual_seed(seed)
        found = call(one)
        torch.manual_seed(seed)
        assert torch.equal(found, draw(two) + 1) and torch.equal(one, two)


def test_an_optimizers_step_over_many_parameters():
    def step(params, grads):
        torch._foreach_mul_(params, 0.9)
        torch._foreach_addcmul_(params, grads, grads, -0.1)

    call = dynfix.compile(step, fullgraph=True)
    sizes = [(k * 37 % 1000 + 1, 16 if k % 3 else 5) for k in range(90)]
    for _ in range(3):
        params, grads = ([torch.randn(s, device="cuda") for s in sizes] for _ in range(2))
        wanted = [p.clone() for p in params]
        with torch.no_grad():
            call(params, grads)
            step(wanted, grads)
        torch.testing.assert_close(params, wanted)


def test_a_product_with_odd_sizes_and_its_gradients():
    head = torch.nn.Linear(320, 5003).cuda().bfloat16()
    call = dynfix.compile(head, fullgraph=True)
    for _ in range(3):
        x = torch.randn(300, 320, device="cuda", dtype=torch.bfloat16)
        results = []
        for fn in (call, head):
            head.zero_grad()
            out = fn(x)
            out.float().square().mean().backward()
            results.append([out, *(p.grad.clone() for p in head.parameters())])
        assert results[0][0].stride() == results[1][0].stride()
        torch.testing.assert_close(*results, rtol=2e-2, atol=2e-2)


def test_convolutions_with_bias():
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3),
        torch.nn.GELU(),
        torch.nn.Conv2d(32, 16, 3),
        torch.nn.MaxPool2d(2),
    ).cuda()
    call = dynfix.compile(net, fullgraph=True)
    for _ in range(3):
        x = torch.randn(4, 3, 40, 40, device="cuda")
        results = []
        for fn in (call, net):
            net.zero_grad()
            out = fn(x)
            out.square().mean().backward()
            results.append([out, *(p.grad.clone() for p in net.parameters())])
        torch.testing.assert_close(*results, rtol=1e-2, atol=1e-3)
