"""Graphs that a process compiled before: their programs are loaded, under a key that is taken
before AOTAutograd, so that nothing is traced, lowered, printed or built again."""

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from ..runtime.options import Options
from ..runtime.report import log
from ..runtime.stored import entries, program_data
from ..runtime.stored.named_functions import Unnamed
from ..runtime.stored.plain_data import Unstorable
from .graphs import graph_key, wrappers

Compiler = Callable[..., Callable[..., Any]]
BACKWARD = "backward"
watchers: list[Any] = []  # of kernels while they are made (`pipeline`): then all are made


def compile_graph(
    gm: GraphModule, example_inputs: list[Any], options: Options, compiler: Callable[[], Compiler]
) -> Callable[..., Any]:
    """As `joint.compile_graph`, which `compiler` gives where it is needed. The result's
    `kept_under` is the program's key, if it has one."""
    if watchers:
        return compiler()(gm, example_inputs, options)
    try:
        key = graph_key.key_of(gm, example_inputs, options)
    except Unnamed as reason:
        log.debug("a program is not kept: %s", reason)
        return compiler()(gm, example_inputs, options)
    origins = graph_key.origins_of(gm)
    found: Any = _load(key, origins)
    if found is None:
        found = compiler()(gm, example_inputs, options, Keeper(key, origins))
    found.kept_under = key
    return found  # type: ignore[no-any-return]


def _load(key: str, origins: Sequence[str]) -> Callable[..., Any] | None:
    data = entries.read(key)
    if data is None:
        return None
    try:
        return _loaded(data, origins)
    except Exception as error:  # whatever is wrong with it, it can be compiled
        log.info("a stored program cannot be used: %r", error)
        entries.forget(key)
        return None


def _loaded(data: dict[str, Any], origins: Sequence[str]) -> Callable[..., Any]:
    programs = {
        kind: program_data.from_data(one, origins) for kind, one in data["programs"].items()
    }
    backward = programs.pop(BACKWARD, None)
    (forward,) = programs.values()
    called = wrappers.from_data(data["around"], forward, backward)
    called = wrappers.without_history(called, frozenset(data["cut_off"]))
    return (lambda *args: called(*args)[0]) if data["single"] else called


class Keeper:
    """Stores what a compilation made, once its last program is there: a backward is compiled when
    it is first asked for."""

    def __init__(self, key: str, origins: Sequence[str]) -> None:
        self._key, self._origins = key, origins
        self._programs: dict[str, Any] = {}
        self._around: dict[str, Any] | None = None

    def compiled(self, kind: str, program: Any) -> None:
        """A program of the graph: 'inference', or 'forward' and 'backward'."""
        self._programs[kind] = program
        if kind == BACKWARD and self._around is not None:
            self._store()

    def finished(
        self,
        compiled: Callable[..., Any],
        wrapped: Sequence[wrappers.Wrapped],
        cut_off: frozenset[int],
        single: bool,
    ) -> None:
        """AOTAutograd has given `compiled`."""
        first = next(iter(self._programs.values()), None)
        try:
            around = wrappers.to_data(wrapped, compiled, first)  # type: ignore[arg-type]
        except (Unstorable, Unnamed) as reason:
            log.debug("a program is not kept: %s", reason)
            return
        self._around = {"around": around, "cut_off": sorted(cut_off), "single": single}
        if not around["differentiates"] or BACKWARD in self._programs:
            self._store()

    def _store(self) -> None:
        try:
            programs = {
                kind: program_data.to_data(program, self._origins)
                for kind, program in self._programs.items()
            }
            entries.write(self._key, {**(self._around or {}), "programs": programs})
        except (Unstorable, Unnamed, OSError) as reason:
            log.debug("a program is not kept: %s", reason)
