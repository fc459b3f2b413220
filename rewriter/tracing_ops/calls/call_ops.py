"""Calls while recording: who is called decides whether it runs rewritten, as it is, as an effect,
or ends the recording."""

import copy
import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ....runtime.guards.guard import Attr, Is, Item, Obj
from ....runtime.warning_filters import suppress_warnings
from ... import catalogue
from ...capture import deep_calls, substituted_nodes
from ...capture.guarded_kinds import is_constant
from ...capture.nested import concretize, plain_in, tensors_in
from ...capture.numbers import scalars, traced_arrays
from ...capture.numbers.scalars import TRACED
from ...capture.trace import Recorder
from .. import (
    c_calls,
    containers,
    contexts,
    frame_reads,
    items,
    iteration,
    name_ops,
    seeds,
)
from ..lookup import (
    PLAIN_TYPES,
    SpecialMethod,
    is_module_call,
    is_stable,
    is_torch_internal,
    keeps_eager,
    module_name,
    owner_of,
    python_method,
)
from ..texts import is_format, show, traced_text_format
from . import (
    backend_flags,
    builtin_calls,
    callable_objects,
    callbacks,
    checkpoints,
    custom_functions,
    dataclass_methods,
    distributed_tensors,
    gradients,
    higher_order,
    host_calls,
    kernel_launches,
    legacy_tensors,
    log_calls,
    making,
    modules,
    number_calls,
    open_calls,
    optimizers,
    process_calls,
    script_functions,
    slots,
    stand_ins,
    tensor_hooks,
    tensor_subclasses,
    transforms,
)
from .callbacks import Args, Kwargs
from .known_calls import (
    ASKS_OVERRIDES,
    COMPILING,
    CONSTANT,
    DISABLED,
    EFFECTS,
    INLINED,
    LOSES_KEYWORDS,
    PURE,
    PURE_PYTHON,
    STOPS,
    SUBSTITUTES,
    is_pure_module,
)
from .stand_ins import ANSWERS, STAND_INS, stand_in

_OWN = __name__.partition(".")[0]


def call(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """`function(*args, **kwargs)`. Every kind of callable has one handler; the first that takes it
    decides."""
    if not (rec.active or rec.repeats_steps()):
        return rec.once(function, args, kwargs)
    if rec.arrays_made and traced_arrays.among((*args, *kwargs.values())):
        _check_arrays(rec, function)
    for takes, handle in HANDLERS:
        if takes(function):
            return handle(rec, function, args, kwargs)
    rec.stop(catalogue.OPAQUE_CALL, _describe(function))
    return rec.once(function, plain_in(args), plain_in(kwargs))


def _describe(function: Any) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or 'builtins'}.{name}"


def _is_hashable_in(function: Any, table: Any) -> bool:
    if isinstance(type(function).__hash__, types.FunctionType):
        return False  # the user's own, which nobody asks
    try:
        return function in table
    except TypeError:
        return False


# -- Python functions


def _python(rec: Recorder, function: types.FunctionType, args: Args, kwargs: Kwargs) -> Any:
    if rec.rewriter.made_in_call(rec, function):
        return rec.once(function, args, kwargs)
    if owner := making.initialised_class(function, args):
        return making.initialise(rec, owner, function, args, kwargs)
    function = stand_in(function) or dataclass_methods.written_out(function, args) or function
    try:
        if rec.rewriter.is_rewritten(function.__code__):
            _place(rec, function)
            function = rec.rewriter.original_of(function)
        rewritten = rec.rewriter.rewrite(function)
    except Exception as error:  # NotRewritable, or a fault of the rewriter's own
        return _unseen(rec, function, args, kwargs, str(error))
    if frame_reads.looks_around(function.__code__):
        return _unseen(rec, function, args, kwargs, "it uses globals(), eval() or exec()")
    _place(rec, function)
    if rec.depth >= deep_calls.DEEPEST:
        rec.cuttable = False  # parts would call each other as deeply
        return _unseen(rec, function, args, kwargs, "calls are too deep inside each other")
    return deep_calls.deeper(rec, rewritten, args, kwargs)


