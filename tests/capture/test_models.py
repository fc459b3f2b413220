"""Modules and functions of torch as users write them: one graph, equal to eager, gradients and
written buffers included."""

import dataclasses
from typing import NamedTuple

import dynfix
import pytest
import torch
from counting_graphs import Counting, outside
from helpers import Case, X, Y, call, one_graph, same

nn, F = torch.nn, torch.nn.functional
SEQ = [
    (torch.arange(24.0).view(2, 4, 3).sin(),),
    (torch.arange(24.0).view(2, 4, 3).cos(),),
    (torch.ones(2, 4, 3),),
]
IMG = [
    (torch.arange(2 * 3 * 8 * 8.0).view(2, 3, 8, 8).sin(),),
    (torch.arange(2 * 3 * 8 * 8.0).view(2, 3, 8, 8).cos(),),
]
FLAT = [
    (torch.arange(12.0).view(4, 3).sin(),),
    (torch.arange(12.0).view(4, 3).cos(),),
    (torch.ones(4, 3),),
]


def _first(module):
    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, x):
            return self.inner(x)[0]

    return First()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.again = self.a

    def forward(self, x):
        return self.again(self.b(self.a(x)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(3, 1, batch_first=True)

    def forward(self, x):
        out, weights = self.attn(x, x, x, need_weights=True)
        return out + weights.sum()


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(4)])
        self.named = nn.ModuleDict({"relu": nn.ReLU(), "tanh": nn.Tanh()})
        self.params = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(2)])
        self.table = nn.ParameterDict({"k": nn.Parameter(torch.ones(3))})
        self.plain = [nn.Linear(3, 3)]

    def forward(self, x):
        for i, layer in enumerate(self.layers[1:3]):
            x = layer(x) + i
        for layer in reversed(self.layers):
            x = layer(x)
        for name, act in self.named.items():
            x = act(x) * len(name)
        for p in self.params:
            x = x * p
        x = self.plain[0](x) + self.table["k"] + self.layers[-1](x)
        return (
            x * len(self.layers) + ("relu" in self.named) + sum(p.sum() for p in self.parameters())
        )


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(10, 3)
        self.register_buffer("positions", torch.arange(10), persistent=False)

    def forward(self, x):
        _, t, _ = x.shape
        mask = torch.tril(torch.ones(t, t)).view(1, t, t)
        scores = (x @ x.transpose(-2, -1)).masked_fill(mask == 0, float("-inf")).softmax(-1)
        return scores @ x + self.emb(self.positions[:t]) + torch.arange(t, device=x.device)[:, None]


MODELS = {
    "lstm": (lambda: _first(nn.LSTM(3, 4, batch_first=True)), SEQ),
    "gru": (lambda: _first(nn.GRU(3, 4, 2, batch_first=True, bidirectional=True)), SEQ),
    "rnn": (lambda: _first(nn.RNN(3, 4)), SEQ),
    "cell": (lambda: nn.GRUCell(3, 4), FLAT),
    "lstm cell": (lambda: _first(nn.LSTMCell(3, 4)), FLAT),
    "attention": (Attention, SEQ),
    "encoder": (lambda: nn.TransformerEncoderLayer(3, 1, 8, batch_first=True), SEQ),
    "stack": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(3, 1, 8, 0.0, batch_first=True), 2
        ),
        SEQ,
    ),
    "batch norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        IMG,
    ),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.AlphaDropout(0.2)),
        FLAT,
    ),
    "norms": (
        lambda: nn.Sequential(
            nn.GroupNorm(1, 3),
            nn.InstanceNorm2d(3, track_running_stats=True),
            nn.LocalResponseNorm(2),
        ),
        IMG,
    ),
    "conv": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding="same", padding_mode="circular"),
            nn.ConvTranspose2d(4, 3, 2),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.LazyLinear(2) if False else nn.Identity(),
        ),
        IMG,
    ),
    "up": (
        lambda: nn.Sequential(
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.PixelUnshuffle(2),
            nn.ZeroPad2d(1),
            nn.Unfold(3),
        ),
        IMG,
    ),
    "rms": (
        lambda: nn.Sequential(
            nn.RMSNorm(3), nn.Softmax(-1), nn.GELU(), nn.SiLU(), nn.PReLU(), nn.GLU(-2)
        ),
        SEQ,
    ),
    "bilinear": (lambda: Bilinear(), FLAT),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), FLAT),
    "spectral": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)), FLAT),
    "tied": (Tied, FLAT),
    "lists": (Lists, FLAT),
    "positions": (Positions, SEQ),
}


class Bilinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Bilinear(3, 3, 2)

    def forward(self, x):
        return F.cosine_similarity(self.inner(x, x), self.inner(x, x + 1)) + F.pairwise_distance(
            x, x * 2
        )


def seeded(build):
    def make():
        torch.manual_seed(0)
        return build()

    return make


@pytest.mark.parametrize("name", MODELS)
def test_model(name):
    build, inputs = MODELS[name]
    fn = same(seeded(build), *inputs, lambda m: m.eval(), *inputs)
    one_graph(fn)


@pytest.mark.parametrize("name", ["lstm", "batch norm", "encoder", "lists", "dropout"])
def test_nothing_outside_the_graph(name):
    build, inputs = MODELS[name]
    backend = Counting()
    fn = dynfix.compile(seeded(build)(), backend=backend)
    for args in inputs:
        fn(*args)
    calls = backend.calls
    with torch.no_grad():
        fn(*inputs[0])
        _, names = outside(lambda: fn(*inputs[0]))
    assert backend.calls > calls and not names


def test_embedding_bag_and_losses():
    def make():
        torch.manual_seed(0)
        bag, emb = nn.EmbeddingBag(10, 3, mode="mean"), nn.Embedding(10, 3, padding_idx=0)
        losses = [nn.CrossEntropyLoss(label_smoothing=0.1), nn.NLLLoss(), nn.MultiMarginLoss()]

        def f(i, t):
            x = bag(i, torch.tensor([0, 2])) + emb(t)
            return (
                sum(loss(x.log_softmax(-1), t) for loss in losses)
                + F.mse_loss(x, x * 2)
                + F.huber_loss(x, x * 3)
                + F.binary_cross_entropy_with_logits(x, x.sigmoid().detach())
            )

        return Case(fn=f, watch=lambda: list(bag.parameters()) + list(emb.parameters()))

    one_graph(
        same(
            make,
            (torch.tensor([1, 2, 3]), torch.tensor([0, 1])),
            (torch.tensor([4, 2, 9]), torch.tensor([2, 1])),
        ),
        1,
    )


def test_functional_variety():
    def f(x):
        y = F.pad(x, (1, 1)).unfold(-1, 2, 1)
        z = (
            F.interpolate(x[None], size=5)
            + F.one_hot(torch.arange(5) % 3, 5).float()[None, :2, None].sum()
        )
        a, b = x.chunk(2, 0)
        return (
            y,
            z,
            torch.cat([a, b], 1),
            x.roll(1),
            x.flip(0),
            x.cumsum(0),
            x.scatter(0, torch.zeros(1, 3, dtype=torch.long), 9.0),
            x.gather(1, torch.zeros(4, 1, dtype=torch.long)),
            torch.where(x > 0, x, 0.0),
            x.clamp(-0.5, 0.5),
            x.std(0),
            x.var(1),
            x.norm(),
            torch.einsum("ij,kj->ik", x, x),
            x.index_select(0, torch.tensor([0, 1])),
            torch.stack([x, x]).permute(1, 2, 0).contiguous().view(4, -1),
            x.argmax(),
            x.to(torch.float64),
            x.type_as(x.double()),
            x.expand(2, 4, 3),
            x[..., None],
            x[:, [0, 2]],
            x[::2, 1:],
        )

    one_graph(same(lambda: f, *FLAT), 1)


