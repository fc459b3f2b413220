"""What is made of constants alone is computed once."""

import dynfix
import torch
from dynfix.lowering.pipeline import watchers


def windows(x):
    mask = x.new_zeros(4, 6)
    for number, rows in enumerate((slice(0, 2), slice(2, 4))):
        for columns in (slice(0, 3), slice(3, 6)):
            mask[rows, columns] = number + columns.start
    return mask


def masked(x):
    mask = windows(x)
    return x + mask.masked_fill(mask != 0, -100.0).masked_fill(mask == 0, 0.0)


def kernels(fn, *args):
    seen = []

    def watch(unit, launches):
        seen.append(len(unit.items))
        return launches

    watchers.append(watch)
    try:
        return dynfix.compile(fn, fullgraph=True)(*args), seen
    finally:
        watchers.remove(watch)


def test_a_mask_that_is_filled_slice_by_slice():
    x = torch.randn(4, 6)
    _, seen = kernels(masked, x)
    assert seen == [1]
    call = dynfix.compile(masked, fullgraph=True)
    for _ in range(3):
        x = torch.randn(4, 6)
        torch.testing.assert_close(call(x), masked(x))


def test_a_constant_result_is_new_at_every_call():
    call = dynfix.compile(lambda x: (windows(x), x + windows(x)), fullgraph=True)
    x = torch.randn(4, 6)
    for _ in range(3):
        mask, total = call(x)
        torch.testing.assert_close(total, x + windows(x))
        torch.testing.assert_close(mask, windows(x))
        mask.add_(7)


def test_a_constant_that_the_backward_needs():
    def fn(x):
        return (x * windows(x)).sin()

    call = dynfix.compile(fn, fullgraph=True)
    for _ in range(3):
        x = torch.randn(4, 6, requires_grad=True)
        (found,) = torch.autograd.grad(call(x).sum(), x)
        (expected,) = torch.autograd.grad(fn(x).sum(), x)
        torch.testing.assert_close(found, expected)


def test_an_expanded_constant_keeps_its_strides():
    def blurred(x):
        k = torch.tensor([1.0, 2, 1])
        k = k[:, None] * k / 16
        k[0, 0] = 0.5
        return (
            torch.nn.functional.conv2d(x, k.expand(3, 1, 3, 3), groups=3)
            + k.expand(3, 3, 3)[0, 0, 0]
        )

    call = dynfix.compile(blurred, fullgraph=True)
    _, seen = kernels(blurred, torch.randn(2, 3, 9, 9))
    assert seen
    for _ in range(3):
        x = torch.randn(2, 3, 9, 9)
        torch.testing.assert_close(call(x), blurred(x))
