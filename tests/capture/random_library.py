"""Random programs that also use classes of the user's, containers from outside, context managers,
generators, closures and the standard library."""

import re

import random_programs
from random_programs import Writer

IMPORTS = "import collections, contextlib, copy, dataclasses, functools, heapq, itertools, types\n"

HEAD = """
class Point(collections.namedtuple("Point", "a b")):
    def total(self):
        return self.a + self.b


@dataclasses.dataclass
class Pair:
    a: object
    b: object = 2
    seen: list = dataclasses.field(default_factory=list)

    @property
    def both(self):
        return self.a * self.b

    def __add__(self, other):
        return Pair(self.a + other, self.b)


class Vec:
    def __init__(self, t):
        self.t = t

    def __call__(self, k=1, *more, s=0):
        return self.t * k + s + len(more)

    def __getattr__(self, name):
        if name == "twice":
            return self.t * 2
        raise AttributeError(name)

    def __iter__(self):
        yield self.t
        yield self.t + 1

    def __contains__(self, k):
        return k == 1


class Scope:
    def __init__(self, tag):
        self.tag = tag

    def __enter__(self):
        LOG.append(self.tag)
        return self.tag

    def __exit__(self, kind, *rest):
        LOG.append(("out", kind and kind.__name__))
        return kind is KeyError


@contextlib.contextmanager
def scope(k):
    LOG.append("in")
    try:
        yield k + 1
    finally:
        LOG.append("out")


def counted(t, n):
    for k in range(n):
        got = yield t + k
        if got:
            t = t * got


def adder(k):
    total = 0

    def add(t):
        nonlocal total
        total = total + k
        return t + total

    return add


@functools.lru_cache
def cached(k):
    return k * 2


@functools.singledispatch
def kind(v):
    return 0


@kind.register
def _(v: torch.Tensor):
    return 1


TABLE, QUEUE, SEEN = {}, collections.deque(maxlen=3), set()
ORDER = collections.OrderedDict(a=1, b=2)
"""

