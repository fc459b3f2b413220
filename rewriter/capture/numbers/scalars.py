"""Numbers and text that come from tensors: plain to Python, but they remember how a later call
makes them again."""

import copyreg
import functools
import gc
import math
import operator
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

try:
    import numpy as np
except ImportError:
    np = None  # type: ignore[assignment]

from ....runtime.programs.recipes import Apply, ConstRecipe, Recipe
from .. import current


def is_live(value: Any) -> bool:
    """Whether `value` is a traced scalar or text of the recording now at work; one kept from an
    earlier call is a plain value."""
    recorder = current.recorder()
    return (
        recorder is not None
        and type(value) in TRACED
        and value.recording is recorder
        and recorder.active
    )


def live_in(recorder: Any, value: Any) -> bool:
    """Whether `value` is a traced scalar of `recorder`."""
    return type(value) in TRACED and value.recording is recorder


def recipe_of(value: Any) -> Recipe:
    """The recipe of a traced value, or the constant that a plain one is."""
    return value.recipe if is_live(value) else ConstRecipe(plain(value))


def plain(value: Any) -> Any:
    """The exact Python number or text."""
    exact = _EXACT.get(type(value))
    if exact is None:
        return value
    made = exact(value)
    # containers find a NaN by identity
    return made if made == made else vars(value).setdefault("plain", made)


def size_form(value: Any) -> Any:
    """The form (see `sizes`) of a traced number that follows from sizes, else None."""
    form = getattr(value, "form", None) if type(value) in TRACED else None
    return form if form is not None and hasattr(form, "seen") else None


def traced(value: Any, recipe: Recipe, form: Any = None, recorder: Any = None) -> Any:
    """`value` with its recipe, and the form in which a graph can hold it, if a subclass can
    carry it (a bool cannot: its outcome is recorded instead)."""
    recorder = recorder or current.recorder()
    if type(value) is bool:
        return recorder.outcome(recipe, value)
    cls = {float: TracedFloat, int: TracedInt, str: TracedStr}.get(type(value))
    if cls is None:
        return recorder.outcome(recipe, value)
    result = cls(value)
    result.recording, result.recipe, result.form = recorder, recipe, form
    recorder.scalars.append(result)
    return result


def apply(function: Any, *args: Any) -> Any:
    """`function(*args)` on the plain values; traced again if any argument is traced. Where it
    raises, the values decide."""
    try:
        result = function(*map(plain, args))
    except Exception:
        for arg in args:
            concretize_scalar(arg)
        raise
    if result is NotImplemented or not any(map(is_live, args)):
        return result
    recorder = current.recorder()
    recipe = Apply(function, tuple(map(recipe_of, args)))
    if _may_raise(function, args):
        recorder.must_work(recipe)
    return traced(result, recipe, recorder.form_of_call(function, args, recipe, result))


def stay_traced(args: tuple[Any, ...]) -> bool:
    """Whether a function of numbers can be applied anew at each call: one is traced, all are
    numbers."""
    numbers = all(isinstance(arg, int | float) for arg in args)
    return numbers and any(map(is_live, args))


_DIVISIONS = frozenset(
    {operator.truediv, operator.floordiv, operator.mod, divmod, operator.lshift, operator.rshift}
)


def _may_raise(function: Any, args: tuple[Any, ...]) -> bool:
    """Whether other numbers may raise where these did not."""
    if function in _DIVISIONS and type(args[1]) in TRACED:
        return True
    if function is operator.pow:
        return args[1] not in (0, 1, 2, 3) or isinstance(args[0], float)
    if function in (int, round) or function.__module__ == "math":
        return True
    to_float = function in (float, operator.truediv) or any(isinstance(arg, float) for arg in args)
    return to_float and any(isinstance(arg, TracedInt) and not _is_bounded(arg) for arg in args)


def _is_bounded(number: Any) -> bool:
    """Whether an integer surely fits a float: a size, what a tensor holds."""
    form = size_form(number)
    held = getattr(number, "form", None)
    read = form is None and held is not None and held.function is None
    return read or (form is not None and form.bounded)


def concretize_scalar(value: Any) -> Any:
    """The plain value, with its outcome recorded: Python is about to depend on it."""
    return value.recording.outcome(value.recipe, plain(value)) if is_live(value) else plain(value)


def _binary(function: Any) -> Any:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        return apply(function, self, other)

    return method


def _reflected(function: Any) -> Any:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        return apply(function, other, self)

    return method


def _unary(function: Any) -> Any:
    return lambda self: apply(function, self)


def _settled(function: Any) -> Any:
    return lambda self, *args: function(concretize_scalar(self), *args)


