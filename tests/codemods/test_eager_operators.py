"""`eager_op`: what runs in eager as one operator of the graph gives what it gave, gradients and
writes included, and the fix that makes such operators leaves one graph."""

import importlib.util
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from dynfix import eager_op
from dynfix.codemods import eager_operators
from torch import nn

from . import support


@eager_op(
    "(Module experts, Tensor[] parts, Tensor route, SymInt? top) -> (float32[*route], int64[?])"
)
def routed(experts, parts, route, top):
    x, out = parts[0] + parts[1], []
    for row, which in zip(x, route.tolist(), strict=True):
        out.append(nn.functional.dropout(experts[which](row[None]), 0.5).sum())
    return torch.stack(out), (route > (top or 0)).nonzero().flatten()


@eager_op("(Tensor(a!) queue, Tensor rows, SymInt at) -> int64[]")
def put(queue, rows, at):
    for row in rows:
        if row.sum() > 0:
            queue[at] = row
            at = (at + 1) % len(queue)
    return torch.tensor(at)


@eager_op("(Tensor x) -> float32[*x]")
def same(x):
    return x.zero_() if torch.isnan(x).any() else x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(3))
        self.register_buffer("queue", torch.zeros(4, 3))

    def forward(self, x, route):
        before = self.queue.sum()
        out, far = routed(self.experts, [self.first(x), x * 2], route, None)
        with torch.no_grad():
            at = put(self.queue, x.detach(), 1)
        return out * (1 + before) + self.queue.sum(), far, at


def observed(run, model, x, route):
    model.zero_grad()
    x = x.clone().requires_grad_()
    torch.manual_seed(1)
    out = run(x, route)
    out[0].square().sum().backward()
    grads = [x.grad, *(p.grad for p in model.parameters())]
    zeros = [torch.zeros(()) if g is None else g.sum() for g in grads]
    return [*(o.detach() for o in out), *zeros, model.queue.clone()]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_an_operator_does_what_eager_does(backend):
    torch.manual_seed(0)
    torch._dynamo.reset()
    eager, model = Model(), Model()
    model.load_state_dict(eager.state_dict())
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for rows, route in ((4, [0, 1, 2, 0]), (4, [1, 1, 1, 1]), (5, [2, 0, 2, 0, 2])):
        x, route = torch.randn(rows, 3), torch.tensor(route)
        want = observed(eager, eager, x, route)
        torch.testing.assert_close(observed(compiled, model, x, route), want)
    assert not eager_operators._graphs  # of calls whose gradients were taken


@eager_op("(Module experts, Tensor x, Tensor route) -> float64[*x]")
def chosen(experts, x, route):
    return torch.stack([experts[i](row) for i, row in zip(route.tolist(), x, strict=True)])


def test_a_module_and_a_part_of_it():
    @eager_op("(Module whole, Module part, Tensor x) -> float64[*x]")
    def both(whole, part, x):
        return whole(x) * part(x)

    whole = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).double()
    x = torch.randn(2, 3, dtype=torch.double)
    compiled = torch.compile(both, backend="aot_eager", fullgraph=True)
    wanted, got = (
        torch.autograd.grad(f(whole, whole[0], x).square().sum(), list(whole.parameters()))
        for f in (both, compiled)
    )
    torch.testing.assert_close(got, wanted)


def test_threads_that_train_one_model():
    """The module has its own parameters all the time; they get the sum of all gradients."""
    torch._dynamo.reset()
    experts, eager = Model().double().experts, Model().double().experts
    eager.load_state_dict(experts.state_dict())
    rows, route = torch.randn(6, 4, 3, dtype=torch.double), torch.tensor([0, 1, 2, 0])
    compiled = torch.compile(chosen, backend="aot_eager", fullgraph=True)
    compiled(experts, rows[0], route)

    def train(x):
        for _ in range(20):
            compiled(experts, x, route).square().sum().backward()
            assert all(type(p) is nn.Parameter for p in experts.parameters())

    with ThreadPoolExecutor(len(rows)) as pool:
        list(pool.map(train, rows))
    for x in rows:
        (chosen(eager, x, route).square().sum() * 20).backward()
    for p, q in zip(experts.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


@pytest.mark.slow
def test_an_operator_under_inductor():
    test_an_operator_does_what_eager_does("inductor")


def test_what_is_returned_is_memory_of_its_own():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: same(x * 1).add_(1), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))


def test_another_dtype_than_declared_is_said():
    wrong = eager_op("(Tensor x) -> int64[?]")(lambda x: x[x > 0])
    with pytest.raises(RuntimeError, match=r"returned torch.float32 .* its signature says"):
        torch.compile(wrong, backend="eager", fullgraph=True)(torch.ones(3))


