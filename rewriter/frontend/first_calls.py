"""What earlier processes learnt of a function's first call: one that leaves behind what its own
recording does not hold for, as an optimizer's first step does, was recorded for nothing. Later
processes serve it in eager and record the second. Only when something is done depends on that,
never what."""

import contextlib
import os
from typing import Any

from ...lowering import stored_graphs
from ...runtime.cache import disk_cache
from ...runtime.options import Options
from ..capture.dynamic_inputs import DynamicInputs
from ..capture.recording import Recording
from ..instrument import rewrite_cache

_OWN = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


class FirstCall:
    """Of one compiled function. Nothing is kept of entries of ours, which stand for any object,
    under `fullgraph=True`, where the first call has to say what breaks, and where kernels are
    watched, which is to show the same in each process."""

    def __init__(self, fn: Any, options: Options) -> None:
        code = getattr(fn, "__code__", None)
        watched = options.backend == "native" and not (options.fullgraph or stored_graphs.watchers)
        of_user = code is not None and not code.co_filename.startswith(_OWN)
        self._code = code if watched and of_user else None
        self._misses, self._outlived = 0, False

    def is_wasted(self) -> bool:
        """No entry serves a call. Whether it is the first one, and its recording would be made for
        nothing."""
        self._misses += 1
        if self._misses > 1 or self._code is None:
            return False
        if disk_cache.get(self._key(), ".first") is None:
            return False
        self._code = None
        return True

    def outlived(self, recordings: list[Any]) -> None:
        """The last of `recordings` does not hold for the next call."""
        self._outlived = len(recordings) == 1

    def served(self, recordings: list[Any], moving: DynamicInputs) -> None:
        """The last of `recordings` holds for the next call. Where it is that of the second call and
        owes nothing to the first one's, later processes do without that."""
        first, second = self._outlived and self._misses == len(recordings) == 2, recordings[-1]
        learnt = moving.numbers or any(moving.sizes.values()) or moving.contents or moving.assumed
        plain = isinstance(second, Recording) and not second.sites and second.symbols is None
        if first and plain and not learnt and self._code is not None:
            with contextlib.suppress(OSError):
                disk_cache.put(self._key(), ".first", b"")
        self._code = None

    def _key(self) -> str:
        assert self._code is not None
        return disk_cache.key("first", rewrite_cache.key(self._code))
