"""NumPy's arrays that come from tensors: real arrays, each on the memory of a tensor of the graph.
What NumPy computes of them is computed once more by torch's own form of NumPy (`torch._numpy`),
which the graph records; where the two differ, in values, types or in whose memory they have, the
recording ends. Whatever else looks into such an array ends it too (`Provenance.content`)."""

import contextlib
import ctypes
import dataclasses
import functools
import importlib
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ....runtime.errors import GraphBreakError
from ....runtime.programs.recipes import Apply, CannotRebuild, Recipe
from ... import catalogue
from ..guarded_kinds import is_constant
from ..nested import plain_in
from ..provenance import share_memory
from . import constant_values, moving_arrays, scalars

try:
    import numpy as np
except ImportError:
    np = None  # type: ignore[assignment]

# Before, types followed from values.
_CAPTURES = np is not None and int(np.__version__.partition(".")[0]) >= 2
_METHODS = frozenset(
    "all any argmax argmin argsort astype choose clip conj conjugate copy cumprod cumsum diagonal"
    " dot flatten max mean min nonzero prod ravel repeat reshape round squeeze"
    " std sum swapaxes take trace transpose var __getitem__".split()
)
_PARTS = ("T", "real", "imag")
_SIZES: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": lambda tensor: tuple(tensor.shape),
    "size": torch.Tensor.numel,
    "nbytes": lambda tensor: tensor.numel() * tensor.element_size(),
}
_STATIC = frozenset(("dtype", "ndim", "itemsize", "__class__", "__array_priority__"))
# They write; or give what the library below decides, such as a sign; or are other ones in torch,
# which rounds in `fix`, and takes NaN, the sign of a zero, infinities or negative numbers
# otherwise.
_NO_FORM = frozenset(
    "copyto fill_diagonal put put_along_axis empty empty_like resize from_dlpack set_default_dtype"
    " modf eig eigh eigvals cond lstsq fix angle heaviside cbrt real_if_close ldexp argwhere"
    " searchsorted gcd lcm convolve correlate pinv".split()
)
_NOT_OF_FLOATS = ("sign", "unique")  # NaN
_NOT_OF_INTEGERS = ("quantile", "percentile")  # overflow between two of them
# They take numbers beyond the type of an array; all others raise.
_COMPARING = "lt le gt ge eq ne less less_equal greater greater_equal equal not_equal clip".split()
# Other operators of torch's give other infinities and NaN.
_OF_COMPLEX = frozenset(
    "absolute abs real imag conj conjugate fft ifft fft2 ifft2 fftn ifftn irfft irfft2 irfftn hfft"
    " fftshift ifftshift getitem T transpose reshape ravel flatten copy concatenate stack".split()
)
_BEYOND = " with a number beyond the type"
_NAMESPACES = ("numpy", "numpy.linalg", "numpy.fft")
_MAKERS = ("array", "asarray", "asanyarray", "ascontiguousarray")
# Of arrays, where they are not two; a later one may be what is written to.
_OPERANDS = (
    {"where": 3, "clip": 3}
    | dict.fromkeys("conj conjugate isneginf isposinf".split(), 1)
    | dict.fromkeys("einsum meshgrid broadcast_arrays atleast_1d atleast_2d atleast_3d".split(), 99)
)
_SHIFTS = ("lshift", "rshift", "left_shift", "right_shift")
_POWERS = ("pow", "power")
_BINARY = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    operator.ifloordiv: operator.floordiv,
    operator.imod: operator.mod,
    operator.ipow: operator.pow,
    operator.imatmul: operator.matmul,
    operator.ilshift: operator.lshift,
    operator.irshift: operator.rshift,
    operator.iand: operator.and_,
    operator.ior: operator.or_,
    operator.ixor: operator.xor,
}
# How far numbers may be apart, by their size in bytes: as a part, and at all.
_CLOSE = {2: (1e-2, 1e-3), 4: (1e-4, 1e-6), 8: (1e-8, 1e-11)}


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