def test_distributions():
    def f(x):
        d = torch.distributions.Normal(x.mean(), x.std() + 1)
        c = torch.distributions.Categorical(logits=x)
        return (
            d.rsample((2,)),
            d.log_prob(x),
            c.sample(),
            c.entropy(),
            torch.distributions.kl_divergence(d, torch.distributions.Normal(0.0, 1.0)),
            torch.distributions.Bernoulli(x.sigmoid()).sample(),
        )

    same(lambda: f, *FLAT)


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: tuple = ()
    loss: object = None


class Pair(NamedTuple):
    a: torch.Tensor
    b: object


def test_outputs_of_many_types():
    def f(x):
        y = x * 2
        view = y.view(-1)
        return {
            "d": y,
            3: [view, (x, x[0])],
            "o": Output(y, (x,), None),
            "p": Pair(y, [y]),
            "n": None,
            "s": "text",
            "f": 1.5,
            "shape": x.shape,
            "dtype": x.dtype,
            "set": {1},
            "x": x,
            "v": x.t(),
        }

    one_graph(same(lambda: f, *FLAT), 1)


def test_outputs_that_alias():
    def f(x, y):
        a = x.view(-1)
        b = a[1:]
        c = x.detach()
        x.add_(1)
        return x, a, b, c, y, y[0], a + 1, y.expand(2, *y.shape), x.t(), a.view_as(x)

    same(
        lambda: f,
        *[(x.clone(), z.clone()) for (x,), (z,) in zip(FLAT, FLAT[1:] + FLAT[:1], strict=True)],
    )


def test_kv_cache_on_self():
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 3)
            self.keys, self.past, self.length = [], None, 0

        def forward(self, x, use_cache=True):
            k = self.lin(x)
            if self.past is not None and use_cache:
                k = torch.cat([self.past, k], 0)
            self.past = k
            self.keys.append(k)
            self.length = self.past.shape[0]
            return k.sum(0), len(self.keys)

    same(
        seeded(Cached),
        *FLAT,
        *FLAT,
        lambda m: setattr(m, "past", None),
        lambda m: m.keys.clear(),
        *FLAT,
        call(FLAT[0][0], use_cache=False),
    )


def test_static_cache_written_in_place():
    class Static(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.zeros(8, 3))
            self.register_buffer("pos", torch.zeros((), dtype=torch.long))

        def forward(self, x):
            self.cache[self.pos + torch.arange(2)] = x[:2]
            self.cache.index_add_(0, torch.tensor([0]), x[:1])
            self.pos += 2
            return self.cache.sum(0)

    same(seeded(Static), *FLAT)


def test_ema_and_running_stats():
    class Ema(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.steps = 0

        def forward(self, x):
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
                self.mean = self.mean * 1.0
            return x - self.mean

    same(seeded(Ema), *FLAT, *FLAT)


def test_training_follows_eager():
    def make():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1)
        )

    def run(compiled):
        net = make()
        fn = dynfix.compile(net, backend="eager") if compiled else net
        opt = torch.optim.AdamW(net.parameters(), lr=0.05)
        losses = []
        torch.manual_seed(1)
        for step in range(8):
            opt.zero_grad()
            loss = fn(FLAT[step % 3][0]).pow(2).mean()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        return losses, [p.detach().clone() for p in net.parameters()]

    (a, pa), (b, pb) = run(False), run(True)
    assert a == b and all(map(torch.equal, pa, pb))


def test_native_agrees_on_small_model():
    fn = same(
        seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU())),
        *FLAT,
        backend="aot_eager",
        tolerance=(1e-5, 1e-6),
    )
    one_graph(fn, 1)
    assert torch.allclose(X + Y, Y + X)


def test_lazy_layers_get_their_sizes_in_eager_and_are_captured_then():
    def make():
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.ReLU(), torch.nn.LazyLinear(2))

    one_graph(same(make, (X,), (Y,), (X,), fullgraph=True))
