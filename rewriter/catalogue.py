"""The catalogue of reasons: every break, stop and bad use that is reported, by its DYN code.

Data alone, which loads nothing. The rules of the codemod, `explain`, the warnings of the compiler,
`dynfix rule` and docs/rules.md read it."""

import dataclasses

from .rule_reasons import OF_RULES
from .rule_reasons import Reason as Reason


@dataclasses.dataclass(frozen=True)
class BreakSite:
    """A reason at a place. `line` is 1-based; `text` is the source line; `detail` says what was
    met; `graph`: which of the recording's graphs comes after it."""

    reason: Reason
    file: str
    line: int
    text: str
    detail: str = ""
    graph: int = dataclasses.field(default=0, compare=False)

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return (
            f"{self.file}:{self.line}: {self.reason.code} {self.reason.message}{detail}\n   "
            f" {self.text}\n  {self.reason.help}"
        )


# What no rule looks for in source text.
_WITHOUT_RULE = (
    Reason(
        "DYN000",
        "explicit-break",
        "a graph break was asked for",
        "remove the call of graph_break(), or the disable() of the function",
        ("GB0025",),
        no_rule="the call is there on purpose",
        about=(
            "`dynfix.graph_break()` ends the graph at that place, as "
            "`torch._dynamo.graph_break()` does. It is for tests and for measurements."
        ),
    ),
    Reason(
        "DYN001",
        "unsupported",
        "this cannot be traced",
        "the statement runs as it is, between two graphs: move it out of the compiled code, or "
        "write it with what is captured",
        no_rule="it is a limit of the tracer, so no rule can find it in source text",
        about=(
            "While the first call is recorded, something happened that cannot be made again at a "
            "later call: the detail in parentheses says what. Nothing is wrong with the result: "
            "the statement runs as it is, between what is captured before and after it. "
            "docs/limits.md lists what is known."
        ),
    ),
    Reason(
        "DYN002",
        "not-rewritable",
        "the source of a function cannot be rewritten",
        "define it in a file, or mark it with dynfix.disable",
        no_rule="it is about functions that have no text, or whose text is not the code that runs",
        about=(
            "The compiler works on source text. A function typed into a shell has none, nor one"
            " that `exec` made before dynfix was imported;"
            " of a file that was edited after its import the text is not the code that runs. Such"
            " functions run in eager."
        ),
    ),
    Reason(
        "DYN003",
        "slipped",
        "a tensor came from, or was written by, code that is not traced",
        "keep tensor work in Python that has source",
        no_rule="only a run shows it",
        about=(
            "A tensor came from, or was written by, code that the recording did not see "
            "(`from_numpy`, dlpack, an extension). A graph that left it out would give wrong "
            "answers, so the recording ends and the call goes on in eager."
        ),
    ),
    Reason(
        "DYN004",
        "parallel-unit",
        "a module talks to other processes around its call",
        "nothing to mend: what the module computes is compiled as graphs of its own",
        no_rule="only a run shows which modules were sharded or replicated",
        about=(
            "FSDP gathers a module's parameters before its `forward` and frees them after it; "
            "DistributedDataParallel and DataParallel send tensors around the module that they "
            "hold. The graph ends there, these hooks run as they are at every call, and the "
            "`forward` between them is compiled for itself. One `fully_shard` for each block "
            "makes graphs of a block."
        ),
    ),
)
REASONS = {reason.code: reason for reason in (*_WITHOUT_RULE, *OF_RULES)}

# Those that the recorder gives.
EXPLICIT = REASONS["DYN000"]
UNSUPPORTED = REASONS["DYN001"]
NOT_REWRITABLE = REASONS["DYN002"]
SLIPPED = REASONS["DYN003"]
PARALLEL_UNIT = REASONS["DYN004"]
HOST_READ = REASONS["DYN101"]
TENSOR_IF = REASONS["DYN201"]
DYNAMIC_SHAPE = REASONS["DYN501"]
OPAQUE_CALL = REASONS["DYN601"]
