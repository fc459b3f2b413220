"""Steps of torch's optimizers, compiled and in eager. All of the table is slow, or
`python -m tests.operators.optimizers`."""

import pytest

pytest.importorskip("torch")

from .optimizers import check, optimizers, variants


def of(name, ending):
    chosen = (kwargs for what, kwargs in variants(optimizers()[name]) if what.endswith(ending))
    return next(chosen)


@pytest.mark.parametrize(
    ("name", "way"),
    [("SGD", "fused"), ("Adam", "foreach"), ("Adamax", "foreach"), ("LBFGS", "loop")],
)
def test_steps_are_those_of_eager(name, way):
    assert check(optimizers()[name], of(name, way))[0] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", optimizers())
def test_every_variant(name):
    found = {
        what: check(optimizers()[name], kwargs)[0] for what, kwargs in variants(optimizers()[name])
    }
    assert not any(found.values()), found
