"""Models of transformers whose batches and sequences change in size: outputs and gradients of every
size, few recordings."""

import dynfix
import pytest

pytest.importorskip("transformers")

from .families import FAMILIES, batch
from .test_transformers import assert_captured, assert_same_step, native, pair

SIZES = [(2, 16), (2, 24), (3, 12), (5, 31), (4, 9), (7, 40), (2, 16), (6, 20)]
NAMES = [
    name if name == "bert" else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES
]
LIMIT = {"vit": 4}  # it sets `config.problem_type` at its first call, and is recorded anew


@pytest.mark.parametrize(
    "backend",
    [pytest.param("aot_eager", marks=pytest.mark.slow), native],
    ids=["aot_eager", "native"],
)
@pytest.mark.parametrize("name", NAMES)
def test_sizes_that_change(name, backend):
    dynfix.reset()
    eager, compiled = pair(name, backend=backend)
    for seed, (size, length) in enumerate(SIZES):
        assert_same_step(eager, compiled, batch(name, seed, size=size, length=length))
    assert_captured(compiled)
    assert len(compiled._dynfix_entry.recordings) <= LIMIT.get(name, 3)
