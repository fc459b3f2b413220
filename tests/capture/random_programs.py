"""Random programs, each from its seed: a function of two tensors, a number, a flag and a list, that
also reads and writes a global, an object's attributes, a buffer and a log; and the calls of it,
between which arguments and state change."""

import random
import re
from collections.abc import Callable
from typing import Any

import torch
from helpers import call

HEAD = """
import torch

SCALE, LOG = 1.0, []
torch.manual_seed(1)
LAYER, WEIGHT = torch.nn.Linear(4, 4), torch.nn.Parameter(torch.rand(4))


class State:
    kept, count, factor = None, 0, 1.5


STATE, BUFFER = State(), torch.zeros(4)


def halved(t, by=2.0):
    return t / by if by > 1 else t.neg()


def step(x, y, n, flag, items):
"""

# `a`, `b`: tensors of one shape; `c`: a number; `d`: 0 or 1
EXPRESSIONS = """
a + b|a - b|a * b|(a * c).tanh()|a - c|a.sigmoid() * b|torch.maximum(a, b)|a.softmax(d)|a.cumsum(d).sin()
a - b.mean(d, keepdim=True)|a + b.amax(1, keepdim=True)|a.t().contiguous().t() + b|a.flip(d)|a.roll(n, d)
torch.cat([a[:1], b[1:]])|torch.stack([a, b]).mean(0)|torch.where(a > b, a, c)|a.masked_fill(b > 0, 0.5)
LAYER(a)|a * WEIGHT|a + BUFFER|halved(a, c)|halved(a, by=n)|a.clone()|a.detach() * b|a.view(-1).view(b.shape)
a.gather(1, b.argsort(1, stable=True))|a[:, [2, 0, 1, 3]]|torch.dropout(a, 0.5, flag)|a + torch.rand_like(b)
a.double().exp().to(a.dtype)|(a * 8).int() / 8|a * b.mean().item()|sum([a, b], c)|[a, b][n % 2]|(a, b)[d]
torch.nn.functional.layer_norm(a, (4,))|a @ b.t() @ a|a * STATE.factor|a + STATE.count|a.exp().floor() + b
a if STATE.kept is None else a + STATE.kept.mean()|max(a, b, key=lambda t: t.shape[0])|a.reshape(b.shape)[:]
""".replace("\n", "|")
NUMBERS = "0.5|2|-1.5|n|SCALE|STATE.count|STATE.factor|len(items)|x.shape[0]|True|len(LOG)"
CONDITIONS = """a.sum() > 0|(a > b).any()|a[0, 0] > 0.5|a.abs().max().item() < 2|flag|n > 1|len(items) > 2
STATE.kept is None|STATE.count % 2|SCALE == 1|x.shape[0] > 3|x is y|isinstance(items[-1], int)""".replace(
    "\n", "|"
)
WRITES = """a.add_(1)|a.mul_(b)|a.tanh_()|a[0] = c|a[:, ::2] = 0.25|a[1:].zero_()|a.copy_(b)|a[-1].sub_(b.mean())
BUFFER.add_(a.detach().mean())|BUFFER[n % 4] = 2|BUFFER.copy_(a[0].detach())""".replace("\n", "|")
EFFECTS = """items.append(a)|items.append(n)|items.insert(0, a.sum())|items.reverse()|items[0] = a.detach()
STATE.kept = a|STATE.kept = a.detach()|STATE.kept = a.detach().clone()|STATE.count += 1|STATE.factor = c
LOG.append(n)|LOG.append((a.detach().mean(), c))|LOG.append(a.sum().item() > 0.123)|LOG.append(len(items))
print(n, c)|print(f'{a.sum().item() > 0.4}')|print(a.shape, flag)|LOG.extend([c, 'x'])""".replace(
    "\n", "|"
)
RESULTS = "v|[v, u]|(v, n)|{'a': v, 'b': u}|v, u.sum()|v, items|v, STATE.kept|v, v[:]|u, BUFFER|v, x|v[:, :2], u[0]"


