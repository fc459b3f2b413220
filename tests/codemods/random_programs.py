"""Random small programs around one branch on a tensor's value, and all that can be seen of them in
eager: values, dtypes, strides, gradients, aliases, printed text, exceptions, state."""

import contextlib
import io
import random
import warnings

import torch

HEAD = """
import contextlib
import torch
from torch import nn
import torch.nn.functional as F

KEPT = []


class Quiet(contextlib.AbstractContextManager):
    def __exit__(self, *error):
        return True


def show(t):
    print("shown", t)


def bump(t):
    t.add_(1)


def same(t):
    return t


def halves(t: torch.Tensor):
    t = t.float()
    return t * 0.5


def freeze():
    torch.set_grad_enabled(False)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)
        self.relu = nn.ReLU()
        self.drop = nn.Dropout(0.5)
        self.up = nn.Upsample(scale_factor=2)
        self.pool = nn.MaxPool1d(2)
        self.norm = nn.LayerNorm(4)
        self.w = nn.Parameter(torch.ones(4))
        self.register_buffer("mem", torch.zeros(4))
        self.scale = torch.ones(4)

    def note(self, t):
        self.seen = t

{decorator}    def forward(self, x, n: int = 2, k: float = 0.5, limit: float = None):
"""

MAKERS = """
self.fc(x)|torch.sigmoid(x)|torch.relu(x)|torch.tanh(x)|x * 2|x.float()|x.long()|x.double()|x + 0.5
x > 0|x.view(-1)|x.t()|x.detach()|self.mem|self.w|self.scale|self.drop(x)|self.relu(x)|self.norm(x)
torch.softmax(x, -1)|x.abs()|x.cumsum(0)|x.clone()|x.clamp(min=0)|torch.exp(x)|x.sum(-1)|x.mean()
self.fc(x).expand(2, 2, 4)|self.fc(x)[:, ::2]|same(x)|halves(x)|torch.zeros_like(x)|x.half()
torch.ones(4)|(x > 0).to(torch.uint8)|x.int()|self.fc(x).contiguous()|F.relu(x)|x.square()
self.fc(x).requires_grad_()|x.sign()|x.round()|torch.zeros(4, requires_grad=True)|F.dropout(x, 0.0)
self.fc(x) > 0|x.bool()|torch.where(x > 0, x, 0)|self.fc(x).sum()|x.long() + 1|torch.arange(4)
"""
TESTS = """
x.sum() > 0|y.sum() > 2|(x > 0).all()|torch.rand(()) > 0.5|y.any()|x.mean().item() > 0
not (x > 0).any()|x.sum() > 0 and y.sum() > 0|self.training and x.sum() > 0|x.max() > 1|x.sum()
torch.isnan(x).any()|y.max() >= 1|bool(x.sum() > 0)|(x.sum() > 0).reshape(1)
"""
SIDES = """
y * 2|y + 1|y - 1|-y|y * 0.5|y / 2|y.clamp(max=1)|y.clamp(min=0.5)|y.clamp(0, 1)|torch.relu(y)|y
y.clone()|y.float()|y + y|y + y.sum()|y * n|y + n|y + k|y.detach() * 2|torch.zeros_like(y)|y.sqrt()
y / y.sum()|y.contiguous()|y + 1000|y * 1e30|y.clamp(max=limit)|y.long()|y + z|y * z|torch.ones_like(y)
y.neg()|y - y|y + x|self.fc(x)|F.relu(y)|y * 1e-9|y - 0.5|y.double()|y + y.mean()|y.clamp(-300, 300)
y.clamp(max=1e6)|self.act(y)|y.t()|y + True|1 - y|y.view(-1)|same(y)
"""
STATEMENTS = """
z = y|z = y.view(-1)|z = y.detach()|z = [y]|self.last = y|KEPT.append(y)|print(y)|print(y.mean())
y.add_(1)|y += 1|bump(y)|show(y)|self.note(y)|self.act(y)|F.relu_(y)|F.relu(y, inplace=True)
z = y + 1|z = self.fc(x)|y[0] = 3|z = y * 2|torch._foreach_add_([y], 1)|z = y is x|z = str(y)
y.retain_grad()|z = y.sum().item()|z = y.T|y = same(y)|freeze()|torch.set_grad_enabled(True)
self.mem = y|z = id(y) == id(x)|z = y.requires_grad|z = y.is_leaf|z = y.stride()|z = F.relu(y)
z = f"{y}"|z = y.data_ptr() == x.data_ptr()|x.mul_(2)|z = y.to(torch.float32)|z = lambda: y|yield_
y = y.double()|y = self.relu(y)|z = y.reshape(-1)|z = y.grad_fn is None|y = self.norm(y)
"""
WRAPS = """
|||||with torch.no_grad():|with torch.inference_mode():|with torch.set_grad_enabled(False):
with Quiet():|try:|for i in range(2):|while True:|with torch.enable_grad():|if n > 1:
with torch.autocast("cpu", dtype=torch.bfloat16):
"""
RETURNS = "y|y|y|y, z|y, x|y * 2|(y, self.mem)|[y, y]|y.view(-1)|z, y|{'a': y}|y.sum()"
INPUTS = """
torch.randn(2, 4)|torch.ones(2, 4)|-torch.ones(2, 4)|torch.ones(2, 4, dtype=torch.long)
torch.ones(4, 4).t()|torch.ones(2, 8)[:, ::2]|torch.full((2, 4), float("nan"))
torch.randn(2, 4).to_sparse()|torch.ones(1, 4).expand(2, 4)|torch.randn(2, 4).to(torch.bfloat16)
torch.ones(2, 4, dtype=torch.uint8)|torch.ones(2, 4, dtype=torch.bool)|-torch.ones(4)
torch.zeros(2, 4)|torch.randn(2, 4, dtype=torch.float64)|torch.ones(0, 4)|torch.ones(1, 1)
torch.ones(2, 4, dtype=torch.complex64)
"""


