"""Functions that decide by tensors: one path for compiled code is one graph, gives what eager gives,
with its gradients, and leaves eager as it was."""

import pytest

torch = pytest.importorskip("torch")

from dynfix.codemods.cli import side_by_side

from . import support

PATHS = {
    "early return": """
        if x.max() > 2:
            return x.sum(), 0
        x = x * 2
        return x.mean(), 1
""",
    "statements on both sides": """
        if x.sum() > 0:
            y = x * 2
            z = y + 1
        else:
            y = x - 1
            z = y * 3
        return y + z
""",
    "loop that is left": """
        for i in range(4):
            y = x * 0.5 + i
            if y.abs().max() < 1.5:
                break
            x = y
        return x, y
""",
    "the turn at which a loop is left": """
        for i in range(4):
            x = x * 0.5
            if x.abs().max() < 1.5:
                break
        y = x + i
        for i in range(2):
            y = y * (i + 1)
        return y, x
""",
    "return from a loop": """
        t = 1.0
        for _ in range(4):
            y = x - t
            if y.abs().mean() < 0.9:
                return y
            t *= 0.5
        return x
""",
    "turns that are passed over": """
        total = x.new_zeros(())
        for i in range(4):
            row = x[i]
            if row.sum() < 0:
                continue
            total = total + row.max()
            total = total * 1.5
        return total
""",
    "break below another choice": """
        n = 0
        for i in range(3):
            if x.sum() > i:
                if x.max() > 1:
                    break
                n += 1
            x = x + 0.5
        return x, n
""",
    "while with a counter": """
        n, change = 0, float("inf")
        while change > 0.1 and n < 5:
            y = torch.tanh(x)
            change = (y - x).abs().max().item()
            x = y
            n += 1
        return x, n
""",
    "dispatch": """
        out = torch.zeros_like(x)
        for i in range(2):
            rows = torch.where((x[:, 0] > 0) == bool(i))[0]
            if len(rows) == 0:
                continue
            out[rows] = x[rows] * (i + 2)
        return out
""",
    "nothing chosen": """
        keep = x[:, 0] > 0.5
        if keep.sum() == 0:
            return x[:0], x[:0] * 2
        return x[keep], x[keep] * 2
""",
    "checks": """
        if x.min() < -50 or x.sum(0).max() > 50:
            raise ValueError(f"{x.min():.2f} is out of range")
        assert not torch.isnan(x).any(), "NaN"
        return x * 2
""",
    "state": """
        y = x * 2
        if y.max() > 2:
            self.seen += 1
            y = y * 0.5
        return y
""",
}
PATHS |= {
    "a list of numbers": """
        total, seen = 0.0, torch.zeros(5)
        for i, v in enumerate(x.sum(1).tolist()):
            total = total * 0.5 + v
        for k in reversed(x.argmax(1).tolist()):
            seen[k] += 1
        if seen.max() > 2:
            seen = seen / 2
        return total, seen
""",
    "texts and nothing in what is returned": """
        if x.sum() > 0:
            return x.sum(), 1
        warnings.warn("negative")
        return x.mean(), 0
""",
    "a list of tensors": """
        rows = [x[0], x[1]]
        norm = torch.stack([r.norm() for r in rows]).sum()
        if norm > 1:
            rows = [r / norm for r in rows]
        return rows[0], rows[1]
""",
}
PATHS |= {  # sides of as many rows as data says, of which torch.cond runs one
    "too few rows": """
        rows = x[x[:, 0] > 0]
        if rows.shape[0] < 2:
            return x.new_zeros(3)
        return rows.mean(0)
""",
    "rows that are padded": """
        rows = torch.where(x[:, 0] > 0)[0]
        if rows.numel() < 3:
            return torch.cat([rows, torch.zeros(3 - rows.numel(), dtype=torch.long)])
        return rows[:3]
""",
    "one within another": """
        count = (x > 0).sum().item()
        if count == 0:
            return x.sum() * 0
        most = max(count // 2, 1)
        values = x.reshape(-1)
        hard = values[values > 0.7]
        if hard.numel() < most:
            hard, _ = values.topk(most)
        return hard.mean()
""",
}
PATHS |= {
    "a name of one side": """
        s = x.abs().amax(1)
        if s.max() > 1:
            s = s.clamp(min=1).view(-1, 1)
            return x / s
        return x
""",
    "a sum that begins as a number": """
        total = 0.0
        for i in range(3):
            if x[i].sum() > 0:
                total += x[i].mean()
        return torch.as_tensor(total)
""",
}
HEAD = """
import warnings

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def forward(self, x: torch.Tensor, other=None):"""


