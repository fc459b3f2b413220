"""What a compilation of a function gives: its graphs, and where and why they break."""

import collections
import dataclasses
import itertools
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from ..capture.rewrites.function_edits import Applied
from ..catalogue import BreakSite
from . import compiled_function
from .compile_logs import guard_line
from .config import make_options
from .module_class import eager_original, module_entry

SHOWN = 8  # of graph breaks, graphs and operators, on the page that `str` gives


@dataclasses.dataclass
class BreakReason:
    """One graph break: `reason` in words, `user_stack` the place in the user's source."""

    reason: str
    user_stack: list[traceback.FrameSummary]
    site: BreakSite

    @classmethod
    def of(cls, site: BreakSite) -> "BreakReason":
        detail = f" ({site.detail})" if site.detail else ""
        reason = f"{site.reason.code} {site.reason.message}{detail}; {site.reason.help}"
        return cls(reason, [traceback.FrameSummary(site.file, site.line, "", line=site.text)], site)


@dataclasses.dataclass
class ExplainOutput:
    """What `explain` returns. `graphs` are `torch.fx.GraphModule`s, `ops_per_graph` the targets of
    their calls; `rewritings`: where patterns turned a decision into a choice in the graph, so that
    it is no break."""

    graphs: list[torch.fx.GraphModule]
    graph_count: int
    graph_break_count: int
    break_reasons: list[BreakReason]
    op_count: int
    ops_per_graph: list[list[Any]]
    out_guards: list[Any]
    compile_times: str
    rewritings: list[Applied] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        """At most a page: how many graphs and operators, and where and why they break."""
        ops = (_counted(map(_op_name, ops)) for ops in self.ops_per_graph)
        places = (f"{change.file}:{change.line}: {change.code}" for change in self.rewritings)
        breaks = (_short_break(reason) for reason in self.break_reasons)
        parts = (
            *self._head(),
            *_first("Break Reasons", breaks, self.graph_break_count),
            *_first("Ops per Graph", ops, self.graph_count),
            f"Out Guards: {len(self.out_guards)}",
            *(_first("Rewritings", places, len(self.rewritings)) if self.rewritings else ()),
            f"Compile Times: {self.compile_times}",
            "details() gives every operator, guard and rewriting.",
        )
        return "\n".join(parts) + "\n"

    def details(self) -> str:
        """All of it, a line for every operator and guard."""
        parts = (
            *self._head(),
            *_section("Break Reasons", "Break Reason", map(_break_lines, self.break_reasons)),
            *_section(
                "Ops per Graph", "Ops", ([str(op) for op in ops] for ops in self.ops_per_graph)
            ),
            *_section("Out Guards", "Guard", ([guard_line(guard)] for guard in self.out_guards)),
            f"Compile Times: {self.compile_times}",
            *(
                _section("Rewritings", "Rewriting", map(_change_lines, self.rewritings))
                if self.rewritings
                else ()
            ),
        )
        return "\n".join(parts) + "\n"

    def _head(self) -> tuple[str, ...]:
        return (
            f"Graph Count: {self.graph_count}",
            f"Graph Break Count: {self.graph_break_count}",
            f"Op Count: {self.op_count}",
        )


def _first(title: str, lines: Iterable[str], count: int) -> list[str]:
    """The first of them, and how many there are more."""
    shown = [f"  {line}" for line in itertools.islice(lines, SHOWN)]
    more = [f"  and {count - SHOWN} more"] if count > SHOWN else []
    return [f"{title}:", *shown, *more]


def _short_break(reason: BreakReason) -> str:
    place = reason.user_stack[-1]
    return f"{place.filename}:{place.lineno}: {reason.reason}"


def _op_name(op: Any) -> str:
    return op if isinstance(op, str) else str(getattr(op, "__name__", op))


def _counted(names: Iterable[str]) -> str:
    """`12: linear (4), relu (2), ...`: the most frequent ones."""
    counts = collections.Counter(names)
    shown = [f"{name} ({n})" if n > 1 else name for name, n in counts.most_common(SHOWN)]
    more = ", ..." if len(counts) > SHOWN else ""
    return f"{counts.total()}: {', '.join(shown)}{more}"


def _break_lines(reason: BreakReason) -> list[str]:
    stack = [f"  {place.filename}:{place.lineno}: {place.line}" for place in reason.user_stack]
    return [f"Reason: {reason.reason}", "User Stack:", *stack]


def _change_lines(change: Applied) -> list[str]:
    """The place and the rule, the lines that stood there and those that were recorded."""
    before = [f"- {line}" for line in change.before.splitlines()]
    after = [f"+ {line}" for line in change.after.splitlines()]
    return [f"{change.file}:{change.line}: {change.code}", *before, *after]


def _section(title: str, item: str, entries: Iterable[list[str]]) -> Iterator[str]:
    yield f"{title}:"
    for number, entry in enumerate(entries, 1):
        yield f"  {item} {number}:"
        yield from (f"    {line}" for line in entry)


def explain(f: Any, *extra_args: Any, **extra_kwargs: Any) -> Any:
    """`explain(fn)(*args, **kwargs)` captures one call of `fn`, a function or module, and returns
    an ExplainOutput.

    The call is made for real, in eager. The older `explain(fn, *args, **kwargs)` does the same,
    with a FutureWarning.
    """
    if not extra_args and not extra_kwargs:
        return lambda *args, **kwargs: _explain(f, args, kwargs)
    warnings.warn(
        "explain(f, *args) is deprecated: use explain(f)(*args)", FutureWarning, stacklevel=2
    )
    return _explain(f, extra_args, extra_kwargs)


def _explain(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExplainOutput:
    graphs: list[torch.fx.GraphModule] = []

    def collect(gm: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    entry, head = _entry(fn, collect)
    start = time.perf_counter()
    entry(*head, *args, **kwargs)
    return _output(graphs, entry.recordings, time.perf_counter() - start)


def _entry(fn: Any, backend: Callable[..., Any]) -> tuple[Any, tuple[Any, ...]]:
    """A fresh compiled function, so that nothing compiled before is disturbed, and what goes before
    the arguments."""
    options = make_options(backend=backend)
    fn = getattr(fn, "_dynfix_original", fn)
    if isinstance(fn, torch.nn.Module):
        original = eager_original(fn)
        return compiled_function.CompiledFunction(module_entry(type(original)), options), (
            original,
        )
    if hasattr(fn, "__func__"):
        return compiled_function.CompiledFunction(fn.__func__, options), (fn.__self__,)
    return compiled_function.CompiledFunction(fn, options), ()


def _output(graphs: list[torch.fx.GraphModule], recordings: Any, seconds: float) -> ExplainOutput:
    ops = [[node.target for node in gm.graph.nodes if node.op.startswith("call_")] for gm in graphs]
    reasons = [BreakReason.of(site) for recording in recordings for site in recording.sites]
    guards = [guard for recording in recordings for guard in recording.guards]
    changes = [change for recording in recordings for change in recording.rewritten]
    return ExplainOutput(
        graphs=graphs,
        graph_count=len(graphs),
        graph_break_count=len(reasons),
        break_reasons=reasons,
        op_count=sum(map(len, ops)),
        ops_per_graph=ops,
        out_guards=guards,
        compile_times=f"capture and first call: {seconds:.3f} s",
        rewritings=list(dict.fromkeys(changes)),
    )
