"""Alike kernels in one, and operators on lists of tensors."""

import pytest
import torch
from dynfix.lowering import pipeline
from dynfix.lowering.loops.ir import Batch, Group

from .harness import check as check_function
from .harness import compiled as compiled_function

aten = torch.ops.aten


def spread(fn, tensors):
    """fn with as many parameters: `torch.fx` wants them named."""
    names = ", ".join(f"t{k}" for k in range(len(tensors)))
    return eval(f"lambda {names}: fn({names})", {"fn": fn})


def check(fn, *tensors, **tolerances):
    return check_function(spread(fn, tensors), *tensors, **tolerances)


def compiled(fn, *tensors):
    return compiled_function(spread(fn, tensors), *tensors)


@pytest.fixture
def kernels(monkeypatch):
    found = []

    def finish(unit, target, options):
        found.extend(item for item in unit.items if isinstance(item, Group | Batch))
        return original(unit, target, options)

    original = pipeline.finish
    monkeypatch.setattr(pipeline, "finish", finish)
    return found


def test_loops_of_different_lengths_are_one_kernel(kernels):
    tensors = [torch.randn(n) for n in (1, 3, 7, 17, 33, 5000, 40_000)]
    check(lambda *xs: tuple(x.sin() * 2 + 1 for x in xs), *tensors)
    assert len(kernels) <= 2 and any(isinstance(kernel, Batch) for kernel in kernels)


def test_what_depends_on_an_earlier_result_stays_behind_it(kernels):
    def fn(a, b, c):
        first = a.sin()
        total = first.sum()
        second = b.sin() * total
        return first, total, second, (c + second.sum()).sin()

    check(fn, torch.randn(100), torch.randn(50), torch.randn(30))


def test_a_batch_keeps_kinds_apart(kernels):
    def fn(a, b, c, d):
        return a * 2, b * 3, c * 2, d.double() * 2

    check(fn, *(torch.randn(n, 3) for n in (40, 50, 60, 70)))
    check(lambda a, b: (a.sum(-1), b.sum(-1)), torch.randn(40, 50), torch.randn(40, 50).t())


def test_library_calls_are_not_crossed(kernels):
    def fn(a, b):
        return (a + 1) @ b, (b + 1).sin(), (a @ b + 1).sin()

    check(fn, torch.randn(20, 20), torch.randn(20, 20), rtol=1e-4, atol=1e-4)


def test_threads(kernels):
    tensors = [torch.randn(n) for n in (100_000, 17, 50_000)]
    call = compiled(lambda *xs: tuple(x.exp() for x in xs), *tensors)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        for found, x in zip(call(*tensors), tensors, strict=True):
            torch.testing.assert_close(found, x.exp())
    finally:
        torch.set_num_threads(before)


def unpacked(result, count):
    return tuple(result[k] for k in range(count))


def lists(*kinds):
    return [torch.randn(4, 3).to(k).abs() + 0.5 for k in kinds]


OVERLOADS = [
    getattr(getattr(aten, f"_foreach_{name}"), kind)
    for name in ("add", "sub", "mul", "div", "maximum", "minimum", "clamp_min", "pow")
    for kind in ("Scalar", "List", "ScalarList")
]


@pytest.mark.parametrize("overload", OVERLOADS, ids=str)
def test_lists_with_numbers_and_lists(overload):
    xs = lists(torch.float32, torch.float64, torch.bfloat16)
    kind = overload._overloadname
    other = {"Scalar": 2, "ScalarList": [2, 0.5, 3], "List": lists(*(x.dtype for x in xs))}[kind]
    if kind == "List":
        check(lambda *t: unpacked(overload(list(t[:3]), list(t[3:])), 3), *xs, *other)
    else:
        check(lambda *t: unpacked(overload(list(t), other), 3), *xs)


def test_fractions_interpolation_and_one_operand():
    xs = [lists(torch.float32, torch.float32) for _ in range(3)]

    def fn(*t):
        a, b, c = list(t[:2]), list(t[2:4]), list(t[4:6])
        scales = torch.stack([t[0].sum(), t[1].sum()])
        made = (
            torch._foreach_addcdiv(a, b, c, -0.5),
            torch._foreach_addcdiv(a, b, c, [2.0, 3.0]),
            torch._foreach_addcmul(a, b, c, value=3),
            torch._foreach_lerp(a, b, 0.3),
            torch._foreach_lerp(a, b, c),
            torch._foreach_add(a, b, alpha=-2),
            torch._foreach_mul(a, t[0].sum()),
            torch._foreach_pow(0.9, a),
            torch._foreach_sqrt(a),
            torch._foreach_neg(a),
            torch._foreach_reciprocal(a),
            torch._foreach_sigmoid(a),
        )
        return scales, *(x for result in made for x in unpacked(result, 2))

    check(fn, *(x for part in xs for x in part), rtol=1e-5, atol=1e-6)


def test_a_step_of_an_optimizer(kernels):
    """AdamW written with operators on lists: every state in place, one or two kernels."""

    def step(*tensors):
        steps, params, grads, ms, vs = (list(tensors[k::5]) for k in range(5))
        torch._foreach_add_(steps, 1)
        torch._foreach_mul_(params, 0.999)
        torch._foreach_lerp_(ms, grads, 0.1)
        torch._foreach_mul_(vs, 0.99)
        torch._foreach_addcmul_(vs, grads, grads, 0.01)
        first, second = torch._foreach_pow(0.9, steps), torch._foreach_pow(0.99, steps)
        torch._foreach_sub_(first, 1)
        torch._foreach_sub_(second, 1)
        torch._foreach_neg_(second)
        torch._foreach_sqrt_(second)
        torch._foreach_div_(first, 0.01)
        root = torch._foreach_sqrt(vs)
        torch._foreach_div_(root, second)
        torch._foreach_add_(root, 1e-8)
        torch._foreach_mul_(root, first)
        torch._foreach_addcdiv_(params, ms, root)
        return ()

    shapes = [(3, k % 7 + 1) for k in range(20)] + [(200, 300), (17,), ()]
    torch.manual_seed(0)
    ours = [t for s in shapes for t in (torch.zeros(()), *(torch.rand(s) for _ in range(4)))]
    theirs = [t.clone() for t in ours]
    call = compiled(step, *[t.clone() for t in ours])
    for _ in range(3):
        call(*ours)
        step(*theirs)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert len(kernels) <= 4
