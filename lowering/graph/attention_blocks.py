"""FlexAttention on the host: block by block of rows and columns, with the online softmax of
FlashAttention (https://arxiv.org/abs/2205.14135), so that no more than a block of scores is in
memory. What a block computes is a graph, compiled once; blocks that the mask leaves out are not
computed."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...runtime.diagnostics import log
from ..decompositions.decompose import decompositions
from .attention_node import Results, attend, bound, each_head, indexed_by_tensors, mapped, working
from .graph_modules import graph_module
from .operator_trace import OperatorTracer, tracing

OPERATOR: Any = torch.ops.higher_order.flex_attention
ROWS, COLUMNS = 128, 512  # of a block
Program = Callable[[list[Any]], list[torch.Tensor]]


class AttentionBlocks:
    """The operator for the host. `program`: what a block of `rows` and `columns` computes, of rows
    of the query, columns, the first row, the first column and the first that was not seen before,
    what the columns before gave, and what the functions capture. None where it is not known, or
    there are fewer: then the formula is computed for blocks of rows."""

    __name__ = "flex_attention"

    def __init__(
        self,
        score: GraphModule,
        mask: GraphModule,
        scale: float,
        block: tuple[int, int],
        program: Program | None,
    ) -> None:
        self.score, self.mask, self.scale = score, mask, scale
        self.block, self.program = block, program

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        block_mask: Sequence[Any],
        of_score: Sequence[Any],
        of_mask: Sequence[Any],
    ) -> Results:
        sizes, (rows, columns) = (query.shape[2], key.shape[2]), self.block
        if self.program is None or sizes[0] < rows or sizes[1] < columns:
            mods = bound(self.score, of_score), (bound(self.mask, of_mask),)
            return attend(query, key, value, *mods, self.scale, {})
        made = _empty(query, value)
        seen = _Seen(block_mask, key.shape[2])
        for first, begin, end in _parts(sizes[0], rows):
            own, state = query[:, :, first:end].contiguous(), _start(query, value, rows)
            for start, fresh, stop in _parts(sizes[1], columns):
                if seen.any(begin, end, fresh, stop):
                    pair = (each[:, :, start:stop].contiguous() for each in (key, value))
                    places = map(torch.tensor, (first, start, fresh))
                    state = self.program([own, *pair, *places, *state, *of_score, *of_mask])
            for result, part in zip(made, _finish(*state), strict=True):
                result[:, :, begin:end] = part[:, :, begin - first :]
        return made


def _parts(size: int, step: int) -> Iterator[tuple[int, int, int]]:
    """Where parts of `step` places begin, which of them are new, and where they end: the last one
    begins before the end of the one before it."""
    for begin in range(0, size, step):
        end = min(begin + step, size)
        yield end - step, begin, end


class _Seen:
    """Which blocks a mask lists, of any head."""

    def __init__(self, block_mask: Sequence[Any], columns: int) -> None:
        self._rows, self._columns = block_mask[-2:]
        self._count = -(-columns // self._columns)
        shape = block_mask[3].shape[2], self._count + 1  # the last one stands for none
        self._listed = torch.zeros(shape, dtype=torch.bool)
        for number, indices in (block_mask[2:4], block_mask[4:6]):
            if number is not None:
                self._add(number, indices)

    def _add(self, number: torch.Tensor, indices: torch.Tensor) -> None:
        places = torch.arange(indices.shape[-1])
        columns = torch.where(places < number[..., None], indices, self._count).long()
        rows = torch.arange(len(self._listed))[:, None].expand_as(columns)
        self._listed[rows, columns] = True

    def any(self, first: int, last: int, begin: int, end: int) -> bool:
        """Whether a place is seen in these rows and columns."""
        rows = slice(first // self._rows, -(-last // self._rows))
        last = min(-(-end // self._columns), self._count)
        return bool(self._listed[rows, begin // self._columns : last].any())


def _empty(query: torch.Tensor, value: torch.Tensor) -> Results:
    rows = query.shape[:3]
    made = query.new_empty(*rows, value.shape[3])
    sums, most = (query.new_empty(rows, dtype=working(query.dtype)) for _ in range(2))
    return made, sums, most


def _start(query: torch.Tensor, value: torch.Tensor, rows: int) -> list[torch.Tensor]:
    """The result, the sum and the maximum of no columns, of a block of rows."""
    dtype, shape = working(query.dtype), (*query.shape[:2], rows)
    nothing = query.new_full(shape, -math.inf, dtype=dtype)
    result = query.new_zeros(*shape, value.shape[3], dtype=dtype)
    return [result, query.new_zeros(shape, dtype=dtype), nothing]


def _finish(result: torch.Tensor, total: torch.Tensor, most: torch.Tensor) -> Results:
    none = total == 0
    result = result / torch.where(none, 1, total)[..., None]
    ln2 = math.log(2)
    return result, torch.where(none, -math.inf, most + total.log()) / ln2, most / ln2


def compile_attention(gm: GraphModule, compiled: Callable[[GraphModule], Any]) -> None:
    """Replace calls of the operator on the host by calls that go block by block."""
    for node in gm.graph.nodes:
        if node.target is OPERATOR and node.all_input_nodes[0].meta["val"].device.type == "cpu":
            _replace(gm, node, compiled)
    gm.recompile()


def _replace(gm: GraphModule, node: Node, compiled: Callable[[GraphModule], Any]) -> None:
    args: Any = node.args
    query, key, value, score, block_mask, scale, _, of_score, of_mask = args
    score, mask = (getattr(gm, str(each.target)) for each in (score, block_mask[-1]))
    values: Any = torch.fx.node.map_arg(node.args, lambda each: each.meta.get("val"))
    block = min(ROWS, _hint(values[0].shape[2])), min(COLUMNS, _hint(values[1].shape[2]))
    try:
        program = compiled(_block(node, values, block, score, mask))
    except Exception as reason:  # the formula serves
        log.info("flex_attention() is computed by the formula: %r", reason)
        program = None
    node.target = AttentionBlocks(score, mask, scale, block, program)
    node.args = (query, key, value, block_mask[:-1], of_score, of_mask)


def _hint(size: Any) -> int:
    """The size of the recorded call."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def _block(
    node: Node, values: Any, block: tuple[int, int], score: GraphModule, mask: GraphModule
) -> GraphModule:
    """The graph of one block."""
    query, key, value, _, _, scale, _, of_score, of_mask = values
    tracer, mode = OperatorTracer(decompositions()), query.fake_mode
    tracer.source = node
    with mode:
        sides = zip((query, key, value), (block[0], block[1], block[1]), strict=True)
        own = [each.new_empty(*each.shape[:2], count, each.shape[3]) for each, count in sides]
        places = [torch.empty((), dtype=torch.int64) for _ in range(3)]
        given = [*own, *places, *_start(query, value, block[0]), *of_score, *of_mask]
    inputs = [tracer.placeholder(f"arg{k}_1", each.detach()) for k, each in enumerate(given)]
    with tracing(tracer, mode):
        captured = inputs[9 : 9 + len(of_score)], inputs[9 + len(of_score) :]
        mods = bound(score, captured[0]), bound(mask, captured[1])
        tracer.finish(_step(*mods, scale, *inputs[:9]))
    return graph_module(torch.nn.Module(), tracer.graph)


