"""Runs the tests of `interpreted` under Triton's interpreter, one child process a file: that is
chosen when Triton is loaded."""

import os
import sys
from pathlib import Path

import forked
import pytest

FOLDER = Path(__file__).parent / "interpreted"


FILES = sorted(path.name for path in FOLDER.glob("test_*.py"))


def run(file, chosen):
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-m",
        chosen,
        str(FOLDER / file),
    ]
    done = forked.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


# seldom wrong alone: what these have is also printed in others, and runs on GPUs
RARE = "test_one_pass.py test_held_memory.py test_examples.py test_conversions.py".split()


@pytest.mark.parametrize(
    "file",
    [pytest.param(file, marks=pytest.mark.slow if file in RARE else ()) for file in FILES],
)
def test_file(file):
    run(file, "not slow")


@pytest.mark.slow
@pytest.mark.parametrize("file", [file for file in FILES if "slow" in (FOLDER / file).read_text()])
def test_rest_of_file(file):
    run(file, "slow")
