"""The global state that a compiled call depends on: modes, defaults and precision flags of torch,
read in one place.

Private torch functions are probed once, here; one that a torch version lacks is left out.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

Reader = tuple[str, Callable[[], Any]]


def _read_or_refusal(read: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """`read(*args)`, where a refusal (mixed legacy and new precision settings) counts as a value of
    its own."""

    def value() -> Any:
        try:
            return read(*args)
        except RuntimeError:
            return "unreadable"

    return value


def _private(title: str, name: str, *args: Any) -> list[Reader]:
    read = getattr(torch._C, name, None)
    return [] if read is None else [(title, _read_or_refusal(read, *args))]


def forward_level() -> int:
    """The level of forward-mode differentiation, -1 outside of it."""
    return forward_ad._current_level


_saved_tensors_hooks = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore_is_tracing: None
)


def is_watched() -> bool:
    """Whether something sees what eager does operator by operator, which nothing compiled shows:
    `torch.jit.trace`, a function mode, or hooks on what is saved for a backward."""
    return torch._C._is_tracing() or _has_function_mode() or _packs_saved_tensors()


def is_transformed() -> bool:
    """Whether what a call computes is not all: dispatch modes see its operators, a transform of
    `torch.func` around it batches or differentiates them, forward-mode tangents go along."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or forward_level() >= 0
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def _has_function_mode() -> bool:
    """Whether Python of a mode, which may count, tell or change, sees each call of torch's. That of
    a default device only names the device."""
    if not torch._C._len_torch_function_stack():
        return False
    return any(type(mode) is not DeviceContext for mode in function_modes())


def _packs_saved_tensors() -> bool:
    """Whether hooks of the user's own see the tensors that eager saves for a backward, or those of
    checkpoint(), which counts them and wants as many when it runs the call again. Other hooks of
    torch itself give back what they were given."""
    hooks = _saved_tensors_hooks(True) if torch.is_grad_enabled() else None
    if hooks is None:
        return False
    owner = hooks[0].__module__ or ""
    return owner == "torch.utils.checkpoint" or not owner.startswith("torch.")


def _autocast() -> tuple[Any, ...]:
    devices = torch._C._autocast_supported_devices()
    return tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices)


def _autocast_dtypes() -> tuple[Any, ...]:
    """Also where autocast is off: a nested context that names no dtype takes it from here."""
    return torch.get_autocast_dtype("cpu"), torch.get_autocast_dtype("cuda")


def _matmul_precision() -> tuple[str, ...]:
    """Of matrix products alone: all else goes to libraries, which read the setting at each call.
    'none' means IEEE."""
    read = torch._C._get_fp32_precision_getter
    return tuple("ieee" if (p := read(b, "matmul")) == "none" else p for b in ("cuda", "mkldnn"))


def _precision_readers() -> list[Reader]:
    found: list[Reader] = []
    for name in (
        "_get_cudnn_deterministic",
        "_get_mkldnn_deterministic",
        "_get_cublas_allow_fp16_reduced_precision_reduction",
        "_get_cublas_allow_bf16_reduced_precision_reduction",
        "_get_cpu_allow_fp16_reduced_precision_reduction",
    ):
        found += _private(name.removeprefix("_get_"), name)
    if hasattr(torch._C, "_get_fp32_precision_getter"):
        found += [("float32 matmul precision", _read_or_refusal(_matmul_precision))]
    return found


# What torch's own GlobalStateGuard compares in one call.
_COVERED: tuple[Reader, ...] = (
    ("grad mode", torch.is_grad_enabled),
    ("default dtype", torch.get_default_dtype),
    ("autocast", _autocast),
    ("autocast cache", torch.is_autocast_cache_enabled),
    *_private("torch function state", "_get_torch_function_state"),
    ("deterministic algorithms", torch._C._get_deterministic_algorithms),
    ("deterministic algorithms warn only", torch._C._get_deterministic_algorithms_warn_only),
)
_OTHERS: tuple[Reader, ...] = (
    ("inference mode", torch.is_inference_mode_enabled),
    ("autocast dtypes", _autocast_dtypes),
    ("deterministic fill", torch._C._get_deterministic_fill_uninitialized_memory),
    ("forward-mode AD level", forward_level),
    ("dispatch keys included", lambda: torch._C._dispatch_tls_local_include_set().raw_repr()),
    ("dispatch keys excluded", lambda: torch._C._dispatch_tls_local_exclude_set().raw_repr()),
    *_precision_readers(),
)
_READERS = _COVERED + _OTHERS


