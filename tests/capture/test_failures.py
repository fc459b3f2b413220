"""A failure planted at each stage, at the first, second and third call: results and effects stay as
eager has them, with one warning."""

import datetime
import inspect
import random
import sys
import time
import warnings

import dynfix
import pytest
import torch
from dynfix.lowering import joint
from dynfix.rewriter.capture import provenance, recording, segments, stops, trace
from dynfix.rewriter.frontend import compiled_function
from dynfix.rewriter.instrument import emit
from dynfix.rewriter.tracing_ops import attribute_ops, binaries, items, texts
from dynfix.rewriter.tracing_ops.calls import call_ops
from dynfix.runtime import backends
from dynfix.runtime.errors import LostResult
from dynfix.runtime.programs import entry, recipes
from helpers import Case, Fresh, X, Y, recordings, same, tensor


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lin = torch.nn.Linear(3, 3)
        self.register_buffer("total", torch.zeros(3))
        self.log, self.n, self.it = [], 0, iter(range(100))

    def forward(self, x, it=None):
        print("start", len(self.log))
        self.log.append(x.shape[0])
        first = next(it) if it is not None else 0
        y = self.lin(x) + first
        self.total.add_(y.detach())
        x.add_(1)
        self.last = {"y": y}
        print("end", f"{self.log}"[:9])
        return y.relu() + torch.rand(3)


STAGES = [
    (emit, "rewrite"),
    (trace.Recorder, "operate"),
    (trace.Recorder, "_record"),
    (trace.Recorder, "value"),
    (trace.Recorder, "_bind_tensor"),
    (trace.Recorder, "origin"),
    (trace.Recorder, "place"),
    (provenance.Provenance, "loaded"),
    (provenance.Provenance, "touch"),
    (provenance.Provenance, "content"),
    (attribute_ops, "load"),
    (attribute_ops, "store"),
    (items, "load"),
    (binaries, "binary"),
    (texts, "show"),
    (call_ops, "_python"),
    (compiled_function, "finish"),
    (recording, "_assemble"),
    (recording, "close"),
    (recipes.RecipeMaker, "recipe"),
    (segments.SegmentBuilder, "finish"),
    (segments.SegmentBuilder, "call"),
    (compiled_function, "compile_segment"),
    (recording, "GuardSet"),
    (compiled_function, "CacheEntry"),
    (backends, "lookup"),
    (entry.CacheEntry, "run"),
    (entry.CacheEntry, "_step"),
    (entry.CacheEntry, "_agrees"),
]


class Planted(Exception):
    pass


def plant(monkeypatch, owner, name, at):
    """`owner.name` raises whenever it is used while `state["call"] == at`, after it did so `skip`
    times."""
    original, state = getattr(owner, name), {"call": 0, "uses": 0}

    def failing(*args, **kwargs):
        if state["call"] == at:
            state["uses"] += 1
            raise Planted(f"{name} failed")
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, failing)
    return state


