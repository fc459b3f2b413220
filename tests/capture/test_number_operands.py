"""Numbers read of tensors as operands: what the graph takes as a tensor of no axis."""

import dynfix
import pytest
import torch
from helpers import recordings


def clamped(x):
    least, most = -x.std().item(), x.abs().mean().item()
    return x.clamp(max=most), torch.clamp(x, least, 1.0), x.clamp(least, most), x.clamp_min(least)


def filled(x):
    y = x.masked_fill(x > 0, x.min().item())
    y[0] = x.sum().item()
    y[1:3] = x.mean().item() * 2
    z = torch.zeros(4).fill_(x.sum().item())
    return y, z, y.clone().masked_fill_(y < 0, x.max().item())


def chosen(x):
    mean = x.mean().item()
    return torch.where(x > mean, x, mean), torch.where(x > 0, mean, x * 2)


def of_whole_numbers(x):
    whole = (x * 3).long()
    count = (x > 0).sum().item()
    return whole * 2 + count, whole > count, x * (count // 2), x + count % 3, x - (count - 7)


def largest_of_a_list(x):
    sums = [x.max().item(), 1.0, x.sum().item()]
    return x * max(sums), x * min(sums), x + float((x > 0).any())


def at_a_place(x):
    index, y = int((x > 5).sum()), x.clone()
    y[index] = x.mean().item()
    return y


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("function", [clamped, filled, chosen, of_whole_numbers, largest_of_a_list])
def test_one_graph(function, backend, gradients):
    compiled = dynfix.compile(function, backend=backend, fullgraph=True)
    close = {"rtol": 0, "atol": 0} if backend == "eager" else {"rtol": 1e-5, "atol": 1e-6}
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(4)
        seen = []
        for each in (function, compiled):
            given = x.clone().requires_grad_(gradients)
            results = each(given)
            if gradients:
                sum(r.sum() for r in results if r.requires_grad).backward()
            seen.append((results, given.grad))
        torch.testing.assert_close(seen[1], seen[0], **close)
    assert len(recordings(compiled)) == 1


def test_a_place_that_moves_is_seen():
    compiled = dynfix.compile(at_a_place, backend="eager")
    for numbers in ([0.0, 1, 2], [9.0, 1, 2], [9.0, 8, 2], [0.0, 1, 3]):
        x = torch.tensor(numbers)
        torch.testing.assert_close(compiled(x), at_a_place(x))
