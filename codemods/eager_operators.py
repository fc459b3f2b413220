"""`eager_op`, which fixed programs import: a function that compiled code runs in eager, as one
operator of the graph.

A fixed file imports it under `try`, with a fallback that breaks the graph there."""

from __future__ import annotations

import functools
import gc
import hashlib
import itertools
import re
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.stateless import _reparametrize_module

Function = Callable[..., Any]
Tensors = list[torch.Tensor]
_NAMESPACE = "dynfix_eager"
_library = torch.library.Library(_NAMESPACE, "FRAGMENT")
_operators: dict[str, _Operator] = {}
_objects: dict[int, Any] = {}  # weak references to modules, by their identity
_graphs: dict[int, tuple[Tensors, Tensors]] = {}  # of calls that a backward may follow
_numbers = itertools.count()
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_RESULT = re.compile(r"(\w+)\[([^\]]*)\]")
_MODULE = re.compile(r"\bModule (\w+)")
_BASE = re.compile(r"[ (?]")  # ends the type of a parameter; a list keeps its `[]`
_TYPES: dict[str, Any] = {
    "Tensor": torch.Tensor,
    "Module": torch.nn.Module,
    "SymInt": int,
    "float": (int, float),
    "bool": bool,
    "str": str,
}


def eager_op(signature: str) -> Callable[[Function], Function]:
    """Have torch.compile keep a function as one operator, whose statements run in eager.

    `signature` has torch's schema of the parameters, and dtypes and sizes of the tensors that are
    returned: `"(Module head, Tensor x, float limit) -> (int64[?], float32[?, 4])"`. A module is
    taken with its parameters and buffers. The graph breaks there under autocast, under
    `dynfix.compile`, for arguments of other types, and where the function writes while gradients
    are noted."""

    def decorate(function: Function) -> Function:
        operator = _operator(function, signature)
        in_eager = torch.compiler.disable(function)

        @functools.wraps(function)
        def call(*args: Any) -> Any:
            if not torch.compiler.is_compiling():
                return function(*args)
            if not operator.takes(args):
                return in_eager(*args)
            given = operator.flat(args)
            tracked = [t.requires_grad for t in _tensors(given)]
            learns = torch.is_grad_enabled() and any(tracked)
            if _casts() or (learns and operator.writes and operator.gives_floats):
                return in_eager(*args)
            if operator.differentiable and learns:
                made = operator.training(*given, tracked)[:-1]
                return made[0] if operator.single else made
            return operator.inference(*given)

        marked: Any = call
        marked._dynfix_disable = True  # dynfix.compile runs the statements between two graphs
        return call

    return decorate


@dataclass(frozen=True)
class _Result:
    """One tensor that a function returns: its dtype, and its sizes, None for what data says, or the
    place of the tensor that has the same."""

    dtype: torch.dtype
    sizes: tuple[int | None, ...] | int

    @property
    def differentiable(self) -> bool:
        return self.dtype.is_floating_point or self.dtype.is_complex

    def fake(self, given: Sequence[Any], device: torch.device) -> torch.Tensor:
        sizes: Any = self._known(given)
        sizes = [_new_size() if size is None else size for size in sizes]
        return torch.empty(sizes, dtype=self.dtype, device=device)

    def _known(self, given: Sequence[Any]) -> Sequence[int | None]:
        return given[self.sizes].shape if isinstance(self.sizes, int) else self.sizes

    def checked(self, value: torch.Tensor, given: Sequence[Any], name: str) -> torch.Tensor:
        """The value, on the first device; RuntimeError where it is not as declared."""
        sizes = self._known(given)
        sized = len(sizes) == value.dim() and all(
            size in (None, real) for size, real in zip(sizes, value.shape, strict=True)
        )
        if value.dtype is not self.dtype or not sized:
            raise RuntimeError(
                f"{name} returned {value.dtype} of shape {tuple(value.shape)}, and its signature"
                f" says {self.dtype}{[s if s is not None else '?' for s in sizes]}: correct it"
            )
        return value.to(_device(given))


