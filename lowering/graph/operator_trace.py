"""Operators that a torch-level graph calls on fake tensors, written down as a graph of core
operators.

AOTAutograd runs a graph under four modes, one of which makes functions of what writes; here one
does it all, for graphs of plain tensors with known sizes. Whatever is unusual raises `Unusual`, and
is left to AOTAutograd.
"""

import contextlib
import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses import FakeTensor
from torch.fx import Graph, GraphModule, Node

from ..autograd.differentiation import leaf_gradients
from ..fake_tensor_mode import DispatchMode, PacedFakeMode
from .channels_last import image_in_order, in_order
from .result_strides import as_recorded, copied_with_gaps

Decompositions = Mapping[Any, Callable[..., Any]]

# Where functions are that only compute, of tensors alone, and write tensors.
_MODULES = frozenset(
    (
        *("torch", "torch.functional", "torch.nn.functional", "_operator"),
        *(f"torch._C.{part}" for part in ("_nn", "_fft", "_linalg", "_special")),
        *(f"{__package__}.{part}" for part in ("folded_norms", "fused_steps", "writes")),
    )
)
FORWARD = "is_forward"
_KEPT_META = ("stack_trace", "origin")
_KEPT_OF_FORWARD = (*_KEPT_META, "recompute", "ac_graph_id")  # what a checkpoint asks for
_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)
_NAMESPACES = (
    "aten",
    "prims",
    "prim",
    "dynfix",
)  # of operators that only do what their schema says
_enter_autocast: Any = torch.amp.autocast_mode._enter_autocast
_exit_autocast: Any = torch.amp.autocast_mode._exit_autocast
# Attributes are tensors (`x.mT`).
_LISTED = (
    *(as_recorded, copied_with_gaps, image_in_order, in_order, getattr),
    *(leaf_gradients, torch.autograd.grad),
    *(torch._C._set_grad_enabled, _enter_autocast, _exit_autocast),
)
# What gives new values of what an operator writes, behind its own results.
_aten = torch.ops.aten
_NORM: Any = _aten._native_batch_norm_legit.default
_FUNCTIONAL: Mapping[Any, OpOverload] = {
    _NORM: _aten._native_batch_norm_legit_functional.default,
    _aten._batch_norm_with_update.default: _aten._batch_norm_with_update_functional.default,
}


class Unusual(Exception):
    """Something that AOTAutograd is asked to trace."""


def check(example_inputs: Sequence[Any]) -> None:
    """Raises Unusual for inputs that are no plain tensors, and for modes that change what is
    done."""
    if not all(type(each) in _PLAIN for each in example_inputs):
        raise Unusual("an input that is no plain tensor")
    if torch._C._is_any_autocast_enabled():
        raise Unusual("autocast")
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        raise Unusual("hooks on what is saved for a backward")


def plain_fakes(example_inputs: Sequence[torch.Tensor]) -> list[FakeTensor]:
    """Fake tensors of one mode."""
    fakes = [each for each in example_inputs if isinstance(each, FakeTensor)]
    mode = fakes[0].fake_mode if fakes else PacedFakeMode()
    if mode.shape_env is not None or any(each.fake_mode is not mode for each in fakes):
        raise Unusual("sizes that only a call knows")
    return [
        each if isinstance(each, FakeTensor) else mode.from_tensor(each) for each in example_inputs
    ]


@contextlib.contextmanager
def _modes_put_back() -> Iterator[list[Any]]:
    """The grad mode as it was, whatever the graph did before it failed; autocasts that it entered,
    which are in the list, left."""
    enabled, entered = torch.is_grad_enabled(), list[Any]()
    try:
        yield entered
    finally:
        for mode in reversed(entered):
            mode.__exit__(None, None, None)
        torch._C._set_grad_enabled(enabled)


@contextlib.contextmanager
def tracing(tracer: "OperatorTracer", mode: Any) -> Iterator[None]:
    """Inside, operators are called on fake tensors of `mode`, and written down."""
    with (
        mode,
        enable_python_dispatcher(),  # which gives some operators of torch the decompositions that
        # AOTAutograd uses
        torch.autograd.set_multithreading_enabled(False),  # other threads do not have the tracer
        tracer,
    ):
        yield


def run(
    gm: GraphModule,
    inputs: list[torch.Tensor],
    tracer: "OperatorTracer",
    after: Callable[[Node, Any], None] = lambda node, value: None,
) -> Any:
    """Run the graph; `after` is told of what each node gave. Raises Unusual for nodes that may do
    more than compute, and for modes that it leaves changed."""
    given, values, enabled = iter(inputs), dict[Node, Any](), torch.is_grad_enabled()
    with _modes_put_back() as entered:
        for node in gm.graph.nodes:
            tracer.source = node
            if node.op == "placeholder":
                values[node] = next(given)
                continue
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
            if node.op == "output":
                if entered or torch.is_grad_enabled() != enabled:
                    raise Unusual("a mode that the graph changes")
                return args[0]
            values[node] = _function(node)(*args, **kwargs)
            after(node, values[node])
            if node.target is _enter_autocast:
                entered.append(values[node])
            elif node.target is _exit_autocast:
                entered.remove(args[0])
    raise Unusual("no output")