def _place(rec: Recorder, function: types.FunctionType) -> None:
    """A function from outside, its cells and its mutable defaults have paths; its code and defaults
    are guarded."""
    base = Obj(function, function.__qualname__)
    rec.known.register(function, base)
    name_ops.guard_absent(rec, function)
    if not is_stable(function):
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            rec.known.guard(Attr(base, name), Is(getattr(function, name)))
    for index, value in enumerate(function.__defaults__ or ()):
        if not is_constant(value):
            rec.known.fixed(value, Item(Attr(base, "__defaults__"), index))
    for name, value in (function.__kwdefaults__ or {}).items():
        rec.known.fixed(value, Item(Attr(base, "__kwdefaults__"), name))


def _unseen(rec: Recorder, function: Any, args: Args, kwargs: Kwargs, why: str) -> Any:
    """Python code that cannot be rewritten would read and write unseen."""
    rec.stop(catalogue.NOT_REWRITABLE, f"{_describe(function)}: {why}")
    if open_calls.takes_written_code(function):
        return open_calls.with_written_code(function, plain_in(args), plain_in(kwargs))
    return rec.once(function, plain_in(args), plain_in(kwargs))


def _method(rec: Recorder, function: types.MethodType, args: Args, kwargs: Kwargs) -> Any:
    return call(rec, function.__func__, (function.__self__, *args), kwargs)


