"""What recipes make, printed as a function: the same objects, in the same order, as walking them."""

import collections
import dataclasses

import pytest
from dynfix.runtime.programs import printed
from dynfix.runtime.programs.recipes import (
    Apply,
    ConstRecipe,
    Env,
    HostCall,
    Input,
    Output,
    RecipeMaker,
)
from dynfix.runtime.programs.steps import Redo


class Leaf:
    """An object of the outside, or a graph's value: known by a number."""

    def __init__(self, number):
        self.number = number


LEAVES = [Leaf(number) for number in range(4)]
Pair = collections.namedtuple("Pair", "a b")


class Slotted:
    __slots__ = ("__dict__", "one", "two")


class Ordered(collections.OrderedDict):
    pass


class Rows(list):
    pass


@dataclasses.dataclass
class Result:
    first: object
    second: object = None


def slotted():
    made = Slotted()
    made.one, made.extra = LEAVES[0], [LEAVES[1]]
    return made


def ordered():
    made = Ordered(b=LEAVES[0], a=1)
    made.note = {"n": LEAVES[2]}
    return made


def cyclic():
    rows = [LEAVES[0]]
    table = {"rows": rows, 3: Rows([rows, 1.5])}
    rows.append(table)
    table["rows again"] = rows
    return table


OBJECTS = {
    "leaf": lambda: LEAVES[0],
    "output": lambda: LEAVES[3],
    "constants": lambda: [None, True, -1, 2**70, 1.5, float("inf"), "a'b", b"c", ..., slice(1, 2)],
    "dict": lambda: {"x": LEAVES[0], (1, "k"): {}, 7: set()},
    "list": lambda: [[], [LEAVES[1], [LEAVES[1]]], ()],
    "set": lambda: {1, "two", 3.0},
    "tuple": lambda: (LEAVES[0], Pair(LEAVES[1], [2]), frozenset({1})),
    "object": lambda: Result(LEAVES[0], Result(3)),
    "slots": slotted,
    "ordered": ordered,
    "default": lambda: collections.defaultdict(list, k=[LEAVES[0]]),
    "deque": lambda: collections.deque([LEAVES[0], 2], maxlen=3),
    "rows": lambda: Rows([1, LEAVES[0]]),
    "cyclic": cyclic,
    "by protocol": lambda: [collections.Counter("aab"), complex(1, 2)],
}


def shape(obj, seen=None):
    """The object as nested tuples, with a number for each object that may be shared."""
    seen = {} if seen is None else seen
    if isinstance(obj, Leaf):
        return obj.number
    if type(obj) in (type(None), bool, int, float, str, bytes, complex, type(...), slice, type):
        return type(obj), repr(obj)
    if id(obj) in seen:
        return seen[id(obj)]
    seen[id(obj)] = len(seen)
    parts = list(obj.items()) if isinstance(obj, dict) else []
    if isinstance(obj, list | tuple | collections.deque):
        parts = list(obj)
    if isinstance(obj, set | frozenset):  # its order may be that in which it was filled
        parts = sorted(obj, key=repr)
    held = [(name, getattr(obj, name)) for name in ("one", "two") if hasattr(obj, name)]
    rest = [getattr(obj, name, None) for name in ("default_factory", "maxlen")]
    inner = [shape(part, seen) for part in (*parts, *held, *rest)]
    return type(obj), inner, [shape(p, seen) for p in getattr(obj, "__dict__", {}).items()]


def leaf(obj):
    if not isinstance(obj, Leaf):
        return None
    return Output(0, 1) if obj is LEAVES[3] else Input(obj.number)


INPUTS, OUTPUTS = LEAVES[:3], [(None, LEAVES[3])]


def walked(recipe):
    env = Env(INPUTS, 0)
    env.outputs = list(OUTPUTS)
    return recipe.make(env)


@pytest.mark.parametrize("name", OBJECTS)
def test_the_same_objects(name):
    recipe = RecipeMaker(leaf).recipe(OBJECTS[name]())
    finish = printed.finish(recipe, ())
    made = [finish(INPUTS, OUTPUTS) for _ in range(2)]
    expected = shape(walked(recipe))
    assert [shape(each) for each in made] == [expected, expected] == [shape(OBJECTS[name]())] * 2
    if isinstance(made[0], list | dict | set):
        assert made[0] is not made[1]


def test_effects_in_order_and_made_once():
    log = []
    counted = Apply(lambda value: log.append("made") or [value], (Input(0),))
    effects = [
        Redo(lambda *args, **named: log.append((args, named)), (counted, ConstRecipe(2)), {}),
        Redo(
            lambda *args, **named: log.append((args, named)),
            (),
            {"k": counted, "not a name": ConstRecipe(1)},
        ),
        Redo(setattr, (Input(1), ConstRecipe("held"), counted), {}),
    ]
    result = printed.finish(ConstRecipe("result"), effects)(INPUTS, OUTPUTS)
    held = LEAVES[1].held
    assert result == "result"
    assert log == ["made", ((held, 2), {}), ((), {"k": held, "not a name": 1})]
    assert log[1][0][0] is held


def test_an_error_leaves_what_was_done():
    log = []

    def fails():
        raise KeyError("mine")

    effects = [
        Redo(log.append, (ConstRecipe(1),), {}),
        Redo(fails, (), {}),
        Redo(log.append, (), {}),
    ]
    with pytest.raises(KeyError, match="mine"):
        printed.finish(ConstRecipe(None), effects)([], [])
    assert log == [1]


def test_what_is_not_printed():
    asked = HostCall(list, (), {})
    assert printed.finish(asked, ()) is None
    assert printed.finish(ConstRecipe(1), [Redo(print, (asked,), {})]) is None
    many = RecipeMaker(leaf).recipe([[] for _ in range(printed.MAX_PRINTED_LINES + 1)])
    assert printed.finish(many, ()) is None


def test_which_inputs_are_one():
    assert printed.same_objects((), ()) is None
    a, b = object(), object()
    same = printed.same_objects([(0, 1)], [(1, 2, 3)])
    assert same([a, a, b, same])
    assert not same([a, b, b, same])
    assert not same([a, a, b, a])
