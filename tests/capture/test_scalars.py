"""Numbers and text read from tensors: `.item()` logged, kept, returned, computed with; every call
sees its own."""

import copy
import functools
import json
import logging
import math
import struct

import numpy as np
import pytest
import torch
from helpers import Case, X, Y, same, tensor, watching

log = logging.getLogger("user")
CALLS = [
    (tensor(1.5, 2),),
    (tensor(-3, 8),),
    (tensor(7.25, 0),),
    (tensor(7.25, 0),),
    (tensor(1.5, 2),),
]


EXPRESSIONS = {
    "plain": lambda v, x: v,
    "arithmetic": lambda v, x: (
        v + 1,
        2 - v,
        v * 3,
        v / 7,
        7 // (abs(v) + 1),
        v % 3,
        -v,
        +v,
        abs(v),
        v**2,
    ),
    "power": lambda v, x: (abs(v) ** 0.5, pow(v, 2), divmod(v, 2)),
    "compare": lambda v, x: (v > 0, v == 2, v != 2, v <= 1, 0 < v < 5, v is None),
    "branch": lambda v, x: x + 1 if v > 0 else x - 1,
    "used in tensor": lambda v, x: x * v + v,
    "factory": lambda v, x: torch.full((2,), v) + torch.tensor([v, v]),
    "math": lambda v, x: (
        math.floor(v),
        math.ceil(v),
        math.sqrt(abs(v)),
        math.isnan(v),
        math.copysign(1, v),
        math.exp(v / 9),
    ),
    "round": lambda v, x: (round(v), round(v, 1), int(v), float(v), bool(v), str(v), repr(v)),
    "complex": lambda v, x: (v + 1j, 1j * v, complex(v), complex(1, v)),
    "numpy": lambda v, x: (np.float64(v), np.float32(2) * v, v * np.float64(3)),
    "attributes": lambda v, x: (v.real, v.imag, v.conjugate()),
    "ratio": lambda v, x: (v.as_integer_ratio(), v.is_integer(), v.hex()),
    "class": lambda v, x: (
        v.__class__,
        type(v),
        type(v) is float,
        isinstance(v, float),
        isinstance(v, int),
        type(v).__name__,
    ),
    "containers": lambda v, x: ([v, v], (v,), {"a": v}, {v: 1}, {v}, [[v]]),
    "membership": lambda v, x: (
        v in (1.5, 2.0),
        v in {1.5: 1},
        (1.5, -3.0, 7.25).index(v),
        [v, v].count(v),
    ),
    "copies": lambda v, x: (
        copy.copy(v),
        copy.deepcopy(v),
        copy.deepcopy([v]),
        copy.deepcopy({"v": v}),
    ),
    "fstring": lambda v, x: (f"{v}", f"{v:.3f}", f"{v!r:>12}", f"a{v}b{v:.1e}"),
    "percent": lambda v, x: ("%.3f" % v, "%s" % v, "%.2f and %d" % (v, 3), "%(a)s" % {"a": v}),
    "format": lambda v, x: (
        "{:.3f}".format(v),
        "{a}".format(a=v),
        "{0[0]}".format([v]),
        format(v, ".2f"),
    ),
    "text methods": lambda v, x: (
        f"{v}".upper(),
        f"{v}".split("."),
        f"{v}"[0],
        f"{v}".zfill(9),
        len(f"{v:.4f}"),
        f"{v}" + "!",
        "a" + f"{v}",
    ),
    "text more": lambda v, x: (
        f"{v}".encode(),
        f"{v}".ljust(9),
        f"{v}".startswith("1"),
        "." in f"{v}",
        list(f"{v}"),
        f"{v}" * 2,
        ",".join([f"{v}"]),
    ),
    "text number": lambda v, x: (
        float(f"{v}"),
        f"{v}" == "1.5",
        f"{v}" < "5",
        hash(f"{v}") == hash("1.5"),
        f"{v}".replace(".", ","),
    ),
    "json": lambda v, x: (json.dumps(v), json.dumps({"a": [v]})),
    "struct": lambda v, x: (struct.pack("d", v), struct.pack("<f", v)),
    "bytes": lambda v, x: (b"%f" % v, str([v]), repr((v,)), str({"a": v})),
    "min max": lambda v, x: (
        max(v, 1.0),
        min(v, 1.0),
        sum([v, v]),
        sorted([v, 1.0, 2.0]),
        any([v]),
        all([v, 1]),
    ),
    "key": lambda v, x: {1.5: "a", -3.0: "b"}.get(v, "c"),
    "logic": lambda v, x: (v and 3, v or 3, not v),
    "lambda": lambda v, x: list(map(lambda a: a * v, [1, 2])),
    "slices": lambda v, x: (slice(None, v), [v][0:1]),
    "set default": lambda v, x: {}.setdefault("a", v),
    "zip": lambda v, x: [a * b for a, b in zip([v, v + 1], [2, 3])],
    "augmented": lambda v, x: [w := v, w := w + 1, w],
}
INTEGERS = {
    "bits": lambda n, x: (n & 1, n | 8, n ^ 3, n << 1, n >> 1, ~n, 1 & n, 8 | n),
    "methods": lambda n, x: (
        n.bit_length(),
        n.numerator,
        n.denominator,
        n.real,
        n.to_bytes(4, "big", signed=True),
        n.__index__(),
    ),
    "index": lambda n, x: (
        [10, 20, 30, 40][n % 4],
        "abcd"[n % 4],
        x[n % 2],
        x[: n % 2],
        (1, 2, 3)[: n % 3],
        [0] * (n % 3),
    ),
    "range": lambda n, x: (list(range(abs(n))), range(n), [i for i in range(n % 5)]),
    "sizes": lambda n, x: (
        x.new_zeros(abs(n)),
        torch.arange(abs(n)),
        torch.zeros(abs(n), 2),
        x.expand(abs(n) + 1, 2),
    ),
    "text": lambda n, x: (
        f"{n:05d}",
        "%d" % n,
        "%03d|%x" % (n, abs(n)),
        hex(n),
        bin(n),
        oct(n),
        chr(65 + n % 9),
        str(n),
        f"{n:b}",
    ),
    "divide": lambda n, x: (
        n / 2,
        n // 2,
        n % 2,
        divmod(n, 2),
        n**2,
        2**n,
        -n,
        abs(n),
        pow(n, 2, 5),
    ),
    "number": lambda n, x: (
        int(n),
        float(n),
        bool(n),
        complex(n),
        n.__class__,
        type(n) is int,
        isinstance(n, int),
        hash(n),
    ),
    "compare": lambda n, x: (
        n == 1,
        n is 1,  # noqa: F632
        n > 0,
        n in (1, -3),
        n in range(5),
        n in [1],
    ),
    "repeat": lambda n, x: "ab" * (n % 3),
    "math": lambda n, x: (math.gcd(n, 4), math.factorial(n % 4), math.isqrt(abs(n))),
    "np": lambda n, x: (np.int64(n), np.zeros(abs(n)), np.arange(3)[n % 3]),
    "loop": lambda n, x: sum(i * x for i in range(n % 4)),
    "view": lambda n, x: x.repeat(2).view(abs(n) % 2 + 1, -1),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_float(name):
    body = EXPRESSIONS[name]

    def make():
        def f(x):
            return body((x * 1).sum().item() - x[1].item(), x)

        return f

    same(make, *CALLS)


@pytest.mark.parametrize("name", INTEGERS)
def test_int(name):
    body = INTEGERS[name]

    def make():
        def f(x):
            return body(x[0].long().item(), x)

        return f

    same(make, *CALLS)


@pytest.mark.parametrize(
    "read",
    [
        float,
        int,
        bool,
        lambda t: t.tolist(),
        lambda t: t.item(),
        lambda t: [t.item()],
        complex,
        str,
        repr,
        "{}".format,
    ],
)
def test_reads(read):
    def make():
        def f(x):
            return read(x.sum())

        return f

    same(make, *CALLS)


def test_result_is_a_plain_number():
    def make():
        return lambda x: (x.sum().item(), [x.long().sum().item()], f"{x.sum().item()}")

    fn = same(make, *CALLS)
    for args in CALLS:
        number, (whole,), text = fn(*args)
        assert (type(number), type(whole), type(text)) == (float, int, str)
        assert json.loads(json.dumps([number, whole, text])) == [number, whole, text]


def test_kept_from_an_earlier_call():
    def make():
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.last, self.best, self.history = 0.0, None, []

            def forward(self, x):
                y = x * 2 + self.last
                self.last = x.sum().item()
                self.history.append(self.last)
                self.best = self.last if self.best is None else max(self.best, self.last)
                return y, f"{self.last:.2f}"

        return Net()

    same(make, *CALLS, *CALLS)


def test_plain_after_the_call():
    def make():
        state = {}

        def f(x):
            state["v"] = x.sum().item()
            return x + 1

        return Case(
            fn=f, watch=lambda: (state, type(state["v"]), state["v"] + 1, "%.2f" % state["v"])
        )

    same(make, *CALLS)


def test_logged_and_printed():
    def make():
        def f(x):
            v = x.mean().item()
            print("mean", v, f"{v:.3f}", [v], {"v": v}, (v, (v,)), sep="|")
            log.info("mean %.3f %s", v, x.shape)
            log.warning("%s", {"v": v})
            return x - v

        return f

    same(make, *CALLS)


def test_negative_zero_and_nan_outcomes():
    def make():
        def f(x):
            return math.copysign(1, x.item()), x / 1

        return f

    same(
        make,
        (torch.tensor(0.0),),
        (torch.tensor(-0.0),),
        (torch.tensor(float("nan")),),
        (torch.tensor(0.0),),
        (torch.tensor(float("nan")),),
    )


def test_read_after_write():
    def make():
        def f(x):
            a = x.sum().item()
            x.add_(1)
            b = x.sum().item()
            return a, b, x * a

        return f

    same(make, *CALLS)


def test_loss_logging_in_training_step():
    def make():
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 1)
        history = []

        def step(x, y):
            loss = ((net(x) - y) ** 2).mean()
            history.append(loss.item())
            return loss

        return Case(fn=step, watch=lambda: (history, net))

    same(make, (X, Y), (Y, X), (X, X), (Y, X))


