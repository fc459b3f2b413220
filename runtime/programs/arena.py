"""Memory for what a Program needs during a call alone: blocks that outlive the call, so that the
next one finds its pages mapped and warm in cache. Freshly mapped memory costs a page fault every 4
KiB, more than most loops over it.

A call owns its block until it gives it back: threads never share one. A call that raises lets its
block go.
"""

import dataclasses
import weakref

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .result_memory import empty_large

LARGEST = 1 << 26  # bytes of a block that is kept
MAX_KEPT_BLOCKS = 4  # blocks kept: as many as threads or nested calls have needed at once


@dataclasses.dataclass(frozen=True)
class ArenaView:
    """A strided tensor whose first element is `offset` bytes into the block."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@dataclasses.dataclass(frozen=True, eq=False)
class ArenaViews:
    """The tensors of one program. They are made once for each block."""

    views: tuple[ArenaView, ...]


class ArenaBlock:
    def __init__(self, size: int) -> None:
        with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
            self.memory = empty_large((size,), (1,), torch.uint8)
        self.size = size
        self.address = self.memory.data_ptr()
        self._made: dict[int, tuple[torch.Tensor, ...]] = {}  # by the identity of what is wanted
        self._watched: dict[int, weakref.ref[ArenaViews]] = {}

    def tensors(self, wanted: ArenaViews) -> tuple[torch.Tensor, ...]:
        """A tensor for each view. They must be neither returned nor kept beyond the call."""
        made = self._made.get(id(wanted))
        return self._make(wanted) if made is None else made

    def _make(self, wanted: ArenaViews) -> tuple[torch.Tensor, ...]:
        with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
            made = tuple(self._tensor(view) for view in wanted.views)
        key, tables = id(wanted), (self._made, self._watched)
        self._watched[key] = weakref.ref(wanted, lambda _: [table.pop(key) for table in tables])
        self._made[key] = made
        return made

    def _tensor(self, view: ArenaView) -> torch.Tensor:
        item = view.dtype.itemsize
        typed = self.memory[: self.size // item * item].view(view.dtype)
        return torch.as_strided(typed, view.shape, view.strides, view.offset // item)


_free: list[ArenaBlock] = []


def take(size: int) -> ArenaBlock:
    """A block of at least `size` bytes, the one used last if it is large enough."""
    try:
        block = _free.pop()
    except IndexError:
        return ArenaBlock(size)
    return block if block.size >= size else ArenaBlock(size)


def give_back(block: ArenaBlock) -> None:
    if block.size <= LARGEST and len(_free) < MAX_KEPT_BLOCKS:
        _free.append(block)
