"""Programs with something in them that cannot be recorded."""

import ast
import contextlib
import types

import torch
from helpers import X, Y

_names = {"torch": torch, "seen": []}
_TEXT = """
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
"""
exec(
    compile(ast.parse(_TEXT), "<string>", "exec"), _names
)  # whose text nobody is told of  # there is no source of these
unknown, writes, failing, sets = (_names[n] for n in ("unknown", "writes", "failing", "sets"))
STEPS = [(X,), (Y,)] * 4


def taken():
    """What the unknown functions saw since the last time."""
    seen = list(_names["seen"])
    _names["seen"].clear()
    return seen


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
