"""Which gradients a backward of AOTAutograd gives at all.

Its one node gives a gradient to every input, zeros where nothing that the input leads to was
differentiated. Eager gives none there, and leaves `.grad` None.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .fakes import PacedFakeMode

Context = Callable[[], Any]


class Reach:
    """Of one segment: which inputs each gradient that its node may be given leads to. `module`: its
    torch-level graph; `metas`: its inputs; `targets(fed, results)`: the tensors whose gradients the
    node is given, in order; `contexts`: those of autocast that were in force."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        metas: Sequence[Any],
        targets: Callable[[Sequence[Any], Any], Sequence[Any]],
        contexts: Sequence[Context],
    ) -> None:
        self._run = module, metas, targets, contexts
        self._leads: list[frozenset[int]] | None = None

    def absent(self, given: Sequence[Any]) -> frozenset[int]:
        """The inputs that only gradients of None lead to, if any does."""
        if self._leads is None:
            self._leads = _leads(*self._run)
        pairs = list(zip(given, self._leads, strict=False))
        reached = {index for grad, leads in pairs if grad is not None for index in leads}
        return frozenset(index for _, leads in pairs for index in leads) - reached


def _leads(
    module: torch.fx.GraphModule,
    metas: Sequence[Any],
    targets: Callable[[Sequence[Any], Any], Sequence[Any]],
    contexts: Sequence[Context],
) -> list[frozenset[int]]:
    """The graph once more on fake tensors, whose history says what leads where."""
    with contextlib.ExitStack() as stack:
        for make in (lambda: torch.inference_mode(False), torch.enable_grad, *contexts):
            stack.enter_context(make())
        stack.enter_context(PacedFakeMode(allow_non_fake_inputs=True))
        inputs = [meta.fake() for meta in metas]
        fed = [t.view_as(t) if isinstance(t, torch.Tensor) else t for t in inputs]
        places = {id(each): index for index, each in enumerate(inputs)}
        return [
            frozenset(places[id(leaf)] for leaf in _leaves(target) if id(leaf) in places)
            for target in targets(fed, module(*fed))
        ]


def _leaves(tensor: Any) -> Iterator[torch.Tensor]:
    seen, waiting = set(), [getattr(tensor, "grad_fn", None)]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting += [following for following, _ in node.next_functions]


def with_zeros(node: Any, given: list[Any]) -> None:
    """Gradients of None as zeros, in place, as autograd itself makes them."""
    for place, (grad, meta) in enumerate(zip(given, node._input_metadata, strict=True)):
        if grad is None:
            given[place] = torch.zeros(meta.shape, dtype=meta.dtype, device=meta.device)