def _words(text):
    return [w for line in text.strip("\n").split("\n") for w in line.split("|")]


MAKERS, TESTS, SIDES, STATEMENTS = map(_words, (MAKERS, TESTS, SIDES, STATEMENTS))
WRAPS, RETURNS, INPUTS = map(_words, (WRAPS, RETURNS, INPUTS))
_USUAL_MAKERS = ["self.fc(x)", "torch.sigmoid(x)", "x * 2", "self.fc(x) + 1", "torch.relu(x)"]
_USUAL_SIDES = ["y * 2", "y + 1", "y * 0.5", "-y", "y.clamp(max=1)", "y - 1"]


def program(seed):
    """The source of a program."""
    draw = random.Random(seed)
    usual = 0.5 if draw.random() < 0.5 else 1.0  # one thing alone that may be in the way, or many
    lines = [f"y = {_pick(draw, MAKERS, _USUAL_MAKERS, usual)}", "z = y * 1"]
    lines += [draw.choice(STATEMENTS) for _ in range(draw.choice((0, 0, 0, 1, int(3 - 2 * usual))))]
    lines += _branch(draw, usual)
    lines += [draw.choice(STATEMENTS) for _ in range(draw.choice((0, 0, 0, 1, int(3 - 2 * usual))))]
    lines = ["yield y" if line == "yield_" else line for line in _wrapped(draw, lines)]
    lines += [f"return {draw.choice(RETURNS)}"]
    decorator = draw.choice(("", "", "", "", "    @torch.no_grad()\n"))
    body = "".join(f"        {line}\n" for line in lines)
    return HEAD.replace("{decorator}", decorator) + body


def _pick(draw, every, usual, share):
    return draw.choice(usual if draw.random() < share else every)


def _branch(draw, usual):
    test, one = draw.choice(TESTS), _pick(draw, SIDES, _USUAL_SIDES, usual)
    other = draw.choice(["y", "y", "y", _pick(draw, SIDES, _USUAL_SIDES, usual)])
    shape = draw.randrange(5)
    if shape == 0:
        return [f"y = {one} if {test} else {other}"]
    if shape == 1:
        return [f"z = {one} if {test} else {other}", "y = y + 0"]
    if shape == 2 and other != "y":
        return [f"if {test}:", f"    y = {one}", "else:", f"    y = {other}"]
    if shape == 3:
        number = draw.choice(["m = 3", "m = n * 2", "m = 1 << n", "m = k + 1.5"])
        return [f"if {test}:", f"    {number}", "    y = y * 2 + m"]
    return [f"if {test}:", f"    y = {one}"]


