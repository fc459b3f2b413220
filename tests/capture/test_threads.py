"""Threads, nesting, limits and memory."""

import gc
import random
import threading
import tracemalloc
import warnings
import weakref

import dynfix
import pytest
import torch
from counting_graphs import Counting, outside
from drawing import Drawing
from helpers import Case, X, Y, recordings, same, tensor


def test_threads_call_at_once():
    log = []

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = torch.nn.Linear(3, 3)

        def forward(self, x, k):
            log.append(k)
            return self.lin(x) * k

    net = Net()
    fn = dynfix.compile(net, backend="eager")
    wrong, errors = [], []

    def work(seed):
        try:
            for i in range(30):
                k, x = (seed + i) % 3, X + seed
                if not torch.equal(fn(x, k), net.lin(x) * k):
                    wrong.append((seed, i))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert not wrong and not errors
    assert len(log) == 4 * 30


def test_threads_with_breaks_and_effects():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.log, self.lock = [], threading.Lock()

        def forward(self, x):
            y = x * 2
            if y.sum() > 0:
                y = y + 1
            self.log.append(y.sum().item())
            return y

    net = Net()
    fn = dynfix.compile(net, backend="eager")

    def work():
        for i in range(20):
            fn(X if i % 2 else Y)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert sorted(net.log) == sorted(([(X * 2 + 1).sum().item()] + [(Y * 2 + 1).sum().item()]) * 40)


def test_user_starts_threads_inside():
    def make():
        def f(x):
            out = []
            t = threading.Thread(target=lambda: out.append(x * 2))
            t.start()
            t.join()
            return out[0] + 1

        return f

    same(make, (X,), (Y,), (X,))


def test_compiled_calls_compiled():
    def make():
        k = [1.0]
        inner = dynfix.compile(lambda x: x * k[0] + 1, backend="eager")

        @dynfix.compile(backend="eager")
        def middle(x):
            print("middle")
            return inner(x) + inner(x * 2)

        return Case(fn=lambda x: middle(x) + inner(x), k=k)

    def change(case):
        case.k[0] = 5.0

    fn = same(make, (X,), (Y,), change, (X,), (Y,))
    assert all(len(recording.segments) == 1 for recording in recordings(fn))


def test_compiled_module_inside_a_model():
    def make():
        torch.manual_seed(0)
        part = dynfix.compile(torch.nn.Linear(3, 3), backend="eager")
        return torch.nn.Sequential(part, torch.nn.ReLU(), part)

    same(make, (X,), (Y,), (X,))


def test_compiled_called_back_by_c():
    def make():
        inner = dynfix.compile(lambda x: x.shape[0], backend="eager")
        return lambda x: (sorted([x, x[:1]], key=inner), list(map(inner, [x])))

    same(make, (X,), (Y,), (X,))


def test_recursive_compiled_function():
    @dynfix.compile(backend="eager")
    def f(x, n):
        return x if n == 0 else f(x + n, n - 1)

    for n in (3, 2, 3, 5):
        assert torch.equal(f(X, n), X + sum(range(n + 1)))


def test_disable_and_graph_break():
    def make():
        seen = []

        @dynfix.disable
        def hidden(x):
            seen.append(x.sum().item())
            return x * len(seen)

        def f(x):
            y = x + 1
            dynfix.graph_break()
            z = hidden(y) * 2
            print("done")
            return z

        return Case(fn=f, watch=lambda: seen)

    same(make, (X,), (Y,), (X,), (X,))


def test_recompile_limit():
    counting = Counting()
    seen = []

    def f(x, k):
        seen.append(k)
        return x * len(k)

    fn = dynfix.compile(f, backend=counting, dynamic=False, options=None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(30):
            assert torch.equal(fn(X, "a" * n), X * n)
    assert len(seen) == 30 and counting.built <= 9
    assert len([w for w in caught if "recompile_limit" in str(w.message)]) == 1
    for _ in range(3):
        assert torch.equal(fn(X, "aa"), X * 2)


def test_recompile_limit_of_ways_through_a_call():
    def f(x):
        for _ in range(3):
            x = x * "abcd".index("abcd"[random.randrange(4)])
        return x

    fn = dynfix.compile(f, backend="eager")
    random.seed(0)
    with pytest.warns(dynfix.DynfixWarning, match=r"another way was taken, by randrange\(\)"):
        for _ in range(40):
            fn(X)


def test_recompile_limit_names_the_int_that_changed():
    def step(h, cache, position):
        cache[:, position] = h
        return cache[:, : position + 1].sum(1), position + 1

    fn = dynfix.compile(step, backend="eager")
    cache, position = torch.zeros(2, 40, 4), 0
    line = step.__code__.co_firstlineno
    with pytest.warns(dynfix.DynfixWarning, match=rf"args\[2\] was 7, is 8 \(.*:{line}\)"):
        for _ in range(16):
            _, position = fn(torch.randn(2, 4), cache, position)


def test_recompile_limit_fullgraph():
    fn = dynfix.compile(lambda x, k: x * len(k), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="recompile_limit"):
        for n in range(30):
            fn(X, "a" * n)


def test_changed_shape_many_times():
    fn = dynfix.compile(lambda x: (x * 2).sum(0) + x.shape[0], backend="eager")
    for n in [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1, 0, 2, 5]:
        x = torch.ones(n, 3)
        assert torch.equal(fn(x), (x * 2).sum(0) + n)
    assert len(recordings(fn)) <= 5


def _grown(fn, rounds):  # a slow leak shows after few rounds
    for i in range(20):
        fn(i)
    gc.collect()
    tracemalloc.start()
    before = len(gc.get_objects()), tracemalloc.get_traced_memory()[0]
    for i in range(rounds):
        fn(i)
    gc.collect()
    after = len(gc.get_objects()), tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return after[0] - before[0], after[1] - before[1]


@pytest.mark.parametrize(
    "kind",
    [
        *("plain", "stops", "raises"),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("outcomes", "counter", "item")),
    ],
)
def test_memory_is_flat(kind):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.n, self.last = torch.nn.Linear(3, 3), 0, 0.0

        def forward(self, x):
            y = self.lin(x)
            if kind == "outcomes" and y.sum() > x[0] * 3:
                y = y + int(x[0].item())
            if kind == "counter":
                self.n += 1
            if kind == "stops":
                y = torch.from_numpy(y.detach().numpy()) + 1
            if kind == "raises" and len(y) == 3:
                raise ValueError("always")
            if kind == "item":
                self.last = y.sum().item()
            return y

    fn = dynfix.compile(Net(), backend="eager")

    def one(i):
        try:
            fn(tensor(i, i % 7, 1))
        except ValueError:
            pass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        objects, size = _grown(one, 60 if kind == "raises" else 200)
    assert objects < 400 and size < 200_000, (objects, size)


