"""`Tensor.register_hook` while recording: on what the graph at hand makes, the graph itself
registers a hook that only computes; its Python runs when the backward is made."""

import ast
import collections
import dataclasses
import types
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ... import catalogue
from ...capture.guarded_kinds import is_constant
from ...capture.numbers import scalars
from ...capture.stops import Decision, RecordingStopped
from ...capture.trace import Recorder
from ...capture.values import TracedTensor
from ...source.live_source import NotRewritable
from .. import attribute_ops
from ..lookup import owner_of
from . import effect_free_code

_DECIDING = (
    *(ast.If, ast.IfExp, ast.While, ast.For, ast.BoolOp, ast.Not, ast.Assert, ast.Try, ast.With),
    *(ast.Raise, ast.AugAssign, ast.Delete, ast.comprehension, ast.FunctionDef, ast.Lambda),
)


_LEAVES = "register_hook: the tensor leaves the graph, where other hooks may come behind it"


@dataclasses.dataclass(frozen=True)
class Hook:
    """A hook that the graph registers. `cells`: what it reads, as it was; `node`: the registration,
    which is the value of `value` until that is written; `site`: of it."""

    handle: RemovableHandle
    cells: list[tuple[types.CellType, Any]]
    value: TracedTensor
    node: torch.fx.Node
    site: Decision


def takes(function: Any) -> bool:
    owner = owner_of(function)
    return isinstance(owner, torch.Tensor) and function.__name__ == "register_hook"


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The hook stands on the tensor of the recorded call, too."""
    try:
        target, reads = _registration(rec, function.__self__, *args, **kwargs)
        held = [cell.cell_contents for cell in reads.held.values()]
        with rec.paused(), torch._C.DisableTorchFunction():
            value = rec.value(function.__self__)
            nodes = tuple(map(rec.node, (function.__self__, *held)))
            handle = function(*args, **kwargs)
        value.node = rec.segment.call("call_function", target, nodes, {}, rec.origin_text())
        rec.hooks.append(Hook(handle, reads.cells, value, value.node, rec.decision(_LEAVES)))
        return handle
    except (effect_free_code.NotEffectFree, NotRewritable) as why:
        rec.stop(catalogue.UNSUPPORTED, f"register_hook: {why}")
    except RecordingStopped:
        pass
    return function(*args, **kwargs)


def takes_handle(function: Any) -> bool:
    return isinstance(owner_of(function), RemovableHandle)


def use_handle(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The graph registers its hooks for good."""
    if any(function.__self__ is each.handle for each in rec.hooks):
        rec.stop(catalogue.UNSUPPORTED, "a hook that the call registered is removed")
    return rec.call(function.__func__, (function.__self__, *args), kwargs)


def _registration(
    rec: Recorder, tensor: torch.Tensor, hook: Any
) -> tuple["Registered", "_HookReads"]:
    """What registers the hook at later calls. Raises Loud, NotRewritable, Stopped."""
    with rec.paused(), torch._C.DisableTorchFunction():
        here = rec.value(tensor).home == rec.segment.index and not rec.bodies
        made = tensor.requires_grad and not tensor.is_leaf
    if not (here and made) or rec.open_contexts:
        raise effect_free_code.NotEffectFree("not of what this graph makes")
    if not isinstance(hook, types.FunctionType):
        raise effect_free_code.NotEffectFree(f"a {type(hook).__name__}")
    made_here = rec.rewriter.made_in_call(rec, hook)
    fn = rec.rewriter.original_of(hook) if rec.rewriter.is_rewritten(hook.__code__) else hook
    reads = _HookReads(rec, fn, made_here)
    reads.of_hook()
    reads.guard(rec)
    return Registered.of(fn, tuple(reads.held)), reads


