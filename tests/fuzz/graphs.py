"""Random graphs as text, grown line by line: a line stays if eager runs it with the inputs of every
call."""

import dataclasses
import random
import re
import warnings

import torch
from torch.nn import functional as F

from .grammar import FAMILIES, KINDS, TYPES

CALLS = 4
STATIC = (3, 7, 17, 33)
CODES = {eval(name): code for code, name in TYPES.items()}
CODES[torch.complex128] = "c"
MOST_ELEMENTS = 20000
TRIES = 12
DEVICE = "cpu"  # where inputs are

ENDS_ON_EMPTY = "scaled_dot_product_attention"  # torch 2.11's kernel divides by a size


@dataclasses.dataclass(frozen=True)
class Graph:
    """inputs: (name, text that makes it of `make`, n and m). sizes: n and m of each call, the
    last two the same. raises: whether eager raises in some call."""

    seed: int
    inputs: tuple[tuple[str, str], ...]
    lines: tuple[str, ...]
    outputs: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]
    gradients: bool = False
    raises: bool = False

    def text(self, name):
        """The function's source."""
        heads = [f"def {name}({', '.join(name for name, _ in self.inputs)}):"]
        body = [*self.lines, f"return [{', '.join(self.outputs)}]"]
        return "\n    ".join([*heads, *body]) + "\n"

    def make_inputs(self, turn, double=False, noise=0.0):
        """Fresh inputs of call `turn` by name: always the same values."""
        maker = Maker(self.seed, turn, double, noise)
        n, m = self.sizes[turn]
        made = {}
        for name, text in self.inputs:
            made[name] = eval(text, {"make": maker, "torch": torch, "n": n, "m": m, **made})
        return made


class Maker:
    """`make(code, *shape)`: a tensor of random values. double: floats in float64; noise: how many
    units in the last place floats are changed by; shorter types stay as they are."""

    def __init__(self, seed, turn, double=False, noise=0.0):
        self.generator = torch.Generator().manual_seed(seed * 8 + turn)
        self.other = torch.Generator().manual_seed(seed + 1)
        self.double, self.noise = double, noise

    def __call__(self, code, *shape):
        return self._made(code, shape).to(DEVICE)

    def _made(self, code, shape):
        dtype = eval(TYPES[code])
        if code == "b":
            return torch.rand(shape, generator=self.generator) > 0.5
        if code in "liuws":
            return torch.randint(0, 9, shape, generator=self.generator).to(dtype)
        value = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        if code == "c":
            value = torch.complex(value, torch.randn(shape, generator=self.generator).double())
        value = value.to(dtype)
        if self.noise:
            unit = torch.finfo(torch.float64 if code == "d" else torch.float32).eps
            change = torch.randn(shape, generator=self.other, dtype=torch.float64)
            value = (value * (1 + self.noise * unit * change)).to(dtype)
        wide = torch.complex128 if code == "c" else torch.float64
        return value.to(wide) if self.double else value


def widened(text):
    """The text with its floating-point types as wide as they get."""
    text = re.sub(r"torch\.(bfloat16|float16|float32)\b", "torch.float64", text)
    text = re.sub(r"\.(float|half|bfloat16)\(\)", ".double()", text)
    return text.replace("torch.complex64", "torch.complex128")


