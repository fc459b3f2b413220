"""Equal nodes of a joint graph become one, and nothing of Inductor is loaded for it."""

import sys

import dynfix
import forked
import pytest
import torch
from dynfix.lowering.graph.common_subexpressions import without_duplicates
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten


def targets(fn, *shapes):
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(torch.ones(shape)) for shape in shapes]
        graph = without_duplicates(make_fx(fn)(*fakes).graph)
    graph.lint()
    return [node.target for node in graph.nodes if node.op == "call_function"]


def test_what_is_computed_twice_is_computed_once():
    def fn(x, y):
        return (x.sin() * y.cos() + x.sin() * y.cos(),)

    assert sorted(map(str, targets(fn, 3, 3))) == sorted(
        ["aten.sin.default", "aten.cos.default", "aten.mul.Tensor", "aten.add.Tensor"]
    )


def test_numbers_of_another_type_or_sign_are_other_arguments():
    def fn(x):
        return (x * 1 + x * 1.0 + x * 0.0 + x * -0.0 + x * 1,)

    assert targets(fn, 3).count(aten.mul.Tensor) == 4


def test_outputs_stay_apart_and_so_do_random_numbers_and_writes():
    assert targets(lambda x: (x.sin(), x.sin()), 3).count(aten.sin.default) == 2
    assert targets(lambda x: (torch.rand_like(x) + torch.rand_like(x),), 3).count(
        aten.rand_like.default
    ) == 2  # fmt: skip

    def writes(x, y):
        before = x.sin()
        y.copy_(before)
        return (before + y.sin() + x.sin() + y.sin(),)

    assert targets(writes, 3, 3).count(aten.sin.default) == 3


DRAWS = (
    torch.randn_like,
    torch.rand_like,
    lambda x: torch.randint_like(x, 100),
    lambda x: torch.empty_like(x).exponential_(),
    lambda x: torch._sample_dirichlet(x.detach().abs() + 1),
    lambda x: torch.poisson(x.detach().abs() * 5),
)


@pytest.mark.parametrize("draw", DRAWS)
def test_random_numbers_that_are_drawn_twice_of_one_tensor(draw):
    def fn(x):
        return draw(x) * x.sum(), draw(x) * x.sum()

    call = dynfix.compile(fn)
    for seed in range(3):
        made = []
        for each in (call, fn):
            torch.manual_seed(seed)
            x = torch.randn(6, 8, requires_grad=True)
            made.append((*each(x), torch.rand(2)))
        for one, two in zip(*made, strict=True):
            torch.testing.assert_close(one, two)
        assert not torch.equal(*made[0][:2])


def test_a_users_operator_is_called_as_often_as_it_stands_there():
    seen = []

    @torch.library.custom_op("dynfix_tests::noted", mutates_args=())
    def noted(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(seen))
        return x + len(seen)

    noted.register_fake(torch.empty_like)

    def fn(x):
        return (noted(x.detach()) * x + noted(x.detach()) * x).sum()

    call = dynfix.compile(fn)
    for _ in range(3):
        seen.clear()
        x = torch.ones(4, requires_grad=True)
        assert call(x).item() == 4 * (2 + 3) and seen == [0, 1]


def test_a_training_graph_loads_nothing_of_inductors_lowering():
    code = """
import sys, torch, dynfix
f = dynfix.compile(lambda x: (x.sin() * x.sin()).sum())
for _ in range(2):
    f(torch.ones(4, requires_grad=True)).backward()
loaded = {"torch._inductor.pattern_matcher", "torch._inductor.lowering"} & set(sys.modules)
print(sorted(loaded))
"""
    done = forked.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_parts_of_what_gives_several_results_stay_apart():
    def fn(x):
        return torch.sort(x).values, torch.sort(x).values, torch.kthvalue(x, 1).values

    call = dynfix.compile(fn)
    for _ in range(3):
        results = call(torch.randn(4, 5, requires_grad=True))
        assert len({each.untyped_storage().data_ptr() for each in results}) == 3


def test_a_clone_of_a_cut_is_placed_apart():
    def fn(x, w):
        kept = (x + x)[-1:].clone()
        kept[::2].add_(3)
        return kept[-1], (x * 2)[1:].clone()[1:] * w.sum(), w * 2

    call = dynfix.compile(fn)
    for _ in range(3):
        x, w = torch.randn(4), torch.randn(3, requires_grad=True)
        for found, expected in zip(call(x, w), fn(x, w), strict=True):
            torch.testing.assert_close(found, expected)