def _wrapped(draw, lines):
    """Some consecutive statements under a `with`, `try`, loop or the like."""
    wrap = draw.choice(WRAPS)
    groups = _groups(lines)
    if not wrap:
        return lines
    start = draw.randrange(len(groups))
    end = draw.randrange(start, len(groups)) + 1
    inside = ["    " + line for group in groups[start:end] for line in group]
    tail = []
    if wrap == "try:":
        tail = ["except (RuntimeError, TypeError):", "    y = x.float()"]
    if wrap == "while True:":
        tail = ["    break"]
    before, after = groups[:start], groups[end:]
    flat = [line for group in before for line in group]
    return [*flat, wrap, *inside, *tail, *(line for group in after for line in group)]


def _groups(lines):
    groups = []
    for line in lines:
        if line.startswith((" ", "else:")):
            groups[-1].append(line)
        else:
            groups.append([line])
    return groups


# What can be seen


def seen(source, text, grad, outer):
    """A dict of all that a program shows on one input; `grad`: the input requires a gradient;
    `outer`: a grad mode around the call."""
    space, printed = {"__name__": "drawn"}, io.StringIO()
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(printed):
        warnings.simplefilter("always")
        torch.set_warn_always(True)
        exec(compile(source, "<drawn>", "exec"), space)
        model = space["Model"]()
        x = eval(text, {"torch": torch})
        if grad and x.is_floating_point() and x.layout == torch.strided:
            x.requires_grad_()
        found = _called(model, x, outer)
    torch.set_grad_enabled(True)
    torch.set_warn_always(False)
    found["printed"] = printed.getvalue()
    found["warned"] = sorted(str(w.message)[:80] for w in warned)
    return found


def _called(model, x, outer):
    found = {}
    try:
        with outer():
            out = model(x)
            out = list(out) if hasattr(out, "send") else out
        found["mode"] = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        flat = _flat(out)
        found |= {f"out {i}": one_value(t) for i, t in enumerate(flat)}
        everything = [x, *model.parameters(), *model.buffers(), *vars(model).values(), *flat]
        found["shared"] = _shared([t for t in everything if isinstance(t, torch.Tensor)])
        found |= _differentiated(flat, model, x)
    except Exception as error:
        found["error"] = type(error).__name__, str(error).split("\n")[0]
    torch.set_grad_enabled(True)
    found["x"] = one_value(x)
    found |= {f"state {n}": one_value(t) for n, t in model.state_dict(keep_vars=True).items()}
    return found


def _flat(out):
    if isinstance(out, (list, tuple)):
        return [t for o in out for t in _flat(o)]
    return [t for o in out.values() for t in _flat(o)] if isinstance(out, dict) else [out]


def one_value(value):
    if not isinstance(value, torch.Tensor):
        return "a function" if callable(value) else repr(value)
    if value.layout != torch.strided:
        return str(value.layout), str(value.dtype), str(value.to_dense().tolist())
    values = str(value.detach().tolist()).replace("-0.0", "0.0")
    strides = [s for s, n in zip(value.stride(), value.shape, strict=True) if n > 1]
    strides = strides if value.numel() else []
    history = value.is_leaf, value.requires_grad
    return str(value.dtype), tuple(value.shape), tuple(strides), values, history


def _shared(tensors):
    """For each pair of tensors: one object, one memory, or neither."""
    kept = [t for t in tensors if t.layout == torch.strided and t.numel()]
    return [
        (a is b, a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr())
        for i, a in enumerate(kept)
        for b in kept[:i]
    ]


def _differentiated(flat, model, x):
    """The gradients of a sum over what came out."""
    tensors = [t for t in flat if isinstance(t, torch.Tensor) and t.requires_grad]
    if not tensors:
        return {}
    sum((t.float() * 3).sum() for t in tensors).backward()
    leaves = {"x": x, **dict(model.named_parameters())}
    return {f"grad {n}": one_value(t.grad) for n, t in leaves.items() if t.is_leaf}