def test_many_outcomes_stay_right():
    def make():
        def f(x):
            n = int(x.sum().item())
            return x * n if n % 3 else x - n

        return f

    same(make, *[(tensor(n, 0.25),) for n in range(14)], *[(tensor(n, 0.25),) for n in range(14)])


def test_plain_in_what_is_kept():
    class Holder:
        def __init__(self, value):
            self.value = value

        def get(self):
            return self.value

    def make():
        kept = Case()

        def f(x, n):
            m = x.sum().item()

            def named(*, a=n, b=m):
                return a, b

            kept.named, kept.method = named, Holder(m).get
            kept.partial = functools.partial(max, n, m)
            kept.through = iter([n, m])
            return x

        def watch():
            through = copy.copy(kept.through)
            values = (*kept.named(), kept.method(), kept.partial(), *through)
            return [(type(value), value) for value in values]

        return Case(fn=f, watch=watch)

    same(make, *[(X * n, n) for n in (1, 2, 3, 2)])


def test_errors_name_the_type_that_the_user_gave():
    def sliced(x, n):
        return [0] * n if n > 1 else x.kthvalue(n).values

    def make():
        def f(x, n):
            told = []
            for ask in (lambda: [0] * n, lambda: torch.rand(n), lambda: "a" + n, lambda: n[0]):
                try:
                    told.append(ask())
                except TypeError as error:
                    told.append(str(error))
            return x * n, told

        return f

    same(make, *[(X, n) for n in (1.5, 2.5, 3.5, 1.5, 4.5)])
    same(lambda: sliced, *[(X, n) for n in (1.5, 2.5, 3.5, 1.0, 0.5)])


def test_what_is_stored_after_the_recording_ended_is_plain():
    def body(s, x):
        s.n += 1
        if x.shape[0] > 3:
            x.to_sparse()
        s.table[s.n] = x.shape
        s.table[s.n, "pair"] = s.n, [s.n]
        s.pair = s.n, "text"
        return x * s.n

    long = tensor(1, 2, 3, 4)
    same(watching(body, n=lambda: 0, table=dict), *[(X,), (Y,)] * 2, (long,), (long,), (X,))
