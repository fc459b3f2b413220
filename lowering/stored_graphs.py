"""Graphs that a process compiled before: their programs are loaded, under a key that is taken
before AOTAutograd, so that nothing is traced, lowered, printed or built again."""

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

from torch.fx import GraphModule

from ..runtime.cache import entries, program_data
from ..runtime.cache.named_functions import Unnamed
from ..runtime.cache.plain_data import Unstorable
from ..runtime.diagnostics import log
from ..runtime.options import Options
from .autograd import missing_gradients
from .autograd.direct_calls import CallMetadata, plain_call
from .gc_pause import gc_paused
from .graph import graph_key

BACKWARD = "backward"
watchers: list[Any] = []  # of kernels while they are made (`pipeline`): then all are made


def stored_graph(gm: GraphModule, inputs: Iterable[str], options: Options) -> "StoredGraph | None":
    """Where the program of a graph is kept; None for one that has no key. `inputs`: the text of
    each (`graph_key`)."""
    if watchers:
        return None
    try:
        return StoredGraph(graph_key.key_of(gm, inputs, options), graph_key.origins_of(gm))
    except Unnamed as reason:
        log.debug("a program is not kept: %s", reason)
        return None


class StoredGraph:
    """The place of one graph's program. `load` finds what another process stored; a compilation
    tells `compiled` and `finished` what it made, which is stored once its last program is there: a
    backward is compiled when it is first asked for."""

    def __init__(self, key: str, origins: Sequence[str]) -> None:
        self.key, self._origins = key, origins
        self._programs: dict[str, Any] = {}
        self._zero: Any = None
        self._around: dict[str, Any] | None = None

    def is_stored(self) -> bool:
        """Whether there is something to load."""
        return entries.read(self.key) is not None

    @gc_paused()
    def load(self) -> Callable[..., Any] | None:
        """The function that `joint.compile_graph` would give, or None."""
        data = entries.read(self.key)
        if data is None:
            return None
        try:
            try:
                return self._loaded(data)
            except Unnamed:
                _load_operators()
                return self._loaded(data)
        except Exception as error:  # whatever is wrong with it, it can be compiled
            log.info("a stored program cannot be used: %r", error)
            entries.forget(self.key)
            return None

    def _loaded(self, data: dict[str, Any]) -> Callable[..., Any]:
        programs = {
            kind: program_data.from_data(one, self._origins)
            for kind, one in data["programs"].items()
        }
        backward = _missing(data["zero"], programs.pop(BACKWARD, None))
        (forward,) = programs.values()
        around = data["around"]
        if around["plain"] is not None:
            called = plain_call(forward, around["plain"], around["without_autocast"])
        else:
            called = _wrappers().from_data(around, forward, backward)
        return CallMetadata.from_data(data["facts"]).called(called)

    def compiled(self, kind: str, program: Any, zero: Any = None) -> None:
        """A program of the graph: 'inference', or 'forward' and 'backward'. `zero`: what a backward
        takes for zero (`missing_gradients`)."""
        self._programs[kind], self._zero = program, zero
        if kind == BACKWARD and self._around is not None:
            self._store()

    def finished_plain(self, facts: CallMetadata, written: Sequence[int]) -> None:
        """The graph was traced without AOTAutograd, and needs nothing of it around. `written`: the
        inputs that it writes."""
        around = {"plain": [*written], "without_autocast": False, "differentiates": False}
        self._around = {"around": around, "facts": dataclasses.asdict(facts)}
        self._store()

    def finished(
        self, compiled: Callable[..., Any], wrapped: Sequence[Any], facts: CallMetadata
    ) -> None:
        """AOTAutograd has given `compiled`."""
        first = next(iter(self._programs.values()), None)
        try:
            around = _wrappers().to_data(wrapped, compiled, first)
        except (Unstorable, Unnamed) as reason:
            log.debug("a program is not kept: %s", reason)
            return
        self._around = {"around": around, "facts": dataclasses.asdict(facts)}
        if not around["differentiates"] or BACKWARD in self._programs:
            self._store()

    def _store(self) -> None:
        try:
            programs = {
                kind: program_data.to_data(program, self._origins)
                for kind, program in self._programs.items()
            }
            zero = None if self._zero is None else missing_gradients.to_data(self._zero)
            entries.write(self.key, {**(self._around or {}), "programs": programs, "zero": zero})
        except Exception as reason:  # the program serves this process in any case
            log.debug("a program is not kept: %r", reason)


def _missing(zero: Any, backward: Any) -> Any:
    return backward if zero is None else missing_gradients.from_data(zero, backward)


_OPERATORS = (
    *(f".decompositions.{name}" for name in ("image_gradients", "pool_offsets", "random_numbers")),
    *(".host_scalars", ".recurrent_operators"),
)


def _load_operators() -> None:
    """Those of ours that a stored program may call: few do."""
    for module in _OPERATORS:
        importlib.import_module(module, __package__)


def _wrappers() -> ModuleType:
    """AOTAutograd's, which take a second to load where nothing else has: plain calls do without."""
    return importlib.import_module(".autograd.wrappers", __package__)
