"""Types of the installed package, strict for the packages that setup.cfg names."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

CONFIG = Path(__file__).parents[1] / "setup.cfg"


def test_they_fit():
    pytest.importorskip("mypy")
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "mypy", "--config-file", str(CONFIG), "-p", "dynfix"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
