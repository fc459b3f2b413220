"""Numbers of the host that are drawn or read anew at every call: random generators, clocks, floats that move."""

import math
import random
import time

import dynfix
import numpy as np
import pytest
import torch
from helpers import Case, X, Y, recordings, same, tensor


def _drawn(x):
    return x * random.random() + random.uniform(1, 2)


def _dropped(x):
    if random.random() < 0.5:
        x = x + 1
    return x * 2 if random.random() < 0.5 else x - random.randint(1, 3)


def _drawn_twice(x):
    a = random.gauss(0, 1)
    y = x * a
    if y.sum() > 0:
        y = y + random.random()
    return y, a, random.randint(0, 10**6), f"{random.random():.3f}"


def _drawn_by_numpy(x):
    return x + np.random.rand(), np.random.randint(100), np.random.normal()


def _raises(x):
    a = random.random()
    return x.view(3) * a if random.random() < 0.9 else x.view(7)


@pytest.mark.parametrize(
    "body",
    [_drawn, _dropped, _drawn_twice, _drawn_by_numpy, _raises],
    ids=lambda body: body.__name__,
)
@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
def test_random_numbers_of_the_host(body, grad):
    """Drawn once a call, in order; a recording that does not fit puts them back."""

    def make():
        rng = random.Random(1)

        def f(x, number):
            if number == 0:
                random.seed(5), np.random.seed(5)
            return body(x), rng.random()

        return Case(
            fn=f, watch=lambda: (random.getstate(), np.random.get_state()[1].sum(), rng.getstate())
        )

    inputs = [tensor(*v.tolist(), grad=grad) for v in (X, Y)]
    fn = make()
    states = []
    for one in (fn.fn, dynfix.compile(fn.fn, backend="eager")):
        random.seed(3), np.random.seed(3)
        seen = []
        for number in range(1, 25):
            try:
                seen.append(one(inputs[number % 2], number % 4))
            except RuntimeError as error:
                seen.append(str(error))
        states.append((seen, random.getstate(), np.random.get_state()[1].sum()))
    assert repr([s[0] for s in states[0][0]]) == repr([s[0] for s in states[1][0]])
    assert states[0][1:] == states[1][1:]


def test_drawn_numbers_enter_one_graph():
    random.seed(0)
    same(lambda: lambda x: x * random.Random(3).random(), (X,), (Y,), (X,))
    compiled = dynfix.compile(
        lambda x: x * random.random() + random.random(), backend="eager", fullgraph=True
    )
    for given in (X, Y, X, Y):
        random.seed(7)
        expected = given * random.random() + random.random()
        random.seed(7)
        assert torch.equal(compiled(given), expected)
    assert len(recordings(compiled)) == 1


def test_a_clock_times_what_stands_before_it():
    def f(x):
        start = time.perf_counter()
        y = (x @ x).sin() @ x
        return y, time.perf_counter() - start

    compiled = dynfix.compile(f, backend="eager")
    x = torch.rand(300, 300)
    for _ in range(4):
        y, seconds = compiled(x)
        assert torch.equal(y, f(x)[0])
        assert seconds > 2e-5 and type(seconds) is float
    assert len(recordings(compiled)) == 1


def test_a_float_that_moves_enters_the_graph():
    case = Case(rate=0.5)
    compiled = dynfix.compile(lambda x, scale: x * case.rate / scale, backend="eager")
    for number in range(6):
        case.rate = 0.5 + number / 7
        torch.testing.assert_close(
            compiled(X, 1.0 + number), X * case.rate / (1.0 + number), rtol=0, atol=0
        )
    assert len(recordings(compiled)) <= 3