def _step(
    score: Callable[..., Any],
    mask: Callable[..., Any],
    scale: float,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    first: torch.Tensor,
    start: torch.Tensor,
    fresh: torch.Tensor,
    result: torch.Tensor,
    total: torch.Tensor,
    most: torch.Tensor,
) -> list[torch.Tensor]:
    """The result, the sum and the maximum with some more columns."""
    key, value = (each_head(each, query) for each in (key, value))
    scores = query.to(result.dtype) @ key.to(result.dtype).transpose(-2, -1) * scale
    places = [torch.arange(n) for n in scores.shape]
    places[2], places[3] = places[2] + first, places[3] + start
    new = places[3] >= fresh
    value = torch.where(new[:, None], value, 0)  # a weight of zero leaves no infinity out
    with indexed_by_tensors():
        seen = mapped(mask)(*places) & new
        scores = torch.where(seen, mapped(score, 0)(scores, *places), -math.inf)
    higher = torch.maximum(most, scores.amax(-1))
    least = torch.where(higher == -math.inf, 0, higher)
    weights = torch.exp(scores - least[..., None])
    shrink = torch.exp(most - least)
    added = weights.to(query.dtype) @ value
    return [
        result * shrink[..., None] + added,
        total * shrink + weights.sum(-1),
        higher,
    ]
