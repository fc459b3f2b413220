"""Tensor parallelism: models on DTensors are one graph, with the moves between ranks in it. In this
process there is one rank; as a script, this file compares what several ranks compute."""

import os
import subprocess
import sys
from pathlib import Path

import dynfix
import pytest
import torch
import torch.distributed as dist
from helpers import one_graph
from torch import nn
from torch.nn import functional as F

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
if dist.is_available():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

SHAPES = ((4, 6), (4, 6), (2, 6), (4, 6), (2, 6))


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(16), nn.LayerNorm(16)
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def attend(self, x):
        parts = (f(x).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.out(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(self.before(x))
        return x + self.down(F.gelu(self.up(self.between(x))))


def parallel(mesh):
    up, down = ColwiseParallel, RowwiseParallel
    plan = {"q": up(), "k": up(), "v": up(), "up": up()}
    plan |= {"out": down(), "down": down()}
    return parallelize_module(Block(), mesh, plan)


def along_the_sequence(mesh):
    whole = {"input_layouts": Shard(1)}
    plan = {name: ColwiseParallel(**whole) for name in ("q", "k", "v", "up")}
    plan |= {name: RowwiseParallel(output_layouts=Shard(1)) for name in ("out", "down")}
    plan |= {name: SequenceParallel() for name in ("before", "between")}
    return parallelize_module(Block(), mesh, plan)


class Moves(nn.Module):
    """What a forward itself asks of DTensors."""

    def __init__(self, mesh):
        super().__init__()
        self.mesh, self.weight = mesh, nn.Parameter(distribute_tensor(torch.ones(8, 16), mesh))
        self.placements = [Replicate()]

    def forward(self, x):
        given = DTensor.from_local(x, self.mesh, self.placements, run_check=False)
        y = given @ self.weight.t()
        if y.placements[0].is_shard():
            y = y.redistribute(self.mesh, [Replicate()])
        asked = y.device_mesh.size() + self.mesh.ndim
        spread = distribute_tensor(x, self.mesh, [Shard(1)])
        return y.to_local().relu() + asked, y._local_tensor.sum(), (spread * 2).full_tensor(), y


def local(value):
    return getattr(value, "_local_tensor", value)


def described(results):
    results = results if isinstance(results, tuple) else (results,)
    return [(str(getattr(r, "placements", "")), local(r)) for r in results]


def run(module, model, x):
    results = module(x)
    whole = results if isinstance(results, tuple) else (results,)
    total = sum(local(r.full_tensor() if isinstance(r, DTensor) else r).sum() for r in whole)
    given = [x, *model.parameters()]
    return described(results) + described(tuple(torch.autograd.grad(total, given)))


def equal(got, wanted):
    assert [lies for lies, _ in got] == [lies for lies, _ in wanted]
    for (_, one), (_, other) in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


MADE = (parallel, along_the_sequence, Moves)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("make", MADE)
def test_one_graph(mesh, make, backend):
    compared(mesh, make, backend)


def compared(mesh, make, backend):
    torch.manual_seed(0)
    dynfix.reset()
    eager, model = make(mesh), make(mesh)
    model.load_state_dict(eager.state_dict())
    compiled = dynfix.compile(model, backend=backend, fullgraph=True)
    for number, shape in enumerate(SHAPES):
        torch.manual_seed(number)
        x = torch.randn(*shape, 16, requires_grad=True)
        equal(run(compiled, model, x), run(eager, eager, x))
    one_graph(compiled)


def test_placements_that_change_are_seen(mesh):
    def program(x, placements):
        if x.placements == (Replicate(),):
            y = x.to_local() * 3
        else:
            y = x.redistribute(placements=[Replicate()]).to_local() * 2
        return y, DTensor.from_local(y, mesh, placements, run_check=False)

    dynfix.reset()
    compiled = dynfix.compile(program, backend="eager", fullgraph=True)
    for lies in (Shard(0), Replicate(), Partial(), Shard(0), Shard(1), Replicate()):
        x = DTensor.from_local(torch.randn(4, 4), mesh, [lies], run_check=False)
        for held in ([Shard(0)], [Shard(1)]):
            equal(described(compiled(x, held)), described(program(x, held)))


def test_it_is_compiled_below_the_class(mesh):
    """No DTensor is asked for an operator at a later call."""
    model = parallel(mesh)
    compiled = dynfix.compile(model, fullgraph=True)
    x = torch.randn(4, 6, 16)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
        with torch.profiler.profile() as seen:
            compiled(x)
    names = {event.name for event in seen.events()}
    assert "aten::native_layer_norm" not in names and "aten::gelu" not in names, names


def test_two_ranks():
    """Where tensors are split, and sums are over ranks."""
    launch = "-m torch.distributed.run --standalone --nproc-per-node 2".split()
    here = Path(__file__)
    path = os.pathsep.join([str(here.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, *launch, str(here)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.count("equal") == 2 * len(MADE), done.stderr


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for each in MADE:
        compared(init_device_mesh("cpu", (2,)), each, "native")
        print("equal", flush=True)
    dist.destroy_process_group()
