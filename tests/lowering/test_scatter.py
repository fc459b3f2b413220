"""Stores at positions from memory: overwriting and folding, in the order of eager."""

import dynfix
import pytest
import torch
from dynfix.lowering import pipeline
from dynfix.lowering.joint import compile_graph
from dynfix.lowering.loops.kernel_graph import ExternCall
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import embedding

from .harness import CHECKED, check_gradients, compiled

randn, randperm = torch.randn, torch.randperm


def ids(bound, *shape):
    return torch.randint(0, bound, shape)


def reduced(how, include_self):
    def scatter_reduce(x, i, v):
        return x.scatter_reduce(1, i, v, how, include_self=include_self)

    return scatter_reduce


def set_from_end(x, i, v):
    x = x.clone()
    x[:, i - 3] = v
    return x


def set_where(x, v):
    x = x.clone()
    x[v > 0] = 3
    return x


CASES = {
    "index_put": (
        lambda x, i, v: torch.index_put(x, (i,), v),
        (randn(5, 4), randperm(5)[:3], randn(3, 4)),
    ),
    "index_put, two indices": (
        lambda x, i, j, v: x.index_put((i, j), v, accumulate=True),
        (randn(5, 4), ids(5, 30), ids(4, 30), randn(30)),
    ),
    "index_put, sums": (
        lambda x, i, v: torch.index_put(x, (i,), v, accumulate=True),
        (randn(5, 4), ids(5, 30), randn(30, 4)),
    ),
    "negative positions": (set_from_end, (randn(5, 4, 3), randperm(4)[:2], randn(5, 2, 3))),
    "a mask": (set_where, (randn(5, 4), randn(5))),
    "index_add": (
        lambda x, i, v: x.index_add(0, i, v, alpha=2),
        (randn(5, 40), ids(5, 300), randn(300, 40)),
    ),
    "index_add, last axis": (
        lambda x, i, v: x.index_add(1, i, v),
        (randn(50, 4), ids(4, 300), randn(50, 300)),
    ),
    "index_copy": (
        lambda x, i, v: x.index_copy(1, i, v),
        (randn(5, 40), randperm(40)[:7], randn(5, 7)),
    ),
    "scatter": (
        lambda x, i, v: x.scatter(1, i, v),
        (randn(5, 40), randperm(36).reshape(4, 9), randn(5, 9)),
    ),
    "scatter, a number": (lambda x, i: x.scatter(1, i, 2.0), (randn(5, 40), ids(40, 4, 9))),
    "scatter_add": (
        lambda x, i, v: x.scatter_add(1, i, v),
        (randn(5, 40), ids(40, 4, 90), randn(5, 90)),
    ),
    **{
        f"scatter_reduce {how}, {own}": (
            reduced(how, own),
            (randn(5, 40), ids(40, 4, 9), randn(5, 90)),
        )
        for how in ("sum", "prod", "amax", "amin")
        for own in (True, False)
    },
}


@pytest.mark.parametrize("name", CASES)
def test_values(name, monkeypatch):
    items = []
    finish = pipeline.finish
    monkeypatch.setattr(
        pipeline, "finish", lambda unit, *rest: items.extend(unit.items) or finish(unit, *rest)
    )
    function, args = CASES[name]
    call = compile_graph(make_fx(function)(*args), list(args), CHECKED)
    torch.testing.assert_close(call(*args), function(*args))
    torch.testing.assert_close(call(*args), function(*args))
    assert not any(isinstance(item, ExternCall) for item in items)


@pytest.mark.parametrize("threads", [1, 2])
def test_sums_are_the_same_at_every_call(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, i, v = randn(50, 64), ids(50, 4000), randn(4000, 64)
        call = compiled(lambda x, i, v: x.index_add(0, i, v), x, i, v)
        results = [call(x, i, v) for _ in range(3)]
        assert all(torch.equal(result, x.index_add(0, i, v)) for result in results)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "name, bad",
    [
        ("index_put", 5),
        ("index_put, sums", -6),
        ("index_copy", -1),
        ("index_add", -1),
        ("scatter", 40),
        ("scatter_add", -1),
        ("scatter_reduce amax, True", -1),
    ],
)
def test_a_bad_position_is_an_error(name, bad):
    function, args = CASES[name]
    call = compiled(function, *args)
    wrong = args[1].clone()
    wrong.view(-1)[-1] = bad
    for run in (function, call):
        with pytest.raises((IndexError, RuntimeError)):
            run(args[0], wrong, *args[2:])


def test_gradient_of_an_embedding():
    def looked_up(weight, i):
        return embedding(i, weight, padding_idx=2).sin()

    check_gradients(looked_up, randn(10, 40), ids(10, 7, 50))


def set_under(x, mask, token):
    made = x * 2
    made[mask] = token
    return made


def put_under(x, mask, token):
    return torch.index_put(x, [mask], token) + (x * 2).index_put_((mask,), token)


@pytest.mark.covering
@pytest.mark.parametrize("shape", [(), (3,), (1, 3)])
@pytest.mark.parametrize("function", [set_under, put_under])
def test_a_differentiated_value_written_under_a_mask(function, shape):
    call = dynfix.compile(function, options={"strict": True})
    for step in range(3):
        x, token = randn(2, 5, 3).requires_grad_(), randn(shape).requires_grad_()
        mask = torch.rand(2, 5) > step / 2
        found, expected = call(x, mask, token), function(x, mask, token)
        torch.testing.assert_close(found, expected)
        seed = randn(2, 5, 3)
        seed[~mask] = torch.nan
        grads = [torch.autograd.grad(each, (x, token), seed) for each in (found, expected)]
        torch.testing.assert_close(*grads, equal_nan=True)


def test_positions_that_a_division_of_the_last_axis_gives():
    def unpooled(x, positions):
        made = x.new_zeros(4 * 18)
        rows = torch.arange(4).view(2, 2, 1, 1) * 18
        return made.index_put(((positions + rows).reshape(-1),), x.reshape(-1))

    x = randn(2, 2, 2, 4).contiguous(memory_format=torch.channels_last)
    positions = torch.stack([randperm(18)[:8] for _ in range(4)]).view(2, 2, 2, 4)
    positions = positions.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(
        compiled(unpooled, x, positions)(x, positions), unpooled(x, positions)
    )


def test_windows_beside_each_other():
    """Large sums into places that never meet, along every axis."""

    def fn(x):
        return x.unfold(2, 16, 16).unfold(3, 16, 16).permute(0, 2, 3, 1, 4, 5).reshape(8, 64, -1)

    check_gradients(fn, torch.randn(8, 3, 128, 128))
    check_gradients(lambda x: x.unfold(0, 4, 4).sin(), torch.randn(1 << 17))


def test_what_is_stored_is_computed_in_blocks():
    """By a vector loop, before the loop that stores it; a block ends before the last one does."""
    places = torch.randint(0, 7, (1300,))

    def softmax(x, i):
        e = (x - x.mean()).exp()
        return e / x.new_zeros(7).index_add(0, i, e)[i]

    def overwritten(x, i):
        return x.new_zeros(7).index_put((i,), x.sigmoid() * 3) + x[:7]

    for fn in (softmax, overwritten):
        check_gradients(fn, randn(1300), places)
    call = dynfix.compile(softmax, fullgraph=True)
    for bad in (7, -8):
        torch.testing.assert_close(
            call(randn(1300).abs(), places % 7).isnan().any(), torch.tensor(False)
        )
        with pytest.raises(IndexError):
            call(randn(1300), torch.where(torch.arange(1300) == 1299, bad, places))
