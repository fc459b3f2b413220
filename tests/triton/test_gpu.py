"""Kernels and whole functions on a real GPU; `pytest -m gpu tests/`."""

import subprocess
import sys
from pathlib import Path

import dynfix
import pytest
import torch
from dynfix.lowering.joint import compile_graph
from dynfix.lowering.targets.triton.triton_target import global_buffers, print_group
from dynfix.runtime.gpu.graph_capture import NotCapturable, captured
from dynfix.runtime.gpu.launch_triton import load_groups
from dynfix.runtime.gpu.triton_kernels import TritonGroup
from dynfix.runtime.options import Options
from kernel_examples import EXAMPLES

pytestmark = pytest.mark.gpu
F = torch.nn.functional


def loose(dtype):
    return (
        {"rtol": 1.6e-2, "atol": 1e-3} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    )


def close(found, expected, **tolerance):
    torch.testing.assert_close(found, expected, equal_nan=True, **tolerance)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("make", EXAMPLES, ids=lambda make: make.__name__)
def test_example_kernels(make, number):
    torch.manual_seed(0)
    group, tensors, expected = make()
    tensors = {name: tensor.cuda() for name, tensor in tensors.items()}
    printed = print_group(group)
    chosen = tuple((kernels[min(number, len(kernels) - 1)],) for kernels in printed.variants)
    launch = load_groups(
        [TritonGroup(group.name, chosen, printed.scratch, printed.header)], torch.device("cuda")
    )[0]
    launch(*(tensors[buffer.name] for buffer in global_buffers(group)))
    for name, wanted in expected.items():
        found = tensors[name].cpu().reshape(wanted.shape)
        close(
            found,
            wanted,
            **(loose(wanted.dtype) if wanted.is_floating_point() else {"rtol": 0, "atol": 0}),
        )


def gelu_chain(x, b):
    return F.gelu(F.gelu(x + b) * 1.5) + x


def normalised(x, w):
    return F.layer_norm(x, (x.shape[-1],), w) * torch.sigmoid(x) + x.softmax(-1)


