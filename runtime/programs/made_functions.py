"""Functions that a call makes: how a later call makes them again, with cells of their own."""

import sys
import types
from collections.abc import Callable
from typing import Any


class CellContent:
    """What a cell of a function that was made in the call holds."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def put(self, cell: types.CellType) -> None:
        cell.cell_contents = self._value


class FunctionAttributes:
    """What a function has beside code and cells. `cells`: its own, filled by now."""

    def __init__(self, like: types.FunctionType, defaults: Any, keywords: Any, table: Any) -> None:
        self._like, self._defaults, self._keywords, self._table = like, defaults, keywords, table

    def put(self, made: types.FunctionType) -> None:
        like = self._like
        made.__defaults__, made.__kwdefaults__ = self._defaults, self._keywords
        made.__qualname__, made.__module__, made.__doc__ = (
            like.__qualname__,
            like.__module__,
            like.__doc__,
        )
        made.__annotations__ = dict(like.__annotations__)
        made.__dict__.update(self._table)
        if sys.version_info >= (3, 12):
            made.__type_params__ = like.__type_params__


def skeleton(fn: types.FunctionType) -> types.FunctionType:
    """The function without what it closes over or was called with: what does not differ."""
    cells = tuple(types.CellType() for _ in fn.__closure__ or ())
    bare = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, None, cells)
    FunctionAttributes(fn, None, None, {}).put(bare)
    return bare


def maker(like: types.FunctionType) -> Callable[..., types.FunctionType]:
    """Makes the function of its cells."""

    def make(*cells: types.CellType) -> types.FunctionType:
        return types.FunctionType(like.__code__, like.__globals__, like.__name__, None, cells)

    return make
