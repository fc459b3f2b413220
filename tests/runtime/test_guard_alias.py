"""Inputs that are one object, or share memory, where the recording saw separate ones."""

import numpy
import pytest
import torch
from dynfix.runtime.guards.guard import Arg, GuardSet


def pair(engine, n=2, **options):
    return engine([], [Arg(i) for i in range(n)], n, **options)


def test_distinct(engine):
    a, b = torch.zeros(2), torch.zeros(2)
    guards = pair(engine, distinct=[0])
    assert guards.holds(a, b)
    assert guards.why(a, a) == "args[0] and args[1] are one object"
    assert pair(engine).holds(a, a)


def test_distinct_asks_only_of_those_named(engine):
    a, b, c = (torch.zeros(1) for _ in range(3))
    guards = pair(engine, 3, distinct=[2])
    assert guards.holds(a, a, b)
    assert not guards.holds(a, c, c) and not guards.holds(c, a, c)


def test_distinct_among_many(engine):
    tensors = [torch.zeros(1) for _ in range(300)]
    guards = pair(engine, 300, distinct=range(300))
    assert guards.holds(*tensors)
    for i, j in ((0, 299), (150, 151), (7, 200)):
        clashing = list(tensors)
        clashing[i] = tensors[j]
        assert not guards.holds(*clashing)


def storages():
    base = torch.zeros(4, 4)
    array = numpy.zeros(8, dtype=numpy.float32)
    meta = torch.zeros(8, device="meta")
    return {
        "another tensor": (base, torch.zeros(4, 4), False),
        "the same tensor": (base, base, True),
        "a view": (base, base.view(16), True),
        "a detached alias": (base, base.detach(), True),
        "halves": (base[:2], base[2:], False),
        "halves that share a row": (base[:3], base[2:], True),
        "columns that interleave": (base[:, 0], base[:, 1], True),
        "empty": (base[:0], base, False),
        "expanded": (base[:1].expand(4, 4), base[1:], False),
        "two tensors of one array": (torch.from_numpy(array), torch.from_numpy(array), True),
        "parts of one array": (torch.from_numpy(array[:4]), torch.from_numpy(array[4:]), False),
        "meta tensors": (meta, torch.zeros(8, device="meta"), False),
        "views of a meta tensor": (meta[:4], meta[2:], True),
        "parts of a meta tensor": (meta[:4], meta[4:], False),
        "other dtype, one memory": (base, base.view(torch.int32), True),
        "not a tensor": (base, 3, False),
    }


@pytest.mark.parametrize("name", storages())
def test_disjoint(engine, name):
    a, b, clash = storages()[name]
    guards = pair(engine, disjoint=[0])
    assert guards.holds(a, b) != clash
    if isinstance(b, torch.Tensor):
        assert pair(engine, disjoint=[1]).holds(a, b) != clash
        assert pair(engine, disjoint=[0, 1]).holds(b, a) != clash
    if clash and a is not b:
        assert "overlap in memory" in guards.why(a, b)
    assert pair(engine).holds(a, b)


def test_only_written_inputs_may_not_overlap(engine):
    base, other = torch.zeros(8), torch.zeros(8)
    guards = pair(engine, 3, disjoint=[2])
    assert guards.holds(base, base[2:], other)
    assert not guards.holds(base, other, base[7:])


def test_a_long_input_before_a_short_one_is_not_forgotten(engine):
    base = torch.zeros(100)
    guards = pair(engine, 3, disjoint=[2])
    assert not guards.holds(base, base[1:2], base[50:60])
    assert not pair(engine, 3, disjoint=[0]).holds(base, base[1:2], base[50:60])
    assert not pair(engine, 3, disjoint=[0]).holds(base[40:60], base, base[99:])


def test_a_written_input_that_is_no_tensor_does_not_match(engine):
    assert not pair(engine, disjoint=[1]).holds(torch.zeros(1), 3)


def test_tensors_without_plain_memory(engine):
    sparse = torch.zeros(3, 3).to_sparse()
    assert not pair(engine, disjoint=[0]).holds(torch.zeros(3), sparse)
    assert pair(engine, distinct=[0]).holds(torch.zeros(3), sparse)


def test_an_index_without_input_is_refused():
    for options in ({"distinct": [1]}, {"disjoint": [-1]}):
        with pytest.raises(IndexError, match="no input"):
            GuardSet([], [Arg(0)], 1, **options)
