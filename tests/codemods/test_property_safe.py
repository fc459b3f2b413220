"""Safe fixes of random programs: nothing that can be seen in eager changes."""

import contextlib
import random

import pytest
import torch

from . import support
from .random_programs import INPUTS, program, seen

_MODES = (contextlib.nullcontext, contextlib.nullcontext, torch.no_grad, torch.inference_mode)


def differences(seed):
    """(whether the program was changed, what differs afterwards)."""
    source = program(seed)
    fixed = support.fixed(source, scope="all" if seed % 4 == 0 else "forward").source.text
    if fixed == source:
        return False, []
    draw, found = random.Random(seed), []
    for _ in range(6):
        text, grad, outer = draw.choice(INPUTS), draw.random() < 0.6, draw.choice(_MODES)
        before, after = (seen(s, text, grad, outer) for s in (source, fixed))
        for key in before.keys() | after.keys():
            if before.get(key) != after.get(key):
                found.append((text, grad, outer.__name__, key, before.get(key), after.get(key)))
    return True, found


def _drawn(seeds):
    changed = 0
    for seed in seeds:
        touched, found = differences(seed)
        changed += touched
        assert not found, f"seed {seed}:\n{program(seed)}\n{found[0]}"
    return changed


def test_safe_fixes_change_nothing():
    assert _drawn(range(100)) > 10


@pytest.mark.slow
def test_safe_fixes_change_nothing_in_many():
    assert _drawn(range(1000, 6000)) > 500
