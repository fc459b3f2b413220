"""The second recording: a call whose outcomes patterns can turn into choices, recorded with the
functions that they rewrote. What they moved to another place the third meets there, and so on."""

import types
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from ...runtime import diagnostics
from ..capture import places
from ..capture.recording import Recording
from ..capture.repeatable import equal, is_repeatable
from ..capture.rewrites import kept_objects
from ..capture.rewrites.branch_rewrites import IN_PLACE, Rewritings
from ..capture.rewrites.function_edits import Applied
from ..capture.trace import Recorder
from ..instrument import emit
from ..source import live_source
from ..tracing_ops.operators import Forms

ROUNDS = 4  # recordings after the first
DELAYS = 5  # calls in turn of which none is compiled: each is left to one that never comes
MAX_PENDING_CALLS = 8  # calls that are due
# A call once more, with changed functions: its recorder, recording and result.
Attempt = Callable[["Changed"], tuple[Recorder, Recording | None, Any]]


@dataclass(frozen=True)
class Changed:
    """Functions as patterns rewrote them: their sources by the code that they replace, and the
    changes. `complete`: nothing else decided. `breaks`: of the recording before any change;
    `rounds`: recordings that changes came from."""

    sources: dict[types.CodeType, live_source.Source]
    applied: tuple[Applied, ...]
    complete: bool
    breaks: int
    rounds: int = 1

    @classmethod
    def of(cls, recorder: Recorder, earlier: "Changed | None" = None) -> "Changed | None":
        """What was found in a recording, on top of what changed before it; None where nothing
        was."""
        rewritings = recorder.rewritings
        found = rewritings.found() if rewritings is not None else []
        made = [(each, each.rewritten()) for each in found]
        sources = {f.function.__code__: source for f, source in made if source is not None}
        if rewritings is None or not sources or len(sources) < len(found):
            return None
        applied = tuple(change for each in found for change in each.applied())
        if earlier is None:
            return cls(sources, applied, rewritings.complete, len(recorder.sites))
        sources, applied = {**earlier.sources, **sources}, (*earlier.applied, *applied)
        return cls(sources, applied, rewritings.complete, earlier.breaks, earlier.rounds + 1)

    def looks(self, recorder: Recorder) -> Rewritings | None:
        """What may be found in a recording of the changed functions."""
        more = self.rounds < ROUNDS
        return Rewritings(recorder.rewriter.is_rewritten, self.sources) if more else None

    def places(self) -> tuple[str, ...]:
        """How the origins of the choices begin that stand for one of two tensors: "file:line:".
        One that is written into the tensor that there was leaves it the same."""
        chosen = [each for each in self.applied if each.code not in IN_PLACE]
        return tuple(f"{places.shown(each.file)}:{each.line}:" for each in chosen)

    def rewriter(self, usual: Any) -> Any:
        """`usual`, the rewriter of a recorder, but for the functions that changed."""
        sources = self.sources

        def rewrite(fn: types.FunctionType) -> types.FunctionType:
            source = sources.get(fn.__code__)
            return usual.rewrite(fn) if source is None else emit.rewrite(fn, Forms, source)

        return type("ChangedRewriter", (usual,), {"rewrite": staticmethod(rewrite)})


class Rerecordings:
    """The second recordings of one function, which `name` shows. `due`: what patterns made of the
    functions for calls that could not be made again at once. What was in vain is tried once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._vain: set[frozenset[live_source.Source]] = set()
        self._delays = 0
        self.due: list[tuple[Recording, Changed]] = []

    def clear(self) -> None:
        """Forget what was tried, and what is due."""
        self._vain.clear()
        self._delays = 0
        self.due.clear()

    def unfit(self, compiled: Collection[Any]) -> list[Recording]:
        """What is due of calls that are not `compiled` as they were recorded."""
        return [each for each, _ in self.due if each not in compiled]

    def changed_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Changed | None:
        """What patterns made of the functions for calls such as this one, if no such call was made
        since; it is tried once."""
        for entry in list(self.due):
            if entry[0].guard_set.match(args, kwargs) is not None:
                self.due.remove(entry)
                return entry[1]
        return None

    def better(
        self, recorder: Recorder, recording: Recording, result: Any, attempt: Attempt
    ) -> Recording | None:
        """A recording of the call in which patterns turned outcomes into choices: made at once
        where nobody can notice, else left to the next such call."""
        changed = Changed.of(recorder)
        if changed is None or frozenset(changed.sources.values()) in self._vain:
            return None
        if is_repeatable(recorder, recording):
            return self._again(changed, result, attempt)
        self._put_off(recorder, recording, result, changed)
        return None

    def _put_off(
        self, recorder: Recorder, recording: Recording, result: Any, changed: Changed
    ) -> None:
        """Leave a change to the next such call, which runs with it for real."""
        if not changed.complete or recorder.rewritings is None:
            return
        if recorder.unfit is not None and self._delays == DELAYS:
            return
        changes = (effect.arguments for effect in recorder.effects)
        why = recorder.rewritings.choices.seen((result, *changes), recorder.identity_asked)
        if why:
            diagnostics.log.debug("%s is not rewritten: %s", self._name, why)
        else:
            self._delays += recorder.unfit is not None
            self.due[:] = [*self.due[1 - MAX_PENDING_CALLS :], (recording, changed)]

    def of_due(
        self,
        changed: Changed,
        recorder: Recorder,
        recording: Recording | None,
        result: Any,
        attempt: Attempt,
    ) -> Recording | None:
        """What a call gives that was made with changed functions."""
        due = len(self.due)
        further = Changed.of(recorder, changed) if recording is not None else None
        if further is not None and recording is not None:
            if is_repeatable(recorder, recording):
                better = self._again(further, result, attempt)
                if better is not None:
                    return better
            else:
                self._put_off(recorder, recording, result, further)
        if recorder.unfit is not None and len(self.due) > due:
            return None
        return self._checked(recorder, recording, changed)

    def _again(self, changed: Changed, result: Any, attempt: Attempt) -> Recording | None:
        """The call once more, with the changed functions; None where that gives no better
        recording."""
        try:
            recorder, recording, other = attempt(changed)
            if not equal(other, result):
                raise AssertionError("the rewritten functions give another result")
        except Exception as error:
            diagnostics.log.debug("%s is not rewritten: %r", self._name, error)
            return None
        further = Changed.of(recorder, changed)
        if further is not None and recording is not None and is_repeatable(recorder, recording):
            better = self._again(further, result, attempt)
            if better is not None:
                return better
        return self._checked(recorder, recording, changed)

    def _checked(
        self, recorder: Recorder, recording: Recording | None, changed: Changed
    ) -> Recording | None:
        why = checked(recorder, recording, changed)
        if why or recording is None:
            diagnostics.log.debug("%s is not rewritten: %s", self._name, why)
            if recording is not None:
                self._vain.add(frozenset(changed.sources.values()))
            return None
        recording.rewritten = changed.applied
        self._delays = 0
        return recording


def checked(recorder: Recorder, second: Recording | None, changed: Changed) -> str:
    """Why the second recording may not stand for the call, or ""."""
    if second is None:
        return str(recorder.stopped or "it was not recorded")
    if recorder.unfit is not None:
        return str(recorder.unfit)
    if len(second.sites) >= changed.breaks:
        return "it breaks as often"
    try:
        return kept_objects.seen(second, changed.places(), recorder.identity_asked)
    except Exception as error:  # what fake tensors cannot run is not proved
        return f"{type(error).__name__}: {error}"
