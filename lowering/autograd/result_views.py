"""Results that share memory with others, as autograd takes them in eager.

Programs run with gradients off, so autograd refuses writes with a gradient to the views that they
make, and may find a view where eager has a tensor of its own.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

_creation: Any = torch._C._autograd._get_creation_meta
_WRITABLE: Any = torch._C._autograd.CreationMeta.DEFAULT
_SEVERAL: Any = torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE


class ResultOrigin(NamedTuple):
    """How eager made the result at `place`: as a view that may be written, or as a tensor of its
    own. `base`: the place of the result that it is a view of, if that is one."""

    place: int
    is_view: bool
    base: int | None


def is_writable(view: torch.Tensor) -> bool:
    """Whether autograd lets the view be written where gradients are recorded."""
    return bool(_creation(view) == _WRITABLE)


def is_one_of_several(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a view, or a view of a view, that an operator gave with others."""
    return tensor._is_view() and bool(_creation(tensor) == _SEVERAL)


class ResultViews:
    """Of one program; `made`: tensors of their own first. `asked`: whether results have to be
    looked at, which a first call without views answers. `shares`: whether some are views of
    others."""

    def __init__(self, made: Sequence[ResultOrigin]) -> None:
        self.made, self.asked = made, len(made) > 0
        self.shares = any(one.base is not None for one in made)

    def seen(self, results: Sequence[Any]) -> Sequence[Any]:
        """The results as in eager."""
        self.asked = self.shares or any(results[one.place]._is_view() for one in self.made)
        return self.as_in_eager(results)

    def as_in_eager(self, results: Sequence[Any]) -> Sequence[Any]:
        """The results without a gradient, views and tensors of their own where these are so in
        eager."""
        mended: list[Any] | None = None
        for place, is_view, base in self.made:
            tensor = results[place]
            whole = None if base is None else (mended or results)[base]
            if tensor.requires_grad or _fits(tensor, whole):
                continue
            mended = mended or list(results)
            mended[place] = _view(tensor, whole) if is_view else tensor.detach()
        return results if mended is None else tuple(mended)


def _fits(tensor: torch.Tensor, whole: torch.Tensor | None) -> bool:
    if not tensor._is_view():
        return whole is None
    return is_writable(tensor) and (whole is None or whole is tensor._base)


def _view(tensor: torch.Tensor, whole: torch.Tensor | None) -> torch.Tensor:
    """The same view, of `whole` where that is known, which has the memory of what it is a view
    of."""
    if whole is None or whole is tensor._base:
        return tensor._view_func(tensor._base)  # type: ignore[attr-defined, no-any-return]
    if whole.dtype != tensor.dtype:
        return tensor
    made = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    made = made.conj() if tensor.is_conj() != made.is_conj() else made
    return torch._neg_view(made) if tensor.is_neg() != made.is_neg() else made