@dataclasses.dataclass(eq=False)
class TracedArray:
    """An array with its tensor. `mirrored`: a tensor, and its version, that has the memory: the
    array goes backwards through it, as no tensor can, and its own tensor is a copy."""

    array: Any
    tensor: torch.Tensor
    mirrored: tuple[torch.Tensor, int] | None = None
    recipe: Recipe | None = None

    def form(self) -> Any:
        """torch's form of the array, on its tensor."""
        if self.mirrored is not None:
            with torch._C.DisableTorchFunction():
                moved = self.mirrored[0]._version != self.mirrored[1]
            if moved:
                raise _Differs("an array was written that another one goes through backwards")
        return _form_of(self.tensor)


def entry(recorder: Any, value: Any) -> TracedArray | None:
    """What the recording knows of an array."""
    return recorder.arrays.get(id(value)) if recorder.arrays else None


def is_traced(recorder: Any, value: Any) -> bool:
    """Whether it is an array that comes from a tensor, or a number of NumPy's that does."""
    return recorder.active and (entry(recorder, value) is not None or _is_number(recorder, value))


def _is_number(recorder: Any, value: Any) -> bool:
    return scalars.live_in(recorder, value) and vars(value).get("tensor") is not None


def among(recorder: Any, values: Any) -> bool:
    """Whether one of the values, or of those in lists and tuples of them, is traced."""
    if not recorder.arrays:
        return False
    return any(
        among(recorder, value) if type(value) in (tuple, list) else is_traced(recorder, value)
        for value in values
    )


def are(recorder: Any, *operands: Any) -> bool:
    """Whether one of the operands is traced."""
    return bool(recorder.arrays) and any(is_traced(recorder, each) for each in operands)


def takes(args: Any, kwargs: Any) -> bool:
    """Whether it is `tensor.numpy()` of a tensor in the host's memory that NumPy can show."""
    tensor = args[0]
    dense = tensor.layout is torch.strided and tensor.device.type == "cpu"
    known = dense and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
    known = known and not tensor.is_inference() and tensor.dtype in _DTYPES
    return _CAPTURES and known and len(args) == 1 and not kwargs


def of_tensor(recorder: Any, tensor: torch.Tensor) -> Any:
    """`tensor.numpy()`, on its memory."""
    importlib.import_module("torch._numpy")
    with recorder.paused():
        view = torch.ops.aten.alias.default(tensor)
        recorder.with_memory(tensor, view)
        array = view.numpy()
    return _remembered(recorder, TracedArray(array, view))


def of_argument(recorder: Any, value: Any) -> Any:
    """An array of floats that the call is given becomes an input of the graph."""
    known = entry(recorder, value) is not None or not _CAPTURES
    if known or not constant_values.is_array(value) or value.dtype.kind not in "fc":
        return value
    importlib.import_module("torch._numpy")
    tensor = moving_arrays.as_input(recorder, value, moves=True)
    return value if tensor is None else _remembered(recorder, TracedArray(value, tensor))


def _remembered(recorder: Any, made: TracedArray) -> Any:
    if not recorder.arrays:
        recorder.outcomes.append((0, Apply(_is_silent, ()), _is_silent()))
    recorder.arrays[id(made.array)] = made
    if made.mirrored is None:
        with recorder.paused():
            _note_memory(recorder, made.tensor)
    return made.array


def _note_memory(recorder: Any, tensor: torch.Tensor) -> None:
    at = tensor.untyped_storage().data_ptr()
    if at not in recorder.memories:
        recorder.memories[at] = (tensor, tensor._version, _content(tensor))


def _content(tensor: torch.Tensor) -> int:
    memory = tensor.untyped_storage()
    return hash(ctypes.string_at(memory.data_ptr(), memory.nbytes())) if memory.nbytes() else 0


def written(recorder: Any) -> bool:
    """Whether memory of an array holds something else, and no operator has written to it."""
    with recorder.paused():
        return any(
            tensor._version == version and _content(tensor) != held
            for tensor, version, held in recorder.memories.values()
        )


