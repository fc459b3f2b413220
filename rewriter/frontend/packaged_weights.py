"""The tensors of a model that a package holds, each memory once."""

import ctypes
from typing import Any

import torch

from ...runtime.errors import PackageError


class PackagedWeights:
    """Of `module`, if it is one. `separate`: what its `state_dict()` has is left out, and given
    when the package is loaded."""

    def __init__(self, module: torch.nn.Module | None, separate: bool) -> None:
        self._tensors: dict[int, torch.Tensor] = {}
        self._numbers: dict[int, int] = {}
        self._labels: dict[int, str] = {}
        self._names: dict[int, list[str]] = {}
        self._separate = {*module.state_dict()} if separate and module is not None else set()
        every = [] if module is None else [module.named_parameters, module.named_buffers]
        for named in every:
            for name, tensor in named(remove_duplicate=False):
                self._names.setdefault(id(tensor), []).append(name)

    def index(self, tensor: torch.Tensor, source: str) -> int:
        """The number of a tensor, which the model reads as `source`. Raises PackageError for one
        that is no plain tensor of the CPU."""
        if id(tensor) not in self._tensors:
            _check(tensor, source)
            self._numbers[id(tensor)] = len(self._tensors)
            self._tensors[id(tensor)] = tensor
            self._labels[id(tensor)] = source
        return self._numbers[id(tensor)]

    def listed(self) -> list[dict[str, Any]]:
        """For the manifest."""
        storages, found = self._storages(), []
        for key, tensor in self._tensors.items():
            names = self._names.get(key) or [self._labels[key]]
            place, start, _ = storages[_memory(tensor)]
            inside = self._separate.isdisjoint(names)
            offset = tensor.storage_offset() - start // tensor.element_size()
            found.append(
                {
                    "names": names,
                    "dtype": str(tensor.dtype).removeprefix("torch."),
                    "shape": list(tensor.shape),
                    "strides": list(tensor.stride()),
                    "storage": place if inside else None,
                    "offset": offset if inside else 0,
                }
            )
        return found

    def parts(self) -> dict[str, Any]:
        """The memory of what is inside."""
        used = {one["storage"] for one in self.listed()}
        return {
            place: (ctypes.c_char * (end - start)).from_address(memory + start)
            if end > start
            else b""
            for memory, (place, start, end) in self._storages().items()
            if place in used
        }

    def _storages(self) -> dict[int, tuple[str, int, int]]:
        """By the address of each memory: the name of its part, and which bytes of it are used."""
        spans: dict[int, tuple[int, int]] = {}
        for tensor in self._tensors.values():
            item = tensor.element_size()
            steps = zip(tensor.shape, tensor.stride(), strict=True)
            length = 1 + sum((n - 1) * step for n, step in steps) if tensor.numel() else 0
            first = int(tensor.storage_offset()) * item
            start, end = spans.get(_memory(tensor), (first, first))
            spans[_memory(tensor)] = min(start, first), max(end, first + int(length) * item)
        return {
            memory: (f"weights/{number}", start - start % 16, end)
            for number, (memory, (start, end)) in enumerate(spans.items())
        }


def _memory(tensor: torch.Tensor) -> int:
    storage = tensor.untyped_storage()
    return storage.data_ptr() or -storage._cdata


def _check(tensor: torch.Tensor, source: str) -> None:
    plain = tensor.layout is torch.strided and not tensor.is_quantized
    known = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if not (plain and known) or tensor.is_conj() or tensor.is_neg() or tensor.is_nested:
        raise PackageError(f"{source} is no plain tensor")
    if tensor.device.type != "cpu":
        raise PackageError(f"{source} is on {tensor.device}: packages are for CPUs")
