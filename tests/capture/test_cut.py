"""What cannot be recorded cuts a function: the parts around it are captured, it runs as it is, and
everything stays as eager has it: values, gradients, effects and their order, exceptions."""

import functools
import linecache
import types
import warnings

import dynfix
import pytest
import torch
from counting_graphs import Counting, outside
from cut_programs import (
    PROGRAMS,
    STEPS,
    augmented,
    early_return_on_data,
    in_the_middle,
    modes,
    sets,
    taken,
    unknown,
    writes_the_argument,
    written,
)
from dynfix.rewriter.graph_breaks import split_function
from dynfix.runtime import diagnostics
from helpers import Case, X, Y, same, tensor


@pytest.mark.covering
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_program(program, grad):
    steps = [tuple(t.clone().requires_grad_(grad) for t in step) for step in STEPS]
    if program is writes_the_argument:
        steps = STEPS
    same(lambda: Case(fn=program, watch=taken), *steps)


@pytest.fixture(autouse=True)
def nothing_taken_before():
    taken()


class Layer(torch.nn.Module):
    def __init__(self, breaks=False):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.breaks, self.calls = breaks, 0

    def forward(self, x):
        self.calls += 1
        y = self.linear(x).relu()
        if self.breaks:
            unknown(y)
        return y * 2 + x


class Net(torch.nn.Module):
    def __init__(self, at=2):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(Layer(i == at) for i in range(5))
        self.last = None

    def forward(self, x, flag=False):
        x = x * 2
        for layer in self.layers:
            x = layer(x)
        self.last = x.detach()
        return super().__getattr__("layers")[0](x) if flag else x.sum()


@pytest.mark.covering
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("flag", [False, True])
def test_a_layer_that_breaks(backend, flag):
    tolerance = None if backend == "eager" else (1e-5, 1e-6)
    steps = [(tensor(1, 2, 3, grad=True), flag), (tensor(3, -2, 1, grad=True), flag)] * 4
    same(Net, *steps, backend=backend, tolerance=tolerance)


