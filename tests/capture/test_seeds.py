"""torch's generator seeded, or put back, inside a captured call: between two graphs, at every
call, as eager does it."""

import pytest
import torch
from helpers import X, Y, recordings, same, tensor

FOUR = [(X,), (Y,), (X,), (Y,)]
LEARNT = [(tensor(1, 2, n, grad=True),) for n in range(4)]


def seeded(x):
    drawn = torch.rand(3) * x
    torch.manual_seed(3)
    return drawn, x + torch.rand(3), torch.randn(3)


def seeded_in_a_callee(x):
    def draw(value, seed):
        torch.random.manual_seed(seed=seed)
        return value * torch.rand(3)

    return draw(x, 1) + draw(x * 2, x.shape[0])


def forked(x):
    y = x * 2
    with torch.random.fork_rng():
        torch.manual_seed(1)
        noise = torch.randn(3)
    with torch.random.fork_rng(enabled=False):
        return y + noise, torch.rand(3)


def put_back(x):
    state = torch.get_rng_state()
    drawn = torch.rand(3)
    torch.set_rng_state(state)
    return drawn, torch.rand(3) + x, state


def one_mask(x):
    torch.manual_seed(0)
    first = torch.nn.functional.dropout(x, 0.5)
    torch.manual_seed(0)
    return first, torch.nn.functional.dropout(x * 2, 0.5)


def without_gradients(x):
    with torch.no_grad():
        torch.manual_seed(1)
        noise = x * torch.rand(3)
    return noise * x


@pytest.mark.covering
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("steps", [FOUR, LEARNT], ids=["plain", "learnt"])
@pytest.mark.parametrize(
    "program", [seeded, seeded_in_a_callee, forked, put_back, one_mask, without_gradients]
)
def test_one_recording(program, steps, backend):
    tolerance = None if backend == "eager" else (1e-5, 1e-6)
    fn = same(lambda: program, (X * 2,), *steps, backend=backend, tolerance=tolerance)
    assert all(len(recording.segments) > 1 for recording in recordings(fn))


def test_an_outcome_that_was_not_seen_puts_the_seed_back():
    def f(x):
        drawn = torch.rand(3)
        torch.manual_seed(5)
        noise = torch.rand(3) * x
        if noise.sum() > 0:
            return drawn, noise.exp().clone(), torch.rand(1)
        torch.manual_seed(9)
        return drawn, noise, torch.rand(1)

    same(lambda: f, (X * 0 + 1,), (X * 0 - 1,), *FOUR)


def test_seeds_that_change():
    def f(x, seed):
        torch.manual_seed(seed)
        return x * torch.rand(3)

    same(lambda: f, (X, 1), (X, 2), (Y, 3), (Y, 1), (X, 4))


def test_where_a_graph_cannot_be_cut():
    def f(x):
        with torch.autocast("cpu"):
            torch.manual_seed(1)
            y = x * torch.rand(3)
        return torch.func.vmap(lambda row: row * torch.manual_seed(2).initial_seed())(y)

    same(lambda: f, *FOUR)


def test_what_is_no_seed_raises():
    def f(x):
        y = x * 2
        try:
            torch.manual_seed("text")
        except (TypeError, ValueError) as error:
            return y, type(error)

    same(lambda: f, *FOUR)


def test_the_line_that_is_named_is_the_users():
    fn = same(lambda: forked, *FOUR)
    assert {site.text for site in recordings(fn)[-1].sites} <= {
        "with torch.random.fork_rng():",
        "torch.manual_seed(1)",
    }
