"""CUDA graphs: replayed calls equal eager, and what a caller keeps is never overwritten."""

import threading

import dynfix
import pytest
import torch
from dynfix.lowering import pipeline, stored_graphs
from torch import nn

pytestmark = pytest.mark.gpu
F = torch.nn.functional
MODE = "reduce-overhead"


def network(dropout=0.0):
    torch.manual_seed(0)
    layers = (nn.Linear(64, 128), nn.GELU(), nn.Dropout(dropout), nn.Linear(128, 8))
    return nn.Sequential(*layers).cuda()


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def watched(monkeypatch):
    """The programs with graphs that are made from now on."""
    programs = []

    class Watched(pipeline.GraphedProgram):
        def __init__(self, *args):
            super().__init__(*args)
            programs.append(self)

    monkeypatch.setattr(pipeline, "GraphedProgram", Watched)
    return programs


def test_inference_on_changing_inputs():
    model = network().eval()
    compiled = dynfix.compile(model, mode=MODE)
    with torch.no_grad():
        for _ in range(30):
            x = torch.randn(16, 64, device="cuda")
            same(compiled(x), model(x))


def test_a_thousand_calls():
    model = network().eval()
    compiled = dynfix.compile(model, mode=MODE)
    with torch.no_grad():
        for _ in range(1000):
            x = torch.randn(16, 64, device="cuda")
            same(compiled(x), model(x))


def test_gradients_that_are_kept_beside_later_ones():
    ours, theirs = network(), network()
    compiled, kept = dynfix.compile(ours, mode=MODE), []
    for _ in range(10):
        x = torch.randn(16, 64, device="cuda")
        for model, net in ((compiled, ours), (theirs, theirs)):
            net.zero_grad(set_to_none=True)
            model(x).square().mean().backward()
            kept.append([p.grad for p in net.parameters()])
    for one, two in zip(kept[::2], kept[1::2], strict=True):
        for found, expected in zip(one, two, strict=True):
            same(found, expected)


def test_results_that_are_kept():
    model = network().eval()
    compiled = dynfix.compile(model, mode=MODE)
    kept, wanted = [], []
    with torch.no_grad():
        for _ in range(12):
            x = torch.randn(16, 64, device="cuda")
            kept.append(compiled(x))
            wanted.append(model(x))
            kept[-1][0].add_(1)  # through a view as well
            wanted[-1][0].add_(1)
    for found, expected in zip(kept, wanted, strict=True):
        same(found, expected)


def test_training():
    ours, theirs = network(), network()
    compiled = dynfix.compile(ours, mode=MODE)
    steps = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (ours, theirs)]
    for turn in range(20):
        x, y = torch.randn(32, 64, device="cuda"), torch.randint(8, (32,), device="cuda")
        losses = []
        for model, optimizer in zip((compiled, theirs), steps, strict=True):
            losses.append(F.cross_entropy(model(x), y))
            losses[-1].backward()
            if turn % 3:  # gradients add up in between
                optimizer.step()
                optimizer.zero_grad(set_to_none=turn % 2 == 0)
        same(losses[0], losses[1])
    for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
        same(one, two)


def test_two_forwards_before_their_backwards():
    ours, theirs = network(), network()
    compiled = dynfix.compile(ours, mode=MODE)
    for _ in range(6):
        xs = [torch.randn(8, 64, device="cuda", requires_grad=True) for _ in range(4)]
        for model in (compiled, theirs):
            outs = [model(x) for x in xs]
            for out in outs:
                out.square().sum().backward()
            if model is compiled:
                found = [x.grad.clone() for x in xs]
                for x in xs:
                    x.grad = None
        for one, x in zip(found, xs, strict=True):
            same(one, x.grad)


def test_a_parameter_replaced_between_calls():
    model = network().eval()
    compiled = dynfix.compile(model, mode=MODE)
    with torch.no_grad():
        for turn in range(12):
            x = torch.randn(16, 64, device="cuda")
            same(compiled(x), model(x))
            if turn in (3, 6, 7, 8):
                model[0].weight.data = torch.randn_like(model[0].weight)


