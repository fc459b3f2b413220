"""What eager's gradient history of a segment would be, found by running its graph on fake tensors.

AOTAutograd's one node gives a gradient to every input at once: zeros where nothing that the input
leads to was differentiated, where eager gives none and leaves `.grad` None; and in an order of its
own, which gradient hooks can see.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .fakes import PacedFakeMode


class EagerHistory:
    """Of one segment. `module`: its torch-level graph; `metas`: its inputs; `contexts`: makers of
    the autocast contexts that were in force."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        metas: Sequence[Any],
        contexts: Sequence[Callable[[], Any]],
    ) -> None:
        self.module, self.metas, self.contexts = module, metas, contexts

    @contextlib.contextmanager
    def _run(self) -> Iterator[tuple[list[Any], Any]]:
        """The graph run on fakes: its inputs and results."""
        with contextlib.ExitStack() as stack:
            for make in (lambda: torch.inference_mode(False), torch.enable_grad, *self.contexts):
                stack.enter_context(make())
            stack.enter_context(PacedFakeMode(allow_non_fake_inputs=True))
            inputs = [meta.fake() for meta in self.metas]
            yield inputs, self.module(*inputs)

    def reach(
        self, targets: Callable[[Sequence[Any], Any], Sequence[Any]]
    ) -> tuple[frozenset[int], ...]:
        """For each tensor that `targets(inputs, results)` gives: the inputs that its gradient
        leads to."""
        with self._run() as (inputs, results):
            places = {id(each): index for index, each in enumerate(inputs)}
            return tuple(
                frozenset(places[id(leaf)] for leaf in _leaves(target) if id(leaf) in places)
                for target in targets(inputs, results)
            )

    def order(self) -> tuple[int, ...]:
        """The inputs in the order in which their gradients arrive."""
        found: list[int] = []
        with self._run() as (inputs, results):
            for index, each in enumerate(inputs):
                if isinstance(each, torch.Tensor) and each.requires_grad:
                    each.register_hook(lambda _, index=index: found.append(index))
            outs = [out for out in results if isinstance(out, torch.Tensor) and out.requires_grad]
            torch.autograd.backward(outs, [torch.ones_like(out) for out in outs])
        return tuple(found)


def absent(given: Sequence[Any], reach: Sequence[frozenset[int]]) -> frozenset[int]:
    """The inputs that only gradients of None lead to, if any does."""
    pairs = list(zip(given, reach, strict=False))
    reached = {index for grad, leads in pairs if grad is not None for index in leads}
    return frozenset(index for _, leads in pairs for index in leads) - reached


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