class _HookReads(effect_free_code.ConstantReads):
    """What a hook reads. `held`: its cells, by place, that hold tensors; `cells`: each of its cells
    with what it holds."""

    def __init__(self, rec: Recorder, hook: types.FunctionType, made_here: bool) -> None:
        super().__init__()
        self._rec, self._hook, self._made_here = rec, hook, made_here
        self.held: dict[int, types.CellType] = {}
        self.cells: list[tuple[types.CellType, Any]] = []
        self._bare: collections.Counter[str] = collections.Counter()

    def of_hook(self) -> None:
        self.of_function(self._hook)
        for name in +self._bare:
            raise effect_free_code.NotEffectFree(f"{self._hook.__qualname__} uses {name} itself")

    def check(self, node: ast.AST, first: str | None, fn: types.FunctionType) -> None:
        super().check(node, None, fn)
        stored = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
        in_place = isinstance(node, ast.Attribute) and node.attr.endswith("_")
        if stored or in_place or (isinstance(node, ast.keyword) and node.arg == "out"):
            raise effect_free_code.NotEffectFree(f"{fn.__qualname__} writes a tensor")
        if isinstance(node, _DECIDING):
            raise effect_free_code.NotEffectFree(f"{fn.__qualname__} does more than compute")

    def outside(self, fn: types.FunctionType, name: str) -> None:
        free = fn.__code__.co_freevars
        if name not in free or not self._made_here:
            if effect_free_code.lookup(fn, name)[0] is None:
                raise effect_free_code.NotEffectFree(f"{fn.__qualname__} uses {name}")
            return super().outside(fn, name)
        place = free.index(name)
        cell = (fn.__closure__ or ())[place]
        value = cell.cell_contents
        self.cells.append((cell, value))
        if isinstance(value, torch.Tensor) and fn is self._hook:
            self.held[place] = cell
        elif type(value) in scalars.TRACED:
            raise effect_free_code.NotEffectFree(
                f"{fn.__qualname__} reads {name}, a number that moves"
            )
        elif _is_object(value):
            self._bare[name] += 1
        elif not is_constant(value) or self._rec.known.holds_cell(cell):
            super().outside(fn, name)
        return None

    def attribute(self, fn: types.FunctionType, name: str, attribute: str) -> None:
        owner = effect_free_code.lookup(fn, name)[1]
        if not _is_object(owner):
            return super().attribute(fn, name, attribute)
        self._bare[name] -= 1
        own = attribute in getattr(owner, "__dict__", ())
        if not own or not is_constant(attribute_ops.load(self._rec, owner, attribute)):
            raise effect_free_code.NotEffectFree(f"{fn.__qualname__} reads {name}.{attribute}")
        return None


def _is_object(value: Any) -> bool:
    """Whether a hook may read constants of it."""
    kinds = types.FunctionType | types.ModuleType | type | torch.Tensor
    return not (isinstance(value, kinds) or is_constant(value) or effect_free_code.is_torchs(value))


@dataclasses.dataclass(frozen=True)
class Registered:
    """Registers the hook on a tensor, which it gives back. `cells`: the places of the cells that
    hold the tensors given beside; `key`: what tells hooks apart."""

    function: types.FunctionType = dataclasses.field(compare=False)
    cells: tuple[int, ...]
    key: tuple[Any, ...]

    @classmethod
    def of(cls, fn: types.FunctionType, cells: tuple[int, ...]) -> "Registered":
        contents = [cell.cell_contents for cell in fn.__closure__ or ()]
        for place in cells:
            contents[place] = None
        own = _with_contents(fn, contents)
        return cls(own, cells, (fn.__code__, tuple(map(id, contents))))

    @property
    def __name__(self) -> str:
        return "register_hook"

    def __call__(self, tensor: torch.Tensor, *held: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad:
            contents = [cell.cell_contents for cell in self.function.__closure__ or ()]
            for place, value in zip(self.cells, held, strict=True):
                contents[place] = value
            tensor.register_hook(_with_contents(self.function, contents))  # type: ignore[no-untyped-call]
        return tensor


def _with_contents(fn: types.FunctionType, contents: list[Any]) -> types.FunctionType:
    cells = tuple(map(types.CellType, contents))
    made = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, cells)
    made.__kwdefaults__ = fn.__kwdefaults__
    return made
