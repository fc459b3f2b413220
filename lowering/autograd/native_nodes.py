"""A compiled function with a native autograd node: what is unusual comes back to Python."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from .direct_calls import program_in
from .missing_gradients import is_built


class NodeContext:
    """What a native node kept, as AOTAutograd's backward is given it: `ctx`, for one backward.
    `made_again(arguments, versions)`: what stands for the call if it has to be made again."""

    opaque_objects = ()

    def __init__(self, saved: Any, cls: Any, made_again: Callable[[Any, list[int]], Any]) -> None:
        self._saved, self._forward_cls, self._made_again = saved, cls, made_again
        self.maybe_clear_saved_tensors = saved.free

    @property
    def dynfix_call(self) -> Any:
        saved = self._saved
        if saved.kept is None and saved.call is not None:
            saved.kept = self._made_again(*saved.call)
        return saved.kept

    @dynfix_call.setter
    def dynfix_call(self, call: Any) -> None:
        self._saved.kept = call

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """Raises RuntimeError where they were written since, or let go of."""
        return self._saved.saved_tensors  # type: ignore[no-any-return]

    @property
    def _tensors_no_vc_check(self) -> list[Any]:
        return self._saved.unchecked  # type: ignore[no-any-return]

    @property
    def symints(self) -> list[int]:
        return self._saved.numbers  # type: ignore[no-any-return]

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        return self._saved.needs_input_grad  # type: ignore[no-any-return]

    @property
    def _input_metadata(self) -> Sequence[Any]:
        return self._saved.input_metadata  # type: ignore[no-any-return]


def with_node(
    native: ModuleType,
    facts: dict[str, Any],
    cls: Any,
    backward: Callable[..., Any],
    made_again: Callable[[Any, list[int]], Any],
) -> Callable[..., Any]:
    """The compiled function of AOTAutograd's `cls`, natively. `facts`: of `lean_calls`, with what
    the caller adds; `backward(ctx, *gradients)`: the one in Python, for what is unusual, and until
    there is a backward program."""

    def unusual(saved: Any, gradients: list[Any]) -> Any:
        # torch up to 2.12 takes gradients one by one only
        grads = (gradients,) if getattr(cls, "boxed_grads_call", False) else gradients
        found = backward(NodeContext(saved, cls, made_again), *grads)
        built = cls.dynfix_built and not cls.dynfix_unbuilt
        if made.backward is None and built and is_built(cls.compiled_bw, frozenset()):
            made.backward = program_in(cls.compiled_bw)
        return found

    def detached(saved: Any) -> Any:
        return _in_python(NodeContext(saved, cls, made_again), cls, facts)

    made: Any = native.Function({**facts, "unusual": unusual, "twin": detached})
    return made  # type: ignore[no-any-return]


def _in_python(kept: NodeContext, cls: Any, facts: dict[str, Any]) -> torch.Tensor:
    """A tensor with AOTAutograd's own node for the call, which compiled autograd traces. Raises
    RuntimeError where the call's tensors were let go of."""
    saved, call, taken = kept.saved_tensors, kept.dynfix_call, facts["taken"]
    shapes = kept._input_metadata

    class Adopted(cls):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            ctx.save_for_backward(*saved)
            ctx._tensors_no_vc_check, ctx.symints = kept._tensors_no_vc_check, kept.symints
            ctx.opaque_objects, ctx._materialize_non_diff_grads = (), False
            made = [torch.empty(0) for _ in range(facts["own"])]
            for k in taken:
                how = {"dtype": shapes[k].dtype, "device": shapes[k].device}
                made[k] = torch.empty(tuple(shapes[k].shape), **how)
            ctx.mark_non_differentiable(*(t for k, t in enumerate(made) if k not in taken))
            return tuple(made)

    cut = facts["cut"]
    given = [t.detach() if k in cut else t for k, t in enumerate(call.tensors)]
    with torch.enable_grad():
        made: torch.Tensor = Adopted.apply(*given)[taken[0]]
    node: Any = made.grad_fn
    node.dynfix_call, node.materialize_grads = call, False
    return made
