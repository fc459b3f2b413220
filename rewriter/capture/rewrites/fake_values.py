"""What expressions of a running function would give, without running them: worked out on fake
tensors that look like the real ones.

Only what surely does nothing but compute is worked out: torch's functions, methods of tensors,
layers of torch.nn, arithmetic, attributes and items that no user's code answers. Everything else is
`Unknown`.
"""

import ast
import builtins
import contextlib
import functools
import operator
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ....lowering.fake_tensor_mode import DispatchMode, PacedFakeMode, unlogged
from ....lowering.opinfo import having
from ..numbers import scalars
from ..values import Meta, is_plain
from . import total_ops

_BINARY: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.MatMult: operator.matmul,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_UNARY: dict[type, Callable[..., Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
_COMPARE: dict[type, Callable[..., Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_NUMBERS = (bool, int, float)
_PLAIN = (*_NUMBERS, str, type(None), torch.dtype, torch.device, torch.Size, torch.finfo)
_BUILTINS = frozenset({len, int, float, abs, min, max, tuple, list})
_ATTRIBUTES = frozenset("shape dtype device ndim T mT H requires_grad is_cuda real".split())
_FACTORIES = frozenset(getattr(torch, name) for name in having("fake_factory"))
_NO_METHODS = frozenset(
    "item tolist numpy backward register_hook retain_grad data_ptr storage untyped_storage".split()
)


class UnknownValue(Exception):
    """What an expression gives cannot be said without running it."""


class Host(UnknownValue):
    """It is a number that was read from a tensor."""


@dataclass(frozen=True)
class Seen:
    """What an expression gives. `partial`: why running it may be seen, `rough`: why its backward
    may make more than zeros of zeros."""

    value: Any
    partial: frozenset[str] = frozenset()
    rough: frozenset[str] = frozenset()


class EffectWatch(DispatchMode):  # type: ignore[no-untyped-call]
    """Notes what the operators that pass by may do; those that write are not run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.partial: set[str] = set()
        self.rough: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten":
            if func._schema.is_mutable:
                raise UnknownValue(f"{func} writes")
            self.partial |= {total_ops.why_not_total(func, args)} - {""}
            self.rough |= {total_ops.why_backward_inexact(func, args)} - {""}
        return func(*args, **(kwargs or {}))


class FakeValues:
    """The expressions of one function at one place: `local` are its names' values there, `around`
    those of its module; `static`: whether later calls have the same sizes. Tensors stay the user's
    own; nothing here writes to them. `sides`: what choices may be made between."""

    def __init__(self, local: dict[str, Any], around: dict[str, Any], static: bool = True) -> None:
        self.local, self.around, self.static = local, around, static
        self._mode = PacedFakeMode(allow_non_fake_inputs=True)
        self._fakes: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._known: dict[ast.AST, Seen | UnknownValue] = {}
        self.sides: list[ast.expr] = []

    def see(self, node: ast.expr) -> Seen:
        """What `node` gives. Raises Unknown."""
        if node not in self._known:
            self._known[node] = self._looked_at(node)
        found = self._known[node]
        if isinstance(found, UnknownValue):
            raise found
        return found

    def bind(self, name: str, node: ast.expr) -> None:
        """From here on `name` is what `node` gives. Raises Unknown."""
        self.local = {**self.local, name: self.see(node).value}

    def select(self, first: torch.Tensor, second: torch.Tensor | int) -> torch.Tensor:
        """What torch.where gives of two values seen here."""
        with unlogged(), unsaved(), self._mode:
            return torch.where(torch.ones((), dtype=torch.bool), first, second)

    def leaves(self, tensor: torch.Tensor) -> frozenset[int]:
        """The tensors, by identity, that a backward from `tensor` gives gradients to."""
        found, todo, met = set(), [tensor.grad_fn], set()
        if tensor.grad_fn is None and tensor.requires_grad:
            found.add(self._original(tensor))
        while todo:
            step = todo.pop()
            if step is None or step in met:
                continue
            met.add(step)
            if hasattr(step, "variable"):
                found.add(self._original(step.variable))
            todo += [following for following, _ in step.next_functions]
        return frozenset(found)

    def kept(self) -> list[torch.Tensor]:
        """The live tensors in whose memory lies what a choice gives. Raises Unknown."""
        mine: set[int] = set()
        for side in self.sides:
            with contextlib.suppress(Host):  # a number
                value = self.see(side).value
                if isinstance(value, torch.Tensor):
                    mine.add(value.untyped_storage()._cdata)
        live = self._fakes.values()
        return [t for fake, t in live if fake.untyped_storage()._cdata in mine]

    def _original(self, tensor: torch.Tensor) -> int:
        return next((key for key, (fake, _) in self._fakes.items() if fake is tensor), id(tensor))

    def _looked_at(self, node: ast.expr) -> "Seen | UnknownValue":
        handler: Callable[[ast.expr], Seen] | None = getattr(self, f"_{type(node).__name__}", None)
        if handler is None:
            return UnknownValue(f"a {type(node).__name__}")
        try:
            return handler(node)
        except UnknownValue as error:
            return error
        except Exception as error:  # shapes that do not fit, data that a fake has not
            return UnknownValue(f"{type(error).__name__}: {error}")

    @contextlib.contextmanager
    def _run(self) -> Iterator[EffectWatch]:
        watch = EffectWatch()
        with unlogged(), unsaved(), self._mode, watch:
            yield watch

    def _apply(self, function: Callable[..., Any], *parts: Seen, **named: Seen) -> Seen:
        """`function` of values that are plain to Python or tensors."""
        with self._run() as watch:
            value = function(
                *[part.value for part in parts], **{name: p.value for name, p in named.items()}
            )
        every = (*parts, *named.values())
        return Seen(
            value,
            frozenset(watch.partial).union(*(part.partial for part in every)),
            frozenset(watch.rough).union(*(part.rough for part in every)),
        )

    def given(self, value: Any) -> Any:
        """A live value as expressions may use it here."""
        if type(value) in scalars.TRACED:
            if scalars.size_form(value) is None and value.recording is not None:
                raise Host("a number that may differ in another call")
            return scalars.plain(value)
        if isinstance(value, torch.Tensor):
            return self._fake(value)
        if type(value) in (list, tuple):
            return type(value)(self.given(part) for part in value)
        if type(value) is dict:
            return {key: self.given(part) for key, part in value.items()}
        return value

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self._fakes:
            if not is_plain(tensor):
                raise UnknownValue(f"a {type(tensor).__name__}")
            with self._mode, torch.inference_mode(False):
                self._fakes[id(tensor)] = Meta.of(tensor).fake(), tensor
        return self._fakes[id(tensor)][0]

    # -- expressions

    def _Constant(self, node: ast.Constant) -> Seen:
        return Seen(node.value)

    def _Name(self, node: ast.Name) -> Seen:
        if node.id in self.local:
            return Seen(self.given(self.local[node.id]))
        for names in (self.around, vars(builtins)):
            if node.id in names:
                return Seen(self.given(names[node.id]))
        raise UnknownValue(node.id)

    def _UnaryOp(self, node: ast.UnaryOp) -> Seen:
        operand = self.see(node.operand)
        _computes(operand.value)
        if isinstance(node.op, ast.Not):
            if isinstance(operand.value, torch.Tensor):
                raise Host("the truth of a tensor")
            return self._apply(operator.not_, operand)
        return self._apply(_UNARY[type(node.op)], operand)

    def _BinOp(self, node: ast.BinOp) -> Seen:
        left, right = self.see(node.left), self.see(node.right)
        _computes(left.value, right.value)
        return self._apply(_BINARY[type(node.op)], left, right)

    def _Compare(self, node: ast.Compare) -> Seen:
        if len(node.ops) != 1:
            raise UnknownValue("a chain of comparisons")
        left, right = self.see(node.left), self.see(node.comparators[0])
        if type(node.ops[0]) in (ast.Is, ast.IsNot):
            same = left.value is right.value
            return Seen(same is isinstance(node.ops[0], ast.Is), left.partial | right.partial)
        _computes(left.value, right.value)
        return self._apply(_COMPARE[type(node.ops[0])], left, right)

    def _Tuple(self, node: ast.Tuple) -> Seen:
        return self._apply(lambda *parts: parts, *map(self.see, node.elts))

    def _List(self, node: ast.List) -> Seen:
        return self._apply(lambda *parts: list(parts), *map(self.see, node.elts))

    def _Slice(self, node: ast.Slice) -> Seen:
        parts = [Seen(None) if p is None else self.see(p) for p in _parts(node)]
        return self._apply(slice, *parts)

    def _Subscript(self, node: ast.Subscript) -> Seen:
        base, key = self.see(node.value), self.see(node.slice)
        if not isinstance(base.value, torch.Tensor | list | tuple | dict | torch.nn.ModuleList):
            raise UnknownValue("an item of an object that is no tensor or container")
        return self._apply(operator.getitem, base, key)

    def _Attribute(self, node: ast.Attribute) -> Seen:
        base = self.see(node.value)
        found = self.given(_attribute(base.value, node.attr))
        return self._apply(lambda _: found, base)

    def _Call(self, node: ast.Call) -> Seen:
        if any(isinstance(arg, ast.Starred) for arg in node.args):
            raise UnknownValue("a call with unpacked arguments")
        parts = [self.see(arg) for arg in node.args]
        named = {word.arg or "": self.see(word.value) for word in node.keywords}
        if "" in named or "out" in named or "inplace" in named:
            raise UnknownValue("a call with unpacked or written arguments")
        method = self._method(node.func)
        if method is not None:
            return self._called_method(method[0], method[1], parts, named)
        function = self.see(node.func).value
        _callable(function)
        return self._apply(function, *parts, **named)

    def _method(self, function: ast.expr) -> tuple[str, Seen] | None:
        """The method of a tensor, or shape, that is called, and on which."""
        if not isinstance(function, ast.Attribute):
            return None
        owner = self.see(function.value)
        known = isinstance(owner.value, torch.Tensor | torch.Size)
        return (function.attr, owner) if known else None

    def _called_method(
        self, name: str, owner: Seen, parts: list[Seen], named: dict[str, Seen]
    ) -> Seen:
        if name in _NO_METHODS or name.startswith("__") or name.endswith("_"):
            raise (Host if name in ("item", "tolist") else UnknownValue)(f"`.{name}()`")
        return self._apply(lambda obj, *a, **k: getattr(obj, name)(*a, **k), owner, *parts, **named)


@contextlib.contextmanager
def unsaved() -> Iterator[None]:
    """Hooks for saved tensors (a checkpoint's) are not told of what is kept for gradients here."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved):
        yield


def _parts(node: ast.Slice) -> tuple[ast.expr | None, ...]:
    return node.lower, node.upper, node.step


def _computes(*values: Any) -> None:
    """Operators of other objects are users' code."""
    for value in values:
        if not isinstance(value, (torch.Tensor, *_PLAIN, list, tuple)):
            raise UnknownValue(f"an operator of a {type(value).__name__}")


def _attribute(base: Any, name: str) -> Any:
    if isinstance(base, torch.Tensor):
        if name not in _ATTRIBUTES:
            raise UnknownValue(f"`.{name}` of a tensor")
        return getattr(base, name)
    if isinstance(base, types.ModuleType | torch.finfo | torch.iinfo):
        return getattr(base, name)
    own = vars(base) if hasattr(base, "__dict__") else {}
    if isinstance(base, torch.nn.Module):
        own = {**own["_parameters"], **own["_buffers"], **own["_modules"], **own}
    if name not in own:
        raise UnknownValue(f"`.{name}`")
    return own[name]


@functools.cache
def _functions_of_tensors() -> frozenset[Any]:
    return frozenset(torch.overrides.get_testing_overrides()) | _FACTORIES


def _callable(function: Any) -> None:
    """Whether a call is one of torch's own that only compute. Raises Unknown."""
    if isinstance(function, torch.nn.Module):
        if not all(map(_is_plain_layer, function.modules())):
            raise UnknownValue("a call of a module with code of its own")
        return
    try:
        known = function in _functions_of_tensors() or function in _BUILTINS
    except TypeError:
        known = False
    if not known:
        raise UnknownValue(
            f"a call of {getattr(function, '__qualname__', type(function).__name__)}"
        )


_HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    "parametrizations",
)


def _is_plain_layer(module: torch.nn.Module) -> bool:
    own = type(module).__module__.startswith("torch.nn.modules.")
    lazy = isinstance(module, torch.nn.modules.lazy.LazyModuleMixin)
    hooked = any(vars(module).get(name) for name in _HOOKS)
    return own and not lazy and not hooked and "forward" not in vars(module)
