"""Random training programs through `dynfix.compile`.

    python -m tests.fuzz.training [--first SEED] [--programs 200] [--device cuda]

A model of random layers is trained for a few steps, with a random loss, optimizer, schedule, sizes
that move and what else programs do; whole steps are compiled, or the loss, the model, or the model
and its optimizer. Losses, parameters, gradients, buffers, the optimizer's state and the generator
are compared with eager's: what is further from float64 than eager's is a difference. On a GPU every
other program runs with CUDA graphs; `--device lanes` has those that the CPU stands for, `--device
interpreter` runs Triton's kernels on the CPU (TRITON_INTERPRET=1).
"""

import argparse
import contextlib
import copy
import dataclasses
import random
import signal
import warnings

import dynfix
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler
from torch.utils._pytree import tree_flatten_with_path
from torch.utils.checkpoint import checkpoint

from . import lanes
from .judge import ROUNDINGS
from .training_layers import CHANGING, LAYERS, LONGEST, Noting, activation

LIMIT = 240  # seconds
MODE, OPTIONS = None, None  # of `dynfix.compile`
STEPS = 7
OPTIMIZERS = (
    *(("SGD", {"lr": 0.05}), ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True})),
    *(("SGD", {"lr": 0.05, "momentum": 0.9, "fused": True}), ("Adam", {"lr": 0.01})),
    *(("AdamW", {"lr": 0.01, how: True}) for how in ("fused", "foreach", "amsgrad")),
    *((name, {"lr": 0.01}) for name in ("AdamW", "NAdam", "RAdam", "Adamax", "Adafactor")),
    *((name, {"lr": 0.01}) for name in ("RMSprop", "Adagrad", "ASGD", "Adadelta")),
)
SCHEDULES = (
    lambda optimizer: lr_scheduler.StepLR(optimizer, 2, 0.5),
    lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 8),
    lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    lambda optimizer: lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 3),
)


def cross_entropy(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def smoothed(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)


def ignoring(logits, labels):
    wanted = torch.where(labels == 1, -100, labels)
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def likelihood(logits, labels):
    scores = logits.log_softmax(-1).flatten(0, 1)
    return F.nll_loss(scores, labels.flatten(), reduction="sum") / labels.numel()


def squares(logits, labels):
    return F.mse_loss(logits.softmax(-1), F.one_hot(labels, logits.shape[-1]).to(logits.dtype))


def focal(logits, labels):
    scores = logits.log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1)
    return (-((1 - scores.exp()) ** 2) * scores).mean()


LOSSES = (cross_entropy, smoothed, ignoring, likelihood, squares, focal)


class Net(nn.Module):
    def __init__(self, rng, width, classes, image):
        super().__init__()
        self.image = image
        if image:
            norm = rng.choice((nn.BatchNorm2d(8), nn.GroupNorm(2, 8)))
            pool = rng.choice(
                (nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Identity(), nn.Upsample(None, 2))
            )
            stem = nn.Conv2d(3, 8, 3, rng.choice((1, 2)), 1, bias=False)
            self.stem = nn.Sequential(stem, norm, activation(rng), pool, nn.Conv2d(8, width, 2, 2))
        else:
            self.table = nn.Embedding(classes, width, padding_idx=rng.choice((None, 0)))
            self.places = nn.Parameter(torch.randn(1, LONGEST, width) * 0.02)
        count = rng.randint(1, 5)
        self.layers = nn.ModuleList(rng.choice(LAYERS)(rng, width) for _ in range(count))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes, bias=False)
        if not image and rng.random() < 0.4:
            self.head.weight = self.table.weight
        self.again = rng.random() < 0.2  # computed again in the backward

    def forward(self, x):
        if self.image:
            x = self.stem(x).flatten(2).mT[:, :LONGEST]
        else:
            x = self.table(x) + self.places[:, : x.shape[1]]
        for layer in self.layers:
            if self.again and self.training and not isinstance(layer, CHANGING):
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return self.head(self.norm(x))