EXPRESSIONS = """
Point(a, b).total()|Pair(a).both|(Pair(a, c) + b).a|Vec(a)(c)|Vec(a).twice + b|sum(Vec(a))|Vec(a)(2, 1, s=n)
next(counted(a, 2))|sum(counted(a, n))|[t for t in counted(b, 2)][-1]|adder(c)(a)|a * cached(n)|a + kind(b)
functools.reduce(torch.add, [a, b])|copy.deepcopy(a.detach())|copy.copy(a) + b|a + len(TABLE)|a + len(QUEUE)
torch.func.vmap(lambda r: r.mul(2))(a)|torch.func.vmap(lambda r, s: r + s)(a, b)|a + TABLE.get('k', 1)
a * TABLE.setdefault('n', 2)|a * list(ORDER.values())[0]|a + len(SEEN)|a * (1 in Vec(b))|next(iter([a, b]))
dict(p=a, q=b)['p']|{**{'a': a}}['a'] + b|(lambda t, k=c: t * k)(a)|[*Vec(a)][1]|functools.partial(torch.mul, a)(b)
types.SimpleNamespace(t=a).t|list(map(torch.neg, [a, b]))[0]|list(itertools.accumulate([a, b]))[1]
a[None].transpose_(1, 2)[0].t()|sorted([(2, a), (1, b)], key=lambda p: p[0])[0][1]|a * float(f'{n}.5')
a * len(str(n))|torch.tensor([1., n, 3., 4.]) + a|heapq.nsmallest(1, [(n, 0, a), (5, 1, b)])[0][2]
dataclasses.replace(Pair(a), b=c).both|next(k for k in [a, b] if k.ndim == 2)|a.unsqueeze(0).squeeze_(0) + b
""".replace("\n", "|")
EFFECTS = """TABLE.setdefault('l', []).append(n)|TABLE.update(k=c)|TABLE.pop('k', None)|TABLE[n] = a.detach()
TABLE['n'] = TABLE.get('n', 0) + 1|QUEUE.append(c)|QUEUE.appendleft(a.detach())|QUEUE.clear()|ORDER['z'] = n
ORDER.move_to_end('a')|ORDER.popitem(last=False) if len(ORDER) > 2 else None|SEEN.add(n)|SEEN.discard(1)
LOG.sort(key=str)|torch.manual_seed(n)|LOG.append(cached(n))|STATE.pair = Pair(a.detach(), n)|LOG.append(Point(n, c))
STATE.fn = types.MethodType(lambda s, t: t * 2, STATE)|LOG.append({'n': n, 'c': c})|LOG.insert(0, n)
LOG.append(heapq.nlargest(1, [n, 2]))|STATE.count = STATE.count + n|setattr(STATE, 'extra', c)|del LOG[:1]
LOG.append(getattr(STATE, 'extra', 'none'))|LOG.append(hasattr(STATE, 'pair'))|LOG.append([k for k in TABLE])
LOG.append('%s-%s' % (n, flag))|items.sort(key=lambda v: str(type(v)))|LOG.append(sorted(map(str, TABLE)))""".replace(
    "\n", "|"
)
WRITES = """a.t_().mul_(2).t_()|x.unsqueeze_(0).squeeze_(0)|torch.func.vmap(lambda r: r.add_(1))(a)|a.t_().t_()
torch.func.vmap(lambda r, s: r.copy_(s))(a, b)|a.unsqueeze_(1).add_(1).squeeze_(1)|a.clamp_(-1, 1)|a.data.add_(1)
a.detach().mul_(2)|a.view(-1)[0].fill_(3)|BUFFER.unsqueeze_(0).squeeze_(0)|b.transpose_(0, 1).transpose_(0, 1)""".replace(
    "\n", "|"
)
CONDITIONS = """'k' in TABLE|len(QUEUE) == 3|n in SEEN|next(iter(ORDER)) == 'a'|TABLE.get('n', 0) > 1
hasattr(STATE, 'extra')|all(isinstance(k, int) for k in items)""".replace("\n", "|")
BLOCKS = """
try:
    @ = E
    if n > 1: raise KeyError('k')
except KeyError as error:
    @ = E; LOG.append(str(error))
finally:
    F
---
with Scope(n) as s:
    @ = E + s
    if flag: raise KeyError
---
with scope(n) as s, torch.no_grad():
    @ = E * s
---
@, k = A, 0
while k < n:
    @ = E
    k += 1
    if k == 2: break
else: @ = @ + 1
---
def inner(t, *, k=n):
    F
    return t * k + A
@ = inner(A) + inner(A, k=1)
---
@ = sum([E for _ in range(2)])
---
with torch.random.fork_rng(): @ = A + torch.rand_like(A)
---
match n:
    case 1: @ = E
    case k if k > 2: @ = E + k
    case _: @ = A
"""


class LibraryWriter(Writer):
    def filled(self, templates: str) -> str:
        more = {
            random_programs.EXPRESSIONS: EXPRESSIONS,
            random_programs.EFFECTS: EFFECTS,
            random_programs.WRITES: WRITES,
            random_programs.CONDITIONS: CONDITIONS,
        }
        return super().filled(f"{templates}|{more[templates]}" if templates in more else templates)

    def block(self) -> None:
        name, known = f"t{len(self.lines)}", self.random.choice(self.names)
        parts = {
            "E": lambda: self.filled(random_programs.EXPRESSIONS),
            "F": lambda: self.filled(random_programs.EFFECTS),
            "A": lambda: known,
            "@": lambda: name,
        }
        for text in self.random.choice(BLOCKS.split("---\n")).strip("\n").split("\n"):
            self.line(re.sub(r"@|\b[EFA]\b", lambda found: parts[found[0]](), text))
        self.names.append(name)

    def statement(self) -> None:
        if self.depth < 3 and self.random.random() < 0.25:
            self.block()
        else:
            super().statement()

    def source(self) -> str:
        head, _, function = super().source().partition("def halved")
        return f"{IMPORTS}{head}{HEAD}\n\ndef halved{function}"
