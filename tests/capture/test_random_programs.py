"""Random programs do compiled what they do in eager."""

import pytest
from helpers import Case, module_from, same
from random_library import LibraryWriter
from random_programs import Writer, steps

CLOSE = (1e-4, 1e-5)

# A program wrote what eager had saved; a graph of functions writes nothing that it reads.
REFUSED = "eager:    'one of the variables needed for gradient computation has bee"


def check(tmp_path, seed, backend, writer=Writer):
    text = writer(seed).source()

    def make():
        module = module_from(tmp_path, text)
        names = ("LOG", "STATE", "LAYER", "WEIGHT", "TABLE", "QUEUE", "SEEN")
        watched = [vars(module)[name] for name in names if name in vars(module)]
        watched.append(list(getattr(module, "ORDER", {}).items()))
        return Case(fn=module.step, module=module, watch=lambda: [*watched, module.BUFFER])

    tolerance = None if backend == "eager" else CLOSE
    try:
        same(make, *steps(seed), backend=backend, tolerance=tolerance)
    except AssertionError as error:
        if backend == "native" and REFUSED in str(error):
            return
        raise AssertionError(f"seed {seed}:\n{text}\n{error}") from None


@pytest.mark.parametrize(
    "start", [0, *(pytest.param(start, marks=pytest.mark.slow) for start in (20, 40, 60, 80))]
)
def test_recorded(tmp_path, start):
    for seed in range(start, start + 20):
        check(tmp_path, seed, "eager")


@pytest.mark.slow
@pytest.mark.parametrize("start", range(100, 300, 20))
def test_more_recorded(tmp_path, start):
    for seed in range(start, start + 20):
        check(tmp_path, seed, "eager")


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 100, 10))
def test_compiled(tmp_path, start):
    for seed in range(start, start + 10):
        check(tmp_path, seed, "native")


@pytest.mark.parametrize(
    "start", [0, *(pytest.param(start, marks=pytest.mark.slow) for start in range(20, 200, 20))]
)
def test_recorded_with_the_standard_library(tmp_path, start):
    for seed in range(start, start + 20):
        check(tmp_path, seed, "eager", LibraryWriter)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 40, 10))
def test_compiled_with_the_standard_library(tmp_path, start):
    for seed in range(start, start + 10):
        check(tmp_path, seed, "native", LibraryWriter)
