"""A function that runs in parts has to earn its place as a whole: what its parts gain may be less
than what Python takes between them, and their own trials do not see that."""

import types
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ...runtime.environment.machine import MACHINE, Machine
from ..frontend.switchover import AGAIN, TIMED, WARM, ServingState, Switchover

SETTLED = 2 * TIMED + WARM + 2  # calls in which no part was recorded, or judged: the whole can be
MAX_CALLS_IN_PARTS = 400  # calls in parts, after which the whole is timed in any case


class SplitTimer(Protocol):
    """Who keeps the account of time."""

    def nothing_builds(self) -> bool:
        """Whether nothing is built now."""
        ...

    def may_record(self) -> bool:
        """Whether a call may be recorded now."""
        ...

    def gained(self, seconds: float) -> None:
        """A call took that much less than it would have in eager."""
        ...


class PartTrial:
    """The judge of a part: what it gains is counted by the whole."""

    def __init__(self, judge: SplitTimer) -> None:
        self.nothing_builds = judge.nothing_builds

    def gained(self, seconds: float) -> None:
        """Not counted: a backward that two parts share would be, twice."""


class SplitTrial(Switchover):
    """Calls of a function whose parts are `members`: in parts where that may settle one of them,
    else in eager; once nothing is left to settle, whichever is faster."""

    def __init__(
        self,
        in_parts: Callable[..., Any],
        eager: Callable[..., Any],
        judge: SplitTimer,
        members: list[Any],
        name: str = "",
        machine: Machine = MACHINE,
    ) -> None:
        super().__init__(types.SimpleNamespace(guard_set=_AnyCall()), eager, judge, name, machine)
        self._in_parts, self.members, self._may_record = in_parts, members, judge.may_record
        self._seen: tuple[int, int] = (0, 0)
        self._calls = self._same = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run([*args, *kwargs.values()], args, kwargs)

    def run(self, inputs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As of any switchover."""
        if self.state is ServingState.WAITING:
            if not self.judge.nothing_builds() or not self._can_settle():
                return self.eager(*args, **kwargs)
            if self._same <= SETTLED and self._calls <= MAX_CALLS_IN_PARTS:
                return self._in_parts(*args, **kwargs)
            self.ready(_InParts(self._in_parts))
        return super().run(inputs, args, kwargs)

    def is_due_again(self) -> bool:
        """Parts are recorded later, too: ever more rarely, it is tried again."""
        return bool(self.compiled_calls == AGAIN**self.trials)

    def _can_settle(self) -> bool:
        """Whether a call in parts may change something about them; notes what has changed."""
        tried = list(self._switchovers())
        decided = sum(each.state in (ServingState.COMPILED, ServingState.EAGER) for each in tried)
        recorded = sum(len(getattr(member, "recordings", ())) for member in self.members)
        self._same = self._same + 1 if self._seen == (recorded, decided) else 0
        self._seen = recorded, decided
        if not self._may_record() and not any(each.state is ServingState.TRIAL for each in tried):
            return False
        self._calls += 1
        return True

    def _switchovers(self) -> Iterator[Switchover]:
        for member in self.members:
            yield from getattr(member, "switchovers", ())


def is_dropped(run: Callable[..., Any]) -> bool:
    """Whether what serves a function that was cut is eager, for good."""
    return isinstance(run, SplitTrial) and run.state is ServingState.EAGER


class _AnyCall:
    """Guards that stand for every call."""

    def match(self, args: Any, kwargs: Any) -> list[Any]:
        return []


class _InParts:
    """What is timed, as an entry."""

    general = stays_eager = False

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def run(self, inputs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As `Entry.run`."""
        return self._run(*args, **kwargs)
