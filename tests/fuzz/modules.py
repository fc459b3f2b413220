"""Random modules, trained some steps with batches whose size changes, compiled and in eager.

    python -m tests.fuzz.modules --modules 500 [--first SEED]

Compared are results, gradients, parameters, buffers, attributes and the generator's state.
"""

import argparse
import dataclasses
import random

import dynfix
import torch

from .grammar import lines
from .judge import loaded, quietly

# {c} and {d} are the numbers of channels before and after; what has no {d} keeps them.
IMAGES = """
i nn.Conv2d({c}, {d}, 3, padding=1) ; i nn.Conv2d({c}, {d}, 3, stride=2, padding=1, bias=False)
i nn.Conv2d({c}, {c}, 3, padding=1, groups={c}) ; i nn.Conv2d({c}, {d}, 1) ; i nn.BatchNorm2d({c})
i nn.BatchNorm2d({c}, momentum=None) ; i nn.BatchNorm2d({c}, track_running_stats=False)
i nn.GroupNorm(2, {c}) ; i nn.InstanceNorm2d({c}, affine=True, track_running_stats=True)
i nn.ReLU(inplace=True) ; i nn.GELU() ; i nn.SiLU(inplace=True) ; i nn.PReLU({c}) ; i nn.Dropout(0.3)
i nn.Dropout2d(0.3) ; i nn.MaxPool2d(2, ceil_mode=True) ; i nn.AvgPool2d(2, 1) ; i nn.Softmax2d()
i nn.AdaptiveAvgPool2d(4) ; i nn.Upsample(scale_factor=2) ; i nn.Upsample(size=(5, 7), mode="bilinear")
i nn.ConvTranspose2d({c}, {d}, 2, stride=2) ; i nn.ReflectionPad2d(1) ; i nn.LocalResponseNorm(2)
i nn.utils.parametrizations.weight_norm(nn.Conv2d({c}, {d}, 1)) ; i nn.LeakyReLU(0.2, True)
i nn.utils.parametrizations.spectral_norm(nn.Conv2d({c}, {d}, 1)) ; i nn.ZeroPad2d(1)
"""
ROWS = """
v nn.Linear({c}, {d}) ; v nn.Linear({c}, {d}, bias=False) ; v nn.LayerNorm({c}) ; v nn.RMSNorm({c})
v nn.LayerNorm({c}, elementwise_affine=False) ; v nn.BatchNorm1d({c}) ; v nn.Dropout(0.4)
v nn.BatchNorm1d({c}, momentum=0.3, eps=1e-3) ; v nn.GELU("tanh") ; v nn.ELU(inplace=True) ; v nn.Tanh()
v nn.Softplus() ; v nn.Threshold(0.1, 0.0) ; v nn.Hardtanh(inplace=True) ; v nn.AlphaDropout(0.2)
v nn.Softmax(-1) ; v nn.LogSoftmax(1) ; v nn.CELU() ; v nn.Mish()
v nn.utils.parametrizations.weight_norm(nn.Linear({c}, {d}))
v nn.utils.parametrizations.spectral_norm(nn.Linear({c}, {d}))
"""
SEQUENCES = """
s nn.Linear({c}, {d}) ; s nn.LayerNorm({c}) ; s nn.Conv1d(6, 6, 3, padding=1) ; s nn.Dropout(0.2)
s nn.MultiheadAttention({c}, 2, batch_first=True, dropout=0.1) ; s nn.GELU() ; s nn.BatchNorm1d(6)
s nn.GRU({c}, {d}, batch_first=True) ; s nn.LSTM({c}, {d}, batch_first=True)
s nn.RNN({c}, {d}, batch_first=True) ; s nn.TransformerEncoderLayer({c}, 2, 12, batch_first=True)
"""
KINDS = (
    ("torch.randn(n, {c}, 9, 8)", lines(IMAGES)),
    ("torch.randn(n, {c})", lines(ROWS)),
    ("torch.randn(n, 6, {c})", lines(SEQUENCES)),
)
# How `forward` calls a layer.
CALLS = (
    *["x = {l}(x)"] * 6,
    "x = x + {l}(x)",
    "y = {l}(x); x = y * y.sigmoid()",
    "self.count += 1; x = {l}(x) * (1 + self.count)",
    "x = {l}(x); self.last = x.detach().mean()",
    "self.seen.append(len(x.shape)); x = {l}(x)",
    "x = {l}(x) * self.scale",
    "x = {l}(x); self.ema.lerp_(x.detach().mean(), 0.1)",
    "x = {l}(x) if self.training else {l}(x) * 2",
    "x = torch.utils.checkpoint.checkpoint({l}, x, use_reentrant=False)",
    "x = {l}(x.clone()).to(x.dtype)",
    "self.steps.add_(1); x = {l}(x) / self.steps",
)
SOURCE = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        {made}
        self.count, self.seen, self.last = 0, [], None
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("ema", torch.zeros(()))
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x):
        {called}
        return x