def reductions(x, w):
    return x.sum(), x.sum(0), x.amax(1), x.argmax(), (x * w).mean(1), x.var(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fn", [gelu_chain, normalised], ids=lambda fn: fn.__name__)
def test_three_calls_with_changing_inputs(fn, dtype):
    call = dynfix.compile(fn, fullgraph=True)
    for seed, rows in enumerate((300, 300, 77)):  # the third call has another size
        torch.manual_seed(seed)
        x, w = (
            torch.randn(rows, 768, device="cuda").to(dtype),
            torch.randn(768, device="cuda").to(dtype),
        )
        exact = fn(x.double(), w.double())
        ours, eager = (
            (call(x, w).double() - exact).abs().max(),
            (fn(x, w).double() - exact).abs().max(),
        )
        assert ours <= 2 * eager + 1e-5


def test_reductions():
    x, w = torch.randn(3000, 515, device="cuda"), torch.randn(515, device="cuda")
    call = dynfix.compile(reductions, fullgraph=True)
    for _ in range(3):
        close(call(x, w), reductions(x, w), rtol=1e-4, atol=1e-2)
        x = x.flip(0)


class MLP(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = (
            torch.nn.Linear(64, 256),
            torch.nn.LayerNorm(256),
            torch.nn.Linear(256, 10),
        )

    def forward(self, x):
        return self.last(F.gelu(self.norm(self.first(x))))


def test_backward_of_an_mlp():
    torch.manual_seed(0)
    model = MLP().cuda()
    call = dynfix.compile(model, fullgraph=True)
    for _ in range(3):
        x, labels = torch.randn(128, 64, device="cuda"), torch.randint(0, 10, (128,), device="cuda")
        gradients = []
        for forward in (call, model):
            model.zero_grad()
            F.cross_entropy(forward(x), labels).backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
        for ours, eager in zip(*gradients, strict=True):
            close(ours, eager, rtol=1e-3, atol=1e-5)


def test_joint_graph_without_the_front_end():
    x, w = (
        torch.randn(64, 100, device="cuda", requires_grad=True),
        torch.randn(100, device="cuda", requires_grad=True),
    )
    call = compile_graph(torch.fx.symbolic_trace(normalised), [x, w], Options())
    ours = torch.autograd.grad(call(x, w).sum(), (x, w))
    close(ours, torch.autograd.grad(normalised(x, w).sum(), (x, w)), rtol=1e-3, atol=1e-4)


def test_current_stream_is_used():
    """A kernel on a side stream must wait for that stream's own earlier work."""
    x, b = torch.randn(2048, 2048, device="cuda"), torch.randn(2048, device="cuda")
    call = dynfix.compile(gelu_chain, fullgraph=True)
    call(x, b)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    for turn in range(3):
        y = torch.zeros_like(x)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            y.fill_(turn + 1.0)
            found = call(y, b)
        stream.synchronize()
        close(found, gelu_chain(y, b), rtol=1e-4, atol=1e-4)


def test_a_capture_that_fails_leaves_random_numbers_to_others():
    class Asks:
        steps, name = (), "asks"

        def __call__(self, args):
            return [args[0].sum().item()]

    with pytest.raises(NotCapturable):
        captured(Asks(), torch.device("cuda", 0), [torch.ones(3, device="cuda")])
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append(torch.randn(5, device="cuda"))
    assert torch.equal(*drawn)


def test_inputs_that_are_not_contiguous_or_not_aligned():
    call = dynfix.compile(gelu_chain, fullgraph=True)
    base, b = torch.randn(513, 515, device="cuda"), torch.randn(256, device="cuda")
    for x in (
        base.t()[:64, :256],
        base[1:65, 1:257],
        base[::2][:64, 3:259],
        base.flatten()[1 : 1 + 64 * 256].view(64, 256),
    ):
        close(call(x, b), gelu_chain(x, b), rtol=1e-4, atol=1e-4)


def alone(check):
    """Run `check` of this file in a process of its own: a fault on the device spoils all that
    follows in its process."""
    code = f"import test_gpu, torch; test_gpu.{check.__name__}(); torch.cuda.synchronize()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_tuned_variants_give_the_same():
    alone(tuned)


def tuned():
    x, b = torch.randn(4096, 1024, device="cuda"), torch.randn(1024, device="cuda")
    call = dynfix.compile(
        normalised, fullgraph=True, options={"max_autotune": True, "strict": True}
    )
    for _ in range(3):
        close(call(x, b), normalised(x, b), rtol=1e-4, atol=1e-4)


def test_indices_from_memory_stay_inside():
    alone(embedded)


def embedded():
    """Negative positions count from the end; those outside read some element of the table, whatever
    they are."""
    table, ids = (
        torch.randn(1000, 64, device="cuda"),
        torch.randint(0, 1000, (4, 77), device="cuda"),
    )

    def embed(table, ids):
        return F.embedding(ids, table) * 2 + 1

    call = dynfix.compile(embed, fullgraph=True, options={"strict": True})
    for _ in range(3):
        close(call(table, ids), embed(table, ids), rtol=0, atol=1e-6)
        ids = ids.flip(0)

    def pick(table, ids):
        return table[ids] * 2 + table[ids.flip(0)].softmax(-1)

    call = dynfix.compile(pick, fullgraph=True, options={"strict": True})
    close(call(table, ids - 1000), pick(table, ids - 1000), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_second_device_while_the_first_is_current():
    x, b = torch.randn(64, 128, device="cuda:1"), torch.randn(128, device="cuda:1")
    call = dynfix.compile(gelu_chain, fullgraph=True)
    with torch.cuda.device(0):
        close(call(x, b), gelu_chain(x, b), rtol=1e-4, atol=1e-4)


def test_sizes_that_change():
    """The first sizes have kernels of their own; the last recordings stand for every size."""

    def f(x, w):
        b, t, c = x.shape
        y = torch.nn.functional.layer_norm(x @ w, (c,)).view(b * t, c).float()
        return torch.softmax(y, -1).view(b, t, c) * t + torch.arange(t, device=x.device)[:, None]

    compiled = dynfix.compile(f)
    w = torch.randn(64, 64, device="cuda")
    sizes = [
        (2, 16),
        (2, 24),
        (3, 12),
        (5, 31),
        (4, 200),
        (7, 9),
        (2, 11),
        (6, 13),
        (3, 77),
        (2, 16),
        (9, 5),
        (4, 40),
    ]
    for b, t in sizes:
        x = torch.randn(b, t, 64, device="cuda")
        torch.testing.assert_close(compiled(x, w), f(x, w), rtol=1e-4, atol=1e-4)
    entries = compiled._dynfix_entry._dispatcher.entries
    assert entries[-1].general and len(entries) <= 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "windows", [(2,), (3, 2, 1), (3, 1, 1), (3, 2, 1, 2), ((3, 2), (2, 1), (1, 0), (2, 3), True)]
)
def test_gradient_of_max_pool2d(windows, memory, dtype):
    kernel, stride, padding, dilation, ceil = (*windows, *(None, 0, 1, False)[len(windows) - 1 :])

    def pooled(x):
        return F.max_pool2d(x, kernel, stride, padding, dilation, ceil).relu()

    call = dynfix.compile(pooled)
    for _ in range(3):
        x = torch.randn(3, 16, 23, 20, device="cuda", dtype=dtype).to(memory_format=memory)
        x[0, 0, 1:7], x[1, :, :9] = float("nan"), float("-inf")
        ours, theirs = (x.clone().requires_grad_() for _ in range(2))
        found, wanted = call(ours), pooled(theirs)
        assert torch.equal(found.nan_to_num(7), wanted.nan_to_num(7))
        grad = torch.randn_like(wanted)
        found.backward(grad)
        wanted.backward(grad)
        assert ours.grad.stride() == theirs.grad.stride()
        close(ours.grad, theirs.grad, rtol=0.02, atol=0.02 if dtype == torch.bfloat16 else 1e-5)


class SmallNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 16, 3), torch.nn.Conv2d(16, 32, 3, stride=2)
        self.norm, self.head = torch.nn.BatchNorm2d(16), torch.nn.Linear(32, 4)

    def forward(self, x):
        y = self.second(torch.relu(self.norm(self.first(x))))
        return self.head(F.max_pool2d(y, 2).mean((2, 3))), y


@pytest.mark.parametrize("train", [False, True])
def test_convolution_nets_keep_their_strides(train):
    torch.manual_seed(0)
    ours = SmallNet().cuda().train(train)
    theirs = SmallNet().cuda().train(train)
    theirs.load_state_dict(ours.state_dict())
    compiled = dynfix.compile(ours, fullgraph=True)
    for _ in range(3):
        x = torch.randn(4, 3, 19, 19, device="cuda")
        found, expected = compiled(x), theirs(x)
        for one, two in zip(found, expected, strict=True):
            assert one.stride() == two.stride()
            close(one, two, rtol=1e-3, atol=1e-3)
        found[0].sum().backward()
        expected[0].sum().backward()
    for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert one.grad.stride() == two.grad.stride()
        close(one.grad, two.grad, rtol=1e-2, atol=1e-2)
    for one, two in zip(ours.buffers(), theirs.buffers(), strict=True):
        close(one.float(), two.float(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("far", [1000, -1001, 2**40, -(2**63), 2**63 - 1])
def test_a_position_out_of_range_stops_with_the_users_line(far, tmp_path):
    script = tmp_path / "bad.py"
    script.write_text(
        "import torch, dynfix\n"
        "f = dynfix.compile(lambda t, i: t.index_select(0, i) * 2)\n"
        "t, i = torch.randn(1000, 3, device='cuda'), torch.tensor([0, 1], device='cuda')\n"
        "for _ in range(3): f(t, i)\n"
        f"f(t, torch.full_like(i, {far}))\n"
        "torch.cuda.synchronize()\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "index out of range" in done.stderr and "bad.py:2" in done.stderr


@pytest.mark.parametrize("mode", ["trunc", "floor"])
def test_quotients_are_exact_where_they_are_rounded(mode):
    compiled = dynfix.compile(lambda x, y: (torch.div(x, y, rounding_mode=mode), x / y))
    for dtype in (torch.float32, torch.bfloat16, torch.float32):
        x = torch.randn(5000, device="cuda").to(dtype)
        whole, exact = compiled(x, x)
        assert (whole == 1).all()
        assert (exact == 1).all()


def test_a_batch_norm_by_statistics_of_the_host():
    def fn(x):
        mean, variance = torch.zeros(7).to(x), torch.ones(7).to(x)
        return F.batch_norm(x * 2, mean, variance, x.new_ones(7))

    compiled = dynfix.compile(fn)
    for _ in range(4):
        x = torch.randn(5, 7, device="cuda", dtype=torch.bfloat16).requires_grad_()
        ours, theirs = compiled(x), fn(x)
        close(ours, theirs, **loose(torch.bfloat16))
        close(*(torch.autograd.grad(y.sum(), x)[0] for y in (ours, theirs)), rtol=2e-2, atol=1e-2)
