"""The smaller names of `torch.compiler`, so that tutorials work with `dynfix.` in its place."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from ...runtime.errors import OptionError
from ..capture import current
from ..tracing_ops.calls import known_calls
from .config import config

Index = int | tuple[int, ...] | list[int]


def is_dynamo_compiling() -> bool:
    """As `is_compiling`, under torch's older name."""
    return current.recorder() is not None or torch.compiler.is_dynamo_compiling()


def is_exporting() -> bool:
    """Whether torch.export is at work."""
    return torch.compiler.is_exporting()


def cudagraph_mark_step_begin() -> None:
    """Nothing: outputs of compiled code are never overwritten by a later call, so that no step has
    to be marked."""


def cudagraph_mark_warmup_incomplete() -> None:
    """Nothing: a call is recorded as a CUDA graph once its program was built and tuned."""


def nonstrict_trace(traceable_fn: Any) -> Any:
    """As `allow_in_graph`: calls of the function are one node, not looked into."""
    return known_calls.allow_in_graph(traceable_fn)


def get_default_backend() -> Any:
    """The backend of `compile()` calls that name none."""
    return config.backend


def set_default_backend(backend: str | Callable[..., Any] | None) -> None:
    """Set the backend of `compile()` calls that name none; None: `native`. Raises OptionError for
    an unknown one."""
    config.backend = "native" if backend is None else backend


def assume_constant_result(fn: Any) -> Any:
    """Call `fn` once while recording, and take its result for a constant of every later call; a
    decorator."""
    known_calls.CONSTANT.add(fn)
    return fn


def substitute_in_graph(
    original_fn: Any, *, can_constant_fold_through: bool = False, skip_signature_check: bool = False
) -> Callable[[Any], Any]:
    """A decorator: where compiled code calls `original_fn`, a C function say, the decorated Python
    function is recorded in its place. Raises OptionError where their signatures differ."""

    def substitute(function: Any) -> Any:
        if not skip_signature_check:
            _same_signature(original_fn, function)
        known_calls.SUBSTITUTES[original_fn] = function
        return function

    return substitute


def _same_signature(original: Any, function: Any) -> None:
    try:
        wanted = inspect.signature(original)
    except (TypeError, ValueError):  # C functions without one
        return
    found = inspect.signature(function)
    if _shape(wanted) != _shape(found):
        raise OptionError(f"substitute_in_graph: the signatures differ: {wanted} and {found}")


def _shape(signature: inspect.Signature) -> list[tuple[str, Any]]:
    return [(p.name, p.kind) for p in signature.parameters.values()]


def mark_dynamic(t: torch.Tensor, index: Index, **limits: Any) -> None:
    """Have the size of `t` in these dims be a symbol from the first call on, as
    `torch._dynamo.mark_dynamic` does. A size that decides something is a constant all the same;
    `min` and `max` are not needed."""
    _mark(t, index, "_dynamo_dynamic_indices")


maybe_mark_dynamic = mark_dynamic


def mark_unbacked(t: torch.Tensor, index: Index, **limits: Any) -> None:
    """As `mark_dynamic`. Sizes 0 and 1 are constants."""
    _mark(t, index, "_dynamo_unbacked_indices")


def mark_static(t: torch.Tensor, index: Index | None = None) -> None:
    """Have the size of `t` in these dims, or in all, be a constant: another one is compiled
    anew."""
    _mark(t, tuple(range(t.dim())) if index is None else index, "_dynamo_static_indices")


def _mark(t: torch.Tensor, index: Index, name: str) -> None:
    marked = {*getattr(t, name, ()), *((index,) if isinstance(index, int) else index)}
    setattr(t, name, {each % t.dim() for each in marked})


def wrap_numpy(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function on arrays, as one on tensors: arguments become arrays, results tensors. It runs
    as NumPy does, outside every graph."""

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = [_array(value) for value in args]
        return _tensors(fn(*given, **{name: _array(value) for name, value in kwargs.items()}))

    known_calls.DISABLED.add(wrapped)
    return wrapped


def _array(value: Any) -> Any:
    return value.numpy() if isinstance(value, torch.Tensor) else value


def _tensors(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(map(_tensors, value))
    return torch.as_tensor(value) if hasattr(value, "__array__") else value


def nested_compile_region(
    fn: Any = None, *, options: Any = None, max_reuse_entries: int = 8, reuse_hash_fn: Any = None
) -> Any:
    """A decorator that says that `fn` is called many times over alike. It is a hint: every call is
    part of the graph around it, and alike kernels are built once."""
    if fn is None:
        return lambda given: given
    return fn
