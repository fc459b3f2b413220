"""`pytest tests/codemods --regen` writes the expected side of the fixtures anew."""

import functools
import subprocess

import forked
import pytest


@pytest.fixture(scope="module")
def forked_runs():
    """The runs that `--trace` starts are forked from a process that has torch and Dynamo."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "run", functools.partial(forked.run, loaded="torch._dynamo"))
        yield


def pytest_addoption(parser):
    parser.addoption(
        "--regen",
        action="store_true",
        help="rewrite tests/codemods/fixtures/**/*.out.py from what dynfix does now",
    )
