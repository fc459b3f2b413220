"""The backend `aot_eager`: AOTAutograd's graphs, run as they are.

It tells a fault of capture or of the joint graph from one of the lowering.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func

from ..runtime.options import Options
from .graphs.lone_draws import with_lone_draws


def aot_eager(
    gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor], options: Options
) -> Callable[..., Any]:
    """As `joint.compile_graph`, without decompositions, lowering or kernels."""
    gm, lone = with_lone_draws(gm)
    compiled = aot_module_simplified(
        gm, tuple(example_inputs), fw_compiler=_as_it_is, bw_compiler=_as_it_is
    )
    return (lambda *args: compiled(*args)[:-lone]) if lone else compiled


def _as_it_is(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
    return make_boxed_func(gm.forward)
