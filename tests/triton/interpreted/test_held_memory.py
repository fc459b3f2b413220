"""What kernels write early, beside others that read the same, is held until it is needed."""

import dynfix
import pytest
import torch
from dynfix.lowering import pipeline
from dynfix.lowering.loops import liveness
from dynfix.lowering.loops.storage import bytes_of, lifetimes

WIDTH, GROWTH = 32, 8


@pytest.fixture
def peaks(monkeypatch):
    """Bytes that each unit holds at most."""

    def finish(unit, target, options):
        begin, end = lifetimes(unit)
        own = begin.keys() - unit.given_buffers()
        found.append(
            max(
                sum(bytes_of(buffer) for buffer in own if begin[buffer] <= k <= end[buffer])
                for k in range(len(unit.items))
            )
        )
        return original(unit, target, options)

    found, original = [], pipeline.finish
    monkeypatch.setattr(pipeline, "finish", finish)
    monkeypatch.setattr(liveness, "MIN_STANDALONE_BYTES", 1)
    return found


def dense(x, weights):
    parts = [x * 2]
    for weight in weights:
        parts.append(torch.relu(torch.cat(parts, 1) - 0.5) @ weight)
    return torch.relu(torch.cat(parts, 1) - 0.5) @ torch.ones(WIDTH + GROWTH * len(weights), 1)


def test_joins_of_all_before(peaks, monkeypatch):
    torch.manual_seed(0)
    weights = [torch.randn(WIDTH + GROWTH * k, GROWTH) / 6 for k in range(8)]
    lines = []
    for near, rows in ((1 << 20, 64), (liveness.NEAR, 96)):  # each a program of its own
        monkeypatch.setattr(liveness, "NEAR", near)
        call = dynfix.compile(dense, fullgraph=True, options={"target": "triton", "strict": True})
        for _ in range(3):
            x = torch.randn(rows, WIDTH)
            torch.testing.assert_close(call(x, weights), dense(x, weights), rtol=1e-3, atol=1e-3)
        lines.append(peaks[-1] / (4 * (WIDTH + GROWTH * len(weights)) * rows))
    assert lines[1] < 4 < lines[0]
