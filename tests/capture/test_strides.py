"""Strides in the guards: one that moves no element is left open, one that was read or tells a
memory format is not."""

import dynfix
import pytest
import torch


def windows(base):
    return [base[:, -3:] for base in (torch.cat([base] * n, 1) for n in (1, 2, 3, 4))]


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_windows_of_a_growing_sequence_are_one_recording(backend):
    compiled = dynfix.compile(lambda x: (x * 2).sum(1), backend=backend)
    for window in windows(torch.arange(5.0)[None]):
        torch.testing.assert_close(compiled(window), (window * 2).sum(1))
    assert len(compiled._dynfix_entry.recordings) == 1


def test_a_stride_that_was_read_is_guarded():
    compiled = dynfix.compile(lambda x: x * x.stride(0), backend="eager")
    for window in windows(torch.arange(5.0)[None]):
        torch.testing.assert_close(compiled(window), window * window.stride(0))


def test_other_strides_are_guarded():
    compiled = dynfix.compile(lambda x: x + 1, backend="native")
    for given in (torch.ones(2, 3), torch.ones(3, 2).t(), torch.ones(2, 6)[:, ::2]):
        found, expected = compiled(given), given + 1
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
