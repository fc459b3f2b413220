"""Functions, classes and other live objects by name and by content, so that another process can
tell whether what it finds is what was there before: an edited or replaced function has another
digest.
"""

import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import hashlib
import importlib
import inspect
import marshal
import operator
import pathlib
import re
import sys
import types
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from .named_functions import Unnamed, by_text, text_of
from .plain_data import Unstorable

_PLAIN = (int, bool, float, complex, str, bytes, type(None), type(Ellipsis))
_DESCRIPTORS = (
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType),
)
# What nobody changes, and shows all that it is.
_SHOWN = (
    *(decimal.Decimal, datetime.date, datetime.timedelta, uuid.UUID, pathlib.PurePath),
    *(operator.attrgetter, operator.itemgetter, operator.methodcaller, slice, range),
    *(inspect.Signature, inspect.Parameter, types.UnionType, types.GenericAlias, torch.Size),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
_IN_C = (types.BuiltinFunctionType, *_DESCRIPTORS, types.MethodWrapperType, torch._ops.OpOverload)
# Read by path, so that what they hold is guarded where it matters.
_PARTS_GUARDED = (
    *(list, dict, set, collections.deque, types.MappingProxyType, types.CellType),
    *(torch.Tensor, torch._C.Generator),
)
_OURS = __name__.partition(".")[0]


class GlobalNames:
    """An object whose attributes are the names of a globals dict: `Missing` can then say that a
    global does not shadow a builtin."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.__dict__ = names


def is_of(obj: Any, *kinds: type) -> bool:
    """As `isinstance`, which would run what a class of the user's says that its objects are."""
    return issubclass(type(obj), kinds)


# ---- names


def name_of(obj: Any, label: str = "") -> list[str] | None:
    """How another process finds an object, if modules hold it: it is there now. `label`: what may
    be its name."""
    kinds = ((_module_name, "module"), (_globals_name, "globals"), (_text, "text"))
    found = next(([tag, name] for find, tag in kinds if (name := find(obj))), None)
    return found or _qualified(obj, [label.rpartition(".")[::2], *_qualified_names(obj)])


def by_name(tag: str, *parts: str) -> Any:
    """What `name_of` named. Raises LookupError, AttributeError or Unnamed where it is not there.
    Nothing is imported but modules of this package and of torch."""
    if tag == "text":
        return by_text(parts[0])
    module = _loaded(parts[0])
    if tag == "module":
        return module
    return module.__dict__ if tag == "globals" else _inside(module, parts[1])


def _loaded(name: str) -> Any:
    found = sys.modules.get(name)
    if found is None and name.partition(".")[0] == _OURS:
        found = importlib.import_module(name)
    if found is None:
        raise LookupError(f"the module {name} is not loaded")
    return found


def _module_name(obj: Any) -> str | None:
    name = vars(obj).get("__name__") if is_of(obj, types.ModuleType) else None
    return name if isinstance(name, str) and sys.modules.get(name) is obj else None


def _globals_name(obj: Any) -> str | None:
    name = obj.get("__name__") if type(obj) is dict and "__builtins__" in obj else None
    module = sys.modules.get(name) if isinstance(name, str) else None
    if module is None and type(obj) is dict and obj is vars(sys.modules["builtins"]):
        return "builtins"
    return name if module is not None and module.__dict__ is obj else None


def _text(obj: Any) -> str | None:
    if not is_of(obj, *_IN_C, torch._ops.OpOverloadPacket):
        return None
    try:
        text = text_of(obj)
        return text if by_text(text) is obj else None
    except (Unnamed, ValueError):
        return None


def _qualified(obj: Any, names: Iterable[tuple[str, str]]) -> list[str] | None:
    for module, name in names:
        try:
            if _inside(_loaded(module), name) is obj:
                return ["inside", module, name]
        except (LookupError, AttributeError):
            continue
    return None


def _qualified_names(obj: Any) -> Iterator[tuple[str, str]]:
    if is_of(obj, enum.Enum):
        yield type(obj).__module__, f"{type(obj).__qualname__}.{obj.name}"
    elif is_of(obj, *_DESCRIPTORS):
        owner = obj.__objclass__
        yield owner.__module__, f"{owner.__qualname__}.{obj.__name__}"
    elif is_of(obj, property, staticmethod, classmethod):
        getter = obj.fget if is_of(obj, property) else obj.__func__
        yield from _qualified_names(getter)
    elif is_of(obj, types.FunctionType, type, functools._lru_cache_wrapper, *_IN_C):
        yield str(obj.__module__ or "builtins"), str(obj.__qualname__)
        yield from (("types", name) for name, value in vars(types).items() if value is obj)


def _inside(module: types.ModuleType, name: str) -> Any:
    """What lies there, as it is stored. Raises AttributeError."""
    found: Any = module
    for part in name.split("."):
        if not is_of(found, type, types.ModuleType):
            raise AttributeError(part)
        places = found.__mro__ if is_of(found, type) else [found]
        held = next((vars(place) for place in places if part in vars(place)), None)
        if held is None:
            raise AttributeError(part)
        found = held[part]
    return found


# ---- content


class Digests:
    """Of objects, each once; they are held meanwhile."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Any, str]] = {}

    def of(self, obj: Any) -> str:
        """Text that is equal for objects of equal code; of other objects than functions, classes
        and constants, for all of one class."""
        if type(obj) in _PLAIN:
            return f"{type(obj).__name__} {obj!r}"
        if id(obj) not in self._found:
            self._found[id(obj)] = obj, class_name(type(obj))  # what holds itself comes to an end
            self._found[id(obj)] = obj, hashlib.sha256(self._text(obj).encode()).hexdigest()
        return self._found[id(obj)][1]

    def _text(self, obj: Any) -> str:
        if is_of(obj, types.CodeType):
            return code_digest(obj)
        if is_of(obj, types.FunctionType):
            return self._function(obj)
        if is_of(obj, type):
            return self._class(obj)
        if type(obj) in (tuple, frozenset):
            parts = map(self.of, obj)
            return f"{type(obj).__name__} {[*parts] if type(obj) is tuple else sorted(parts)}"
        if is_of(obj, property):
            return f"property {[self.of(each) for each in (obj.fget, obj.fset, obj.fdel)]}"
        if is_of(obj, staticmethod, classmethod, types.MethodType):
            return f"{class_name(type(obj))} {self.of(obj.__func__)}"
        if is_of(obj, functools._lru_cache_wrapper):
            return f"cached {self.of(obj.__wrapped__)}"
        if is_of(obj, types.ModuleType):
            return f"module {vars(obj).get('__name__')} {vars(obj).get('__file__')}"
        if is_of(obj, functools.partial):
            return f"partial {self.of(obj.func)} {self.of(obj.args)} {[*obj.keywords]}"
        if is_of(obj, enum.Enum):
            return f"{class_name(type(obj))} {obj.name} {self.of(obj.value)}"
        if is_of(obj, re.Pattern):
            return f"pattern {obj.pattern!r} {obj.flags}"
        if is_of(obj, *_SHOWN) or type(obj).__module__ == "typing":
            return f"{class_name(type(obj))} {obj!r}"
        if is_of(obj, *_IN_C):
            return f"{class_name(type(obj))} {obj.__qualname__}"
        if type(obj) is object or is_of(obj, *_PARTS_GUARDED) or is_of_python(type(obj)):
            return f"object {self.of(type(obj))}"
        raise Unstorable(f"what a {class_name(type(obj))} holds")

    def _function(self, fn: types.FunctionType) -> str:
        """Its code, defaults, where its globals are, and the functions that it closes over."""
        keywords = sorted((fn.__kwdefaults__ or {}).items())
        defaults = [self.of(each) for each in (*(fn.__defaults__ or ()), *keywords)]
        place = _globals_name(fn.__globals__)
        return f"{code_digest(fn.__code__)} {defaults} {place} {[*map(self._cell, _cells(fn))]}"

    def _cell(self, content: Any) -> str:
        """Variables are read by path, so that they are guarded."""
        if is_of(content, type):
            return class_name(content)
        fixed = is_of(content, types.FunctionType)
        return self.of(content) if fixed else class_name(type(content))

    def _class(self, cls: type) -> str:
        """Its name and methods; values in it are read by path."""
        name = f"class {class_name(cls)} {[class_name(each) for each in cls.__mro__]}"
        if cls.__module__.partition(".")[0] in ("torch", "builtins") or not is_of_python(cls):
            return name
        methods = {
            key: self.of(value)
            for key, value in vars(cls).items()
            if is_of(value, types.FunctionType, property, staticmethod, classmethod)
        }
        return f"{name} {sorted(methods.items())}"


def is_of_python(cls: type) -> bool:
    """Whether a class statement made it, so that its objects keep attributes of their own."""
    return bool(cls.__flags__ & 1 << 9) and cls.__dictoffset__ != 0  # Py_TPFLAGS_HEAPTYPE


def _cells(fn: types.FunctionType) -> Iterator[Any]:
    for cell in fn.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            yield None


def class_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


_codes: dict[int, tuple[Any, str]] = {}  # by identity: equal ones may differ in lines


def code_digest(code: types.CodeType | None) -> str:
    """Of everything that a code object says, lines and file included."""
    found = _codes.get(id(code))
    if found is None:
        data = marshal.dumps(_ordered(code), 2)  # without back references, which hang on counts
        found = _codes[id(code)] = code, hashlib.sha256(data).hexdigest()
    return found[1]


def _ordered(constant: Any) -> Any:
    """Sets among the constants in an order that is one in every process."""
    if isinstance(constant, types.CodeType):
        parts = tuple(map(_ordered, constant.co_consts))
        same = all(map(operator.is_, parts, constant.co_consts))
        return constant if same else constant.replace(co_consts=parts)
    if type(constant) is frozenset:
        return ("frozenset", *sorted(map(repr, constant)))
    if type(constant) is tuple and any(type(each) in (tuple, frozenset) for each in constant):
        return tuple(map(_ordered, constant))
    return constant


# ---- what nobody guards


# Loaded with torch, so that they are the same in each process.
_LIBRARIES = tuple(
    "builtins math operator functools itertools collections contextlib os re copy inspect typing"
    " dataclasses enum abc torch torch.amp torch.autograd torch.cuda torch.fft torch.functional"
    " torch.linalg torch.nn torch.nn.functional torch.nn.init torch.nn.modules.module"
    " torch.nn.utils torch.optim torch.random torch.sparse torch.special torch.utils".split()
)
_CLASSES = (torch.Tensor, torch.nn.Module, torch.nn.Parameter, torch.autograd.Function)
_FOLDERS = tuple(str(pathlib.Path(module.__file__ or "").parent) for module in (torch, dataclasses))


def replaced_functions() -> str:
    """The functions of torch and of the standard library that somebody has put another in the place
    of, with a digest of each. A recording takes them as they are, without a guard."""
    places = [(name, vars(sys.modules[name])) for name in _LIBRARIES if name in sys.modules]
    places += [(class_name(cls), dict(vars(cls))) for cls in _CLASSES]
    found = [
        (
            place,
            name,
            code_digest(value.__code__)
            if type(value) is types.FunctionType
            else value.__qualname__,
        )
        for place, names in places
        for name, value in [*names.items()]
        if _is_foreign(name, value)
    ]
    return hashlib.sha256(repr(sorted(found)).encode()).hexdigest()


def _is_foreign(name: str, value: Any) -> bool:
    """Whether it came from elsewhere, or has another name: such are there from the start, too."""
    if type(value) is types.FunctionType:
        file = value.__code__.co_filename
        return value.__name__ != name or not file.startswith(_FOLDERS)
    return type(value) is types.BuiltinFunctionType and value.__name__ != name