def test_dropout_draws_anew_at_every_call():
    model = network(0.5).train()
    compiled = dynfix.compile(model, mode=MODE)
    x = torch.randn(16, 64, device="cuda")
    results = [compiled(x).detach().clone() for _ in range(6)]
    assert len({tuple(r.flatten().tolist()) for r in results}) == 6
    torch.manual_seed(3)
    first = compiled(x).detach().clone()
    torch.manual_seed(3)
    same(compiled(x), first)


def test_inputs_that_are_returned_and_views_of_them():
    def fn(x, y):
        return x, x[1:], x * 2 + y, (x + 1).t()

    compiled = dynfix.compile(fn, mode=MODE)
    for _ in range(6):
        x, y = torch.randn(5, 4, device="cuda"), torch.randn(4, device="cuda").expand(5, 4)
        found = compiled(x, y)
        for one, two in zip(found, fn(x, y), strict=True):
            same(one, two)
        assert found[0].data_ptr() == x.data_ptr() and found[1].data_ptr() == x[1:].data_ptr()


def test_a_host_tensor_among_the_inputs():
    compiled = dynfix.compile(lambda x, s: x * s + 1, mode=MODE)
    for turn in range(5):
        x, s = torch.randn(9, device="cuda"), torch.tensor(float(turn))
        same(compiled(x, s), x * s + 1)


def test_two_threads():
    model = network().eval()
    compiled = dynfix.compile(model, mode=MODE)
    problems = []

    def work(seed):
        made = torch.Generator("cuda").manual_seed(seed)
        for _ in range(50):
            x = torch.randn(16, 64, device="cuda", generator=made)
            with torch.no_grad():
                found, expected = compiled(x), model(x)
            if not torch.allclose(found, expected, rtol=1e-4, atol=1e-4):
                problems.append((found - expected).abs().max().item())

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_memory_stays_flat():
    model = network().eval()
    compiled = dynfix.compile(model, mode=MODE)
    used = []
    with torch.no_grad():
        for rows in [*range(2, 52)] * 2:
            x = torch.randn(rows, 64, device="cuda")
            for _ in range(3):
                same(compiled(x), model(x))
            used.append(torch.cuda.memory_allocated())
    assert used[-1] <= used[50] + (4 << 20)


@pytest.mark.parametrize("training", [False, True])
def test_sizes_that_change_where_the_input_lies(training):
    model = network().train(training)
    compiled, memory = dynfix.compile(model, mode=MODE), torch.empty(40 * 64, device="cuda")
    for rows in [2, 3, 5, 9, 4, 5, 3, 40, 17] * 2:
        x = memory[: rows * 64].view(rows, 64).normal_().detach().requires_grad_(training)
        for _ in range(3):
            ours, theirs = compiled(x), model(x)
            same(ours, theirs)
            if training:
                grads = (torch.autograd.grad(y.square().sum(), x)[0] for y in (ours, theirs))
                same(*grads)


def test_strides_that_change_where_the_input_lies():
    compiled = dynfix.compile(lambda x: (x * 2 + 1).cumsum(0), mode=MODE, dynamic=True)
    memory = torch.randn(4096, device="cuda")
    for step in [8, 9, 16, 11, 8, 11, 16, 9] * 2:
        x = memory.as_strided((7, 5), (step, 1))
        for _ in range(3):
            same(compiled(x), (x * 2 + 1).cumsum(0))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.cumsum(1).narrow(-1, 0, 2),
        lambda x: (x * 2).sum().expand(2, 3),
        lambda x: (x + 1).view(-1)[:9].unfold(0, 3, 1),
        lambda x: (x + 1)[:, :0],
    ],
)
def test_copies_of_results_lie_as_they_do(fn):
    compiled, kept = dynfix.compile(fn, mode=MODE), []
    for _ in range(6):
        x = torch.randn(5, 7, device="cuda")
        kept.append((compiled(x), fn(x)))
        for ours, theirs in kept:
            same(ours, theirs)
            assert ours.stride() == theirs.stride()


