"""Writes to tensors between whose elements memory is left out (`x[:, ::2]` as an input), and to
turned views with an axis of one element (`x.mT` of a column).

Functionalisation takes the result of such a write, which has no gaps, and the stride along that
axis that an operator gives, for the tensor: what is asked of its memory later (whether it is
contiguous, whether a reshape is a view, whether two views lie alike) is answered of the result.
Where it is asked, the write is done on a copy, and the copy written back: `copy_` leaves strides as
they are.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node

from ..opinfo import having
from .graph_modules import graph_module
from .result_strides import ASKING, asks_for_strides, name_of
from .strides_in_place import run_on_fakes
from .writes import put_
from .writes import write as under_mask

_CLONES = having("keeps_gaps")
_LEFT = having("strides_in_place_kept")
_TURNS = having("turns")
_VIEWS = having("turns", "view")
_OPERATOR_NAMES = frozenset(
    "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift".split()
)
_OPERATORS = frozenset(getattr(operator, name) for name in _OPERATOR_NAMES)
_OPERATORS |= {operator.setitem, under_mask, put_}


def write_by_copies(gm: GraphModule, examples: Sequence[Any]) -> GraphModule:
    """The graph with such writes as copies; itself where there are none."""
    names = {name_of(node) for node in gm.graph.nodes}
    writes, clones = [node for node in gm.graph.nodes if _is_write(node)], bool(names & _CLONES)
    asks = clones or (names & ASKING and any(map(_has_gaps, examples)))
    if not writes or not (asks or any(map(_is_turned, writes))):
        return gm
    run = _Run(gm)
    if not run_on_fakes(run, examples):
        return gm
    found = [node for node, memory in run.writes if memory in run.asked]
    return _rewritten(gm, found) if found else gm


def _is_write(node: Node) -> bool:
    if node.op == "call_method":
        name = str(node.target)
        if name.startswith("__"):
            return name == "__setitem__" or name.strip("_") in _OPERATOR_NAMES
        return name.endswith("_") and name not in _LEFT
    if node.op != "call_function" or not node.args:
        return False
    return node.target in _OPERATORS or (_is_torchs(node.target) and _is_in_place(node))


def _is_turned(write: Node) -> bool:
    """Whether a view is written whose axes are in another order than those of what it is of."""
    node: Any = write
    while isinstance(node, Node) and node.args:
        node = node.args[0]
        if not isinstance(node, Node):
            break
        name = str(node.args[1]) if node.target is getattr else name_of(node)
        if name in _TURNS:
            return True
        if name not in _VIEWS and not _is_write(node):
            break
    return False


def _is_in_place(node: Node) -> bool:
    """Whether the function gives back its first argument, written."""
    name = name_of(node).partition(".")[0]
    named = name.endswith("_") and not name.endswith("__") and name not in _LEFT
    return named or node.kwargs.get("inplace") is True


def _is_torchs(function: Any) -> bool:
    """Not an operator or a function of the user's, which may give something else."""
    if isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(function).startswith("aten")
    home = getattr(function, "__module__", None) or "torch"
    return str(home).split(".")[0] == "torch"


def _has_gaps(tensor: Any) -> bool:
    """Whether elements that neighbour in memory are further apart than one, as far as is known."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return False
    reach = 1
    pairs = zip(map(_hint, tensor.stride()), map(_hint, tensor.shape), strict=True)
    for step, size in sorted(pairs):
        if size == 0:
            return False
        if size > 1 and step > reach:
            return True
        reach = max(reach, step * size if size > 1 else 1)
    return False


def _is_odd(tensor: torch.Tensor) -> bool:
    """Whether an operator's result has another stride than this along an axis of one element, or
    there are no elements, and it has another one."""
    sizes = [size if isinstance(size, int) else 2 for size in tensor.shape]
    if tensor.layout is not torch.strided or min(sizes, default=2) > 1:
        return False
    like = torch.empty_like(tensor).stride()
    axes = zip(sizes, tensor.stride(), like, strict=True)
    return any((n == 1 or 0 in sizes) and _hint(a) != _hint(b) for n, a, b in axes)


def _hint(number: Any) -> int:
    return int(number.node.hint) if isinstance(number, torch.SymInt) else int(number)


class _Run(Interpreter):
    """Runs the graph on fakes: `writes` to memory with gaps, and the memory that is `asked` of."""

    def __init__(self, gm: GraphModule) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self.inputs: set[int] = set()
        self.writes: list[tuple[Node, int]] = []
        self.asked: set[int] = set()

    def run_node(self, node: Node) -> Any:
        if node.op == "output":
            given = {_memory(self.env[each]) for each in node.all_input_nodes}
            self.asked |= given - self.inputs
        elif _is_write(node):
            written = self.env.get(node.args[0])  # type: ignore[arg-type]
            if isinstance(written, torch.Tensor) and (
                _has_gaps(_whole(written)) or _is_odd(written)
            ):
                self.writes.append((node, _memory(written)))
        elif asks_for_strides(node) and node.args and isinstance(node.args[0], Node):
            self.asked.add(_memory(self.env[node.args[0]]))
        result = super().run_node(node)
        if node.op == "placeholder":
            self.inputs.add(_memory(result))
        return result


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base


def _memory(value: Any) -> int:
    return int(value.untyped_storage()._cdata) if isinstance(value, torch.Tensor) else 0


def _rewritten(gm: GraphModule, writes: Sequence[Node]) -> GraphModule:
    made, copies = graph_module(gm, Graph()), dict[Node, Node]()
    made.graph.output(made.graph.graph_copy(gm.graph, copies))
    for old in writes:
        node = copies[old]
        given, *others = node.args
        with made.graph.inserting_before(node):
            copy = made.graph.call_method("clone", (given,))
            write = made.graph.create_node(node.op, node.target, (copy, *others), node.kwargs)
        for each in (copy, write):
            each.meta.update(node.meta)
        node.op, node.target, node.args, node.kwargs = "call_method", "copy_", (given, copy), {}
    made.recompile()
    return made