SCRIPT = '''
import torch
from torch import nn
class Groups(nn.Module):  # no line between: the decorator is imported before it is used
    """Pooling of what belongs together."""

    def __init__(self):
        super().__init__()
        self.h = nn.Linear(3, 3)
        self.score = nn.Linear(3, 1)
        self.seen = {}

    def forward(self, x, group):
        y = self.h(x)
        rows = []
        for one in group.unique():
            members = y[group == one]
            self.seen[int(one)] = len(members)
            if len(members) < 2:
                continue
            rows.append((self.score(members).softmax(0) * members).sum(0))
        if not rows:
            return y.sum() * 0, 0
        return torch.stack(rows).mean(), len(rows)


class Ring(nn.Module):
    """A ring of rows."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(5, 3))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def put(self, rows):
        at = int(self.at)
        for row in rows:
            if row.abs().sum() > 1:
                self.rows[at] = row
                at = (at + 1) % 5
        self.at[0] = at

    def forward(self, x, group):
        out = x @ self.rows.clone().t()
        self.put(x)
        return out.sum(-1)


class Chosen(nn.Module):
    """What is left by a greedy choice."""

    def forward(self, x, group):
        with torch.no_grad():
            order = x.sum(-1).argsort()
            keep = []
            while len(order):
                first = order[0].item()
                keep.append(first)
                order = order[(x[order] - x[first]).norm(dim=-1) > 1]
            keep = torch.tensor(keep)
        return x[keep] * 2


if __name__ == "__main__":
    torch.manual_seed(0)
    for kind in (Groups, Ring, Chosen):
        module = kind()
        for group in ([0, 0, 1, 1], [0, 1, 2, 3], [2, 2, 2, 0]):
            module(torch.randn(4, 3), torch.tensor(group))
'''


def test_what_no_rule_mends_becomes_an_operator(tmp_path, monkeypatch):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    code, out, err = support.command("--unsafe-fixes", "--trace", "script.py", "script.py")
    assert "3 of 3 after" in err, (code, out, err)
    before, after = (_loaded(SCRIPT, tmp_path / "before.py"), _loaded(path.read_text(), path))
    for name in ("Groups", "Ring", "Chosen"):
        torch.manual_seed(0)
        made, eager, model = (getattr(m, name)() for m in (before, after, after))
        for other in (eager, model):
            other.load_state_dict(made.state_dict())
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        for group in ([0, 0, 1, 1], [0, 1, 2, 3], [2, 2, 2, 0]):
            x, group = torch.randn(4, 3), torch.tensor(group)
            want = made(x, group)
            torch.testing.assert_close(eager(x, group), want)
            torch.testing.assert_close(_numbers(compiled(x, group)), _numbers(want))
            torch.testing.assert_close(model.state_dict(), made.state_dict())


def _numbers(result):
    """Numbers that an operator gives are tensors."""
    return [torch.as_tensor(r) for r in (result if isinstance(result, tuple) else (result,))]


def _loaded(text, path):
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_QUEUE = """
import torch
from torch import nn


class Queue(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.register_buffer("rows", torch.zeros(6, 2))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    {}
    def put(self, keys: torch.Tensor):
        start = int(self.at)
        if start + keys.shape[0] > 6:
            self.rows[start:] = keys[: 6 - start]
        else:
            self.rows[start : start + keys.shape[0]] = keys
        {}

    def forward(self, x):
        out = self.fc(x) @ self.rows.clone().t()
        self.put(x)
        return out
"""
_LAST = "self.at[0] = (start + keys.shape[0]) % 6"


@pytest.mark.parametrize(
    ("mode", "last", "safe"),
    [
        ("@torch.no_grad()", _LAST, True),
        ("", _LAST, False),  # a gradient may flow into the buffer
        ("@torch.no_grad()", f"if start > 2:\n            {_LAST}", False),  # not on every way
    ],
)
def test_what_only_writes_without_gradients_is_a_safe_operator(mode, last, safe):
    text = support.fixed(_QUEUE.format(mode, last), ignore=()).source.text
    assert ("@eager_op" in text) == safe


def test_arguments_of_other_types_break_the_graph():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: same(x) + 1, backend="eager")
    parts = [torch.ones(2)]
    taken = eager_op("(Tensor x) -> float32[?]")(lambda x: x[0] * 2)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert torch.compile(lambda: taken(parts) + 1, backend="eager")().tolist() == [3.0, 3.0]