def recipe(recorder: Any, made: TracedArray, of: Callable[[torch.Tensor], Recipe]) -> Recipe:
    """How a later call makes the array; the same for each place where it stands."""
    if made.mirrored is not None:
        raise CannotRebuild("an array that goes backwards through a tensor is returned or stored")
    if made.recipe is None:
        like = functools.partial(_as_array, *_look(recorder, made.array))
        made.recipe = Apply(like, (of(made.tensor),))
    return made.recipe


def _look(recorder: Any, array: Any) -> tuple[bool, dict[int, int]]:
    """What of an array a tensor's does not have: whether it may be written, and its steps along
    axes of one element."""
    single = [axis for axis, n in enumerate(array.shape) if n == 1 and not recorder.has_symbols()]
    return bool(array.flags.writeable), {axis: array.strides[axis] for axis in single}


def _as_array(writeable: bool, steps: dict[int, int], tensor: torch.Tensor) -> Any:
    """`tensor.numpy()` with that look."""
    array = tensor.numpy()
    strides = tuple(
        steps.get(axis, step) if array.shape[axis] == 1 else step
        for axis, step in enumerate(array.strides)
    )
    if strides != array.strides:
        array = np.lib.stride_tricks.as_strided(array, strides=strides)
    if not writeable:
        array.flags.writeable = False
    return array


# -- what torch makes of arrays


def as_tensor(recorder: Any, function: Any, array: Any, kwargs: dict[str, Any]) -> Any:
    """`torch.from_numpy(array)`, `torch.tensor(array, dtype=…)`."""
    if _is_number(recorder, array) and not kwargs:
        return array.tensor.clone()
    made = entry(recorder, array)
    shares = function is not torch.tensor
    if made is None or set(kwargs) - {"dtype"} or (shares and not _may_be_shared(made)):
        recorder.stop(catalogue.OPAQUE_CALL, f"torch.{function.__name__} of an array")
        return recorder.once(function, (scalars.plain(array),), kwargs)
    dtype = kwargs.get("dtype") or made.tensor.dtype
    if shares and dtype is made.tensor.dtype:
        return torch.ops.aten.alias.default(made.tensor)
    return made.form().tensor.to(dtype, copy=True, memory_format=torch.contiguous_format)


def _may_be_shared(made: TracedArray) -> bool:
    return made.mirrored is None and bool(made.array.flags.writeable)


def index_tensor(recorder: Any, array: Any) -> torch.Tensor:
    """The tensor of an array that is an index of a tensor."""
    tensor: torch.Tensor = recorder.arrays[id(array)].form().tensor
    return tensor


# -- what NumPy computes of arrays


