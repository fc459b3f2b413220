"""Methods kept somewhere by themselves: what their objects hold is guarded and written as ever."""

import functools

import dynfix
import pytest
import torch
from helpers import X, same


class Counter:
    def __init__(self):
        self.state, self.calls, self.seen = {}, 0, []

    def count(self, x):
        if not self.state:
            self.state["first"] = 1
            return x * 2
        self.calls += 1
        return x * 3 + self.calls


def by_closure(counter):
    count = counter.count
    return lambda x: count(x)


def by_attribute(counter):
    holder = type("Holder", (), {})()
    holder.count = counter.count
    return lambda x: holder.count(x)


def by_list(counter):
    counts = [counter.count]
    return lambda x: counts[0](x)


def by_partial(counter):
    count = functools.partial(counter.count)
    return lambda x: count(x)


def by_default(counter):
    return lambda x, count=counter.count: count(x)


def by_keyword_default(counter):
    return lambda x, *, count=counter.count: count(x)


def of_a_list(counter):
    append, length = counter.seen.append, counter.seen.__len__

    def called(x):
        append(1)
        return x + length()

    return called


KEPT = (
    by_closure,
    by_attribute,
    by_list,
    by_partial,
    by_default,
    by_keyword_default,
    of_a_list,
)


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.__name__)
def test_state_behind_a_kept_method(kept):
    plain, other = Counter(), Counter()
    eager, compiled = kept(plain), dynfix.compile(kept(other), backend="eager")
    for step in range(6):
        x = torch.full((2,), float(step))
        assert torch.equal(compiled(x), eager(x)), step
        assert vars(plain) == vars(other)
        if step == 3:
            for counter in (plain, other):
                counter.state.clear()
                counter.calls = 10


def test_another_object_behind_the_method():
    first, second = Counter(), Counter()
    holder = Counter()
    holder.method = first.count
    compiled = dynfix.compile(lambda x: holder.method(x), backend="eager")
    x = torch.ones(2)
    assert [compiled(x)[0].item() for _ in range(3)] == [2, 4, 5]
    second.state, second.calls = {"first": 1}, 100
    holder.method = second.count
    assert compiled(x)[0].item() == 104
    holder.method = first.count
    assert compiled(x)[0].item() == 6


def test_an_update_kept_as_a_method():
    results = []
    for compiles in (False, True):
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.AdamW([parameter], lr=0.1)
        update = optimizer.step

        def step(x, parameter=parameter, update=update, optimizer=optimizer):
            (parameter * x).sum().backward()
            update()
            optimizer.zero_grad()

        called = dynfix.compile(step, backend="eager") if compiles else step
        for number in range(5):
            called(torch.arange(3.0) + number**2)
        results.append((parameter.detach(), optimizer.state[parameter]["step"]))
    torch.testing.assert_close(*results)


class Step:
    def __init__(self, factor):
        self.factor = factor

    def run(self, x):
        return x * self.factor

    def other(self, x):
        return x


def told_by_is(first, second, kept):
    return lambda x: x + (1 if kept[0] is kept[1] else 2)


def told_by_equality(first, second, kept):
    return lambda x: x + (1 if kept[0] == kept[1] else 2)


def told_by_a_dict(first, second, kept):
    table = {first.run: 1, second.run: 2, second.other: 3}
    return lambda x: x + table[kept[1]]


def told_by_a_set(first, second, kept):
    return lambda x: x + (kept[1] in {first.run}) + 2 * len({kept[0], kept[1]})


@pytest.mark.parametrize(
    "told",
    (told_by_is, told_by_equality, told_by_a_dict, told_by_a_set),
    ids=lambda told: told.__name__,
)
def test_which_method_it_is(told):
    first, second = Step(1), Step(1)
    kept = [first.run] * 2
    function = told(first, second, kept)
    compiled = dynfix.compile(function, backend="eager")
    others = (kept[0], kept[0], first.run, second.run, first.run, second.other, kept[0])
    for step, method in enumerate(others):
        kept[1] = method
        assert torch.equal(compiled(torch.ones(1)), function(torch.ones(1))), step


def test_attributes_of_bound_methods_and_of_what_has_none():
    class Slotted:
        __slots__ = ("a",)

    class Owner:
        def method(self):
            return 1

    Owner.method.flag = 7
    names = "__self__ __func__ __call__ __name__ __module__ __dict__ flag other a".split()

    def make():
        owner, slotted = Owner(), Slotted()

        def fn(x):
            given = (owner.method, slotted, (1, 2), torch.float32)
            found = [[hasattr(each, name) for name in names] for each in given]
            same_owner = getattr(owner.method, "__self__", None) is owner
            return x, found, same_owner, getattr(owner.method, "flag", 0), owner.method.__name__

        return fn

    same(make, (X,), (X,), lambda _: setattr(Owner.method, "flag", 9), (X,), (X,))
