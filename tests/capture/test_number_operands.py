"""Numbers read of tensors as operands: what the graph takes as a tensor of no axis."""

import dynfix
import pytest
import torch
from helpers import recordings, same


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


@pytest.mark.covering
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


IN_LISTS = {
    "of the call": lambda x: torch.tensor([x.sum(), x.max()]) * 2,
    "among numbers": lambda x: torch.tensor([x.sum(), 2, x.shape[0], True]) * x.mean(),
    "nested": lambda x: torch.tensor([[x[0, 0], x[0, 1]], (x[1, 0], 3)]) @ x[:2, :2],
    "one element": lambda x: torch.as_tensor([x[0, :1], x[1:2, 1:2]]),
    "whole": lambda x: torch.tensor([row.argmax() + 1 - len(x) for row in x], device=x.device)[
        None
    ],
    "of another dtype": lambda x: torch.tensor([x.argmax(), x.shape[1]], dtype=torch.float64) / 3,
    "promoted": lambda x: torch.tensor([x.half().sum(), x.argmin(), 1.5]),
}


@pytest.mark.covering
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", IN_LISTS.values(), ids=IN_LISTS)
def test_tensors_in_a_list_that_becomes_one(program, backend):
    x = torch.linspace(-2, 3, 12).view(3, 4)
    steps = [(x,), (x.neg().requires_grad_(),), (torch.linspace(0, 2, 20).view(5, 4).cos(),)]
    compiled = same(lambda: program, *steps, backend=backend, tolerance=(1e-3, 1e-5))
    assert all(type(each).__name__ == "Recording" for each in recordings(compiled))
    assert len(recordings(compiled)) > 1


def test_a_list_that_may_not_fit_is_eagers():
    def program(x):
        return torch.tensor([x.sum(), 1], dtype=torch.int8)

    steps = [(torch.full((2,), n),) for n in (1, 2, 100)]
    same(lambda: program, *steps, backend="native")


def with_halves(x, y, number):
    sums = x * number + y, x - number, number - y, x / number, number / x, x.add(y, alpha=number)
    kept = x.clone()
    kept.mul_(number).sub_(y, alpha=number).addcdiv_(y, y.exp(), value=number)
    wide = x.add(y.float(), alpha=number), torch.addcmul(x, y.double(), y, value=number)
    lists = torch._foreach_add([x, y], [y, x], alpha=number)
    ends = torch._foreach_lerp([x, y], [y, x], number)
    return *sums, kept, *wide, *lists, *ends, *torch._foreach_mul([x, y], number)


@pytest.mark.covering
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_number_that_moves_beside_halves(dtype, backend, gradients, autocast):
    compiled = dynfix.compile(with_halves, backend=backend, dynamic=False)
    # at the end of a row, eager rounds products of halves once more
    close = {"rtol": 0, "atol": 0} if backend == "eager" else {"rtol": 1e-2, "atol": 1e-3}
    for number in (0.3, 0.7, 1.1, -0.4, 0.0017):
        torch.manual_seed(0)
        x, y, seen = torch.randn(2, 40), torch.randn(2, 40), []
        for function in (with_halves, compiled):
            given = [each.to(dtype).requires_grad_(gradients) for each in (x, y)]
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                results = function(*given, number)
            if gradients:
                sum(r.float().sum() for r in results if r.requires_grad).backward()
            seen.append((results, [each.grad for each in given]))
        torch.testing.assert_close(seen[1][0], seen[0][0], **close)
        summed = {"rtol": 1e-2, "atol": 0.3} if close["rtol"] else close  # of 15 halves
        torch.testing.assert_close(seen[1][1], seen[0][1], **summed)
    assert len(recordings(compiled)) == 2
