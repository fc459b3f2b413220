"""Functions written out, so that they can be rewritten: those of the standard library whose source
Python freezes away (the mixin methods of collections.abc, os.environ,
https://docs.python.org/3/library/collections.abc.html) or has in C (heaps,
https://docs.python.org/3/library/heapq.html), and torch's map, scan and FlexAttention, which else
call its own compiler."""

import collections.abc as abc
import functools
import heapq
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import _higher_order_ops
from torch.utils import _pytree as pytree

from ....lowering.graph.attention_node import attend

_marker: Any = object()
# Whether torch's scan gives results along the axis that it went along, as in 2.13; in 2.11 they lie
# along the first.
_MOVES_BACK = any(
    "movedim" in part.co_names
    for part in _higher_order_ops.scan.__code__.co_consts
    if isinstance(part, types.CodeType)
)
_ENCODING = sys.getfilesystemencoding()


def _contains_key(self: Any, key: Any) -> bool:
    try:
        self[key]
    except KeyError:
        return False
    return True


def _get(self: Any, key: Any, default: Any = None) -> Any:
    try:
        return self[key]
    except KeyError:
        return default


def _keys(self: Any) -> Any:
    return dict.fromkeys(self).keys()


def _values(self: Any) -> Any:
    return [self[key] for key in self]


def _items(self: Any) -> Any:
    return [(key, self[key]) for key in self]


def _equal_mappings(self: Any, other: Any) -> Any:
    return (
        dict(self.items()) == dict(other.items())
        if isinstance(other, abc.Mapping)
        else NotImplemented
    )


def _pop(self: Any, key: Any, default: Any = _marker) -> Any:
    try:
        value = self[key]
    except KeyError:
        if default is _marker:
            raise
        return default
    del self[key]
    return value


def _setdefault(self: Any, key: Any, default: Any = None) -> Any:
    try:
        return self[key]
    except KeyError:
        self[key] = default
    return default


def _update(self: Any, other: Any = (), /, **kwds: Any) -> None:
    if isinstance(other, abc.Mapping) or hasattr(other, "keys"):
        keys = other.keys()
        for key in keys:
            self[key] = other[key]
    else:
        for key, value in other:
            self[key] = value
    for key, value in kwds.items():
        self[key] = value


def _iterate(self: Any) -> Any:
    index = 0
    try:
        while True:
            yield self[index]
            index += 1
    except IndexError:
        return


def _contains_value(self: Any, value: Any) -> bool:
    return any(each is value or each == value for each in self)


def _reversed(self: Any) -> Any:
    for index in reversed(range(len(self))):
        yield self[index]


def _count(self: Any, value: Any) -> int:
    return sum(1 for each in self if each is value or each == value)


def _environment_item(self: Any, key: Any) -> Any:
    try:
        value = self._data[key.encode(_ENCODING, "surrogateescape")]
    except KeyError:
        raise KeyError(key) from None
    return value.decode(_ENCODING, "surrogateescape")


def _getenv(key: Any, default: Any = None) -> Any:
    return os.environ.get(key, default)


def _map(f: Any, xs: Any, *args: Any) -> Any:
    """Row by row, as torch's own does in eager."""
    rows, spec = pytree.tree_flatten(xs)
    if not all(isinstance(each, torch.Tensor) for each in rows):
        raise RuntimeError(f"Mapped xs can only consist of tensors. Got xs {rows}.")
    if rows[0].shape[0] == 0:
        raise RuntimeError("Leading dimensions of mapped xs cannot be 0.")
    if any(each.shape[0] != rows[0].shape[0] for each in rows):
        shapes = [each.shape for each in rows]
        raise RuntimeError(
            f"Leading dimensions of mapped xs must be consistent. Got shapes {shapes}."
        )
    made = [
        f(pytree.tree_unflatten([each[i] for each in rows], spec), *args)
        for i in range(rows[0].shape[0])
    ]
    return _stacked(made)


