"""The options of a compilation: one frozen record, made once and passed down."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from .diagnostics import warn_once
from .errors import OptionError

BUILTIN_BACKENDS = ("native", "eager", "aot_eager")


def _seconds(name: str, default: int) -> int:
    """The environment variable's, if it is a whole number of at least 1."""
    text = os.environ.get(name, "")
    if text.isdecimal() and int(text) > 0:
        return int(text)
    if text:
        warn_once("options", f"{name}={text} is no number of seconds: {default} are taken", name)
    return default


COMPILER_TIMEOUT = _seconds("DYNFIX_COMPILER_TIMEOUT", 900)


def _option(default: Any, help: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": help})


TARGET_NAMES = {"cpp", "triton"}  # `lowering.pipeline.register` adds others


@dataclasses.dataclass(frozen=True)
class Options:
    """What one `compile()` asked for. `list_options()` gives the names that `options={...}`
    takes."""

    backend: Any = "native"
    fullgraph: bool = False
    dynamic: bool | None = None
    # `mode` and `options` of compile(), passed on to a backend that is not ours; a value may be an
    # unhashable dict
    backend_kwargs: tuple[tuple[str, Any], ...] = dataclasses.field(default=(), hash=False)
    recompile_limit: int = _option(8, "variants kept for one function before it stays eager")
    target: str | None = _option(None, "'cpp' or 'triton'; None follows the device")
    verify_ir: bool = _option(
        os.environ.get("DYNFIX_VERIFY", "0") == "1",
        "check the legality of the IR after every stage",
    )
    fusion: bool = _option(True, "fuse loop nests; False runs one kernel an operator")
    cudagraphs: bool = _option(False, "replay captured CUDA graphs where legal")
    fallback_random: bool = _option(
        False, "draw from eager's stream of random numbers on GPUs too, by library calls"
    )
    max_autotune: bool = _option(False, "time kernel variants and keep the fastest")
    capture_numpy: bool = _option(
        True, "trace NumPy on values of tensors; False: such a call is a graph break"
    )
    write_kernels: str | None = _option(
        None, "write each kernel to this folder, and use those that were edited there"
    )
    compiler_timeout: int = _option(
        COMPILER_TIMEOUT, "seconds after which a C++ compiler that has not ended is given up"
    )
    strict: bool = _option(False, "raise internal failures instead of staying eager with a warning")

    def __post_init__(self) -> None:
        for name, (allowed, says) in _TYPES.items():
            value = getattr(self, name)
            if not any(type(value) is kind for kind in allowed):
                raise OptionError(f"{name} must be {says}, not {value!r}")
        if self.recompile_limit < 1:
            raise OptionError(f"recompile_limit must be at least 1, not {self.recompile_limit}")
        if self.compiler_timeout < 1:
            raise OptionError(f"compiler_timeout must be at least 1, not {self.compiler_timeout}")
        if self.write_kernels:  # the program may go to another folder
            object.__setattr__(self, "write_kernels", os.path.abspath(self.write_kernels))
        if self.target is not None and self.target not in TARGET_NAMES:
            names = ", ".join(map(repr, sorted(TARGET_NAMES)))
            raise OptionError(f"target must be one of {names}, or None, not {self.target!r}")

    def replace(self, **changes: Any) -> "Options":
        """A copy with `changes`. Raises OptionError for an unknown name or an ill-typed value."""
        check_names(changes, [field.name for field in dataclasses.fields(self)])
        return dataclasses.replace(self, **changes)


_KINDS: dict[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "True or False"),
    int: ((int,), "an integer"),
    bool | None: ((bool, type(None)), "True, False or None"),
    str | None: ((str, type(None)), "a string or None"),
}
_TYPES = {
    field.name: _KINDS[field.type] for field in dataclasses.fields(Options) if field.type in _KINDS
}


_MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cudagraphs": True},
    "max-autotune": {"max_autotune": True, "cudagraphs": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True},
}


def list_mode_options(mode: str | None = None) -> dict[str, Any]:
    """Options that each mode sets, or those of `mode`. Raises OptionError for an unknown mode."""
    if mode is None:
        return {name: dict(changes) for name, changes in _MODES.items()}
    if not isinstance(mode, str) or mode not in _MODES:
        own = " (it is Inductor's: backend='inductor' takes it)" if mode in ("lite",) else ""
        raise OptionError(f"unknown mode {mode!r}{own}: use one of {', '.join(_MODES)}")
    return dict(_MODES[mode])


def list_options() -> list[str]:
    """Names that `compile(options={...})` takes."""
    return [field.name for field in dataclasses.fields(Options) if "help" in field.metadata]


def check_names(given: Mapping[str, Any], allowed: list[str]) -> None:
    """Raise OptionError for the first name in `given` that is not in `allowed`, naming the
    choices."""
    for name in given:
        if name not in allowed:
            raise OptionError(f"unknown option {name!r}: use one of {', '.join(allowed)}")