def modules(body):
    text = HEAD + body
    fixed = support.fixed(text, unsafe=True, ignore=())
    assert "select by predicates when compiled" in {f.fix.title for f in fixed.applied}
    again = support.fixed(fixed.source.text, unsafe=True, ignore=())
    assert again.source.text == fixed.source.text
    return [side_by_side.load_text(t, "model.py", "model").Model for t in (text, fixed.source.text)]


def numbers(value):
    parts = value if isinstance(value, tuple) else (value,)
    return [p if isinstance(p, torch.Tensor) else torch.tensor(float(p)) for p in parts]


def run(call, x):
    """What a call gives, and the gradient of its input: zeros, where a path has computed what eager
    has not, are as good as none."""
    x = x.clone().requires_grad_()
    given = numbers(call(x))
    learned = [g.double().sum() for g in given if g.requires_grad]
    gradient = torch.autograd.grad(sum(learned), x)[0] if learned else torch.zeros_like(x)
    return [*(g.detach() for g in given), gradient]


@pytest.mark.parametrize("body", PATHS.values(), ids=PATHS)
def test_predicated_path(body):
    before, after = modules(body)
    torch.manual_seed(0)
    x = torch.randn(4, 3)
    torch._dynamo.reset()
    assert side_by_side.count_breaks(before(), (x,)) > 0
    torch._dynamo.reset()
    assert side_by_side.count_breaks(after(), (x,)) == 0
    torch._dynamo.reset()
    compiled = torch.compile(after(), backend="eager", fullgraph=True)
    original, eager = before(), after()
    for given in (x, -x.abs(), x.abs() * 4, x * 0.1):
        wanted = run(original, given)
        torch.testing.assert_close(run(eager, given), wanted, rtol=0, atol=0)
        torch.testing.assert_close(run(compiled, given), wanted, check_dtype=False)
    assert original.seen == eager.seen