@pytest.mark.covering
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize(
    "stage",
    STAGES,
    ids=lambda stage: f"{getattr(stage[0], '__name__', '').rpartition('.')[2]}.{stage[1]}",
)
def test_planted(monkeypatch, stage, at):
    state = plant(monkeypatch, *stage, at)

    def step(_):
        state["call"] += 0.5

    shapes = [X, Y, tensor(1, 2, 4)]
    steps = [part for x in shapes for part in (step, (x, Fresh(lambda: iter([5, 6]))))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(Net, *steps, step, (X,), step, (Y,))


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("backend", ["build", "call"])
def test_failing_backend(backend, at):
    calls_ = {"n": 0, "built": 0}

    def failing(gm, inputs):
        calls_["built"] += 1
        if backend == "build":
            raise Planted("no build")

        def run(*args):
            calls_["n"] += 1
            if calls_["n"] == at and backend == "call":
                raise Planted("no run")
            return gm(*args)

        return run

    def make():
        net = Net()
        return Case(fn=net, watch=lambda: vars(net)["log"])

    same(make, (X,), (X,), (Y,), (X,), (X,), backend=failing)


def test_failing_native_program():
    original = joint.compile_graph

    def compile_graph(gm, inputs, options):
        program = original(gm, inputs, options)
        n = {"n": 0}

        def run(*args):
            n["n"] += 1
            if n["n"] in (1, 3):
                raise Planted("program")
            return program(*args)

        return run

    backends.register_builtin("native", compile_graph)
    try:
        same(Net, (X,), (X,), (Y,), (X,), (X,), backend="native", tolerance=(1e-5, 1e-6))
    finally:
        backends.register_builtin("native", original)


def test_one_warning():
    def broken(*args):
        raise Planted("no build")

    fn = dynfix.compile(lambda x: x + 1, backend=broken)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [fn(X) for _ in range(4)]
    assert all(torch.equal(result, X + 1) for result in results)
    texts_ = [str(w.message) for w in caught]
    assert len(texts_) == 1 and "no build" in texts_[0] and "<lambda>" in texts_[0]


def test_fullgraph_names_everything():
    def f(x):
        y = x * 2
        if y.sum() > 0:  # the line
            return y
        return y.sum()

    fn = dynfix.compile(f, backend="eager", fullgraph=True)
    with pytest.raises(
        dynfix.GraphBreakError if hasattr(dynfix, "GraphBreakError") else Exception
    ) as caught:
        fn(X)
    text = str(caught.value)
    line = f.__code__.co_firstlineno + 2
    assert (
        "test_failures.py" in text and f":{line}" in text and "if y.sum() > 0:  # the line" in text
    )
    assert "DYN201" in text and "torch.where" in text


@pytest.mark.parametrize(
    "body",
    [
        lambda x: x * __import__("random").random(),
        lambda x: x * (2 if x.nonzero().shape[0] > 1 else 1),
        lambda x: x * float(x.numpy().flat[0]),
        lambda x: (dynfix.graph_break(), x)[1],
        lambda x: x + next(_outer),
    ],
)
def test_fullgraph_refuses(body):
    fn = dynfix.compile(body, backend="eager", fullgraph=True)
    for _ in range(2):
        with pytest.raises(Exception, match="fullgraph=True") as caught:
            fn(X)
        assert "test_failures.py" in str(caught.value)
    assert torch.equal(torch.get_default_dtype() and X + 1, X + 1)


_outer = iter(range(10**6))


def test_fullgraph_accepts_plain_models():
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    fn = dynfix.compile(net, backend="eager", fullgraph=True)
    for _ in range(3):
        assert torch.equal(fn(X), net(X))


def test_fullgraph_error_inside_users_try():
    """The user's own `except Exception` must not swallow the error for good."""

    def f(x):
        try:
            if x.sum() > 0:
                return x + 1
        except Exception:
            return "swallowed"
        return x

    fn = dynfix.compile(f, backend="eager", fullgraph=True)
    for _ in range(2):
        with pytest.raises(Exception, match="fullgraph=True"):
            fn(X)


def test_fullgraph_leaves_the_error_of_an_operator_as_it_is():
    """One that the user's code catches is a graph break."""

    def f(x):
        return x.reshape(3, 1).mm(x.reshape(3, 1))

    def caught(x):
        try:
            return f(x)
        except RuntimeError:
            return x

    for body, error, text in (
        (f, RuntimeError, "cannot be multiplied"),
        (caught, dynfix.GraphBreakError, "fullgraph=True"),
    ):
        fn = dynfix.compile(body, backend="eager", fullgraph=True)
        for _ in range(2):
            with pytest.raises(error, match=text):
                fn(X)


class WritesThenPrints(torch.nn.Module):
    def forward(self, x, y):
        x[-1].zero_()
        print(f"{y.sum().item():.2f}")
        return x, y


def test_messages_about_parts_of_a_cut_module_name_the_users_file(recwarn, capsys):
    compiled = dynfix.compile(WritesThenPrints(), backend="eager")
    for _ in range(3):
        x = torch.ones(3, 4)
        compiled(x, x.view(3, 4))
    shown = [str(warning.message) for warning in recwarn if "DYN" in str(warning.message)]
    assert shown and all("module_class" not in text and "test_failures" in text for text in shown)


KEPT, BY_NAME = [], {}


def keep_after_a_stop(x, step):
    y = x * step
    if step > 2:
        _ = (  # one statement, whose first part is not captured
            datetime.datetime.now(),
            KEPT.append(step),
            KEPT.append((step, [step])),
            BY_NAME.update(step=step),
        )
    return y + 1


def test_numbers_are_plain_after_a_recording_has_ended():
    compiled = dynfix.compile(keep_after_a_stop, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(1, 7):
            compiled(tensor(), step)
    numbers = [*KEPT[::2], *(n for n, _ in KEPT[1::2]), *(n[0] for _, n in KEPT[1::2])]
    assert numbers == [3, 4, 5, 6] * 3 and BY_NAME == {"step": 6}
    assert {type(number) for number in (*numbers, *BY_NAME.values())} == {int}


def test_deep_recursion_is_no_error():
    """Rewritten functions have several frames of the interpreter for each of the user's."""

    def deep(n, x):
        return x if n == 0 else deep(n - 1, x + 1)

    def endless(x):
        return endless(x + 1)

    limit = sys.getrecursionlimit()
    fn = dynfix.compile(lambda x, n: deep(n, x))
    levels = limit - len(inspect.stack()) - 60
    for depth in (20, levels, levels, levels, 20):
        assert fn(torch.zeros(1), depth).item() == depth
    stopped = dynfix.compile(endless)
    for _ in range(3):
        with pytest.raises(RecursionError):
            stopped(torch.zeros(1))
    assert sys.getrecursionlimit() == limit


def test_what_tracing_refuses_is_not_warned_of(recwarn):
    table = torch.nn.Embedding(9, 4, sparse=True, padding_idx=0)
    fn = dynfix.compile(table)
    for _ in range(3):
        fn(torch.tensor([1, 2])).sum().backward()
    assert table.weight.grad.is_sparse
    assert [w for w in recwarn if "Error detected" in str(w.message)] == []


def _asked_to_break(y):
    dynfix.graph_break()
    return y.relu()


def _timed(y):
    started = time.perf_counter()
    return y.relu() if started else y


def _drawn(y):
    return y * random.uniform(0, y.sum().item())


def _autocast(body, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return body(x @ x)


def _mapped(body, x):
    return torch.vmap(lambda row: body(row.sin()))(x)


def _differentiated(body, x):
    return torch.func.grad(lambda y: body(y * y).sum())(x)


@pytest.mark.parametrize(
    "around, body",
    [
        (_autocast, _asked_to_break),
        (_autocast, _timed),
        (_autocast, _drawn),
        (_mapped, _asked_to_break),
        (_mapped, _timed),
        (_differentiated, _asked_to_break),
    ],
)
def test_a_graph_cannot_be_cut_here(around, body):
    """Within autocast and transforms; nothing of it is seen by the user, nothing drawn twice."""
    compiled = dynfix.compile(lambda x: around(body, x), backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(4):
            random.seed(seed)
            wanted, following = around(body, X + seed), random.random()
            random.seed(seed)
            assert torch.equal(compiled(X + seed), wanted) and random.random() == following


@pytest.mark.parametrize("behind", [True, False])
def test_a_call_that_has_written_is_not_made_again(behind, monkeypatch):
    served, failing = entry.CacheEntry._only_inputs, []

    def planted(self):
        inner = self._program

        def call(*inputs):
            made = inner(*inputs) if behind or not failing else None
            if failing:
                raise RuntimeError("planted")
            return made

        self._program = call
        return served(self)

    monkeypatch.setattr(entry.CacheEntry, "_only_inputs", planted)

    def step(x):
        x.add_(1)
        return x * 2

    compiled, x = dynfix.compile(step), torch.zeros(3)
    for _ in range(3):
        compiled(x)
    failing.append(True)
    if behind:
        with pytest.warns(UserWarning, match="planted"), pytest.raises(LostResult, match="planted"):
            compiled(x)
    else:
        torch.testing.assert_close(compiled(x), torch.full((3,), 8.0))
    torch.testing.assert_close(x, torch.full((3,), 4.0))
    torch.testing.assert_close(compiled(x), torch.full((3,), 10.0))


def test_a_program_that_an_operator_calls_is_not_the_one_that_writes():
    inner = dynfix.compile(lambda x: x + 1)

    @torch.library.custom_op("dynfix_tests::calls_another", mutates_args=())
    def outer(x: torch.Tensor) -> torch.Tensor:
        made = inner(x.clone())
        if x.sum() > 100:
            raise ValueError("the user's")
        return made.clone()

    outer.register_fake(torch.empty_like)

    def step(x, count):
        made = outer(x)
        count.add_(1)
        return made * 2

    compiled, count = dynfix.compile(step), torch.zeros(3)
    for _ in range(4):
        compiled(torch.ones(3), count)
    with pytest.raises(ValueError, match="the user's"):
        compiled(torch.full((3,), 99.0), count)
    torch.testing.assert_close(count, torch.full((3,), 4.0))


def test_a_graph_that_gets_too_long_is_left_to_eager(monkeypatch):
    monkeypatch.setattr(stops, "MOST_OPERATORS", 50)

    def turns(x):
        for _ in range(60):
            x = x + x.sin()
        return x

    fn = same(lambda: turns, *[(tensor(1, 2, 3, grad=True),)] * 4)
    assert not any(recording.segments for recording in recordings(fn))
