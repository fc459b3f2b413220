"""When calls are looked at: that costs some microseconds a call as well, which a loop of small
ones would feel."""

import sys
from collections.abc import Callable
from types import CodeType, FrameType

from .background_budget import SHARE, Account

AWAKE, ASLEEP = 0.25, 4.0  # seconds of each turn


class CallSampler:
    """Asleep until half of what compiling costs is affordable, and then in turns.

    cost: gives the seconds of compiling something. call: the code whose frames are calls.
    is_expecting: says whether a call is to come that is known to be worth it: then it stays awake.
    `away` is told for how many seconds nobody has to ask.
    """

    away: Callable[[float], None] | None = None

    def __init__(
        self,
        account: Account,
        cost: Callable[[], float],
        call: CodeType,
        is_expecting: Callable[[], bool] = lambda: False,
    ) -> None:
        self.always = False  # once something is compiled its calls are routed
        self.asleep = True
        self._account, self._cost, self._call = account, cost, call
        self._is_expecting = is_expecting
        self._until = self._first = self._woke = self._awake = 0.0

    def sleeps(self) -> bool:
        """Whether the call that begins is not looked at."""
        if self.always:
            return False
        now = self._account.machine.now()
        return self.asleep if now < self._until else self._turn(now)

    def share(self) -> float:
        """The part of the time since the first turn in which calls were looked at."""
        now = self._account.machine.now()
        awake = self._awake + (0.0 if self.asleep else now - self._woke)
        return max(0.01, awake / (now - self._first)) if awake else 1.0

    def _turn(self, now: float) -> bool:
        if not self.asleep and self._is_expecting():
            self._until = now + AWAKE
        elif not self.asleep:
            self.asleep, self._awake = True, self._awake + now - self._woke
            self._until = now + ASLEEP * min(1.0, SHARE / self._account.share)
        elif not self._account.allows(self._cost() / 2):
            self._until = now + max(0.1, min(5.0, self._account.missing(self._cost() / 2)))
        elif not self._is_inside():
            self.asleep, self._until, self._woke = False, now + AWAKE, now
            self._first = self._first or now
        if self.asleep and self.away is not None:
            self.away(self._until - now)
        return self.asleep

    def _is_inside(self) -> bool:
        """Whether this call is made by one that began while nobody looked."""
        frame: FrameType | None = sys._getframe(1)
        seen = 0
        while frame is not None and seen < 2:
            seen += frame.f_code is self._call
            frame = frame.f_back
        return seen == 2
