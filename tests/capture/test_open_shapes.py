"""Sizes that only the data of a call decides stay in the graph of a backend that takes one, as long
as Python does not ask for them; where it does, the shape is compared."""

import dynfix
import pytest
import torch
import torch.nn.functional as F
from counting_graphs import Counting, outside
from helpers import call, one_graph, recordings, same

X = torch.arange(12.0).view(3, 4) - 4
STEPS = [call(X), call(-X), call(X + 2), call(X * 0 + 1), call(torch.cat([X, X[:1]])), call(X - 9)]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(4))


class Filtered(Model):
    def forward(self, x):
        x = x * self.w
        return x[(x > 0).any(1)]


class Summed(Model):
    def forward(self, x):
        x = x * self.w
        return -torch.masked_select(x, x > 1).sum() + x[x < 3].pow(2).sum()


class Placed(Model):
    def forward(self, x):
        places = torch.nonzero(x > 0)
        return (x * self.w)[places[:, 0], places[:, 1]].exp().cumsum(0), places.flip(0)


class Counted(Model):
    """A size that is computed."""

    def forward(self, x):
        n = (x > 0).sum() + 2
        return torch.arange(n)[None] * 2, torch.zeros(n, 2) + self.w.sum(), (x * self.w)[:, : n - 3]


class Item(Model):
    def forward(self, x):
        n = (x > 0).sum().item()
        return torch.ones(n, 3) * self.w[:3]


class Largest(Model):
    """As in a regulator of lengths."""

    def forward(self, x):
        lengths = (x > 0).sum(-1)
        at = torch.arange(lengths.max())[None]
        return (at < lengths[:, None]).float() * self.w[0]


OPEN = [Filtered, Summed, Placed, Counted, Item, Largest]


@pytest.mark.parametrize("make", OPEN)
def test_one_graph(make):
    one_graph(same(make, *STEPS[:4], tolerance=(1e-5, 1e-6)), 1)


@pytest.mark.covering
@pytest.mark.parametrize("make", OPEN)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_equal(make, backend):
    same(make, *STEPS, backend=backend, tolerance=(1e-5, 1e-6))


class Asks(Model):
    def forward(self, x):
        kept = (x * self.w)[x > 0]
        if kept.shape[0] > 4:
            return kept.sum()
        return kept.mean() * kept.numel()


class Parts(Model):
    def forward(self, x):
        kept = (x * self.w)[(x > 0).any(1)]
        first, *rest = kept.unbind(0)
        return first + sum(rest), len(kept), [row * 2 for row in kept], kept.split(2)


class Reads(Model):
    """The kept part comes into a later graph."""

    def forward(self, x):
        kept = (x * self.w)[x > -1] * 2
        if x.sum() > 0:
            print("more")
        return kept.view(-1, 1) + 1, kept.numel()


class Chooses(Model):
    """What a pattern would prove of one size is not proved of others."""

    def forward(self, x):
        kept = x.flatten()[x.flatten() > 0]
        y = kept * 2 if self.w.sum() * kept.sum() > 3 else torch.zeros(7)
        return y * self.w[0]


class Mixed(Model):
    def forward(self, x):
        n, m = (x > 0).sum().item(), (x > 1).sum().item() * 2
        return torch.ones(n, m + 1, x.shape[0]) * self.w[0]


@pytest.mark.covering
@pytest.mark.parametrize("make", [Asks, Parts, Reads, Chooses, Mixed])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_sizes_that_python_asks_for(make, backend):
    same(make, *STEPS, backend=backend, tolerance=(1e-5, 1e-6))


def test_a_backend_that_takes_no_such_graph():
    def picky(gm, example_inputs):
        raise NotImplementedError

    model = Filtered()
    compiled = dynfix.compile(model, backend=picky)
    with pytest.warns(UserWarning, match="is not compiled"):
        compiled(X)
    for x in (X, -X, X + 2):
        torch.testing.assert_close(compiled(x), Filtered()(x))


def test_counted_from_outside():
    backend = Counting()
    compiled = dynfix.compile(Summed(), backend=backend)
    compiled(X)
    for x in (-X, X + 2):
        before = backend.calls
        _, loose = outside(lambda x=x: compiled(x))
        assert backend.calls - before == 1
        assert not loose


def test_one_hot_asks():
    def fn(x):
        return F.one_hot((x > 0).sum(-1))

    assert len(recordings(same(lambda: fn, *STEPS))) > 0


def test_volatile_is_false_and_warns():
    def fn(x):
        return x + 1 if x.volatile else x * 2

    one_graph(same(lambda: fn, call(X), call(-X)), 1)


def test_a_graph_of_another_call_may_raise_before_it_is_told_apart():
    """What was recorded for one padding, tried for another: the recording made for that serves."""

    def fn(x, ids, mask):
        groups = list(ids[mask].tolist())
        places = torch.zeros(len(x), dtype=torch.long)
        places[mask] = torch.arange(len(groups))
        return (x * 2)[places]

    backend, ids = Counting(), torch.zeros(6, dtype=torch.long)
    compiled = dynfix.compile(fn, backend=backend)
    for turn in range(12):
        x, mask = torch.randn(6, 3), torch.arange(6) < (6, 3)[turn % 2]
        before = backend.calls
        result, loose = outside(lambda x=x, mask=mask: compiled(x, ids, mask))
        assert torch.equal(result, fn(x, ids, mask))
        assert turn < 2 or (backend.calls > before and not loose)


class Rows(Model):
    """As where features of an image are added at its tokens. The backward reads rows at a mask."""

    def forward(self, x, mask):
        y = x * self.w
        rows = y[mask] * 2
        y = y.clone()
        y[mask] = rows + 1
        return y.exp()


class Columns(Model):
    def forward(self, x, mask):
        y = x * self.w
        z = torch.zeros(2, len(x), 4)
        z[:, mask, 1:] = y[mask][None, :, 1:]
        z[0, 0] = y[0]
        return z.cos() * self.w


class Computed(Model):
    """A mask that no call could compare ahead."""

    def forward(self, x, mask):
        y = (x * self.w).clone()
        high = y.sum(1) > 3
        y[high] = y[high].cumsum(0)
        return y * 2


@pytest.mark.covering
@pytest.mark.parametrize("make", [Rows, Columns, Computed])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_rows_written_at_a_mask_learn(make, backend):
    masks = [torch.tensor(each).bool() for each in ((1, 0, 1), (1, 0, 1), (0, 1, 1), (0, 0, 1))]
    steps = [(X + number, mask) for number, mask in enumerate((*masks, masks[0] & masks[2]))]
    compiled = same(make, *steps, backend=backend, tolerance=(1e-5, 1e-6))
    assert any(type(each).__name__ == "Recording" for each in recordings(compiled))
