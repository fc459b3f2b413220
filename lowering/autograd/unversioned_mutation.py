"""Running statistics, which batch norm writes without a count in their version: eager's history of
one call has to outlive the next call's writes of them, whoever does these."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

_PLACES = {F.batch_norm: (1, 2), torch.batch_norm: (3, 4)}  # of the statistics in a call
_NAMES = ("running_mean", "running_var")
_version = operator.attrgetter("_version")
_TRAINING = 5  # the place of `training` in a call


def uncounted(module: GraphModule) -> tuple[int, ...]:
    """Positions of the inputs of a torch-level graph that batch norms, and nothing else, take as
    their statistics."""
    inputs = module.graph.find_nodes(op="placeholder")
    return tuple(k for k, node in enumerate(inputs) if _is_statistics(node))


def _is_statistics(node: Node) -> bool:
    users = list(node.users)
    return any(map(_trains, users)) and all(_takes_as_statistics(user, node) for user in users)


def _trains(user: Node) -> bool:
    given = (
        user.args[_TRAINING] if len(user.args) > _TRAINING else user.kwargs.get("training", False)
    )
    return given is not False


def _takes_as_statistics(user: Node, node: Node) -> bool:
    if user.op != "call_function" or user.target not in _PLACES:
        return False
    given = [user.args[k] for k in _PLACES[user.target] if k < len(user.args)]
    given += [user.kwargs[name] for name in _NAMES if name in user.kwargs]
    return given.count(node) == [*user.args, *user.kwargs.values()].count(node)


def called(program: Callable[..., Any], inputs: Sequence[Any], positions: Sequence[int]) -> Any:
    """The program's results; the versions of the inputs at `positions` are as they were."""
    kept = tuple([inputs[k] for k in positions])
    if any(map(torch.Tensor.is_inference, kept)):
        kept = tuple(tensor for tensor in kept if not tensor.is_inference())
    versions = tuple(map(_version, kept))
    try:
        return program(*inputs)
    finally:
        torch._C._autograd._unsafe_set_version_counter(kept, versions)
