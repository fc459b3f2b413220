"""Kinds of values, by how the recording of a call guards them: by value, by identity, by parts."""

import copyreg
import datetime
import decimal
import enum
import functools
import inspect
import operator
import pathlib
import re
import types
import typing
import uuid
import weakref
import zoneinfo
from collections import OrderedDict, defaultdict, deque
from typing import Any

import torch

from ...runtime.guards.guard_checks import is_placement
from ...runtime.programs.containers import c_base

try:
    import numpy as np
except ImportError:
    np = None  # type: ignore[assignment]

CONSTANTS = (
    int,
    float,
    bool,
    complex,
    str,
    bytes,
    torch.dtype,
    torch.device,
    torch.Size,
    torch.layout,
    torch.memory_format,
    range,
)
PLAIN_KEYS = (int, bool, str, bytes, type(None))  # by what they equal, and nothing else is run
SINGLETONS = (type(None), type(Ellipsis), type(NotImplemented))
BY_IDENTITY = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.GetSetDescriptorType,
    types.GenericAlias,
    enum.Enum,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
    torch._C.Generator,
    *((torch.distributed.device_mesh.DeviceMesh,) if torch.distributed.is_available() else ()),
)
BOUND_IN_C = (types.BuiltinMethodType, types.MethodWrapperType)
NO_OWNERS = (type, types.ModuleType, type(None))  # of functions
_NUMPY = () if np is None else (np.generic,)
# Immutable: guarded by identity.
BY_VALUE = (
    int,
    float,
    complex,
    str,
    bytes,
    re.Pattern,
    decimal.Decimal,
    operator.attrgetter,
    operator.itemgetter,
    operator.methodcaller,
    datetime.date,
    datetime.timedelta,
    uuid.UUID,
    pathlib.PurePath,
    re.Match,
    zoneinfo.ZoneInfo,
    *_NUMPY,
)
BY_PARTS = (functools.partial, slice)
# Nobody writes to these; what they hold is guarded with them.
FROZEN = (
    inspect.Signature,
    inspect.Parameter,
    types.UnionType,
    type(typing.Optional[int]),  # noqa: UP045
    type(typing.List[int]),  # noqa: UP006
    typing.TypeVar,
    typing.ForwardRef,
)
SEQUENCES = (list, tuple, deque)
MAPPINGS = (dict, OrderedDict, defaultdict, types.MappingProxyType)
HASHING = (dict, set, frozenset)
BY_WHAT_IT_IS: tuple[object, ...] = (object.__hash__, torch.Tensor.__hash__)


def is_constant(value: Any) -> bool:
    return type(value) in CONSTANTS or type(value) in SINGLETONS or is_placement(value)


def is_followed(obj: Any) -> bool:
    """Whether reads of `obj` are seen elsewhere: tensors by the mode, modules and classes by their
    attributes' loads."""
    return isinstance(obj, (*BY_IDENTITY, torch.nn.Module, torch.Tensor))


def has_structure(obj: Any) -> bool:
    """Whether the object holds state that C code keeps: a container, a value, or what only its
    maker knows."""
    if isinstance(obj, SEQUENCES + MAPPINGS + BY_VALUE + (set, frozenset)):
        return True
    base = c_base(type(obj))
    return base is not object and not issubclass(base, BaseException)


def slots(cls: type) -> list[str]:
    return [name for name in copyreg._slotnames(cls) if isinstance(name, str)]  # type: ignore[attr-defined]


def parts_of_key(key: Any) -> list[Any]:
    """What a dict compares when it looks for `key`: of a weak reference, what it leads to; of a
    bound method, its object and function."""
    if type(key) is types.MethodType:
        return [key.__self__, key.__func__]
    if type(key) is tuple:
        return [part for each in key for part in parts_of_key(each)]
    return [key() if type(key) is weakref.ref else key]
