"""Random generators of the host: where one stands, so that a call which is given up can put it
back."""

import random
from collections.abc import Callable
from typing import Any

try:
    import numpy as np
except ImportError:
    np = None  # type: ignore[assignment]

GENERATORS: tuple[type, ...] = (
    (random.Random,) if np is None else (random.Random, np.random.RandomState, np.random.Generator)
)


def restorer(owner: Any) -> Callable[[], None] | None:
    """What puts the generator back to where it stands now; None for what is no generator."""
    if isinstance(owner, random.Random):
        state = owner.getstate()
        return lambda: owner.setstate(state)
    if np is not None and isinstance(owner, np.random.RandomState):
        legacy = owner.get_state(legacy=False)
        return lambda: owner.set_state(legacy)
    if np is not None and isinstance(owner, np.random.Generator):
        bits = owner.bit_generator.state
        return lambda: setattr(owner.bit_generator, "state", bits)
    return None
