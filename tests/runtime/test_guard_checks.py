"""Every kind of check, and the values that look alike and must be told apart."""

import collections
import enum
import struct

import pytest
import torch
from dynfix.runtime.guards.guard import (
    ABSENT,
    Arg,
    ClassAttr,
    Equals,
    Guard,
    HasKey,
    Is,
    Keys,
    Length,
    Missing,
    Tensor,
    TensorMeta,
    TypeIs,
)


class Color(enum.IntEnum):
    RED = 1
    GREEN = 2


def nan(bits):
    return struct.unpack("d", struct.pack("Q", bits))[0]


def one(engine, check):
    return engine([Guard(Arg(0), check, "model.py:12")], [], 1)


def test_is(engine):
    marker = object()
    assert one(engine, Is(marker)).holds(marker)
    assert "is another object" in one(engine, Is([])).why([])


def test_type_is_exact(engine):
    assert one(engine, TypeIs(int)).holds(3)
    assert not one(engine, TypeIs(int)).holds(True)
    assert "was of type int, is of type bool" in one(engine, TypeIs(int)).why(True)


ALIKE = [
    [0, False, 0.0, -0.0, 0j, "0", b"0", None, ()],
    [1, True, 1.0, (1 + 0j), Color.RED, torch.Size([1]), (1,), [1]],
    [(1, 2), (1, 2.0), (True, 2), (1, (2,)), torch.Size([1, 2]), frozenset((1, 2)), [1, 2]],
    ["a", b"a", ("a",), "b", "a "],
    [nan(0x7FF8000000000000), nan(0x7FF8000000000001), 1.5, float("inf")],
    [slice(1, 2), slice(1, 2, 1), slice(1.0, 2), (1, 2, None)],
    [torch.float32, torch.float64, torch.device("cpu"), torch.device("meta"), torch.strided, "cpu"],
    [complex(0.0, -0.0), complex(0.0, 0.0), complex(-0.0, 0.0)],
    [range(3), range(0, 3, 1), range(4), (0, 1, 2)][1:],
    [Color.RED, Color.GREEN, 2],
    [2**80, 2**80 + 1, float(2**80)],
    [frozenset((1,)), frozenset((True,)), frozenset((1.0,))],
    [len, abs, int, ...],
]


def again(value):
    """An equal value that is another object where there can be one."""
    if type(value) in (tuple, frozenset):
        return type(value)([again(v) for v in value])
    if type(value) is float:
        return struct.unpack("d", struct.pack("d", value))[0]
    if type(value) is int:
        return int(str(value))
    if type(value) is str:
        return "".join(list(value))
    return value


@pytest.mark.parametrize("alike", ALIKE, ids=lambda group: repr(group[0])[:20])
def test_equals_tells_alike_values_apart(engine, alike):
    for expected in alike:
        if isinstance(expected, list):
            continue
        guards = one(engine, Equals(expected))
        assert guards.holds(expected)
        assert guards.holds(again(expected))
        assert not any(guards.holds(other) for other in alike if other is not expected)


def test_equals_refuses_what_is_no_constant():
    for value in ([1], {}, object(), torch.zeros(1), (1, [2]), type("MyInt", (int,), {})(3)):
        assert not Equals.supports(value)
        with pytest.raises(TypeError, match="not a constant"):
            Equals(value)


def test_equals_never_runs_a_users_eq(engine):
    class Liar:
        def __eq__(self, other):
            raise AssertionError("called")

        __hash__ = None

    for expected in (1, 1.0, "a", (1,), None):
        assert not one(engine, Equals(expected)).holds(Liar())
    assert not one(engine, Equals((1, 2))).holds((1, Liar()))


def test_equals_message_names_both_values(engine):
    assert one(engine, Equals(2.0)).why(3.0) == "args[0] (model.py:12) was 2.0, is 3.0"
    assert "was 1 (int), is True (bool)" in one(engine, Equals(1)).why(True)


def test_length(engine):
    guards = one(engine, Length(2))
    for value in (
        [1, 2],
        (1, 2),
        {1: 1, 2: 2},
        "ab",
        torch.zeros(2, 3),
        torch.nn.ModuleList([torch.nn.ReLU()] * 2),
    ):
        assert guards.holds(value)
    for value in ([1], {}, "", 5):
        assert not guards.holds(value)
    assert "had length 2, has length 3" in guards.why([1, 2, 3])


