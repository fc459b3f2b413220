"""The GPU benchmark's own code, on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_dry_run_of_a_case(tmp_path):
    pytest.importorskip("triton")
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu",
        "--dry",
        "--out",
        str(tmp_path),
        "--only",
        "rms_norm",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    results = json.loads((tmp_path / "gpu.json").read_text())["results"]
    assert {(row["case"], row["dtype"], row["system"]) for row in results if row["ok"]} == {
        ("rms_norm", dtype, system)
        for dtype in ("bfloat16", "float32")
        for system in ("eager", "dynfix", "dynfix max-autotune")
    }
    assert "rms_norm" in (tmp_path / "gpu.txt").read_text()


def test_a_failure_is_a_row_and_an_exit_status(tmp_path):
    pytest.importorskip("torch")
    code = (
        "import sys\nfrom benchmarks import gpu\n"
        "gpu.MAKERS['dynfix'] = lambda fn, inputs, dry: (lambda *args: fn(*args) + 1)\n"
        "gpu.MAKERS['dynfix max-autotune'] = lambda fn, inputs, dry: 1 / 0\n"
        "from pathlib import Path\ngpu.Child('swiglu', Path(sys.argv[1]), True).run()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"}
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        check=True,
        timeout=200,
    )
    rows = {
        row["system"]: row
        for row in map(json.loads, (tmp_path / "gpu.jsonl").read_text().splitlines())
    }
    assert rows["eager"]["ok"]
    assert not rows["dynfix"]["ok"] and "largest error" in rows["dynfix"]["error"]
    assert (
        not rows["dynfix max-autotune"]["ok"]
        and "ZeroDivisionError" in rows["dynfix max-autotune"]["error"]
    )