def test_nothing_is_kept_alive():
    class Big:
        pass

    def f(x, big):
        big.y = x * 2
        return big.y + 1, x.sum().item()

    fn = dynfix.compile(f, backend="eager")
    for _ in range(3):
        big, x = Big(), tensor(1, 2, 3)
        result, number = fn(x, big)
        alive = [weakref.ref(big), weakref.ref(x), weakref.ref(big.y), weakref.ref(result)]
        del big, x, result
        gc.collect()
        assert [ref() for ref in alive] == [None] * 4
    del number


def test_module_is_freed():
    net = torch.nn.Linear(3, 3)
    fn = dynfix.compile(net, backend="eager")
    fn(X), fn(X)
    ref, weight = weakref.ref(net), weakref.ref(net.weight)
    del net, fn
    gc.collect()
    dynfix.reset()
    gc.collect()
    assert ref() is None and weight() is None


def test_peak_memory_of_the_recorded_call():
    layers = torch.nn.Sequential(
        *[torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()) for _ in range(12)]
    )
    x = torch.ones(1024, 256)

    def peak(fn):
        with (
            torch.no_grad(),
            torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
            ) as profile,
        ):
            fn(x)
        total = highest = 0
        for event in profile.profiler.kineto_results.events():
            if event.name() == "[memory]":
                total += event.nbytes()
                highest = max(highest, total)
        return highest

    eager = peak(layers)
    assert eager > 0
    assert peak(dynfix.compile(layers, backend="eager")) < eager * 1.5


def test_counted_from_outside():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.n = torch.nn.Linear(3, 3), []

        def forward(self, x):
            self.n.append(len(x))
            print("x")
            return self.lin(x).relu() + x.sum()

    counting = Counting()
    fn = dynfix.compile(Net(), backend=counting)
    for _ in range(3):
        fn(X)
    _, names = outside(lambda: fn(X))
    assert (counting.built, names) == (1, [])


def test_what_each_thread_has_of_its_own_is_guarded():
    local = threading.local()
    local.factor = 2.0

    def f(x):
        return x * local.factor if hasattr(local, "factor") else x - 1

    fn = dynfix.compile(f, backend="eager", fullgraph=True)
    seen = [fn(X), fn(X)]
    local.factor = 3.0
    seen += [fn(X), fn(X)]
    other = threading.Thread(target=lambda: seen.append(dynfix.compile(f, backend="eager")(X)))
    other.start(), other.join()
    assert [each.tolist() for each in seen] == [
        each.tolist() for each in (X * 2, X * 2, X * 3, X * 3, X - 1)
    ]


def test_what_a_recorded_call_was_given_is_let_go_with_it():
    class Own:
        pass

    keys = [Own(), Own()]
    table = weakref.WeakKeyDictionary({key: number for number, key in enumerate(keys)})

    def fn(x, given):
        return x * given.scale + len(table) + sum(table.values())

    compiled = dynfix.compile(fn, backend="eager")
    gc.disable()
    try:
        for _ in range(3):
            given = Own()
            given.scale = 2.0
            died = weakref.ref(given)
            assert torch.equal(compiled(torch.ones(2), given), fn(torch.ones(2), given))
            del given
            assert died() is None
        keys.pop()
        given = Own()
        given.scale = 3.0
        assert len(table) == 1
        assert torch.equal(compiled(torch.ones(2), given), torch.full((2,), 4.0))
    finally:
        gc.enable()


def chosen(x):
    if x.sum() > 0:
        x = x * 2
    return x + 1


class Window(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.seen = torch.nn.Linear(3, 3), None

    def forward(self, x):
        if self.seen is None:
            self.seen = x.shape[0]
        return self.lin(x) * self.seen


@pytest.mark.parametrize("make", [lambda: chosen, Window, lambda: torch.nn.Linear(3, 3)])
def test_another_thread_draws_each_number_once(make):
    """A call that draws nothing leaves the generators alone while it is recorded, recorded again
    and compiled."""
    fn = dynfix.compile(make())
    with Drawing() as drawing:
        for x in (X, -X, X + 1):
            y = fn(x.detach().requires_grad_())
            y.sum().backward()
    assert drawing.drew_each_once()