def test_keys_in_order(engine):
    marker = object()
    guards = one(engine, Keys(("a", 1, marker)))
    assert guards.holds({"a": 0, 1: 0, marker: 0})
    assert guards.holds(collections.OrderedDict({"a": 0, 1: 0, marker: 0}))
    for other in (
        {"a": 0, marker: 0, 1: 0},
        {"a": 0, 1: 0},
        {"a": 0, 1: 0, object(): 0},
        {"a": 0, True: 0, marker: 0},
        {"a": 0, 1.0: 0, marker: 0},
        {"b": 0, 1: 0, marker: 0},
        {"a": 0, 1: 0, marker: 0, "z": 0},
        3,
    ):
        assert not guards.holds(other)
    assert one(engine, Keys(())).holds({})
    assert one(engine, Keys(["".join("ab")])).holds({"ab": 1})


def test_whether_a_key_is_there(engine):
    there, gone = one(engine, HasKey("a", True)), one(engine, HasKey("b", False))
    for table in ({"a": 0}, {"z": 0, "a": 1}, collections.OrderedDict(a=0)):
        assert there.holds(table) and gone.holds(table)
    table = {"a": 0}
    assert there.holds(table) and gone.holds(table)
    table["b"] = table.pop("a")
    assert not there.holds(table) and not gone.holds(table)
    assert "had the key 'a', lacks it" in there.why(table)
    assert "lacked the key 'b', has it" in gone.why(table)
    assert not there.holds(3) and one(engine, HasKey(1, True)).holds({True: 0})


def test_key_deleted_and_put_back_moves_to_the_end(engine):
    table = {"a": 1, "b": 2}
    guards = one(engine, Keys(tuple(table)))
    del table["a"]
    assert not guards.holds(table)
    table["a"] = 1
    assert not guards.holds(table)
    assert "had keys ['a', 'b'], has keys ['b', 'a']" in guards.why(table)


def test_missing(engine):
    class Slotted:
        __slots__ = ("x",)

    guards = one(engine, Missing("forward"))
    net = torch.nn.ReLU()
    assert guards.holds(net)
    assert guards.holds(Slotted())
    assert guards.holds(3)
    net.forward = lambda x: x
    assert not guards.holds(net)
    del net.forward
    assert guards.holds(net)


def test_missing_of_an_object_that_hides_its_dict(engine):
    class Hiding:
        @property
        def __dict__(self):
            raise RuntimeError("hidden")

    assert not one(engine, Missing("x")).holds(Hiding())


def test_class_attr_follows_the_mro(engine):
    class Base:
        def step(self):
            return 1

    class Derived(Base):
        pass

    value, original = Derived(), Base.__dict__["step"]
    guards = one(engine, ClassAttr("step", original))
    absent = one(engine, ClassAttr("other", ABSENT))
    assert guards.holds(value) and absent.holds(value)
    value.step = 5  # on the instance: not this check's matter
    assert guards.holds(value)
    Derived.step = lambda self: 2
    assert "class attribute 'step'" in guards.why(value)
    del Derived.step
    assert guards.holds(value)
    Base.step = lambda self: 3
    assert not guards.holds(value)
    Base.step = original
    assert guards.holds(value)
    Base.other = None
    assert not absent.holds(value)
    del Base.other
    assert absent.holds(value)
    assert not one(engine, ClassAttr("step", ABSENT)).holds(value)


def test_class_attr_when_the_bases_change(engine):
    class One:
        x = 1

    class Two:
        x = 2

    class Child(One):
        pass

    guards = one(engine, ClassAttr("x", 1))
    child = Child()
    assert guards.holds(child)
    Child.__bases__ = (Two,)
    assert not guards.holds(child)


def test_class_attr_when_the_class_changes(engine):
    class One:
        def f(self):
            return 1

    class Two:
        def f(self):
            return 2

    value = One()
    guards = one(engine, ClassAttr("f", One.__dict__["f"]))
    assert guards.holds(value)
    value.__class__ = Two
    assert not guards.holds(value)


class Tagged(torch.Tensor):
    pass


def variants():
    base = torch.zeros(4, 6)
    with torch.inference_mode():
        inference = torch.zeros(4, 6)
    return {
        "plain": base,
        "parameter": torch.nn.Parameter(base.clone()),
        "frozen parameter": torch.nn.Parameter(base.clone(), requires_grad=False),
        "subclass": base.clone().as_subclass(Tagged),
        "half": base.half(),
        "int": base.to(torch.int32),
        "requires grad": base.clone().requires_grad_(),
        "transposed": torch.zeros(6, 4).t(),
        "sliced": torch.zeros(4, 12)[:, ::2],
        "shape": torch.zeros(6, 4),
        "rank": torch.zeros(24),
        "meta": torch.zeros(4, 6, device="meta"),
        "inference": inference,
        "complex": base.to(torch.complex64),
        "conj": base.to(torch.complex64).conj(),
        "neg": base.to(torch.complex64).conj().imag,
        "sparse": base.to_sparse(),
        "number": 3,
        "none": None,
    }


