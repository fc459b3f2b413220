"""The memory of CUDA graphs, with graphs that a CPU stands for: a replay runs the program again on
the memory of the capture."""

import dynfix
import pytest
import torch
from dynfix.lowering import host_device_split, host_scalars, pipeline
from dynfix.lowering.graph import rnn
from dynfix.lowering.loops.ir import Buffer
from dynfix.lowering.loops.kernel_graph import ExternCall, Layout, Ref, Unit
from graph_stand_in import install
from torch import nn


@pytest.fixture
def programs(monkeypatch):
    """The programs that are made."""
    found = []
    install(monkeypatch.setattr, found)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    return found


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return torch.tanh(self.second(torch.tanh(self.first(x)) * x.sum()))


def compiled(model):
    return dynfix.compile(model, mode="reduce-overhead")


def lanes(programs, name):
    found = [p for p in programs if p.name == name]
    assert found
    return [lane for p in found for v in p._variants.values() for lane in v.lanes]


def same(ours, theirs):
    for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)


def test_steps_read_what_was_saved_where_it_is(programs):
    ours, theirs = Net(), Net()
    call, x = compiled(ours), torch.randn(5, 6)
    for turn in range(12):
        x.normal_()
        for model, net in ((call, ours), (theirs, theirs)):
            net.zero_grad(set_to_none=turn < 8)  # later they are added up
            model(x).square().sum().backward()
        same(ours, theirs)
    (lane,) = lanes(programs, "forward")
    assert lane.copied_results == {0} and not lane.lends()
    for lane in lanes(programs, "backward"):
        assert len(lane.copied) <= 2  # the result, of which the caller has a copy, and its gradient


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = nn.GRU(6, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x):
        x = torch.tanh(self.layer(x * 2)[0])
        for _ in range(rnn.MAX_OPERATORS_A_LAYER // 2):
            x = torch.sin(x) + x
        return self.head(x)


def test_the_graph_of_a_recurrent_layer_is_that_of_its_call(programs):
    ours, theirs = Recurrent().double(), Recurrent().double()
    call, x = compiled(ours), torch.randn(3, 5, 6, dtype=torch.float64)
    for _ in range(12):
        x.normal_()
        for model, net in ((call, ours), (theirs, theirs)):
            net.zero_grad()
            model(x).square().sum().backward()
        same(ours, theirs)


def test_forwards_before_their_backwards(programs):
    """What is saved for one is not overwritten by the next, nor if it is kept for a second time."""
    ours, theirs = Net(), Net()
    call = compiled(ours)
    for turn in range(8):
        inputs = [torch.randn(5, 6) for _ in range(3)]
        for model, net in ((call, ours), (theirs, theirs)):
            net.zero_grad(set_to_none=True)
            losses = [model(x).square().sum() for x in inputs]
            losses[0].backward(retain_graph=True)
            kept = model(inputs[1])
            losses[2].backward()
            losses[0].backward(retain_graph=turn % 2 == 0)
            losses[1].backward()
            kept.sum().backward()
        same(ours, theirs)
        del losses, kept


def test_more_forwards_than_lanes_capture_no_more(programs):
    ours, theirs = Net(), Net()
    call = compiled(ours)
    for _ in range(12):
        inputs = [torch.randn(5, 6) for _ in range(6)]
        for model, net in ((call, ours), (theirs, theirs)):
            net.zero_grad(set_to_none=True)
            losses = [model(x).square().sum() for x in inputs]
            sum(losses).backward()
        same(ours, theirs)
        del losses
    for program in programs:
        for variant in program._variants.values():
            assert variant.captures <= 6, program.name


def test_what_was_saved_is_not_overwritten_while_somebody_holds_it(programs):
    ours = Net()
    call = compiled(ours)
    for _ in range(6):
        call(torch.randn(5, 6)).sum().backward()
    out = call(torch.randn(5, 6))
    saved = out.grad_fn.saved_tensors
    before = [tensor.clone() for tensor in saved]
    out.sum().backward()
    for _ in range(6):
        call(torch.randn(5, 6)).sum().backward()
    for now, then in zip(saved, before, strict=True):
        assert torch.equal(now, then)


def test_a_result_that_is_written_before_the_backward(programs):
    """As eager: the backward needs what was there."""
    call = compiled(nn.Tanh())
    for rows in (3, 2000):  # small ones are handed out as copies
        x = torch.randn(rows, 6, requires_grad=True)
        for _ in range(5):
            call(x).sum().backward()
        out = call(x)
        with torch.no_grad():
            out.add_(1)
        x.grad = None
        try:
            out.sum().backward()
        except RuntimeError as error:
            assert "inplace" in str(error)
        else:
            torch.testing.assert_close(x.grad, 1 - torch.tanh(x.detach()) ** 2)


@pytest.mark.parametrize("rows", [3, 2000])
def test_storages_of_results_that_a_caller_keeps(programs, rows):
    call, kept = compiled(lambda x: (x * 2, x.exp())), []
    for _ in range(8):
        x = torch.randn(rows, 6)
        kept.append((call(x)[0].untyped_storage(), x))
        for storage, given in kept:
            made = torch.empty(0).set_(storage, 0, (rows, 6))
            assert torch.equal(made, given * 2)
            del made
    assert lanes(programs, "inference")


@pytest.mark.parametrize("rows", [3, 2000])
def test_results_that_a_caller_resizes(programs, rows):
    """The graph does not write what was given back."""
    call = compiled(lambda x: (x * 2, x.exp(), x + 1))
    for _ in range(8):
        x = torch.randn(rows, 6)
        twice, power, more = call(x)
        assert torch.equal(twice, x * 2) and torch.equal(more, x + 1)
        torch.testing.assert_close(power, x.exp())
        twice.resize_(2 * rows, 6)
        power.untyped_storage().resize_(0)
    (lane,) = lanes(programs, "inference")
    assert 2 not in lane.copied_results or rows == 3


def of_device(name, kind):
    layout = Layout((4,), (1,), torch.device(kind))
    buffer = Buffer(name, torch.float32, 4)
    return Ref(buffer, (4,), (1,)), {buffer: layout}


def test_what_the_host_makes_beside_the_device_is_made_at_every_call():
    """A replay runs the device's work alone: random numbers of the host would stay the first call's."""
    x, one = of_device("x", "cuda:0")
    y, two = of_device("y", "cuda:0")
    drawn, three = of_device("drawn", "cpu")
    made = ExternCall(torch.ops.aten.relu.default, (x,), {}, y, "")
    draws = ExternCall(torch.ops.aten.rand.default, ((4,),), {}, drawn, "")
    beside = ExternCall(torch.ops.aten.relu.default, (x,), {}, (y, drawn), "")
    layouts = {**one, **two, **three}

    def device(*items):
        return pipeline._graph_device(Unit("forward", (x,), (y, drawn), items, layouts, {}))

    assert device(made) == device(beside) == torch.device("cuda:0")
    assert device(made, draws) is None


@pytest.mark.parametrize("train", [False, True])
def test_random_numbers_of_the_host_beside_a_graph(programs, monkeypatch, train):
    def of_host(item, unit):
        return isinstance(item, ExternCall) and "rand" in str(item.target)

    monkeypatch.setattr(host_device_split, "is_of_host", of_host)
    monkeypatch.setattr(pipeline, "is_of_host", of_host)

    def fn(x):
        torch.rand([])  # which nobody needs
        return torch.tanh(x * 2), torch.rand(3), torch.tanh(x).sum()

    call = compiled(fn)
    for turn in range(8):
        x = torch.randn(5, requires_grad=train)
        torch.manual_seed(turn)
        found, state = call(x), torch.get_rng_state()
        torch.manual_seed(turn)
        expected = fn(x)
        torch.testing.assert_close(found, expected)
        assert torch.equal(torch.get_rng_state(), state)
        if train:
            one, two = (torch.autograd.grad(r[2] + r[0].sum(), x) for r in (found, expected))
            torch.testing.assert_close(one, two)
    name = "forward" if train else "inference"
    assert lanes(programs, name)
    assert any(p.beside is not None for p in programs if p.name == name)


@pytest.fixture
def small_on_the_host(monkeypatch):
    """Tensors of fewer than 40 elements count as the host's, all others, and what is handed over,
    as the device's."""

    def is_on(value, kind):
        return isinstance(value, torch.Tensor) and (value.numel() < 40) == (kind == "cpu")

    def on_host(buffer, unit):
        return unit.layouts[buffer].count < 40 and not buffer.name.startswith("ext")

    monkeypatch.setattr(host_scalars, "_is_on", is_on)
    monkeypatch.setattr(host_device_split, "on_host", on_host)


@pytest.mark.parametrize("foreach", [False, True])
def test_a_step_whose_counts_are_on_the_host(programs, small_on_the_host, foreach):
    """The host counts before each replay, and hands over what the device needs."""

    def made():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 8, bias=False))
        return net, torch.optim.AdamW(net.parameters(), lr=0.1, foreach=foreach)

    def step(x, net, optimizer):
        optimizer.zero_grad()
        loss = net(x).square()
        loss.backward(torch.ones_like(loss))
        optimizer.step()
        return loss.detach()

    ours, theirs = made(), made()
    call = dynfix.compile(step, mode="reduce-overhead")
    for _ in range(12):
        x = torch.randn(8, 6)
        torch.testing.assert_close(call(x, *ours), step(x, *theirs), rtol=1e-4, atol=1e-4)
    for one, two in zip(ours[0].parameters(), theirs[0].parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
        held, kept = ours[1].state[one], theirs[1].state[two]
        assert held["step"].item() == kept["step"].item() == 12
        torch.testing.assert_close(held["exp_avg_sq"], kept["exp_avg_sq"])
    last = programs[-1]
    assert last.beside.memory and any(variant.lanes for variant in last._variants.values())
    assert "to_gpu" in last.beside.host.source and "to_gpu" not in last.beside.graphed.source


def test_what_hangs_on_the_device_is_not_moved(small_on_the_host):
    def fn(x, n):
        return x * (n * x.sum())

    found = dynfix.compile(fn)(torch.ones(64), torch.tensor(2.0))
    torch.testing.assert_close(found, torch.full((64,), 128.0))