def _host(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """Random numbers of the host and the clock; a method that goes through a container of the
    user's is taken apart."""
    if host_calls.fits(args, kwargs):
        return host_calls.call(rec, function, args, kwargs)
    if isinstance(function, types.MethodType):
        return _method(rec, function, args, kwargs)
    rec.stop(catalogue.OPAQUE_CALL, _describe(function))
    return rec.once(function, args, kwargs)


def _callable_object(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    rec.known.touch(function)
    return call(rec, python_method(rec, function, "__call__"), (function, *args), kwargs)


def _is_compiled(function: Any) -> str:
    return keeps_eager(function, stand_in)


def _compiled(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """A function that is itself compiled becomes part of this recording. FlexAttention does on the
    host alone: torch's compiler has a kernel for a GPU that holds no matrix of scores."""
    kept = _is_compiled(function)
    if not keeps_eager(function) and any(each.is_cuda for each in tensors_in((args, kwargs))):
        return _python(rec, function, args, kwargs)
    original, path = getattr(function, kept), rec.known.path_of(function)
    if path is not None:
        rec.known.loaded(original, Attr(path, kept))
    return call(rec, original, args, kwargs)


def call_root(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """The compiled function itself, whatever package it is from."""
    return _python(rec, function, args, kwargs)


# -- torch


def _is_torch(function: Any) -> bool:
    if isinstance(function, types.FunctionType):
        return is_torch_internal(function)
    if isinstance(function, type):
        return _is_torch_type(function)
    owner = owner_of(function)
    if isinstance(owner, torch.Tensor):
        return True
    if isinstance(function, types.MethodDescriptorType | types.WrapperDescriptorType):
        owner = function.__objclass__
        return owner is not object and issubclass(torch.Tensor, owner)
    if python_method(None, function, "__call__") is not None:
        return False  # an object of torch's with rewritable code: a hook of weight_norm or prune
    module = getattr(function, "__module__", None) or (
        owner.__name__ if isinstance(owner, types.ModuleType | type) else ""
    )
    return str(module).partition(".")[0] == "torch" or isinstance(
        function, torch._ops.OpOverload | torch._ops.OpOverloadPacket
    )


def _is_torch_type(cls: type) -> bool:
    if cls.__module__ == "torch.optim.lr_scheduler":
        return False  # Python as any other, which looks at the counts of the schedule
    return cls.__module__.partition(".")[0] == "torch" and not issubclass(
        cls, torch.nn.Module | torch.autograd.Function
    )


def _is_ours(function: Any) -> bool:
    """This package's own functions (graph_break, is_compiling) act on the recorder themselves, but
    for those that stand for others."""
    if not isinstance(function, types.FunctionType):
        return False
    module = module_name(function)
    return module.partition(".")[0] == _OWN and module != stand_ins.__name__


def _check_arrays(rec: Recorder, function: Any) -> None:
    known = number_calls.takes(function) or legacy_tensors.takes(function)
    if traced_arrays.reads_memory(function) and not known:
        name = getattr(function, "__name__", "a function")
        rec.stop(catalogue.OPAQUE_CALL, f"{name} of an array made of a tensor")


def _is_tensor(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """Asks for no value: a traced number stays one."""
    for each in (*args, *kwargs.values()):
        rec.known.touch(each)
    return rec.once(function, args, kwargs)


def _overrides(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    items.guard_arguments(rec, args, kwargs)
    with rec.off_stack():
        return rec.once(function, plain_in(args), plain_in(kwargs))


def _torch(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """torch's own code runs as it is, seen by the recorder. Python that its mode does not see
    as one call gets plain numbers: C code below it would take traced ones without asking."""
    c_calls.check(rec, _NUMBERS, *args, *kwargs.values())
    if len(args) == 1 and number_calls.copies(function, args[0]):
        return number_calls.from_array(rec, function, args, kwargs)
    items.guard_arguments(rec, args, kwargs)
    kwargs = number_calls.with_dtype(rec, function, args, kwargs)
    if isinstance(function, types.FunctionType) and not _is_seen_whole(function):
        args, kwargs = callbacks.rewritten(rec, function, concretize(args), concretize(kwargs))
    within = kwargs.get("distance_function") is not None  # the user's code is called inside
    return _python(rec, function, args, kwargs) if within else function(*args, **kwargs)


@functools.cache
def _overridable() -> frozenset[Any]:
    with suppress_warnings():
        return frozenset(torch.overrides.get_testing_overrides())


def _is_seen_whole(function: types.FunctionType) -> bool:
    return function in _overridable() or _is_ours(function)


# -- the rest

_COMPUTING = frozenset({"builtins", "math", "cmath", "operator", "_operator"})
_DUNDERS = tuple(
    f"__{name}__"
    for name in (
        "eq ne lt le gt ge hash index int float complex bool len iter next contains getitem missing"
        " str repr format bytes add radd sub rsub mul rmul truediv rtruediv floordiv mod pow"
        " rpow divmod neg abs round trunc floor ceil and or xor invert"
    ).split()
)


_COPYING = ("__deepcopy__", "__reduce_ex__", "__reduce__", "__getstate__", "__setstate__")
_TEXTS = ("__str__", "__repr__", "__format__", "__getitem__")
_NUMBERS = ("__index__", "__int__", "__float__")


def _pure(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """A listed pure function: it, its object and its arguments are guarded, its result needs no
    path."""
    owner = owner_of(function)
    if getattr(owner, "__name__", "") == "math" and scalars.stay_traced(args) and not kwargs:
        return scalars.apply(function, *args)
    if is_format(function, args, kwargs):
        return traced_text_format(rec, function, args, kwargs)
    if function is range:
        args = tuple(items.as_index(rec, arg) for arg in args)
    items.guard_arguments(rec, (function, owner, *args), kwargs)
    args, kwargs = callbacks.settling(rec, function, args, kwargs)
    computing = getattr(function, "__module__", None) in _COMPUTING
    if computing or isinstance(owner, str) or _is_pure_python(function):
        text = isinstance(owner, str) and function.__name__ == "format"
        c_calls.check(rec, _TEXTS if text else _DUNDERS, *args, *kwargs.values())
    if type(owner) in TRACED:
        function = getattr(concretize(owner), function.__name__)
    if not isinstance(function, type) or function.__module__ != "itertools":
        args = tuple(iteration.used_up(rec, arg) for arg in args)
    return rec.by_c(function, concretize(args), concretize(kwargs))


def _deep_copy(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """`copy.deepcopy` reads all that is below its argument; the mode sees tensors copied, but not
    Parameters, whose method does not ask it: their copies are made first."""
    c_calls.check(rec, _COPYING, *args)
    items.guard_content(rec, args[0])
    if len(args) == 1 and not kwargs:
        args = (args[0], _copies_of_parameters(rec, args[0]))
    return rec.once(function, args, kwargs)


def _copies_of_parameters(rec: Recorder, obj: Any) -> dict[int, torch.nn.Parameter]:
    """By identity, as the memo of `copy.deepcopy` has them."""
    copies: dict[int, torch.nn.Parameter] = {}
    with rec.paused():
        for part in tree_leaves(plain_in(obj)):
            for tensor in part.parameters() if isinstance(part, torch.nn.Module) else (part,):
                if type(tensor) is torch.nn.Parameter and id(tensor) not in copies:
                    copies[id(tensor)] = substituted_nodes.copied_parameter(rec, tensor)
    return copies


def _is_pure(function: Any) -> bool:
    owner = owner_of(function)
    return (
        _is_hashable_in(function, PURE)
        or isinstance(owner, str | bytes | int | float | complex | range | slice)
        or is_pure_module(function)
    )


def _is_of_builtin(function: Any) -> bool:
    """A method of a builtin type that is called with its object: `str.lower(text)`."""
    kinds = types.MethodDescriptorType | types.WrapperDescriptorType
    return isinstance(function, kinds) and function.__objclass__ in _BUILTIN


_BUILTIN = PLAIN_TYPES - {type, object}


def _of_builtin(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    if not args or not isinstance(args[0], function.__objclass__):
        return rec.once(function, args, kwargs)  # it raises
    return call(rec, function.__get__(args[0]), args[1:], kwargs)


def _is_pure_python(function: Any) -> bool:
    return (
        isinstance(function, types.FunctionType)
        and function.__name__ not in _LOOKING_AT_CLASSES
        and module_name(function).partition(".")[0] in PURE_PYTHON
    )


# What these read of classes has no guard: they run rewritten.
_LOOKING_AT_CLASSES = frozenset(
    "getmembers _getmembers getmembers_static getattr_static getdoc".split()
)


def _is_plain_class(function: Any) -> bool:
    return isinstance(function, type) and not _is_torch_type(function)


def _effect(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    return show(rec, function, args, kwargs)


def _is_effect(function: Any) -> bool:
    target = function.__func__ if isinstance(function, types.MethodType) else function
    return _is_hashable_in(target, EFFECTS)


def _stops(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    rec.stop(STOPS[_unbound(function)], _describe(function))
    rec.tracker.forget()
    with rec.off_stack():
        return rec.once(function, plain_in(args), plain_in(kwargs))


def _keeping_keywords(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    if all(value is None or value is False for value in kwargs.values()):
        return _torch(rec, function, args, kwargs)
    rec.stop(catalogue.UNSUPPORTED, f"keyword arguments of {_describe(function)}")
    rec.tracker.forget()
    with rec.off_stack():
        return rec.once(function, plain_in(args), plain_in(kwargs))


def _unbound(function: Any) -> Any:
    """The descriptor of a tensor's method."""
    owned = isinstance(owner_of(function), torch.Tensor)
    return getattr(torch.Tensor, function.__name__, None) if owned else function


def _disabled(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    rec.stop(catalogue.EXPLICIT, f"{_describe(function)} is disabled")
    return rec.once(function, plain_in(args), plain_in(kwargs))


def _is_disabled(function: Any) -> bool:
    target = function.__func__ if isinstance(function, types.MethodType) else function
    known = isinstance(target, types.FunctionType | types.BuiltinFunctionType)
    marks = ("_torchdynamo_disable", "_dynfix_disable")
    marked = known and any(getattr(target, mark, False) for mark in marks)
    return marked or _is_hashable_in(target, DISABLED)


def _as_is(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """`allow_in_graph`: one node that runs the function itself."""
    return custom_functions.as_node(rec, function, args, kwargs)


def _constant(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """`assume_constant_result`: called now; its tensors are objects that later calls use again."""
    with rec.paused():
        result = rec.once(function, plain_in(args), plain_in(kwargs))
    for tensor in tensors_in(result):
        rec.known.register(tensor, Obj(tensor, f"{_describe(function)}()"))
    return result


def _substitute(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    return call(rec, SUBSTITUTES.get(function) or STAND_INS[function], args, kwargs)


def _has_substitute(function: Any) -> bool:
    in_c = isinstance(function, types.BuiltinFunctionType) or function is ANSWERS
    return _is_hashable_in(function, SUBSTITUTES) or (in_c and _is_hashable_in(function, STAND_INS))


def _is_compiling(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> bool:
    rec.masks.asked_compiling = True
    return True


HANDLERS: tuple[tuple[Callable[[Any], Any], Callable[[Recorder, Any, Args, Kwargs], Any]], ...] = (
    (lambda f: type(f) is SpecialMethod, callable_objects.call_special),
    (callable_objects.answers_itself, _callable_object),
    (transforms.takes, transforms.call),
    (kernel_launches.takes, kernel_launches.call),
    (tensor_subclasses.takes, tensor_subclasses.call),
    (tensor_subclasses.takes_getter, tensor_subclasses.get),
    (tensor_subclasses.takes_wrapper, tensor_subclasses.wrap),
    (distributed_tensors.takes, distributed_tensors.call),
    (contexts.takes, contexts.call),
    (contexts.takes_method, contexts.call_method),
    (contexts.takes_lock, contexts.call_lock),
    (host_calls.takes_variable, host_calls.use_variable),
    (higher_order.takes, higher_order.call),
    (callbacks.calls_functionally, callbacks.functional_call),
    (_is_compiled, _compiled),
    (lambda f: isinstance(f, torch.nn.Module), modules.call_module),
    (checkpoints.takes, checkpoints.call),
    (_has_substitute, _substitute),
    (builtin_calls.asks_subclasses, builtin_calls.subclasses),
    (optimizers.takes, optimizers.call),
    (optimizers.takes_step_count, optimizers.read_step_count),
    (optimizers.takes_numbers, optimizers.call_with_numbers),
    (seeds.takes, seeds.call),
    (seeds.is_fork, _python),
    (_is_disabled, _disabled),
    (lambda f: _is_hashable_in(f, CONSTANT), _constant),
    (lambda f: _is_hashable_in(f, INLINED), _as_is),
    (lambda f: _is_hashable_in(f, COMPILING), _is_compiling),
    (number_calls.makes_tensor, number_calls.from_array),
    (lambda f: _is_hashable_in(_unbound(f), STOPS), _stops),
    (lambda f: _is_hashable_in(_unbound(f), LOSES_KEYWORDS), _keeping_keywords),
    (gradients.takes, gradients.call),
    (tensor_hooks.takes, tensor_hooks.call),
    (tensor_hooks.takes_handle, tensor_hooks.use_handle),
    (lambda f: f is copy.deepcopy, _deep_copy),
    (frame_reads.takes, frame_reads.call),
    (_is_effect, _effect),
    (log_calls.takes, log_calls.call),
    (lambda f: _is_hashable_in(f, builtin_calls.HANDLERS), builtin_calls.call),
    (is_module_call, modules.call_entry),
    (lambda f: f is torch.is_tensor, _is_tensor),
    (lambda f: _is_hashable_in(f, ASKS_OVERRIDES), _overrides),
    (_is_ours, _torch),
    (custom_functions.is_apply, custom_functions.call),
    (script_functions.takes, script_functions.call),
    (legacy_tensors.takes, legacy_tensors.call),
    (contexts.takes_maker, contexts.make),
    (host_calls.takes, _host),
    (lambda f: isinstance(f, types.MethodType), _method),
    (lambda f: type(f) is functools.partial, callable_objects.call_partial),
    (lambda f: type(f) is types.GenericAlias, callable_objects.call_parametrised),
    (backend_flags.takes, backend_flags.call),
    (process_calls.takes, process_calls.call),
    (process_calls.is_collective, process_calls.call_collective),
    (_is_torch, _torch),
    (slots.takes, slots.call_slot),
    (_is_pure_python, _pure),
    (number_calls.takes, number_calls.call),
    (iteration.is_iterator_method, iteration.call_iterator_method),
    (containers.takes, containers.call_method),
    (lambda f: isinstance(f, types.FunctionType), _python),
    (lambda f: type(f) is functools._lru_cache_wrapper, callable_objects.call_cached),
    (callable_objects.is_weak_reference, callable_objects.call_weak_reference),
    (_is_pure, _pure),
    (_is_of_builtin, _of_builtin),
    (_is_plain_class, making.call_class),
    (lambda f: python_method(None, f, "__call__") is not None, _callable_object),
)
