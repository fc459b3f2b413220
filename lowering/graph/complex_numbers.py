"""Complex numbers, which no kernel computes.

Gradients of results that are lazy conjugates or negatives: a backward is traced for gradients with
the same bit, and given resolved ones, whatever the user's are. What functional graphs make of a
write into a slice of zeros (the gradient of half a spectrum, of a cut) takes the library three
copies, where padding takes one.
"""

from typing import Any

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten

LAZY = "lazy_conjugate"  # a note at an input that may have the bit, whatever its fake is
# What numbers alone decide, however they are stored.
_ARITHMETIC = frozenset(
    {
        *(getattr(aten, name).Tensor for name in ("add", "sub", "mul", "div")),
        *(aten.mm.default, aten.bmm.default, aten.sum.dim_IntList, aten.sum.default),
        *(aten._fft_c2c.default, aten._fft_c2r.default),
    }
)


def take_resolved(backward: GraphModule) -> None:
    """Rewrite the graph: of an input with a bit it makes the same numbers with the bit set."""
    places = [node for node in backward.graph.nodes if node.op == "placeholder"]
    for node in places:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        if value.is_conj():
            _with_bit(node, places[-1], aten.conj_physical.default, aten._conj.default)
        elif value.is_neg():
            _with_bit(node, places[-1], aten.neg.default, aten._neg_view.default)


def _with_bit(given: Node, last: Node, change: Any, lazily: Any) -> None:
    graph, value = given.graph, given.meta["val"]
    users = [user for user in given.users if not value.is_complex() or not _only_computes(user)]
    with graph.inserting_after(last):
        changed = graph.call_function(change, (given,))
    with graph.inserting_after(changed):
        made = graph.call_function(lazily, (changed,))
    plain = value.new_empty_strided(value.shape, value.stride())
    given.meta["val"], changed.meta["val"] = plain, change(plain)
    given.meta[LAZY] = True
    made.meta["val"] = lazily(changed.meta["val"])
    for user in users:
        user.replace_input_with(given, made)


def _only_computes(user: Node) -> bool:
    return user.op == "call_function" and user.target in _ARITHMETIC


def pad_complex(gm: GraphModule) -> GraphModule:
    """Changes the graph in place: `slice_scatter(full, copy(slice(full), x))` pads x."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.slice_scatter.default):
        padding = _padding(node)
        if padding is not None:
            with gm.graph.inserting_before(node):
                made = gm.graph.call_function(aten.constant_pad_nd.default, padding)
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made)
            gm.graph.erase_node(node)
    gm.graph.eliminate_dead_code()
    return gm


def _padding(node: Node) -> tuple[Any, ...] | None:
    """The arguments of the padding that gives the same."""
    given: list[Any] = [*node.args, *(0, 0, None, 1)[len(node.args) - 2 :]]
    base, part, dim, start, _, step = given
    value = node.meta["val"]
    if not value.is_complex() or node.kwargs or not value.is_contiguous() or step != 1:
        return None
    made, whole = _written(part), _filled(base)
    if made is None or whole is None or not all(isinstance(n, int) for n in (dim, start)):
        return None
    shape, before = value.shape, made.meta["val"].shape
    dim %= len(shape)
    after = shape[dim] - before[dim] - start
    known = all(isinstance(size, int) for size in (*shape, *before))
    rest = [size for k, size in enumerate(before) if k != dim]
    same = rest == [size for k, size in enumerate(shape) if k != dim]
    if not known or start < 0 or after < 0 or not same or made.meta["val"].dtype != value.dtype:
        return None
    behind = len(shape) - 1 - dim
    return made, [*(0, 0) * behind, start, after], whole


def _written(part: Any) -> Any:
    """What the slice is made of: a copy into other memory of the same shape is what it copies."""
    if isinstance(part, Node) and part.target is aten.copy.default:
        source = part.args[1]
        same = isinstance(source, Node) and source.meta["val"].shape == part.meta["val"].shape
        return source if same else None
    return part if isinstance(part, Node) else None


def _filled(base: Any) -> Any:
    """The number that all of the tensor is; None if it is no such."""
    full = isinstance(base, Node) and base.target is aten.full.default
    return base.args[1] if full else None
