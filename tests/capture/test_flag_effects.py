"""Flags of torch that a call sets are set at every call."""

import dynfix
import pytest
import torch
from helpers import X, Y


def test_flags_of_torch_backends():
    """One object for the whole process: eager and compiled calls take turns."""
    flags = torch.backends.cudnn
    before = flags.benchmark

    def toggled(x):
        flags.benchmark = not flags.benchmark
        return x + int(flags.benchmark)

    def told(fn):
        flags.benchmark = False
        found = [(fn(X).tolist(), flags.benchmark) for _ in range(5)]
        flags.benchmark = False
        return [*found, (fn(Y).tolist(), flags.benchmark)]

    try:
        assert told(dynfix.compile(toggled, backend="eager")) == told(toggled)
    finally:
        flags.benchmark = before


def test_functions_that_set_flags_of_torch_backends():
    """Set at every call, whatever stood there before; operators inside see them."""
    cuda, mha = torch.backends.cuda, torch.backends.mha

    def program(x):
        cuda.enable_flash_sdp(False)
        mha.set_fastpath_enabled(not mha.get_fastpath_enabled())
        with torch.backends.mkldnn.flags(enabled=False):
            inside = torch.backends.mkldnn.enabled
        return x + int(mha.get_fastpath_enabled()), inside, torch.backends.mkldnn.enabled

    def read(x):
        return x + int(cuda.flash_sdp_enabled())

    def told(program, read):
        found = []
        for step in range(5):
            cuda.enable_flash_sdp(step % 2 == 0)
            found += [read(X).tolist()]
            y, *flags = program(X)
            found += [y.tolist(), flags, cuda.flash_sdp_enabled(), mha.get_fastpath_enabled()]
        return found

    before = cuda.flash_sdp_enabled(), mha.get_fastpath_enabled()
    try:
        wanted = told(program, read)
        mha.set_fastpath_enabled(before[1])
        compiled = dynfix.compile(program, backend="eager", fullgraph=True)
        assert told(compiled, dynfix.compile(read, backend="eager", fullgraph=True)) == wanted
    finally:
        cuda.enable_flash_sdp(before[0])
        mha.set_fastpath_enabled(before[1])


def test_an_operator_under_a_flag_that_the_call_sets_is_cut():
    def program(x):
        with torch.backends.mkldnn.flags(enabled=False):
            y = x @ x.T
        return y + 1

    compiled = dynfix.compile(program, backend="eager")
    for _ in range(4):
        x = torch.randn(2, 3)
        assert torch.equal(compiled(x), program(x)) and torch.backends.mkldnn.enabled
    with pytest.raises(dynfix.GraphBreakError, match="under a flag"):
        dynfix.compile(program, backend="eager", fullgraph=True)(x)