def _shortcut() -> Any:
    """A fresh GlobalStateGuard of torch, or None where it does not notice what it should."""
    return GlobalStateGuard() if GlobalStateGuard is not None else None


def _probe_shortcut() -> Any:
    """torch's GlobalStateGuard class, if it is there and tells states apart."""
    made = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    kind = getattr(made, "GlobalStateGuard", None)
    if kind is None or not hasattr(kind, "check"):
        return None
    guard = kind()
    with torch.set_grad_enabled(not torch.is_grad_enabled()):
        noticed = not guard.check()
    return kind if noticed and guard.check() else None


GlobalStateGuard = _probe_shortcut()


def function_modes() -> tuple[Any, ...]:
    """The torch function mode stack, outermost first."""
    return tuple(
        torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())
    )


def dispatch_modes() -> tuple[Any, ...]:
    """The torch dispatch mode stack, outermost first."""
    return tuple(
        torch._C._get_dispatch_stack_at(i) for i in range(torch._C._len_torch_dispatch_stack())
    )


def _same_mode(a: object, b: object) -> bool:
    """One mode object, or two `with torch.device(...)` for one device."""
    if a is b:
        return True
    return type(a) is DeviceContext and type(b) is DeviceContext and a.device == b.device


def _same_modes(a: Sequence[object], b: Sequence[object]) -> bool:
    return len(a) == len(b) and all(map(_same_mode, a, b))


def _phrase(was: Any, now: Any) -> str:
    # show the entries that differ
    if isinstance(was, tuple) and isinstance(now, tuple) and len(was) == len(now):
        pairs = [(a, b) for a, b in zip(was, now, strict=True) if a != b]
        was, now = [a for a, _ in pairs], [b for _, b in pairs]
    return f"was {was}, is {now}"


def _unchanged(readers: tuple[Reader, ...], values: tuple[Any, ...]) -> bool:
    # A generator would cost as much as the reads.
    for (_, read), was in zip(readers, values, strict=True):  # noqa: SIM110
        if read() != was:
            return False
    return True


def _differing(expected: "GuardState", actual: "GuardState") -> list[str]:
    found = [
        f"{title} {_phrase(was, now)}"
        for (title, _), was, now in zip(_READERS, expected.values, actual.values, strict=True)
        if was != now and not title.startswith("dispatch keys")
    ]
    for title, was, now in (
        ("torch function modes", expected.function_modes, actual.function_modes),
        ("torch dispatch modes", expected.dispatch_modes, actual.dispatch_modes),
    ):
        if not _same_modes(was, now):
            found.append(f"{title} were {list(was)}, are {list(now)}")
    if not found and expected.values != actual.values:
        found.append("dispatch keys of the thread differ (a transform of torch.func, or a mode)")
    return found


class GuardState:
    """A snapshot of the global state. Modes are held strongly and compared by identity (device
    contexts by their device)."""

    __slots__ = ("_shortcut", "dispatch_modes", "function_modes", "values")

    def __init__(self) -> None:
        self._shortcut = _shortcut()
        self.values = tuple(read() for _, read in _READERS)
        self.function_modes = function_modes()
        self.dispatch_modes = dispatch_modes()

    @classmethod
    def now(cls) -> "GuardState":
        """The state of the calling thread at this moment; take it before a recording mode is
        entered."""
        return cls()

    @classmethod
    def of(cls, values: tuple[Any, ...]) -> "GuardState":
        """The state with the `values` of another snapshot, of this torch, without modes. Raises
        ValueError for others."""
        state = cls()
        if len(values) != len(_READERS):
            raise ValueError("the global state of another torch")
        state._shortcut = state._shortcut if state.values == values else None
        state.values, state.function_modes, state.dispatch_modes = values, (), ()
        return state

    def holds(self) -> bool:
        """Whether the calling thread's state is this one."""
        if self._shortcut is not None and self._shortcut.check():
            held = _unchanged(_OTHERS, self.values[len(_COVERED) :])
        else:
            held = _unchanged(_READERS, self.values)
            # what the shortcut noticed is nothing that is guarded (the number of threads): take a
            # new one
            if held:
                self._shortcut = _shortcut()
        return held and self.same_modes()

    def same_modes(self) -> bool:
        """Whether both mode stacks are those of the snapshot."""
        if not (self.function_modes or self.dispatch_modes):
            return not (
                torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack()
            )
        return _same_modes(self.function_modes, function_modes()) and _same_modes(
            self.dispatch_modes, dispatch_modes()
        )

    def differences(self) -> list[str]:
        """What differs now, one phrase each: 'grad mode was True, is False'."""
        return _differing(self, GuardState.now())