def test_views_of_a_dict_of_modules_are_no_break_of_their_own():
    class Dict(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.ModuleDict({"a": Layer(), "b": Layer()})

        def forward(self, x):
            y = x
            for name, part in self.parts.items():
                y = part(y) + len(name)
                unknown(y)
            return y

    diagnostics.reset()
    net = Dict()
    compiled = dynfix.compile(net, backend="eager")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(4):
            torch.testing.assert_close(compiled(X * step), net(X * step))
    assert not [w for w in told if "ModuleDict" in str(w.message)], told


def test_a_function_on_the_first_line_of_its_file(tmp_path):
    text = "def f(x):\n    y = x.exp() * 2\n    unknown(y)\n    return y.sin() + 1\n"
    (tmp_path / "first.py").write_text(text)
    space = {"unknown": unknown}
    exec(compile(text, str(tmp_path / "first.py"), "exec"), space)
    counting = Counting()
    compiled = dynfix.compile(space["f"], backend=counting)
    for _ in range(5):
        compiled(X)
    assert set(outside(lambda: compiled(X))[1]) == {"aten::sum"}


def test_nothing_but_the_unknown_call_is_outside():
    counting = Counting()
    compiled = dynfix.compile(Net(), backend=counting)
    with torch.no_grad():
        for _ in range(5):
            compiled(X)
        built = counting.built
        _, names = outside(lambda: compiled(X))
    assert not [name for name in names if name != "aten::sum"]
    assert counting.built == built


def test_both_sides_of_an_unknown_call_are_captured():
    counting = Counting()
    compiled = dynfix.compile(in_the_middle, backend=counting)
    for _ in range(4):
        compiled(X)
    before = counting.calls
    _, names = outside(lambda: compiled(X))
    assert counting.calls == before + 2
    assert set(names) <= {"aten::sum"}, names


def test_an_unknown_result_that_changes():
    def make():
        box = types.SimpleNamespace(n=0)
        exec("def unseen():\n    box.n += 1\n    return box.n", names := {"box": box})
        unseen = names["unseen"]

        def program(x):
            y = x * 2
            n = unseen()
            z = y * n
            if n % 2:
                z = z - 1
            return z, n

        return Case(fn=program, watch=lambda: box.n)

    same(make, *STEPS)


def test_an_unknown_call_changes_what_was_read():
    """State that the callee changes is read anew after it."""

    def make():
        box = types.SimpleNamespace(scale=2.0, items=[1])

        def program(x):
            y = x * box.scale + len(box.items)
            sets(box, "scale", box.scale + 1)
            sets(box, "items", [*box.items, 1])
            return y * box.scale + len(box.items)

        return Case(fn=program, watch=lambda: (box.scale, list(box.items)))

    same(make, *STEPS)


def test_gradients_pass_an_unknown_call():
    def make():
        torch.manual_seed(1)
        net = Net(at=1)
        return net

    same(make, *[(tensor(1, 2, 3, grad=True),), (tensor(3, 2, 1, grad=True),)] * 3)


def test_a_disabled_function_is_called_between_two_graphs():
    @dynfix.disable
    def plain(v):
        return v.sort().values

    def program(x):
        y = x * 2
        z = plain(y)
        return z + y

    counting = Counting()
    compiled = dynfix.compile(program, backend=counting)
    for _ in range(4):
        compiled(X)
    before = counting.calls
    got, names = outside(lambda: compiled(Y))
    assert torch.equal(got, program(Y))
    assert "aten::sort" in names and counting.calls == before + 2


def test_lines_of_tracebacks_are_the_users():
    def program(x):
        y = x * 2
        unknown(y)
        z = y + 1
        return z.view(7)

    compiled = dynfix.compile(program, backend="eager")
    for _ in range(4):
        with pytest.raises(RuntimeError) as raised:
            compiled(X)
    entry = [e for e in raised.traceback if e.frame.code.name == "program"][-1]
    assert entry.lineno - program.__code__.co_firstlineno == 3


def test_many_breaks_end():
    """Something in every statement: no endless cutting, and still equal."""

    def program(x):
        a = unknown(x) + 1
        b = unknown(a) * 2
        c = unknown(b) - 3
        d = unknown(c) / 2
        return unknown(d) + a + b + c

    same(lambda: program, *[(X,), (Y,)] * 6)


def late_closure(x):
    def inner():
        return y * 2

    unknown(x)
    y = x.sin()
    z = inner() + y
    unknown(z)
    return inner() + z


def loop_names_again(x):
    for i in range(3):
        x = x + i
    unknown(x)
    for i in range(2):
        w = x * i
        x = x + w
    unknown(x)
    for i, w in enumerate([1, 2]):
        x = x * w + i
    return x


def carried(x):
    last = x * 0
    for i in range(4):
        y = last + i
        unknown(y)
        z = y * 2
        last = z + x
    return last, z


def autocast(x):
    y = x[None] * 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = y.T @ y
        unknown(z)
        w = z @ z
    return w.float() + y


def raising_in_a_part(x):
    y = x * 2
    unknown(y)
    z = y.view(-1)
    print("before")
    return z.view(2, 2) if z[0] > 0 else z.view(3, 1)


@pytest.mark.parametrize(
    "program", [late_closure, loop_names_again, carried, autocast, raising_in_a_part]
)
@pytest.mark.parametrize("grad", [False, True])
def test_more(program, grad):
    steps = [tuple(t.clone().requires_grad_(grad) for t in step) for step in STEPS]
    same(lambda: Case(fn=program, watch=taken), *steps)


@pytest.mark.parametrize("program", [written, augmented, modes, early_return_on_data, carried])
def test_native(program):
    steps = [tuple(t.clone().requires_grad_() for t in step) for step in STEPS]
    make = functools.partial(Case, fn=program, watch=taken)
    same(make, *steps, backend="native", tolerance=(1e-5, 1e-6))


def test_a_deep_row_of_breaks_ends(monkeypatch):
    """Parts in parts have an end: from there on every statement runs as it is."""
    monkeypatch.setattr(split_function, "DEEPEST", 5)
    lines = "".join(f"    x = unknown(x) + {i}\n" for i in range(12))
    text = f"def program(x):\n{lines}    return x\n"
    linecache.cache["<rows>"] = (len(text), None, text.splitlines(keepends=True), "<rows>")
    exec(compile(text, "<rows>", "exec"), names := {"unknown": unknown})
    compiled = dynfix.compile(names["program"], backend="eager")
    for _ in range(12):
        assert torch.equal(compiled(X), names["program"](X))
    assert not compiled._dynfix_entry._dispatcher.entries


def test_a_cut_beside_names_that_only_sound_like_looking_around():
    """`torch.stack`, `net.eval()`, a variable `stack` and `vars(obj)` read no frame."""
    net = torch.nn.Dropout(0.5)

    def program(x):
        net.eval()
        stack = [x * 2, net(x)]
        unknown(x)
        y = torch.stack(stack).sin()
        return y, len(vars(net)), "training" in dir(net)

    counting = Counting()
    compiled = dynfix.compile(program, backend=counting)
    for _ in range(4):
        compiled(X)
    before = counting.calls
    _, names = outside(lambda: compiled(X))
    assert counting.calls == before + 2
    assert set(names) <= {"aten::sum"}, names
    same(lambda: program, *STEPS)
