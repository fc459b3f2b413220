"""A second process takes the programs that the first one left, and no kernel is printed or built."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

SCRIPT = """
import json, sys
import torch, dynfix
from dynfix.lowering.targets.triton import triton_build
from dynfix.runtime.gpu import launch_triton
from torch import nn
from torch.nn import functional as F

counts = {"printed": 0, "built": 0}

def counted(owner, name, what):
    own = getattr(owner, name)
    def call(*args, **kwargs):
        counts[what] += 1
        return own(*args, **kwargs)
    setattr(owner, name, call)

counted(triton_build, "print_group", "printed")
counted(launch_triton, "build", "built")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Dropout(0.1), nn.Linear(256, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

def step(x):
    loss = F.mse_loss(model(x), x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()

def training(x):
    return F.mse_loss(model(x), x)

kind = sys.argv[1]
mode = "reduce-overhead" if kind.endswith("graphs") else None
call = dynfix.compile(step if kind.startswith("step") else training, mode=mode)
seen = []
for turn in range(5):
    torch.manual_seed(turn)
    x = torch.randn(32, 64, device="cuda")
    with torch.set_grad_enabled(not kind.startswith("inference")):
        loss = call(x)
    if kind.startswith("training"):
        loss.backward()
    seen.append(loss.item())
print(json.dumps([seen, counts]))
"""


@pytest.mark.parametrize(
    "kind", ["inference", "training", "step", "inference graphs", "step graphs"]
)
def test_a_second_process(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path / "cache"))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    runs = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(script), kind], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    (first, built), (second, again) = runs
    assert first == pytest.approx(second, rel=1e-5)
    assert built["printed"] and built["built"]
    assert again == {"printed": 0, "built": 0}