def _function(node: Node) -> Callable[..., Any]:
    target: Any = node.target
    if node.op == "call_method":
        return getattr(torch.Tensor, target)  # type: ignore[no-any-return]
    if node.op == "call_function":
        listed = getattr(target, "__module__", None) in _MODULES or target in _LISTED
        if isinstance(target, OpOverload | OpOverloadPacket) or listed:
            return target  # type: ignore[no-any-return]
    raise Unusual(f"{node.op} {target}")


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)


class OperatorTracer(DispatchMode):
    """Writes down the operators that are called on fake tensors.

    An operator in place becomes the one that makes a new tensor. Each tensor is known with the
    number of writes that its memory had seen; it cannot be used after another one unless it is what
    was written. `source`: the node that is run; `tag`: which of the partitioner's tags nodes get;
    `is_forward_over`: inputs cannot be written any more.
    """

    def __init__(self, decompositions: Decompositions) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph()
        self.source: Any = None
        self.tag = ""
        self.is_forward_over = False
        self._decompositions = decompositions
        self._decomposing: OpOverload | None = None  # the outermost
        self._known: dict[int, tuple[torch.Tensor, Node, int]] = {}
        self._writes: dict[int, int] = {}
        self._inputs: list[_Input] = []
        self._of_inputs: dict[int, _Input] = {}  # by their memory

    def placeholder(self, name: str, example: torch.Tensor) -> torch.Tensor:
        """An input: a leaf, whatever happens to it."""
        value = example.detach().requires_grad_(example.requires_grad)
        node = self.graph.placeholder(name)
        one = _Input(value, node, value.requires_grad)
        self._inputs.append(one)
        self._of_inputs[_memory(value)] = one
        self._note(value, node)
        node.meta["val"] = value
        return value

    def _note(self, value: torch.Tensor, node: Node) -> None:
        if value.is_complex():
            raise Unusual("complex numbers, whose conjugation may be put off")
        self._known[id(value)] = value, node, self._writes.setdefault(_memory(value), 0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload) or func.namespace not in _NAMESPACES:
            raise Unusual(f"{func}")
        if func is torch.ops.prim.device.default:
            return func(*args)
        if func is torch.ops.aten.detach.default:
            return self._alias(func(*args), args[0])
        if func._schema.is_mutable:
            return self._written(func, args, kwargs)
        made = self._decomposed(func, args, kwargs)
        return self._recorded(func, args, kwargs) if made is NotImplemented else made

    def _alias(self, value: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        """`value`, for which the node of the other tensor stands."""
        self._note(value, self._node(of))
        return value

    def _decomposed(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        rule, before = self._decompositions.get(func), self._decomposing
        self._decomposing = before or func
        try:
            with self:
                made = NotImplemented if rule is None else rule(*args, **kwargs)
                return func.decompose(*args, **kwargs) if made is NotImplemented else made
        finally:
            self._decomposing = before

    def _recorded(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        if not func._schema.returns:
            raise Unusual(f"{func}, called for more than its result")
        value = func(*args, **kwargs)
        given = self._nodes(args), self._nodes(kwargs)
        node = self.graph.create_node("call_function", func, *given, name=func._opname)
        self._describe(node, value)
        if isinstance(value, torch.Tensor):
            self._note(value, node)
        elif isinstance(value, list | tuple):
            self._note_parts(value, node)
        elif value is not None:
            raise Unusual(f"{func} gives a {type(value).__name__}")
        return value

    def _note_parts(self, values: Sequence[Any], node: Node) -> None:
        for place, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                part = self.graph.call_function(operator.getitem, (node, place))
                self._describe(part, value)
                self._note(value, part)
            elif not isinstance(value, int | None):  # numbers hang on sizes alone, which are known
                raise Unusual(f"{node.target} gives a {type(value).__name__}")

    def _describe(self, node: Node, value: Any) -> None:
        node.meta["val"] = value
        kept = _KEPT_OF_FORWARD if self.tag == FORWARD else _KEPT_META
        node.meta.update({key: self.source.meta[key] for key in kept if key in self.source.meta})
        if self._decomposing is not None:
            node.meta["original_aten"] = self._decomposing
        if self.tag:
            node.meta["partitioner_tag"] = self.tag

    def _nodes(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._node(value)
        if isinstance(value, list | tuple):
            return type(value)(map(self._nodes, value))
        if isinstance(value, dict):
            return {key: self._nodes(each) for key, each in value.items()}
        if isinstance(value, torch.Generator):
            raise Unusual("a generator")
        return value

    def _node(self, value: torch.Tensor) -> Node:
        known = self._known.get(id(value))
        if known is None:
            raise Unusual("a tensor that is no operator's result")
        if known[2] != self._writes[_memory(value)]:
            raise Unusual("memory that was written through another tensor")
        return known[1]

    def _written(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """An operator in place, by the one that gives new tensors, for tensors that have all of
        their memory."""
        functional, schema = _functional(func), func._schema
        if func is _NORM and not args[5]:  # with the statistics that it is given
            with self:
                return functional(*args, **kwargs)[: len(schema.returns)]
        places = [k for k, each in enumerate(schema.arguments) if _is_write(each)]
        targets = [*tensors_in([args[place] for place in places])]
        self._check_targets(func, targets)
        with self:
            made = functional(*args, **kwargs)
            given = made if len(functional._schema.returns) > 1 else [made]
            count = len(given) - len(places)
            new = [self._fitting(*pair) for pair in _pairs(targets, tensors_in(given[count:]))]
        for target, node in _pairs(targets, new):
            self._writes[_memory(target)] += 1
            self._note(target, node)
        if count:
            return tuple(given[:count])
        return args[0] if schema.returns else None

    def _check_targets(self, func: OpOverload, targets: Sequence[torch.Tensor]) -> None:
        memories = {*map(_memory, targets)}
        if len(memories) < len(targets) or not all(map(_fills, targets)):
            raise Unusual(f"{func} on a part of a tensor")
        for target in targets:
            self._node(target)
            known = self._of_inputs.get(_memory(target))
            if known is not None and known.value is not target:
                raise Unusual("an input is written through another tensor")
            if known is not None and self.is_forward_over:
                raise Unusual("an input is written by a backward")
            if known is not None:
                known.writer = self.source

    def _fitting(self, target: torch.Tensor, made: torch.Tensor) -> Node:
        """The new value in the dtype of what is written."""
        made = made if made.dtype == target.dtype else made.to(target.dtype)
        if _layout(made) != _layout(target):
            raise Unusual("a new value that is laid out otherwise")
        return self._node(made)

    def finish(self, results: Sequence[Any], copies_tag: str = "") -> tuple[int, ...]:
        """The copies to inputs, whose positions are returned, and the output, which may have None
        in it. Raises Unusual for inputs that got a history."""
        if any(map(_is_changed, self._inputs)):
            raise Unusual("gradients")
        written = tuple(k for k, each in enumerate(self._inputs) if each.writer is not None)
        self.tag = copies_tag
        for one in (self._inputs[k] for k in written):
            self.source = one.writer
            given = one.node, self._node(one.value)
            self._describe(self.graph.call_function(_aten.copy_.default, given, {}), one.value)
        self.graph.output(tuple(map(self._nodes, results)))
        return written

    def owns(self, results: Sequence[torch.Tensor]) -> bool:
        """Whether each has memory of its own."""
        memories = {*map(_memory, results)}
        return len(memories) == len(results) and not self._of_inputs.keys() & memories


@dataclasses.dataclass
class _Input:
    """`writer`: the node that wrote it last."""

    value: torch.Tensor
    node: Node
    requires_grad: bool
    writer: Node | None = None


def _is_changed(one: _Input) -> bool:
    return one.value.requires_grad != one.requires_grad or not one.value.is_leaf


def _pairs(targets: Sequence[torch.Tensor], made: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(targets, made, strict=True)


def _memory(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _fills(value: torch.Tensor) -> bool:
    """Whether it has all of its memory."""
    size = value.numel() * value.element_size()
    return value.storage_offset() == 0 and value.untyped_storage().nbytes() == size


def _layout(value: torch.Tensor) -> tuple[Any, ...]:
    return value.dtype, value.device, value.shape, value.stride()


def _is_write(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _functional(func: OpOverload) -> OpOverload:
    """The operator that makes new tensors of what `func` writes: its first argument, or what is
    listed."""
    if func in _FUNCTIONAL:
        return _FUNCTIONAL[func]
    first, *others = func._schema.arguments
    name, overload = func._opname, func._overloadname
    made = getattr(getattr(_aten, name[:-1], None), overload, None)
    if not (name.endswith("_") and func.namespace == "aten" and isinstance(made, OpOverload)):
        raise Unusual(f"{func} writes")
    if torch.Tag.inplace_view in func.tags:
        raise Unusual(f"{func} changes what a tensor looks like")
    same = [each.name for each in made._schema.arguments] == [first.name, *(o.name for o in others)]
    if not _is_write(first) or any(each.alias_info for each in others) or not same:
        raise Unusual(f"{func} writes")
    return made