@dataclasses.dataclass
class Program:
    """What a seed decides. `moving`: which sizes change from call to call; `every`: gradients of so
    many calls are added up for a step."""

    seed: int
    image: bool
    classes: int
    sizes: tuple[int, int]
    moving: str
    optimizer: tuple[str, dict]
    schedule: object
    loss: object
    clip: str
    every: int
    narrow: bool
    as_none: bool
    evaluates: bool
    averages: bool
    grouped: bool
    compiled: str
    dynamic: bool | None
    device: str = "cpu"

    @property
    def mode(self):
        return lanes.MODE if self.device == "cuda" and self.seed % 2 else MODE

    @classmethod
    def of(cls, seed, device="cpu"):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        image = rng.random() < 0.3
        classes = rng.choice((5, 11))
        net = Net(rng, rng.choice((8, 16)), classes, image)
        if rng.random() < 0.3:
            net.layers[0].requires_grad_(False)
        made = cls(
            seed=seed,
            image=image,
            classes=classes,
            sizes=(rng.choice((1, 2, 3, 5)), rng.choice((4, 7, 16))),
            moving=rng.choice(("", "", "rows", "length", "rows and length")),
            optimizer=rng.choice(OPTIMIZERS),
            schedule=rng.choice((None, None, *SCHEDULES)),
            loss=rng.choice(LOSSES),
            clip=rng.choice(("", "", "norm", "value")),
            every=rng.choice((1, 1, 2)),
            narrow=rng.random() < 0.15,
            as_none=rng.random() < 0.7,
            evaluates=rng.random() < 0.5,
            averages=rng.random() < 0.25,
            grouped=rng.random() < 0.5,
            compiled=rng.choice(("step", "step", "model", "loss", "model and optimizer")),
            dynamic=rng.choice((None, None, False, True)),
            device=device,
        )
        return made, net

    def data(self, call, net):
        made = torch.Generator().manual_seed(self.seed * 100 + call)
        rows, length = self.sizes
        rows += call % 3 if "rows" in self.moving else 0
        length = max(3, length - (call % 3 if "length" in self.moving else 0))
        if self.image:
            x = torch.randn(rows, 3, 16, 16, generator=made)
            with torch.no_grad():
                length = copy.deepcopy(net).cpu().float().eval()(x).shape[1]
        else:
            x = torch.randint(self.classes, (rows, length), generator=made)
        labels = torch.randint(self.classes, (rows, length), generator=made)
        return x.to(self.device), labels.to(self.device)

    def run(self, net, compile_, double=False):
        """Everything that a run of the program makes, compiled by `compile_`."""
        module = copy.deepcopy(net).to(self.device, torch.float64 if double else None)
        learning = [each for each in module.parameters() if each.requires_grad]
        half = len(learning) // 2 if self.grouped else 0
        groups = [{"params": learning[half:]}]
        groups += [{"params": learning[:half], "weight_decay": 0.0}] if half else []
        name, settings = self.optimizer
        optimizer = getattr(torch.optim, name)(groups, **settings)
        schedule = self.schedule and self.schedule(optimizer)
        means = [each.detach().clone() for each in module.parameters()]

        def part(kind, function):
            how = {"dynamic": self.dynamic, "mode": self.mode, "options": OPTIONS}
            return compile_(function, **how) if kind in self.compiled else function

        model, update = part("model", module), part("optimizer", optimizer.step)
        loss_of = part("loss", lambda x, labels: self.loss(model(x), labels))

        def step(x, labels, call):
            narrow = torch.autocast(self.device, torch.bfloat16, enabled=self.narrow and not double)
            with narrow if self.narrow else contextlib.nullcontext():
                loss = loss_of(x, labels)
            (loss / self.every).backward()
            norm = None
            if (call + 1) % self.every == 0:
                norm = clip_grad_norm_(learning, 0.5) if self.clip == "norm" else None
                if self.clip == "value":
                    clip_grad_value_(learning, 0.1)
                update()
                optimizer.zero_grad(set_to_none=self.as_none)
                if self.averages:
                    with torch.no_grad():
                        for mean, each in zip(means, module.parameters(), strict=True):
                            mean.lerp_(each, 0.1)
            return loss.detach(), norm

        whole, told = part("step", step), []
        torch.manual_seed(self.seed)
        for call in range(STEPS):
            x, labels = self.data(call, net)
            told.append(whole(x.double() if double and self.image else x, labels, call))
            if schedule is not None and (call + 1) % self.every == 0:
                schedule.step()
            if self.evaluates and call == 3:
                module.eval()
                with torch.no_grad():
                    told.append(model(x.double() if double and self.image else x))
                module.train()
        states = [dict(optimizer.state.get(each, {})) for each in learning]
        seen = [(each.seen, each.last) for each in module.layers if isinstance(each, Noting)]
        return {
            "told": told,
            "parameters": [each.detach().clone() for each in module.parameters()],
            "gradients": [each.grad for each in module.parameters()],
            "buffers": list(module.buffers()),
            "states": states,
            "means": means,
            "seen": seen,
            "draws": [torch.rand(3), torch.rand(3, device=self.device)],
        }