def _arithmetic() -> dict[str, Any]:
    methods: dict[str, Any] = {}
    for name in "add sub mul truediv floordiv mod pow and or xor lshift rshift".split():
        function = getattr(operator, name, None) or getattr(operator, f"{name}_")
        methods[f"__{name}__"] = _binary(function)
        methods[f"__r{name}__"] = _reflected(function)
    methods["__divmod__"], methods["__rdivmod__"] = _binary(divmod), _reflected(divmod)
    for name in "lt le gt ge eq ne".split():
        methods[f"__{name}__"] = _binary(getattr(operator, name))
    for name, function in {
        "neg": operator.neg,
        "pos": operator.pos,
        "abs": abs,
        "invert": operator.invert,
    }.items():
        methods[f"__{name}__"] = _unary(function)
    methods["__bool__"] = _settled(bool)
    methods["__round__"] = lambda self, *digits: apply(round, self, *digits)
    methods["__format__"] = lambda self, spec: apply(format, self, spec)
    methods["__str__"] = _settled(str)
    methods["__repr__"] = _settled(repr)
    methods["__hash__"] = _settled(hash)
    methods["__copy__"] = lambda self: self
    methods["__deepcopy__"] = lambda self, memo: self
    methods["__reduce_ex__"] = lambda self, protocol: plain(self).__reduce_ex__(protocol)
    return methods


_UNTRACED: dict[str, Any] = {
    "recording": None,
    "recipe": None,
    "form": None,
}  # what a scalar of a finished recording is

# Python's errors name the type of what they were given: the user gave a float.
TracedFloat = type(
    "float",
    (float,),
    {
        **_UNTRACED,
        **_arithmetic(),
        "__int__": _settled(int),
        "__trunc__": _settled(math.trunc),
        "is_integer": _settled(float.is_integer),
    },
)
TracedInt = type(
    "int",
    (int,),
    {
        **_UNTRACED,
        **_arithmetic(),
        "__index__": _settled(operator.index),
        "__int__": _settled(int),
        "__float__": _settled(float),
    },
)


def _settling(base: type) -> dict[str, Any]:
    """Every way to look into an object of a type written in C: it settles first."""
    return {
        name: _settled(getattr(base, name))
        for name in dir(base)
        if callable(getattr(base, name)) and name not in _OWN
    }


def _text() -> dict[str, Any]:
    """Adding keeps text traced."""
    methods = _settling(str)
    methods["__add__"] = lambda self, other: (
        apply(operator.add, self, other) if isinstance(other, str) else NotImplemented
    )
    methods["__radd__"] = lambda self, other: (
        apply(operator.add, other, self) if isinstance(other, str) else NotImplemented
    )
    methods["__reduce_ex__"] = lambda self, protocol: plain(self).__reduce_ex__(protocol)
    return methods


_OWN = frozenset(
    "__new__ __init__ __init_subclass__ __subclasshook__ __class__ __getattribute__ __setattr__"
    " __delattr__ __dir__ __doc__ __reduce__ __reduce_ex__ __getnewargs__ __sizeof__"
    " __getstate__ __class_getitem__ __array_priority__ __buffer__".split()
)
# Text made of traced values; only what prints or stores it can make it again.
TracedStr = type("str", (str,), {**_UNTRACED, **_text()})


def _of_numpy(base: Any) -> type:
    """Numbers of a type of NumPy's: the element that a tensor of the graph holds."""
    same = ("__copy__", "__deepcopy__", "__reduce_ex__", "__format__")
    own: dict[str, Any] = {name: vars(TracedFloat)[name] for name in same}
    own["recipe"] = property(_recipe_of_element)
    space = {**_UNTRACED, "tensor": None, **_settling(base), **own}
    return type(base.__name__, (base,), space)


def _recipe_of_element(number: Any) -> Recipe | None:
    held = vars(number)
    if "tensor" not in held:
        return None
    if "made_by" not in held:
        recorder = number.recording
        with recorder.paused():
            value = recorder.value_recipe(recorder.value(number.tensor))
        held["made_by"] = Apply(element, (value,))
    return held["made_by"]  # type: ignore[no-any-return]


def element(tensor: torch.Tensor) -> Any:
    """The number of NumPy's that a tensor of one element holds."""
    return tensor.detach().numpy()[()]


def element_of(recorder: Any, real: Any, tensor: torch.Tensor) -> Any:
    """A number of NumPy's, traced; what is true or not is an outcome."""
    if type(real) is np.bool_:
        return np.bool_(bool(tensor))
    made = ELEMENTS[type(real)](real)
    made.recording, made.tensor = recorder, tensor
    recorder.scalars.append(made)
    return made


_NAMES = "float16 float32 float64 complex64 complex128 int8 int16 int32 int64 uint8".split()
_TYPES: list[Any] = [] if np is None else [getattr(np, name) for name in _NAMES]
ELEMENTS: dict[Any, Any] = {each: _of_numpy(each) for each in _TYPES}
OF_NUMPY = frozenset(ELEMENTS.values())
TRACED = frozenset((TracedFloat, TracedInt, TracedStr, *OF_NUMPY))
_EXACT: dict[type, Any] = {
    TracedFloat: float.__float__,
    TracedInt: int.__int__,
    TracedStr: lambda text: str.__str__(text),
    **{made: base.copy for base, made in ELEMENTS.items()},
}


