"""What cannot be recorded cuts a function: the parts around it are captured, it runs as it is, and
everything stays as eager has it: values, gradients, effects and their order, exceptions."""

import contextlib
import functools
import linecache
import types

import dynfix
import pytest
import torch
from dynfix.rewriter.outline import pieces
from helpers import Case, Counting, X, Y, outside, same, tensor

_names = {"torch": torch, "seen": []}
exec(
    """
def unknown(x):
    seen.append(float(x.sum()) if isinstance(x, torch.Tensor) else x)
    return x

def writes(x):
    x.add_(1)

def failing(n):
    if n > 2:
        raise ValueError(f"no more than {n}")
    return n

def sets(obj, name, value):
    setattr(obj, name, value)
""",
    _names,
)  # there is no source of these
unknown, writes, failing, sets = (_names[n] for n in ("unknown", "writes", "failing", "sets"))
STEPS = [(X,), (Y,)] * 4


def in_the_middle(x):
    y = x.sin() * 2
    k = unknown(y)
    z = y.cos() + k
    return z.tanh() * y


def written(x):
    y = x * 2
    view = y[1:]
    writes(y)
    return y + 1, view * 2


def writes_the_argument(x):
    y = x * 3
    writes(x)
    return y + x, x


def in_a_loop(x):
    total = x * 0
    for i in range(4):
        x = x * 2 - i
        if i == 2:
            unknown(x)
        total = total + x.sin()
    return total


def while_loop(x):
    n = 0
    while n < 3:
        x = x.cos() + n
        unknown(n)
        n += 1
    return x, n


def with_break(x):
    for i in range(5):
        x = x + 1
        unknown(i)
        if i == 3:
            break
        if i == 1:
            continue
        x = x * 2
    else:
        x = x - 100
    return x


def early_return(x):
    y = x * 2
    unknown(y)
    z = y + 1
    if z.shape[0] > 2:
        w = z.sin()
        return w * 2
    return z.cos()


def early_return_on_data(x):
    unknown(x)
    y = x + 1
    if y.sum() > 3:
        return y * 2, "more"
    y = y - 1
    return y, "less"


def bare_return(x, log=None):
    unknown(x)
    y = x * 2
    if y.shape[0] == 1:
        return
    z = y + 1
    unknown(z)
    return z


def closure(x):
    scale = x.sum()

    def inner(v):
        return v * scale

    unknown(x)
    y = inner(x) + 1
    return y + inner(y)


def rebound_closure(x):
    n = x * 1

    def inner():
        return n + 1

    unknown(x)
    n = x * 3
    y = inner()
    n = y + n
    return inner()


def nonlocal_state(x):
    count = 0

    def bump():
        nonlocal count
        count += 1
        return count

    y = x + bump()
    unknown(y)
    z = y * bump()
    return z + count


def caught(x):
    y = x * 2
    try:
        y = y + 1
        failing(int(y.shape[0]))
        y = y * 100
    except ValueError as error:
        y = y - len(str(error))
    finally:
        y = y * 3
    return y + 1


def raised(x):
    print("before")
    y = x * 2
    failing(int(y.sum() > 3) * 5)
    print("after")
    return y + 1


def printed(x):
    print("one", x.shape[0])
    y = x + 1
    unknown(y)
    print("two", y.sum().item())
    z = y * 2
    unknown(z)
    print("three")
    return z


def swallowed(x):
    y = x
    with contextlib.suppress(ValueError):
        y = x * 2
        y = y + 1
        failing(5)
        y = y * 100
    return y + 1


def modes(x):
    with torch.no_grad():
        y = x * 2
        unknown(y)
        z = y + 1
    w = x * z
    unknown(w)
    return w.sum()


def unbound(x):
    if x.sum() > 3:
        extra = x * 2
    unknown(x)
    y = x + 1
    if x.sum() > 3:
        y = y + extra
    return y


def comprehension(x):
    unknown(x)
    parts = [x * i for i in range(3)]
    more = {str(i): part + x for i, part in enumerate(parts)}
    unknown(parts[1])
    return sum(more.values()) + sum(p for p in parts)


def two_names_of_one(x):
    a = [x * 2]
    b = a
    unknown(x)
    b.append(x + 1)
    c = a[0] + a[1]
    unknown(c)
    return a, b, c


def container(x):
    out = {"a": x * 2}
    unknown(x)
    out["b"] = out["a"] + 1
    unknown(x)
    out["c"] = out["b"] * x
    return out


def augmented(x):
    y = x.clone()
    unknown(x)
    y += 1
    y *= x
    unknown(y)
    y -= 3
    return y


def deleted(x):
    y = x * 2
    unknown(x)
    z = y + 1
    del y
    unknown(z)
    return z * 2


def walrus(x):
    unknown(x)
    if (y := x * 2).shape[0] > 2:  # noqa: SIM108
        z = y + 1
    else:
        z = y - 1
    unknown(z)
    return z * y


def nested_function_breaks(x):
    def inner(v):
        v = v * 2
        unknown(v)
        return v + 1

    y = x.sin()
    z = inner(y)
    return z.cos() + y


def helper(v, scale=2, *, shift=1):
    v = v * scale
    unknown(v)
    return v + shift


def callee_breaks(x):
    y = x.sin()
    z = helper(y, shift=3)
    w = helper(z, 4)
    return w.cos()


def recursive(x, depth=3):
    if depth == 0:
        unknown(x)
        return x
    y = x * 2
    z = recursive(y, depth - 1)
    return z + y


def with_star(*args, scale=2, **more):
    y = args[0] * scale
    unknown(y)
    return y + len(args) + len(more)


def drawn(x):
    y = x + torch.rand(3)
    unknown(x)
    z = y + torch.rand(3)
    return torch.nn.functional.dropout(z, 0.5)


def semicolons(x):
    y = x * 2; unknown(y); z = y + 1  # fmt: skip # noqa: E702
    return z


def text_over_lines(x):
    unknown(x)
    note = """
  kept as
it is"""
    y = x + len(note)
    unknown(y)
    return y * 2, note


PROGRAMS = [
    f
    for f in list(globals().values())
    if isinstance(f, types.FunctionType)
    and f.__module__ == __name__
    and f.__code__.co_varnames[:1] in (("x",), ("scale",))
    and f is not helper
]


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


def taken():
    """What the unknown functions saw since the last time."""
    seen = list(_names["seen"])
    _names["seen"].clear()
    return seen


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


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("flag", [False, True])
def test_a_layer_that_breaks(backend, flag):
    tolerance = None if backend == "eager" else (1e-5, 1e-6)
    steps = [(tensor(1, 2, 3, grad=True), flag), (tensor(3, -2, 1, grad=True), flag)] * 4
    same(Net, *steps, backend=backend, tolerance=tolerance)


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
    monkeypatch.setattr(pieces, "DEEPEST", 5)
    lines = "".join(f"    x = unknown(x) + {i}\n" for i in range(12))
    text = f"def program(x):\n{lines}    return x\n"
    linecache.cache["<rows>"] = (len(text), None, text.splitlines(keepends=True), "<rows>")
    exec(compile(text, "<rows>", "exec"), names := {"unknown": unknown})
    compiled = dynfix.compile(names["program"], backend="eager")
    for _ in range(12):
        assert torch.equal(compiled(X), names["program"](X))
    assert not compiled._dynfix_entry._dispatcher.entries
