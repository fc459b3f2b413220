"""Process-wide defaults of `compile()`, and how its arguments become one `Options` record."""

import contextlib
import contextvars
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ...runtime import backends
from ...runtime.errors import OptionError
from ...runtime.options import Options, check_names, list_mode_options, list_options

_DEFAULTS = Options()
_NAMES = [field.name for field in dataclasses.fields(Options) if field.name != "backend_kwargs"]


class Config:
    """Defaults for every later `compile()`: attributes are the fields of `Options`.

    `config.recompile_limit = 4` sets one for the process. `config.patch(recompile_limit=4)` sets
    some for a `with` block or a decorated function, in this thread (or asynchronous task) alone;
    patches nest. Unknown names and ill-typed values raise OptionError. What was compiled before
    keeps the options that it was compiled with. A value in `config` counts where `compile()` was
    given the default of its argument.
    """

    def __init__(self) -> None:
        self.__dict__["_base"] = {}
        self.__dict__["_lock"] = threading.Lock()
        self.__dict__["_patches"] = contextvars.ContextVar(
            "dynfix_config", default=MappingProxyType({})
        )

    def __getattr__(self, name: str) -> Any:
        if name not in _NAMES:
            raise AttributeError(f"config has no option {name!r}: it has {', '.join(_NAMES)}")
        return {**self._base, **self._patches.get()}.get(name, getattr(_DEFAULTS, name))

    def __setattr__(self, name: str, value: Any) -> None:
        changes = _checked({name: value})
        if name in self._patches.get():  # inside a patch of this name: undone at its end
            self._patches.set({**self._patches.get(), **changes})
            return
        with self._lock:
            self.__dict__["_base"] = {**self._base, **changes}

    def __repr__(self) -> str:
        """Every option with its value now, those that differ from the default marked."""
        values = {name: getattr(self, name) for name in _NAMES}
        lines = [
            f"    {name}={value!r},{'' if value == getattr(_DEFAULTS, name) else '  # changed'}"
            for name, value in values.items()
        ]
        return "\n".join(["dynfix.config(", *lines, ")"])

    def __dir__(self) -> list[str]:
        return [*_NAMES, "options", "patch"]

    def options(self) -> Options:
        """The record of the values now in force."""
        return Options(**{**self._base, **self._patches.get()})

    def patch(
        self, name: str | Mapping[str, Any] | None = None, value: Any = None, **changes: Any
    ) -> "_Patch":
        """A context manager and decorator: `patch(a=1)`, `patch("a", 1)` or `patch({"a": 1})`."""
        if isinstance(name, str):
            changes[name] = value
        elif name is not None:
            changes.update(name)
        return _Patch(self._patches, _checked(changes))


class _Patch(contextlib.ContextDecorator):
    """One use of `config.patch`; as a decorator it is entered anew at every call, so recursion and
    threads are safe."""

    def __init__(
        self, patches: contextvars.ContextVar[Mapping[str, Any]], changes: dict[str, Any]
    ) -> None:
        self._patches, self._changes = patches, changes
        self._entered: list[contextlib.AbstractContextManager[None]] = []

    def _recreate_cm(self) -> "_Patch":
        return _Patch(self._patches, self._changes)

    def __enter__(self) -> None:
        self._entered.append(self._applied())
        self._entered[-1].__enter__()

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().__exit__(*error)

    @contextlib.contextmanager
    def _applied(self) -> Iterator[None]:
        token = self._patches.set({**self._patches.get(), **self._changes})
        try:
            yield
        finally:
            self._patches.reset(token)


def _checked(changes: Mapping[str, Any]) -> dict[str, Any]:
    check_names(changes, _NAMES)
    if "backend" in changes:
        backends.check(changes["backend"])
    _DEFAULTS.replace(**changes)  # raises for an ill-typed value
    return dict(changes)


def make_options(
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] | None = "native",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Options:
    """The record for one `compile()`: config's values, then the mode's, then `options`, then the
    arguments.

    Raises OptionError for `mode` together with `options`, and for unknown names, modes and
    backends.
    """
    if mode is not None and options is not None:
        raise OptionError("either mode or options can be given, not both")
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(
            f"options must be a dict of names and values, not a {type(options).__name__}:"
            f" {options!r:.60}"
        )
    record = config.options()
    record = record.replace(
        fullgraph=record.fullgraph or fullgraph,
        dynamic=record.dynamic if dynamic is None else dynamic,
        backend=record.backend if backend in (None, "native") else backend,
    )
    backends.check(record.backend)
    if not backends.is_builtin(record.backend):
        return record.replace(backend_kwargs=_passed_on(mode, options))
    check_names(options or {}, list_options())
    return record.replace(
        **(list_mode_options(mode) if mode is not None else {}), **(options or {})
    )


def _passed_on(mode: str | None, options: Mapping[str, Any] | None) -> tuple[tuple[str, Any], ...]:
    """A backend that is not ours has modes and options of its own, as under torch.compile."""
    given = {"mode": mode, "options": dict(options) if options is not None else None}
    return tuple((name, value) for name, value in given.items() if value is not None)


config = Config()