def batch(n):
    return {batch}
"""
SIZES = (4, 4, 4, 3, -5, 4)  # of batches; in evaluation where negative


@dataclasses.dataclass
class Net:
    seed: int
    text: str
    inputs_need_gradients: bool


def net(seed):
    rng = random.Random(seed)
    batch, layers = rng.choice(KINDS)
    channels, made, called = rng.choice([4, 6, 8]), [], []
    batch = batch.format(c=channels)
    for number in range(rng.randint(1, 7)):
        _, layer = rng.choice(layers)
        after, name = rng.choice([4, 6, 8]), f"self.layer{number}"
        made.append(f"{name} = {layer.format(c=channels, d=after)}")
        call = rng.choice(CALLS).format(l=name)
        if layer.startswith(("nn.GRU", "nn.LSTM", "nn.RNN")):
            call = f"x, _ = {name}(x)"
        if layer.startswith("nn.Multihead"):
            call = f"x = x + {name}(x, x, x, need_weights={rng.choice([True, False])})[0]"
        called.append(call)
        channels = after if "{d}" in layer else channels
    body = {"made": "\n        ".join(made), "called": "\n        ".join(called)}
    return Net(seed, SOURCE.format(batch=batch, **body), rng.random() < 0.3)


def trained(net, compile_):
    """What each step gave and left, by name; the name of the error at the end, if there was one."""
    module = loaded(net.text)
    torch.manual_seed(net.seed)
    model = module.Net()
    call = compile_(model)
    update, steps = torch.optim.SGD(model.parameters(), 0.01, momentum=0.5), []
    for turn, size in enumerate(SIZES):
        torch.manual_seed(100 + turn)
        model.train(size > 0)
        x = module.batch(abs(size)).requires_grad_(net.inputs_need_gradients)
        try:
            result = call(x)
            result.pow(2).mean().backward()
        except Exception as error:
            return [*steps, {"error": type(error).__name__}]
        found = {"result": result, "input's gradient": x.grad, "generator": torch.rand(1)}
        found |= {f"gradient of {n}": p.grad for n, p in model.named_parameters()}
        if turn % 2:
            update.step()
        update.zero_grad(set_to_none=net.seed % 2 == 0)
        found |= {**model.state_dict(), "last": model.last}
        steps.append({name: t if t is None else t.detach().clone() for name, t in found.items()})
        steps[-1] |= {"count": model.count, "seen": len(model.seen), "strides": result.stride()}
    return steps


def difference(net):
    """What differs from eager, or nothing; None where eager raises at once."""
    theirs = quietly(trained, net, lambda model: model)
    if "error" in theirs[0]:
        return None
    ours = quietly(trained, net, dynfix.compile)
    for turn, (one, two) in enumerate(zip(ours, theirs, strict=False)):
        if one.keys() != two.keys():
            return f"step {turn}: {one.get('error')} instead of {two.get('error')}"
        differing = [name for name in two if not _same(one[name], two[name])]
        if differing:
            return f"step {turn}: {', '.join(differing)}"
    return "" if len(ours) == len(theirs) else f"{len(ours)} steps instead of {len(theirs)}"


def _same(one, two):
    if not (isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor)):
        return type(one) is type(two) and one == two
    if (one.shape, one.dtype) != (two.shape, two.dtype):
        return False
    size = float(two.abs().max()) if two.numel() else 0.0
    return torch.allclose(one, two, rtol=1e-3, atol=2e-4 * max(size, 0.05), equal_nan=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modules", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    count = 0
    for seed in range(given.first, given.first + given.modules):
        made = net(seed)
        found = difference(made)
        count += found is not None
        if found:
            print(f"seed {seed}: {found}\n{made.text}", flush=True)
    print(f"{count} modules")


if __name__ == "__main__":
    main()
