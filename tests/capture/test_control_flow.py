"""Python's control flow on tensors' values, whose outcomes change between calls; exceptions;
context managers."""

import contextlib

import pytest
import torch
from helpers import Case, X, Y, same, tensor

VALUES = [
    tensor(1, 2, 3),
    tensor(-5, 1, 0),
    tensor(9, 9, 9),
    tensor(-5, 1, 0),
    tensor(1, 2, 3),
    tensor(0, 0, 0),
    tensor(100, -1, 7),
    tensor(1, 2, 3),
]


def _if(x):
    if x.sum() > 0:
        return x + 1
    elif x.sum() < -3:
        y = x * 2
    else:
        y = x - 1
    return y * 3


def _nested(x):
    y = x * 2
    if y[0] > 0:
        if y[1] > 3:
            y = y + 10
            return y if y[2] > 5 else -y
        y = y - 1
    else:
        for i in range(3):
            if y[i] == 0:
                break
            y = y + i
        else:
            y = y * 100
    return y


def _while(x):
    n = 0
    y = x
    while y.abs().sum() < 50:
        y = y * 2 + 1
        n += 1
        if n > 6:
            break
    return y, n


def _for_items(x):
    total = 0
    for v in x:
        if v > 1:
            total = total + v
        elif v < 0:
            continue
    return total


def _assert(x):
    assert x.sum() > -100, "too small"
    assert (x != 100).all(), f"bad {x.max().item()}"
    return x + 1


def _logic(x):
    a = x[0] > 0 and x[1] > 1
    b = x[0] > 0 or x[2] > 0
    c = not (x[0] > 5)
    return a, b, c, (x + 1 if a and b or c else x)


def _chain(x):
    return (
        0 < x[0] < 5,
        x[0] <= x[1] <= x[2],
        x[0] == x[1] == x[2],
        x + 1 if -10 < x.sum() < 5 else x - 1,
    )


def _ternary(x):
    return x * (2 if x.sum() > 0 else 3) + (x if x[0] else -x)


def _comprehension(x):
    return (
        [v * 2 for v in x if v > 0],
        {i: v for i, v in enumerate(x) if v != 0},
        sum(v for v in x if v > 1),
        any(v > 5 for v in x),
        all(v >= 0 for v in x),
    )


def _builtins(x):
    return (
        max(x),
        min(x[0], x[1]),
        sorted(x, reverse=True),
        sum(x),
        abs(x),
        round(x.sum().item(), 2),
        max([x[0], x[1]], key=lambda v: -v),
        any(x),
        bool(x[0]),
        divmod(x, 2),
    )


def _in(x):
    return 1.0 in x, x[0] in (1, 2), x[0].item() in (1.0, 2.0), x[0] in [x[1], x[2]]


def _match(x):
    match x.shape[0], x[0].item():
        case 3, 1.0:
            return x + 1
        case _, v if v < 0:
            return x - v
        case _:
            return x


def _walrus(x):
    if (s := x.sum()) > 0:
        return x * s
    while (s := s + 3) < 0:
        x = x + 1
    return x - s


def _counter(x):
    steps = []
    for i in range(10):
        steps.append(i)
        x = x + 1
        if x.max() > 8:
            return x, steps
    return x, "all"


def _raise(x):
    y = x + 1
    if x.sum() > 100:
        raise ValueError(f"sum is {x.sum().item()}")
    try:
        if x.sum() < 0:
            raise KeyError("negative")
        y = y * 2
    except KeyError as error:
        y = y - len(error.args)
    else:
        y = y + 0.5
    finally:
        y = y + 0.25
    return y


def _raising_op(x):
    try:
        y = x @ torch.ones(4)
    except RuntimeError as error:
        y = x * len(str(error)[:5])
    try:
        x.view(7)
    except RuntimeError:
        y = y + 1
    return y


def _index_error(x):
    out = []
    i = 0
    while True:
        try:
            out.append(x[i] * 2)
        except IndexError:
            break
        i += 1
    return out


def _suppress(x):
    with contextlib.suppress(ValueError):
        if x.sum() > 5:
            raise ValueError
        x = x * 2
    return x + 1


class Manager:
    def __init__(self):
        self.depth, self.log = 0, []

    def __enter__(self):
        self.depth += 1
        self.log.append("in")
        return self

    def __exit__(self, kind, value, tb):
        self.depth -= 1
        self.log.append(kind and kind.__name__)
        return kind is KeyError


def _manager(x):
    m = Manager()
    with m as inner, m:
        x = x * (inner.depth + 1)
        if x[0] < 0:
            raise KeyError("swallowed")
        x = x + 1
    return x, m.log


@contextlib.contextmanager
def scaled(x, k):
    print("enter", k)
    try:
        yield x * k
    except ZeroDivisionError:
        print("zero")
    finally:
        print("exit", k)


