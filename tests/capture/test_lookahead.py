"""A call that leaves the outside so that its own recording does not stand for the next one is
recorded again at once, for what it left; nobody notices the second run."""

import copy
import logging
import string

import dynfix
import pytest
import torch
from helpers import call, one_graph, recordings, same

X = torch.arange(6.0).view(2, 3)
Y = -X + 0.5
CACHE: dict[int, torch.Tensor] = {}


class Window(torch.nn.Module):
    """As losses do that keep a window for the number of channels."""

    def __init__(self):
        super().__init__()
        self.window, self.channels = None, 1
        self.p = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        if self.window is None or self.channels != x.shape[1]:
            self.window, self.channels = torch.ones(x.shape[1]).type_as(x), x.shape[1]
        return x * self.window * self.p


class Mean(torch.nn.Module):
    """A buffer that takes another shape at the first call, and is stored by every call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(3))
        self.p = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.center = (self.center * 0.9 + x.detach() * 0.1).clone()
        return x * self.p - self.center


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.made, self.seen = {}, []
        self.p = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        if "w" not in self.made:
            self.made["w"] = torch.rand(3)
        return x * self.made["w"] * self.p + torch.rand(3)


class Initialised(torch.nn.Module):
    """Written through `.data`; read only from then on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("ready", torch.tensor(False))
        self.register_buffer("means", torch.zeros(3))
        self.p = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        if not self.ready:
            self.means.data.copy_(x.detach().mean(0))
            self.ready.data.copy_(torch.tensor(True))
        return (x - self.means) * self.p


MADE = [Window, Mean, Counter, Initialised]


@pytest.mark.parametrize("make", MADE)
def test_equal_to_eager(make):
    same(make, call(X), call(Y), call(X), call(torch.cat([X, Y])), tolerance=(1e-6, 1e-6))


@pytest.mark.parametrize("make", MADE)
def test_the_second_call_is_one_graph(make, monkeypatch):
    fn = same(make, call(X), tolerance=(1e-6, 1e-6))
    made = len(recordings(fn))
    fn(Y)
    assert len(recordings(fn)) == made


class Prints(Window):
    def forward(self, x):
        first = self.window is None
        result = super().forward(x)
        if not first:
            print("not first")
        return result


class Logs(Window):
    def forward(self, x):
        if self.window is not None:
            logging.getLogger("ahead").warning("again")
        return super().forward(x)


class Adds(Window):
    def forward(self, x):
        if self.window is not None:
            x.add_(1)
        return super().forward(x)


class Normalised(Window):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, x):
        return super().forward(self.norm(x) if self.window is not None else x)


class Lists(Window):
    def __init__(self):
        super().__init__()
        self.calls = []

    def forward(self, x):
        if self.window is not None:
            self.calls.append(1)
        return super().forward(x) * (len(self.calls) + 1)


class Global(Window):
    def forward(self, x):
        if self.window is not None:
            global CACHE
            CACHE = {**CACHE, 1: 2}
        return super().forward(x) + len(CACHE)

    def watch(self):
        return len(CACHE)


class Catches(Window):
    def forward(self, x):
        try:
            if self.window is not None:
                print("again")
        except BaseException:
            self.channels = -1
        finally:
            if self.window is not None:
                self.last = print
        return super().forward(x)


@pytest.mark.parametrize("make", [Prints, Logs, Adds, Normalised, Lists, Catches])
def test_what_would_be_noticed_is_not_done(make):
    same(make, call(X.clone()), call(Y.clone()), call(X), call(Y), tolerance=(1e-6, 1e-6))


class Turning(torch.nn.Module):
    """What a call leaves leads the next one to draw."""

    def __init__(self):
        super().__init__()
        self.draws = [False, True]
        self.p = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.draws = self.draws[::-1]
        return x * self.p + (0 if self.draws[0] else torch.rand(3))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_what_the_second_run_draws_is_not_taken_from_the_next_call(backend):
    steps = call(X.clone()), call(Y.clone()), call(X), call(Y), call(X)
    same(Turning, *steps, backend=backend, tolerance=(1e-6, 1e-6))


def test_a_global_is_stored_once():
    CACHE.clear()
    same(Global, call(X))
    assert not CACHE


def test_it_is_tried_once():
    fn = same(Mean, call(X), call(Y), call(X))
    one_graph(fn, 2)


def test_memory_that_the_call_gave_back():
    def released(x):
        y = torch.sin(x + 1)
        storage = x.untyped_storage()
        storage.resize_(0)
        return torch.cos(y), storage

    fn = dynfix.compile(released, backend="eager")
    for _ in range(4):
        x = torch.rand(10)
        expected = torch.cos(torch.sin(x + 1))
        assert torch.equal(fn(x)[0], expected) and not x.untyped_storage().nbytes()


class Closed(torch.nn.Module):
    """A generator that is let go of does something outside in its `finally`."""

    def __init__(self):
        super().__init__()
        self.log = []

    def parts(self, x):
        try:
            yield x
            yield x * 2
        finally:
            self.log.append("closed")

    def forward(self, x):
        for part in self.parts(x):
            if part is x:
                break
        return part + len(self.log)


def test_nothing_is_told_of_what_a_finalizer_may_not_do(capfd):
    same(Closed, call(X), call(Y), call(X))
    assert "Exception ignored" not in capfd.readouterr().err


class Told:
    """Its special methods are called by C code, or by the standard library's."""

    def __init__(self):
        self.asked = 0

    def __str__(self):
        self.asked += 1
        return "told"

    def __deepcopy__(self, memo):
        self.asked += 1
        return self


@pytest.mark.parametrize(
    "ask",
    [
        "{}".format,
        lambda told: string.Template("$it").substitute(it=told),
        copy.deepcopy,
        lambda told: ",".join(map(str, [told])),
    ],
    ids=["format", "template", "deepcopy", "join"],
)
def test_code_that_is_not_seen_runs_once_a_call(ask):
    def run(wrap):
        told, module = Told(), torch.nn.Module()
        module.count = 0

        def fn(x):
            module.count += 1  # another recording each time, at first
            ask(told)
            return x * (module.count % 2)

        wrapped = wrap(fn)
        return [(wrapped(X).tolist(), told.asked) for _ in range(5)]

    assert run(lambda fn: dynfix.compile(fn, backend="eager")) == run(lambda fn: fn)


def test_a_second_run_draws_what_the_call_did_not():
    class Alternating(torch.nn.Module):
        """Whose first call sets what the next one draws for."""

        def __init__(self):
            super().__init__()
            self.noise = False
            self.p = torch.nn.Parameter(torch.ones(3))

        def forward(self, x):
            if self.noise:
                x = x + torch.rand(3)
            self.noise = True
            return x * self.p

    same(Alternating, (X,), (Y,), (X,), (Y,))

    def drawing_argument(x, items):
        if isinstance(items[-1], str):
            x = x + torch.rand_like(x)
        items.reverse()
        row = x[0]
        (x * 1).sum().item()
        row.mul_(2)
        return x

    same(lambda: drawing_argument, *[(X, [1, "a"]), (Y, ["a", 1])] * 3)
