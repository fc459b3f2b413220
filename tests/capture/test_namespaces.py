"""One attribute by two ways: stored as `obj.name`, read in `obj.__dict__`, and the other way round;
objects that are given another `__dict__` or class."""

import types

import pytest
from helpers import Case, X, same

CALLS = [(X,)] * 4


def stored_in_the_dict(o, x):
    o.__dict__["p"] = getattr(o, "q", 1) * 2 + 1
    o.__dict__["q"] = getattr(o, "p", 1) * 2 + 1
    return x * o.p


def stored_by_vars(o, x):
    names = vars(o)
    names["n"] = getattr(o, "n", 0) * 2 + 1
    names["m"] = o.n + names["n"]
    return x * o.m


def read_in_the_dict(o, x):
    o.n = o.__dict__.get("n", 0) * 2 + 1
    o.m = vars(o)["n"] + 1
    return x * o.__dict__["m"] + sum(o.__dict__.values())


def another_dict(o, x):
    o.__dict__ = {"n": getattr(o, "n", 0) * 2 + 1}
    return x * o.n


class Up:
    k = 2

    def of(self, x):
        return x * self.k


class Down(Up):
    k = -5


def another_class(o, x):
    o.__class__ = Down if type(o) is not Down else Up
    return o.of(x)


PROGRAMS = [stored_in_the_dict, stored_by_vars, read_in_the_dict, another_dict, another_class]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_equal_to_eager(program):
    def make():
        o = Up()
        return Case(fn=lambda x: program(o, x), watch=lambda: (dict(vars(o)), type(o)))

    same(make, *CALLS)


def test_a_descriptor_that_stores_in_the_dict():
    class Doubled:
        def __set_name__(self, owner, name):
            self.name = f"_{name}"

        def __get__(self, obj, owner=None):
            return getattr(obj, self.name, 1) * 2

        def __set__(self, obj, value):
            obj.__dict__[self.name] = value + 1

    class Thing:
        a, b = Doubled(), Doubled()

    def make():
        thing = Thing()

        def program(x):
            thing.a = thing.b + 1
            thing.b = thing.a
            return x * thing.a

        return Case(fn=program, watch=lambda: dict(vars(thing)))

    same(make, *CALLS)


def test_names_of_a_module():
    def make():
        module = types.ModuleType("settings")
        module.v = 1

        def program(x):
            module.v = module.v * 2 + 1
            module.__dict__["w"] = module.v + 1
            return x * module.w + vars(module)["v"]

        return Case(fn=program, watch=lambda: (module.v, module.w))

    same(make, *CALLS)
