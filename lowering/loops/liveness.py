"""What joining loops into one kernel does to memory: a loop that runs earlier, for what it reads,
holds what it writes until that is needed."""

from collections.abc import Collection

from .ir import Buffer
from .kernel_graph import Unit
from .polynomials import hint
from .storage import MIN_STANDALONE_BYTES, bytes_of, touched

NEAR = 16  # items within which a kernel may come earlier


class HeldMemory:
    """Bytes of large buffers that the items of a unit hold, one after the other."""

    def __init__(self, unit: Unit) -> None:
        items, given, kept = unit.items, unit.given_buffers(), unit.outputs_buffers()
        self._first: dict[Buffer, int] = {}
        self._last: dict[Buffer, int] = {}
        for place, item in enumerate(items):
            for buffer in touched(item):
                if buffer not in given and hint(bytes_of(buffer)) >= MIN_STANDALONE_BYTES:
                    self._first.setdefault(buffer, place)
                    self._last[buffer] = len(items) if buffer in kept else place + 1
        changes = [0] * (len(items) + 1)
        for buffer, first in self._first.items():
            changes[first] += hint(bytes_of(buffer))
            changes[self._last[buffer]] -= hint(bytes_of(buffer))
        self._held: list[int] = []
        for change in changes[:-1]:
            self._held.append((self._held[-1] if self._held else 0) + change)
        self._most = max(self._held, default=0)

    def may_come(
        self, early: int, late: int, read: Collection[Buffer], made: Collection[Buffer]
    ) -> bool:
        """Whether what the item at `late` makes may be made at `early`: no more is held then than
        is somewhere anyway, or it is not held for long. What it alone still reads is held no
        longer."""
        new = [b for b in made if self._first.get(b, early) > early]
        if not new or late - early < NEAR:
            return True
        gone = [b for b in read if self._last.get(b) == late + 1]
        more = sum(hint(bytes_of(b)) for b in new) - sum(hint(bytes_of(b)) for b in gone)
        return max(self._held[early : max(self._first[b] for b in new)]) + more <= self._most

    def come(self, early: int, made: Collection[Buffer]) -> None:
        """Note that these are made there."""
        for buffer in made:
            first = self._first.get(buffer, early)
            if first > early:
                self._first[buffer] = early
                for place in range(early, first):
                    self._held[place] += hint(bytes_of(buffer))
