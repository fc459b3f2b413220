"""The native engine itself: counts of references, threads, re-entrance, the collector, what happens
without it."""

import gc
import sys
import threading
import time
import tracemalloc
import weakref

import pytest
import torch
from dynfix.runtime.guards import guard_native
from dynfix.runtime.guards.guard import (
    Arg,
    Attr,
    Cell,
    ClassAttr,
    DictKey,
    Equals,
    Guard,
    GuardSet,
    HasKey,
    InstDict,
    Is,
    Item,
    Keys,
    Kwarg,
    Length,
    Missing,
    Obj,
    Tensor,
    TensorMeta,
    TypeIs,
    TypeOf,
)


class Holder:
    def __init__(self):
        self.number, self.text, self.table, self.row = (
            10**20,
            "some text",
            {"k": 1.5, (1,): 2},
            [object(), (1, 2)],
        )

    def method(self):
        return 1


def closed_over(variable):
    return lambda: variable


def everything(engine):
    """Guards of every kind, and a call that they match."""
    holder, net, x = Holder(), torch.nn.Sequential(torch.nn.Linear(3, 3)), torch.zeros(2, 3)
    function = closed_over(holder.row[0])
    h, n = Obj(holder, "h"), Item(Obj(net, "net"), 0)
    guards = [
        Guard(Arg(0), Tensor(TensorMeta.of(x))),
        Guard(Kwarg("flag"), Equals(True)),
        Guard(h, TypeIs(Holder)),
        Guard(h, Missing("method")),
        Guard(h, ClassAttr("method", Holder.__dict__["method"])),
        Guard(Attr(h, "number"), Equals(10**20)),
        Guard(Attr(h, "text"), Equals("some text")),
        Guard(Attr(h, "table"), Keys(("k", (1,)))),
        Guard(Attr(h, "table"), HasKey("k", True)),
        Guard(Attr(h, "table"), HasKey("other", False)),
        Guard(Item(Attr(h, "table"), "k"), Equals(1.5)),
        Guard(Item(Attr(h, "row"), 1), Equals((1, 2))),
        Guard(Attr(h, "row"), Length(2)),
        Guard(Item(InstDict(h), "row"), Is(holder.row)),
        Guard(DictKey(Attr(h, "table"), 1), Equals((1,))),
        Guard(Cell(Obj(function, "f"), 0), Is(holder.row[0])),
        Guard(TypeOf(h), Is(Holder)),
        Guard(Attr(n, "weight"), Tensor(TensorMeta.of(net[0].weight))),
        Guard(Attr(n, "training"), Equals(True)),
    ]
    inputs = [
        Arg(0),
        Attr(n, "weight"),
        Attr(n, "bias"),
        Attr(h, "number"),
        Item(Attr(h, "row"), 0),
    ]
    made = engine(guards, inputs, 1, ("flag",), distinct=range(5), disjoint=[0])
    return made, holder, net, (x,), {"flag": True}


def counts(holder, net, args):
    found = [
        holder,
        holder.text,
        holder.table,
        holder.row,
        *holder.row,
        net,
        net[0],
        *args,
        *net.parameters(),
    ]
    return [sys.getrefcount(value) for value in found] + [
        sys.getrefcount(None),
        sys.getrefcount(Holder),
    ]


def near(before, after):
    """Equal counts, against thousands of calls: None's wavers by what other threads do."""
    return all(abs(a - b) < 1000 for a, b in zip(before, after, strict=True))


def test_no_reference_is_leaked_or_lost(engine):
    guards, holder, net, args, kwargs = everything(engine)
    assert guards.match(args, kwargs) is not None
    changes = [
        lambda: None,
        lambda: setattr(holder, "text", "other text"),
        lambda: holder.row.append(3),
        lambda: setattr(net[0], "weight", None),
        lambda: delattr(holder, "number"),
    ]
    for change in changes:
        change()
        guards.match(args, kwargs)
        before = counts(holder, net, args)
        for _ in range(3000):
            guards.match(args, kwargs)
        assert near(before, counts(holder, net, args))


def test_memory_stays_flat(engine):
    guards, holder, _, args, kwargs = everything(engine)

    def turn(n):
        for _ in range(n):
            guards.match(args, kwargs)
            holder.text = "other"
            guards.match(args, kwargs)
            holder.text = "some text"
            guards.match(args, {"flag": 1})

    turn(100)
    gc.collect()
    tracemalloc.start()
    try:
        turn(10)
        before = tracemalloc.get_traced_memory()[0]
        turn(700 if engine.args[0] is None else 10_000)  # tracing makes Python ten times slower
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()


