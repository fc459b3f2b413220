"""Shared set-up: a cache of its own for every run, the same draws for every test, whichever ran
before it, and no torch tests where torch is not installed."""

import gc
import importlib.util
import logging
import os
import sys
import tempfile
from pathlib import Path

import pytest
from grids import is_covered
from importgraph import file_loads_torch

HAS_TORCH = importlib.util.find_spec("torch") is not None


# Tests look at what is recorded; `tests/api/test_stored_recordings.py` switches it on.
os.environ.setdefault("DYNFIX_STORED_RECORDINGS", "0")


def pytest_configure(config):
    if "DYNFIX_CACHE_DIR" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="dynfix-tests-", ignore_cleanup_errors=True)
        os.environ["DYNFIX_CACHE_DIR"] = folder.name
        config.add_cleanup(folder.cleanup)


@pytest.fixture(autouse=True)
def seeded():
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def garbage_of_one_file():
    """Collections go through what the tests of a file made, not through all that was there before:
    torch and thousands of tests, a second or more each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Nothing that is made while tests are found is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    _let_torch_trace_nothing()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call():
    _let_torch_trace_nothing()


def _let_torch_trace_nothing():
    """pytest listens to loggers that hand nothing on; where anybody listens to this one, torch
    writes out each graph that it makes."""
    logging.getLogger("torch.__trace").handlers.clear()


def pytest_ignore_collect(collection_path: Path, config):
    """Leave out what imports torch, directly or through dynfix, where it is not installed: test
    files, and folders whose conftest.py does."""
    file = collection_path / "conftest.py" if collection_path.is_dir() else collection_path
    if HAS_TORCH or not file.exists() or file.suffix != ".py":
        return None
    return True if file_loads_torch(file) else None


def pytest_report_header(config):
    return [] if HAS_TORCH else ["torch is not installed: the tests that import it are left out"]


@pytest.hookimpl(tryfirst=True)  # before those that -m leaves out are left out
def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("covering") is not None and is_covered(item):
            item.add_marker(pytest.mark.slow)
    # Each worker takes whole files: the one that takes longest comes first, so that none waits for it.
    items.sort(key=lambda item: item.path.name != "test_interpreter.py")
    if any(item.get_closest_marker("gpu") is not None for item in items) and not _has_cuda():
        for item in items:
            if item.get_closest_marker("gpu") is not None:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _has_cuda():
    if not HAS_TORCH:
        return False
    import torch

    return torch.cuda.is_available()
