"""The second recording: a call whose outcomes patterns can turn into choices, recorded with the
functions that they rewrote."""

import types
from dataclasses import dataclass
from typing import Any

from . import emit, live_source
from .capture import kept_objects, places
from .capture.recording import Recording
from .capture.rewriting import IN_PLACE, Applied
from .capture.trace import Recorder
from .forms.operators import Forms


@dataclass(frozen=True)
class Changed:
    """Functions as patterns rewrote them: their sources by the code that they replace, and the
    changes."""

    sources: dict[types.CodeType, live_source.Source]
    applied: tuple[Applied, ...]
    complete: bool

    @classmethod
    def of(cls, recorder: Recorder) -> "Changed | None":
        """What was found in a recording; None where nothing was."""
        rewritings = recorder.rewritings
        found = rewritings.found() if rewritings is not None else []
        made = [(each, each.rewritten()) for each in found]
        sources = {f.function.__code__: source for f, source in made if source is not None}
        if rewritings is None or not sources or len(sources) < len(found):
            return None
        applied = tuple(change for each in found for change in each.applied())
        return cls(sources, applied, rewritings.complete)

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


def checked(
    first: Recording | None, recorder: Recorder, second: Recording | None, changed: Changed
) -> str:
    """Why the second recording may not stand for the call, or "". `first` may be unknown."""
    if second is None:
        return str(recorder.stopped or "it was not recorded")
    if first is not None and len(second.sites) >= len(first.sites):
        return "it breaks as often"
    try:
        return kept_objects.seen(second, changed.places(), recorder.identity_asked)
    except Exception as error:  # what fake tensors cannot run is not proved
        return f"{type(error).__name__}: {error}"
