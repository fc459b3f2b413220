"""Operators on lists of tensors (`torch._foreach_*`), as one operator a tensor: their loops join
like any others."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..opinfo import having

aten = torch.ops.aten

_NAMES = sorted(having("foreach"))
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in _NAMES},
    "zero": torch.zeros_like,
}
_EXTREMA = {"maximum": torch.clamp_min, "minimum": torch.clamp_max}  # with numbers


def foreach_decompositions() -> dict[Any, Callable[..., Any]]:
    """For every operator on lists that has a form of one operator a tensor."""
    return {overload: _one_by_one(overload, fn) for overload, fn in _overloads()}


def _overloads() -> Iterator[tuple[Any, Callable[..., Any]]]:
    for name, fn in _FUNCTIONS.items():
        packet = getattr(aten, f"_foreach_{name}", None)
        for kind in packet.overloads() if packet is not None else ():
            overload = getattr(packet, kind)
            if len(overload._schema.returns) == 1 and not kind.endswith("out"):
                own: Any = _EXTREMA.get(name, fn) if kind.startswith("Scalar") else fn
                yield overload, own


def _one_by_one(overload: Any, fn: Callable[..., Any]) -> Callable[..., list[Any]]:
    names = [argument.name for argument in overload._schema.arguments]
    lists = {
        argument.name
        for argument in overload._schema.arguments
        if isinstance(argument.type, torch.ListType)
    }
    fraction = overload._schema.name.endswith(("addcdiv", "addcmul"))

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        count = next(len(given[name]) for name in names if name in lists)
        if fraction and overload._overloadname == "Tensor":
            given["scalars"] = given["scalars"].unbind()
            return [_scaled(overload, *(given[name][k] for name in names)) for k in range(count)]
        rows = ({n: v[k] if n in lists else v for n, v in given.items()} for k in range(count))
        return [_call(fn, fraction, row) for row in rows]

    return decomposed


def _call(fn: Callable[..., Any], fraction: bool, given: dict[str, Any]) -> Any:
    """fn of the arguments of one tensor, in their order; a number is a keyword where torch asks."""
    keywords = {"alpha": given.pop("alpha")} if "alpha" in given else {}
    if fraction:
        for name in given.keys() & {"value", "scalars"}:
            keywords["value"] = given.pop(name)
    return fn(*given.values(), **keywords)


def _scaled(overload: Any, base: Any, one: Any, two: Any, scale: Any) -> Any:
    """`addcdiv` and `addcmul` with a scale that is a tensor."""
    scaled = scale.to(base.dtype) * one
    return base + (scaled / two if "addcdiv" in overload._schema.name else scaled * two)
