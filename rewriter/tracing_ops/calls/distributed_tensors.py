"""DTensor: what makes one of a tensor of this rank, lays it out anew or gives the part of this rank
is a node of the graph, with the mesh and the placements as constants."""

import dataclasses
import types
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ...capture import opaque_tensors
from ...capture.nested import plain_in
from ...capture.trace import Recorder
from ..lookup import module_name, owner_of
from .custom_functions import Called, as_node

_MODULE = "torch.distributed.tensor._api"
_NAMES = ("torch.distributed.tensor.DTensor", f"{_MODULE}.DTensor")
_READ = ("placements", "device_mesh", "_local_tensor")
_CALLED = ("from_local", "to_local", "redistribute", "full_tensor", "distribute_tensor")


def takes(function: Any) -> bool:
    """Whether this is a method of DTensor that communicates, or gives a part."""
    target = function.__func__ if isinstance(function, types.MethodType) else function
    return (
        isinstance(target, types.FunctionType)
        and target.__name__ in _CALLED
        and module_name(target) == _MODULE
    )


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    owner = owner_of(function)
    if isinstance(owner, torch.Tensor):
        function, args = function.__func__, (owner, *args)
    leaves, spec = tree_flatten(plain_in((args, kwargs)))
    tensors = {at: each for at, each in enumerate(leaves) if isinstance(each, torch.Tensor)}
    constants = tuple(None if at in tensors else each for at, each in enumerate(leaves))
    for each in (*args, *kwargs.values()):
        rec.known.content(each)
    made = WithConstants(function, constants, tuple(tensors), spec)
    return as_node(rec, made, tuple(tensors.values()), {})


def has(obj: torch.Tensor, name: str) -> bool:
    """Whether it is a DTensor, and `name` says how it lies or what this rank holds."""
    kind = type(obj)
    return name in _READ and f"{kind.__module__}.{kind.__name__}" in _NAMES


def load(rec: Recorder, obj: torch.Tensor, name: str) -> Any:
    held = getattr(obj, name)
    if isinstance(held, torch.Tensor):
        return as_node(rec, getattr, (obj, name), {})
    # a result of the graph that nobody differentiates
    asked = rec.call(torch.Tensor.detach, (obj,), {}) if obj.requires_grad else obj
    opaque_tensors.hold(rec, asked, name, held)
    return held


@dataclasses.dataclass(frozen=True)
class WithConstants(Called):
    """Calls `function` with tensors among constants. `constants`: the leaves of its arguments;
    `places`: where the tensors stand among them."""

    constants: tuple[Any, ...]
    places: tuple[int, ...]
    spec: Any

    def __call__(self, /, *tensors: torch.Tensor) -> Any:
        leaves = list(self.constants)
        for at, tensor in zip(self.places, tensors, strict=True):
            leaves[at] = tensor
        args, kwargs = tree_unflatten(leaves, self.spec)
        return self.function(*args, **kwargs)
