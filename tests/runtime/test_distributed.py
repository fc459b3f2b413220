"""Two processes that talk to each other: what collectives and data parallelism do is done at every
call, and the models inside are compiled."""

import subprocess
import sys

import pytest
import torch

SCRIPT = """
import os
import sys
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import dynfix

dist.init_process_group("gloo")
rank = dist.get_rank()


def reduced(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def later(x):
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    z = x + 1
    work.wait()
    return y + z


def gathered(x):
    parts = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(parts, x * (rank + 1))
    return torch.cat(parts)


def ranked(x):
    return x + dist.get_rank() * 10 + dist.get_world_size()


def functional_sum(x):
    y = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
    return y + x * 3


def checked(body):
    compiled = dynfix.compile(body, backend=BACKEND)
    for step in range(4):
        x = torch.arange(4.0) + rank + step
        assert torch.equal(compiled(x), body(x)), (body.__name__, step)
    return compiled


def models(wrapped):
    torch.manual_seed(0)
    layers = nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 4)
    model = nn.Sequential(*layers)
    if wrapped == "ddp":
        return DistributedDataParallel(model)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def trained(wrapped, compiled):
    model = models(wrapped)
    step = dynfix.compile(model, backend=BACKEND) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for number in range(6):
        torch.manual_seed(100 * number + rank)
        loss = step(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return losses, [p.detach() for p in whole]


def overlapped():
    # graphs end where a bucket of gradients is full, and the last are differentiated first
    graphs = []

    def counting(module, inputs):
        graphs.append(module)
        return module.forward

    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(16, 64), nn.ReLU(True), nn.Linear(64, 16)) for _ in range(4)]
    model = DistributedDataParallel(nn.Sequential(*blocks), bucket_cap_mb=8192 / 2**20)
    compiled = dynfix.compile(model, backend=counting)
    order = []
    for number, parameter in enumerate(model.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda _, number=number: order.append(number))
    for turn in range(3):
        torch.manual_seed(turn + rank)
        x = torch.randn(8, 16)
        model(x).square().mean().backward()
        wanted = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        order.clear()
        compiled(x).square().mean().backward()
        torch.testing.assert_close([p.grad for p in model.parameters()], wanted)
        model.zero_grad()
    assert len(graphs) == 4, len(graphs)
    assert [number // 4 for number in order] == sorted((n // 4 for n in order), reverse=True)


def units():
    # what a sharded unit computes is one graph, its hooks run around it
    graphs = []

    def counting(module, inputs):
        graphs.append([node for node in module.graph.nodes if node.op == "call_function"])
        return module.forward

    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(10)]
    model = nn.Sequential(*blocks)
    for block in blocks:
        fully_shard(block)
    fully_shard(model)
    compiled = dynfix.compile(model, backend=counting)
    for turn in range(3):
        torch.manual_seed(turn + rank)
        x = torch.randn(8, 16)
        grads = []
        for called in (model, compiled):
            called(x).square().mean().backward()
            grads.append([p.grad.full_tensor() for p in model.parameters()])
            model.zero_grad()
        torch.testing.assert_close(*grads)
    assert [len(graph) for graph in graphs] == [3] * len(blocks), graphs


BACKEND = sys.argv[1]
for body in (reduced, later, gathered, ranked):
    checked(body)
assert len(checked(functional_sum)._dynfix_entry.recordings) == 1
for wrapped in ("ddp", "fsdp"):
    for one, other in zip(trained(wrapped, False), trained(wrapped, True)):
        torch.testing.assert_close(one, other)
overlapped()
units()
dist.barrier()
print(f"rank {rank} is done", flush=True)
os._exit(0)  # gloo's threads may abort a process that takes them down
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no collectives here")
@pytest.mark.parametrize("backend", ["eager", pytest.param("native", marks=pytest.mark.slow)])
def test_two_processes(backend, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, "-W", "ignore", "-m", *launcher, str(script), backend]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "rank 0 is done" in done.stdout and "rank 1 is done" in done.stdout
