"""`dynrun` over several processes: the workers of torchrun's launcher are captured, and agree with
python's."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
x = torch.full((3, 4), float(dist.get_rank() + 1))
for _ in range(3):
    net.zero_grad()
    net(x).sin().sum().backward()
found = net.module.weight.grad.sum().item()
os.write(1, f"rank {dist.get_rank()}: {found:.5f}\\n".encode())  # at once: ranks share the pipe
dist.barrier()
dist.destroy_process_group()
"""
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def run(arguments, folder):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True
    )


@pytest.mark.slow
def test_two_ranks(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    wanted = run([*TORCHRUN, "script.py"], tmp_path)
    assert wanted.returncode == 0, wanted.stderr
    dynrun = ["-m", "dynfix.run", "--explain", "--backend", "aot_eager"]
    for arguments in ([*dynrun, *TORCHRUN], [*dynrun, "--nproc-per-node", "2"]):
        got = run([*arguments, "script.py"], tmp_path)
        assert got.returncode == 0, got.stderr
        assert sorted(got.stdout.splitlines()) == sorted(wanted.stdout.splitlines())
        lines = got.stderr.splitlines()
        for rank in "01":
            own = [line for line in lines if line.startswith(f"[rank {rank}] ")]
            assert f"[rank {rank}] dynrun: 1 captured" in own
            assert any("Linear (called at script.py:9)" in line for line in own)
