"""Whether a call that was just recorded can be made a second time without anyone noticing, and the
random generators put back for it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from ...runtime.programs.recipes import HostCall
from ...runtime.programs.steps import CALL_INPUT
from .recording import Recording

Again = Callable[[], AbstractContextManager[None]]


def is_repeatable(recorder: Any, recording: Recording) -> bool:
    """Whether the call did nothing to the outside but draw random numbers of torch's: no effect, no
    input written, nothing asked that answers otherwise each time."""
    written = any(v.home == CALL_INPUT for seg in recorder.segments for v in seg.written)
    asked = any(isinstance(recipe, HostCall) for _, recipe, _ in recording.outcomes)
    return not recording.effects and not written and not asked and not recording.fed


class Generators:
    """The state of torch's default generators at one moment."""

    def __init__(self) -> None:
        self._cpu = torch.random.get_rng_state()
        cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._cuda = torch.cuda.get_rng_state_all() if cuda else None

    def is_now(self) -> bool:
        """Whether nothing was drawn since."""
        now, cuda = Generators(), self._cuda or []
        alike = zip((self._cpu, *cuda), (now._cpu, *(now._cuda or [])), strict=False)
        return len(cuda) == len(now._cuda or []) and all(torch.equal(a, b) for a, b in alike)

    def put_back(self) -> None:
        torch.random.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)

    def again(self, recorder: Any) -> Again:
        """Makes contexts in which the call that was just recorded can be run again: it draws the
        same random numbers, and afterwards it is as if it had not. The generators are let alone
        where it drew none, since another thread may be drawing."""
        return self._drawing_again if self.drawn_by(recorder) else nullcontext

    def drawn_by(self, recorder: Any) -> bool:
        """Whether the run that was recorded since has drawn."""
        drew = any(segment.random for segment in recorder.segments)
        return drew or self._drawn_unseen(recorder)

    def _drawn_unseen(self, recorder: Any) -> bool:
        """Whether a generator moved, and not by another thread as far as can be told."""
        if self.is_now():
            return False
        return recorder.stopped is not None or threading.active_count() == 1

    @contextmanager
    def _drawing_again(self) -> Iterator[None]:
        now = Generators()
        self.put_back()
        try:
            yield
        finally:
            now.put_back()


def equal(one: Any, other: Any) -> bool:
    """Whether two results of one call are the same, as far as their tensors go (what is computed
    for more elements at once may differ in its last bits)."""
    leaves = [torch.utils._pytree.tree_leaves(result) for result in (one, other)]
    if len(leaves[0]) != len(leaves[1]):
        return False
    return all(_same(a, b) for a, b in zip(*leaves, strict=True))


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is type(other)
    if one.shape != other.shape or one.dtype != other.dtype or one.stride() != other.stride():
        return False
    if one.requires_grad != other.requires_grad or one.device != other.device:
        return False
    with torch.no_grad():
        return torch.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)