class _Operator:
    """The two operators of a function: `inference`, and `training`, which returns the number of
    the call's own autograd graph as well."""

    def __init__(self, name: str, signature: str) -> None:
        params, _, returned = signature.rpartition("->")
        self.name, self.function = name, None
        self.types = [_BASE.split(p.strip())[0] for p in params.strip()[1:-1].split(",")]
        self.optional = ["?" in p for p in params.split(",")]
        self.modules = [name == "Module" for name in self.types]
        self.results = [
            _Result(getattr(torch, dtype), _sizes(sizes, self._places(params)))
            for dtype, sizes in _RESULT.findall(returned)
        ]
        self.single = len(self.results) == 1
        self.writes = "!" in params
        self.gives_floats = any(r.differentiable for r in self.results)
        self.differentiable = self.gives_floats and not self.writes
        schema = _MODULE.sub(r"int \1, Tensor[] \1_state", params.strip())
        count = len(self.results)
        self.inference = self._defined(name, schema, count, self._run, self._fake)
        if self.differentiable:
            schema = f"{schema[:-1]}, bool[] tracked_)"
            made = self._record, self._fake_record
            self.training = self._defined(f"{name}_training", schema, count + 1, *made)
            torch.library.register_autograd(
                f"{_NAMESPACE}::{name}_training",
                self._differentiate,
                setup_context=self._save,
                lib=_library,
            )

    def _places(self, params: str) -> dict[str, int]:
        """Where each parameter stands among what the operators take."""
        names = [p.split()[-1] for p in params.strip()[1:-1].split(",") if p.strip()]
        return {name: self._place(number) for number, name in enumerate(names)}

    def _place(self, number: int) -> int:
        return number + sum(self.modules[:number])

    def _of_modules(self) -> Iterator[int]:
        return (self._place(n) for n, is_module in enumerate(self.modules) if is_module)

    def _defined(self, name: str, params: str, count: int, run: Function, fake: Function) -> Any:
        given = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
        return _define(name, f"{params} -> {given}", run, fake)

    def takes(self, args: Sequence[Any]) -> bool:
        """Whether arguments are what the signature says; asked while the code is traced."""
        for value, name, optional in zip(args, self.types, self.optional, strict=True):
            known = _TYPES.get(name, object)
            if not isinstance(value, known) and not (optional and value is None):
                return False
        return True

    def flat(self, args: Sequence[Any]) -> list[Any]:
        """The arguments as the operators take them."""
        made: list[Any] = []
        for value, is_module in zip(args, self.modules, strict=True):
            made += [id(value), _state(value)] if is_module else [value]
        return made

    def _called(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """What the function returns, with the tensors that it is given in its modules: a module
        that holds them already is left alone, for other threads may be reading it."""
        values, args, kept = iter(given), [], list[tuple[Any, dict[str, torch.Tensor]]]()
        with ExitStack() as stack:
            for is_module in self.modules:
                value = next(values, None)
                if is_module:
                    value, state = _object(value), next(values)
                    if not _holds(value, state):
                        named = dict(zip(_names(value), state, strict=True))
                        stack.enter_context(_reparametrize_module(value, named, tie_weights=True))
                    kept.append((value, dict(value.named_buffers())))
                args.append(value)
            made = self.function(*args[: len(given)])
            for module, named in kept:
                if any(named.get(n) is not buffer for n, buffer in module.named_buffers()):
                    raise RuntimeError(f"{self.name} sets a buffer of a module anew: write into it")
        return () if made is None else made if isinstance(made, tuple) else (made,)

    def _checked(self, made: Sequence[torch.Tensor], given: Sequence[Any]) -> Tensors:
        pairs = zip(self.results, made, strict=True)
        return _in_own_memory([r.checked(v, given, self.name) for r, v in pairs], _tensors(given))

    def _run(self, *given: Any) -> Any:
        return _one_or_all(self._checked(self._called(given), given))

    def _fake(self, *given: Any) -> Any:
        return _one_or_all([r.fake(given, _device(given)) for r in self.results])

    # With a gradient

    def _record(self, *given: Any) -> Any:
        *given, tracked = given
        flags = iter(tracked)
        with ExitStack() as stack:
            for key in ("AutogradFunctionality", "ADInplaceOrView"):  # below autograd it records
                on = getattr(torch._C.DispatchKey, key)
                stack.enter_context(torch._C._SetExcludeDispatchKeyGuard(on, False))
            stack.enter_context(torch.enable_grad())
            own = _map(lambda t: t.detach().requires_grad_(next(flags)), given)
            self._take_own(own)
            made = self._called(own)
            number = next(_numbers)
            roots = [t for t in _tensors(own) if t.requires_grad]
            _graphs[number] = roots, [*made]
        ticket = torch.tensor(number)
        weakref.finalize(ticket.untyped_storage(), _graphs.pop, number, None)
        values = [v.detach() for v in made]
        return (*self._checked(values, given), ticket)

    def _take_own(self, given: list[Any]) -> None:
        """Where a module holds the given tensors, its own stand for them: each once, for gradients
        of one that is named twice would count twice."""
        taken = set[int]()
        for place in self._of_modules():
            module = _object(given[place])
            if _holds(module, given[place + 1]):
                pairs = zip(_state(module), given[place + 1], strict=True)
                given[place + 1] = [t if id(own) in taken else own for own, t in pairs]
                taken.update(map(id, _state(module)))

    def _fake_record(self, *given: Any) -> Any:
        made = self._fake(*given[:-1])
        ticket = torch.empty((), dtype=torch.int64, device="cpu")
        return (*(made if isinstance(made, tuple) else (made,)), ticket)

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        *given, ctx.tracked = inputs
        roots = [t for t, on in zip(_tensors(given), ctx.tracked, strict=True) if on]
        ctx.save_for_backward(output[-1], *roots)
        ctx.places = _map(lambda _: True, given)

    def _differentiate(self, ctx: Any, *grads: Any) -> Any:
        ticket, *roots = ctx.saved_tensors
        pairs = zip(grads, self.results, strict=False)
        wanted = [g.contiguous() for g, r in pairs if r.differentiable]
        found, flags = iter(_backward(ticket, wanted, roots)), iter(ctx.tracked)
        grads = [_filled(place, found, flags) for place in ctx.places]
        return (*grads, None)


def _casts() -> bool:
    """Whether autocast is on: it does not reach into an operator."""
    return torch.is_autocast_enabled() or torch.is_autocast_enabled("cpu")


def _operator(function: Function, signature: str) -> _Operator:
    """The operator of a function; one of the same text, defined before, runs this one from now
    on."""
    text = f"{function.__module__}.{function.__qualname__}{signature}{_text(function.__code__)}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    plain = re.sub(r"\W", "_", function.__name__).strip("_")
    name = f"{plain}_{digest}"
    if name not in _operators:
        _operators[name] = _Operator(name, signature)
    _operators[name].function = function
    return _operators[name]


def _text(code: types.CodeType) -> str:
    """What tells code from other code."""
    constants = (_text(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts)
    return f"{code.co_code!r}{code.co_names}{code.co_varnames}{[*constants]}"


def _define(name: str, schema: str, run: Function, fake: Function) -> Any:
    tags = (torch.Tag.nondeterministic_seeded,)  # no two calls are one
    _library.define(f"{name}{schema}", tags=tags)
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{_NAMESPACE}::{name}", fake, lib=_library)
    return getattr(getattr(torch.ops, _NAMESPACE), name).default


def _gradients(ticket: torch.Tensor, grads: Tensors, roots: Tensors) -> Tensors:
    own, made = _graphs[int(ticket)]
    floating = [v for v in made if v.is_floating_point() or v.is_complex()]
    pairs = [(v, g) for v, g in zip(floating, grads, strict=True) if v.requires_grad]
    if not pairs:
        return [torch.zeros_like(t) for t in roots]
    outputs, given = zip(*pairs, strict=True)
    found = torch.autograd.grad(outputs, own, given, retain_graph=True, allow_unused=True)
    zeros = [torch.zeros_like(t) if g is None else g for t, g in zip(roots, found, strict=True)]
    return _in_own_memory(zeros, grads)


def _fake_gradients(ticket: torch.Tensor, grads: Tensors, roots: Tensors) -> Tensors:
    return [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in roots]


_backward = _define(
    "backward",
    "(Tensor number, Tensor[] grads, Tensor[] roots) -> Tensor[]",
    _gradients,
    _fake_gradients,
)


def _in_own_memory(values: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> Tensors:
    """The values contiguous, each in memory of its own, for the graph may write into it."""
    taken = {t.untyped_storage().data_ptr() for t in others}
    made = []
    for value in values:
        value = value.contiguous()
        value = value.clone() if value.untyped_storage().data_ptr() in taken else value
        taken.add(value.untyped_storage().data_ptr())
        made.append(value)
    return made


def _new_size() -> Any:
    """A size that data says: a symbol, whatever torch is set to do at operators of such sizes."""
    context = torch.library.get_ctx()
    shapes = getattr(context, "_shape_env", None)
    if shapes is None or getattr(shapes, "allow_dynamic_output_shape_ops", True):
        return context.new_dynamic_size()
    symbol = shapes.create_unbacked_symint()
    torch._check(symbol >= 0)
    return symbol


def _object(key: int) -> Any:
    """The module of an identity, which a guard on it says to be alive."""
    known = _objects[key]() if key in _objects else None
    if known is None:
        alive = (o for o in gc.get_objects() if id(o) == key)
        known = next((o for o in alive if isinstance(o, torch.nn.Module)), None)
        if known is None:
            raise RuntimeError("the module that the graph was made for is gone: compile it again")
        _objects[key] = weakref.ref(known)
    return known


def _state(module: Any) -> Tensors:
    return [*module.parameters(), *module.buffers()]


def _holds(module: Any, state: Tensors) -> bool:
    """Whether the module's own tensors serve as well as these, in the same memory: those with hooks
    would run them twice."""
    return all(
        given is own
        or (
            type(given) in _PLAIN
            and type(own) in _PLAIN
            and given.dtype is own.dtype
            and given.is_set_to(own)
            and (given.requires_grad == own.requires_grad or not torch.is_grad_enabled())
            and not own._backward_hooks
        )
        for given, own in zip(state, _state(module), strict=True)
    )


def _names(module: Any) -> list[str]:
    named = (*module.named_parameters(), *module.named_buffers())
    return [name for name, _ in named]


def _sizes(text: str, places: dict[str, int]) -> tuple[int | None, ...] | int:
    if text.startswith("*"):
        return places[text[1:]]
    return tuple(None if s.strip() == "?" else int(s) for s in text.split(",") if s.strip())


def _device(given: Sequence[Any]) -> torch.device:
    return next((t.device for t in _tensors(given)), torch.device("cpu"))


def _one_or_all(values: Sequence[Any]) -> Any:
    return (values[0] if len(values) == 1 else tuple(values)) if values else None


def _tensors(args: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in args:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _map(change: Callable[[torch.Tensor], Any], args: Sequence[Any]) -> list[Any]:
    """The arguments with each tensor changed, those in lists as well."""
    return [
        change(a)
        if isinstance(a, torch.Tensor)
        else _map(change, a)
        if isinstance(a, (list, tuple))
        else a
        for a in args
    ]


def _filled(place: Any, found: Iterator[torch.Tensor], flags: Iterator[bool]) -> Any:
    """The gradient of an argument, by its place."""
    if place is True:
        return next(found) if next(flags) else None
    return [_filled(p, found, flags) for p in place] if isinstance(place, list) else None
