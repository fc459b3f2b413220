"""Copies of results that share memory, and views of arguments, as CUDA graphs hand them out."""

import pytest

torch = pytest.importorskip("torch")

from dynfix.runtime.gpu import result_blocks as blocks


def bits(tensor):
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()


def same(one, two):
    assert bits(one) == bits(two)
    assert torch.equal(one, two)


def test_copies_share_memory_as_the_results_do():
    x, z = torch.randn(5, 7), torch.randn(6, dtype=torch.complex64)
    shared = [x[1:], x, x.t(), x.view(torch.int16), z.conj(), z, z.real, z.conj().imag]
    apart = [
        torch.randn(3, 4)[:, ::2],
        torch.randn(2, 2),
        torch.randn(()).expand(2, 3),
        torch.randn(9).unfold(0, 3, 1)[2:],
        torch.empty(0, 3),
        torch.randn(9)[4:4],
        torch.randn(2, dtype=torch.complex128)[1:].conj(),
    ]
    own = dict(enumerate([*shared, *apart]))
    found = blocks.blocks_of(own)
    assert len({id(block) for block in found.values()}) == 2 + len(apart)
    for block in found.values():
        memory = torch.empty_like(block.memory).copy_(block.memory)
        copies = block.results_in(memory)
        assert copies.keys() == block.results.keys()
        for k, copy in copies.items():
            same(copy, own[k])
            assert copy.untyped_storage()._cdata == memory.untyped_storage()._cdata


@pytest.mark.parametrize(
    "view",
    [
        lambda x, z: (0, x[1:].t()),
        lambda x, z: (0, x.view(torch.int16)[2:]),
        lambda x, z: (0, x.view(torch.int64)),
        lambda x, z: (1, z.conj()[1:]),
        lambda x, z: (1, z.conj().imag),
        lambda x, z: (1, z.real),
    ],
)
def test_views_of_other_arguments_lie_as_the_first_ones_view(view):
    k, first = view(*(args := (torch.randn(6, 4), torch.randn(6, dtype=torch.complex64))))
    moved = blocks.start_of(first) - blocks.start_of(args[k])
    later = (torch.randn(7, 4)[1:], torch.randn(8, dtype=torch.complex64)[2:])
    made = blocks.view_of(k, blocks.outline(first), moved, later)
    same(made, view(*later)[1])
    assert made.untyped_storage()._cdata == later[k].untyped_storage()._cdata
