"""The backend `aot_eager`: graphs of ATen's operators, AOTAutograd's or those that inference has
without it, run as they are.

It tells a fault of capture or of the joint graph from one of the lowering.
"""

from collections.abc import Callable
from typing import Any

import torch

from ..runtime.options import Options
from .autograd.direct_calls import plain_call
from .graph.dead_rng import keep_dead_rng
from .graph.fused_steps import write_out_fused_steps
from .graph.graph_modules import forward_of
from .graph.inference_trace import inference_graph
from .graph.result_strides import keep_result_strides
from .graph.strided_mutation import write_by_copies
from .graph.strides_in_place import keep_strides


def aot_eager(
    gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor], options: Options
) -> Callable[..., Any]:
    """As `joint.compile_graph`, without decompositions, lowering or kernels."""
    for keep in (keep_result_strides, keep_strides, write_by_copies):
        gm = keep(gm, example_inputs)
    gm, lone = keep_dead_rng(write_out_fused_steps(gm, example_inputs))
    traced = inference_graph(gm, example_inputs, {})
    if traced is not None:
        compiled = plain_call(_boxed(traced.graph), traced.written, without_autocast=False)
    else:
        from torch._functorch.aot_autograd import aot_module_simplified  # which takes long to load

        compiled = aot_module_simplified(
            gm, tuple(example_inputs), fw_compiler=_as_it_is, bw_compiler=_backward
        )
    return (lambda *args: compiled(*args)[:-lone]) if lone else compiled


def _as_it_is(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
    call: Any = _boxed(gm)
    call._boxed_call = True
    return call


def _backward(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
    """torch's partition leaves the forward's draws here, too, for what they give to nobody."""
    for node in reversed(gm.graph.nodes):
        if not node.users and torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            gm.graph.erase_node(node)
    gm.recompile()
    return _as_it_is(gm, example_inputs)


def _boxed(gm: torch.fx.GraphModule) -> Callable[[list[Any]], Any]:
    forward = forward_of(gm)

    def call(inputs: list[Any]) -> Any:
        return forward(*inputs)

    return call
