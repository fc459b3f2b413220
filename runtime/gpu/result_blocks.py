"""Results of a CUDA graph in memory of their own: those that share memory share that of their
copies, and each lies as the result does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

_ALIGNED = 16  # bytes of an element at most


@dataclasses.dataclass(frozen=True)
class ResultBlock:
    """Memory of a lane's own results. One that is alone in it, without gaps, is the `memory`; that
    of several, or of one whose elements lie apart or share places, is bytes from the storage's
    byte `start` on."""

    results: dict[int, torch.Tensor]
    memory: torch.Tensor
    start: int | None

    @property
    def first(self) -> int:
        return next(iter(self.results))

    def results_in(self, copy: torch.Tensor) -> dict[int, torch.Tensor]:
        """The results, over a copy of the memory."""
        if self.start is None:
            return {self.first: copy}
        storage, views = copy.untyped_storage(), {}
        for k, result in self.results.items():
            first = int(result.storage_offset()) - self.start // result.itemsize
            views[k] = _like_in(storage, result, first)
        return views


def blocks_of(own: dict[int, torch.Tensor]) -> dict[int, ResultBlock]:
    """The block of each of these results."""
    together: dict[int, dict[int, torch.Tensor]] = {}
    for k, result in own.items():
        together.setdefault(result.untyped_storage()._cdata, {})[k] = result
    return {k: block for each in together.values() for block in (_block(each),) for k in each}


def _block(results: dict[int, torch.Tensor]) -> ResultBlock:
    (one, *others) = results.values()
    plain = not one.numel() or torch.empty_like(one).stride() == one.stride()
    if not others and plain and not one.is_conj() and not one.is_neg():
        return ResultBlock(results, one, None)
    reaches = [_reach(each) for each in results.values()]
    start = min(first for first, _ in reaches) // _ALIGNED * _ALIGNED
    end = max(last for _, last in reaches)
    row = torch.empty(0, dtype=torch.uint8, device=one.device)
    row.set_(one.untyped_storage(), start, (end - start,), (1,))
    return ResultBlock(results, row, start)


def _reach(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage that it lies in: the first, and the one behind the last."""
    start = int(tensor.storage_offset())
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = start + sum((n - 1) * step for n, step in steps) if tensor.numel() else start - 1
    return start * tensor.itemsize, (last + 1) * tensor.itemsize


def outline(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its memory."""
    shape, strides = tensor.shape, tensor.stride()
    made = torch.empty_strided(shape, strides, dtype=tensor.dtype, device="meta")
    made = made.conj() if tensor.is_conj() else made
    return torch._neg_view(made) if tensor.is_neg() else made


def _like_in(storage: torch.UntypedStorage, like: torch.Tensor, first: int) -> torch.Tensor:
    """A tensor as `like` in a storage, whose element `first` is its first."""
    made = torch.empty(0, dtype=like.dtype, device=storage.device)
    made.set_(storage, first, like.shape, like.stride())
    made = made.conj() if like.is_conj() else made
    return torch._neg_view(made) if like.is_neg() else made


def start_of(tensor: torch.Tensor) -> int:
    """The byte of its storage at which it begins."""
    return int(tensor.storage_offset()) * tensor.itemsize


def view_of(k: int, like: torch.Tensor, moved: int, args: Sequence[Any]) -> torch.Tensor:
    """A view of argument k that lies as `like` does, `moved` bytes after its first."""
    first = (start_of(args[k]) + moved) // like.itemsize
    if _bits(like) == _bits(args[k]):
        return torch.as_strided(args[k], like.shape, like.stride(), first)
    return _like_in(args[k].untyped_storage(), like, first)


def _bits(tensor: torch.Tensor) -> tuple[torch.dtype, bool, bool]:
    return tensor.dtype, tensor.is_conj(), tensor.is_neg()