def _scan(combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    rows, spec = pytree.tree_flatten(xs)
    if not rows:
        return init, []
    count = rows[0].shape[dim]
    carry, made = init, []
    for i in range(count - 1, -1, -1) if reverse else range(count):
        row = pytree.tree_unflatten([each.select(dim, i) for each in rows], spec)
        carry, out = combine_fn(carry, row)
        made.append(out)
    if [_kind(each) for each in pytree.tree_leaves(carry)] != [
        _kind(each) for each in pytree.tree_leaves(init)
    ]:
        raise RuntimeError("scan() expects what is carried to keep its shapes and dtypes")
    stacked = _stacked(made[::-1] if reverse else made)
    if dim % rows[0].dim() != 0 and _MOVES_BACK:
        to = dim % rows[0].dim()
        stacked = pytree.tree_map(
            lambda each: each.movedim(0, to) if to < each.dim() else each, stacked
        )
    return carry, stacked


def _kind(tensor: Any) -> Any:
    return tensor.shape, tensor.dtype


def _stacked(made: Any) -> Any:
    leaves = [pytree.tree_leaves(each) for each in made]
    spec = pytree.tree_flatten(made[0])[1]
    stacked = [
        torch.stack(parts) if isinstance(parts[0], torch.Tensor) else parts[0]
        for parts in zip(*leaves, strict=True)
    ]
    return pytree.tree_unflatten(stacked, spec)


def _check_is_size(i: Any, message: Any = None, *, max: Any = None) -> None:
    torch._check(i >= 0, message)  # type: ignore[no-untyped-call]
    if max is not None:
        torch._check(i <= max, message)  # type: ignore[no-untyped-call]


def answered(func: Any, classes: Any, args: Any, kwargs: Any) -> Any:
    """`func(*args, **kwargs)` by the first of the classes of its tensors that answers it."""
    for cls in classes:
        result = cls.__torch_function__(func, classes, args, kwargs)
        if result is not NotImplemented:
            return result
    raise TypeError(
        f"Multiple dispatch failed for '{func}'; all __torch_function__ handlers returned"
        f" NotImplemented: {', '.join(map(str, classes))}"
    )


def _answered_by_tensor(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    if not all(issubclass(cls, each) for each in types):
        return NotImplemented
    with torch._C.DisableTorchFunctionSubclass():
        result = func(*args, **(kwargs or {}))
    if func in torch.overrides.get_default_nowrap_functions():
        return result
    return _of_class(result, cls)


def _of_class(result: Any, cls: Any) -> Any:
    if cls is torch.Tensor:
        return result
    if isinstance(result, torch.Tensor) and not isinstance(result, cls):
        return result.as_subclass(cls)
    if isinstance(result, (tuple, list)):
        return type(result)(_of_class(each, cls) for each in result)
    return result


def _flex_attention(given: types.FunctionType) -> types.FunctionType:
    """FlexAttention with its checks, and our node in the place of its operator."""
    names = {
        **given.__globals__,
        "__name__": __name__,  # no function of torch's that calls its compiler
        "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True,
        "flex_attention_hop": attend,
    }
    made = types.FunctionType(given.__code__, names, given.__name__, given.__defaults__)
    made.__kwdefaults__, made.__qualname__ = given.__kwdefaults__, given.__qualname__
    return made


def _mark_static(given: types.FunctionType) -> Any:
    """Sizes are constants in a graph until a call shows another one."""
    return lambda *_, **__: None


def until(ask: Any, sentinel: Any) -> Any:
    """`iter(ask, sentinel)`."""
    while True:
        try:
            value = ask()
        except StopIteration:
            return
        if value is sentinel or value == sentinel:
            return
        yield value


def _heap_push(heap: Any, item: Any) -> None:
    heap.append(item)
    _move_up(heap, 0, len(heap) - 1)


def _heap_pop(heap: Any) -> Any:
    if not heap:
        raise IndexError("index out of range")
    last = heap.pop()
    return _heap_replace(heap, last) if heap else last


def _heap_replace(heap: Any, item: Any) -> Any:
    if not heap:
        raise IndexError("index out of range")
    first = heap[0]
    heap[0] = item
    _move_down(heap, 0)
    return first


def _heap_push_pop(heap: Any, item: Any) -> Any:
    return _heap_replace(heap, item) if heap and heap[0] < item else item


def _heapify(heap: Any) -> None:
    for place in reversed(range(len(heap) // 2)):
        _move_down(heap, place)


def _move_up(heap: Any, start: int, place: int) -> None:
    """The item at `place` goes up past larger ones, no further than `start`."""
    item = heap[place]
    while place > start:
        above = (place - 1) >> 1
        if not item < heap[above]:
            break
        heap[place] = heap[above]
        place = above
    heap[place] = item


def _move_down(heap: Any, place: int) -> None:
    """The item at `place` goes down to a leaf, and up from there: which comparisons are made, and
    so which of equal items comes first, is as in heapq."""
    start, end, item = place, len(heap), heap[place]
    child = 2 * place + 1
    while child < end:
        if child + 1 < end and not heap[child] < heap[child + 1]:
            child += 1
        heap[place] = heap[child]
        place, child = child, 2 * child + 1
    heap[place] = item
    _move_up(heap, start, place)


def _key_of_comparison(mycmp: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """functools.cmp_to_key: https://docs.python.org/3/library/functools.html"""
    return lambda obj: _ByComparison(mycmp, obj)


class _ByComparison:
    def __init__(self, mycmp: Callable[[Any, Any], Any], obj: Any) -> None:
        self.mycmp, self.obj = mycmp, obj

    def __lt__(self, other: "_ByComparison") -> Any:
        return self.mycmp(self.obj, other.obj) < 0


_bound: Any = torch.Tensor.__torch_function__
ANSWERS = _bound.__func__  # what subclasses inherit

STAND_INS: dict[Any, Any] = {
    ANSWERS: _answered_by_tensor,
    torch._check_is_size: _check_is_size,
    functools.cmp_to_key: _key_of_comparison,
    heapq.heappush: _heap_push,
    heapq.heappop: _heap_pop,
    heapq.heapreplace: _heap_replace,
    heapq.heappushpop: _heap_push_pop,
    heapq.heapify: _heapify,
    os.getenv: _getenv,
    _higher_order_ops.map: _map,
    _higher_order_ops.scan: _scan,
    type(os.environ).__getitem__: _environment_item,
    abc.Mapping.__contains__: _contains_key,
    abc.Mapping.get: _get,
    abc.Mapping.keys: _keys,
    abc.Mapping.values: _values,
    abc.Mapping.items: _items,
    abc.Mapping.__eq__: _equal_mappings,
    abc.MutableMapping.pop: _pop,
    abc.MutableMapping.setdefault: _setdefault,
    abc.MutableMapping.update: _update,
    abc.Sequence.__iter__: _iterate,
    abc.Sequence.__contains__: _contains_value,
    abc.Sequence.__reversed__: _reversed,
    abc.Sequence.count: _count,
}

# Of modules that take long to load, by name.
_LOADED_LATE: dict[tuple[str, str], Callable[[types.FunctionType], Any]] = {
    ("torch.nn.attention.flex_attention", "flex_attention"): _flex_attention,
    ("torch._dynamo.decorators", "mark_static"): _mark_static,
}


def stand_in(function: types.FunctionType) -> Any:
    """What runs instead of a function; None if that runs itself."""
    module = function.__globals__.get("__name__")
    if (module, function.__name__) in _LOADED_LATE:
        return _made_late(function)
    return STAND_INS.get(function)


@functools.lru_cache(maxsize=16)
def _made_late(function: types.FunctionType) -> Any:
    return _LOADED_LATE[function.__globals__["__name__"], function.__name__](function)
