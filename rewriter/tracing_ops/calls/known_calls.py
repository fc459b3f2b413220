"""Listed facts about callables that have no Python source: which are pure, which are effects, which
end a recording.

What is not listed is opaque. A result of an opaque call is never kept as a constant.
"""

import builtins
import copy
import dataclasses
import enum
import inspect
import itertools
import logging
import operator
import os
import re
import sys
import types
import typing
from typing import Any

import torch

from ... import catalogue
from ...capture import current
from ..lookup import owner_of

PURE: set[Any] = {
    abs,
    ascii,
    bin,
    bool,
    bytes,
    chr,
    complex,
    dict,
    divmod,
    float,
    format,
    frozenset,
    hex,
    int,
    isinstance,
    issubclass,
    len,
    list,
    max,
    min,
    oct,
    ord,
    pow,
    range,
    repr,
    reversed,
    round,
    set,
    slice,
    str,
    sum,
    tuple,
    type,
    object,
    hash,
    zip,
    enumerate,
    any,
    all,
    property,
    staticmethod,
    classmethod,
    memoryview,
    bytearray,
    super,
    itertools.repeat,
    itertools.count,
    dataclasses.is_dataclass,
    dataclasses.fields,
    inspect.isclass,
    inspect.isfunction,
    inspect.signature,
    inspect.ismethod,
    sys.intern,
    sys.getsizeof,
    typing.get_origin,
    typing.get_args,
    copy.copy,
    os.fspath,
    os.path.join,
    os.path.basename,
    os.path.dirname,
    object.__new__,
    object.__init__,
    object.__init_subclass__,
    object.__getattribute__,
    object.__setattr__,
    dict.get,
    dict.items,
    dict.keys,
    dict.values,
    id,
}

EFFECTS: set[Any] = {builtins.print, sys.stdout.write, sys.stderr.write}

STOPS: dict[Any, catalogue.Reason] = {
    builtins.breakpoint: catalogue.UNSUPPORTED,
    logging.Logger.exception: catalogue.UNSUPPORTED,
    logging.exception: catalogue.UNSUPPORTED,
    builtins.input: catalogue.UNSUPPORTED,
    builtins.open: catalogue.OPAQUE_CALL,
    torch.set_default_dtype: catalogue.UNSUPPORTED,
    torch.set_default_device: catalogue.UNSUPPORTED,
    torch.use_deterministic_algorithms: catalogue.UNSUPPORTED,
    torch.set_num_threads: catalogue.UNSUPPORTED,
    torch.save: catalogue.UNSUPPORTED,
    torch.load: catalogue.UNSUPPORTED,
    torch.Tensor.set_: catalogue.UNSUPPORTED,  # which no torch function mode sees
    torch.utils.swap_tensors: catalogue.UNSUPPORTED,
    torch._C._swap_tensor_impl: catalogue.UNSUPPORTED,
}

_GLOBAL_STATE = (
    "set_",
    "autocast_",
    "clear_autocast",
    "get_rng",
    "initial_seed",
    "seed",
    "fork_rng",
)
_SEEN = {"set_grad_enabled", "set_printoptions", "set_warn_always"}
for _namespace in (torch, torch.random, torch.cuda, torch.cuda.random, torch.backends, torch.mps):
    for _name in dir(_namespace):
        if (
            _name.startswith(_GLOBAL_STATE)
            and _name not in _SEEN
            and callable(getattr(_namespace, _name))
        ):
            STOPS.setdefault(getattr(_namespace, _name), catalogue.UNSUPPORTED)
for _name in ("seed", "initial_seed"):
    STOPS.setdefault(getattr(torch.random, _name), catalogue.UNSUPPORTED)

# What torch itself does not hand on to a mode: their keyword arguments.
LOSES_KEYWORDS: set[Any] = {torch.Tensor.dim_order, torch.chain_matmul}
COMPILING: set[Any] = {
    torch.compiler.is_compiling,
    torch.compiler.is_dynamo_compiling,
    torch._utils.is_compiling,
}
# What would see the recording's own mode.
ASKS_OVERRIDES: set[Any] = {
    torch.overrides.has_torch_function,
    torch.overrides.has_torch_function_unary,
    torch.overrides.has_torch_function_variadic,
    torch._C._is_torch_function_mode_enabled,
    torch._C._len_torch_function_stack,
}
DISABLED: set[Any] = set()
INLINED: set[Any] = set()
CONSTANT: set[Any] = set()  # assume_constant_result

SUBSTITUTES: dict[Any, Any] = {}  # substitute_in_graph

# Standard modules written in Python that look at code and text, not at the state of the program.
PURE_PYTHON = frozenset(
    "inspect re sre_compile sre_parse textwrap string keyword enum ast tokenize linecache fnmatch"
    " platform".split()
)

_PURE_MODULES = frozenset(
    {
        "math",
        "cmath",
        "_operator",
        "operator",
        "re",
        "_sre",
        "unicodedata",
        "_struct",
        "numbers",
        "fractions",
        "decimal",
        "enum",
    }
)
_PURE_OWNERS = (re.Pattern, re.Match, enum.Enum, inspect.Signature, types.MappingProxyType)


def is_pure_module(function: Any) -> bool:
    """Whether a function of C or of a listed standard module computes from its arguments alone."""
    owner = owner_of(function)
    if isinstance(owner, types.ModuleType):
        return owner.__name__ in _PURE_MODULES
    if isinstance(owner, _PURE_OWNERS):
        return True
    if type(function) in (operator.attrgetter, operator.itemgetter):
        return True
    in_python = isinstance(function, types.FunctionType | type) or isinstance(
        type(function).__call__, types.FunctionType
    )
    return not in_python and getattr(function, "__module__", None) in _PURE_MODULES


# -- what users say of their own functions


def graph_break() -> None:
    """End the current segment of the recording at work, if any."""
    recorder = current.recorder()
    if recorder is not None:
        recorder.breaks(catalogue.EXPLICIT, "")
        recorder.cut()


def disable(fn: Any) -> Any:
    """Keep calls of `fn` out of every recording."""
    DISABLED.add(fn)
    return fn


def allow_in_graph(fn: Any) -> Any:
    """Record a call of `fn` as one node, without looking inside."""
    INLINED.add(fn)
    return fn
