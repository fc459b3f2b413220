"""`set_stance`: what compiled functions do at their next calls, in the whole process."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

from ...runtime import backends
from ...runtime.errors import DynfixError, OptionError, RecompileError
from ...runtime.options import Options
from ..capture import current

STANCES = {
    "default": "compile at the first call of each variant",
    "force_eager": "run everything in eager",
    "eager_on_recompile": "run compiled code, and eager where a recompile would be needed",
    "fail_on_recompile": "raise RecompileError where a recompile would be needed",
    "eager_then_compile": "run a function's first call in eager, and compile at the next",
    "aot_eager_then_compile": "as eager_then_compile",
}


@dataclasses.dataclass(frozen=True)
class Stance:
    name: str = "default"
    backend: Any = None

    def options(self, options: Options) -> Options:
        """What a function is compiled with now."""
        return options if self.backend is None else options.replace(backend=self.backend)


class _State:
    now = Stance()


state = _State()


def forbid_recording(name: str, first: bool, why: Callable[[], str]) -> bool:
    """Whether eager is to serve a call of `name`, perhaps the `first` one, that would be recorded.
    Raises RecompileError under "fail_on_recompile"; `why`: what guard did not hold."""
    stance = state.now.name
    if stance == "fail_on_recompile":
        asked = f"{name} would be recorded under the stance 'fail_on_recompile'"
        raise RecompileError(f"{asked}: {why()}")
    return stance == "eager_on_recompile" or (first and stance.endswith("eager_then_compile"))


class set_stance(contextlib.ContextDecorator):
    """Set the stance, one of `STANCES`: for good when called, for a block as a context manager, for
    its calls as a decorator. `force_backend`: with "default", the backend of what is compiled from
    now on. Raises OptionError for an unknown stance, DynfixError inside compiled code."""

    def __init__(
        self,
        stance: str = "default",
        *,
        skip_guard_eval_unsafe: bool = False,
        force_backend: str | Callable[..., Any] | None = None,
    ) -> None:
        if stance not in STANCES:
            raise OptionError(f"unknown stance {stance!r}: use one of {', '.join(STANCES)}")
        if skip_guard_eval_unsafe:
            raise OptionError("skip_guard_eval_unsafe is not there: guards are always checked")
        if force_backend is not None:
            if stance != "default":
                raise OptionError("force_backend goes with the stance 'default' alone")
            backends.check(force_backend)
        if current.recorder() is not None:
            raise DynfixError("set_stance cannot be called inside compiled code")
        self._stance = Stance(stance, force_backend)
        self._before = state.now
        state.now = self._stance

    def __call__(self, function: Callable[..., Any]) -> Any:
        state.now = self._before  # a decorator: only its calls
        return super().__call__(function)

    def _recreate_cm(self) -> "set_stance":
        return set_stance(self._stance.name, force_backend=self._stance.backend)

    def __enter__(self) -> None:
        state.now = self._stance

    def __exit__(self, *error: object) -> None:
        state.now = self._before
