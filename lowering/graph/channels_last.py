"""Convolution nets of a torch-level graph in the layout that the library's kernels work in.

With images in the usual layout (all of one channel, then the next) every convolution is surrounded
by two changes of layout. Here the input of each convolution (on GPUs its weight too) is asked for
in channels-last order; what lies in between follows its inputs, and so do the gradients that are
taken inside the graph. What the graph returns has the strides that it had.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node

from ...runtime.diagnostics import log
from ..autograd.differentiation import differentiates
from ..fake_tensor_mode import PacedFakeMode
from .constant_masks import DRAWS
from .graph_modules import graph_module
from .result_strides import NOTED

_CHANNELS = 16  # of which some convolution has as many
_TRANSPOSED = torch.conv_transpose2d, torch.conv_transpose3d
_ORDERS = {4: torch.channels_last, 5: torch.channels_last_3d}
_STRIDES = frozenset(("as_strided", "stride", "set_", "is_contiguous", "storage_offset", "view_as"))
_OURS = f"{__name__.partition('.lowering.')[0]}.lowering."
# By device, the convolutions that gain, and what of them is put into order. The CPU's library puts
# weights into an order of its own at every call, whatever theirs is.
CONVOLUTIONS: dict[str, dict[Any, Sequence[str]]] = {
    "cpu": {torch.conv2d: ("input",)},
    "cuda": dict.fromkeys(
        (torch.conv2d, torch.conv3d, *_TRANSPOSED),
        ("input", "weight"),
    ),
}


def prefer_channels_last(gm: GraphModule, examples: Sequence[Any]) -> GraphModule:
    """The graph with its convolutions in channels-last order; itself where that does not apply:
    with sizes that only a call knows, or if something in it depends on strides."""
    devices = {e.device.type for e in examples if isinstance(e, torch.Tensor)}
    device = "cuda" if "cuda" in devices else "cpu"
    applies = _applies(gm, examples, device)
    return in_channels_last(gm, examples, CONVOLUTIONS[device]) if applies else gm


def in_channels_last(
    gm: GraphModule, examples: Sequence[torch.Tensor], kinds: Mapping[Any, Sequence[str]]
) -> GraphModule:
    """The graph with these arguments of these convolutions in channels-last order; itself where
    values or strides of what it returns or writes would not be the same."""
    try:
        before = _run(gm, examples)
        changed = graph_module(gm, _rewritten(gm.graph, kinds, before.as_noted()))
        after = _run(changed, examples)
        count = len(changed.graph.nodes)
        if not _draws_alike(changed, before.drawn_from, after.drawn_from):
            return gm
        if len(changed.graph.nodes) > count:
            after = _run(changed, examples)
    except Exception as error:  # a view of another type, say, that the other layout does not allow
        log.debug("channels-last order does not fit: %s", error)
        return gm
    changed_aliases = (before.aliases ^ after.aliases) & before.versions.keys()
    if not changed_aliases.isdisjoint(before.written() | after.written()):
        return gm  # what was written through a view would be written in a copy
    return changed if _restore(changed, before, after) else gm


def _applies(gm: GraphModule, examples: Sequence[Any], device: str) -> bool:
    tensors = [e for e in examples if isinstance(e, torch.Tensor)]
    static = all(isinstance(size, int) for t in tensors for size in (*t.shape, *t.stride()))
    if len(tensors) != len(examples) or not static:
        return False
    shapes = dict(zip((n for n in gm.graph.nodes if n.op == "placeholder"), tensors, strict=True))
    made = [node for node in gm.graph.nodes if node.target in CONVOLUTIONS[device]]
    found = [(node, shapes.get(_weight(node))) for node in made]
    known = [(node, w) for node, w in found if w is not None and w.dim() in _ORDERS]
    return _GAINS[device](known) and not any(map(_minds_strides, gm.graph.nodes))


def _gains(made: Sequence[tuple[Node, torch.Tensor]]) -> bool:
    return len(made) > 1 and any(weight.shape[1] >= _CHANNELS for _, weight in made)


def _gains_on_tensor_cores(made: Sequence[tuple[Node, torch.Tensor]]) -> bool:
    """Whether a loop reads a result that is made on tensor cores in either order. With fewer
    channels the library computes float32 as it is in the usual order, and rounds it to TF32 in the
    other, which eager does not."""
    return any(
        _on_tensor_cores(weight)
        and weight.shape[0 if node.target in _TRANSPOSED else 1] >= _CHANNELS
        and not _is_returned(node)
        for node, weight in made
    )


_GAINS = {"cpu": _gains, "cuda": _gains_on_tensor_cores}


def _is_returned(node: Node) -> bool:
    """Whether nothing but the graph's caller reads a result, which then takes another copy. A bias
    is added by a loop of its own."""
    bias = node.args[2] if len(node.args) > 2 else node.kwargs.get("bias")
    return bias is None and all(user.op == "output" for user in node.users)


def _on_tensor_cores(weight: torch.Tensor) -> bool:
    """Whether the library computes with it there, if it is not of a convolution of each channel by
    itself."""
    half = weight.dtype in (torch.float16, torch.bfloat16)
    precision: Any = getattr(torch.backends.cudnn, "conv")  # noqa: B009, stubs do not name it
    rounds = weight.dtype is torch.float32 and precision.fp32_precision == "tf32"
    return (half or rounds) and weight.shape[1] > 1


def _weight(node: Node) -> Any:
    return node.args[1] if len(node.args) > 1 else node.kwargs.get("weight")


def _minds_strides(node: Node) -> bool:
    """Whether the node's result may hang on strides, or what it calls is not known: it is neither
    torch's nor one of the functions by which this package writes down what torch's operators
    do."""
    if node.op not in ("call_function", "call_method"):
        return node.op == "call_module"
    name = str(getattr(node.target, "__name__", node.target))
    home = str(getattr(node.target, "__module__", None) or "torch")
    ours = isinstance(node.target, types.FunctionType) and home.startswith(_OURS)
    known = ours or home.startswith(("torch", "_operator", "operator"))
    return name in _STRIDES or not known


def _rewritten(graph: Graph, kinds: Mapping[Any, Sequence[str]], as_noted: set[str]) -> Graph:
    """The graph with these arguments in order. The strides that are noted of the named nodes are
    not asked for any more: what leaves the graph is put in its order at the end."""
    graph = copy.deepcopy(graph)
    for node in list(graph.nodes):
        if node.name in as_noted:
            del node.meta[NOTED]
        if node.target in kinds:
            with graph.inserting_before(node):
                for place in kinds[node.target]:
                    _in_order(graph, node, place)
        elif _is_view(node):  # which the other order may not allow
            node.target = "reshape"
    return graph


def _is_view(node: Node) -> bool:
    """Of another shape, not of another type."""
    of_type = any(isinstance(each, torch.dtype) for each in node.args)
    named = node.op == "call_method" and node.target == "view"
    return named and not node.kwargs and not of_type


def _in_order(graph: Graph, node: Node, place: str) -> None:
    """One argument of a convolution, in channels-last order."""
    number = ("input", "weight").index(place)
    given: Any = node.args[number] if number < len(node.args) else node.kwargs[place]
    if place == "input":
        made = graph.call_function(image_in_order, (given,))
        _describe(made, given)
    else:
        made = graph.call_function(in_order, (given,))
        _describe(made, given)
    if number < len(node.args):
        node.update_arg(number, made)
    else:
        node.update_kwarg(place, made)


def image_in_order(image: torch.Tensor) -> torch.Tensor:
    """The image in channels-last order; one of a single channel, which is in both orders, with the
    strides by which the library takes it for that one. Runs while the graph is traced."""
    if image.dim() == 4 and image.shape[1] == 1:
        count, _, height, width = image.shape
        return image.reshape(count, height, width, 1).permute(0, 3, 1, 2)
    return in_order(image)


def in_order(tensor: torch.Tensor) -> torch.Tensor:
    """An image or a weight of convolutions in channels-last order."""
    order = _ORDERS.get(tensor.dim())
    return tensor if order is None else tensor.contiguous(memory_format=order)


def _contiguous(graph: Graph, given: Any, **order: Any) -> Node:
    made = graph.call_method("contiguous", (given,), order)
    _describe(made, given)
    return made


def _describe(made: Node, given: Node) -> None:
    made.meta.update((key, fact) for key, fact in given.meta.items() if key != "draws")


class _Run(Interpreter):
    """A run on fake tensors. `results`: what the graph returns; `drawn_from`: by node, the tensor
    in whose order random numbers are drawn; `versions`: of each node's tensor, as it was made;
    `aliases`: nodes whose tensor lies in memory of what it was made of."""

    def __init__(self, gm: GraphModule) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self.results: list[Any] = []
        self.drawn_from: dict[str, torch.Tensor] = {}
        self.versions: dict[str, tuple[torch.Tensor, int]] = {}
        self.aliases: set[str] = set()

    def run_node(self, n: Node) -> Any:
        given = n.args[0] if n.args and _draws(n) else None
        if isinstance(given, Node) and isinstance(self.env[given], torch.Tensor):
            self.drawn_from[n.name] = self.env[given]
        made = super().run_node(n)
        if isinstance(made, torch.Tensor) and n.op != "output":
            self.versions[n.name] = made, made._version
            if any(_memory(self.env[each]) == _memory(made) for each in n.all_input_nodes):
                self.aliases.add(n.name)
        return made

    def written(self) -> set[str]:
        """The aliases that were written, or whose origin was, after they were made."""
        facts = ((name, *self.versions[name]) for name in self.aliases)
        return {name for name, made, version in facts if made._version != version}

    def as_noted(self) -> set[str]:
        """The nodes whose results have the strides and the dtype that are noted of them."""
        noted = ((n.name, self.env[n], n.meta[NOTED]) for n in self.graph.nodes if NOTED in n.meta)
        return {name for name, made, (strides, dtype) in noted if _lies(made, strides, dtype)}

    def memories(self) -> list[Any]:
        """Of each result and each input, whose memory it lies in."""
        given = (self.env[n] for n in self.graph.nodes if n.op == "placeholder")
        return [*map(_memory, self.results), *map(_memory, given)]


def _lies(made: Any, strides: Sequence[int], dtype: torch.dtype) -> bool:
    is_tensor = isinstance(made, torch.Tensor)
    return is_tensor and made.stride() == tuple(strides) and made.dtype is dtype


def _memory(value: Any) -> Any:
    """Whose memory a tensor lies in; what is no tensor has none but its own."""
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else object()


def _run(gm: GraphModule, examples: Sequence[Any]) -> _Run:
    # what is differentiated inside needs the histories that the call's tensors have
    enabled = torch.is_grad_enabled() and differentiates(gm)
    with PacedFakeMode(), torch.inference_mode(False), torch.set_grad_enabled(enabled):
        fakes = [
            torch.empty_strided(e.shape, e.stride(), dtype=e.dtype, device=e.device)
            for e in examples
        ]
        if enabled:
            for fake, example in zip(fakes, examples, strict=True):
                fake.requires_grad_(example.requires_grad)
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
            node.update_arg(0, _contiguous(gm.graph, node.args[0]))
    gm.recompile()
    return True


def _restore(gm: GraphModule, before: _Run, after: _Run) -> bool:
    """Give each output the strides that it had; False where that is no contiguous order, or where
    outputs would share memory that did not, or no longer do."""
    output = next(node for node in reversed(gm.graph.nodes) if node.op == "output")
    given: Any = output.args[0]
    results = list(given) if isinstance(given, list | tuple) else [given]
    copies, memories = dict[Node, Node](), after.memories()
    for k, (old, new) in enumerate(zip(before.results, after.results, strict=True)):
        if not isinstance(old, torch.Tensor) or old.stride() == new.stride():
            continue
        if not old.is_contiguous() or new.is_contiguous():  # strides of axes of one element
            return False
        result = results[k]
        if result not in copies:
            with gm.graph.inserting_before(output):
                copies[result] = _contiguous(gm.graph, result)
        results[k] = memories[k] = copies[result]
    output.args = (type(given)(results) if isinstance(given, list | tuple) else results[0],)
    gm.recompile()
    return _groups(before.memories()) == _groups(memories)


def _groups(memories: Sequence[Any]) -> list[int]:
    """For each place, the first one of the same memory."""
    first: dict[Any, int] = {}
    return [first.setdefault(each, place) for place, each in enumerate(memories)]
