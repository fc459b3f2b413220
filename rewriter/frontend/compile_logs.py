"""What happens while code is compiled, on stderr: `DYNFIX_LOGS=graph_breaks,recompiles` before a
program, or `dynfix.set_logs(graph_breaks=True)` in it. `TORCH_LOGS` and `torch._logging.set_logs`
do the same for torch.compile. Each log is a logger `dynfix.NAME` of `logging`."""

import difflib
import functools
import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from torch.fx import GraphModule

from ...lowering import stored_graphs
from ...runtime import diagnostics
from ...runtime.errors import OptionError
from ..catalogue import BreakSite

NAMES = {
    "graph_breaks": "where and why a function is not one graph",
    "recompiles": "which guard of which line did not hold, so that a call is recorded again",
    "guards": "what a cached entry checks before it serves a call",
    "graph_code": "each graph as Python, with the lines that it comes from",
    "fusion": "each kernel: the lines whose loops it joins, bytes read and written",
    "output_code": "the source of each kernel",
}
VARIABLE = "DYNFIX_LOGS"
_KERNELS = ("fusion", "output_code")

_shown: set[str] = set()


def set_logs(**enabled: bool) -> None:
    """Show these logs, and no others: `set_logs(graph_breaks=True, recompiles=True)`. Without
    arguments all are off. Raises OptionError for a name that is none of them."""
    unknown = [name for name in enabled if name not in NAMES]
    if unknown:
        raise OptionError(_unknown(unknown))
    _show(name for name, shown in enabled.items() if shown)


def set_from_environment() -> None:
    """Show what `DYNFIX_LOGS` names, separated by commas. Unknown names get a warning: a typing
    error is no reason to end a program."""
    named = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    unknown = [name for name in named if name not in NAMES]
    if unknown:
        diagnostics.warn_once("logs", f"{VARIABLE}: {_unknown(unknown)}")
    if named:
        _show(name for name in named if name in NAMES)


def _unknown(names: list[str]) -> str:
    near = difflib.get_close_matches(names[0], NAMES, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"there is no log {names[0]!r}{hint}. The logs are: {', '.join(NAMES)}"


def _show(names: Iterable[str]) -> None:
    _shown.clear()
    _shown.update(names)
    for name in NAMES:
        logger = _logger(name)
        logger.propagate = name not in _shown
        logger.setLevel(logging.INFO if name in _shown else logging.NOTSET)
        logger.handlers = [_Stderr()] if name in _shown else []
    asked = not _shown.isdisjoint(_KERNELS)
    if asked and _kernels not in stored_graphs.watchers:
        stored_graphs.watchers.append(_kernels)
    elif not asked and _kernels in stored_graphs.watchers:
        stored_graphs.watchers.remove(_kernels)


def shown() -> bool:
    """Whether any log is."""
    return bool(_shown)


class _Stderr(logging.Handler):
    """Writes to what `sys.stderr` is at that time."""

    def emit(self, record: logging.LogRecord) -> None:
        name = record.name.rpartition(".")[2]
        lines = record.getMessage().splitlines()
        print(*(f"[{name}] {line}" for line in lines), sep="\n", file=sys.stderr, flush=True)


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(f"dynfix.{name}")


def _say(name: str, text: Callable[[], str]) -> None:
    """`text` is made only where it is shown, and a failure of it ends nothing."""
    if name not in _shown:
        return
    try:
        _logger(name).info("%s", text())
    except Exception as error:
        diagnostics.log.debug("the log %r: %r", name, error)


def breaks(function: str, sites: Iterable[BreakSite]) -> None:
    """A call of the function was recorded, or was not, with these graph breaks."""
    for site in sites:
        _say("graph_breaks", functools.partial("{}: {}".format, function, site))


def recompiles(function: str, why: str) -> None:
    """A call is recorded that no entry serves."""
    _say("recompiles", lambda: f"{function} is recorded again: {why}")


def guards(function: str, found: Iterable[Any]) -> None:
    """An entry is made, which checks these guards."""
    _say("guards", lambda: "\n  ".join((f"{function}:", *map(guard_line, found))))


def guard_line(guard: Any) -> str:
    """`x: TypeIs(...)`, with the source line that made the guard."""
    return f"{guard.path.source}: {guard.check}" + (f"  ({guard.origin})" if guard.origin else "")


def graph_code(module: GraphModule) -> None:
    """A graph is compiled."""
    _say("graph_code", lambda: _python(module))


def _python(module: GraphModule) -> str:
    """The graph's code, above each line the one of the user's that it comes from."""
    origins = {
        node.name: str(node.meta["origin"]).splitlines()[0]
        for node in module.graph.nodes
        if node.meta.get("origin")
    }
    lines: list[str] = []
    before = None
    for line in module.graph.python_code("self").src.splitlines():
        origin = origins.get(line.partition("=")[0].strip(), before)
        if origin != before:
            lines.append(f"    # {origin}")
        lines.append(line)
        before = origin
    return "\n".join(line for line in lines if line.strip())


def _kernels(unit: Any, launches: dict[Any, Any]) -> dict[Any, Any]:
    pipeline = importlib.import_module("...lowering.pipeline", __package__)
    for group, (launch, buffers) in launches.items():
        kernel = pipeline.KernelFacts.of(unit, group, launch, buffers)
        _say("fusion", functools.partial("{}: {}".format, unit.name, kernel))
        _say("output_code", functools.partial(str, kernel.code))
    return launches


set_from_environment()
