"""Attention masks that hang on constants and sizes alone, in a torch-level graph: evaluated once,
or proved where only a call knows the sizes (`size_masks.py`), and dropped where they change
nothing, so that attention can take the library's kernel for no mask or for a causal one. With a
mask it takes a slower kernel, or products in float32.

Under compilation models make such masks on purpose (of `arange` and `ones`): whether a mask is all
true is a question that they may not ask of data.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._python_dispatch import _disable_current_modes

from ...runtime.diagnostics import log
from .backward_slice import needed
from .graph_modules import graph_module
from .size_masks import is_size, open_or_causal

_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_MAX_MASK_BYTES = 1 << 28  # bytes of a mask that is evaluated
_FACTORIES = frozenset(
    (torch.ones, torch.zeros, torch.full, torch.arange, torch.tensor, torch.empty, torch.eye)
)
DRAWS = ("rand", "dropout", "bernoulli", "normal", "multinomial")
_IN_PLACE = frozenset(
    "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift setitem".split()
)


def drop_constant_masks(gm: GraphModule, examples: Sequence[Any] = ()) -> GraphModule:
    """The graph with attention over constant masks rewritten; itself where there is none."""
    if not any(_is_attention(node) and _of_sizes(node) for node in gm.graph.nodes):
        return gm
    gm = graph_module(gm, copy.deepcopy(gm.graph))
    constant, kinds = _constants(gm), dict[Node, str | None]()
    for node in gm.graph.nodes:
        if _is_attention(node) and _of_sizes(node):
            mask = _mask_of(node)
            if mask not in kinds and mask in constant:
                value = _evaluated(gm, mask)
                kinds[mask] = None if value is None else kind_of_mask(value)
            elif mask not in kinds:
                kinds[mask] = _proved(gm, examples, mask)
            _simplify(node, kinds[mask])
    gm.recompile()
    return gm


def _of_sizes(node: Node) -> bool:
    """Whether the call's mask is made of constants and sizes."""
    mask = _mask_of(node)
    return isinstance(mask, Node) and not any(n.op == "placeholder" for n in _parts(mask))


def _parts(mask: Node) -> set[Node]:
    return needed([mask], lambda node: () if is_size(node) else node.all_input_nodes)


def _proved(gm: GraphModule, examples: Sequence[Any], mask: Node) -> str | None:
    written = [place for node in gm.graph.nodes for place in _written(node)]
    if not needed(written).isdisjoint(_parts(mask)):
        return None
    return open_or_causal(gm, examples, mask)


def _is_attention(node: Node) -> bool:
    return node.op == "call_function" and node.target is F.scaled_dot_product_attention


def _mask_of(node: Node) -> Any:
    return node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")


def _constants(gm: GraphModule) -> frozenset[Node]:
    """Nodes that need no input, draw nothing, and that nothing in the graph writes to."""
    found: set[Node] = set()
    for node in gm.graph.nodes:
        if node.op in ("call_function", "call_method") and not _is_impure(node):
            made_here = bool(node.all_input_nodes) or node.target in _FACTORIES
            if made_here and all(source in found for source in node.all_input_nodes):
                found.add(node)
    written = {n for node in gm.graph.nodes if _is_impure(node) for n in node.all_input_nodes}
    return frozenset(found) if not written & found else frozenset()


def _is_impure(node: Node) -> bool:
    """Whether the node may write to an argument or draw random numbers; by its name, as torch names
    such functions."""
    if node.op not in ("call_function", "call_method"):
        return False
    name = str(getattr(node.target, "__name__", node.target))
    return any(part in name for part in DRAWS) or _writes(node)


def _writes(node: Node) -> bool:
    name = str(getattr(node.target, "__name__", node.target))
    in_place = name.endswith("_") and not name.endswith("__")
    asked = "out" in node.kwargs or bool(node.kwargs.get("inplace"))
    return in_place or name.strip("_") in _IN_PLACE or asked


def _written(node: Node) -> list[Node]:
    """What the node may write to, or to what lies under it."""
    if node.op not in ("call_function", "call_method") or not _writes(node):
        return []
    return [each for each in (*node.args[:1], node.kwargs.get("out")) if isinstance(each, Node)]


def kind_of_mask(mask: torch.Tensor) -> str | None:
    """Whether attention does without the mask: "open" where it hides nothing, "causal" where
    `is_causal` says the same; None for any other. Waits for the device."""
    return "open" if _is_open(mask) else "causal" if _is_causal(mask) else None


def _simplify(node: Node, kind: str | None) -> None:
    """Rewrite one call if its mask changes nothing, or is causal."""
    given = dict(zip(_PARAMETERS, node.args, strict=False)) | node.kwargs
    if kind is None or given.get("is_causal"):
        return
    given["attn_mask"], given["is_causal"] = None, kind == "causal"
    node.args, node.kwargs = tuple(given.pop(name) for name in _PARAMETERS[:3]), given
    log.debug("attention without its constant mask: %s", node.meta.get("origin", node.name))


def _evaluated(gm: GraphModule, mask: Node) -> torch.Tensor | None:
    """The mask's value, computed by the graph's own nodes."""
    wanted = needed([mask])
    values: dict[Node, Any] = {}
    interpreter = Interpreter(gm)
    with _disable_current_modes(), torch.no_grad():
        for node in gm.graph.nodes:
            if node in wanted:
                interpreter.env = values
                values[node] = interpreter.run_node(node)
    made = values[mask]
    usable = isinstance(made, torch.Tensor) and made.numel() * made.itemsize <= _MAX_MASK_BYTES
    return made if usable and not made.requires_grad else None


def _is_open(mask: torch.Tensor) -> bool:
    return bool(mask.all()) if mask.dtype == torch.bool else bool((mask == 0).all())


def _is_causal(mask: torch.Tensor) -> bool:
    """Whether row i sees the columns up to i alone, as `is_causal` has it (upper left), of a
    square: the library's kernels differ in how they align others."""
    if mask.dim() < 2 or mask.shape[-1] != mask.shape[-2]:
        return False
    size = mask.shape[-1]
    below = torch.ones(size, size, dtype=torch.bool, device=mask.device).tril()
    if mask.dtype == torch.bool:
        return bool((mask == below).all())
    lowest = -math.inf if math.isinf(float(mask.min())) else torch.finfo(mask.dtype).min
    return bool(torch.where(below, mask == 0, mask == lowest).all())