def test_the_collector_frees_a_cycle_through_the_guards(engine):
    holder = Holder()
    holder.guards = engine(
        [Guard(Attr(Obj(holder, "h"), "number"), Equals(10**20))], [Obj(holder, "h")]
    )
    assert holder.guards.match((), {}) == [holder]
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None


def test_threads_may_match_at_once(engine):
    guards, holder, _, args, kwargs = everything(engine)
    wrong, stop = [], threading.Event()

    def call():
        while not stop.is_set():
            found = guards.match(args, kwargs)
            if found is None or found[0] is not args[0] or found[3] is not holder.number:
                wrong.append(found)

    def shake():
        while not stop.is_set():
            holder.unread = object()
            holder.row = holder.__dict__["row"]
            time.sleep(0.001)

    threads = [threading.Thread(target=call) for _ in range(3)] + [threading.Thread(target=shake)]
    for thread in threads:
        thread.start()
    stop.wait(0.6)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_each_thread_has_its_own_state(engine):
    guards, results = engine([], [], 0), []

    def other():
        results.append(guards.match((), {}))
        with torch.no_grad():
            results.append(guards.match((), {}))

    thread = threading.Thread(target=other)
    with torch.no_grad():
        assert guards.match((), {}) is None
        thread.start()
        thread.join()
    assert results == [[], None] and guards.match((), {}) == []


def test_a_property_that_matches_again_and_one_that_drops_the_guards(engine):
    class Odd:
        depth = 0

        @property
        def x(self):
            self.depth += 1
            if self.depth < 5:
                assert box[0].match((), {}) == [7]
            elif self.depth == 5:
                box.clear()
                gc.collect()
            return 7

    odd = Odd()
    box = [engine([Guard(Attr(Obj(odd, "o"), "x"), Equals(7))], [Attr(Obj(odd, "o"), "x")])]
    assert box[0].match((), {}) == [7]
    assert not box


def test_a_property_that_removes_what_was_read_before(engine):
    """Values that were fetched stay alive until the end of the match."""

    class Odd:
        def __init__(self):
            self.table = {"first": [object()]}

        @property
        def evil(self):
            self.table.clear()
            gc.collect()
            return 1

    odd = Odd()
    first = Item(Attr(Obj(odd, "o"), "table"), "first")
    guards = engine(
        [Guard(first, Length(1)), Guard(Attr(Obj(odd, "o"), "evil"), Equals(1))],
        [first, Item(first, 0)],
    )
    found, item = guards.match(
        (), {}
    )  # item 0 is read after the table was cleared, from the list that was fetched
    assert found[0] is item
    odd.table["first"] = [5]
    guards = engine(
        [
            Guard(first, Length(1)),
            Guard(Item(first, 0), Equals(5)),
            Guard(Attr(Obj(odd, "o"), "evil"), Equals(1)),
        ],
        [first],
    )
    assert guards.match((), {}) == [[5]]


def test_arguments_of_the_wrong_kind_are_an_error():
    native = guard_native.wait()
    if native is None:
        pytest.skip("no native guards here")
    match = guard_native.lower(native, GuardSet([], [], 0).plan)
    for call in (([], {}), ((), []), ((),), ((), None)):
        with pytest.raises(TypeError):
            match(*call)


def test_malformed_plans_are_refused():
    native = guard_native.wait()
    if native is None:
        pytest.skip("no native guards here")
    state = GuardSet([], [], 0).plan.state
    ok = (2, -1, 5, -1, "", None, ())
    for steps, inputs in (
        (((3, 0, "x", -1, "", None, ()),), ()),
        ((ok, (3, 1, "x", -1, "", None, ())), ()),
        ((ok,), (1,)),
        (((0, -1, 0, 0, "", None, ()),), ()),
        ((ok[:3],), ()),
        ((5,), ()),
    ):
        with pytest.raises(ValueError):
            native.Guards(None, state, 0, (), steps, inputs, (), (), ())