class Writer:
    """Writes one program's function."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines, self.names, self.depth = [], ["x", "y"], 1

    def filled(self, templates: str) -> str:
        """One of the templates, its letters replaced."""
        pick = self.random.choice
        text = pick([each for each in templates.split("|") if each])
        words = {"a": pick(self.names), "b": pick(self.names), "d": pick("01")}
        words["c"] = pick(NUMBERS.split("|"))
        return re.sub(r"(?<![\w.'])([a-d])\b", lambda found: words[found[1]], text)

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def define(self) -> None:
        name = f"t{len(self.lines)}"
        self.line(f"{name} = {self.filled(EXPRESSIONS)}")
        self.names.append(name)

    def branch(self) -> None:
        name, before = f"t{len(self.lines)}", list(self.names)
        for head in (f"if {self.filled(CONDITIONS)}:", "else:"):
            self.line(head)
            self.depth += 1
            for _ in range(self.random.randrange(2)):
                self.statement()
            self.line(f"{name} = {self.filled(EXPRESSIONS)}")
            self.depth -= 1
            self.names = list(before)
        self.names.append(name)

    def loop(self) -> None:
        name = self.random.choice(self.names)
        self.line(f"for i in range({self.random.choice(('2', 'n', 'len(items)'))}):")
        self.line(f"    {name} = {self.filled(EXPRESSIONS)} + i")

    def attempt(self) -> None:
        name = f"t{len(self.lines)}"
        self.line(f"try: {name} = {self.random.choice(self.names)} * items[2]")
        self.line(
            f"except (IndexError, TypeError, RuntimeError) as error: {name} = x - 1; LOG.append(str(type(error)))"
        )
        self.line(f"if not isinstance({name}, torch.Tensor) or {name}.shape != x.shape: {name} = y")
        self.names.append(name)

    def without_gradients(self) -> None:
        self.line(f"with torch.{self.random.choice(('no_grad', 'enable_grad'))}():")
        self.depth += 1
        self.define()
        self.depth -= 1

    def statement(self) -> None:
        kinds = [(self.define, 10), (lambda: self.line(self.filled(EFFECTS)), 5)]
        kinds += [(lambda: self.line(self.filled(WRITES)), 3)]
        if self.depth < 3:
            kinds += [
                (self.branch, 3),
                (self.loop, 1),
                (self.without_gradients, 1),
                (self.attempt, 1),
            ]
        ways, weights = zip(*kinds, strict=True)
        self.random.choices(ways, weights)[0]()

    def source(self) -> str:
        if self.random.random() < 0.7:
            self.line("given, x, y = (x, y), x * 1, y + 0")
        for _ in range(self.random.randint(3, 9)):
            self.statement()
        self.line(f"u, v = {self.random.choice(self.names)}, {self.names[-1]}")
        self.line(f"return {self.random.choice(RESULTS.split('|'))}")
        return HEAD + "\n".join(self.lines) + "\n"


# What a caller does between two calls to the module `m` of the program.
CHANGES: list[Callable[[Any], Any]] = [
    lambda m: setattr(m, "SCALE", 2.0),
    lambda m: setattr(m.STATE, "kept", None),
    lambda m: setattr(m.STATE, "factor", -1),
    lambda m: m.LOG.clear(),
    lambda m: m.WEIGHT.data.mul_(2),
    lambda m: m.WEIGHT.requires_grad_(False),
    lambda m: setattr(m, "BUFFER", torch.ones(4)),
    lambda m: setattr(m.LAYER, "weight", torch.nn.Parameter(torch.full((4, 4), 0.25))),
    lambda m: torch.nn.init.zeros_(m.LAYER.weight),
    lambda m: m.LAYER.register_forward_hook(lambda layer, given, result: result * 2),
]


def steps(seed: int) -> list[Any]:
    """The calls and what is changed between them."""
    rng = random.Random(seed)
    found: list[Any] = []
    usual = _arguments(rng)
    for turn in range(7):
        if turn and rng.random() < 0.25:
            change = rng.choice(CHANGES)
            found.append(lambda case, change=change: change(case.module))
        given = _arguments(rng) if turn and rng.random() < 0.35 else usual
        usual = given if rng.random() < 0.3 else usual
        found.append(_call(turn, *given))
    return found


def _arguments(rng: random.Random) -> tuple[Any, ...]:
    """How x and y look, n, flag, items."""
    size, looks = rng.choice((3, 3, 5)), rng.choice(("plain",) * 4 + ("columns", "slice"))
    second = rng.choice(("plain",) * 4 + ("grad", "same", "view"))
    items = rng.choice(([1], [2, 0.5], [1, 2, 3], ["x", 1]))
    return (
        size,
        looks,
        second,
        rng.random() < 0.4,
        rng.choice((1, 1, 2, 3)),
        rng.random() < 0.5,
        items,
    )


def _call(
    turn: int, size: int, looks: str, second: str, grad: bool, n: int, flag: bool, items: list[Any]
) -> Any:
    torch.manual_seed(turn)
    x = torch.randn(size, 8)[:, ::2] if looks == "columns" else torch.randn(size + 1, 4)
    x = x[1:] if looks == "slice" else x[:size]
    x = x.clone().requires_grad_() if grad else x
    y = torch.randn(size, 4).requires_grad_(second == "grad")
    y = x if second == "same" else x.view_as(x) if second == "view" and not grad else y
    return call(x, y, n, flag, list(items))
