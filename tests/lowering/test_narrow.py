"""Loops whose innermost run in memory is short: groups of channels in channels-last order."""

import dynfix
import pytest
import torch
import torch.nn.functional as F
from dynfix.lowering.targets.cpp.cpp_build import CppTarget
from dynfix.lowering.targets.cpp.cpp_target import printed

from .harness import at_threads, check, check_gradients, compiled
from .symbolic import check_sizes


def image(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype).contiguous(memory_format=torch.channels_last)


@pytest.fixture
def sources(monkeypatch):
    made, real = [], CppTarget.build

    def build(self, unit, groups, *more):
        made.extend(printed(group).source for group in groups)
        return real(self, unit, groups, *more)

    monkeypatch.setattr(CppTarget, "build", build)
    return made


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("sizes", [(32, 8), (20, 2), (6, 3), (48, 3), (14, 1), (8, 8)], ids=str)
def test_group_norm(sizes, batch, dtype):
    channels, groups = sizes
    x = image(batch, channels, 17, 40, dtype=dtype)
    weight, bias = torch.randn(channels).to(dtype), torch.randn(channels).to(dtype)
    check(lambda x: F.silu(F.group_norm(x, groups, weight, bias)) + x, x)


def test_gradients():
    def fn(x, weight, bias):
        return F.group_norm(x * 2, 4, weight, bias).square() + x

    x = image(2, 24, 16, 20, dtype=torch.float64)
    rows = torch.randn(2, 24, dtype=torch.float64)
    check_gradients(fn, x, *rows, rtol=1e-9, atol=1e-9)


def test_no_loop_is_as_short_as_a_group(sources):
    check(lambda x: F.group_norm(x, 8), image(2, 32, 30, 30))
    loops = [
        text for text in "".join(sources).splitlines() if " < 900;" in text or "< 1800;" in text
    ]
    assert loops and "< 4; " not in "".join(sources[-1:])


def test_every_kind_of_fold():
    def fn(x):
        x = x.view(2, 6, 4, 500)
        large = x > 2
        return x.amax((2, 3)), x.sum((2, 3)), large.any(3).any(2), (x > -9).all(3).all(2), x.amin(2)

    check(fn, image(2, 24, 20, 25), rtol=1e-5, atol=1e-4)
    check(lambda x: x.view(2, 6, 4, 500).argmax(2), image(2, 24, 20, 25))
    nan = image(2, 24, 20, 25)
    nan[1, 7, 3, 2] = torch.nan
    check(lambda x: x.view(2, 6, 4, 500).amax((2, 3)), nan)


def test_what_is_the_same_for_all_of_a_group():
    x, scale = image(2, 24, 20, 25), torch.randn(2, 6, 1, 1, 1)
    check(lambda x: (x.view(2, 6, 4, 20, 25) * scale.exp()).view_as(x), x)
    rows, short = torch.randn(900, 8, 5), torch.randn(8, 1)
    check(lambda a: a * short + short.square(), rows)
    check(lambda a: (a - short).sum(-1), rows)
    check(lambda a: torch.where(short > 0, a, short).sum((0, 2)), rows, rtol=1e-4, atol=1e-4)


def test_statistics_written_again_between_two_readers():
    def fn(x, scale):
        first = x.view(900, 8, 5) * scale
        scale.mul_(2)
        return first, x.view(900, 8, 5) + scale

    x, scale = torch.randn(900, 40), torch.randn(8, 1)
    ours, theirs = scale.clone(), scale.clone()
    call = dynfix.compile(fn)
    for _ in range(3):
        for found, expected in zip(call(x, ours), fn(x, theirs), strict=True):
            torch.testing.assert_close(found, expected)
        assert torch.equal(ours, theirs)


def test_the_same_for_every_number_of_threads():
    x = image(1, 32, 64, 64)
    call = compiled(lambda x: F.group_norm(x, 8), x)
    one, *others = at_threads(call, x)
    assert all(torch.equal(one, other) for other in others)


def test_sizes_that_change():
    def make(n, m):
        return (torch.randn(n + 1, 24, m + 2, 9).contiguous(memory_format=torch.channels_last),)

    check_sizes(lambda x: F.group_norm(x, 6) * 2, make)
