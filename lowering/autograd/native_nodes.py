"""A compiled function with a native autograd node: what is unusual comes back to Python."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from .plain_calls import program_in


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
    the caller adds; `backward(ctx, gradients)`: the one in Python, for what is unusual, and until
    there is a backward program."""

    def unusual(saved: Any, gradients: list[Any]) -> Any:
        found = backward(NodeContext(saved, cls, made_again), gradients)
        if made.backward is None and cls.dynfix_built and not cls.dynfix_unbuilt:
            made.backward = program_in(cls.compiled_bw)
        return found

    made: Any = native.Function({**facts, "unusual": unusual})
    return made  # type: ignore[no-any-return]