@pytest.mark.parametrize("kind", [k for k, v in variants().items() if isinstance(v, torch.Tensor)])
def test_tensor_metadata_tells_kinds_apart(engine, kind):
    all_kinds = variants()
    guards = one(engine, Tensor(TensorMeta.of(all_kinds[kind])))
    held = [name for name, value in all_kinds.items() if guards.holds(value)]
    assert held == [kind]


@pytest.mark.parametrize(
    ("other", "phrase"),
    [
        ("half", "dtype torch.float16 instead of torch.float32"),
        ("shape", "shape (6, 4) instead of (4, 6)"),
        ("transposed", "strides (1, 4) instead of (6, 1)"),
        ("requires grad", "requires_grad True instead of False"),
        ("meta", "device meta instead of cpu"),
        ("parameter", "type Parameter instead of Tensor"),
        ("number", "type int instead of Tensor"),
    ],
)
def test_tensor_message_names_what_differs(engine, other, phrase):
    all_kinds = variants()
    guards = one(engine, Tensor(TensorMeta.of(all_kinds["plain"])))
    why = guards.why(all_kinds[other])
    assert why.startswith("args[0] (model.py:12) has ") and phrase in why


def test_dynamic_sizes(engine):
    guards = one(engine, Tensor(TensorMeta.of(torch.zeros(2, 3, 4), (0,))))
    assert guards.holds(torch.zeros(7, 3, 4))
    assert not guards.holds(torch.zeros(7, 5, 4))
    assert not guards.holds(torch.zeros(7, 3))
    assert not guards.holds(torch.zeros(3, 7, 4).transpose(0, 1))


def test_dynamic_inner_size_moves_outer_strides(engine):
    guards = one(engine, Tensor(TensorMeta.of(torch.zeros(2, 3, 4), (-1,))))
    assert guards.holds(torch.zeros(2, 3, 9))
    assert not guards.holds(torch.zeros(2, 3, 18)[:, :, ::2])
    assert not guards.holds(torch.zeros(2, 3, 10)[:, :, :9])
    assert not guards.holds(torch.zeros(2, 9, 3).transpose(1, 2))


def test_dynamic_middle_size_of_a_transposed_tensor(engine):
    made = lambda n: torch.zeros(2, n, 8, 4).transpose(1, 2)  # noqa: E731  (the layout of attention heads)
    guards = one(engine, Tensor(TensorMeta.of(made(5), (2,))))
    assert guards.holds(made(5)) and guards.holds(made(11))
    assert not guards.holds(made(11).contiguous())


def test_dynamic_size_of_a_slice_keeps_constant_strides(engine):
    guards = one(engine, Tensor(TensorMeta.of(torch.zeros(4, 10)[:, :5], (0, 1))))
    assert guards.holds(torch.zeros(6, 10)[:, :7])
    assert not guards.holds(torch.zeros(6, 12)[:, :7])


def test_checks_compare_by_exact_value_so_that_duplicates_are_dropped():
    assert Equals(1) == Equals(1) and hash(Equals(1)) == hash(Equals(1))
    assert Equals(1) != Equals(True) and Equals(0.0) != Equals(-0.0)
    assert Is(1) != Equals(1)
    assert Tensor(TensorMeta.of(torch.zeros(2))) == Tensor(TensorMeta.of(torch.ones(2)))
    assert ClassAttr("a", None) != ClassAttr("b", None)


def test_unprintable_values_are_named(engine):
    class Bad:
        def __repr__(self):
            raise RuntimeError

    assert "Bad, repr raises RuntimeError" in one(engine, Equals(1)).why(Bad())
    assert "<Tensor>" in one(engine, Equals(1)).why(torch.zeros(3))


@pytest.mark.parametrize("kind", [list, tuple, lambda parts: dict.fromkeys(parts, 0)])
def test_differences_name_tensors_by_their_class(kind, monkeypatch):
    """Their text would take long to make, and wait for the device."""
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda self, **how: pytest.fail("it is printed"))
    tensors = [torch.nn.Parameter(torch.ones(2)), torch.ones(2)]
    text = Keys(()).difference(dict.fromkeys(tensors)) + Is(None).difference(kind(tensors))
    assert text.count("<Parameter>") == text.count("<Tensor>") == 2
