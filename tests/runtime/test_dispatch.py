"""The dispatcher: order of entries, misses, limits, threads."""

import threading

import pytest
import torch
from dynfix.runtime.guards.guard import Arg, Equals, Guard, GuardSet
from dynfix.runtime.programs.dispatch import MISS, PATIENCE, Dispatcher


class Entry:
    def __init__(self, value, general=False):
        self.value, self.general = value, general
        self.guards = GuardSet([Guard(Arg(0), Equals(value), "m.py:7")], [Arg(0)], 1)

    def run(self, inputs, args, kwargs):
        return ("ran", inputs[0])


def dispatcher(*values, limit=8):
    made = Dispatcher(lambda args, kwargs: ("missed", args[0]), limit)
    for value in values:
        made.add(Entry(value))
    return made


def values(made):
    return [entry.value for entry in made.entries]


def test_hit_and_miss():
    made = dispatcher(1, 2)
    assert made((1,), {}) == ("ran", 1)
    assert made((3,), {}) == ("missed", 3)
    assert made((1, 2), {}) == ("missed", 1)


def test_a_general_entry_is_asked_last():
    made = dispatcher(1, 2, limit=3)
    made.add(Entry(3, general=True))
    assert values(made) == [2, 1, 3]
    assert made((3,), {}) == ("ran", 3) and values(made) == [2, 1, 3]
    assert made((1,), {}) == ("ran", 1) and values(made) == [1, 2, 3]


def test_most_recent_hit_first():
    made = dispatcher(1, 2, 3)
    assert values(made) == [3, 2, 1]
    made((1,), {})
    assert values(made) == [1, 3, 2]
    made((1,), {})
    assert values(made) == [1, 3, 2]


def test_the_limit_drops_what_was_not_hit_for_longest():
    made = dispatcher(1, 2, limit=2)
    made((1,), {})
    made.add(Entry(3))
    assert values(made) == [3, 1]
    with pytest.raises(ValueError):
        dispatcher(limit=0)


def test_adding_twice_moves():
    made = dispatcher(1, 2)
    made.add(made.entries[1])
    assert values(made) == [1, 2]


def test_clear():
    made = dispatcher(1, 2)
    made.clear()
    assert made.entries == () and made((1,), {}) == ("missed", 1)


def test_explain_miss_names_every_entry():
    made = dispatcher(1, 2)
    assert [str(failure) for failure in made.explain_miss((3,), {})] == [
        "args[0] (m.py:7) was 2, is 3",
        "args[0] (m.py:7) was 1, is 3",
    ]
    with torch.no_grad():
        assert "grad mode was True, is False" in str(made.explain_miss((1,), {})[0])
    assert len(made.explain_miss((2,), {})) == 1


def test_what_the_program_and_the_miss_raise_passes():
    made = dispatcher(1)
    made.entries[0].run = lambda *a: 1 / 0
    with pytest.raises(ZeroDivisionError):
        made((1,), {})
    failing = Dispatcher(lambda args, kwargs: {}[args[0]], 1)
    with pytest.raises(KeyError):
        failing((1,), {})


def test_on_miss_may_add_and_call_again():
    def on_miss(args, kwargs):
        made.add(Entry(args[0]))
        return made(args, kwargs)

    made = Dispatcher(on_miss, 2)
    assert made((5,), {}) == ("ran", 5) and values(made) == [5]


def test_a_miss_holds_no_lock():
    """Another thread can add while a miss is being served."""
    inside, added = threading.Event(), threading.Event()

    def on_miss(args, kwargs):
        inside.set()
        assert added.wait(5)
        return "done"

    made = Dispatcher(on_miss, 4)
    results = []
    thread = threading.Thread(target=lambda: results.append(made((1,), {})))
    thread.start()
    assert inside.wait(5)
    made.add(Entry(2))
    assert made((2,), {}) == ("ran", 2)
    added.set()
    thread.join()
    assert results == ["done"]


def test_an_entry_cleared_meanwhile_is_not_put_back():
    made = dispatcher(1, 2)
    first = made.entries[1]
    match = first.guards.match
    first.guards.match = lambda args, kwargs: made.clear() or match(args, kwargs)
    assert made((1,), {}) == ("ran", 1)
    assert made.entries == ()


def test_threads():
    made, wrong = dispatcher(*range(6)), []

    def work(start):
        for i in range(400):
            value = (start + i) % 7
            expected = ("missed", 6) if value == 6 else ("ran", value)
            if made((value,), {}) != expected:
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and sorted(values(made)) == list(range(6))


def test_entries_that_run_in_vain_are_asked_ever_more_rarely():
    asked = []

    class Vain(Entry):
        def run(self, inputs, args, kwargs):
            asked.append(inputs[0])
            return MISS if self.value == 1 else "ran"

    made = Dispatcher(lambda args, kwargs: "missed", 1)
    made.add(Vain(1))
    for _ in range(PATIENCE):
        assert made((1,), {}) == "missed" and made.resting == 0
    made((1,), {})
    assert made.resting == 2
    made((1,), {})
    assert made.resting == 4 and len(asked) == PATIENCE + 2
    made.clear()
    made.add(Vain(2))
    assert made((2,), {}) == "ran" and made.resting == 0
