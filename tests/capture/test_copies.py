"""`copy.deepcopy` of tensors in a captured call, alone and in what holds them."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from helpers import Fresh, X, Y, one_graph, recordings, same, tensor

FOUR = [(X,), (Y,), (X,), (Y,)]
LEARNT = [(tensor(1, 2, n, grad=True),) for n in range(3)]


@dataclasses.dataclass
class Batch:
    values: torch.Tensor
    parts: list
    names: dict


def of_an_input(x):
    y = copy.deepcopy(x)
    return y * 2, x


def in_containers(x):
    held = [x.detach(), {"again": x.detach() * 2, "ones": torch.ones(3)}, 3]
    held[1]["first"] = held[0]
    made = copy.deepcopy(held)
    return made, made[0] is made[1]["first"], held


def of_a_dataclass(x):
    batch = Batch(x.detach() * 2, [x.detach() + 1, 2], {"sum": x.detach().sum()})
    made = dataclasses.asdict(batch)
    made["values"].add_(1)
    return made, dataclasses.astuple(batch), batch


def before_a_write(x):
    y = x.detach() * 2
    kept = copy.deepcopy(y)
    y.mul_(3)
    return y, kept


def of_a_history(x):
    try:
        return copy.deepcopy(x * 2)
    except RuntimeError:
        return x + 1


@pytest.mark.covering
@pytest.mark.parametrize("steps", [FOUR, LEARNT], ids=["plain", "learnt"])
@pytest.mark.parametrize("program", [of_an_input, in_containers, of_a_dataclass, before_a_write])
def test_one_graph(program, steps):
    one_graph(same(lambda: program, *steps))
    same(lambda: program, *steps, backend="native", tolerance=(1e-6, 1e-6))


class Pair:
    def __init__(self, first, second):
        self.first, self.second = first, second


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


class Cyclic(list):
    def __init__(self, *held):
        super().__init__([*held, self])


MADE = {
    "list": lambda a, b: [a, b],
    "nested": lambda a, b: {"k": [{"z": a}], "l": (b,)},
    "object": lambda a, b: Pair(a, [b]),
    "slots": lambda a, b: [Slotted(b)],
    "set": lambda a, b: {Pair(a, b)},
    "cyclic": Cyclic,
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_what_lies_in_something_that_the_call_made(make):
    """An array and a list from outside are compared at each call."""

    def program(x, array, numbers):
        found, seen = [x], set()
        pending = [copy.deepcopy(make(array, numbers))]
        while pending:
            part = pending.pop()
            if id(part) in seen:
                continue
            seen.add(id(part))
            if isinstance(part, dict):
                pending.extend(part.values())
            elif isinstance(part, list | tuple | set):
                pending.extend(part)
            elif isinstance(part, Pair):
                pending.extend([part.first, part.second])
            elif isinstance(part, Slotted):
                pending.append(part.held)
            else:
                found.append(part)
        return found

    steps = [(X, np.arange(3.0) * n, [n, n * n]) for n in (1, 2, 3, 1, 4)]
    for backend in ("eager", "native"):
        same(lambda: program, *steps, backend=backend)


def test_layouts():
    rows = torch.arange(6.0)
    steps = [
        (rows.view(2, 3).t(),),
        (rows.view(2, 3).t() + 1,),
        (rows.view(3, 2),),
        (Fresh(lambda: torch.arange(9.0)[3:].view(3, 2)),),
        (Fresh(lambda: torch.arange(12.0)[:6].view(3, 2)),),
        (rows.view(3, 2) + 1,),
    ]
    same(lambda: lambda x: (copy.deepcopy(x), copy.deepcopy(x.t())), *steps)


def test_of_a_history():
    same(lambda: of_a_history, *FOUR, *LEARNT)


def shared_memory(x):
    y = x.detach() * 2
    one, other = copy.deepcopy([y, y.view(3, 1)])
    one.add_(1)
    return one, other


def part_of_a_storage(x):
    made = copy.deepcopy((x.detach() * 2)[1:])
    return made, made.storage_offset()


@pytest.mark.parametrize("program", [shared_memory, part_of_a_storage])
def test_what_is_no_clone_is_eager(program):
    fn = same(lambda: program, *FOUR)
    assert "__deepcopy__" in str(recordings(fn)[0].sites[-1])


def test_state_of_a_module():
    class Kept(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.linear = torch.nn.Linear(3, 3)
            self.defaults = {"bias": torch.zeros(3), "n": 2}

        def forward(self, x):
            made = copy.deepcopy(self.defaults)
            made["bias"] += x.detach()
            self.best = copy.deepcopy(self.linear.state_dict())
            return self.linear(x) + made["bias"]

    one_graph(same(Kept, *FOUR))


def test_a_module_copied_in_each_call_is_one_graph():
    class Twins(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.norm = torch.nn.BatchNorm1d(3)
            self.linear, self.tied = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
            self.tied.weight = self.linear.weight
            self.norm.bias.requires_grad_(False)

        def forward(self, x):
            twin, (again, named) = copy.deepcopy(self), copy.deepcopy([self.tied, {"w": self.tied}])
            tied = twin.tied.weight is twin.linear.weight and again is named["w"]
            with torch.no_grad():
                for mine, its in zip(twin.parameters(), self.parameters(), strict=True):
                    mine.mul_(0.5).add_(its, alpha=0.25)
            return self.tied(twin.norm(x)) + twin.linear(again(x)) * (2.0 if tied else 0.0)

    rows = [(tensor(1, 2, n, 3, 4, n).view(2, 3).clone().requires_grad_(),) for n in range(4)]
    one_graph(same(Twins, *rows))
