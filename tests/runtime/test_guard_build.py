"""The native engine of guards where it is built, switched off, or cannot be built."""

import os
import sys

import forked
import pytest
from dynfix.runtime import build
from dynfix.runtime.errors import BuildError
from dynfix.runtime.guards import guard_native
from dynfix.runtime.guards.guard import Arg, GuardSet


def test_native_matcher_takes_over_when_ready():
    if guard_native.wait() is None:
        pytest.skip("no native guards here")
    guards = GuardSet([], [Arg(0)], 1)
    assert type(guards.match).__name__ == "builtin_function_or_method"
    assert guards.match((5,), {}) == [5]


SCRIPT = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
import torch
from dynfix.runtime.guards import guard_native
from dynfix.runtime.guards.guard import Arg, Guard, GuardSet, Tensor, TensorMeta
x = torch.zeros(2)
guards = GuardSet([Guard(Arg(0), Tensor(TensorMeta.of(x)))], [Arg(0)], 1)
assert guards.match((x,), {})[0] is x
print("native", guard_native.wait() is not None)
assert guards.match((x,), {})[0] is x and guards.match((x.half(),), {}) is None
print(type(guards.match).__name__)
"""


def run_script(**environment):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = forked.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_a_compiler_python_serves(tmp_path):
    output = run_script(PATH=str(tmp_path), CXX="", DYNFIX_CACHE_DIR=str(tmp_path / "cache"))
    assert "guards are checked in Python: no C++ compiler was found" in output
    assert "native False" in output and output.count("checked in Python") == 1
    assert output.splitlines()[-1] == "method"


def test_switched_off(tmp_path):
    output = run_script(DYNFIX_NATIVE_GUARDS="0", DYNFIX_CACHE_DIR=str(tmp_path / "cache"))
    assert "native False" in output and not list(tmp_path.iterdir())


def test_waiting_owners_are_served_when_the_build_is_done(monkeypatch):
    if guard_native.wait() is None:
        pytest.skip("no native guards here")
    engine = guard_native._Engine()
    monkeypatch.setattr(guard_native, "_engine", engine)
    guards = GuardSet([], [Arg(0)], 1)
    assert guards.match((1,), {}) == [1] and engine.native is None
    assert engine.wait() is not None
    assert type(guards.match).__name__ == "builtin_function_or_method"
    assert not engine.waiting


def test_a_failed_build_leaves_python(monkeypatch):
    def fail(*args, **kwargs):
        raise BuildError("planted")

    monkeypatch.setattr(build, "build_extension", fail)
    monkeypatch.setattr(build, "find_extension", lambda *a, **k: None)
    engine = guard_native._Engine()
    monkeypatch.setattr(guard_native, "_engine", engine)
    guards = GuardSet([], [Arg(0)], 1)
    assert engine.wait() is None and engine.failed == "planted"
    assert guards.match == guards.plan.match
    assert GuardSet([], [Arg(0)], 1).match((3,), {}) == [3]


def test_a_failed_self_test_leaves_python(monkeypatch):
    monkeypatch.setattr(guard_native, "_agrees", lambda native, tensor: False)
    engine = guard_native._Engine()
    if engine.failed:
        pytest.skip("no native guards here")
    assert engine.wait() is None
    assert "read wrongly" in engine.failed or "compiler" in engine.failed