def _generator_manager(x):
    with scaled(x, 2) as y, scaled(y, 3) as z:
        if x[0] == 0:
            z = z / (1 // 0)
        y = y + z
    return y


def _null(x):
    with contextlib.nullcontext(x * 2) as y, contextlib.ExitStack() as stack:
        stack.callback(print, "bye")
        z = stack.enter_context(scaled(x, 1))
        return y + z


def _closing(x):
    class Thing:
        def close(self):
            print("closed")

    with contextlib.closing(Thing()):
        return x + 1


def _early(x):
    for i in range(4):
        with contextlib.nullcontext():
            try:
                if x[0] > i:
                    continue
                return x + i
            finally:
                print("turn", i)
    return x


def _bool_index(x):
    y = x.clone()
    if (y > 5).any():
        y[y > 5] = 5
    if not y.any():
        return None
    return y if torch.all(y == y) and torch.isfinite(y).all() else x


def _item_loop(x):
    n = int(x[0].item()) % 4
    y = x
    for i in range(n):
        y = y + i
    return y, [0] * n, x[:n], n


def _inplace_between(x):
    x.add_(1)
    if x.sum() > 5:
        x.mul_(2)
    else:
        x[0] = 0
    return x.sum(), x


def _random_between(x):
    a = torch.rand(3)
    if x.sum() > 0:
        a = a + torch.rand(3)
    return a * torch.rand(3)


def _return_none(x):
    if x.sum() > 5:
        return
    return x


BODIES = [
    _if,
    _nested,
    _while,
    _for_items,
    _assert,
    _logic,
    _chain,
    _ternary,
    _comprehension,
    _builtins,
    _in,
    _match,
    _walrus,
    _counter,
    _raise,
    _raising_op,
    _index_error,
    _suppress,
    _manager,
    _generator_manager,
    _null,
    _closing,
    _early,
    _bool_index,
    _item_loop,
    _inplace_between,
    _random_between,
    _return_none,
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_flow(body):
    same(lambda: lambda x: body(x), *[(v,) for v in VALUES])


@pytest.mark.parametrize(
    "body",
    [_if, _nested, _while, _logic, _ternary, _raise, _generator_manager, _item_loop, _walrus],
    ids=lambda body: body.__name__,
)
def test_flow_with_gradients(body):
    same(lambda: lambda x: body(x * 1), *[(v.clone().requires_grad_(),) for v in VALUES])


@pytest.mark.parametrize("effect", ["print", "append", "attribute", "buffer", "input", "all"])
def test_effects_around_unseen_outcomes(effect):
    """What was done before an unseen outcome is done once."""

    def make():
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("count", torch.zeros(3))
                self.n, self.log = 0, []

            def step(self, x, tag):
                if effect in ("print", "all"):
                    print(tag, x.sum().item())
                if effect in ("append", "all"):
                    self.log.append((tag, x * 2))
                if effect in ("attribute", "all"):
                    self.n = self.n + 1
                    self.last = x
                if effect in ("buffer", "all"):
                    self.count.add_(x)
                if effect in ("input", "all"):
                    x.add_(1)

            def forward(self, x):
                y = x * 1
                self.step(x, "first")
                if y.sum() > 0:
                    self.step(x, "second")
                if y[0] > 5:
                    self.step(x, "third")
                    raise ValueError("too big") if y[1] < 0 else KeyError("other")
                return y + self.count

        return Net()

    same(make, *[(v,) for v in VALUES])


def test_user_exceptions_at_later_calls():
    def make():
        log = []

        def f(x, d, k):
            log.append(k)
            print("k", k)
            x.mul_(2)
            y = x + d[k]
            log.append("got")
            return y / x.shape[0]

        return Case(fn=f, watch=lambda: log)

    d = {"a": 1.0, "b": "text", "c": torch.ones(5)}
    same(
        make,
        (X, d, "a"),
        (X, d, "a"),
        (Y, d, "missing"),
        (X, d, "a"),
        (X, d, "b"),
        (X, d, "c"),
        (X, d, "a"),
        (X, d, "missing"),
        (None, d, "a"),
        (X, None, "a"),
    )


def test_errors_of_operators_at_later_calls():
    def make():
        torch.manual_seed(0)
        emb = torch.nn.Embedding(4, 2)
        log = []

        def f(i):
            log.append("start")
            print("start")
            y = emb(i)
            log.append("end")
            print("end", y.shape)
            return y

        return Case(fn=f, watch=lambda: log)

    good, bad = torch.tensor([1, 2]), torch.tensor([1, 9])
    for backend in ("eager", "aot_eager", "native"):
        same(make, (good,), (good,), (bad,), (good,), (bad,), backend=backend)


def test_keyboard_interrupt_and_generator_exit():
    def make():
        def f(x, stop):
            print("a")
            if stop:
                raise StopIteration("x")
            return x

        return f

    same(make, (X, False), (X, True), (X, False), (X, True))


def test_recursion():
    def make():
        def depth(x, n):
            return x if n == 0 else depth(x + n, n - 1) * 2

        def until(x):
            return x if x.sum() > 50 else until(x * 2 + 1)

        return lambda x, n: (depth(x, n), until(x.abs()))

    same(make, (X, 3), (X, 5), (Y, 3), (X, 0))
