"""NumPy's arrays that come from tensors: real arrays for the user's code, each with the tensor of
the graph that holds the same. What NumPy computes of them is computed once more by torch's own form
of NumPy (`torch._numpy`), which the graph records; where the two differ, the recording ends."""

import collections
import importlib
import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from ....runtime.programs.recipes import Apply, Recipe
from ... import catalogue
from .. import current
from ..provenance import Unguardable
from . import constant_values, moving_arrays, scalars

try:
    import numpy as np
except ImportError:
    np = None  # type: ignore[assignment]

_METHODS = (
    "all any argmax argmin argsort astype choose clip conj copy cumprod cumsum diagonal dot flatten"
    " max mean min nonzero prod ptp ravel repeat reshape round squeeze std sum swapaxes take"
    " trace transpose var __getitem__"
).split()
_READS = (
    "__bool__ __float__ __int__ __index__ __complex__ __contains__ __repr__ __str__ __format__"
    " __array__ __reduce__ __reduce_ex__ tobytes"
    " tofile dump dumps fill put partition argpartition byteswap view resize sort setfield getfield"
    " setflags compress newbyteorder to_device"
).split()
_MEMORY = ("flat", "data", "ctypes", "base", "strides", "__array_interface__", "__array_struct__")
_SIZES: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": lambda tensor: tuple(tensor.shape),
    "size": torch.Tensor.numel,
    "nbytes": lambda tensor: tensor.numel() * tensor.element_size(),
}
_LAYOUT = frozenset(("shape", "dtype", "strides", "data", "flat", "real", "imag"))
# What goes through an array by its own methods.
_ITERATING = frozenset(
    {isinstance, len, id, float, int, bool, complex, list, tuple, dict, set, frozenset, zip}
    | {enumerate, iter, next, reversed, map, filter, sum, max, min, abs, round, sorted, any, all}
    | {hasattr, getattr, setattr, print, str, repr, format, type, callable, torch.from_numpy}
    | {torch.tensor, torch.as_tensor, torch.asarray, operator.itemgetter}
)
_CONTAINERS = (list, dict, set, tuple, collections.deque)
_HEAP_TYPE = 1 << 9
_VIEWS = {"T": "transpose"}
# How far numbers may be apart, by their size in bytes: as a part, and at all.
_CLOSE = {2: (1e-2, 1e-3), 4: (1e-4, 1e-6), 8: (1e-8, 1e-11)}
_COPIES = ("array", "asarray", "asanyarray", "ascontiguousarray", "copy")


_DTYPES = frozenset(
    {
        torch.float16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
    }
)


class _Differs(Exception):
    """torch has no such function, or it computes something else."""


_FAULTS = _Differs, Unguardable, NotImplementedError, AttributeError, TypeError, ValueError


def is_traced(value: Any) -> bool:
    """Whether it is an array of the recording now at work."""
    return type(value) is TracedArray and _recorder(value) is not None


def live_in(recorder: Any, value: Any) -> bool:
    """Whether it is an array of that recording."""
    return type(value) is TracedArray and vars(value).get("recording") is recorder


def _recorder(array: Any) -> Any:
    recorder = current.recorder()
    if recorder is None or not recorder.active:
        return None
    if vars(array).get("lost") is recorder:
        _stop(recorder, "a view")
        return None
    return recorder if vars(array).get("recording") is recorder else None


def among(values: Any) -> bool:
    """Whether one of the values, or of those in lists and tuples of them, is traced."""
    return any(
        among(value) if type(value) in (tuple, list) else is_traced(value) for value in values
    )


def plain(value: Any) -> Any:
    """The array, or the number that NumPy would have given, as NumPy's own."""
    if type(value) in (tuple, list):
        return type(value)(map(plain, value))
    if type(value) is slice:
        return slice(plain(value.start), plain(value.stop), plain(value.step))
    if type(value) is not TracedArray:
        return scalars.plain(value)
    if "given" in vars(value):
        return value.given
    made = np.ndarray.view(value, np.ndarray)
    return made[()] if vars(value).get("number") else made


def takes(args: Any, kwargs: Any) -> bool:
    """Whether it is `tensor.numpy()` of a tensor in the host's memory that NumPy can show."""
    tensor = args[0]
    dense = tensor.layout is torch.strided and tensor.device.type == "cpu"
    known = dense and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
    return known and len(args) == 1 and not kwargs and tensor.dtype in _DTYPES


