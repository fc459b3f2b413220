"""`torch.autograd.Function.apply`: one node, where forward and backward only compute; their Python
would run once, when the graph is compiled, so what reads or changes anything else is opaque."""

import ast
import builtins
import dataclasses
import inspect
import math
import types
from typing import Any

import torch

from ....runtime.guard import Attr, Equals, Is, Item, Obj
from ... import catalogue, live_source
from ...capture import current, opsets
from ...capture.guarded_kinds import CONSTANTS, is_constant
from ...capture.nested import plain_in
from ...capture.trace import Recorder
from ...live_source import NotRewritable
from ..lookup import owner_of

_PARTS = ("forward", "setup_context", "backward", "jvp", "vmap")
_QUIET_BUILTINS = frozenset(
    "len range isinstance int float bool str min max tuple list dict zip enumerate sum abs slice"
    " reversed round any all type ValueError RuntimeError TypeError NotImplementedError"
    " AssertionError None True False NotImplemented Ellipsis staticmethod map sorted".split()
)
_LOUD_METHODS = frozenset(
    "append extend insert pop update setdefault clear write item tolist numpy data_ptr mark_dirty"
    " register_hook set_ manual_seed save load synchronize set_default_dtype set_grad_enabled"
    " backward grad".split()
)


class _Loud(Exception):
    """What the function does besides computing."""


def is_apply(function: Any) -> bool:
    owner = owner_of(function)
    return (
        isinstance(owner, type)
        and issubclass(owner, torch.autograd.Function)
        and getattr(function, "__name__", "") == "apply"
    )


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    cls = function.__self__
    try:
        reads = _Reads(cls).found
    except (_Loud, NotRewritable) as loud:
        if not kwargs and not _has_history(args):
            return _without_history(rec, cls, args)
        rec.stop(catalogue.OPAQUE_CALL, f"{cls.__qualname__}.apply: {loud}")
        return function(*plain_in(args), **plain_in(kwargs))
    _guard_parts(rec, cls)
    for path, value in reads:
        rec.known.guard(path, Equals(value) if type(value) in CONSTANTS else Is(value))
    return as_node(rec, function, args, kwargs)


def _guard_parts(rec: Recorder, cls: Any) -> None:
    for name in _PARTS:
        path = Attr(Obj(cls, cls.__qualname__), name)
        rec.known.guard(path, Is(getattr(cls, name)))


def _has_history(args: tuple[Any, ...]) -> bool:
    """Whether the call makes a node of autograd."""
    if not torch.is_grad_enabled():
        return False
    return any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)


class _Context:
    """What `forward` is given where nothing goes backward: it keeps what it is told."""

    def __init__(self, inputs: int) -> None:
        self.needs_input_grad = (False,) * inputs
        self.saved_tensors: tuple[Any, ...] = ()
        self.dirty: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    save_for_forward = save_for_backward

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """It makes no difference."""

    def mark_dirty(self, *tensors: Any) -> None:
        self.dirty = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """It makes no difference."""


def _without_history(rec: Recorder, cls: Any, args: tuple[Any, ...]) -> Any:
    """`forward` is a function as any other, run without grad mode."""
    _guard_parts(rec, cls)
    ctx = _Context(len(args))
    two_steps = cls.setup_context is not torch.autograd.function._SingleLevelFunction.setup_context
    with torch.no_grad():
        if two_steps:
            result = rec.call(cls.forward, args, {})
            rec.call(cls.setup_context, (ctx, args, result), {})
        else:
            result = rec.call(cls.forward, (ctx, *args), {})
        if isinstance(result, tuple):
            return tuple(_not_an_input(part, args, ctx) for part in result)
        return _not_an_input(result, args, ctx)


def _not_an_input(part: Any, args: tuple[Any, ...], ctx: _Context) -> Any:
    """An input that is given back is another object, unless it was written."""
    if not isinstance(part, torch.Tensor) or any(part is tensor for tensor in ctx.dirty):
        return part
    return part.view_as(part) if any(part is arg for arg in args) else part


