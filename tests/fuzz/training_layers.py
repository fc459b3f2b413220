"""Layers of which random models are made; each takes and gives (batch, length, width)."""

import torch
from torch import nn
from torch.nn import functional as F

LONGEST = 16


def activation(rng):
    kinds = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.ELU, nn.Hardswish, nn.Mish, nn.PReLU)
    return rng.choice((*kinds, lambda: nn.ReLU(inplace=True), lambda: nn.GELU("tanh")))()


class Residual(nn.Module):
    """Counts its calls, and scales what it adds in one of three ways."""

    def __init__(self, rng, width):
        super().__init__()
        self.norm, self.act = nn.LayerNorm(width), activation(rng)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.scale = rng.choice((1.0, 0.5, nn.Parameter(torch.full((width,), 0.1))))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + self.down(self.act(self.up(self.norm(x)))) * self.scale


class Gated(nn.Module):
    def __init__(self, rng, width):
        super().__init__()
        self.both = nn.Linear(width, 2 * width)

    def forward(self, x):
        value, gate = self.both(x).chunk(2, -1)
        return value * torch.sigmoid(gate) + x


class Attention(nn.Module):
    def __init__(self, rng, width):
        super().__init__()
        self.heads, self.kind = rng.choice((1, 2, 4)), rng.choice(("full", "causal", "mask", "own"))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        mask = torch.ones(LONGEST, LONGEST, dtype=torch.bool).tril()
        self.register_buffer("mask", mask)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mask = self.mask[:length, :length]
        if self.kind == "own":
            weights = (q @ k.mT) / q.shape[-1] ** 0.5
            made = weights.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        else:
            how = {"full": {}, "causal": {"is_causal": True}, "mask": {"attn_mask": mask}}
            made = F.scaled_dot_product_attention(q, k, v, **how[self.kind])
        return x + self.out(made.transpose(1, 2).reshape(rows, length, width))


class Average(nn.Module):
    """Takes off a running mean."""

    def __init__(self, rng, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("count", torch.tensor(0))
        self.rate = rng.choice((0.1, 0.01))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                mean = x.detach().flatten(0, -2).mean(0)
                self.mean.mul_(1 - self.rate).add_(mean, alpha=self.rate)
                self.count += 1
        return x - self.mean


class Experts(nn.Module):
    def __init__(self, rng, width):
        super().__init__()
        self.router = nn.Linear(width, 3)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        best, which = self.router(x).softmax(-1).topk(2, -1)
        every = torch.stack([expert(x) for expert in self.experts], -2)
        picked = every.gather(-2, which[..., None].expand(*which.shape, x.shape[-1]))
        return x + (picked * best[..., None]).sum(-2)


class Dropped(nn.Module):
    def __init__(self, rng, width):
        super().__init__()
        self.rate = rng.choice((0.0, 0.1, 0.5))

    def forward(self, x):
        return F.dropout(x, self.rate, self.training)


class Branch(nn.Module):
    """A value decides which layer is taken."""

    def __init__(self, rng, width):
        super().__init__()
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return self.one(x) if x.mean() > 0 else self.two(x)


class Bounded(nn.Module):
    """A size decides what is done."""

    def __init__(self, rng, width):
        super().__init__()
        self.least, self.mixed = rng.choice((5, 7)), nn.Linear(5, 5)

    def forward(self, x):
        if x.shape[1] < self.least:
            return x * 2
        made = self.mixed(x[:, :5].transpose(1, 2)).transpose(1, 2)
        return x + F.pad(made, (0, 0, 0, x.shape[1] - 5))


class Recurrent(nn.Module):
    def __init__(self, rng, width):
        super().__init__()
        self.layer = rng.choice((nn.GRU, nn.LSTM, nn.RNN))(width, width, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0] + x


class Running(nn.Module):
    def __init__(self, rng, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        counts = torch.arange(1, x.shape[1] + 1, device=x.device).view(1, -1, 1)
        return x.cumsum(1) / counts * self.weight


class Convolved(nn.Module):
    def __init__(self, rng, width):
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, padding=1, groups=rng.choice((1, width)))
        norms = (nn.BatchNorm1d, nn.InstanceNorm1d, lambda width: nn.GroupNorm(2, width))
        self.norm, self.act = rng.choice(norms)(width), activation(rng)

    def forward(self, x):
        return x + self.act(self.norm(self.conv(x.mT))).mT


class Rotary(nn.Module):
    def __init__(self, rng, width):
        super().__init__()
        self.register_buffer("steps", 100.0 ** (-torch.arange(0, width, 2) / width))

    def forward(self, x):
        angles = torch.outer(torch.arange(x.shape[1], device=x.device), self.steps).repeat(1, 2)
        one, two = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-two, one], -1) * angles.sin()


class Noting(nn.Module):
    """Keeps a list, and a number of its last call."""

    def __init__(self, rng, width):
        super().__init__()
        self.layer, self.seen, self.last = nn.Linear(width, width), [], None

    def forward(self, x):
        made = self.layer(x)
        self.last = made.detach().abs().mean()
        self.seen.append(len(self.seen))
        return made + x


class Latent(nn.Module):
    """Draws twice from one distribution."""

    def __init__(self, rng, width):
        super().__init__()
        self.layer = nn.Linear(width, 2 * width)

    def forward(self, x):
        mean, spread = self.layer(x).chunk(2, -1)
        one, two = (mean + 0.1 * spread * torch.randn_like(spread) for _ in range(2))
        return x + (one + two.tanh()) / 2


LAYERS = (
    *(Residual, Residual, Gated, Attention, Attention, Average, Experts, Dropped, Branch, Bounded),
    *(Recurrent, Running, Convolved, Rotary, Noting, Latent),
)
CHANGING = (Residual, Average, Convolved, Recurrent, Noting)  # not below a checkpoint
