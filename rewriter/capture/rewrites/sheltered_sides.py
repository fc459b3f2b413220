"""Sides of a choice that are kept from the numbers of the calls that do not take them.

The backward of `y / n` makes NaN of a zero gradient where `n` is zero. Given ones in place of `y`
and `n` where the side is not taken, it makes zeros: that is tried out, on ones of the shapes that
the recording saw. (The double `where` of JAX's FAQ on gradients that are NaN.)
"""

import ast
import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .fake_values import EffectWatch, FakeValues, UnknownValue, unsaved

LARGEST = 1 << 22  # elements of the ones


class _Ones(FakeValues):
    """Expressions on real tensors, of which `local` has all that may be used."""

    @contextmanager
    def _run(self) -> Iterator[EffectWatch]:
        with unsaved():
            yield EffectWatch()

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        if not any(tensor is known for known in self.local.values()):
            raise UnknownValue("a tensor that is not sheltered")
        return tensor


def tensors(node: ast.AST, is_tensor: Any) -> list[ast.expr]:
    """The names and attributes in an expression that stand for tensors from outside of it."""
    if isinstance(node, ast.Name | ast.Attribute) and is_tensor(node):
        inner = node.value if isinstance(node, ast.Attribute) else None
        if inner is None or not is_tensor(inner):
            return [node]
    return [found for child in ast.iter_child_nodes(node) for found in tensors(child, is_tensor)]


def are_exact(node: ast.expr, given: list[ast.expr], values: FakeValues) -> bool:
    """Whether a zero gradient that goes into `node` comes out as zeros where ones stand for the
    tensors `given`. Raises Unknown."""
    local = dict(values.local)
    memo: dict[int, Any] = {}
    leaves = []
    for number, tensor in enumerate(given):
        name = f"one {number}"
        local[name] = _ones(values, values.see(tensor).value)
        memo[id(tensor)] = ast.Name(name, ast.Load())
        leaves += [local[name]] if local[name].requires_grad else []
    kept = {k: v for k, v in local.items() if k.startswith("one ") or not _holds_tensors(v)}
    result = _Ones(kept, values.around).see(copy.deepcopy(node, memo)).value
    if not result.requires_grad:
        return True
    zeros = torch.zeros_like(result)
    found = torch.autograd.grad(result, leaves, zeros, allow_unused=True)
    return all(bool((grad == 0).all()) for grad in found if grad is not None)


def _ones(values: FakeValues, like: torch.Tensor) -> torch.Tensor:
    if like.dtype == torch.bool or like.numel() > LARGEST:
        raise UnknownValue("a mask, or a large tensor")
    kept = values.select(like, 1)
    if kept.stride() != like.stride() or kept.dtype != like.dtype or kept.shape != like.shape:
        raise UnknownValue("torch.where would change the tensor's strides")
    made = torch.ones(like.shape, dtype=like.dtype, device=like.device)
    return made.requires_grad_(like.requires_grad)


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
