"""torch's functions that act on more than tensors: collectives, streams and events, files, the
process's settings. No graph holds what they do: they run between two graphs, at every call."""

import sys
import types
from typing import Any

import torch

from ... import catalogue
from ...capture.nested import plain_in
from ...capture.trace import Recorder
from ..lookup import module_name

_ACTING = (
    "torch.accelerator",
    "torch.cuda",
    "torch.distributed",
    "torch.futures",
    "torch.hub",
    "torch.mps",
    "torch.mtia",
    "torch.multiprocessing",
    "torch.serialization",
    "torch.xpu",
)
# Tensors in, tensors out; or the answer is the same throughout a process.
_FUNCTIONAL = "torch.distributed._functional_collectives"
_COMPUTING = ("torch.cuda.amp", "torch.distributed.tensor", _FUNCTIONAL)
_READING = frozenset(
    """is_available is_initialized is_built is_bf16_supported is_tf32_supported device_count
    current_device current_accelerator current_device_index get_device_name get_device_capability
    get_device_properties get_arch_list get_gencode_flags is_current_stream_capturing
    can_device_access_peer is_nccl_available is_gloo_available is_mpi_available is_ucc_available
    is_torchelastic_launched get_rank get_world_size get_backend get_node_local_rank
    supports_bf16
    device_type get_coordinate get_local_rank mesh_dim_names ndim shape size""".split()
)
# How functions of torch._C that change nothing are called.
_QUESTIONS = (
    *("are_", "can_", "dispatch_", "get_", "has_", "is_", "jit_is_", "log_api_"),
    "group_tensors_by_device_and_dtype",
    "accelerator_getAccelerator",
)
_SETTINGS = frozenset(
    {
        torch.set_warn_always,
        torch.autograd.set_detect_anomaly,
        torch.autograd.detect_anomaly,
    }
)


def takes(function: Any) -> bool:
    """Whether `function` of torch's does, or may do, what no graph holds."""
    if isinstance(function, types.BuiltinFunctionType):
        return _is_bound(function) and not _only_reads(function)
    if isinstance(function, type):
        return function in _SETTINGS or (
            _acts(function.__module__) and not issubclass(function, torch.Tensor | torch.nn.Module)
        )
    if isinstance(function, types.FunctionType):
        return function in _SETTINGS or (
            _acts(module_name(function)) and function.__name__ not in _READING
        )
    return False


def _acts(module: str) -> bool:
    return _is_in(module, _ACTING) and not _is_in(module, _COMPUTING)


def _is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(name + ".") for name in packages)


def _is_bound(function: types.BuiltinFunctionType) -> bool:
    """A function that pybind11 made: nothing is said of what it does."""
    return type(function.__self__).__name__.startswith("pybind11")


def _only_reads(function: types.BuiltinFunctionType) -> bool:
    name = function.__name__
    if function.__module__ == "torch._C._distributed" and name.startswith("is_"):
        return True  # of a placement, which nobody changes
    known = getattr(torch._C, name, None) is function
    return known and name.lstrip("_").startswith(_QUESTIONS)


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The recording ends here; the call is made as it is."""
    bound = isinstance(function, types.BuiltinFunctionType)  # its qualified name is pybind11's
    name = function.__name__ if bound else getattr(function, "__qualname__", function.__name__)
    rec.stop(catalogue.OPAQUE_CALL, f"{function.__module__}.{name}")
    with rec.off_stack():
        return rec.once(function, plain_in(args), plain_in(kwargs))


def is_collective(function: Any) -> bool:
    """A collective that gives a new tensor (`torch.distributed._functional_collectives`)."""
    return isinstance(function, types.FunctionType) and module_name(function) == _FUNCTIONAL


def call_collective(
    rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Nodes of the graph, waited for where they stand: in eager the result is a tensor subclass
    that waits at its first use."""
    module: Any = sys.modules[_FUNCTIONAL]
    asked = module._are_we_tracing
    module._are_we_tracing = lambda: True
    try:
        return rec.once(function, plain_in(args), plain_in(kwargs))
    finally:
        module._are_we_tracing = asked
