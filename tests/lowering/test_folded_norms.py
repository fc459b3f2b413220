"""Norms by stored statistics go into the convolutions before them, on GPUs and in inference."""

import copy

import dynfix
import pytest
import torch
from dynfix.lowering import joint, pipeline, stored_graphs
from dynfix.lowering.decompositions import decompose
from dynfix.lowering.graph import batch_norm_folding, epilogues
from dynfix.lowering.loops.kernel_graph import ExternCall
from torch import nn

aten = torch.ops.aten
RELU, SUM = aten.cudnn_convolution_relu.default, aten.cudnn_convolution_add_relu.default


class Block(nn.Module):
    """As in residual nets: two convolutions, a shortcut with or without a third."""

    def __init__(self, shortcut, kernel=1, inplace=True):
        super().__init__()
        self.first, self.one = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, kernel, padding=kernel // 2)
        self.two, self.relu = nn.BatchNorm2d(16, affine=kernel == 1), nn.ReLU(inplace)
        self.short = nn.Sequential(nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16))
        self.shortcut = shortcut
        for norm in (self.one, self.two, self.short[1]):
            nn.init.normal_(norm.running_mean, 0, 0.3)
            nn.init.uniform_(norm.running_var, 0.5, 2)

    def forward(self, x):
        y = self.two(self.second(self.relu(self.one(self.first(x)))))
        y += self.short(x) if self.shortcut else x
        return self.relu(y)


def plain(x, weight, bias, z, settings):
    wide = [each.float() for each in (x, weight, bias)]
    made = aten.convolution.default(*wide, *settings[:3], False, [0, 0], settings[3])
    return torch.relu(made if z is None else made + z.float()).to(x.dtype)


@pytest.fixture
def calls(monkeypatch):
    """The targets of the library calls that are compiled, for a CPU that stands for a GPU."""
    for module in (batch_norm_folding, epilogues):
        monkeypatch.setattr(module, "DEVICES", frozenset({"cpu"}))
    library = torch.library.Library("aten", "IMPL")
    library.impl("cudnn_convolution_relu", lambda x, w, b, *s: plain(x, w, b, None, s), "CPU")
    added = lambda x, w, z, alpha, b, *s: plain(x, w, b, z, s)  # noqa: E731
    library.impl("cudnn_convolution_add_relu", added, "CPU")
    table = {**decompose.decompositions(), aten.convolution.default: biased}
    monkeypatch.setattr(joint, "decompositions", lambda drawing, implicit=True: table)
    found = []

    def watch(unit, launches):
        found.extend(item.target for item in unit.items if isinstance(item, ExternCall))
        return launches

    for module in (pipeline, stored_graphs):  # the latter: nothing is taken from earlier runs
        monkeypatch.setattr(module, "watchers", [watch])
    yield found
    library._destroy()


def biased(x, weight, bias, *settings):
    if bias is None:
        return NotImplemented
    made = aten.convolution.default(x, weight, None, *settings)
    return made + bias.view(-1, 1, 1)


def check(model, turns=3):
    """As near to float64 as eager, while parameters and statistics change."""
    model.eval().to(torch.bfloat16)
    call = dynfix.compile(model)
    for _ in range(turns):
        x = torch.randn(4, 9, 9, 16).to(torch.bfloat16).permute(0, 3, 1, 2)
        exact = copy.deepcopy(model).double()
        with torch.no_grad():
            wanted = exact(x.double())
            found, eager = call(x).double(), model(x).double()
            assert (found - wanted).norm() <= 2 * (eager - wanted).norm()
            assert found.stride() == eager.stride()
            model.one.running_mean.add_(0.5)
            model.second.weight.mul_(1.5)
            model.two.running_var = model.two.running_var * 2


@pytest.mark.covering
@pytest.mark.parametrize("shortcut", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
def test_each_norm_is_part_of_a_convolution(calls, shortcut, inplace):
    torch.manual_seed(0)
    check(Block(shortcut, inplace=inplace))
    others = [aten.convolution.default] * shortcut
    assert sorted(map(str, calls)) == sorted(map(str, (RELU, SUM, *others)))


def test_sums_stay_beside_larger_kernels(calls):
    torch.manual_seed(0)
    check(Block(False, kernel=3))
    assert calls == [RELU, aten.convolution.default]


@pytest.mark.parametrize("case", ["gradients", "training", "float32"])
def test_what_is_left_alone(calls, case):
    torch.manual_seed(0)
    ours = Block(False).to(torch.float32 if case == "float32" else torch.bfloat16)
    ours.train(case == "training")
    theirs = copy.deepcopy(ours)
    call = dynfix.compile(ours)
    x = torch.randn(4, 16, 9, 9).to(next(ours.parameters()).dtype)
    with torch.set_grad_enabled(case == "gradients"):
        for _ in range(3):
            torch.testing.assert_close(call(x), theirs(x), rtol=3e-2, atol=3e-2)
    assert RELU not in calls and SUM not in calls


def test_an_input_that_is_written_in_between(calls):
    """The convolution reads what was there before."""
    torch.manual_seed(0)
    convolution, norm = nn.Conv2d(16, 16, 1).bfloat16(), nn.BatchNorm2d(16).bfloat16().eval()

    def fn(x):
        x = x + 0
        made = convolution(x)
        x.zero_()
        return torch.relu(norm(made)) + x

    call = dynfix.compile(fn)
    for _ in range(3):
        x = torch.randn(4, 16, 9, 9).to(torch.bfloat16)
        with torch.no_grad():
            torch.testing.assert_close(call(x), fn(x), rtol=3e-2, atol=3e-2)


def test_biases_that_the_library_is_not_given(calls):
    """One whose elements lie apart, and one along another axis."""
    torch.manual_seed(0)
    convolution = nn.Conv2d(16, 16, 1, bias=False).bfloat16()
    apart, rows = torch.randn(32).bfloat16(), torch.randn(16).bfloat16()

    def fn(x):
        one = torch.relu(convolution(x) + apart[::2].view(-1, 1, 1))
        return one, torch.relu(convolution(x) + rows)

    call = dynfix.compile(fn)
    for _ in range(3):
        x = torch.randn(4, 16, 16, 16).to(torch.bfloat16)
        with torch.no_grad():
            torch.testing.assert_close(call(x), fn(x), rtol=3e-2, atol=3e-2)
    assert RELU not in calls
