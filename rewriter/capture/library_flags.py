"""The flags that C code keeps for the libraries behind torch's operators (`torch.backends`)."""

from collections.abc import Callable
from typing import Any

import torch

_SUBJECTS = (
    *("blas_", "cpu_allow_", "cublas_", "cudnn_", "fa3_sdp", "flash_sdp", "fp32_precision"),
    *("linalg_", "math_sdp", "mem_efficient_sdp", "miopen_", "mkldnn_", "nnpack_", "onednn_"),
    *("overrideable_sdp", "rocm_fa_", "sdp_"),
)


def _named(prefix: str) -> frozenset[Any]:
    names = (name for name in dir(torch._C) if name.startswith(prefix))
    return frozenset(
        getattr(torch._C, name) for name in names if name.removeprefix(prefix).startswith(_SUBJECTS)
    )


READERS = _named("_get_") | {torch.get_num_threads, torch.get_num_interop_threads}
SETTERS = _named("_set_")
_PRECISION = getattr(torch._C, "_get_fp32_precision_getter", None)
_PRECISIONS = [
    (backend, operator)
    for backend in ("generic", "cuda", "mkldnn")
    for operator in ("all", "matmul", "conv", "rnn")
]
# Which of several equal kernels is taken: the recorder looks at attention's by itself.
_CHOOSING = ("_sdp", "benchmark", "_preferred_")

Question = tuple[Callable[..., Any], tuple[Any, ...]]


def snapshot() -> dict[Question, Any]:
    """Each flag as it is now, by what asks for it. Those that do not answer (old and new settings
    mixed) are left out."""
    found: dict[Question, Any] = {}
    for reader in READERS:
        for args in _PRECISIONS if reader is _PRECISION else [()]:
            try:
                found[reader, args] = reader(*args)
            except (RuntimeError, TypeError):
                continue
    return found


def counts_now(before: dict[Question, Any]) -> bool:
    """Whether a flag that operators' results depend on is not as it was."""
    now = snapshot()
    return any(
        now.get(question) != seen
        for question, seen in before.items()
        if not any(part in question[0].__name__ for part in _CHOOSING)
    )
