"""Graphs of core operators of what needs nothing of AOTAutograd: inference that writes no input and
returns no input's memory.

AOTAutograd runs a graph twice, to learn what is written and what shares memory, and to trace it;
here one run on fake tensors does both. Whatever is unusual is left to AOTAutograd.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses import FakeTensor
from torch.fx import Graph, GraphModule, Node

from ...runtime.report import log
from .channels_last import image_in_order
from .fakes import DispatchMode, PacedFakeMode
from .result_strides import all_as_recorded

Decompositions = Mapping[Any, Callable[..., Any]]

# Where functions are that only compute, of tensors alone.
_MODULES = frozenset(
    (
        *("torch", "torch.functional", "torch.nn.functional", "_operator"),
        *(f"torch._C.{part}" for part in ("_nn", "_fft", "_linalg", "_special")),
    )
)
_KEPT_META = ("stack_trace", "origin")
_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)
_NAMESPACES = ("aten", "prims", "prim")  # of operators that only do what their schema says
# Modes may be set to what they are; attributes are tensors (`x.mT`).
_LISTED = (all_as_recorded, image_in_order, torch._C._set_grad_enabled, getattr)


class _Unusual(Exception):
    """Something that AOTAutograd is asked to trace."""


def inference_graph(
    gm: GraphModule, example_inputs: Sequence[Any], decompositions: Decompositions
) -> GraphModule | None:
    """The graph of `gm`, whose output is a tuple, in operators of ATen: functional but for views,
    with nothing in it that no result needs.

    example_inputs: as the call's tensors, fake ones without symbolic sizes, or real ones. None
    where gradients may be asked for, an input is written, a result shares memory with an input or
    another result, random numbers are drawn, sizes depend on data, and for whatever else is not
    simple.
    """
    try:
        _check(gm, example_inputs)
        return _traced(gm, _fakes(example_inputs), decompositions)
    except Exception as reason:  # AOTAutograd raises it again, if it is a fault of the graph
        log.debug("a graph is left to AOTAutograd: %r", reason)
        return None


def _traced(
    gm: GraphModule, example_inputs: Sequence[FakeTensor], decompositions: Decompositions
) -> GraphModule:
    tracer = _Tracer(decompositions)
    inputs = [tracer.placeholder(k, each) for k, each in enumerate(example_inputs)]
    mode = example_inputs[0].fake_mode if example_inputs else PacedFakeMode()
    # which gives some operators of torch the decompositions that AOTAutograd uses
    with mode, enable_python_dispatcher(), tracer:
        results = _run(gm, inputs, tracer)
    tracer.finish(results)
    tracer.graph.eliminate_dead_code()
    return GraphModule(torch.nn.Module(), tracer.graph)


def _check(gm: GraphModule, example_inputs: Sequence[Any]) -> None:
    if not all(type(each) in _PLAIN for each in example_inputs):
        raise _Unusual("an input that is no plain tensor")
    if torch.is_grad_enabled() and any(each.requires_grad for each in example_inputs):
        raise _Unusual("gradients")
    if torch._C._is_any_autocast_enabled():
        raise _Unusual("autocast")
    if any("draws" in node.meta for node in gm.graph.nodes):
        raise _Unusual("random numbers")


def _fakes(example_inputs: Sequence[torch.Tensor]) -> list[FakeTensor]:
    """Fake tensors of one mode."""
    fakes = [each for each in example_inputs if isinstance(each, FakeTensor)]
    mode = fakes[0].fake_mode if fakes else PacedFakeMode()
    if mode.shape_env is not None or any(each.fake_mode is not mode for each in fakes):
        raise _Unusual("sizes that only a call knows")
    return [
        each if isinstance(each, FakeTensor) else mode.from_tensor(each) for each in example_inputs
    ]


def _run(gm: GraphModule, inputs: list[torch.Tensor], tracer: "_Tracer") -> Any:
    """Run the graph. Raises _Unusual for nodes that may do more than compute."""
    given, values, enabled = iter(inputs), dict[Node, Any](), torch.is_grad_enabled()
    for node in gm.graph.nodes:
        tracer.source = node
        if node.op == "placeholder":
            values[node] = next(given)
            continue
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "output":
            return args[0]
        values[node] = _function(node)(*args, **kwargs)
        if torch.is_grad_enabled() != enabled or torch._C._is_any_autocast_enabled():
            raise _Unusual("a mode that the graph changes")
        if any(each.requires_grad for each in _tensors(values[node])):
            raise _Unusual("gradients")
    raise _Unusual("no output")


def _function(node: Node) -> Callable[..., Any]:
    target: Any = node.target
    if node.op == "call_method":
        return getattr(torch.Tensor, target)  # type: ignore[no-any-return]
    if node.op == "call_function":
        listed = getattr(target, "__module__", None) in _MODULES or target in _LISTED
        if isinstance(target, OpOverload | OpOverloadPacket) or listed:
            return target  # type: ignore[no-any-return]
    raise _Unusual(f"{node.op} {target}")


def _draws(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether random numbers are drawn: attention draws for its dropout alone."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    given = {each.name: each.default_value for each in func._schema.arguments}
    given.update(zip(given, args, strict=False), **kwargs)
    return bool(given.get("dropout_p", True))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


class _Tracer(DispatchMode):
    """Writes down the operators that are called on fake tensors.

    An operator in place becomes the one that makes a new tensor. Each tensor is known with the
    number of writes that its memory had seen; it cannot be used after another one unless it is what
    was written. `source`: the node that is run.
    """

    def __init__(self, decompositions: Decompositions) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph()
        self.source: Any = None
        self._decompositions = decompositions
        self._known: dict[int, tuple[torch.Tensor, Node, int]] = {}
        self._writes: dict[int, int] = {}
        self._of_inputs: set[int] = set()

    def placeholder(self, number: int, example: torch.Tensor) -> torch.Tensor:
        """An input, without its history."""
        value = example.detach() if example.requires_grad else example
        node = self.graph.placeholder(f"arg{number}_1")
        self._of_inputs.add(_memory(value))
        self._note(value, node)
        node.meta["val"] = value
        return value

    def _note(self, value: torch.Tensor, node: Node) -> None:
        if value.is_complex():
            raise _Unusual("complex numbers, whose conjugation may be put off")
        self._known[id(value)] = value, node, self._writes.setdefault(_memory(value), 0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload) or func.namespace not in _NAMESPACES:
            raise _Unusual(f"{func}")
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
        rule = self._decompositions.get(func)
        with self:
            made = NotImplemented if rule is None else rule(*args, **kwargs)
            return func.decompose(*args, **kwargs) if made is NotImplemented else made

    def _recorded(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        if not func._schema.returns or _draws(func, args, kwargs):
            raise _Unusual(f"{func}, called for more than its result")
        value = func(*args, **kwargs)
        given = self._nodes(args), self._nodes(kwargs)
        node = self.graph.create_node("call_function", func, *given, name=func._opname)
        self._describe(node, value)
        if isinstance(value, torch.Tensor):
            self._note(value, node)
        elif isinstance(value, list | tuple):
            self._note_parts(value, node)
        elif value is not None:
            raise _Unusual(f"{func} gives a {type(value).__name__}")
        return value

    def _note_parts(self, values: Sequence[Any], node: Node) -> None:
        for place, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                part = self.graph.call_function(operator.getitem, (node, place))
                self._describe(part, value)
                self._note(value, part)
            elif value is not None:
                raise _Unusual(f"{node.target} gives a {type(value).__name__}")

    def _describe(self, node: Node, value: Any) -> None:
        node.meta["val"] = value
        node.meta.update({k: v for k, v in self.source.meta.items() if k in _KEPT_META})

    def _nodes(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._node(value)
        if isinstance(value, list | tuple):
            return type(value)(map(self._nodes, value))
        if isinstance(value, dict):
            return {key: self._nodes(each) for key, each in value.items()}
        if isinstance(value, torch.Generator):
            raise _Unusual("a generator")
        return value

    def _node(self, value: torch.Tensor) -> Node:
        known = self._known.get(id(value))
        if known is None:
            raise _Unusual("a tensor that is no operator's result")
        if known[2] != self._writes[_memory(value)]:
            raise _Unusual("memory that was written through another tensor")
        return known[1]

    def _written(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """An operator in place, by the one that gives a new tensor, for a tensor that has all of
        its memory."""
        target, memory = args[0], _memory(args[0])
        self._node(target)
        if memory in self._of_inputs:
            raise _Unusual("an input is written")
        with self:
            made = _functional(func)(*args, **kwargs)
        if not _fills(target) or _layout(made) != _layout(target):
            raise _Unusual(f"{func} on a part of a tensor")
        self._writes[memory] += 1
        self._note(target, self._node(made))
        return target

    def finish(self, results: Any) -> None:
        """The output. Raises _Unusual for results that share memory."""
        if not isinstance(results, list | tuple) or not all(
            isinstance(each, torch.Tensor) for each in results
        ):
            raise _Unusual("results that are no tensors")
        memories = [_memory(each) for each in results]
        if len({*memories}) < len(memories) or self._of_inputs & {*memories}:
            raise _Unusual("results that share memory")
        self.graph.output(tuple(map(self._node, results)))


def _memory(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _fills(value: torch.Tensor) -> bool:
    """Whether it has all of its memory."""
    size = value.numel() * value.element_size()
    return value.storage_offset() == 0 and value.untyped_storage().nbytes() == size


def _layout(value: torch.Tensor) -> tuple[Any, ...]:
    return value.dtype, value.device, value.shape, value.stride()


def _functional(func: OpOverload) -> OpOverload:
    """The operator that makes a new tensor of what `func` writes into its first argument."""
    first, *others = func._schema.arguments
    name, overload = func._opname, func._overloadname
    made = getattr(getattr(torch.ops.aten, name[:-1], None), overload, None)
    if not (name.endswith("_") and func.namespace == "aten" and isinstance(made, OpOverload)):
        raise _Unusual(f"{func} writes")
    if torch.Tag.inplace_view in func.tags:
        raise _Unusual(f"{func} changes what a tensor looks like")
    written = first.alias_info is not None and first.alias_info.is_write
    same = [each.name for each in made._schema.arguments] == [first.name, *(o.name for o in others)]
    if not written or any(each.alias_info for each in others) or not same:
        raise _Unusual(f"{func} writes")
    return made
