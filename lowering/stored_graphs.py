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
from ..runtime.gc_pause import gc_paused
from ..runtime.options import Options
from ..runtime.programs.launch import Library
from .autograd import missing_gradients
from .autograd.direct_calls import CallMetadata, plain_call
from .graph import graph_key

BACKWARD = "backward"
watchers: list[Any] = []  # of kernels while they are made (`pipeline`): then all are made


def stored_graph(gm: GraphModule, inputs: Iterable[str], options: Options) -> "StoredGraph | None":
    """Where the program of a graph is kept; None for one that has no key. `inputs`: the text of
    each (`graph_key`)."""
    if watchers or options.write_kernels:
        return None
    try:
        return StoredGraph(graph_key.key_of(gm, inputs, options), graph_key.origins_of(gm))
    except Unnamed as reason:
        log.debug("a program is not kept: %s", reason)
        return None


class StoredGraph:
    """The place of one graph's program. `load` finds what another process stored; a compilation
    tells `compiled` and `finished` what it made, which is stored once its last program is there: a
    backward is compiled when it is first asked for. `data`: what was stored, or found. Without a
    key it is nowhere else. `refused`: why nothing can be stored. `when_stored` is called once it
    is."""

    data: dict[str, Any] | None = None
    refused: Exception | None = None
    when_stored: Callable[[], None] | None = None

    def __init__(self, key: str | None, origins: Sequence[str]) -> None:
        self.key, self.origins = key, origins
        self._programs: dict[str, Any] = {}
        self._zero: Any = None
        self._around: dict[str, Any] | None = None

    def is_stored(self) -> bool:
        """Whether there is something to load."""
        return self.key is not None and entries.read(self.key) is not None

    @gc_paused()
    def load(self) -> Callable[..., Any] | None:
        """The function that `joint.compile_graph` would give, or None."""
        data = None if self.key is None else entries.read(self.key)
        if self.key is None or data is None:
            return None
        try:
            program = function_of(data, self.origins)
        except Exception as error:  # whatever is wrong with it, it can be compiled
            log.info("a stored program cannot be used: %r", error)
            entries.forget(self.key)
            return None
        self.data = data
        return program

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
            self._refuse(reason)
            return
        self._around = {"around": around, "facts": dataclasses.asdict(facts)}
        if not around["differentiates"] or BACKWARD in self._programs:
            self._store()

    def _store(self) -> None:
        try:
            programs = {
                kind: program_data.to_data(program, self.origins)
                for kind, program in self._programs.items()
            }
            zero = None if self._zero is None else missing_gradients.to_data(self._zero)
            self.data = {**(self._around or {}), "programs": programs, "zero": zero}
            if self.key is not None:
                entries.write(self.key, self.data)
            if self.when_stored is not None:
                self.when_stored()
        except Exception as reason:  # the program serves this process in any case
            self._refuse(reason)

    def _refuse(self, reason: Exception) -> None:
        self.refused = reason
        log.debug("a program is not kept: %r", reason)


def function_of(
    data: dict[str, Any],
    origins: Sequence[str],
    library: Callable[[str], Library] | None = None,
) -> Callable[..., Any]:
    """The function of a graph whose program was stored. `library`: as in `program_data`. Raises
    Damaged, Unnamed, and what else damaged data leads to."""
    try:
        return _function(data, origins, library)
    except Unnamed:
        _load_operators()
        return _function(data, origins, library)


def _function(data: dict[str, Any], origins: Sequence[str], library: Any) -> Callable[..., Any]:
    programs = {
        kind: program_data.from_data(one, origins, library)
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