def of_tensor(recorder: Any, tensor: torch.Tensor) -> Any:
    """`tensor.numpy()`, on its memory."""
    importlib.import_module("torch._numpy")
    with recorder.paused():
        array = tensor.numpy()
    return _traced(recorder, array, tensor)


def of_argument(recorder: Any, value: Any) -> Any:
    """An array of floats that the call is given, as an input of the graph; any other object as it
    is."""
    if not constant_values.is_array(value) or value.dtype.kind not in "fc":
        return value
    importlib.import_module("torch._numpy")
    tensor = moving_arrays.as_input(recorder, value, moves=True)
    if tensor is None:
        return value
    made = _traced(recorder, value, tensor)
    made.given = value
    return made


def recipe(array: Any, of: Callable[[torch.Tensor], Recipe]) -> Recipe:
    """How a later call makes the array."""
    return Apply(_number if array.number else torch.Tensor.numpy, (of(array.tensor),))


def _number(tensor: torch.Tensor) -> Any:
    return tensor.numpy()[()]


def _traced(recorder: Any, real: Any, tensor: torch.Tensor) -> Any:
    made = np.asarray(real).view(TracedArray)
    made.recording, made.tensor, made.number = recorder, tensor, isinstance(real, np.generic)
    recorder.scalars.append(made)
    recorder.arrays_made.append(made)
    return made


def written(recorder: Any) -> bool:
    """Whether an array, or its tensor, was written since, so that they hold something else."""
    with recorder.paused():
        return not all(
            _alike(np.ndarray.view(made, np.ndarray), _content(made.tensor))
            for made in recorder.arrays_made
        )


def as_tensor(recorder: Any, function: Any, array: Any, kwargs: dict[str, Any]) -> Any:
    """`torch.from_numpy(array)`, `torch.tensor(array, dtype=…)`."""
    copies = function is torch.tensor
    if set(kwargs) - {"dtype", "device"}:
        recorder.stop_here(catalogue.OPAQUE_CALL, f"torch.{function.__name__} of an array")
    if copies or kwargs:
        return array.tensor.to(**kwargs, copy=copies) if kwargs else array.tensor.clone()
    with recorder.paused():
        own = torch.from_numpy(np.ndarray.view(array, np.ndarray))
        if own.data_ptr() != array.tensor.data_ptr():
            array.tensor = recorder.with_memory(array.tensor, own)
    return torch.ops.aten.alias.default(array.tensor)


def call(recorder: Any, function: Any, args: Any, kwargs: Any) -> Any:
    """A function or a method of NumPy's, of traced arrays among others."""
    name = getattr(function, "__name__", "")
    if name in _COPIES and getattr(np, name, None) is function:
        return _computed(recorder, _ours(name, "numpy"), function, args, kwargs)
    if isinstance(function, np.ufunc) or hasattr(function, "_implementation"):
        return function(*args, **kwargs)  # NumPy asks the array's class
    _stop(recorder, name)
    return function(*plain(tuple(args)), **{k: plain(v) for k, v in kwargs.items()})


def _ours(name: str, module: str) -> Any:
    """torch's form of a function of NumPy's, by its name."""
    home: Any = torch._numpy
    for part in module.split(".")[1:]:
        home = getattr(home, part, None)
    return getattr(home, name, None)


def _computed(recorder: Any, ours: Any, function: Any, args: Any, kwargs: Any) -> Any:
    """What NumPy gives, with what torch's form of it gives in the graph."""
    with recorder.paused():
        real = function(*plain(tuple(args)), **{k: plain(v) for k, v in kwargs.items()})
    try:
        if ours is None or "out" in kwargs:
            raise _Differs
        given = [_given(recorder, arg) for arg in args]
        named = {key: _given(recorder, value) for key, value in kwargs.items()}
        return _with_tensor(recorder, real, ours(*given, **named))
    except _FAULTS:
        name = getattr(function, "__name__", "function")
        recorder.stop(catalogue.OPAQUE_CALL, f"numpy.{name}, which torch does not compute alike")
        return real


def _given(recorder: Any, value: Any) -> Any:
    """An operand for torch's form."""
    if type(value) in (tuple, list):
        return type(value)(_given(recorder, part) for part in value)
    if type(value) is slice:
        bounds = (value.start, value.stop, value.step)
        return slice(*(_given(recorder, bound) for bound in bounds))
    if type(value) is TracedArray:
        if not is_traced(value):
            raise _Differs
        return _form_of(value.tensor)
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if constant_values.is_array(value):
        recorder.known.arguments((value,))
        return _form_of(constant_values.as_tensor(recorder, torch.from_numpy, value))
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return getattr(torch._numpy, np.dtype(value).name)
    if type(value) in scalars.TRACED:
        return scalars.concretize_scalar(value)
    if value is None or value is Ellipsis or isinstance(value, bool | int | float | str | type):
        return value
    raise _Differs


