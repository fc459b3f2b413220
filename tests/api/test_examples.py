"""The examples run, from start to end, as a reader would run them."""

import json
import os
import re
import sys
from pathlib import Path

import dynfix
import forked
import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDED = {"accelerated": ["accelerate"], "lora": ["peft", "transformers"]}
DYNRUN = "import sys; from dynfix.rewriter.dynrun.main import main; sys.exit(main())"


def run(*command):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = forked.run([sys.executable, *map(str, command)], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done


def test_quickstart():
    out = run(EXAMPLES / "quickstart.py").stdout
    assert (
        "Graph Break Count: 1" in out
        and "fullgraph: fullgraph=True, but the graph breaks here" in out
    )


@pytest.mark.slow
def test_training_script_under_dynrun_follows_python(tmp_path):
    losses = {}
    for name, command in {"python": [], "dynrun": ["-c", DYNRUN, "--explain"]}.items():
        out = tmp_path / f"{name}.json"
        done = run(*command, EXAMPLES / "train_text.py", "--steps", "6", "--json", out)
        losses[name] = json.loads(out.read_text())["losses"]
    torch.testing.assert_close(losses["dynrun"], losses["python"], rtol=0, atol=1e-4)
    assert "training step (train_text.py:107-110): 1 recorded, 1 graphs, 0 breaks" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in (EXAMPLES / "training").glob("*.py")))
def test_a_training_example_prints_under_dynrun_what_it_prints_under_python(name):
    for package in NEEDED.get(name, ()):
        pytest.importorskip(package)
    script = EXAMPLES / "training" / f"{name}.py"
    wanted = run(script).stdout
    got = run("-c", DYNRUN, "--eager-calls", "1", script).stdout
    number = re.compile(r"-?\d+\.\d+")
    assert number.sub("", got) == number.sub("", wanted)
    ours, pythons = ([float(n) for n in number.findall(out)] for out in (got, wanted))
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(pythons), rtol=1e-3, atol=2e-4)


def test_every_public_name_loads():
    for name in dynfix.__all__:
        assert getattr(dynfix, name) is not None
    assert set(dynfix.__all__) == {"__version__", *dynfix._PUBLIC}
