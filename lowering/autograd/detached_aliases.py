"""Results without a gradient that lie as one with a gradient does: what eager detached from it.

AOTAutograd makes such a result again from its twin, by all that led to it from the memory's owner;
where the twin is itself a view, that gives another part of the memory, or fails. Here it is
detached from the twin. What has another dtype cannot be had so.

A result with a gradient is a view of what was detached last, from there on: what led to that is
another history (`y = x.detach(); y.mul_(weight)`).

Views of what `_unsafe_view` gave (`kron`) are made again by their strides: torch's record of that
operator refers to sizes that are gone. So are those of what got another shape in place (`x.t_()`):
torch would do that once more to their base, which has it already.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch._C import _functionalization
from torch.fx import GraphModule, Node

from ...runtime.errors import LoweringError
from ..graph.result_strides import name_of
from ..opinfo import having

_Detach: Any = getattr(_functionalization, "detach_ViewMeta", None)
_MODE: Any = getattr(_functionalization, "InverseReturnMode", None)
_DANGLING = ("_unsafe_view_ViewMeta", "resize__ViewMeta")
_RESHAPING = having("turns_in_place", "sets_memory_in_place")
_TYPED = ("view_dtype_ViewMeta", "view_as_real_ViewMeta", "view_as_complex_ViewMeta")


def detach_twins(facts: Any, graph: GraphModule) -> None:
    """Have AOTAutograd make these results by detaching their twins, where that is what they are."""
    reshapes = any(map(_reshapes, graph.graph.nodes))
    for info in _twins_of_views(facts, all_twins=reshapes):
        if (
            _Detach is not None
            and _views(info)
            and _types(info) == _types(_detached_alias(facts, info))
        ):
            detach = _Detach((False, True, _MODE.ViewOrScatterInverse))
            info.view_meta_sequence.sequence = [detach]


def start_from_detached(facts: Any) -> None:
    """Have AOTAutograd make views with a gradient of what was detached by what followed that."""
    for info in facts.output_info:
        views = _views(info) if info.requires_grad else []
        ends = [k for k, one in enumerate(views, 1) if type(one) is _Detach]
        if ends:
            info.view_meta_sequence.sequence = views[ends[-1] :]


def forget_views(facts: Any, graph: GraphModule) -> None:
    """Have AOTAutograd make these results by their sizes and strides. Raises LoweringError for what
    has another dtype than its base."""
    reshapes = any(map(_reshapes, graph.graph.nodes))
    for place, info in enumerate(facts.output_info):
        views, dangling = _views(info), False
        if reshapes and info.output_type.name.startswith("alias_of_intermediate"):
            if _types(info):
                raise LoweringError("a view in another dtype of what got another shape in place")
            dangling = bool(views) and not _is_detached(info)
        if dangling or any(type(one).__name__ in _DANGLING for one in views):
            facts.output_info[place] = replace(info, view_meta_sequence=None)


def _reshapes(node: Node) -> bool:
    return name_of(node).partition(".")[0] in _RESHAPING


def has_wrong_twins(facts: Any) -> bool:
    """Whether AOTAutograd would make one of these results by views that led to its twin."""
    return not all(map(_is_detached, _twins_of_views(facts)))


def _twins_of_views(facts: Any, *, all_twins: bool = False) -> Iterator[Any]:
    for info in facts.output_info:
        if info.output_type.name != "alias_of_intermediate_base_is_user_output":
            continue
        twin = _detached_alias(facts, info)
        if not info.requires_grad and (all_twins or twin.output_type.name != "non_alias"):
            yield info


def _detached_alias(facts: Any, info: Any) -> Any:
    return facts.output_info[info.base_idx]


def _views(info: Any) -> list[Any]:
    """The views that lead to a result from the owner of its memory."""
    return list(getattr(getattr(info, "view_meta_sequence", None), "sequence", ()))


def _types(info: Any) -> list[Any]:
    """Those among them that change the dtype."""
    views = ((type(one).__name__, one) for one in _views(info))
    return [(name, str(one.as_tuple())) for name, one in views if name in _TYPED]


def _is_detached(info: Any) -> bool:
    return [type(one) for one in _views(info)] == [_Detach]
