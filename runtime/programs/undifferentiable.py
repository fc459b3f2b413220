"""Operators between graphs that have no derivative (`unique`, `zeta`). Eager minds that only if
gradients arrive there; a graph that takes what they give would have autograd visit them at every
backward, whatever is differentiated."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

_refusing: dict[tuple[Any, ...], bool] = {}  # by the node of autograd, and which inputs have one


class _Refused(torch.autograd.Function):
    """The identity, with a history that ends here, and raises where a gradient arrives."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, leaf: torch.Tensor, node: Any) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.mark_dirty(tensor)  # a view could not be written afterwards
        ctx.node = node
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if gradients[0] is not None:
            ctx.node(*_zeros(ctx.node))
        return None, None, None


def watched(func: Callable[..., Any], args: Any, kwargs: Any) -> Callable[..., Any]:
    """The operator; one whose results require gradients, with what refuses them, if it does, at the
    end of a history."""
    given = (each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor))
    if not torch.is_grad_enabled() or not any(each.requires_grad for each in given):
        return func

    @functools.wraps(func, assigned=("__name__", "__doc__"), updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return tree_map_only(torch.Tensor, _ended, func(*args, **kwargs))

    return call


def _ended(tensor: torch.Tensor) -> torch.Tensor:
    node = tensor.grad_fn
    if node is None or not _refuses(node):
        return tensor
    given, leaf = tensor.detach(), torch.empty(0, requires_grad=True)
    with torch.autograd._unsafe_preserve_version_counter(given):  # nothing is written
        return _Refused.apply(given, leaf, node)  # type: ignore[no-untyped-call,no-any-return]


def _refuses(node: Any) -> bool:
    """Whether the node raises for whatever gradient it is given; asked once for each kind. A
    user's own code is not run for it."""
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return False
    kind = (type(node), *(each is not None for each, _ in node.next_functions))
    if kind not in _refusing:
        try:
            with torch.no_grad():
                node(*_zeros(node))
            _refusing[kind] = False
        except NotImplementedError:
            _refusing[kind] = True
        except Exception:  # of this call, if anything
            return False
    return _refusing[kind]


def _zeros(node: Any) -> list[torch.Tensor]:
    metas = node._input_metadata
    return [torch.zeros(m.shape, dtype=m.dtype, device=m.device) for m in metas]
