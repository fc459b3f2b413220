"""What a guard knows of one tensor: everything that decides which kernels may run on it, nothing of
its values."""

import dataclasses
from typing import Any

import torch


def _strides_by_packing(
    sizes: tuple[int, ...], strides: tuple[int, ...], dynamic: frozenset[int]
) -> tuple[int | None, ...]:
    """For each dim the dim that it is packed over, where its stride depends on a dynamic size; None
    where the stride is a constant.

    Same reading of strides as torch's ShapeEnv: going up by stride, `stride[j] == stride[i] *
    size[i]` is taken as an expression.
    """
    moving: set[int] = set()  # dims whose stride follows a dynamic size
    packed: list[int | None] = [None] * len(sizes)
    by_end: dict[int, int] = {}
    for dim in sorted(range(len(sizes)), key=lambda d: (strides[d], -d)):
        inner = by_end.get(strides[dim])
        if inner is not None and (inner in dynamic or inner in moving):
            packed[dim] = inner
            moving.add(dim)
        by_end[strides[dim] * sizes[dim]] = dim
    return tuple(packed)


@dataclasses.dataclass(frozen=True)
class TensorMeta:
    """Metadata that a tensor must have.

    cls: the exact Python type. sizes: None stands for a dynamic size. strides: None where the
    stride follows a dynamic size (`packed[j] = i` then asks `stride[j] == stride[i] * size[i]`;
    without `packed` such a stride is free), or None altogether for a layout without strides. keys:
    the raw dispatch key set, which also tells conjugate, negative, sparse, inference, named and
    functorch-wrapped tensors apart.
    """

    cls: type
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...] | None
    requires_grad: bool
    keys: int
    inference: bool
    packed: tuple[int | None, ...] | None = None

    @classmethod
    def of(
        cls, tensor: torch.Tensor, dynamic_dims: "tuple[int, ...] | frozenset[int]" = ()
    ) -> "TensorMeta":
        """The metadata of `tensor`; sizes of `dynamic_dims` (and the strides that follow from them)
        are left open."""
        facts = _facts(tensor)
        if not dynamic_dims:
            return cls(*facts)
        meta, dynamic = cls(*facts), frozenset(d % tensor.dim() for d in dynamic_dims)
        sizes = tuple(None if i in dynamic else n for i, n in enumerate(meta.sizes))
        if meta.strides is None:
            return dataclasses.replace(meta, sizes=sizes)
        packed = _strides_by_packing(meta.sizes, meta.strides, dynamic)  # type: ignore[arg-type]
        strides = tuple(n if p is None else None for n, p in zip(meta.strides, packed, strict=True))
        return dataclasses.replace(meta, sizes=sizes, strides=strides, packed=packed)

    def matches(self, tensor: object) -> bool:
        """Whether `tensor` has this metadata. Never raises for a tensor; a non-tensor does not
        match."""
        if type(tensor) is not self.cls:
            return False
        return not self._differences(_facts(tensor), stop=True)  # type: ignore[arg-type]

    def differences(self, tensor: object) -> list[str]:
        """What differs, one phrase each: 'dtype torch.float16 instead of torch.float32'."""
        if type(tensor) is not self.cls:
            return [f"type {type(tensor).__qualname__} instead of {self.cls.__qualname__}"]
        return self._differences(_facts(tensor), stop=False)  # type: ignore[arg-type]

    def _differences(self, facts: tuple[Any, ...], stop: bool) -> list[str]:
        _, dtype, device, layout, sizes, strides, requires_grad, keys, inference = facts
        found = [
            f"{name} {actual} instead of {expected}"
            for name, actual, expected in (
                ("dtype", dtype, self.dtype),
                ("device", device, self.device),
                ("layout", layout, self.layout),
                ("requires_grad", requires_grad, self.requires_grad),
                ("inference tensor", inference, self.inference),
            )
            if actual != expected
        ]
        if not _fits(self.sizes, sizes):
            found.append(f"shape {sizes} instead of {self.sizes}")
        elif not self._strides_fit(sizes, strides):
            found.append(f"strides {strides} instead of {self.strides}")
        if keys != self.keys and not found:
            found.append(f"dispatch keys {_key_names(keys)} instead of {_key_names(self.keys)}")
        return found[:1] if stop else found

    def _strides_fit(self, sizes: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
        if self.strides is None or strides is None:
            return strides is None and self.strides is None
        if not _fits(self.strides, strides):
            return False
        packed = self.packed or ()
        return all(
            inner is None or strides[dim] == strides[inner] * sizes[inner]
            for dim, inner in enumerate(packed)
        )


def _facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The values of TensorMeta's fields, in order; torch functions of subclasses and modes are not
    run."""
    with torch._C.DisableTorchFunction():
        strides = (
            tuple(tensor.stride())
            if tensor.layout is torch.strided and not tensor.is_nested
            else None
        )
        sizes = tuple(tensor.shape) if not tensor.is_nested else ()
        return (
            type(tensor),
            tensor.dtype,
            tensor.device,
            tensor.layout,
            sizes,
            strides,
            tensor.requires_grad,
            torch._C._dispatch_keys(tensor).raw_repr(),
            tensor.is_inference(),
        )


def _fits(expected: tuple[int | None, ...], actual: tuple[int, ...]) -> bool:
    return len(expected) == len(actual) and all(
        e is None or e == a for e, a in zip(expected, actual, strict=True)
    )


def _key_names(keys: int) -> str:
    return str(torch._C.DispatchKeySet.from_raw_repr(keys))
