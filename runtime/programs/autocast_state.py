"""What autocast does in this thread, to be put back where a graph that enters it fails: nobody then
runs the node that would leave it."""

from typing import Any

import torch

DEVICES = ("cpu", "cuda", "xpu", "mps")  # that autocast knows


class AutocastState:
    """The state as it is."""

    __slots__ = ("_cache", "_casts", "_depth")

    def __init__(self) -> None:
        self._casts = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in DEVICES
        ]
        self._cache = torch.is_autocast_cache_enabled()
        self._depth = _depth()

    def put_back(self) -> None:
        """Leave whatever was entered since."""
        for kind, enabled, dtype in self._casts:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(self._cache)
        for _ in range(_depth() - self._depth):
            if torch.autocast_decrement_nesting() == 0:
                torch.clear_autocast_cache()


def enters_modes(graph: torch.fx.Graph) -> bool:
    """Whether a graph enters autocast or a grad mode."""
    return any(node.target in _MODES for node in graph.nodes)


def _depth() -> int:
    """How many autocasts are entered."""
    depth: int = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


_MODES: tuple[Any, ...] = (
    torch.amp.autocast_mode._enter_autocast,
    torch._C._set_grad_enabled,
)