def call(recorder: Any, function: Any, args: Any, kwargs: Any) -> Any:
    """A function, an operator or a method of NumPy's, of traced arrays among others."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if type(function) is np.ufunc and len(args) > function.nin:
        return _computed(recorder, name, (function, None), args, kwargs)
    if is_traced(recorder, owner):
        ours = getattr(torch._numpy.ndarray, name, None) if name in _METHODS else None
        real = getattr(scalars.plain(owner), name)
        return _computed(recorder, name, (real, ours), (owner, *args), kwargs, bound=True)
    return _computed(recorder, name, (function, _ours(function, name)), args, kwargs)


def _ours(function: Any, name: str) -> Any:
    """torch's form of a function of NumPy's; None if it has none that is pure."""
    module = getattr(function, "__module__", "") or ("numpy" if type(function) is np.ufunc else "")
    if module == "_operator" or function in (divmod, abs):
        return function
    if isinstance(function, type) and issubclass(function, np.generic):
        return lambda value: value.astype(_dtype(function))
    if module not in _NAMESPACES or name in _NO_FORM:
        return None
    home, mine = (
        functools.reduce(getattr, module.split(".")[1:], root) for root in (np, torch._numpy)
    )
    if function is np.median:
        return _median
    return getattr(mine, name, None) if getattr(home, name, None) is function else None


def _median(array: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """torch's own gives NaN between a number and an infinity."""
    if axis is None and array.ndim != 1:
        if keepdims:
            raise _Differs("keepdims without an axis")
        array = array.ravel()
    where = -1 if axis is None else axis
    tensor = array.tensor if array.tensor.is_floating_point() else array.tensor.double()
    ordered = torch.sort(tensor, dim=where).values
    count = array.shape[where]
    middle = ordered.narrow(where, (count - 1) // 2, 2 - count % 2)
    last = ordered.narrow(where, count - 1, 1)
    found = torch.where(last.isnan(), last, middle.mean(where, keepdim=True))
    return _form_of(found if keepdims else found.squeeze(where))


def attribute(recorder: Any, array: Any, name: str) -> Any:
    """`array.name`, of an array or a number."""
    made = entry(recorder, array)
    if made is None:
        return _of_number(array, name)
    if name in _SIZES:
        return _SIZES[name](made.tensor)
    if name in _PARTS:
        get = operator.attrgetter(name)
        return _computed(recorder, name, (get, get), (array,), {})
    found = getattr(array, name)
    if name not in _STATIC and not callable(getattr(np.ndarray, name, None)):
        _stop(recorder, name)
    return found


def _of_number(number: Any, name: str) -> Any:
    """A method is bound to the traced number."""
    if name in _STATIC or name == "shape":
        return getattr(scalars.plain(number), name)
    if name == "item":
        return number.tensor.item
    if name in _METHODS:
        return getattr(type(number).__base__, name).__get__(number)
    return getattr(scalars.concretize_scalar(number), name)


def _computed(
    recorder: Any, name: str, functions: Any, args: Any, kwargs: Any, bound: bool = False
) -> Any:
    """What NumPy gives, with what torch's form of it gives in the graph."""
    function, ours = functions
    plain_args = tuple(map(_plain, args[1:] if bound else args))
    named = {key: _plain(value) for key, value in kwargs.items()}
    why = _refused(name, ours, args, kwargs)
    if not _is_silent():
        why = " under np.errstate"
    if why:
        recorder.stop(catalogue.OPAQUE_CALL, f"numpy.{name}{why}")
        return recorder.once(function, plain_args, named)
    with recorder.paused():
        real = _as_in_eager(recorder, name, function, plain_args, named)
    same = next((arg for arg in args if arg is real), None)
    if same is not None or not recorder.active:
        return real
    return _with_form(recorder, name, real, ours, args, kwargs)


def _as_in_eager(recorder: Any, name: str, function: Any, args: Any, named: Any) -> Any:
    """What NumPy gives; where it raises, other values may not, but where a place is not there."""
    try:
        return recorder.once(function, args, named)
    except Exception as error:
        if not (isinstance(error, IndexError) and all(map(_is_place, args[-1:]))):
            with contextlib.suppress(GraphBreakError):
                recorder.stop(catalogue.UNSUPPORTED, f"numpy.{name} raised {type(error).__name__}")
        raise


def _is_place(key: Any) -> bool:
    if type(key) is slice:
        return all(map(is_constant, (key.start, key.stop, key.step)))
    return all(map(_is_place, key)) if type(key) is tuple else is_constant(key)


def _with_form(recorder: Any, name: str, real: Any, ours: Any, args: Any, kwargs: Any) -> Any:
    try:
        given = [_given(recorder, arg) for arg in args]
        named = {
            key: _dtype(value) if key == "dtype" else _given(recorder, value)
            for key, value in kwargs.items()
        }
        sources = list(_entries(recorder, (*args, *kwargs.values())))
        recorder.in_form = True
        try:
            made = ours(*given, **named)
        finally:
            recorder.in_form = False
        return _with_tensor(recorder, real, made, sources)
    except GraphBreakError:
        raise
    except Exception as error:
        detail = f"numpy.{name}, which torch computes otherwise: {error}"
        recorder.stop(catalogue.OPAQUE_CALL, detail)
        return real


def _refused(name: str, ours: Any, args: Any, kwargs: Any) -> str:
    """Why the graph cannot have the call; it may write to what it is given."""
    operands = _OPERANDS.get(name, 2)
    written = "out" in kwargs or any(map(_is_array, args[operands:]))
    if ours is None or written or any(isinstance(arg, torch.Tensor) for arg in args):
        return " of an array made of a tensor"
    kind = kwargs.get("kind") or next((each for each in args[1:] if type(each) is str), "")
    if name == "argsort" and kind not in ("stable", "mergesort"):
        return ", in which the order of equals is not determined"
    if name in ("round", "around") and _kind(args[0]) in ("i", "u"):
        return " of integers"
    if name == "nan_to_num" and (len(args) > 1 or "copy" in kwargs):
        return ", which may write to it"
    if name == "svd" and kwargs.get("compute_uv", True):
        return ", whose signs are not determined"
    kinds = {_kind(arg) for arg in args}
    if name in _NOT_OF_FLOATS and "f" in kinds:
        return " of floats, which may be NaN"
    if name in _NOT_OF_INTEGERS and kinds & set("iu"):
        return " of integers"
    if "c" in kinds and name not in _OF_COMPLEX:
        return " of complex numbers"
    if name == "nonzero" or (name == "where" and len(args) == 1):
        return "" if args[0].ndim == 1 else " of several dimensions"
    if name in _COMPARING and not all(_fits(a, b) for a in args for b in args):
        return _BEYOND
    if name in _MAKERS and type(args[0]) in (list, tuple) and not all(map(_is_array, args[0])):
        return " of a list of numbers made of tensors"
    whole = kinds <= set("iub")
    if name in (*_SHIFTS, *_POWERS) and whole and not isinstance(args[1], int):
        return " with an exponent that may be negative"
    return ""


def with_dtype(name: str, func: Any, args: Any, kwargs: Any) -> Any:
    """Keywords of an operator within a form of NumPy's function, which changes torch's default type
    while it makes tensors of numbers."""
    if name != "as_tensor" or "dtype" in kwargs:
        return kwargs
    return {**kwargs, "dtype": func(*plain_in(args), **kwargs).dtype}


def _fits(bound: Any, array: Any) -> bool:
    if type(bound) is not int or type(array) is int or _kind(array) not in ("i", "u"):
        return True
    return bool(np.iinfo(array.dtype).min <= bound <= np.iinfo(array.dtype).max)


def _kind(value: Any) -> str:
    """The kind of a number's type, or of an array's; "" of anything else."""
    kinds = {int: "i", bool: "b", float: "f", complex: "c"}
    return str(getattr(getattr(value, "dtype", None), "kind", kinds.get(type(value), "")))


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def _is_silent() -> bool:
    """Whether NumPy raises nothing for what the graph computes silently."""
    return set(np.geterr().values()) <= {"warn", "ignore"}


def _plain(value: Any) -> Any:
    """What NumPy is given."""
    if type(value) in (tuple, list):
        parts = [_plain(part) for part in value]
        return value if all(map(operator.is_, parts, value)) else type(value)(parts)
    if type(value) is slice:
        return slice(_plain(value.start), _plain(value.stop), _plain(value.step))
    if type(value) in (scalars.TracedFloat, scalars.TracedInt, scalars.TracedStr):
        return scalars.concretize_scalar(value)
    return scalars.plain(value)


def _given(recorder: Any, value: Any) -> Any:
    """An operand for torch's form; what comes from outside is guarded."""
    if type(value) in (tuple, list):
        recorder.known.structure(value)
        return type(value)(_given(recorder, part) for part in value)
    if type(value) is slice:
        bounds = (value.start, value.stop, value.step)
        return slice(*(_given(recorder, bound) for bound in bounds))
    made = entry(recorder, value)
    if made is not None:
        return made.form()
    if _is_number(recorder, value):
        return _form_of(value.tensor)
    recorder.known.arguments((value,))
    if isinstance(value, np.generic):
        value = np.asarray(scalars.concretize_scalar(value))
    if constant_values.is_array(value):
        return _form_of(_constant(recorder, value))
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return _dtype(value)
    if type(value) in scalars.TRACED:
        return scalars.concretize_scalar(value)
    if value is None or value is Ellipsis or isinstance(value, bool | int | float | str | type):
        return value
    raise _Differs(f"an operand of type {type(value)}")


def _constant(recorder: Any, array: Any) -> torch.Tensor:
    if any(share_memory(array, made.array) for made in recorder.arrays.values()):
        raise _Differs("an array on the memory of a tensor that no operator made")
    recorder.constant_arrays.append(array)
    tensor: torch.Tensor = constant_values.as_tensor(recorder, torch.from_numpy, array)
    with recorder.paused():
        _note_memory(recorder, tensor)
    return tensor


def _dtype(value: Any) -> Any:
    return None if value is None else getattr(torch._numpy, np.dtype(value).name)


def _form_of(tensor: torch.Tensor) -> Any:
    form: Any = torch._numpy.ndarray
    return form(tensor)


def _entries(recorder: Any, values: Any) -> Iterator[TracedArray]:
    for value in values:
        if type(value) in (tuple, list):
            yield from _entries(recorder, value)
        elif (made := entry(recorder, value)) is not None:
            yield made
        elif _is_number(recorder, value):
            yield TracedArray(np.asarray(scalars.plain(value)), value.tensor)


# -- results


def _with_tensor(recorder: Any, real: Any, made: Any, sources: list[TracedArray]) -> Any:
    if isinstance(real, tuple | list):
        if type(real) not in (tuple, list) or len(real) != len(made):
            raise _Differs(f"a {type(real)}")
        _check_own_memory(real, sources)
        return type(real)(
            _with_tensor(recorder, a, b, sources) for a, b in zip(real, made, strict=True)
        )
    if isinstance(real, int | bool) and type(scalars.plain(made)) is type(real):
        return made
    if not isinstance(made, torch._numpy.ndarray) or not isinstance(real, np.ndarray | np.generic):
        raise _Differs(f"{type(made)} for {type(real)}")
    tensor = _of_same_type(recorder, made.tensor, np.asarray(real))
    if isinstance(real, np.generic):
        tensor = _unshared(recorder, tensor, sources)
        return scalars.element_of(recorder, real, tensor)
    return _remembered(recorder, _in_memory(recorder, real, tensor, sources))


def _check_own_memory(parts: Any, sources: list[TracedArray]) -> None:
    """Of several results, each has memory of its own, or of one that was given."""
    own = [
        one
        for one in parts
        if isinstance(one, np.ndarray) and not any(share_memory(one, s.array) for s in sources)
    ]
    if any(share_memory(a, b) for i, a in enumerate(own) for b in own[:i]):
        raise _Differs("two results share memory")


def _of_same_type(recorder: Any, tensor: torch.Tensor, wanted: Any) -> torch.Tensor:
    """The tensor in NumPy's type; what was computed in a narrower one is something else."""
    with recorder.paused():
        if wanted.dtype.hasobject or tuple(tensor.shape) != wanted.shape:
            raise _Differs("another shape")
        dtype = torch.from_numpy(np.zeros((), wanted.dtype)).dtype
        if torch.promote_types(tensor.dtype, dtype) is not tensor.dtype:
            raise _Differs(f"{tensor.dtype} for {dtype}")
    if tensor.dtype is not dtype:
        tensor = tensor.to(dtype)
    with recorder.paused():
        if not _alike(wanted, tensor.detach().numpy()):
            raise _Differs("other values")
    return tensor


def _alike(one: Any, other: Any) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind not in "fc":
        return bool(np.array_equal(one, other))
    relative, absolute = _CLOSE[one.dtype.itemsize // (2 if one.dtype.kind == "c" else 1)]
    with np.errstate(all="ignore"):
        return bool(np.allclose(one, other, relative, absolute, equal_nan=True))


def _in_memory(
    recorder: Any, real: Any, tensor: torch.Tensor, sources: list[TracedArray]
) -> TracedArray:
    """The result where NumPy has it: in memory of its own, or in that of a source."""
    owner = next((each for each in sources if share_memory(real, each.array)), None)
    if owner is None and any(share_memory(real, each) for each in recorder.constant_arrays):
        raise _Differs("a view of an array that is no tensor's")
    if owner is None:
        tensor = _in_layout(recorder, _unshared(recorder, tensor, sources), real)
        return TracedArray(_as_shown(recorder, tensor, real), tensor)
    if owner.mirrored is not None:
        return TracedArray(real, _unshared(recorder, tensor, sources), owner.mirrored)
    if any(step < 0 for n, step in zip(real.shape, real.strides, strict=True) if n > 1):
        tensor = _unshared(recorder, tensor, sources)
        with recorder.paused():
            return TracedArray(real, tensor, (owner.tensor, owner.tensor._version))
    with recorder.paused():
        address = real.__array_interface__["data"][0]
        placed = tensor.data_ptr() == address
    placed = placed and _steps(recorder, tensor) == _steps_of(real)
    if not placed:
        tensor = _on_memory(recorder, real, owner.tensor, address)
    return TracedArray(_as_shown(recorder, tensor, real), tensor)


def _as_shown(recorder: Any, tensor: torch.Tensor, real: Any) -> Any:
    with recorder.paused():
        return _as_array(*_look(recorder, real), tensor)


def _on_memory(recorder: Any, real: Any, owner: torch.Tensor, address: int) -> torch.Tensor:
    """A view of the owner's memory, as NumPy's result is one."""
    with recorder.paused():
        size, start = owner.element_size(), owner.untyped_storage().data_ptr()
        aligned = real.itemsize == size and (address - start) % size == 0
        if not aligned or any(step % size for step in real.strides) or recorder.has_symbols():
            raise _Differs("a view that a tensor cannot be")
    steps = [step // size for step in real.strides]
    return owner.as_strided(real.shape, steps, (address - start) // size)


def _unshared(recorder: Any, tensor: torch.Tensor, sources: list[TracedArray]) -> torch.Tensor:
    """The tensor with memory of its own."""
    with recorder.paused():
        at = tensor.untyped_storage().data_ptr()
        shared = at in recorder.memories or any(
            at == each.tensor.untyped_storage().data_ptr() for each in sources
        )
    return tensor.clone() if shared else tensor


def _in_layout(recorder: Any, tensor: torch.Tensor, real: Any) -> torch.Tensor:
    """The tensor with the strides of NumPy's result."""
    if not real.size or _steps(recorder, tensor) == _steps_of(real):
        return tensor
    order = sorted(range(real.ndim), key=lambda axis: -real.strides[axis])
    back = sorted(range(real.ndim), key=order.__getitem__)
    made = tensor.permute(order).clone(memory_format=torch.contiguous_format).permute(back)
    if _steps(recorder, made) != _steps_of(real):
        raise _Differs("a result with gaps")
    return made


def _steps(recorder: Any, tensor: torch.Tensor) -> list[int]:
    with recorder.paused():
        size, steps = tensor.element_size(), zip(tensor.shape, tensor.stride(), strict=True)
        return [step * size for n, step in steps if n > 1]


def _steps_of(array: Any) -> list[int]:
    return [step for n, step in zip(array.shape, array.strides, strict=True) if n > 1]


# -- writes


def store(recorder: Any, array: Any, key: Any, value: Any) -> None:
    """`array[key] = value`, of which one comes from a tensor."""
    plain_key, plain_value = _plain(key), _plain(value)

    def real(target: Any) -> None:
        target[plain_key] = plain_value

    def ours(target: Any) -> Callable[[Any], None]:
        place, given = _given(recorder, key), _lasting(recorder, value, target)
        return lambda form: operator.setitem(form, place, given)

    fits = not _is_number(recorder, value) or _kind(array) not in ("i", "u")
    fits = fits or np.can_cast(value.dtype, array.dtype)
    _write(recorder, array, real, ours, "" if fits else _BEYOND)


def update(recorder: Any, function: Any, array: Any, other: Any) -> Any:
    """`array += other`, and the like, of which one comes from a tensor."""
    made, plain_other = entry(recorder, array), _plain(other)
    if made is None and not constant_values.is_array(array):
        return call(recorder, _BINARY[function], (array, other), {})
    binary = _BINARY[function]

    def real(target: Any) -> None:
        result = function(target, plain_other)
        if result is not target:
            raise _Differs

    def ours(target: Any) -> Callable[[Any], None]:
        given = _lasting(recorder, other, target)
        return lambda form: form.tensor.copy_(binary(form, given).tensor)

    why = _refused(binary.__name__, binary, (array, other), {})
    _write(recorder, array, real, ours, why)
    return array


def _lasting(recorder: Any, value: Any, target: TracedArray) -> Any:
    """An operand that the write to `target` does not change while it is read."""
    if any(share_memory(each.array, target.array) for each in _entries(recorder, (value,))):
        if entry(recorder, value) is None:
            raise _Differs("parts of the array that is written")
        return _form_of(_given(recorder, value).tensor.clone())
    return _given(recorder, value)


def _write(
    recorder: Any,
    array: Any,
    real: Callable[[Any], None],
    ours: Callable[[TracedArray], Callable[[Any], None]],
    why: str = "",
) -> None:
    """Write to an array: by the operator that does so in the graph, tried on a copy first, so that
    it is done once."""
    made = entry(recorder, array)
    write = None if why or made is None else _tried(recorder, made, real, ours)
    if write is None or made is None:
        recorder.stop(catalogue.OPAQUE_CALL, "a write to an array, which torch does otherwise")
        recorder.once(real, (array,))
        return
    recorder.once(write, (made.form(),))


def _tried(
    recorder: Any,
    made: TracedArray,
    real: Callable[[Any], None],
    ours: Callable[[TracedArray], Callable[[Any], None]],
) -> Callable[[Any], None] | None:
    """What writes to the array's tensor what NumPy would; None if nothing does."""
    crossed = (each for each in recorder.arrays.values() if each.mirrored is not None)
    if not made.array.flags.writeable or any(share_memory(made.array, e.array) for e in crossed):
        return None
    with recorder.paused():
        wanted = made.array.copy()
        try:
            recorder.once(real, (wanted,))
        except Exception:
            return None  # and the write raises the same
    try:
        write = ours(made)
        with recorder.paused():
            tried = made.tensor.clone()
            write(_form_of(tried))
            return write if _alike(wanted, tried.numpy()) else None
    except GraphBreakError:
        raise
    except Exception:
        return None


# -- reads


def _stop(recorder: Any, name: str) -> None:
    """The recording ends, since the content of an array is asked for."""
    recorder.stop(catalogue.OPAQUE_CALL, f"numpy: {name} of an array made of a tensor")


def as_one(recorder: Any, value: Any) -> Any:
    """The tensor of a traced array or number of one element; another value as it is."""
    if not recorder.arrays or not is_traced(recorder, value):
        return value
    made = entry(recorder, value)
    if made is None:
        return value.tensor
    return made.form().tensor if made.array.size == 1 else value


def is_array_or_number(value: Any) -> bool:
    return constant_values.is_array(value) or type(value) in scalars.OF_NUMPY


def as_operand(recorder: Any, value: Any, tensor: Any) -> Any:
    """The tensor of a number of NumPy's own where torch takes it as it does the number."""
    fits = _is_number(recorder, value) and tensor.dim() > 0 and tensor.dtype.is_floating_point
    return value.tensor if fits and not value.tensor.is_complex() else value


def rows(recorder: Any, array: Any) -> list[Any]:
    """What a loop over the array goes through."""
    get = operator.getitem
    count = scalars.concretize_scalar(recorder.arrays[id(array)].tensor.shape[0])
    return [_computed(recorder, "__getitem__", (get, get), (array, k), {}) for k in range(count)]