def nudged(net, number):
    """A copy with parameters that are rounded otherwise."""
    made, copied = torch.Generator().manual_seed(number), copy.deepcopy(net)
    with torch.no_grad():
        for each in copied.parameters():
            each.mul_(1 + 1e-7 * torch.randn(each.shape, generator=made))
    return copied


def difference(ours, theirs, exact, loose, others=()):
    """The first thing that differs, or None. loose: relative error that is rounding; others: what
    eager makes where it rounds otherwise, which shows noise that an optimizer scales up."""
    sides = [dict(tree_flatten_with_path(side)[0]) for side in (ours, theirs, exact, *others)]
    if sides[0].keys() != sides[1].keys():
        return f"other parts: {sides[0].keys() ^ sides[1].keys()}"
    for path, one in sides[0].items():
        two, third = sides[1][path], sides[2].get(path)
        if type(one) is not type(two) or not isinstance(one, torch.Tensor):
            if type(one) is not type(two) or one != two:
                return f"{path}: {one!r} instead of {two!r}"
            continue
        facts = [(each.dtype, each.shape, each.stride()) for each in (one, two)]
        if facts[0] != facts[1]:
            return f"{path}: {facts[0]} instead of {facts[1]}"
        if torch.allclose(one.double(), two.double(), loose, loose, equal_nan=True):
            continue
        rest = [side[path] for side in sides[3:] if side[path].shape == one.shape]
        wrong, *usual = (
            (side.double() - third.double()).abs().max().item() for side in (one, two, *rest)
        )
        if not wrong <= 3 * max(usual) + 1e-4:
            return f"{path}: error {wrong:.3g}, eager's {max(usual):.3g}"
    return None


def judged(seed, device="cpu"):
    """What differs in the program of a seed, or None."""
    program, net = Program.of(seed, device)
    eager, seen = (lambda function, **how: function), []
    for compile_ in (dynfix.compile, eager):
        try:
            seen.append(program.run(net, compile_))
        except Exception as error:
            seen.append(error)
    failed = [isinstance(side, Exception) for side in seen]
    if any(failed):
        return None if all(failed) else f"{seen[0]!r:.500} instead of {seen[1]!r:.500}"
    exact, loose = program.run(net, eager, double=True), 5e-2 if program.narrow else 1e-3
    found = difference(*seen, exact, loose)
    if found:
        others = [program.run(nudged(net, number), eager) for number in range(ROUNDINGS)]
        found = difference(*seen, exact, loose, others)
    layers = ", ".join(type(layer).__name__ for layer in net.layers)
    return found and f"{found}\n  {program}\n  {layers}, again: {net.again}"


def _expire(number, frame):
    raise TimeoutError(f"took {LIMIT} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda", "interpreter", "lanes"))
    given = parser.parse_args()
    global MODE, OPTIONS
    if given.device == "interpreter":
        given.device, OPTIONS = "cpu", {"target": "triton"}
        dynfix.config.fallback_random = True
    if given.device == "lanes":
        lanes.stand_in()
        given.device, MODE = "cpu", lanes.MODE
    if given.device == "cuda":
        dynfix.config.fallback_random = True
        torch.backends.cudnn.allow_tf32 = False
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _expire)
    done = differ = 0
    with contextlib.suppress(KeyboardInterrupt):
        for seed in range(given.first, given.first + given.programs):
            signal.alarm(LIMIT)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = judged(seed, given.device)
            signal.alarm(0)
            dynfix.reset()
            done += 1
            if found:
                differ += 1
                print(f"seed {seed}: {found}", flush=True)
    print(f"{done} programs, {differ} differ")


if __name__ == "__main__":
    main()
