"""Calls that the partitioner of joint graphs takes for random, below a checkpoint.

There it has the forward keep the generator's state, so that what the backward runs again draws the
same numbers. Attention without dropout draws none, though its operators are tagged: it is hidden.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node, map_arg
from torch.utils._pytree import tree_leaves

_RATES = ("dropout_p", "dropout")
_SAVING = torch._prims.rng_prims.run_and_save_rng_state
_OPERATOR_AT = {  # the place of the operator among the arguments of the partitioner's own calls
    _SAVING: 0,
    torch._prims.rng_prims.run_with_rng_state: 1,
    torch._prims.rng_prims.graphsafe_run_with_rng_state: 0,
}


def hide(joint: GraphModule) -> None:
    """Give calls that draw nothing targets without tags, until `show`."""
    for node in joint.graph.nodes:
        if "recompute" in node.meta and _draws_nothing(node):
            node.target = _untagged(node.target)


def show(parts: Iterable[GraphModule]) -> None:
    """Give hidden calls their targets back; say what calls of the partitioner's own give, which it
    leaves open."""
    for part in parts:
        for node in part.graph.nodes:
            node.target = getattr(node.target, "tagged", node.target)
            if node.target in _OPERATOR_AT and "val" not in node.meta:
                node.meta["val"] = _result(node)
        part.recompile()


def _draws_nothing(node: Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    for place, argument in enumerate(target._schema.arguments):
        if argument.name in _RATES:
            given = node.args[place] if place < len(node.args) else argument.default_value
            return bool(node.kwargs.get(argument.name, given) == 0)
    return False


@functools.cache
def _untagged(target: OpOverload) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    call.__name__ = call.__qualname__ = f"{target._opname}_without_dropout"
    call.tagged = target  # type: ignore[attr-defined]
    return call


def _result(node: Node) -> Any:
    """What an operator gives that is called with a generator's state, on fake tensors; behind the
    state, where that is saved."""
    place = _OPERATOR_AT[node.target]
    operator: Any = node.args[place]
    named = {name: each for name, each in node.kwargs.items() if name != "rng_state"}
    given = node.args[place + 1 :], named
    args, kwargs = map_arg(given, lambda each: each.meta["val"])
    fakes = (each for each in tree_leaves((args, kwargs)) if isinstance(each, FakeTensor))
    with next(fakes).fake_mode:
        result = operator(*args, **kwargs)
    if node.target is not _SAVING:
        return result
    return next(user.meta["val"] for user in node.users if user.args[1] == 0), result