class _Grower:
    def __init__(self, seed, dynamic):
        self.rng = random.Random(seed)
        self.seed = seed
        rng = self.rng
        self.dynamic = dynamic
        others = [tuple(rng.sample(STATIC, 2)) if dynamic else (7, 5) for _ in range(CALLS - 2)]
        self.sizes = ((7, 5), *others, others[-1])  # the last call's were met before
        self.floats = rng.choice(["f"] * 6 + ["h", "h", "2", "d"])
        self.inputs, self.lines = [], []
        self.exact = {}
        self.gradients = rng.random() < 0.5
        self.leaves = set()

    # inputs

    def dims(self):
        rng = self.rng
        names = ["n", "m"] if self.dynamic else ["7", "17", "33", "3", "1", "3", "5"]
        rare = ["0", "1"] if rng.random() < 0.15 else []
        count = rng.choice([0, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 4])
        names = names[:2] if count == 4 else names
        return [rng.choice([*names, "3", *rare]) for _ in range(count)]

    def make_inputs(self):
        rng, whole = self.rng, self.dims()
        for number in range(rng.randint(2, 5)):
            code = rng.choice([self.floats] * 7 + ["f", "l", "l", "b", "i", "c"])
            code = rng.choice("fuws") if rng.random() < 0.06 else code
            start = rng.randint(0, max(len(whole) - 1, 0)) if rng.random() < 0.3 else 0
            shape = whole[start:]
            shape = ["1" if rng.random() < 0.1 else d for d in shape]
            self.inputs.append((f"a{number}", self._layout(code, shape)))
            self.exact[f"a{number}"] = True

    def _layout(self, code, shape):
        rng, kind = self.rng, self.rng.random()
        plain = f"make({', '.join([repr(code), *shape])})"
        if len(shape) == 4 and rng.random() < 0.5:
            plain += ".contiguous(memory_format=torch.channels_last)"
        if kind < 0.08 and len(shape) > 1:
            turned = [*shape[:-2], shape[-1], shape[-2]]
            return f"make({', '.join([repr(code), *turned])}).mT"
        if shape and kind < 0.14:
            return f"make({', '.join([repr(code), *shape[:-1], f'2 * {shape[-1]}'])})[..., ::2]"
        if shape and kind < 0.18:
            return f"make({', '.join([repr(code), f'{shape[0]} + 2', *shape[1:]])})[2:]"
        if shape and kind < 0.21:
            return f"make({', '.join([repr(code), '1', *shape[1:]])}).expand({', '.join(shape)})"
        if kind < 0.26 and self.inputs:
            return f"{rng.choice(self.inputs)[0]}[1:]"
        if kind < 0.28 and self.inputs:
            return f"{rng.choice(self.inputs)[0]}[:-1]"
        if code in "fdh2" and self.gradients:
            return plain + ".requires_grad_()" * (rng.random() < 0.7)
        return plain

    # lines

    def candidate(self, spaces):
        """(line, name of its result or None, whether it is exact) or None."""
        rng = self.rng
        names = list(FAMILIES)
        family = rng.choices(names, [FAMILIES[name][0] for name in names])[0]
        _, keeps, needs, templates = FAMILIES[family]
        kinds, text = rng.choice(templates)
        kinds, rounded, _ = kinds.partition("~")
        picked = []
        for kind in kinds:
            fitting = [
                name
                for name, value in spaces[0].items()
                if isinstance(value, torch.Tensor) and CODES.get(value.dtype) in KINDS[kind]
            ]
            fitting = [name for name in fitting if self.exact[name] or not needs]
            if not fitting:
                return None
            late = fitting[-4:] if rng.random() < 0.6 else fitting
            picked.append(rng.choice(late))
        holes = {"d": rng.choice([0, -1, -1, 1]), "k": rng.choice([1, 2, 3]), "t": self._type()}
        holes["s"] = rng.choice(["0.5", "1.5", "2.0", "-0.75", "0.3"])
        made = f"v{len(self.lines)}"
        line = text.format(**dict(zip("xyz", picked, strict=False)), v=made, **holes)
        exact = keeps and not rounded and all(self.exact[name] for name in picked)
        if family.endswith("write"):
            return line, picked[1] if kinds[0] == "b" and "{y}" in text[:4] else picked[0], exact
        return line if "{v}" in text else f"{made} = {line}", made, exact

    def _type(self):
        return TYPES[self.rng.choice(["f", "f", self.floats, self.floats, "d", "h", "2"])]

    def grow(self):
        self.make_inputs()
        graph = self.graph(())
        try:
            spaces = [graph.make_inputs(turn) for turn in range(CALLS)]
        except (RuntimeError, IndexError):  # a layout that the shape does not have
            return None
        wanted = self.rng.randint(2, 30) if self.rng.random() < 0.5 else self.rng.randint(2, 12)
        for _ in range(wanted * TRIES):
            if len(self.lines) >= wanted:
                break
            found = self.candidate(spaces)
            if found is None:
                continue
            raised = self.try_line(found, spaces)
            if raised and self.rng.random() < 0.02:
                self.lines.append(found[0])
                last = found[1] if found[0].startswith(found[1]) else "a0"
                return dataclasses.replace(self.graph((last,)), gradients=False, raises=True)
        return self.finished(spaces)

    def try_line(self, found, spaces):
        """Run the line in each call's space, or in none; whether eager raised."""
        line, name, exact = found
        trial = []
        for turn in range(CALLS):
            fresh = self.replayed(turn)
            if ENDS_ON_EMPTY in line and not all(
                fresh[name].numel() for name in re.findall(r"\b[av]\d+\b", line) if name in fresh
            ):
                return False
            try:
                exec(line, fresh)
            except Exception as error:
                return not isinstance(error, SyntaxError)
            trial.append(fresh)
        if not all(self.sound(space[name]) for space in trial):
            return False
        writes = name in spaces[0]
        if writes and not exact and self.is_read_as_bits(spaces[0], name):
            return False
        self.lines.append(line)
        own = [n for n in trial[0] if re.fullmatch(r"[av]\d+", n)]
        for space, fresh in zip(spaces, trial, strict=True):
            space.clear()
            space.update({n: fresh[n] for n in own})
        shared = {name, *self.aliases(spaces[0], name)} if writes else {name}
        for other in shared:
            self.exact[other] = exact and self.exact.get(other, True)
        return False

    def aliases(self, space, name):
        pointer = space[name].untyped_storage().data_ptr()
        return [n for n, t in space.items() if t.untyped_storage().data_ptr() == pointer]

    def is_read_as_bits(self, space, name):
        """Whether its memory is that of whole numbers, too."""
        kinds = {space[other].dtype for other in self.aliases(space, name)}
        return len(kinds) > 1 and not all(k.is_floating_point or k.is_complex for k in kinds)

    def replayed(self, turn):
        """The names after the lines so far, run afresh."""
        space = {"torch": torch, "F": F, **self.graph(()).make_inputs(turn)}
        torch.manual_seed(turn)
        exec("\n".join(self.lines), space)
        return space

    def sound(self, value):
        """Whether the value is a tensor of moderate size and numbers."""
        if not isinstance(value, torch.Tensor) or value.dtype not in CODES:
            return False
        if value.numel() > MOST_ELEMENTS or value.is_sparse:
            return False
        if value.dtype == torch.bool or not value.numel() or self.rng.random() < 0.02:
            return True
        most = 1e3 if value.dtype in (torch.float16, torch.bfloat16) else 1e5
        return bool((value.detach().abs() < most).all())

    def graph(self, outputs):
        return Graph(
            self.seed,
            tuple(self.inputs),
            tuple(self.lines),
            tuple(outputs),
            self.sizes,
            self.gradients,
        )

    def finished(self, spaces):
        made = [name for name in spaces[0] if name.startswith("v")]
        if not made:
            return None
        text = "\n".join(self.lines)
        ends = [name for name in made if len(re.findall(rf"\b{name}\b", text)) == 1]
        some = [*self.rng.sample(ends, min(5, len(ends))), self.rng.choice(made), made[-1]]
        outputs = dict.fromkeys([*some, *(["a0"] if self.rng.random() < 0.1 else [])])
        return self.graph(outputs)


def grown(seed, dynamic):
    """The graph of a seed; None if nothing came of it. It grows on the CPU, where a line that raises
    does no harm."""
    global DEVICE
    device, DEVICE = DEVICE, "cpu"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _Grower(seed, dynamic).grow()
    finally:
        DEVICE = device
