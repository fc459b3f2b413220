"""First calls that leave other state behind than they found: later processes do not record them."""

import types

import dynfix
import pytest
import torch
import torch.nn.functional as F
from dynfix.runtime.cache import disk_cache
from helpers import one_graph, recordings
from torch import nn


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path / "cache"))


def training(optimizer=torch.optim.AdamW, **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
    chosen = optimizer(model.parameters(), lr=0.1, **settings)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        chosen.step()
        chosen.zero_grad()
        return loss.detach()

    return step, model


def batches(n=4):
    generator = torch.Generator().manual_seed(1)
    for size in [5] * n:
        yield torch.randn(size, 6, generator=generator), torch.randint(3, (size,))


def run(make, **options):
    """What `make`'s function does compiled and in eager, and how many recordings there were after
    each call."""
    (fn, model), (plain, other) = make(), make()
    compiled, counts = dynfix.compile(fn, **options), []
    for x, y in batches():
        torch.testing.assert_close(compiled(x, y), plain(x, y), rtol=1e-4, atol=1e-5)
        counts.append(len(recordings(compiled)))
    for mine, wanted in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)
    return compiled, counts


def test_a_later_process_records_the_second_call_alone():
    assert run(training)[1] == [1, 2, 2, 2]
    compiled, counts = run(training)
    assert counts == [0, 1, 1, 1]
    one_graph(compiled)


def test_another_function_and_other_options_know_nothing_of_it():
    assert run(training)[1] == [1, 2, 2, 2]
    assert run(training, fullgraph=True)[1] == [1, 2, 2, 2]
    assert run(training, backend="eager")[1] == [1, 2, 2, 2]

    def make():
        step, model = training()

        def other(x, y):
            return step(x, y) * 2

        return other, model

    assert run(make)[1] == [1, 2, 2, 2]
    assert run(make)[1] == [0, 1, 1, 1]


def test_a_first_call_whose_recording_would_serve():
    """What was learnt is wrong where the optimizer has its state: only the recording comes
    later."""
    run(training)
    (step, _), (plain, _) = training(), training()
    first, *rest = batches()
    step(*first), plain(*first)
    compiled, counts = dynfix.compile(step), []
    for x, y in rest:
        torch.testing.assert_close(compiled(x, y), plain(x, y), rtol=1e-4, atol=1e-5)
        counts.append(len(recordings(compiled)))
    assert counts == [0, 1, 1]


def test_an_optimizer_without_state_is_recorded_at_once():
    for _ in range(2):
        assert run(lambda: training(torch.optim.SGD))[1] == [1, 1, 1, 1]


def test_numbers_that_move_are_learnt_from_the_first_call():
    def make():
        holder = types.SimpleNamespace(n=0, w=torch.ones(6))

        def step(x, y):
            holder.n += 1
            holder.w.add_(1)
            return (x * holder.w).sum() * holder.n

        return step, nn.Identity()

    first, second = run(make)[1], run(make)[1]
    assert first == second and first[0] > 0


def test_a_full_disk_is_no_matter(monkeypatch):
    put = disk_cache.put

    def full(key, suffix, data):
        if suffix == ".first":
            raise OSError(28, "No space left on device")
        return put(key, suffix, data)

    monkeypatch.setattr(disk_cache, "put", full)
    for _ in range(2):
        assert run(training)[1] == [1, 2, 2, 2]
