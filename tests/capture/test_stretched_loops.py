"""A loop that breaks in some of its turns: the turns between are one graph, whatever stands in the
loop, and everything stays as eager has it."""

import threading

import dynfix
import pytest
import torch
from counting_graphs import Counting, outside
from cut_programs import STEPS, taken, unknown
from helpers import Case, X, Y, same, tensor


class Layers(torch.nn.Module):
    """`forward` goes over 12 layers; turn `at` makes an unknown call."""

    def __init__(self, at=6):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(12))
        self.at = at

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = layer(x).sin() + x * (number % 2)
            if number == self.at:
                unknown(x)
        return x


class Unknown(torch.nn.Module):
    def forward(self, x):
        unknown(x)
        return x * 2


def halves():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(3, 3) for _ in range(6)]
    return torch.nn.Sequential(*layers[:3], Unknown(), *layers[3:])


def graphs_of_a_call(program, calls=4):
    counting = Counting()
    compiled = dynfix.compile(program, backend=counting)
    for _ in range(calls):
        compiled(X)
    before, built = counting.calls, counting.built
    got, names = outside(lambda: compiled(Y))
    assert torch.equal(got, program(Y)) and counting.built == built
    assert set(names) <= {"aten::sum"}, names
    return counting.calls - before


@pytest.mark.parametrize(("program", "most"), [(Layers(), 4), (halves(), 3)])
def test_the_turns_between_are_one_graph(program, most):
    with torch.no_grad():
        assert graphs_of_a_call(program) <= most


def carries(x):
    total, last = x * 0, None
    for i, (scale, shift) in enumerate(zip((1, 2, 3, 4, 5), range(5), strict=False), 1):
        if last is not None:
            total = total + last
        if scale == 3:
            unknown(total)
            continue
        last = x * scale - shift + i
    return total, last, i if last is None else 0


def bound_in_a_turn(x):
    for i in range(6):
        if i == 0:
            held = x.sin()
        held = held * 2 + i
        if i == 3:
            unknown(held)
    return held


def every_turn(x):
    for i in range(5):
        x = x.sin() + i
        unknown(x)
    return x


def several(x):
    for i in range(9):
        x = x.sin() + i
        if i in (2, 3, 7):
            unknown(x)
    return x


def grows(x):
    queue = [1.0, 2.0, 3.0]
    for scale in queue:
        x = x * scale
        if scale == 2.0:
            unknown(x)
            queue.append(5.0)
    return x, queue


def replaced_on_the_way(x):
    scales = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}

    def replace():
        scales["d"] = 7.0

    for scale in scales.values():
        x = x * scale
        if scale == 2.0:
            unknown(x)
            replace()
    return x


def made_on_the_way(x):
    def scales():
        for i in range(4):
            unknown(i)
            yield i

    for scale in scales():
        x = x * 2 + scale
        if scale == 2:
            unknown("two")
    return x


def two_loops(x):
    for i in range(4):
        for j in range(4):
            x = x.cos() + i * j
            if i == 2 and j == 1:
                unknown(x)
        x = x * 2
    return x


def leaves(x):
    for i in range(6):
        x = x + i
        if i == 2:
            unknown(x)
        if i == 4:
            return x * 3
    return x


PROGRAMS = [
    *(carries, bound_in_a_turn, every_turn, several, grows, replaced_on_the_way),
    *(made_on_the_way, two_loops),
]


@pytest.mark.covering
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [*PROGRAMS, leaves], ids=lambda f: f.__name__)
def test_program(program, grad):
    taken()
    steps = [tuple(t.clone().requires_grad_(grad) for t in step) for step in STEPS]
    same(lambda: Case(fn=program, watch=taken), *steps)


def test_the_turn_that_breaks_moves_and_layers_are_replaced():
    def moves(case):
        case.at = (case.at + 4) % 12

    def replaced(case):
        case.layers[2] = torch.nn.Linear(3, 3, bias=False, dtype=torch.float32)
        torch.nn.init.ones_(case.layers[2].weight)

    def shorter(case):
        del case.layers[9:]

    x = tensor(1, 2, 3, grad=True)
    same(Layers, *[(x,)] * 4, moves, *[(Y,)] * 3, replaced, (X,), (Y,), shorter, *[(X,), (Y,)] * 2)


def test_native():
    steps = [(tensor(1, 2, 3, grad=True),), (tensor(3, -2, 1, grad=True),)] * 3
    same(Layers, *steps, backend="native", tolerance=(1e-5, 1e-6))


def test_an_error_in_a_turn():
    def program(x, bad):
        for i in range(5):
            x = x + i
            if i == 2:
                unknown(x)
            if i == bad:
                x = x.view(7)
        return x

    compiled = dynfix.compile(program, backend="eager")
    for bad in (9, 9, 9, 9, 3, 0, 9, 3):
        taken()
        try:
            expected = program(X, bad)
        except RuntimeError as error:
            expected = str(error)
        seen = taken()
        try:
            got = compiled(X, bad)
        except RuntimeError as error:
            got = str(error)
        assert taken() == seen
        assert torch.equal(got, expected) if bad == 9 else got == expected


def test_threads():
    net = Layers()
    compiled, wrong = dynfix.compile(net, backend="eager"), []

    def work(seed):
        x = torch.randn(3, generator=torch.Generator().manual_seed(seed))
        for _ in range(10):
            with torch.no_grad():
                if not torch.equal(compiled(x), net(x)):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
