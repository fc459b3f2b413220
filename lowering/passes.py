"""The passes of the lowering, in order: the one list. `docs/internals.md` shows it as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from .decompositions.complex_pairs import pair_complex
from .graph.batch_norm_folding import fold_norms
from .graph.channels_last import prefer_channels_last
from .graph.complex_numbers import pad_complex
from .graph.constant_folding import fold_constants
from .graph.constant_masks import drop_constant_masks
from .graph.epilogues import join_activations
from .graph.fused_steps import write_out_fused_steps
from .graph.result_strides import keep_result_strides
from .graph.rnn import keep_rnns
from .graph.strided_mutation import write_by_copies
from .graph.strides_in_place import keep_strides
from .graph.traced_calls import write_out_calls
from .graph.writes import choose_under_masks, name_unstretched
from .host_scalars import move_host_scalars
from .loops.batches import batch
from .loops.columns import split_columns, split_columns_of_many_rows
from .loops.conversions import gather_conversions
from .loops.delay_results import late
from .loops.divisions import fold_in_order
from .loops.downcast_stores import narrow_stores
from .loops.hoist_input_loops import early
from .loops.in_place import in_place
from .loops.inline import inline
from .loops.promote_select import widen_choices
from .loops.schedule import schedule, schedule_by_direction, schedule_unfused
from .loops.short_axes import write_out_folds
from .loops.short_inner_axes import widen
from .loops.simplify import simplify
from .loops.sink import sink
from .loops.split_long_rows import split_few_rows
from .program_steps import Execution

CPU, GPU = Execution.IN_ORDER, Execution.PARALLEL
TORCH, ATEN, LOOPS = "torch graph", "ATen graph", "loops"


@dataclasses.dataclass(frozen=True)
class Pass:
    """level: what `run` takes and returns. A torch graph comes with the inputs of the call, an ATen
    graph with how many of its outputs leave it first, loops are a `Unit`. execution: for targets
    that run a kernel's points so; None: for all. fusion: left out where fusion is off, in favour of
    `unfused`. what, why: what it does, and why it stands where it does."""

    name: str
    level: str
    run: Callable[..., Any]
    what: str
    why: str = ""
    execution: Execution | None = None
    fusion: bool = False
    unfused: Callable[..., Any] | None = None


PASSES = (
    Pass(
        "fused steps",
        TORCH,
        write_out_fused_steps,
        "writes out fused optimizer steps",
        "first: their parts are calls that later passes know",
    ),
    Pass("recurrent layers", TORCH, keep_rnns, "keeps recurrent layers as operators"),
    Pass("calls", TORCH, write_out_calls, "writes out calls by what they are given"),
    Pass("masks", TORCH, drop_constant_masks, "drops attention masks that change nothing"),
    Pass("masked writes", TORCH, choose_under_masks, "makes writes under masks choices"),
    Pass("expansions", TORCH, name_unstretched, "names the expansions that stretch nothing"),
    Pass("channels last", TORCH, prefer_channels_last, "turns convolutional nets to channels last"),
    Pass(
        "batch norms",
        TORCH,
        fold_norms,
        "folds batch norms into convolutions",
        "the convolutions stand in their order",
    ),
    Pass(
        "result strides", TORCH, keep_result_strides, "keeps the strides that eager's results have"
    ),
    Pass(
        "strides in place", TORCH, keep_strides, "makes in-place calls that change strides copies"
    ),
    Pass(
        "strided writes",
        TORCH,
        write_by_copies,
        "writes into strided memory by copies",
        "last: no other pass adds writes",
    ),
    Pass("padded complex", ATEN, lambda graph, _: pad_complex(graph), "pads complex numbers"),
    Pass(
        "complex pairs",
        ATEN,
        lambda graph, _: pair_complex(graph),
        "takes complex arithmetic for loops over pairs",
    ),
    Pass("constants", ATEN, fold_constants, "computes what hangs on constants alone"),
    Pass(
        "activations",
        ATEN,
        lambda graph, _: join_activations(graph),
        "joins activations with products and convolutions (GPU libraries)",
    ),
    Pass(
        "host scalars",
        ATEN,
        lambda graph, _: move_host_scalars(graph),
        "moves single numbers to the device together",
    ),
    Pass(
        "simplify", LOOPS, simplify, "algebra, constants", "first: equal loops must compare equal"
    ),
    Pass(
        "short folds",
        LOOPS,
        write_out_folds,
        "writes out folds over few points",
        "before inlining hides them",
        CPU,
        fusion=True,
    ),
    Pass(
        "inline",
        LOOPS,
        partial(inline, ordered=True),
        "puts producers into consumers",
        "vertical fusion",
        CPU,
        fusion=True,
    ),
    Pass(
        "inline",
        LOOPS,
        inline,
        "puts producers into consumers",
        "vertical fusion",
        GPU,
        fusion=True,
    ),
    Pass(
        "wide choices",
        LOOPS,
        widen_choices,
        "makes choices between 16-bit floats in the readers' type",
        "needs what was inlined",
        CPU,
        fusion=True,
    ),
    Pass(
        "costly folds",
        LOOPS,
        write_out_folds,
        "short folds again, by what they have taken in",
        "after inlining",
        CPU,
        fusion=True,
    ),
    Pass(
        "sink",
        LOOPS,
        sink,
        "moves copies with several producers into these",
        "after inlining, which leaves them",
        CPU,
        fusion=True,
    ),
    Pass(
        "sink",
        LOOPS,
        partial(sink, scans=True),
        "moves copies with several producers, or of a scan, into these",
        "after inlining, which leaves them",
        GPU,
        fusion=True,
    ),
    Pass(
        "narrow stores",
        LOOPS,
        narrow_stores,
        "stores in the narrow type where readers convert anyway",
        fusion=True,
    ),
    Pass(
        "in place",
        LOOPS,
        in_place,
        "writes the input instead of copying a new value into it",
        "before memory is planned",
    ),
    Pass(
        "narrow",
        LOOPS,
        widen,
        "joins short innermost runs with their neighbours",
        "for vectors",
        CPU,
        fusion=True,
    ),
    Pass(
        "folds in order",
        LOOPS,
        fold_in_order,
        "lets a fold read in the order of memory",
        "for coalesced loads",
        GPU,
        fusion=True,
    ),
    Pass(
        "columns",
        LOOPS,
        split_columns,
        "makes column sums partial sums that a row loop takes along",
        "before scheduling",
        CPU,
        fusion=True,
    ),
    Pass(
        "columns",
        LOOPS,
        split_columns_of_many_rows,
        "makes column sums of many rows partial sums",
        "before scheduling",
        GPU,
        fusion=True,
    ),
    Pass(
        "few rows",
        LOOPS,
        split_few_rows,
        "cuts folds of few long rows into parts",
        "for threads",
        CPU,
        fusion=True,
    ),
    Pass(
        "early", LOOPS, early, "small loops over inputs first", "by live memory", GPU, fusion=True
    ),
    Pass("late", LOOPS, late, "results as late as they may", "by live memory", fusion=True),
    Pass(
        "conversions",
        LOOPS,
        gather_conversions,
        "conversions beside their readers",
        "by live memory",
        GPU,
        fusion=True,
    ),
    Pass(
        "schedule",
        LOOPS,
        schedule_by_direction,
        "groups nests that share a space: vertical, horizontal, reductions",
        "by bytes saved",
        CPU,
        fusion=True,
        unfused=schedule_unfused,
    ),
    Pass(
        "schedule",
        LOOPS,
        schedule,
        "groups nests that share a space: vertical, horizontal, reductions",
        "by bytes saved",
        GPU,
        fusion=True,
        unfused=schedule_unfused,
    ),
    Pass(
        "batch",
        LOOPS,
        batch,
        "makes one kernel of equal groups, such as optimizer updates",
        "last: needs final groups",
        fusion=True,
    ),
)


def passes_of(level: str, execution: Execution | None = None) -> Iterator[Pass]:
    """Those of a level, in order; of loops, those for targets of one `execution`."""
    for each in PASSES:
        if each.level == level and each.execution in (None, execution):
            yield each