REFUSED = {
    "list that grows": """
        found = []
        for row in x.unbind(0):
            if row.sum() > 0:
                found.append(row)
        return found
""",
    "tensor that grows": """
        for _ in range(3):
            x = torch.cat([x, x[:1]])
            if x.sum() > 0:
                break
        return x
""",
    "sides of other shapes": """
        if x.sum() > 0:
            x = x[:, :2]
        return x
""",
    "a write into one of two": """
        y, z = x * 2, x + 1
        if x.sum() > 0:
            z = self.weight
        if x.mean() > 1:
            y = y + 1
        z.add_(1)
        z += y.sum()
        return z
""",
    "the best, where there are more": """
        best = x.reshape(-1)[x.reshape(-1) > 0]
        if best.numel() > 3:
            best, _ = best.topk(3)
        return best.sum()
""",
    "what the last turn had": """
        for row in x:
            if row.sum() > 1:
                break
        return row
""",
    "a number or a tensor": """
        k = x.argmax().item()
        y = other * (k // 2)
        if k % 2:
            y = y + 1
        return x, y
""",
    "text": """
        if x.sum() > 0:
            return f"{x.mean():.1f}"
        return ""
""",
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_no_path(body):
    fixed = support.fixed(HEAD + body, unsafe=True, ignore=())
    assert "select by predicates when compiled" not in {f.fix.title for f in fixed.applied}


WRITES = {
    "buffers behind an early return": """
        if x.sum() > 0:
            return x
        self.total.add_(1)
        self.total[0] = 7.0
        self.total[1] += 2
        return x * 2
""",
    "a side for exactly one": """
        chosen = torch.nonzero(x[:, 0] > 0).flatten()
        if chosen.numel() == 1:
            self.total[chosen] = 1.0
        return x * 2
""",
    "the wrong side": """
        negative = x[:, 0] < 0
        if negative.any():
            return x
        self.total[negative] = 3.0
        return x * 2
""",
}


@pytest.mark.parametrize("body", WRITES.values(), ids=WRITES)
def test_what_eager_does_not_reach_is_not_written(body):
    head = HEAD.replace("self.seen = 0", 'self.register_buffer("total", torch.zeros(4))')
    fixed = support.fixed(head + body, unsafe=True, ignore=()).source.text
    before, after = [
        side_by_side.load_text(t, "model.py", "model").Model() for t in (head + body, fixed)
    ]
    torch._dynamo.reset()
    compiled = torch.compile(after, backend="eager")
    for x in (torch.ones(4, 3), -torch.ones(4, 3), torch.eye(4, 3) - 0.1):
        torch.testing.assert_close(compiled(x), before(x))
        torch.testing.assert_close(after.total, before.total)


ALIASES = {
    "an element": """
        if x.sum() > 0:
            x = x * 2
        x[0] = 5.0
        return x
""",
    "of another name": """
        y = x
        if x.sum() > 0:
            y = x * 2
        y += 1
        return y
""",
    "a view": """
        y = x * 2 if x.sum() > 0 else x
        v = y[0]
        v.zero_()
        return y
""",
    "in a loop": """
        for _ in range(3):
            x[0] = x[0] + 1
            if x.sum() > 0:
                x = x * 2
        return x
""",
    "with a number beside it": """
        if x.sum() > 0:
            x = x * 2
            n = 1
        else:
            n = 2
        x.view(-1)[0] = 5.0
        return x, n
""",
    "two names of one tensor": """
        y = x.clone()
        z = y
        if x.sum() > 0:
            y = y * 2
        y[0] = 7.0
        return y, z
""",
    "out=": """
        if x.sum() > 0:
            x = torch.zeros_like(x)
        torch.add(x, 1, out=x)
        return x
""",
    "by a method": """
        if x.sum() > 0:
            x = x * 2
        self.clear(x)
        return x
""",
}
SIZES = {
    "nothing or what a mask of unknown type picks": """
        keep = x > self.limit
        if keep.sum() == 0:
            return x[:0], x[:0]
        return x[keep], x[keep] * 2
""",
    "two masks": """
        y = x[x > 0]
        if x.sum() > 0:
            y = x[x > 1]
            y = y * 2
        return y
""",
    "one name for two masks": """
        m = x > 0
        y = x[m]
        m = x > 1
        if x.sum() > 0:
            y = x[m]
            k = 1
        else:
            k = 2
        return y, k
""",
    "a mask of each turn": """
        for i in range(3):
            m = x > i
            out = x[m]
            if out.sum() < 3:
                return out
        return x[m]
""",
    "a sum and what was summed": """
        if x.sum() > 0:
            return x.sum(), 1
        return x, 0
""",
    "an element and all": """
        if x.sum() > 0:
            return x[x[0].argmax()], 1
        return x, 0
""",
    "a slice as long as a number that is read": """
        n = int(x[0, 0].abs())
        y = x[:n] if x.sum() > 0 else x
        return y, n
""",
    "rows repeated": """
        y = torch.repeat_interleave(x.reshape(-1), x.reshape(-1).abs().long())
        if x.sum() > 0:
            return y, 1
        return x.reshape(-1), 0
""",
    "nothing new": """
        if x.sum() > 0:
            return x.new_zeros((0, 3))
        return x.reshape(6, 2)[:, :1]
""",
    "values that are unique": """
        y = x
        if x.sum() > 0:
            y = torch.unique(x)
            k = 1
        else:
            k = 2
        return y, k
""",
}


@pytest.mark.parametrize("body", [*ALIASES.values(), *SIZES.values()], ids=[*ALIASES, *SIZES])
def test_a_choice_writes_and_gives_what_eager_does(body):
    """What is written, and its shape; compiled as in eager."""
    head = HEAD.replace("self.seen = 0", "self.limit = 0.5")
    head = head.replace("    def f", "    def clear(self, x):\n        x.zero_()\n\n    def f")
    fixed = support.fixed(head + body, unsafe=True).source.text
    before, after = [
        side_by_side.load_text(t, "model.py", "model").Model() for t in (head + body, fixed)
    ]
    torch._dynamo.reset()
    compiled = torch.compile(after, backend="eager") if fixed != head + body else before
    for x in (torch.ones(4, 3) * 3, -torch.ones(4, 3), torch.eye(4, 3) - 0.1):
        mine, other = x.clone(), x.clone()
        torch.testing.assert_close(compiled(mine), before(other))
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize(
    "taken", ["hash(i)", "len(str(i))", "{0.5: 1.0}.get(i, 2.0)", "len(i.hex())"]
)
def test_a_path_in_which_the_graph_breaks_again_is_not_offered(taken):
    """Once a turn of the loop, where it broke once."""
    body = f"\n        for i in x.tolist():\n            x = x + {taken}\n        return x\n"
    result = support.fixed(HEAD + body, unsafe=True, ignore=())
    assert result.source.text == HEAD + body
    (finding,) = (f for f in result.left if f.code == "DYN103")
    assert "the graph would break at line" in finding.kept


_READ_AND_USED = """
import torch


@torch.compile(backend="eager")
def step(x: torch.Tensor, y: torch.Tensor):
    s = x.abs().max().item()
    if s > 1:
        y = y * s
    return y + s
"""


def test_no_gradient_flows_through_a_number_that_is_read():
    namespaces = {}, {}
    exec(_READ_AND_USED.replace("@torch", "# @torch"), namespaces[0])
    exec(support.fixed(_READ_AND_USED, unsafe=True).source.text, namespaces[1])
    torch._dynamo.reset()
    for value in (0.5, 2.0, 3.0):
        grads = []
        for made in namespaces:
            x, y = torch.full((3,), value, requires_grad=True), torch.ones(3, requires_grad=True)
            made["step"](x, y).sum().backward()
            grads.append((x.grad is None or not x.grad.any(), y.grad.tolist()))
        assert grads[0] == grads[1]