def test_dict_versions_are_not_fooled(engine):
    """Changes that leave a dict looking as it was, between two matches, through every way of
    changing it."""

    class Plain:
        pass

    owner = Plain()
    owner.table, owner.x = {"a": 1, "b": [1]}, 1
    o = Obj(owner, "o")
    guards = engine(
        [
            Guard(Attr(o, "table"), Keys(("a", "b"))),
            Guard(Item(Attr(o, "table"), "a"), Equals(1)),
            Guard(Item(Item(Attr(o, "table"), "b"), 0), Equals(1)),
            Guard(Attr(o, "x"), Equals(1)),
            Guard(Item(InstDict(o), "x"), Equals(1)),
        ],
        [Item(Attr(o, "table"), "b")],
    )

    def moved_to_the_end():
        owner.table["a"] = owner.table.pop("a")

    def put_back_in_order():
        owner.table = dict(sorted(owner.table.items()))

    def replaced_by_a_copy_that_differs():
        owner.table = {**owner.table, "a": True}

    steps = [
        (lambda: owner.table.update(a=2), False),
        (lambda: owner.table.update(a=1), True),
        (lambda: owner.table["b"].__setitem__(0, 2), False),
        (lambda: owner.table["b"].__setitem__(0, 1), True),
        (moved_to_the_end, False),
        (put_back_in_order, True),
        (replaced_by_a_copy_that_differs, False),
        (lambda: owner.table.update(a=1), True),
        (lambda: owner.__dict__.update(x=1.0), False),
        (lambda: owner.__dict__.update(x=1), True),
        (lambda: delattr(owner, "x"), False),
        (lambda: setattr(owner, "x", 1), True),
        (lambda: setattr(owner, "__dict__", {**vars(owner), "x": 5}), False),
        (lambda: setattr(owner, "__dict__", {**vars(owner), "x": 1}), True),
        (lambda: owner.table.clear(), False),
        (lambda: owner.table.update(a=1, b=[1]), True),
    ]
    assert guards.holds()
    for _ in range(80):  # Python specialises hot stores
        for change, expected in steps:
            change()
            assert guards.holds() == expected
            found = guards.match((), {})
            assert (found == [[1]] and found[0] is owner.table["b"]) if expected else found is None


def test_hot_stores_of_one_site(engine):
    """The store that the interpreter specialised is the one that must be noticed."""

    class Plain:
        def __init__(self):
            self.n = 0

        def set(self, n):
            self.n = n

    for make_dict in (False, True):
        owner = Plain()
        if make_dict:
            vars(owner)
        guards = engine([Guard(Attr(Obj(owner, "o"), "n"), Equals(0))])
        for turn in range(3000):
            owner.set(turn % 2)
            assert (guards.match((), {}) is None) == (turn % 2 == 1)


def test_class_changes_after_many_matches(engine):
    class Base:
        pass

    class Plain(Base):
        pass

    owner = Plain()
    owner.n = 0
    guards = engine([Guard(Attr(Obj(owner, "o"), "n"), Equals(0))])
    for _ in range(3):
        for _ in range(50):
            assert guards.holds()
        Base.n = property(lambda self: 5)
        assert not guards.holds()
        del Base.n
        assert guards.holds()
        Plain.__getattribute__ = lambda self, name: 7
        assert not guards.holds()
        del Plain.__getattribute__
        assert guards.holds()
    Plain.n = 3  # a class attribute that is no data descriptor: the instance's own comes first
    assert guards.holds()
    del owner.n
    assert not guards.holds()
    Plain.__getattr__ = lambda self, name: 0
    del Plain.n
    assert guards.holds()


def test_versions_switched_off():
    """Without dict versions (Python 3.13, or a failed start-up test) values are compared."""
    native = guard_native.wait()
    if native is None:
        pytest.skip("no native guards here")
    assert guard_native._counts_stores(native) == (sys.version_info < (3, 13))
    table = {"a": 1}
    guards = guard_native.lower(
        native, GuardSet([Guard(Item(Obj(table, "t"), "a"), Equals(1))], [], 0).plan
    )
    native.use_versions(False)
    try:
        assert native.dict_version(table) == 0
        assert guards((), {}) == []
        table["a"] = 2
        assert guards((), {}) is None
        assert not guard_native._counts_stores(native)
    finally:
        native.use_versions(sys.version_info < (3, 13))


def test_loaded_in_the_calling_thread_it_starts_none():
    """As a worker does it, which ends with the process."""
    engine = guard_native._Engine()
    engine.load_here()
    assert engine.thread is threading.current_thread()
    assert (engine.native is None) == (engine.failed is not None)
    assert engine.wait() is engine.native
