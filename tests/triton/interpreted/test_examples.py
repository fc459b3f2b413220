"""Every example kernel, in every tile that the target would offer, against torch."""

import pytest
import torch
from dynfix.lowering.loops import legality
from dynfix.lowering.targets.triton.triton_split import cut
from dynfix.lowering.targets.triton.triton_target import global_buffers, print_group
from dynfix.lowering.targets.triton.triton_tile import Device
from dynfix.runtime.gpu.launch_triton import load_groups
from dynfix.runtime.gpu.triton_kernels import TritonGroup
from kernel_examples import EXAMPLES

CPU = torch.device("cpu")


def variant(group: TritonGroup, number: int) -> TritonGroup:
    """The group with candidate `number` (or the last) of each kernel alone."""
    chosen = tuple((kernels[min(number, len(kernels) - 1)],) for kernels in group.variants)
    return TritonGroup(group.name, chosen, group.scratch, group.header)


def check(make, number):
    torch.manual_seed(0)
    group, tensors, expected = make()
    legality.check([group], "making")
    printed = print_group(group)
    launch = load_groups([variant(printed, number)], CPU)[0]
    launch(*(tensors[buffer.name] for buffer in global_buffers(group)))
    for name, wanted in expected.items():
        tolerance = (
            {"rtol": 1e-2, "atol": 1e-5}
            if wanted.dtype == torch.bfloat16
            else {"rtol": 2e-5, "atol": 2e-5}
        )
        torch.testing.assert_close(
            tensors[name].reshape(wanted.shape), wanted, **tolerance, equal_nan=True
        )


@pytest.mark.parametrize("make", EXAMPLES, ids=lambda make: make.__name__)
@pytest.mark.parametrize(
    "number", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))]
)
def test_example(make, number):
    check(make, number)


@pytest.mark.parametrize("make", EXAMPLES, ids=lambda make: make.__name__)
def test_pieces_are_legal(make):
    legality.check(cut(make()[0], Device()).groups, "cutting")


def test_kernels_of_one_piece_and_of_several():
    made = {make.__name__: len(print_group(make()[0]).variants) for make in EXAMPLES}
    assert (
        made["softmax"] == made["column_sum"] == made["many_softmax"] == made["add_layer_norm"] == 1
    )
    assert made["full_mean"] == made["long_argmax"] == made["long_columns"] == 2
    assert made["batch_norm"] == 3
