"""How many recordings one function has: what is said at the limit, and where it is cut since each
call would be one more."""

from collections.abc import Iterator
from typing import Any

from ...runtime import diagnostics
from ...runtime.errors import RecompileLimitError
from ...runtime.guards.guard import Path, Tensor
from ...runtime.options import Options
from ...runtime.programs.dispatch import Dispatcher
from ..capture.reads import DRAWN, SIZE, VALUE
from ..capture.recording import Recording
from ..capture.stops import Decision
from ..capture.trace import Recorder

FEW_SHAPES = 2  # that the data decides at one place, before the function is cut there
FEW_WAYS = 3  # that values of tensors have sent calls, before the function is cut
FEW_SIZES = 3  # that decide, once it is known where; at one more the function is cut there

_cut_at: set[tuple[str, int]] = set()  # files and lines where a size made ever more recordings


def forget_places() -> None:
    """Where functions were cut is not known any more."""
    _cut_at.clear()


class Variants:
    """Of one compiled function, which messages call `name`. `most_sizes`: so many of its recordings
    may be for one size each."""

    def __init__(self, name: str, options: Options, most_sizes: int) -> None:
        self._name, self._options, self._most_sizes = name, options, most_sizes
        self._told = False
        self._ways: list[list[Any]] = []  # what was drawn and decided, in calls where that is much
        self._decided: list[list[Any]] = []  # the same of tensors' values
        self._shapes: dict[Any, list[Any]] = {}  # that data decided, at each place
        self._of_size: Decision | None = None
        self._sizes: set[frozenset[Any]] = set()  # that moved, of recordings for them alone

    def clear(self) -> None:
        """Forget what was recorded."""
        self._told = False
        self._ways.clear()
        self._decided.clear()
        self._shapes.clear()
        self._sizes.clear()
        self._of_size = None

    def at_limit(
        self, dispatcher: Dispatcher, recordings: list[Any], args: Any, kwargs: Any
    ) -> bool:
        """Whether no more may be recorded: said once. Raises RecompileLimitError under
        `fullgraph=True`."""
        count, limit = len(dispatcher.entries), self._options.recompile_limit
        if count < limit and len(self._sizes) < self._most_sizes:
            return False
        if self._told and not self._options.fullgraph:
            return True
        self._told = True
        failures = dispatcher.explain_miss(args, kwargs)
        why = "; ".join(map(str, failures[:2]))
        served = [r for r in recordings if isinstance(r, Recording) and r.serves(args, kwargs)]
        if served and len(failures) < len(dispatcher.entries):
            why = served[-1].why_not(args, kwargs)
        kept = f"{count} compiled version{'s' * (count != 1)}"
        most = "recompile_limit" if count >= limit else "one for each size"
        message = f"{self._name} has {kept}, and gets no more ({most}). The last call: {why}"
        if self._options.fullgraph:
            raise RecompileLimitError(message)
        message += ". Such calls run in eager"
        diagnostics.warn_once("recompile_limit", message, self._name)
        return True

    def waits(self, recording: Recording) -> bool:
        """Whether a second call has to tell if this one's recording is worth an entry."""
        return not self._ways and self._is_much_drawn(recording)

    def cut(self, recorder: Recorder, recording: Recording) -> Decision | None:
        """The first decision of those that would make ever more recordings: what was drawn decides
        that often in a call that the limit would be reached, and sends calls different ways; values
        of tensors do, and have sent several calls other ways; the data gives ever other shapes; a
        size that moves decides (it is the number of a loop's turns), or did so in another function
        that came there."""
        if self._options.fullgraph:
            return None
        if self._is_much_drawn(recording):
            way = [value for _, recipe, value in recording.outcomes if recipe.drawn]
            pairs = [pair for other in self._ways for pair in zip(other, way, strict=False)]
            self._ways.append(way)
            if any(a != b for a, b in pairs):
                return recorder.decisions[DRAWN]
        if VALUE in recorder.decisions and self._is_one_way_of_many(recording):
            return recorder.decisions[VALUE]
        shaped = next(filter(self._is_many_shapes, enumerate(recorder.shaped)), None)
        if shaped is not None:
            return shaped[1]
        self._sizes.update(filter(None, [frozenset(_sizes(recording, recorder.moving.fixed))]))
        of_size = self._of_size = recorder.decisions.get(SIZE) or self._of_size
        if of_size is None:
            return None
        if len(self._sizes) > FEW_SIZES or (SIZE in recorder.decisions and of_size.at in _cut_at):
            _cut_at.add(of_size.at)
            return of_size
        return None

    def _is_one_way_of_many(self, recording: Recording) -> bool:
        way = [value for _, recipe, value in recording.outcomes if recipe.graph]
        if 2 ** len(way) <= self._options.recompile_limit:
            return False
        if way not in self._decided:
            self._decided.append(way)
        return len(self._decided) > FEW_WAYS

    def _is_many_shapes(self, shaped: tuple[int, Decision]) -> bool:
        number, decision = shaped
        seen = self._shapes.setdefault((number, decision.at), [])
        if decision.value not in seen:
            seen.append(decision.value)
        return len(seen) > FEW_SHAPES

    def _is_much_drawn(self, recording: Recording) -> bool:
        count = sum(recipe.drawn for _, recipe, _ in recording.outcomes)
        return not self._options.fullgraph and 2**count > self._options.recompile_limit


def _sizes(recording: Recording, fixed: set[tuple[Path, int]]) -> Iterator[tuple[Path, int, int]]:
    """The sizes in `fixed` that a recording is for."""
    for guard in recording.guards:
        if isinstance(guard.check, Tensor):
            for dim, size in enumerate(guard.check.arg.sizes):
                if (guard.path, dim) in fixed and size is not None:
                    yield guard.path, dim, size
