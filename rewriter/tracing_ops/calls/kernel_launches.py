"""Triton kernels of the user's: a launch is a node of the graph, run as it is. Which arguments it
writes follows from the kernel's text."""

import ast
import dataclasses
import inspect
import textwrap
from typing import Any

import torch

from ....runtime.guards.guard import Is, Obj
from ... import catalogue
from ...capture.node_arguments import as_nodes
from ...capture.numbers import open_shapes, scalar_forms, scalars
from ...capture.trace import Recorder


def is_kernel(obj: Any) -> bool:
    """Whether this is what `@triton.jit`, `@triton.autotune` or `@triton.heuristics` made."""
    cls = type(obj)
    return cls.__module__.startswith("triton.runtime.") and hasattr(cls, "__getitem__")


@dataclasses.dataclass(frozen=True, eq=False)
class Launch:
    """`kernel[grid]`."""

    kernel: Any
    grid: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.kernel[self.grid](*args, **kwargs)


@dataclasses.dataclass(frozen=True, eq=False)
class Launched:
    """The node of a launch. `config`: what the tuner chose for the recorded call; `fixed`:
    arguments that a graph has no form of."""

    kernel: Any
    config: Any
    fixed: dict[str, Any]
    __name__ = "launch"

    def __call__(self, grid: Any, named: dict[str, Any]) -> None:
        named = {**named, **self.fixed}
        if self.config is not None and self.config.pre_hook is not None:
            self.config.pre_hook(named)
        self.kernel[grid](**named)


def takes(function: Any) -> bool:
    return type(function) is Launch


def call(rec: Recorder, launch: Launch, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not open_shapes.may_stay(rec):
        rec.stop(catalogue.UNSUPPORTED, "the launch of a Triton kernel")
        return rec.once(launch, args, kwargs)
    kernel = launch.kernel
    path = rec.known.path_of(kernel)
    if path is not None and not isinstance(path, Obj):
        rec.known.guard(path, Is(kernel))
    inner, chooses = kernel, hasattr(kernel, "configs")
    while not hasattr(inner, "arg_names") or hasattr(inner, "configs"):
        inner = inner.fn
    named = dict(zip(inner.arg_names, args, strict=False)) | kwargs
    if inner is not kernel:  # a tuner or a rule looks at the numbers
        named = {name: scalars.concretize_scalar(value) for name, value in named.items()}
    plain = {name: scalars.plain(value) for name, value in named.items()}
    grid = launch.grid
    with rec.paused():
        asked = (lambda meta: _numbers(grid(meta))) if callable(grid) else _numbers(grid)
        rec.once(kernel[asked], (), plain)
    config = kernel.best_config if chooses else None
    chosen = {} if config is None else config.all_kwargs()
    if callable(grid):
        grid = rec.call(grid, ({**_defaults(inner), **named, **chosen},), {})
    called = kernel.fn if chooses else kernel
    _record(rec, called, config, grid, named | chosen, _written(inner))
    return None


def _numbers(grid: Any) -> Any:
    return tuple(map(scalars.plain, grid)) if isinstance(grid, tuple | list) else grid


def _defaults(kernel: Any) -> dict[str, Any]:
    found = inspect.signature(kernel.fn).parameters.values()
    return {each.name: each.default for each in found if each.default is not each.empty}


def _record(
    rec: Recorder, kernel: Any, config: Any, grid: Any, named: dict[str, Any], written: set[str]
) -> None:
    fixed = {name: value for name, value in named.items() if not _has_form(value)}
    with rec.paused():
        nodes = {name: _node(rec, value) for name, value in named.items() if name not in fixed}
        target = Launched(kernel, config, fixed)
        sizes = tuple(_node(rec, each) for each in grid)
        launched = rec.segment.call("call_function", target, (sizes, nodes), {}, rec.origin_text())
        rec.segment.call_library(target)
        for name in written & nodes.keys():
            if isinstance(named[name], torch.Tensor):
                rec._written_by(launched, named[name])


def _has_form(value: Any) -> bool:
    return value is None or isinstance(value, torch.Tensor | bool | int | float | str)


def _node(rec: Recorder, value: Any) -> Any:
    """An argument as the graph has it: numbers that Python makes of data are read there."""
    if type(value) is scalars.TracedFloat and scalars.live_in(rec, value):
        rec.give_form(value)
    if scalars.live_in(rec, value) and scalar_forms.has_form(value):
        made = scalar_forms.node_of(value.form, rec.segment, rec.origin_text())
        return rec.segment.call("call_method", "item", (made,), {}, rec.origin())
    if scalars.live_in(rec, value) and scalars.size_form(value) is None:
        value = scalars.concretize_scalar(value)
    return as_nodes(rec, value)


# -- which arguments a kernel writes

_STORES = ("store", "atomic_")


def _written(kernel: Any) -> set[str]:
    """The parameters that something of the kernel may write through: what a store, or a function
    that is not Triton's, is given is made of them."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kernel.fn)))
    sources = {name: {name} for name in kernel.arg_names}
    found: set[str] = set()
    while True:
        before = sum(map(len, sources.values())) + len(found)
        for node in ast.walk(tree):
            _follow(node, sources)
            if isinstance(node, ast.Call):
                found |= _from(_stored_through(node), sources)
        if sum(map(len, sources.values())) + len(found) == before:
            return found


def _follow(node: ast.AST, sources: dict[str, set[str]]) -> None:
    """What an assignment makes its names of."""
    value = getattr(node, "iter" if isinstance(node, ast.For) else "value", None)
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    if value is None or targets == [None]:
        return
    for name in (each for target in targets for each in ast.walk(target)):
        if isinstance(name, ast.Name):
            sources.setdefault(name.id, set()).update(_from([value], sources))


def _from(parts: list[ast.expr], sources: dict[str, set[str]]) -> set[str]:
    names = [each.id for part in parts for each in ast.walk(part) if isinstance(each, ast.Name)]
    return set().union(*(sources.get(name, set()) for name in names))


def _stored_through(call: ast.Call) -> list[ast.expr]:
    """The arguments of a call that it may write through."""
    every = [*call.args, *(each.value for each in call.keywords)]
    if not isinstance(call.func, ast.Attribute):
        return [] if getattr(call.func, "id", "") in ("range", "min", "max", "len") else every
    if call.func.attr.startswith(_STORES):
        pointer = [each.value for each in call.keywords if each.arg in ("pointer", "desc")]
        return [*call.args[:1], *pointer, call.func.value]
    owner = call.func.value
    return [] if isinstance(owner, ast.Name) and owner.id in ("tl", "triton", "math") else every