def test_math_of_a_number_that_moves_is_done_at_each_call():
    """The count of a schedule, a size; other values that raise are eager's."""
    case = Case(step=2)

    def f(x, scale):
        case.step += 1
        rate = 0.5 * (1 + math.cos(math.pi * case.step / 10))
        return x * rate / math.sqrt(scale) + math.log(x.size(0))

    compiled = dynfix.compile(f, backend="eager", fullgraph=True)
    for number in range(8):
        x, scale, case.step = torch.rand(2 + number), 1.5 + number, 2 + number
        found = compiled(x, scale)
        case.step -= 1
        torch.testing.assert_close(found, f(x, scale), rtol=0, atol=0)
    assert len(recordings(compiled)) <= 4
    with pytest.raises(ValueError):
        compiled(x, -1.0)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_math_of_a_tensors_value_is_one_recording(backend):
    def f(x):
        return x * math.exp(x.sum().item()) + 1

    compiled = dynfix.compile(f, backend=backend)
    for _ in range(5):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), f(x))
    assert len(recordings(compiled)) == 1
    with pytest.raises(dynfix.GraphBreakError):
        dynfix.compile(f, backend="eager", fullgraph=True)(x)


class Ring(torch.nn.Module):
    """A queue whose place is a buffer: read on the host, used, and written for the next call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(2, 6))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))
        self.register_buffer("calls", torch.tensor(0.0))

    def forward(self, x):
        place, calls = int(self.place), self.calls.item()
        self.rows[:, place : place + 2] = x.T
        self.place[0] = (place + 2) % 6
        self.calls += 1
        return self.rows * 2, place, calls, calls + place, self.place + 0


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_number_is_read_of_what_is_then_written(backend):
    eager, ours = Ring(), Ring()
    compiled = dynfix.compile(ours, backend=backend, fullgraph=True)
    for _ in range(8):
        x = torch.randn(2, 2)
        expected, found = eager(x), compiled(x)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        assert [*map(type, found)] == [*map(type, expected)]
        torch.testing.assert_close([*ours.buffers()], [*eager.buffers()], rtol=0, atol=0)


class Counter(torch.nn.Module):
    """Numbers of buffers go into arithmetic with tensors after the buffers were written."""

    def __init__(self):
        super().__init__()
        self.register_buffer("real", torch.tensor(1.0))
        self.register_buffer("whole", torch.tensor(1))

    def forward(self, x):
        real, whole = self.real.item(), self.whole.item()
        half = real / 2
        self.real += 1
        self.whole *= 2
        y = x * real + x / float(whole) + half
        after = self.real.item()
        self.real.mul_(1.5)
        return y * after, x / max(whole, 1.0), real, whole, x + (3 - whole)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_number_of_before_enters_the_graph_after_the_write(backend):
    eager, ours = Counter(), Counter()
    compiled = dynfix.compile(ours, backend=backend)
    for _ in range(5):
        x = torch.randn(3)
        expected, found = eager(x), compiled(x)
        torch.testing.assert_close(found, expected)
        assert [*map(type, found)] == [*map(type, expected)]
        torch.testing.assert_close([*ours.buffers()], [*eager.buffers()])


def _at_least_one(x, mask):
    return (x * mask).sum() / max((mask > 0).sum().item(), 1.0)


def _whole_number(x, mask):
    return (x * mask).sum() / max(1, int((mask > 0).sum()))


def _of_a_count(x, mask):
    count = mask.long().sum().item()
    return x * (1.0 / float(count)), x * (count / 7), x + (3 - count), x - min(0.5, count / 100)


def _quantized(x, mask):
    scale = (x.max().item() - x.min().item()) / 255
    zero = int(round(-x.min().item() / scale))  # noqa: RUF046
    return torch.clamp(torch.round(x / scale) + zero, 0, 255) - zero


def _rounded(x, mask):
    total = x.sum().item()
    return x + round(total), x * int(total), x * max(float((mask > 0).sum()), 2.5)


def _scales_what_is_added(x, mask):
    count = float(mask.long().sum() + 2)
    return torch.add(x, x, alpha=1.0 / count), x.lerp(x * 2, 1.0 / count)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize(
    "function",
    [_at_least_one, _whole_number, _of_a_count, _quantized, _rounded, _scales_what_is_added],
)
def test_counts_stay_in_the_graph(function, backend):
    compiled = dynfix.compile(function, backend=backend, fullgraph=True)
    for seed in range(5):
        torch.manual_seed(seed)
        x, mask = torch.randn(4) * (seed + 1), (torch.randn(4) > -1.5).float()
        expected, found = function(x, mask), compiled(x, mask)
        close = {"rtol": 0, "atol": 0} if backend == "eager" else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(found, expected, **close)
    assert len(recordings(compiled)) == 1
