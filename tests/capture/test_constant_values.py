"""What follows from constants and from small inputs alone decides nothing: the inputs' content is
compared ahead of the first graph, and NumPy's arrays and shapes that data decides are constants."""

import time

import dynfix
import helpers
import numpy as np
import pytest
import torch
from helpers import call, one_graph, recordings, same

X = torch.arange(12.0).view(3, 4)
Y = -X.flip(0) + 0.5
SETTINGS = torch.tensor([1, 2])


class Case(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tensor([True, False, True, True]))
        self.register_buffer("counts", torch.tensor([1, 0, 2]))
        self.ratios = np.array([0.5, 1.0])
        self.chosen = torch.nn.Parameter(torch.tensor([1.0, 0.0, 1.0, 0.0]))
        self.w = torch.nn.Parameter(torch.ones(4))


class Branch(Case):
    """Arithmetic on a default decides."""

    def forward(self, x, up=SETTINGS):
        if (up + 1).sum() > 4:
            x = x * 2
        return x * self.w


class Masked(Case):
    def forward(self, x):
        return (x * self.w)[:, self.mask.logical_not().logical_not()]


class Counted(Case):
    def forward(self, x):
        places = torch.nonzero(self.counts.view(-1)).squeeze(1)
        return (x * self.w)[places].repeat_interleave(self.counts[places], 0)


class Anchors(Case):
    """NumPy on sizes and an array of the module's."""

    def forward(self, x):
        grid = np.zeros((x.shape[0], 2)).astype(np.float32)
        grid[:, 0] = np.arange(x.shape[0]) + self.ratios[0]
        grid[:, 1::2] -= np.tile(self.ratios, (x.shape[0], 1))[:, :1] * 0.5
        return torch.from_numpy(grid).sum() * x * self.w + torch.tensor(grid.T).mean()


class Selected(Case):
    def forward(self, x):
        index = np.squeeze(np.argwhere(self.chosen.data.cpu().numpy()))
        return (x * self.w)[:, index]


class Waits(Case):
    def forward(self, x):
        time.sleep(0.001)
        return x * self.w


@pytest.mark.covering
@pytest.mark.parametrize("make", [Branch, Masked, Counted, Anchors, Selected, Waits])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_one_graph(make, backend):
    fn = same(make, call(X), call(Y), call(X + 1), backend=backend, tolerance=(1e-5, 1e-6))
    one_graph(fn, 1)


@pytest.mark.parametrize("make", [Masked, Selected, Counted])
def test_another_content_is_another_recording(make):
    def write(case):
        with torch.no_grad():
            case.mask.logical_not_()
            case.chosen.neg_().add_(1)
            case.counts.add_(1)

    fn = same(make, call(X), call(Y), write, call(X), call(Y))
    assert len(recordings(fn)) >= 2


def test_arrays_of_the_module_are_compared():
    def write(case):
        case.ratios[0] = 3

    fn = same(Anchors, call(X), call(Y), write, call(X), call(Y))
    one_graph(fn, 2)


class Writes(Case):
    def forward(self, x):
        self.ratios += 1
        return x * float(self.ratios[0])


class WritesView(Case):
    def forward(self, x):
        part = self.ratios[:1]
        part *= 2
        return x * float(part[0])


class Kept(Case):
    def forward(self, x):
        return x * 2, self.mask.long().numpy()


class WritesFirst(Case):
    def forward(self, x):
        self.counts.add_(1)
        if self.counts.sum() * 2 > 12:
            return x * 2
        return x * 3


@pytest.mark.parametrize("make", [Writes, WritesView, WritesFirst])
def test_what_is_written_is_no_constant(make):
    same(make, call(X), call(Y), call(X), call(Y))


def test_arguments_that_change_are_left_alone():
    """Lengths are compared until they change; then they decide as before."""

    def fn(x, lengths):
        if lengths.max() * 2 > 6:
            return x * 2
        return x * 3

    lengths = [torch.tensor([1, n]) for n in (2, 3, 2, 4, 5, 2)]
    compiled = same(lambda: fn, *[call(X, n) for n in lengths])
    assert len(recordings(compiled)) <= 4


