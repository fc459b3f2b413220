"""Joint graphs for AOTAutograd by this package's own tracer, where nothing is unusual in them."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch._functorch._aot_autograd import graph_compile
from torch._logging._internal import trace_log
from torch.fx import GraphModule

from ..graph.joint_trace import joint_graph
from .aot_parts import schemas
from .detached_aliases import detach_twins, forget_views, start_from_detached
from .fast_wrappers import OWN, UNUSUAL, differentiated

_UNUSUAL = (*UNUSUAL, "num_outputs_aliased", "num_intermediate_bases")


class _Asked(threading.local):
    graph: GraphModule | None = None


_asked = _Asked()
_their_joint_graph = graph_compile.aot_dispatch_autograd_graph


@contextlib.contextmanager
def traced_here(gm: GraphModule) -> Iterator[None]:
    """Inside, this thread's AOTAutograd has the joint graph of `gm` from this package's tracer."""
    before, _asked.graph = _asked.graph, gm
    try:
        yield
    finally:
        _asked.graph = before


def _joint_graph(
    flat_fn: Any, flat_args: Any, flat_args_descs: Any, aot_config: Any, *, fw_metadata: Any
) -> Any:
    """The joint graph, the inputs that it was made of, what these are, and None, for what it knows
    of subclasses."""
    if _asked.graph is not None:
        detach_twins(fw_metadata, _asked.graph)
        start_from_detached(fw_metadata)
        forget_views(fw_metadata, _asked.graph)
    found = _traced(flat_args, aot_config, fw_metadata)
    if found is None:
        given = flat_fn, flat_args, flat_args_descs, aot_config
        theirs = _their_joint_graph(*given, fw_metadata=fw_metadata)
        if _asked.graph is not None:
            _without_written_leaves(theirs[0], fw_metadata, len(flat_args))
        return theirs
    fw_metadata.mutated_inp_stream_indices = []
    tangents, kinds = fw_metadata.traced_tangents, fw_metadata.traced_tangents_descs
    inputs = [each.detach() for each in flat_args], [each.detach() for each in tangents]
    return found, inputs, (flat_args_descs, kinds), None


def _without_written_leaves(joint: GraphModule, facts: Any, count: int) -> None:
    """Leaves are written behind autograd's back: the gradient of what stands in one afterwards, of
    which AOTAutograd makes zeros, is not the leaf's."""
    written = [
        (k, info.is_leaf)
        for k, info in enumerate(facts.input_info)
        if info.mutation_type.name == "MUTATED_OUT_GRAPH" and info.mutates_data
        if info.requires_grad
    ]
    output = joint.graph.output_node()
    results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    inputs = joint.graph.find_nodes(op="placeholder")  # constants that tracing made, too
    tangents = [node for node in inputs if str(node.target).startswith("tangents")]
    for (k, is_leaf), tangent in zip(written, tangents, strict=False):
        place = len(results) - count + k
        if is_leaf and results[place] is tangent:
            results[place] = None
    output.args = (results,)


def _traced(flat_args: Any, aot_config: Any, facts: Any) -> GraphModule | None:
    """The joint graph of the graph at hand; None where it is left to AOTAutograd."""
    gm, taken = _asked.graph, _taken(facts)
    special = aot_config.pre_dispatch or aot_config.is_export or aot_config.no_tangents
    if gm is None or taken is None or special or len(taken) != len(facts.traced_tangents):
        return None
    if len(gm.graph.find_nodes(op="placeholder")) != len(flat_args):  # some are merged
        return None
    found = joint_graph(gm, flat_args, facts.traced_tangents, taken, aot_config.decompositions)
    if found is None or list(found[1]) != list(facts.mutated_graph_handled_indices):
        return None
    return found[0]


def _taken(facts: Any) -> list[int] | None:
    """The outputs whose gradients the backward takes; None where something is unusual."""
    if any(getattr(facts, name, 0) for name in _UNUSUAL) or facts.grad_enabled_mutation is not None:
        return None
    if not all(type(meta) is schemas.PlainTensorMeta for meta in facts.subclass_tangent_meta):
        return None
    if not all(info.output_type.name in OWN for info in facts.output_info):
        return None
    return differentiated(facts)


def _where_somebody_reads(log: Callable[..., Any], nothing: Any) -> Callable[..., Any]:
    """The text of large graphs takes a twentieth of a compilation."""

    def logged(*args: Any, **kwargs: Any) -> Any:
        if _asked.graph is None or trace_log.handlers or _log.isEnabledFor(logging.INFO):
            return log(*args, **kwargs)
        return nothing

    return logged


_log = logging.getLogger("torch._functorch")
graph_compile.aot_dispatch_autograd_graph = _joint_graph
graph_compile._log_joint_graph = _where_somebody_reads(graph_compile._log_joint_graph, None)
graph_compile._log_fw_bw_graphs = _where_somebody_reads(
    graph_compile._log_fw_bw_graphs, (None, None)
)
