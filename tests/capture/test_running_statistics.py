"""Running statistics are written where no version counter tells: once a call, whatever becomes of
it."""

import copy

import dynfix
import pytest
import torch
from helpers import Case, call, same

SIGNS = (1.0, -1.0, 2.0, -2.0, 1.0, -1.0)


class Net(Case):
    def __init__(self, norm):
        torch.manual_seed(0)
        self.norm = norm
        self.fn, self.watch = self.run, lambda: list(self.norm.buffers())

    def run(self, x, k):
        y = self.norm(x)
        if k.sum() > 0:
            return y * 2, int(k.max())
        return y - 1


@pytest.mark.covering
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    "norm", [torch.nn.BatchNorm1d, lambda n: torch.nn.InstanceNorm1d(n, track_running_stats=True)]
)
def test_a_branch_after_a_norm(norm, train, backend):
    def make():
        return Net(norm(4).train(train))

    values = [torch.arange(24.0).view(2, 4, 3) * sign for sign in SIGNS]
    steps = [call(value, value[0, 0] + sign) for value, sign in zip(values, SIGNS, strict=True)]
    same(make, *steps, backend=backend, tolerance=(1e-5, 1e-5))


def test_statistics_are_not_copied_for_a_second_derivative():
    net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh())
    call = dynfix.compile(net)
    for _ in range(3):
        call(torch.randn(6, 5)).sum().backward()
    with torch.profiler.profile() as profile:
        call(torch.randn(6, 5))
    assert not [event.name for event in profile.events() if event.name == "aten::clone"]


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_an_average_over_all_calls(backend):
    net = torch.nn.BatchNorm2d(3, momentum=None)
    eager = copy.deepcopy(net)
    compiled = dynfix.compile(net, backend=backend)
    for turn in range(12):
        x = torch.randn(2, 3, 4, 5) * turn
        given = [x.clone().requires_grad_() for _ in range(2)]
        (ours, one), (theirs, two) = ((f(t), t) for f, t in zip((compiled, eager), given))
        ours.square().sum().backward()
        theirs.square().sum().backward()
        torch.testing.assert_close([ours, one.grad], [theirs, two.grad])
        torch.testing.assert_close(list(net.buffers()), list(eager.buffers()))
    hits = [entry.hits for entry in compiled._dynfix_entry._dispatcher.entries]
    assert max(hits) >= 9  # not a recording for each number


@pytest.mark.covering
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_calls_before_a_backward(backend, momentum):
    """The history of one call, which may be eager's, outlives the writes of the next ones; no
    version counts them."""
    net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8, momentum=momentum))
    eager = copy.deepcopy(net)
    compiled = dynfix.compile(net, backend=backend)
    for turn in range(4):
        x = torch.randn(6, 5) + turn
        for model in (compiled, eager):
            first, second = model(x), model(x * 2)
            with torch.no_grad():
                model(x + 1)
            (first.sin().sum() + second.cos().sum()).backward()
        for ours, theirs in zip(net.parameters(), eager.parameters()):
            assert torch.allclose(ours.grad, theirs.grad, atol=1e-4)
        for name in ("running_mean", "running_var"):
            ours, theirs = getattr(net[1], name), getattr(eager[1], name)
            assert torch.allclose(ours, theirs, atol=1e-5) and ours._version == theirs._version


def test_a_second_derivative_writes_the_statistics_once():
    net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh())
    eager = copy.deepcopy(net)
    compiled = dynfix.compile(net)
    for turn in range(4):
        x = torch.randn(6, 5) + turn
        found = []
        for model in (compiled, eager):
            given = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(model(given).square().sum(), given, create_graph=True)
            found.append(torch.autograd.grad(slope.square().sum(), given)[0])
        assert torch.allclose(*found, rtol=1e-3, atol=1e-4)
        for ours, theirs in zip(net.buffers(), eager.buffers()):
            assert torch.allclose(ours, theirs, atol=1e-5)


def test_statistics_that_the_model_writes_itself_are_counted():
    class Halved(torch.nn.BatchNorm1d):
        def forward(self, x):
            self.running_mean.mul_(0.5)
            return super().forward(x)

    net, eager = Halved(4), Halved(4)
    compiled = dynfix.compile(net)
    for turn in range(3):
        x = torch.randn(6, 4) + turn
        compiled(x).sum().backward(), eager(x).sum().backward()
        assert torch.allclose(net.running_mean, eager.running_mean, atol=1e-6)
    assert net.running_mean._version >= eager.running_mean._version
