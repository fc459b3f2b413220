"""FlexAttention while recording: the user's functions run rewritten, on one place of the scores,
into graphs of their own; the call becomes a node that holds these."""

from collections.abc import Callable
from typing import Any

import torch

from ....lowering.graph.attention_node import AttentionNode, attend, indexed_by_tensors, mapped
from ... import catalogue
from ...capture.nested import plain_in
from ...capture.node_arguments import as_nodes
from ...capture.stops import RecordingStopped
from ...capture.trace import Recorder
from .. import contexts
from .transforms import TransformedFunction, bind


def takes(function: Any) -> bool:
    return function is attend


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    query, key, value, score_mod, block_mask, scale, options = args
    given = (query, key, value, block_mask[:-1], scale, options)
    try:
        score, mask = _recorded(rec, query, score_mod, 0), _recorded(rec, query, block_mask[-1])
        with rec.paused():
            nodes = tuple(as_nodes(rec, each) for each in given)
            target = AttentionNode(score.graph_module(), mask.graph_module())
            captured = score.taken(), mask.taken()
            result = rec.once(target, (*captured, *plain_in(given)))
            bind(rec, target, (score.close(), mask.close(), *nodes), result)
        return result
    except RecordingStopped:
        return attend(*plain_in(args))


def _recorded(
    rec: Recorder, query: torch.Tensor, function: Callable[..., Any], *score: int
) -> TransformedFunction:
    """The function's graph, of its call for the first place. Raises Stopped."""
    body = TransformedFunction(rec, function)
    effects, outcomes, cut = len(rec.effects), len(rec.outcomes), len(rec.segments)
    with rec.paused():
        dtype = torch.promote_types(query.dtype, torch.float32)
        first = [query.new_zeros(1, 1, 1, 1, dtype=dtype)] * len(score)
        places = [torch.zeros(1, dtype=torch.int64, device=query.device)] * 4
        places = [each.clone() for each in places]
    with body.watched() as watched, contexts.enter(rec, indexed_by_tensors()):
        mapped(watched, *score)(*first, *places)
    asked = [recipe for _, recipe, _ in rec.outcomes[outcomes:] if not recipe.sizes]
    if effects != len(rec.effects) or asked or cut != len(rec.segments) or body.may_have_drawn():
        rec.stop_here(
            catalogue.UNSUPPORTED,
            "flex_attention() of a function with side effects, or that reads a tensor's value",
        )
    return body
