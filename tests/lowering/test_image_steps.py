"""Whole training steps of convolution nets work in channels-last order, and nobody sees it."""

import contextlib
import copy

import dynfix
import pytest
import torch
from dynfix.lowering import joint, stored_graphs
from dynfix.lowering.decompositions import pool_offsets
from dynfix.lowering.graph import channels_last
from grids import grid
from pass_list import wrap_pass
from torch import nn
from torch.nn import functional as F

CONVOLUTIONS = ("aten.convolution.default", "aten.convolution_backward.default")
MEMORY = torch.channels_last


class Block(nn.Module):
    def __init__(self, given, made, stride):
        super().__init__()
        self.first = nn.Conv2d(given, made, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(made)
        self.second = nn.Conv2d(made, made, 3, 1, 1, groups=2)
        self.past = nn.Conv2d(given, made, 1, stride) if given != made else nn.Identity()

    def forward(self, x):
        y = F.relu(self.norm(self.first(x)), inplace=True)
        y = self.second(y)
        y += self.past(x)
        return F.relu(y)


class Net(nn.Module):
    def __init__(self, dropout=0.0, pool=nn.MaxPool2d):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        between = nn.Dropout(dropout) if dropout else nn.Identity()
        self.blocks = nn.Sequential(Block(16, 16, 1), between, Block(16, 24, 2))
        self.pool, self.head = pool(2), nn.Linear(24, 5)

    def forward(self, x):
        y = self.pool(F.relu(self.norm(self.stem(x))))
        return self.blocks(y)

    def loss(self, x, targets):
        return F.cross_entropy(self.head(self(x).mean((2, 3))), targets)


OPTIMIZERS = {
    "sgd": lambda given: torch.optim.SGD(given, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda given: torch.optim.AdamW(given, lr=1e-3, foreach=False),
    "foreach": lambda given: torch.optim.AdamW(given, lr=1e-3, foreach=True),
    "fused": lambda given: torch.optim.AdamW(given, lr=1e-3, fused=True),
    "fused sgd": lambda given: torch.optim.SGD(given, lr=0.05, momentum=0.9, fused=True),
}


def plain(model, optimizer, x, targets):
    loss = model.loss(x, targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def kept(model, optimizer, x, targets):
    optimizer.zero_grad()
    loss = model.loss(x, targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def accumulated(model, optimizer, x, targets):
    first = model.loss(x, targets)
    first.backward()
    second = model.loss(x.flip(0), targets)
    second.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return first.detach(), second.detach()


def clipped(model, optimizer, x, targets):
    loss = model.loss(x, targets)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach(), norm


def activations(model, optimizer, x, targets):
    features = model(x)
    loss = F.cross_entropy(model.head(features.mean((2, 3))), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach(), features.detach(), features.detach().mean((2, 3))


def of_the_middle(model, optimizer, x, targets):
    first = model.pool(F.relu(model.norm(model.stem(x))))
    loss = F.cross_entropy(model.head(model.blocks(first).mean((2, 3))), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach(), first.detach()


def of_inputs(model, optimizer, x, targets):
    loss = model.loss(x, targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach(), x.grad


STEPS = {
    each.__name__: each
    for each in (plain, kept, accumulated, clipped, activations, of_the_middle, of_inputs)
}


@pytest.fixture
def rewritten(monkeypatch):
    """Whether each graph was."""
    found = []

    def watched(original):
        def prefer(gm, examples):
            made = original(gm, examples)
            found.append(made is not gm)
            return made

        return prefer

    wrap_pass(monkeypatch, "channels last", watched)
    monkeypatch.setattr(
        stored_graphs, "stored_graph", lambda *given: None
    )  # each graph is lowered anew
    return found


@pytest.fixture(params=["cuda", pytest.param("cpu", marks=pytest.mark.slow)])
def graphs(request, monkeypatch):
    """The graphs that are lowered, in the order for a kind of device."""
    found = []

    def compile_unit(graph, *given):
        found.append(graph)
        return original(graph, *given)

    original = joint.compile_unit
    kinds = channels_last.CONVOLUTIONS
    monkeypatch.setattr(channels_last, "CONVOLUTIONS", dict.fromkeys(kinds, kinds[request.param]))
    monkeypatch.setattr(joint, "compile_unit", compile_unit)
    return found


def assert_same(ours, theirs, **tolerance):
    assert isinstance(theirs, type(ours)), (type(ours), type(theirs))
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(ours, theirs, **tolerance)
        assert ours.stride() == theirs.stride()
    elif isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            assert_same(ours[key], theirs[key], **tolerance)
    elif isinstance(theirs, list | tuple):
        for one, two in zip(ours, theirs, strict=True):
            assert_same(one, two, **tolerance)
    else:
        assert ours == theirs


def state(model, optimizer):
    return (
        [each.detach() for each in model.parameters()],
        [each.grad for each in model.parameters()],
        list(model.buffers()),
        optimizer.state_dict()["state"],
    )


def check(net, optimizer, step, turns=5, autocast=False, **tolerance):
    torch.manual_seed(0)
    ours, theirs = net, copy.deepcopy(net)
    sides = []
    for model, compiler in ((ours, dynfix.compile), (theirs, lambda function: function)):
        made = OPTIMIZERS[optimizer](model.parameters())

        def call(x, targets, model=model, made=made):
            within = torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext()
            with within:
                return step(model, made, x, targets)

        sides.append((compiler(call), model, made))
    for turn in range(turns):
        x, targets, results = torch.randn(4, 3, 8, 8), torch.randint(5, (4,)), []
        for call, model, made in sides:
            torch.manual_seed(turn)
            given = x.clone().requires_grad_(step is of_inputs)
            results.append((call(given, targets), state(model, made)))
        assert_same(*results, **tolerance)


REST = "adamw", "fused sgd"
MORE = pytest.mark.slow  # of the same


@pytest.mark.parametrize(
    ("step", "optimizer"),
    grid(
        lambda step, optimizer: optimizer == "sgd" and step not in ("plain", "kept", "clipped"),
        STEPS,
        ["sgd", "foreach"],
    ),
)
def test_steps_are_those_of_eager(step, optimizer, rewritten, graphs):
    check(Net(), optimizer, STEPS[step], rtol=1e-3, atol=1e-4)
    assert rewritten and all(rewritten)
    for graph in graphs:
        assert changes_of_order(graph) == []


@pytest.mark.parametrize("optimizer", ["fused", *(pytest.param(k, marks=MORE) for k in REST)])
def test_other_optimizers(optimizer, rewritten):
    check(Net(), optimizer, kept, rtol=1e-3, atol=1e-4)
    assert rewritten and all(rewritten)


def test_autocast(rewritten, graphs):
    check(Net(), "sgd", kept, autocast=True, rtol=0.05, atol=0.05)
    assert rewritten and all(rewritten)
    for graph in graphs:
        assert changes_of_order(graph) == []


@pytest.mark.parametrize("pool", [nn.AvgPool2d, pytest.param(nn.MaxPool2d, marks=MORE)])
def test_dropout_draws_as_in_eager(pool, rewritten):
    check(Net(0.3, pool), "sgd", plain, rtol=1e-3, atol=1e-4)
    assert rewritten and all(rewritten)


def test_images_of_one_channel(rewritten, graphs):
    class Gray(Net):
        def forward(self, x):
            return super().forward(x[:, :1])

    net = Gray()
    net.stem = nn.Conv2d(1, 16, 3, bias=False)
    check(net, "sgd", plain, turns=3, rtol=1e-3, atol=1e-4)
    assert rewritten and all(rewritten)
    for graph in graphs:
        made = [n.meta["val"] for n in graph.graph.nodes if str(n.target) == CONVOLUTIONS[0]]
        assert all(image.is_contiguous(memory_format=MEMORY) for image in made)


def test_pooling_keeps_positions_in_windows(monkeypatch):
    graphs, original = [], joint.compile_unit
    monkeypatch.setattr(
        joint, "compile_unit", lambda graph, *given: graphs.append(graph) or original(graph, *given)
    )

    def step(x, weight):
        F.max_pool2d(x * weight, 2).square().sum().backward()
        found, weight.grad = weight.grad, None
        return found

    call = dynfix.compile(step)
    for _ in range(3):
        x, weight = torch.randn(2, 3, 6, 8), torch.randn(3, 1, 1, requires_grad=True)
        torch.testing.assert_close(call(x, weight), step(x, weight))
    targets = {node.target for node in graphs[0].graph.nodes}
    assert pool_offsets.BACKWARD in targets and pool_offsets.PLACES not in targets


def test_gradients_of_another_order_take_memory_once(rewritten, monkeypatch):
    programs = []
    original = joint.compile_unit
    monkeypatch.setattr(
        joint, "compile_unit", lambda *given: programs.append(original(*given)) or programs[-1]
    )
    check(Net(), "sgd", kept, turns=3, rtol=1e-3, atol=1e-4)
    assert programs
    for program in programs:
        assert "aten_empty" not in program.source


def changes_of_order(graph):
    """Images between the first convolution and the last, or gradients of them, that are copied from
    one order to another, and images that a convolution is given in another order than its own."""
    nodes = list(graph.graph.nodes)
    places = [place for place, node in enumerate(nodes) if str(node.target) in CONVOLUTIONS]
    found = []
    for node in nodes[places[0] : places[-1] + 1]:
        images = _images(node)
        if str(node.target) in CONVOLUTIONS:
            found += [node for image in images if not image.is_contiguous(memory_format=MEMORY)]
        elif images and not _of_weights(node) and _is_copy(node):
            found.append(node)
    return found


def _images(node):
    """The images that a node is given."""
    given = [each.meta["val"] for each in node.all_input_nodes]
    count = 2 if str(node.target) == CONVOLUTIONS[1] else 1
    given = given[:count] if str(node.target) in CONVOLUTIONS else given
    return [each for each in given if isinstance(each, torch.Tensor) and each.dim() == 4]


def _of_weights(node):
    """Or of the images that the net is given."""
    return all(image.shape[-1] in (1, 3) or image.shape[1] == 3 for image in _images(node))


def _is_copy(node):
    made = node.meta["val"]
    if str(node.target) not in ("aten.clone.default", "aten.copy.default"):
        return False
    return any(image.stride() != made.stride() for image in _images(node))
