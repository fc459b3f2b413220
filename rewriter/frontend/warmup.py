"""What the first compilation of a process loads and makes once, done ahead of it."""

import torch
from torch.fx import Graph, GraphModule

from ...lowering.fake_tensor_mode import PacedFakeMode
from ...runtime.diagnostics import log
from ...runtime.errors import DynfixError
from ...runtime.guards import guard_native
from ...runtime.options import Options
from ...runtime.programs import result_memory
from ..instrument import emit
from .segment_programs import compiler


def warm_up(rewrites: bool = True, compiles: bool = True) -> None:
    """Load what recording needs: with the source rewriter, where functions are not yet rewritten;
    and take one tiny graph with a backward through every stage, where this process compiles."""
    if rewrites:
        emit.load()
    guard_native.load_here()
    result_memory.load()
    if not compiles:
        return
    with torch.inference_mode(False), torch.enable_grad():
        with PacedFakeMode(allow_non_fake_inputs=True):
            example = torch.empty(4, requires_grad=True)
        try:
            compiler()(_graph(), [example], Options())
        except DynfixError as error:  # no C++ compiler, say: who compiles something says so
            log.debug("the first compilation failed: %s", error)


def _graph() -> GraphModule:
    graph = Graph()
    given = graph.placeholder("x")
    product = graph.call_function(torch.mul, (given, given))
    graph.output((graph.call_method("sum", (product,)),))
    return GraphModule({}, graph)