def release(made: list[Any]) -> None:
    """The recording is over: its scalars are plain numbers from now on, and keep nothing alive."""
    for value in made:
        value.__dict__.clear()
    made.clear()


class Stripper:
    """Makes the traced scalars in objects plain: tuples and frozensets anew, each once; what can
    change in place."""

    def __init__(self) -> None:
        anew: dict[int, Any] = {}
        self.value, self.owner = _Strip(True, anew), _Strip(False, anew)


MAX_EXPRESSION_NODES = (
    20_000  # objects looked into: what was made in the call is small, what it refers to need not be
)


class _Strip:
    def __init__(self, attributes: bool, anew: dict[int, Any]) -> None:
        self._in_place: dict[int, Any] = {}
        self._anew = anew
        self._keep: list[Any] = []
        self._into_objects = attributes

    def __call__(self, obj: Any) -> Any:
        if type(obj) in TRACED:
            return plain(obj)
        if type(obj) in _LEAVES or isinstance(obj, _OTHERS):
            return obj
        done = self._anew if isinstance(obj, tuple | frozenset) else self._in_place
        if id(obj) not in done:
            if len(self._keep) > MAX_EXPRESSION_NODES:
                return obj
            self._keep.append(obj)
            done[id(obj)] = obj
            done[id(obj)] = self._stripped(obj)
        return done[id(obj)]

    def _stripped(self, obj: Any) -> Any:
        if isinstance(obj, tuple | frozenset):
            return self._again(obj)
        if isinstance(obj, list | deque):
            self._items(obj, list(enumerate(obj)))
        elif isinstance(obj, set):
            self._members(obj)
        elif isinstance(obj, dict):
            self._keys(obj)
            self._items(obj, list(dict.items(obj)))
        elif isinstance(obj, Iterator):
            self._gone_through(obj)
        if self._into_objects:
            self._attributes(obj)
        return obj

    def _gone_through(self, iterator: Any) -> None:
        for part in gc.get_referents(iterator):
            for each in part if isinstance(part, tuple) else (part,):
                if isinstance(each, list | Iterator):
                    self(each)

    def _again(self, obj: Any) -> Any:
        parts = [self(part) for part in obj]
        if all(a is b for a, b in zip(parts, obj, strict=True)):
            return obj
        if isinstance(obj, tuple):
            return (
                type(obj)(parts)
                if type(obj) in (tuple, torch.Size)
                else tuple.__new__(type(obj), parts)
            )
        return type(obj)(parts)

    def _items(self, obj: Any, items: list[tuple[Any, Any]]) -> None:
        write = dict.__setitem__ if isinstance(obj, dict) else operator.setitem
        for key, value in items:
            plain_value = self(value)
            if plain_value is not value:
                write(obj, key, plain_value)

    def _members(self, obj: set[Any]) -> None:
        members = [self(member) for member in obj]
        if any(a is not b for a, b in zip(members, obj, strict=True)):
            obj.clear()
            obj.update(members)

    def _keys(self, obj: dict[Any, Any]) -> None:
        keys = [self(key) for key in obj]
        if any(a is not b for a, b in zip(keys, obj, strict=True)):
            values = list(dict.values(obj))
            dict.clear(obj)
            dict.update(obj, zip(keys, values, strict=True))

    def _attributes(self, obj: Any) -> None:
        """Of an object, and what a function made in the call closes over or has for defaults."""
        if isinstance(obj, types.FunctionType):
            for cell in obj.__closure__ or ():
                if _content(cell) is not self(_content(cell)):
                    cell.cell_contents = self(cell.cell_contents)
            obj.__defaults__ = self(obj.__defaults__) if obj.__defaults__ else obj.__defaults__
            self(obj.__kwdefaults__)
        if isinstance(obj, types.MethodType):
            self(obj.__self__)
        if type(obj) is functools.partial:
            parts = (obj.func, obj.args, obj.keywords)
            obj.__setstate__((*map(self, parts), vars(obj)))  # type: ignore[attr-defined]
        if isinstance(obj, BaseException):
            obj.args = self(obj.args)
        if "<locals>" in type(obj).__qualname__:  # a class that the call may have made
            for name, value in list(vars(type(obj)).items()):
                if type(value) in TRACED:
                    setattr(type(obj), name, plain(value))
        attributes = getattr(obj, "__dict__", None)
        if type(attributes) is dict:
            self._items(attributes, list(attributes.items()))
        for name in copyreg._slotnames(type(obj)):  # type: ignore[attr-defined]
            value = getattr(obj, name, None)
            if self(value) is not value:
                object.__setattr__(obj, name, self(value))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


_LEAVES = frozenset({int, float, str, bool, bytes, complex, type(None), range, slice})
_OTHERS = (
    torch.Tensor,
    torch.nn.Module,
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
)