class Attributes(dict):
    __getattr__ = dict.__getitem__


class Defaults(dict):
    __getattr__ = dict.get
    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__


@pytest.mark.parametrize("kind", [Attributes, Defaults])
def test_a_dict_whose_attributes_are_its_items(kind):
    class Config(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.args = kind(scale=3, mode="sum")

        def forward(self, x):
            return x * self.args.scale if self.args.mode == "sum" else x

    def other(case):
        case.args["scale"] = 5

    one_graph(same(Config, call(X), call(Y), other, call(X), call(Y)))


def test_items_that_are_absent_or_written_as_attributes():
    def make():
        args = Defaults(n=0)

        def fn(x):
            args.n = args["n"] + 1
            args.last = x * args.n
            del args.last
            return x - args.bias if args.bias else x * args["n"], hasattr(args, "any")

        return helpers.Case(fn=fn, args=args, watch=lambda: args)

    def other(case):
        case.args.bias = 2

    one_graph(same(make, call(X), call(X), call(Y), other, call(X), call(X)))


def test_packed_lengths():
    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.rnn = torch.nn.LSTM(4, 3, batch_first=True)

        def forward(self, x, lengths):
            packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            out, _ = self.rnn(packed)
            return torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0]

    x, lengths = torch.randn(2, 3, 4), torch.tensor([3, 2])
    fn = same(Encoder, call(x, lengths), call(-x, lengths), call(x, torch.tensor([2, 1])))
    assert not recordings(fn)[0].sites


class Positional(Case):
    """A Parameter made in the call that does not learn."""

    def forward(self, x):
        return x * self.w + torch.nn.Parameter(self.mask.float(), requires_grad=False)


class Masks(Case):
    """A layer that masks its own weight."""

    def forward(self, x):
        self.w.data *= self.mask
        return x * self.w


class Makes(Case):
    def forward(self, x):
        p = torch.nn.Parameter(self.mask.float(), requires_grad=False)
        self.p = p
        return x * self.w, torch.nn.Parameter(x.detach(), requires_grad=False), p


@pytest.mark.parametrize("make", [Positional, Masks])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_data_without_history(make, backend):
    fn = same(make, call(X), call(Y), call(X + 1), backend=backend, tolerance=(1e-5, 1e-6))
    one_graph(fn, 1)


def test_a_parameter_that_is_kept():
    same(Makes, call(X), call(Y), call(X + 1))


def test_a_tensor_on_the_memory_of_an_array_from_outside():
    def program(array, x):
        return torch.from_numpy(array.T)[1:], x * torch.tensor(array)

    compiled = dynfix.compile(program, backend="eager")
    array = np.arange(4, dtype=np.float32)
    for step in range(4):
        shared, made = compiled(array, X[0] + step)
        assert shared.data_ptr() == array.ctypes.data + 4
        assert torch.equal(made, (X[0] + step) * torch.arange(4))


def chosen_by_a_constant(x, m):
    return x[torch.tensor([True] * 3 + [False] * 3)] * 2


def chosen_behind_an_axis(x, m):
    return x[None, :, torch.tensor([True, False, True]), ...] + 1


def written_where_true(x, m):
    x = x.clone()
    x[m] = 0
    return x


@pytest.mark.covering
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", [chosen_by_a_constant, chosen_behind_an_axis, written_where_true])
def test_a_mask_of_another_size_is_an_error(fn, dynamic):
    """Rows and mask, columns, and what differs between rows and mask."""
    compiled = dynfix.compile(fn, dynamic=dynamic)
    shapes = [(6, 3, 0), (6, 3, 0), (7, 3, 0), (8, 4, -1), (7, 3, 1), (9, 3, -3), (6, 3, 0)]
    for rows, columns, more in shapes:
        x = torch.arange(float(rows * columns)).view(rows, columns)
        mask = torch.arange(rows + more) % 2 == 0
        assert outcome(compiled, x, mask) == outcome(fn, x, mask)


def outcome(fn, *args):
    try:
        return fn(*args).tolist()
    except IndexError as error:
        return str(error)
