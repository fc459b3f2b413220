"""The function of a training step, compiled: eager is the user's statements in their place, and the
time of a call is that of the whole step."""

import ast
import types
from collections.abc import Callable
from typing import Any

from ...runtime import diagnostics
from ...runtime.guards.guard import Arg
from .. import catalogue
from ..frontend.compiled_function import CompiledFunction
from ..frontend.config import make_options
from ..frontend.switchover import Sample, Switchover
from ..graph_breaks.step_texts import Start, TrainingStep
from ..source import live_source
from ..source.live_source import Source
from .step_calls import IN_PLACE

VARIANTS = 7  # recordings, after which one of them has to have served a call


class StepSwitchover(Switchover):
    """A call in place ends when the statements have run: `sample` ends it then."""

    waiting: Callable[[], None] | None = None

    def timed(self, sample: Sample, result: Any, samples: list[Sample]) -> None:
        """As of any switchover; the backward is in the call."""

        def end() -> None:
            sample.stop()
            samples.append(sample)

        if result is IN_PLACE:
            self.waiting = end
        else:
            end()


class CompiledStep(CompiledFunction):
    """What is compiled for a step. Where it breaks it is not cut: its modules are compiled
    instead."""

    switchover_kind = StepSwitchover
    may_be_cut = False

    def __init__(self, fn: types.FunctionType, options: Any) -> None:
        super().__init__(fn, options)
        self.eager = _in_place
        self.moving.names = frozenset({"lr"})  # schedulers change it between steps

    def note_moving(self, numbers: set[int], arrays: set[int]) -> None:
        """Arguments that are another number, or hold something else, at each call."""
        self.moving.numbers |= {Arg(place) for place in numbers}
        self.moving.arrays |= {Arg(place) for place in arrays}

    def is_eager(self) -> bool:
        """Also where each call is another variant, so that none is served twice."""
        return super().is_eager() or self._never_serves()

    def _never_serves(self) -> bool:
        entries = self._dispatcher.entries
        inner = [getattr(each, "entry", each) for each in entries]
        waits = any(each is None for each in inner)  # of switchovers: they are being built
        served = any(getattr(each, "hits", 0) for each in inner)
        return len(self.recordings) >= VARIANTS and not served and not waits

    def sample(self) -> Callable[[], None] | None:
        """Who is to be told when the statements in place, which serve this call, have run."""
        for each in self.switchovers:
            if isinstance(each, StepSwitchover) and each.waiting is not None:
                end, each.waiting = each.waiting, None
                return end
        return None

    def tell(self, site: catalogue.BreakSite) -> None:
        """Only where it is asked for: the script goes on as well without."""
        diagnostics.log.debug("a training step is not one graph: %s", site)


def _in_place(*args: Any, **kwargs: Any) -> Any:
    return IN_PLACE


def compiled_step(fn: types.FunctionType, **arguments: Any) -> CompiledStep:
    """The function of a step, compiled with arguments of `dynfix.compile`."""
    return CompiledStep(fn, make_options(**arguments))


def step_function(step: TrainingStep, start: Start, names: dict[str, Any]) -> types.FunctionType:
    """The step from `start` on as a function with the globals `names`. Raises NotRewritable."""
    source = Source(
        text=start.text,
        file=step.file,
        first_line=start.first_line,
        name=step.name,
        is_lambda=False,
        free=(),
        containers=step.containers,
        flags=step.flags,
    )
    tree = ast.parse(live_source.padded(source, source.text))
    code = live_source.compile_inner(source, tree)
    if code is None:
        raise source.error("the training step was not found")
    live_source.remember(code, source)
    made = types.FunctionType(code, names, step.name)
    made.__qualname__ = made.__name__ = "training_step"
    made.__module__ = str(names.get("__name__", ""))
    return made
