"""A recorded graph, its inputs and what surrounds it as one key, taken before AOTAutograd: equal
for what compiles to the same program."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...runtime.cache import disk_cache
from ...runtime.cache.named_functions import Unnamed, text_of
from ...runtime.cache.surroundings import of_call, of_gpus, of_process
from ...runtime.options import Options
from .result_strides import NOTED

_PLAIN = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_OPTIONS = ("target", "fusion", "verify_ir", "cudagraphs", "max_autotune", "fallback_random")


def key_of(gm: GraphModule, inputs: Iterable[str], options: Options) -> str:
    """64 hexadecimal digits. `inputs`: the text of each. Raises Unnamed for what has no text that
    stands for it in every process, as functions of the user's."""
    settings = repr([getattr(options, name) for name in _OPTIONS])
    given, graph = "\n".join(inputs), "\n".join(_lines(gm))
    on_gpu = options.target == "triton" or "cuda" in given or "cuda" in graph
    gpus = of_gpus() if on_gpu else ""
    return disk_cache.key(of_process(), of_call(), gpus, settings, given, graph)


def origins_of(gm: GraphModule) -> list[str]:
    """The user's line of each node, '' where none is known."""
    return [
        node.meta.get("origin") or node.meta.get("stack_trace") or "" for node in gm.graph.nodes
    ]


def input_text(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    requires_grad: bool,
    offset: int = 0,
) -> str:
    """What a graph is compiled for: one plain tensor, a leaf."""
    return repr((tuple(size), tuple(stride), offset, dtype, device, requires_grad))


def example_text(value: Any) -> str:
    """The same of an example, a real tensor or a number. Raises Unnamed for any other, as of a
    symbolic size."""
    if type(value) in (int, bool, float):
        return number_text(value)
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or not value.is_leaf:
        raise Unnamed(f"an input of type {type(value).__name__}")
    if value.layout != torch.strided or value.is_conj() or value.is_neg() or value.is_quantized:
        raise Unnamed("an input that is no plain tensor")
    place = value.shape, value.stride(), value.dtype, value.device
    return input_text(*place, value.requires_grad, value.storage_offset())


def _lines(gm: GraphModule) -> Iterator[str]:
    if any(True for _ in gm.parameters()) or any(True for _ in gm.buffers()):
        raise Unnamed("a graph with tensors of its own")
    places = {node: place for place, node in enumerate(gm.graph.nodes)}
    regions: dict[object, int] = {}
    for node in gm.graph.nodes:
        if node.op not in ("placeholder", "call_function", "call_method", "output"):
            raise Unnamed(f"a node of kind {node.op}")
        target = text_of(node.target) if callable(node.target) else str(node.target)
        target = "" if node.op in ("placeholder", "output") else target
        arguments = f"{_text(node.args, places)} {_text(node.kwargs, places)}"
        noted = node.meta.get(NOTED, "")
        yield f"{node.op} {target} {arguments}{_region(node, regions)}{noted}"


def _region(node: Node, regions: dict[object, int]) -> str:
    """The checkpointed region of the node, by its place among the graph's, and what it asks of the
    partitioner."""
    if "recompute" not in node.meta:
        return ""
    number = regions.setdefault(node.meta.get("ac_graph_id"), len(regions))
    return f" {node.meta['recompute']} in {number}"


def _text(value: Any, places: dict[Node, int]) -> str:
    """Arguments as text that says their types."""
    if isinstance(value, Node):
        return f"%{places[value]}"
    if value is None or value is Ellipsis or isinstance(value, _PLAIN):
        return str(value)
    if type(value) in (bool, int, float, complex, str):
        return number_text(value)
    if isinstance(value, slice):
        return f"slice{_joined((value.start, value.stop, value.step), places)}"
    if isinstance(value, list | tuple | set | frozenset):
        ordered = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        return f"{_kind(value)}{_joined(ordered, places)}"
    if isinstance(value, dict):
        return f"{_kind(value)}{_joined([x for item in value.items() for x in item], places)}"
    if callable(value):
        return text_of(value)
    raise Unnamed(f"a constant of type {type(value).__name__}")


def _joined(values: Iterable[Any], places: dict[Node, int]) -> str:
    return f"({', '.join(_text(value, places) for value in values)})"


_KINDS = ("builtins", "torch", "torch.fx.immutable_collections", "torch.fx._immutable_collections")


def _kind(value: Any) -> str:
    cls = type(value)
    if cls.__module__ not in _KINDS:
        raise Unnamed(f"a constant of type {cls.__name__}")
    return cls.__name__


def number_text(value: Any) -> str:
    """A number or text, with its type, and floats to the last bit."""
    exact = value.hex() if type(value) is float else repr(value)
    return f"{type(value).__name__}:{exact}"
