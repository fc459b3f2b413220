import threading

import dynfix
import pytest
import torch
from dynfix.runtime.programs import arena

F = torch.nn.functional


@pytest.fixture(autouse=True)
def no_blocks(monkeypatch):
    monkeypatch.setattr(arena, "_free", [])


def test_the_last_block_is_used_again_and_a_small_one_makes_room():
    small = arena.take(100)
    arena.give_back(small)
    assert arena.take(64) is small
    arena.give_back(small)
    large = arena.take(1000)
    assert large is not small and large.size == 1000
    arena.give_back(large)
    assert arena.take(100) is large


def test_two_owners_never_share():
    one, two = arena.take(64), arena.take(64)
    assert one is not two and one.address != two.address


def test_what_is_kept_is_bounded(monkeypatch):
    for block in [arena.ArenaBlock(8) for _ in range(arena.MAX_KEPT_BLOCKS + 3)]:
        arena.give_back(block)
    assert len(arena._free) == arena.MAX_KEPT_BLOCKS
    monkeypatch.setattr(arena, "_free", [])
    monkeypatch.setattr(arena, "LARGEST", 16)
    arena.give_back(arena.ArenaBlock(17))
    assert not arena._free


def test_tensors_are_made_once_a_block_and_plain():
    views = arena.ArenaViews(
        (
            arena.ArenaView(64, (2, 3), (3, 1), torch.float32),
            arena.ArenaView(0, (4,), (1,), torch.float64),
        )
    )
    block = arena.ArenaBlock(200)
    with torch.inference_mode():
        made = block.tensors(views)
    assert block.tensors(views)[0] is made[0]
    assert made[0].data_ptr() == block.address + 64 and made[1].dtype == torch.float64
    assert not any(tensor.is_inference() or tensor.requires_grad for tensor in made)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out((q @ k.mT).softmax(-1) @ v)


def test_results_of_earlier_calls_stay():
    model = Attention()
    call = dynfix.compile(model)
    inputs = [torch.randn(4, 6, 8) for _ in range(5)]
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode():
            found = [call(x) for x in inputs]
            for x, y in zip(inputs, found, strict=True):
                torch.testing.assert_close(y, model(x), rtol=1e-4, atol=1e-5)


def test_backward_in_any_order_and_twice():
    model = Attention()
    call = dynfix.compile(model)
    inputs = [torch.randn(4, 6, 8, requires_grad=True) for _ in range(4)]
    found = [call(x) for x in inputs]
    for x, y in reversed(list(zip(inputs, found, strict=True))):
        (once,) = torch.autograd.grad(y.square().sum(), x, retain_graph=True)
        (again,) = torch.autograd.grad(y.square().sum(), x)
        (expected,) = torch.autograd.grad(model(x).square().sum(), x)
        assert torch.equal(once, again)
        torch.testing.assert_close(once, expected, rtol=1e-4, atol=1e-5)


def test_threads_have_blocks_of_their_own():
    model = Attention()
    call = dynfix.compile(model)
    with torch.no_grad():
        call(torch.randn(4, 6, 8)), call(torch.randn(4, 6, 8))
    wrong = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _ in range(60):
                x = torch.randn(4, 6, 8, generator=generator)
                if not torch.allclose(call(x), model(x), rtol=1e-4, atol=1e-5):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(arena._free) <= arena.MAX_KEPT_BLOCKS


def test_a_call_that_raises_leaves_the_next_one_alone():
    table = torch.randn(5, 8)

    def fn(ids, x):
        return (F.embedding(ids, table) * 2) @ (x + 1)

    call = dynfix.compile(fn)
    x = torch.randn(8, 3)
    good, bad = torch.tensor([1, 4]), torch.tensor([1, 5])
    for _ in range(3):
        torch.testing.assert_close(call(good, x), fn(good, x))
        with pytest.raises(IndexError):
            call(bad, x)
