"""The public functions: the signatures of `torch.compile` and its helpers, over
`frontend.CompiledFunction`."""

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

import torch

from ...runtime import diagnostics
from ...runtime.errors import PackageError
from ..capture import current
from ..tracing_ops.calls import known_calls
from . import compiled_function, packaging
from .compiling import compile
from .config import config
from .explain import ExplainOutput, explain

__all__ = [
    "ExplainOutput",
    "allow_in_graph",
    "compile",
    "config",
    "disable",
    "explain",
    "graph_break",
    "is_compiling",
    "package",
    "reset",
]


def package(
    model: Any,
    path: str | os.PathLike[str],
    examples: Sequence[tuple[Any, ...]],
    *,
    weights: str = "inside",
    dynamic: bool | None = None,
) -> str:
    """Compile `model` (a module, a function, or what `compile` made of one) for inference, and
    write it to one file that `load` serves from: weights, guards, kernels for this machine's CPU.

    `examples`: calls, each a pair `((x,), {"mask": mask})`; sizes that differ between them become
    symbolic. `weights`: "inside", or "separate" for those of `state_dict()`, which `load` is then
    given. `dynamic`: as of `compile`. Runs the examples, twice; buffers stay as they are. Returns
    the digest of the file. Raises PackageError for what such a file cannot hold (graph breaks, side
    effects, operators that are not torch's), with the line.
    """
    if isinstance(model, type | torch.jit.ScriptModule):
        raise PackageError(f"package() takes a module or a function, not {model!r:.80}")
    compiled = model if hasattr(model, "_dynfix_entry") else compile(model, dynamic=dynamic)
    packaged = packaging.packaged_of(compiled._dynfix_entry, compiled._dynfix_original)
    if dynamic is not None:
        options = packaged.options.replace(dynamic=dynamic)
        packaged = dataclasses.replace(packaged, options=options)
    return packaging.write(packaged, path, examples, weights)


def reset() -> None:
    """Forget what was compiled, and which warnings were given; what `compile` returned compiles
    anew when called."""
    compiled_function.reset_all()
    diagnostics.reset()


def graph_break() -> None:
    """End the graph here and go on with a new one; does nothing outside compiled code."""
    known_calls.graph_break()


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Keep `fn`, and what it calls, out of every graph; a decorator. `recursive=False` keeps out
    `fn` alone.

    `reason` is shown with the graph break.
    """
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    return known_calls.disable(fn)


def allow_in_graph(fn: Any) -> Any:
    """Put calls of `fn` (or of each in a list) into the graph as one node, without looking inside;
    a decorator."""
    if isinstance(fn, (list, tuple)):
        return type(fn)(allow_in_graph(one) for one in fn)
    return known_calls.allow_in_graph(fn)


def is_compiling() -> bool:
    """Whether the code that asks is being captured now."""
    return current.recorder() is not None or torch.compiler.is_compiling()
