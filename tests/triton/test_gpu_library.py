"""What the GPU's library does beside a product or a convolution: as near to float64 as eager."""

import copy

import dynfix
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.gpu
F = torch.nn.functional


class Block(nn.Module):
    def __init__(self, shortcut, kernel):
        super().__init__()
        self.first, self.one = nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64)
        self.second, self.two = nn.Conv2d(64, 32, kernel, 1, kernel // 2), nn.BatchNorm2d(32)
        self.short = nn.Sequential(nn.Conv2d(32, 32, 1, bias=False), nn.BatchNorm2d(32))
        self.shortcut = shortcut
        for norm in (self.one, self.two, self.short[1]):
            nn.init.normal_(norm.running_mean, 0, 0.3)
            nn.init.uniform_(norm.running_var, 0.5, 2)

    def forward(self, x):
        y = self.two(self.second(F.relu(self.one(self.first(x)), inplace=True)))
        y += self.short(x) if self.shortcut else x
        return F.relu(y)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("shortcut", [False, True])
def test_norms_within_convolutions(shortcut, kernel, mode):
    torch.manual_seed(0)
    model = Block(shortcut, kernel).cuda().eval().to(torch.bfloat16)
    call = dynfix.compile(model, mode=mode)
    for turn in range(6):
        x = torch.randn(4, 32, 19, 19, device="cuda").to(torch.bfloat16)
        if turn % 2:
            x[0, 3] = torch.nan
        exact = copy.deepcopy(model).double()
        with torch.no_grad():
            wanted, found, eager = exact(x.double()), call(x).double(), model(x).double()
            assert torch.equal(found.isnan(), eager.isnan())
            error, theirs = ((each - wanted).nan_to_num().norm() for each in (found, eager))
            assert error <= 2 * theirs and found.stride() == eager.stride()
            model.one.running_mean.add_(0.5)
            model.second.weight.mul_(1.2)
            model.two.running_var = model.two.running_var * 2


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_over_an_odd_vocabulary(dtype, bias):
    torch.manual_seed(0)
    weight = torch.randn(30522, 256, device="cuda").to(dtype)
    more = torch.randn(30522, device="cuda").to(dtype) if bias else None
    call = dynfix.compile(lambda x: F.linear(x, weight, more))
    for _ in range(3):
        x = torch.randn(3, 1111, 256, device="cuda").to(dtype)
        found, eager = call(x), F.linear(x, weight, more)
        wanted = F.linear(x.double(), weight.double(), None if more is None else more.double())
        error, theirs = ((each.double() - wanted).norm() for each in (found, eager))
        assert error <= 1.05 * theirs and found.stride() == eager.stride()
