"""Random numbers that kernels make themselves: Philox, a function of a seed, a stream and a place.

Of a graph that draws on a GPU, one library call draws a seed at each call, from the generator that
eager draws from: so `manual_seed` rules it, checkpoints and forks put it back, and a CUDA graph
draws anew at each replay. Each operator has a stream of its own. A backward makes the numbers of
the forward again from the seed instead of saving masks. (Salmon et al., "Parallel random numbers:
as easy as 1, 2, 3", SC 2011: Philox-4x32-10.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..fake_tensor_mode import DispatchMode

aten = torch.ops.aten
_LIBRARY: Any = torch.library.Library("dynfix", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "unseeded_uniform(SymInt[] size, Device device) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
_LIBRARY.define("uniform(Tensor seed, int stream, SymInt[] size) -> Tensor")

_MASK = 0xFFFFFFFF
_FACTORS = 0xD2511F53, 0xCD9E8D57
_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_ENDS = -(2**63), 2**63 - 1


def _product(factor: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low half of the product of two numbers of 32 bits, in int64."""
    high = (factor * (x >> 16) + ((factor * (x & 0xFFFF)) >> 16)) >> 16
    return high & _MASK, (factor * x) & _MASK


def uniform(seed: torch.Tensor, stream: int, size: Sequence[int]) -> torch.Tensor:
    """What kernels make, by torch's operators: float32 in [0, 1), contiguous. seed: int64 of one
    element."""
    numel = math.prod(size)
    counter = torch.arange(-(-numel // 4), device=seed.device)
    keys = [seed & _MASK, (seed >> 32) & _MASK]
    c = [counter & _MASK, counter >> 32, torch.full_like(counter, stream), counter * 0]
    for _ in range(_ROUNDS):
        (high_a, low_a), (high_b, low_b) = _product(_FACTORS[0], c[0]), _product(_FACTORS[1], c[2])
        c = [high_b ^ c[1] ^ keys[0], low_b, high_a ^ c[3] ^ keys[1], low_a]
        keys = [(key + step) & _MASK for key, step in zip(keys, _STEPS, strict=True)]
    bits = torch.stack(c, -1).flatten()[:numel].reshape(*size)
    return (bits >> 8).to(torch.float32) * 2.0**-24


def _drawn(size: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.rand(*size, dtype=torch.float32, device=device)


_LIBRARY.impl("uniform", uniform, "CompositeExplicitAutograd")
_LIBRARY.impl("unseeded_uniform", _drawn, "CompositeExplicitAutograd")
torch.library.register_fake(
    "dynfix::uniform",
    lambda seed, stream, size: seed.new_empty(size, dtype=torch.float32),
    lib=_LIBRARY,
)
torch.library.register_fake(
    "dynfix::unseeded_uniform",
    lambda size, device: torch.empty(size, dtype=torch.float32, device=device),
    lib=_LIBRARY,
)
UNSEEDED, UNIFORM = torch.ops.dynfix.unseeded_uniform.default, torch.ops.dynfix.uniform.default


# ---- the operators that draw, by the above

Uniform = Callable[[Sequence[Any], torch.device], torch.Tensor]


def _normal(uniform: Uniform, size: Sequence[Any], device: torch.device) -> torch.Tensor:
    """Box and Muller's."""
    radius = torch.sqrt(-2.0 * torch.log(1.0 - uniform(size, device)))
    return radius * torch.cos((2.0 * math.pi) * uniform(size, device))


def _like(x: torch.Tensor, made: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers in the strides of `x`, as eager's operators lay out their results."""
    into = torch.empty_like(x, dtype=dtype)
    return made.to(dtype) if made.stride() == into.stride() else aten.copy.default(into, made)


def _dropout(uniform: Uniform, x: torch.Tensor, p: float, train: bool | None) -> Any:
    if train is False or not 0.0 < p < 1.0:
        return NotImplemented
    mask = _like(x, uniform(x.shape, x.device) < 1.0 - p, torch.bool)
    return x * mask * (1.0 / (1.0 - p)), mask


def _bernoulli(uniform: Uniform, x: torch.Tensor, p: float | None = None) -> Any:
    if x.dtype == torch.float64 or not x.is_floating_point():
        return NotImplemented
    made = uniform(x.shape, x.device) < (x if p is None else p)
    return _like(x, made, x.dtype)


def _factory(uniform: Uniform, size: Sequence[Any], normal: bool, **given: Any) -> Any:
    dtype = given.get("dtype") or torch.get_default_dtype()
    if dtype != torch.float32 or given.get("layout") not in (None, torch.strided):
        return NotImplemented
    device = torch.device(given.get("device") or torch.get_default_device())
    return _normal(uniform, size, device) if normal else uniform(size, device)


def _factory_like(uniform: Uniform, x: torch.Tensor, normal: bool, **given: Any) -> Any:
    changed = any(value is not None for key, value in given.items() if key != "pin_memory")
    if x.dtype != torch.float32 or (changed and given.get("dtype") != torch.float32):
        return NotImplemented
    made = _factory(uniform, x.shape, normal, dtype=torch.float32, device=x.device)
    return _like(x, made, torch.float32)


# Each takes the maker of numbers first.
_OPERATORS: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: _dropout,
    aten.bernoulli.p: _bernoulli,
    aten.bernoulli.default: _bernoulli,
    aten.rand.default: lambda draw, size, **given: _factory(draw, size, False, **given),
    aten.randn.default: lambda draw, size, **given: _factory(draw, size, True, **given),
    aten.rand_like.default: lambda draw, x, **given: _factory_like(draw, x, False, **given),
    aten.randn_like.default: lambda draw, x, **given: _factory_like(draw, x, True, **given),
}

# Which AOTAutograd has made of these.
_IN_PLACE: dict[Any, Callable[..., Any]] = {
    aten.bernoulli_.float: lambda draw, x, p=0.5: _bernoulli(draw, x, p)
}


def _device_of(args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    given = kwargs.get("device")
    if given is not None:
        return torch.device(given).type
    first = args[0] if args else None
    return first.device.type if isinstance(first, torch.Tensor) else "cpu"


def _by_kernels(
    op: Callable[..., Any], uniform: Uniform, devices: Sequence[str]
) -> Callable[..., Any]:
    def decomposed(*args: Any, generator: Any = None, **kwargs: Any) -> Any:
        if generator is not None or _device_of(args, kwargs) not in devices:
            return NotImplemented
        return op(uniform, *args, **kwargs)

    return decomposed


def random_decompositions(devices: Sequence[str]) -> dict[Any, Callable[..., Any]]:
    """The table for AOTAutograd, for these devices: numbers without a seed as yet."""
    return {target: _by_kernels(op, UNSEEDED, devices) for target, op in _OPERATORS.items()}


# ---- seeds


def with_seeds(gm: GraphModule) -> None:
    """Give each operator its stream, in the order of the graph, and each device its seed, a call of
    the library."""
    drawing = [node for node in gm.graph.nodes if node.target is UNSEEDED]
    seeds: dict[Any, Node] = {}
    for stream, node in enumerate(drawing):
        size, device = node.args
        if device not in seeds:
            with gm.graph.inserting_before(node):
                seeds[device] = _seed(gm, node, device)
        with gm.graph.inserting_before(node):
            made = gm.graph.call_function(UNIFORM, (seeds[device], stream, size))
        made.meta.update(node.meta)
        node.replace_all_uses_with(made)
        gm.graph.erase_node(node)
    if drawing:
        gm.recompile()


def _seed(gm: GraphModule, node: Node, device: Any) -> Node:
    options = {"dtype": torch.int64, "device": device, "pin_memory": False}
    made = gm.graph.call_function(aten.randint.low, (*_ENDS, [1]), options)
    made.meta.update({k: v for k, v in node.meta.items() if k in ("stack_trace", "origin")})
    value = node.meta["val"]
    with value.fake_mode:
        made.meta["val"] = torch.empty(1, dtype=torch.int64, device=device)
    return made


class Redrawn(DispatchMode):
    """Runs a segment's own graph on the random numbers of its compiled call: the generator has the
    state that it had then."""

    def __init__(self, devices: Sequence[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.devices, self.stream, self.seeds = devices, 0, dict[torch.device, torch.Tensor]()

    def _uniform(self, size: Sequence[int], device: torch.device) -> torch.Tensor:
        if device not in self.seeds:
            self.seeds[device] = torch.randint(*_ENDS, (1,), device=device)
        made = uniform(self.seeds[device], self.stream, size)
        self.stream += 1
        return made

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        op, made = _IN_PLACE.get(func) or _OPERATORS.get(func), NotImplemented
        if op is not None:
            made = _by_kernels(op, self._uniform, self.devices)(*args, **kwargs)
        if made is NotImplemented:
            return func(*args, **kwargs)
        return args[0].copy_(made) if func in _IN_PLACE else made
