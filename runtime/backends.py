"""Compiler backends by name.

A backend is any callable of torch.compile's protocol, `(GraphModule, example_inputs) -> callable`;
the callable takes the inputs positionally and returns the graph's outputs. The rewriter registers
those of this package with `register_builtin`; they take the `Options` as a third argument. Backends
of torch itself are peers: looked up only when asked for by name.
"""

import importlib
import importlib.util
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

from .errors import OptionError
from .options import BUILTIN_BACKENDS, Options

Compiled: TypeAlias = Callable[..., Any]
CompilerFn: TypeAlias = Callable[..., Compiled]  # (gm, example_inputs, **kwargs)
Backend: TypeAlias = Callable[[Any, Any, Options], Compiled]  # (gm, example_inputs, options)

PEERS = ("inductor", "cudagraphs")
OWN = "dynfix"  # our entry point, for Dynamo
ENTRY_POINTS = "torch_dynamo_backends"  # where packages announce theirs, to torch and to us

# What a backend of another project needs: the module that registers it, and the package to install.
_PACKAGES = {
    "ipex": ("intel_extension_for_pytorch", "intel-extension-for-pytorch"),
    "onnxrt": ("onnxruntime", "onnxruntime onnxscript"),
    "openvino": ("openvino.torch", "openvino"),
    "tensorrt": ("torch_tensorrt", "torch-tensorrt"),
    "torch_tensorrt": ("torch_tensorrt", "torch-tensorrt"),
    "tvm": ("tvm", "apache-tvm"),
}

_builtin: dict[str, Backend] = {}
_registered: dict[str, CompilerFn] = {}
_lock = threading.Lock()


def register_builtin(name: str, backend: Backend) -> None:
    """Bind one of `BUILTIN_BACKENDS` to what runs it, `(gm, example_inputs, options) ->
    callable`."""
    if name not in BUILTIN_BACKENDS:
        raise OptionError(f"{name!r} is no built-in backend: use register_backend")
    _builtin[name] = backend


def register_backend(compiler_fn: CompilerFn | None = None, name: str | None = None) -> Any:
    """Register `compiler_fn` under `name` (default: its `__name__`); a decorator, with or without
    arguments.

    `compiler_fn(gm, example_inputs)` returns a callable; `mode` and `options` of `compile()` reach
    it as keywords, where given. Raises OptionError for a built-in name or a different backend under
    a name already taken.
    """
    if compiler_fn is None:
        return lambda fn: register_backend(fn, name)
    name = name or str(getattr(compiler_fn, "__name__", ""))
    with _lock:
        _check_free(name, compiler_fn)
        _registered[name] = compiler_fn
    return compiler_fn


def _check_free(name: str, compiler_fn: CompilerFn) -> None:
    if not callable(compiler_fn) or not name:
        raise OptionError("a backend is a callable with a name")
    if name in BUILTIN_BACKENDS or _registered.get(name, compiler_fn) is not compiler_fn:
        raise OptionError(f"a backend named {name!r} exists already")


def list_backends() -> list[str]:
    """Names that `compile(backend=...)` takes: built in, registered, torch's own, and those that
    installed packages announce under the entry points `torch_dynamo_backends`."""
    return sorted({*known_here(), *_announced()})


def known_here() -> tuple[str, ...]:
    """Names of backends that are built in, registered with us, or torch's own and listed."""
    return (*BUILTIN_BACKENDS, *_registered, *PEERS)


def _announced() -> set[str]:
    import importlib.metadata  # which loads much that a start of the command does without

    found = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {point.name for point in found} - {OWN}


def is_builtin(backend: str | CompilerFn) -> bool:
    """Whether `backend` is one of this package's, so that `options` are ours and not the
    backend's."""
    return isinstance(backend, str) and backend in BUILTIN_BACKENDS


def check(backend: str | CompilerFn) -> None:
    """Raise OptionError, naming the choices, unless `backend` is a known name or a callable."""
    if callable(backend) or backend in known_here() or backend in _announced():
        return
    if _has_package(backend):
        _peer(backend)
        return
    if backend in _PACKAGES:
        package = _PACKAGES[backend][1]
        raise OptionError(f"backend {backend!r} needs a package: pip install {package}")
    raise OptionError(
        f"unknown backend {backend!r}: use one of {', '.join(list_backends())}, or a callable"
    )


def _has_package(backend: Any) -> bool:
    module = _PACKAGES[backend][0] if isinstance(backend, str) and backend in _PACKAGES else ""
    return bool(module) and importlib.util.find_spec(module.partition(".")[0]) is not None


def lookup(backend: str | CompilerFn) -> Backend:
    """The function to call, `(gm, example_inputs, options) -> callable`. Raises OptionError for an
    unknown name."""
    check(backend)
    if isinstance(backend, str) and backend in BUILTIN_BACKENDS:
        return _builtin[backend]
    compiler_fn = backend if callable(backend) else _registered.get(backend) or _peer(backend)
    return lambda gm, example_inputs, options: compiler_fn(
        gm, example_inputs, **dict(options.backend_kwargs)
    )


def _peer(name: str) -> CompilerFn:
    import torch._dynamo

    if name in _PACKAGES:
        importlib.import_module(_PACKAGES[name][0])  # which registers it
    try:
        compiler_fn: CompilerFn = torch._dynamo.lookup_backend(name)
    except torch._dynamo.exc.InvalidBackend as error:
        raise OptionError(f"torch {torch.__version__} has no backend {name!r}") from error
    return compiler_fn