def _form_of(tensor: torch.Tensor) -> Any:
    """torch's form of an array, on the tensor."""
    form: Any = torch._numpy.ndarray
    return form(tensor)


def _with_tensor(recorder: Any, real: Any, made: Any) -> Any:
    if isinstance(real, tuple | list):
        parts = [_with_tensor(recorder, a, b) for a, b in zip(real, made, strict=True)]
        return parts if type(real) is list else tuple(parts)
    if isinstance(real, int | bool) and type(made) is type(real) and made == real:
        return real
    if not isinstance(made, torch._numpy.ndarray) or not isinstance(real, np.ndarray | np.generic):
        raise _Differs
    tensor, wanted = made.tensor, np.asarray(real)
    with recorder.paused():
        if wanted.dtype.hasobject or tuple(tensor.shape) != wanted.shape:
            raise _Differs
        dtype = torch.from_numpy(np.zeros((), wanted.dtype)).dtype
    if tensor.dtype is not dtype:
        tensor = tensor.to(dtype)
    with recorder.paused():
        if not _alike(wanted, _content(tensor)):
            raise _Differs
    return _traced(recorder, real, tensor)


def _content(tensor: torch.Tensor) -> Any:
    return tensor.detach().numpy()


def _alike(one: Any, other: Any) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind not in "fc":
        return bool(np.array_equal(one, other))
    relative, absolute = _CLOSE[one.dtype.itemsize // (2 if one.dtype.kind == "c" else 1)]
    return bool(np.allclose(one, other, relative, absolute, equal_nan=True))


def _stop(recorder: Any, name: str) -> None:
    """The recording ends, since the content of an array is asked for."""
    recorder.stop(catalogue.OPAQUE_CALL, f"numpy: {name}() of an array made of a tensor")


def _ufunc(self: Any, function: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    recorder = _recorder(self) or next(filter(None, map(_recorder_of, inputs)), None)
    called = getattr(function, method)
    if recorder is None:
        out = kwargs.pop("out", ())
        named = {key: plain(value) for key, value in kwargs.items()}
        return called(*plain(inputs), **named, **({"out": plain(out)} if out else {}))
    ours = _ours(function.__name__, "numpy") if method == "__call__" else None
    out = kwargs.get("out") or (None,)
    if out[0] is self is inputs[0] and set(kwargs) == {"out"} and ours is not None:
        return _updated(recorder, self, ours, called, inputs)
    return _computed(recorder, ours, called, inputs, kwargs)


def _recorder_of(value: Any) -> Any:
    return _recorder(value) if type(value) is TracedArray else None


def _updated(recorder: Any, array: Any, ours: Any, function: Any, inputs: Any) -> Any:
    """`array += other`, and the like."""

    def real(whole: Any) -> None:
        function(*plain(inputs), out=whole)

    def write() -> None:
        array.tensor.copy_(ours(*(_given(recorder, each) for each in inputs)).tensor)

    return _write(recorder, array, real, write)


def _store(self: Any, key: Any, value: Any) -> None:
    recorder = _recorder(self)
    if recorder is None:
        plain(self)[plain(key)] = plain(value)
        return

    def real(whole: Any) -> None:
        whole[plain(key)] = plain(value)

    def write() -> None:
        _form_of(self.tensor)[_given(recorder, key)] = _given(recorder, value)

    _write(recorder, self, real, write)


def _write(
    recorder: Any, array: Any, real: Callable[[Any], None], write: Callable[[], None]
) -> Any:
    """Write to an array and to its tensor: once, where they are on the same memory."""
    own = np.ndarray.view(array, np.ndarray)
    with recorder.paused():
        whole = own.copy()
        real(whole)
        shared = own.__array_interface__["data"][0] == array.tensor.data_ptr()
    try:
        write()
        if not shared:
            own[...] = whole
        with recorder.paused():
            if not _alike(whole, _content(array.tensor)):
                raise _Differs
    except _FAULTS:
        own[...] = whole
        _stop(recorder, "write")
    return array


def _function(self: Any, function: Any, _: Any, args: Any, kwargs: Any) -> Any:
    recorder = _recorder(self) or next(filter(None, map(_recorder_of, args)), None)
    if recorder is None:
        return function(*plain(tuple(args)), **{k: plain(v) for k, v in kwargs.items()})
    ours = _ours(function.__name__, function.__module__)
    return _computed(recorder, ours, function, args, kwargs)


def _method(name: str) -> Any:
    of_numpy = getattr(np.ndarray, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = _recorder(self)
        if recorder is None:
            return of_numpy(plain(self), *plain(args), **kwargs)
        ours = getattr(torch._numpy.ndarray, name, None)
        return _computed(recorder, ours, of_numpy, (self, *args), kwargs)

    method.__name__ = name
    return method


def _read(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = _recorder(self)
        if recorder is not None:
            _stop(recorder, name)
        return getattr(plain(self), name)(*plain(args), **kwargs)

    method.__name__ = name
    return method


def _on_host(name: str) -> Any:
    """`item()`, `tolist()`: what the tensor's gives."""

    def method(self: Any, *args: Any) -> Any:
        if _recorder(self) is None or args:
            return getattr(plain(self), name)(*args)
        return getattr(self.tensor, name)()

    method.__name__ = name
    return method


def as_one(value: Any) -> Any:
    """The tensor of a traced array of one element; another value as it is."""
    return value.tensor if is_traced(value) and plain(value).size == 1 else value


def as_number(value: Any) -> Any:
    """The tensor of a number of NumPy's own; another value as it is."""
    return value.tensor if is_traced(value) and value.number else value


def reads_memory(function: Any) -> bool:
    """Whether C code may read the memory of an array that it is given, and ask nobody."""
    owner = getattr(function, "__self__", None)
    if isinstance(function, type):
        return function not in _ITERATING and not function.__flags__ & _HEAP_TYPE
    known = function in _ITERATING or isinstance(owner, _CONTAINERS)
    return isinstance(function, types.BuiltinFunctionType) and not known


def _finalize(self: Any, of: Any) -> None:
    """A view that NumPy makes by itself of a traced array: the graph does not know it."""
    if type(of) is TracedArray and vars(of):
        vars(self)["lost"] = vars(of).get("recording") or vars(of).get("lost")


def _copy(self: Any, *_: Any) -> Any:
    return self.copy()


def _memory(name: str) -> Any:
    """An attribute that shows the memory."""

    def show(self: Any) -> Any:
        recorder = _recorder(self)
        if recorder is not None:
            _stop(recorder, name)
        return getattr(plain(self), name)

    return property(show)


def _set_attribute(self: Any, name: str, value: Any) -> None:
    if name not in _LAYOUT:
        object.__setattr__(self, name, value)
        return
    recorder = _recorder(self)
    if recorder is not None:
        _stop(recorder, f"a store to .{name}")
    getattr(np.ndarray, name).__set__(self, value)


def _size(name: str, ask: Callable[[torch.Tensor], Any]) -> Any:
    """An attribute that follows from the sizes, which the tensor knows."""

    def show(self: Any) -> Any:
        return getattr(plain(self), name) if _recorder(self) is None else ask(self.tensor)

    return property(show)


def _len(self: Any) -> Any:
    return len(plain(self)) if _recorder(self) is None else self.tensor.shape[0]


def _part(name: str) -> Any:
    def part(self: Any) -> Any:
        recorder, get = _recorder(self), operator.attrgetter(name)
        return get(plain(self)) if recorder is None else _computed(recorder, get, get, (self,), {})

    return property(part)


def _elements(self: Any) -> Any:
    return iter([self[k] for k in range(scalars.plain(len(self)))])


def _class() -> Any:
    if np is None:
        return None
    space: dict[str, Any] = {name: _method(name) for name in _METHODS if hasattr(np.ndarray, name)}
    space |= {name: _read(name) for name in _READS if hasattr(np.ndarray, name)}
    space |= {name: property(_method(of)) for name, of in _VIEWS.items()}
    space |= {name: _part(name) for name in ("real", "imag")}
    space |= {name: _memory(name) for name in _MEMORY}
    space |= {"__setattr__": _set_attribute, "__len__": _len}
    space |= {name: _size(name, ask) for name, ask in _SIZES.items()}
    space |= {"__copy__": _copy, "__deepcopy__": _copy, "__array_finalize__": _finalize}
    space |= {name: _on_host(name) for name in ("item", "tolist")}
    space["as_numpy_array"] = plain
    space |= {"__array_ufunc__": _ufunc, "__array_function__": _function, "__iter__": _elements}
    space["__setitem__"] = _store
    return type("TracedArray", (np.ndarray,), space)


TracedArray: Any = _class()
