"""Each language feature gives the same result, log, output, exception and traceback lines,
rewritten or not."""

import sys

import pytest
from comparing import feature_names, load, observe, path_of, rewrite_all

FILES = [
    "expressions",
    "statements",
    "exceptions",
    "functions",
    *(["newer"] if sys.version_info >= (3, 11) else []),
]
CASES = [(file, name) for file in FILES for name in feature_names(load(file))]


@pytest.fixture(scope="module")
def modules():
    made = {}
    for file in FILES:
        module = load(file)
        assert rewrite_all(module) >= 2
        made[file] = module
    return made


@pytest.mark.parametrize(("file", "name"), CASES, ids=[f"{file}-{name}" for file, name in CASES])
def test_feature(modules, file, name):
    path = path_of(file)
    plain = load(file)
    for _ in range(3):
        expected = observe(getattr(plain, name), path)
        assert observe(getattr(modules[file], name), path) == expected


def test_there_are_enough_features():
    assert len(CASES) >= 120


def test_the_comparison_sees_a_difference():
    module = load("expressions")
    path = path_of("expressions")
    before = observe(module.arithmetic, path)
    module.LIMIT = 4
    assert observe(module.lambda_defaults, path) != observe(
        load("expressions").lambda_defaults, path
    )
    assert observe(module.arithmetic, path) == before
