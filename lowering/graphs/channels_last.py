"""Convolution nets of a torch-level graph in the layout that the library's kernels work in.

With images in the usual layout (all of one channel, then the next) every convolution is surrounded
by two changes of layout. Here the input of each convolution (on GPUs its weight too) is asked for
in channels-last order; what lies in between follows its inputs, and what the graph returns has the
strides that it had.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Interpreter, Node

from ...runtime.report import log
from .constant_masks import DRAWS

_FEWEST = 2  # convolutions
_CHANNELS = 16  # of which some convolution has as many
_STRIDES = frozenset(("as_strided", "stride", "set_", "is_contiguous", "storage_offset", "view_as"))


def prefer_channels_last(gm: GraphModule, examples: Sequence[Any]) -> GraphModule:
    """The graph with its convolutions in channels-last order; itself where that does not apply:
    with sizes that only a call knows, or if something in it depends on strides."""
    if not _applies(gm, examples):
        return gm
    on_gpu = any(e.device.type == "cuda" for e in examples)
    # the CPU's library puts weights into an order of its own at every call, whatever theirs is
    places = ("input", "weight") if on_gpu else ("input",)
    changed = GraphModule(gm, _rewritten(gm.graph, places))
    try:
        before, after = _run(gm, examples), _run(changed, examples)
        if not _draws_alike(changed, before.drawn_from, after.drawn_from):
            return gm
        after = _run(changed, examples)
    except Exception as error:  # a view that the other layout does not allow
        log.debug("channels-last order does not fit: %s", error)
        return gm
    return changed if _restore(changed, before.results, after.results) else gm


def _applies(gm: GraphModule, examples: Sequence[Any]) -> bool:
    tensors = [e for e in examples if isinstance(e, torch.Tensor)]
    static = all(isinstance(size, int) for t in tensors for size in (*t.shape, *t.stride()))
    if len(tensors) != len(examples) or not static:
        return False
    shapes = dict(zip((n for n in gm.graph.nodes if n.op == "placeholder"), tensors, strict=True))
    weights = [shapes.get(_weight(node)) for node in gm.graph.nodes if _is_convolution(node)]
    known = [w for w in weights if w is not None and w.dim() == 4]
    wide = any(w.shape[1] >= _CHANNELS for w in known)
    return len(known) >= _FEWEST and wide and not any(map(_minds_strides, gm.graph.nodes))


def _is_convolution(node: Node) -> bool:
    return node.op == "call_function" and node.target is torch.conv2d


def _weight(node: Node) -> Any:
    return node.args[1] if len(node.args) > 1 else node.kwargs.get("weight")


def _minds_strides(node: Node) -> bool:
    """Whether the node's result may hang on strides, or it is no function of torch's."""
    if node.op not in ("call_function", "call_method"):
        return node.op == "call_module"
    name = str(getattr(node.target, "__name__", node.target))
    home = str(getattr(node.target, "__module__", None) or "torch")
    return name in _STRIDES or not home.startswith(("torch", "_operator", "operator"))


def _rewritten(graph: Graph, places: Sequence[str]) -> Graph:
    graph = copy.deepcopy(graph)
    for node in list(graph.nodes):
        if _is_convolution(node):
            with graph.inserting_before(node):
                for place in places:
                    _in_order(graph, node, place)
    return graph


def _in_order(graph: Graph, node: Node, place: str) -> None:
    """One argument of a convolution, in channels-last order."""
    number = ("input", "weight").index(place)
    given: Any = node.args[number] if number < len(node.args) else node.kwargs[place]
    asked: dict[str, Any] = {"memory_format": torch.channels_last}
    made = graph.call_method("contiguous", (given,), asked)
    made.meta.update(given.meta)
    if number < len(node.args):
        node.update_arg(number, made)
    else:
        node.update_kwarg(place, made)


class _Run(Interpreter):
    """A run on fake tensors. `results`: what the graph returns; `drawn_from`: by node, the tensor
    in whose order random numbers are drawn."""

    def __init__(self, gm: GraphModule) -> None:
        super().__init__(gm)
        self.results: list[Any] = []
        self.drawn_from: dict[str, torch.Tensor] = {}

    def run_node(self, n: Node) -> Any:
        given = n.args[0] if n.args and _draws(n) else None
        if isinstance(given, Node) and isinstance(self.env[given], torch.Tensor):
            self.drawn_from[n.name] = self.env[given]
        return super().run_node(n)


def _run(gm: GraphModule, examples: Sequence[Any]) -> _Run:
    with FakeTensorMode(), torch.no_grad():
        fakes = [
            torch.empty_strided(e.shape, e.stride(), dtype=e.dtype, device=e.device)
            for e in examples
        ]
        run = _Run(gm)
        made = run.run(*fakes)
    run.results = list(made) if isinstance(made, list | tuple) else [made]
    return run


def _draws(node: Node) -> bool:
    name = str(getattr(node.target, "__name__", node.target))
    return "draws" in node.meta or any(part in name for part in DRAWS)


def _draws_alike(
    gm: GraphModule, before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]
) -> bool:
    """Have random numbers drawn in the order that they were drawn in; False where that cannot
    be."""
    for node in list(gm.graph.nodes):
        if node.name not in after or before[node.name].stride() == after[node.name].stride():
            continue
        name = str(getattr(node.target, "__name__", node.target))
        if name.endswith("_") or not before[node.name].is_contiguous():
            return False
        with gm.graph.inserting_before(node):
            node.update_arg(0, gm.graph.call_method("contiguous", (node.args[0],)))
    gm.recompile()
    return True


def _restore(gm: GraphModule, before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Give each output the strides that it had; False where that is no contiguous order."""
    output = next(node for node in reversed(gm.graph.nodes) if node.op == "output")
    given: Any = output.args[0]
    results = list(given) if isinstance(given, list | tuple) else [given]
    for k, (old, new) in enumerate(zip(before, after, strict=True)):
        if not isinstance(old, torch.Tensor) or old.stride() == new.stride():
            continue
        if not old.is_contiguous() or new.is_contiguous():  # strides of axes of one element
            return False
        with gm.graph.inserting_before(output):
            results[k] = gm.graph.call_method("contiguous", (results[k],))
    output.args = (type(given)(results) if isinstance(given, list | tuple) else results[0],)
    gm.recompile()
    return True