@pytest.mark.parametrize("rows", [5, 3000])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (y := x * 2, y[1:]),
        lambda x: (y := x.exp(), y.view(torch.int16), y.t()),
        lambda x: (y := torch.complex(x, x), y.conj(), y.real),
        lambda x: (x.view(torch.int32)[1:], x + 1, x.t()),
    ],
)
def test_results_that_share_memory(fn, rows):
    compiled, kept = dynfix.compile(fn, mode=MODE), []
    for _ in range(7):
        x = torch.randn(rows, 7, device="cuda")
        kept.append((x, compiled(x), fn(x)))
        for given, ours, theirs in kept:
            for one, two in zip(ours, theirs, strict=True):
                assert torch.equal(one, two)
                assert one.stride() == two.stride()
            ours[0].zero_()
            theirs[0].zero_()
            assert all(map(torch.equal, ours, theirs))
            del given


def test_inputs_that_are_written():
    def fn(cache, at, x):
        cache[:, at] = x
        return cache.sum() + x.mean()

    compiled = dynfix.compile(fn, mode=MODE)
    kept = torch.zeros(4, 9, 8, device="cuda")
    for turn in range(9):
        cache = kept if turn < 5 else torch.zeros(4, 9, 8, device="cuda")
        other, at = cache.clone(), torch.tensor([turn % 9], device="cuda")
        x = torch.randn(4, 1, 8, device="cuda")
        same(compiled(cache, at, x), fn(other, at, x))
        same(cache, other)


def test_what_a_forward_saves_is_read_where_it_is(monkeypatch):
    """Small as it is: neither forward nor backward copies it."""
    programs = watched(monkeypatch)
    monkeypatch.setattr(stored_graphs, "watchers", [lambda unit, launches: launches])
    ours, theirs = network(), network()
    compiled = dynfix.compile(ours, mode=MODE)
    x = torch.randn(16, 64, device="cuda")
    for turn in range(12):
        x.normal_()
        for model, net in ((compiled, ours), (theirs, theirs)):
            net.zero_grad(set_to_none=turn < 9)  # later they are added up, in memory of the graph
            model(x).square().mean().backward()
        for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
            same(one.grad, two.grad)
    (forward,) = [p for p in programs if p.name == "forward"]
    (backward,) = [p for p in programs if p.name == "backward"]
    lanes = [lane for variant in backward._variants.values() for lane in variant.lanes]
    assert lanes and all(len(lane.copied) <= 1 for lane in lanes)  # the result's gradient
    lanes = [lane for variant in forward._variants.values() for lane in variant.lanes]
    assert lanes and all(lane.copied_results <= {0} for lane in lanes)


@pytest.mark.parametrize(
    "kind, how",
    [
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.Adam, {"foreach": False}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.NAdam, {}),
    ],
)
def test_whole_steps(monkeypatch, kind, how):
    """The optimizer counts on the host, beside the graph; its learning rate moves."""
    programs = watched(monkeypatch)

    def step(x, net, optimizer):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    nets = network(), network()
    ours, theirs = ((net, kind(net.parameters(), lr=0.01, **how)) for net in nets)
    call, kept = dynfix.compile(step, mode=MODE), []
    for turn in range(14):
        if turn == 10:
            for _, optimizer in (ours, theirs):
                optimizer.param_groups[0]["lr"] = 0.003
        x = torch.randn(16, 64, device="cuda")
        kept.append((call(x, *ours), step(x, *theirs)))
    for found, expected in kept:
        same(found, expected)
    for one, two in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        same(one, two)
        for name, value in theirs[1].state[two].items():
            same(ours[1].state[one][name], value)
    assert any(v.lanes for p in programs for v in p._variants.values())


def test_numbers_of_the_host():
    """Without a graph as well, of several types, and in one that the caller captures."""

    def fn(x, a, b, c):
        return torch.where(c, x * (a + 1), x - b)

    compiled = dynfix.compile(fn)
    for turn in range(6):
        x = torch.randn(5, 7, device="cuda")
        numbers = torch.tensor(turn / 3), torch.tensor(turn), torch.tensor(turn % 2 == 0)
        same(compiled(x, *numbers), fn(x, *numbers))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = compiled(x, *numbers)
    del numbers
    numbers = torch.tensor(5 / 3), torch.tensor(5), torch.tensor(False)
    for _ in range(3):
        x.normal_()
        graph.replay()
        same(made, fn(x, *numbers))
