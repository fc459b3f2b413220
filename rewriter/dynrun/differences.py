"""Whether a compiled graph does what the graph does in eager: results, gradients, what it writes
and what it draws. Where both differ by more than rounding explains, eager in float64 decides: how
far each is from it, and how far from it eager in float64 is on inputs that are a rounding away."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

SEED = 7  # of the gradients that are sent back
WORSE = 10.0  # times eager's own error against float64 is still rounding
_LOW = (torch.float16, torch.bfloat16, torch.float32)
_CASTS = {"half", "bfloat16", "float"}


@dataclasses.dataclass(frozen=True)
class Difference:
    """`what` differs ("output 0"), and `how`."""

    what: str
    how: str
    raised: bool = False

    def __str__(self) -> str:
        return f"{self.what} differs from eager: {self.how}"


def copy_of(value: Any, change: Callable[[Any], Any] = torch.clone) -> Any:
    """A tensor of its own with the same values, sizes and strides; what is no tensor as it is.
    `change` makes the copy of a strided tensor's memory."""
    if not isinstance(value, torch.Tensor):
        return value
    with torch.no_grad():
        given = value.detach()
        if given.layout is not torch.strided or given.numel() == 0:
            return given.clone().requires_grad_(value.requires_grad)
        extent = 1 + sum(
            (n - 1) * step for n, step in zip(given.shape, given.stride(), strict=True)
        )
        memory = change(torch.as_strided(given, (extent,), (1,), given.storage_offset()))
        copied = torch.as_strided(memory, given.shape, given.stride())
    return copied.detach().requires_grad_(value.requires_grad)


def observe(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    written: Sequence[int] = (),
    random: bool = True,
) -> dict[str, Any]:
    """Everything that a call on copies of `inputs` gives, by name. `written`: positions of inputs
    that the function writes. If it draws `random` numbers, the generators are put back; else they
    are let alone, since another thread may be drawing."""
    given = [copy_of(value) for value in inputs]
    fed = [_unleafed(v) if i in written else v for i, v in enumerate(given)]
    devices = {v.device for v in given if isinstance(v, torch.Tensor) and v.is_cuda}
    kept = torch.set_grad_enabled(torch.is_grad_enabled())  # a part may leave it changed
    with kept, torch.random.fork_rng(list(devices), enabled=random):
        results = pytree.tree_leaves(function(*fed))
        found = {f"output {i}": value for i, value in enumerate(results)}
        found |= {f"input {i} after the call": fed[i] for i in range(len(fed))}
        states = [torch.random.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]
    states = states if random else []
    found |= {f"the state of generator {i}": state for i, state in enumerate(states)}
    leaves = {i: v for i, v in enumerate(given) if _has_gradient(v)}
    gradients = _gradients([r for r in results if _has_gradient(r)], list(leaves.values()))
    return found | {f"the gradient of input {i}": g for i, g in zip(leaves, gradients, strict=True)}


def _unleafed(value: Any) -> Any:
    return value.clone() if _has_gradient(value) else value


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _gradients(results: list[Any], leaves: list[Any]) -> Sequence[Any]:
    if not results or not leaves:
        return [None] * len(leaves)
    generator = torch.Generator().manual_seed(SEED)
    sent = [
        torch.randn(r.shape, generator=generator, dtype=torch.float64).to(r.device, r.dtype)
        for r in results
    ]
    return torch.autograd.grad(results, leaves, sent, allow_unused=True)


def differ(
    module: torch.fx.GraphModule,
    program: Callable[..., Any],
    inputs: Sequence[Any],
    written: Sequence[int] = (),
    random: bool = True,
) -> Difference | None:
    """The first difference between the graph in eager and its compiled `program`; None where both
    agree. `random`: whether the graph draws random numbers. Raises what eager raises."""
    wanted = observe(module.forward, inputs, written, random)  # a call would print what it raises
    try:
        got = observe(program, inputs, written, random)
    except Exception as error:
        how = f"it raises {type(error).__name__}: {error}"
        return Difference("the compiled graph", how, raised=True)
    return compare(wanted, got, lambda moved: in_double(module, inputs, written, random, moved))