def as_node(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One node that runs the function itself."""
    before = current.install(None)
    try:
        with torch._C.DisableTorchFunction():
            named = function if isinstance(function, types.FunctionType) else Called(function)
            return rec.opaque(named, args, kwargs)
    finally:
        if rec.active:
            current.install(before)


@dataclasses.dataclass(frozen=True)
class Called:
    """Calls `function`. The text of a graph has no name for a bound method of C; two recordings are
    compared by what they call, so those of one function are equal."""

    function: Any

    @property
    def __name__(self) -> str:
        owner = getattr(self.function, "__self__", None) or self.function
        return str(getattr(owner, "__name__", "") or getattr(owner, "name", "function"))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _parts(cls: type) -> list[types.FunctionType]:
    """The functions that the user wrote, without torch's wrappers around them."""
    parts = (inspect.unwrap(getattr(cls, name)) for name in _PARTS)
    return [
        part
        for part in parts
        if isinstance(part, types.FunctionType)
        and not part.__module__.startswith("torch.autograd.")
    ]


class _Reads:
    """`found`: (path, value) of the constants that a function's parts, and what they call, read
    from outside. Raises _Loud for anything that is more than computing."""

    def __init__(self, cls: type) -> None:
        self.found: list[tuple[Any, Any]] = []
        self._seen: set[types.FunctionType] = set()
        self._of_class(cls)

    def _of_class(self, cls: type) -> None:
        for part in _parts(cls):
            self._of(part)

    def _of(self, fn: types.FunctionType) -> None:
        if fn in self._seen:
            return
        self._seen.add(fn)
        source = live_source.find(fn)
        tree = ast.parse(live_source.padded(source, source.text))
        local = {*fn.__code__.co_varnames, *fn.__code__.co_cellvars}
        first = fn.__code__.co_varnames[0] if fn.__code__.co_argcount else None
        for node in ast.walk(_body(tree, source.name)):
            _check(node, first, fn)
            if not isinstance(getattr(node, "ctx", None), ast.Load):
                continue
            if isinstance(node, ast.Name) and node.id not in local:
                self._outside(fn, node.id)
            match node:
                case ast.Attribute(value=ast.Name(id=owner)) if owner not in local:
                    self._attribute(fn, owner, node.attr)

    def _outside(self, fn: types.FunctionType, name: str) -> None:
        path, value = _lookup(fn, name)
        if isinstance(value, types.ModuleType):
            if value is not math and value.__name__.partition(".")[0] != "torch":
                raise _Loud(f"{fn.__qualname__} uses the module {value.__name__}")
            return
        if path is None:
            if name not in _QUIET_BUILTINS:
                raise _Loud(f"{fn.__qualname__} uses {name}")
            return
        self.found.append((path, value))
        if is_constant(value) or _is_torchs(value):
            return
        if isinstance(value, types.FunctionType):
            self._of(inspect.unwrap(value))
        elif isinstance(value, type) and issubclass(value, torch.autograd.Function):
            self._of_class(value)
        else:
            raise _Loud(f"{fn.__qualname__} reads {name}, a {type(value).__name__}")

    def _attribute(self, fn: types.FunctionType, name: str, attribute: str) -> None:
        """What the user's own function or autograd function holds under a name."""
        path, owner = _lookup(fn, name)
        if path is None or not isinstance(owner, types.FunctionType | type) or _is_torchs(owner):
            return
        if attribute == "apply" or not hasattr(owner, attribute):
            return
        value = getattr(owner, attribute)
        if not is_constant(value):
            raise _Loud(f"{fn.__qualname__} reads {name}.{attribute}, a {type(value).__name__}")
        self.found.append((Attr(path, attribute), value))


def _body(tree: ast.Module, name: str) -> ast.AST:
    """The function's statements, without its decorators."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda))
    node = next(node for node in nodes if getattr(node, "name", "<lambda>") == name)
    inside: list[Any] = node.body if isinstance(node, ast.FunctionDef) else [ast.Expr(node.body)]
    return ast.Module(body=inside, type_ignores=[])


def _check(node: ast.AST, first: str | None, fn: types.FunctionType) -> None:
    if isinstance(
        node, ast.Global | ast.Nonlocal | ast.Yield | ast.YieldFrom | ast.Import | ast.ImportFrom
    ):
        raise _Loud(f"{fn.__qualname__} changes or imports names")
    if isinstance(node, ast.Attribute):
        base = node.value.id if isinstance(node.value, ast.Name) else None
        if not isinstance(node.ctx, ast.Load) and base != first:
            raise _Loud(f"{fn.__qualname__} stores an attribute")
        if node.attr in _LOUD_METHODS or (base != first and opsets.draws(node.attr)):
            raise _Loud(f"{fn.__qualname__} uses .{node.attr}")


def _is_torchs(value: Any) -> bool:
    module = getattr(value, "__module__", None) or ""
    return callable(value) and module.partition(".")[0] in ("torch", "math")


def _lookup(fn: types.FunctionType, name: str) -> tuple[Any, Any]:
    """The path and value of a name from outside; no path for a builtin."""
    if name in fn.__code__.co_freevars:
        index = fn.__code__.co_freevars.index(name)
        cell = (fn.__closure__ or ())[index]
        closure = Attr(Obj(fn, fn.__qualname__), "__closure__")
        return Attr(Item(closure, index), "cell_contents"), cell.cell_contents
    if name in fn.__globals__:
        return Item(Obj(fn.__globals__, fn.__module__), name), fn.__globals__[name]
    if not hasattr(builtins, name):
        raise _Loud(f"{fn.__qualname__} reads {name}, which is not there")
    return None, getattr(builtins, name)