def compare(
    wanted: dict[str, Any], got: dict[str, Any], exact: Callable[[bool], dict[str, Any]]
) -> Difference | None:
    """The first difference between two observations. `exact` gives the one in float64, of inputs
    that are moved by a rounding where its argument is True."""
    exact = functools.cache(exact)
    if len(wanted) != len(got):
        return Difference("the number of outputs", f"{_outputs(got)}, not {_outputs(wanted)}")
    for what, value in wanted.items():
        how = _metadata(value, got.get(what))
        if not how and not what.startswith("the gradient"):  # whose layout eager leaves open
            how = _strides(value, got[what])
        if not how and not _close(value, got.get(what)):
            how = _beyond_rounding(value, got[what], exact(False).get(what))
            if how and (near := exact(True).get(what)) is not None:
                how = _beyond_rounding(value, got[what], exact(False).get(what), near)
        if how:
            return Difference(what, how)
    return None


def _metadata(value: Any, other: Any) -> str:
    if not isinstance(value, torch.Tensor) or not isinstance(other, torch.Tensor):
        same = value is other or (_is_plain(value) and _is_plain(other) and value == other)
        return "" if same else f"{_shown(other)}, not {_shown(value)}"
    for name in ("shape", "dtype", "device", "requires_grad", "layout"):
        if getattr(value, name) != getattr(other, name):
            return f"its {name} is {getattr(other, name)}, not {getattr(value, name)}"
    return ""


def _outputs(found: dict[str, Any]) -> int:
    return sum(name.startswith("output ") for name in found)


def _is_plain(value: Any) -> bool:
    return not isinstance(value, torch.Tensor)


def _strides(value: Any, other: Any) -> str:
    """How two tensors of one shape lie in memory in another order. A stride along which there is
    one element, or none at all, cannot be told."""
    if _is_plain(value) or value.layout is not torch.strided or value.numel() == 0:
        return ""
    pairs = zip(value.shape, value.stride(), other.stride(), strict=True)
    if all(size == 1 or mine == others for size, mine, others in pairs):
        return ""
    return f"its strides are {other.stride()}, not {value.stride()}"


def _shown(value: Any) -> str:
    return f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def _close(value: Any, other: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not isinstance(other, torch.Tensor):
        return True
    value, other = value.detach(), other.detach()
    if not value.dtype.is_floating_point and not value.dtype.is_complex:
        return torch.equal(value, other)
    eps = torch.finfo(value.dtype).eps
    return torch.allclose(value, other, rtol=10 * eps, atol=80 * eps, equal_nan=True)


def _beyond_rounding(value: Any, other: Any, exact: Any, near: Any = None) -> str:
    """How two tensors differ by more than float64 excuses, or "". `near`: what float64 gives of
    inputs a rounding away."""
    value, other = value.detach(), other.detach()
    if not value.dtype.is_floating_point:
        return _wrong_items(value, other, exact, near)
    eps = torch.finfo(value.dtype).eps
    if not torch.equal(value.isnan(), other.isnan()):
        return f"NaN in {int(other.isnan().sum())} elements, not {int(value.isnan().sum())}"
    known = exact is not None and exact.shape == value.shape
    reference = exact.detach().double() if known else value.double()
    scale = float(_finite(reference).abs().max())
    error, own = (_worst(v.double(), reference) / (scale or 1.0) for v in (other, value))
    if known and near is not None:
        own = max(own, _worst(near.detach().double(), reference) / (scale or 1.0))
    limit = WORSE * own + (64 if known else 1024) * eps
    if error <= limit:
        return ""
    beside = f" (eager's own is {own:.1e}, both against float64)" if known else ""
    return f"relative error {error:.1e}{beside}"


def _wrong_items(value: Any, other: Any, *exact: Any) -> str:
    """Integers and bools may follow from what was rounded: then those of float64 are right, too."""
    wrong = value != other
    for right in exact:
        if right is not None and right.shape == value.shape:
            wrong &= right.detach().to(value.dtype) != other
    count = int(wrong.sum())
    return f"{count} of {value.numel()} elements" if count else ""


def _finite(value: Any) -> Any:
    return torch.where(value.isfinite(), value, 0.0)


def _worst(value: Any, reference: Any) -> float:
    error = (value - reference).abs()
    return float(torch.where(value == reference, 0.0, error).nan_to_num(0.0).max())


_enter_autocast = torch.amp._enter_autocast


class _Doubled(torch.fx.Interpreter):
    """Runs a graph in float64: every other floating dtype that it names becomes that. What draws
    random numbers does so in float32, as eager did: in float64 it would draw others."""

    followed = True  # every draw was eager's

    def __init__(self, module: torch.fx.GraphModule, random: bool) -> None:
        super().__init__(module)
        self._random = random

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.op in ("placeholder", "output", "get_attr"):
            return super().run_node(n)
        given = self.fetch_args_kwargs_from_env(n)
        args, kwargs = pytree.tree_map(_in_double, given)
        if n.target is _enter_autocast:  # which leaves float64 alone, and warns of it
            args = (args[0], None, False, *args[3:])
        target = "double" if n.op == "call_method" and n.target in _CASTS else n.target
        if not self._random:
            return getattr(self, n.op)(target, args, kwargs)
        state = torch.random.get_rng_state()
        result = getattr(self, n.op)(target, args, kwargs)
        if torch.equal(torch.random.get_rng_state(), state):
            return result
        if _writes(n) or not isinstance(result, torch.Tensor):
            self.followed = False
            return result
        torch.random.set_rng_state(state)
        return self._drawn(n, *pytree.tree_map(_in_single, given))

    def _drawn(self, n: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        torch.set_default_dtype(torch.float32)
        try:
            result = getattr(self, n.op)(n.target, args, kwargs)
        finally:
            torch.set_default_dtype(torch.float64)
        self.followed &= result.dtype == torch.float32 or not result.is_floating_point()
        return result.double() if result.is_floating_point() else result


def _writes(node: torch.fx.Node) -> bool:
    name = getattr(node.target, "__name__", str(node.target))
    return name.endswith("_") or any(node.kwargs.get(key) for key in ("out", "inplace"))


def _in_double(value: Any) -> Any:
    return torch.float64 if value in _LOW and isinstance(value, torch.dtype) else value


def _in_single(value: Any) -> Any:
    is_double = isinstance(value, torch.Tensor) and value.dtype == torch.float64
    return value.float() if is_double else value


def in_double(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    written: Sequence[int],
    random: bool = True,
    moved: bool = False,
) -> dict[str, Any]:
    """The observation in float64; empty where it draws other random numbers than eager, or does
    not run. `moved`: of inputs each element of which is a rounding of its dtype away."""
    raised = [
        copy_of(v).double().detach().requires_grad_(v.requires_grad) if _is_low(v) else v
        for v in inputs
    ]
    if moved:
        raised = [_moved(v, of) for v, of in zip(raised, inputs, strict=True)]
    doubled, before = _Doubled(module, random), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found = observe(doubled.run, raised, written, random)
    except Exception:
        return {}
    finally:
        torch.set_default_dtype(before)
    return found if doubled.followed else {}


def _moved(value: Any, of: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float64:
        return value
    generator, eps = torch.Generator().manual_seed(SEED), torch.finfo(of.dtype).eps

    def step(memory: Any) -> Any:
        up = torch.rand(memory.shape, generator=generator, dtype=torch.float32) < 0.5
        return memory * (1 + torch.where(up, eps, -eps).to(memory))

    return copy_of(value, step)


def _is_low(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _LOW
