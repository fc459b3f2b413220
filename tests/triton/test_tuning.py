"""What the choice of a variant by time needs; the choice itself runs on a GPU only."""

import pytest
import torch

pytest.importorskip("triton")

from dynfix.lowering.targets.triton import print_group
from dynfix.runtime.launch_triton import zeroed
from kernel_examples import EXAMPLES
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


@pytest.mark.parametrize("make", EXAMPLES[:4], ids=lambda make: make.__name__)
def test_buffers_have_memory_while_fake_tensors_are_on(make):
    with FakeTensorMode():
        assert isinstance(torch.zeros(3), FakeTensor)
        for kernels in print_group(make()[0]).variants:
            buffers = zeroed(kernels[0], torch.device("cpu"))
            assert [buffer.numel() for buffer in buffers] == list(kernels[0].sizes)
            assert not any(isinstance(buffer, FakeTensor) for buffer in buffers)
            assert all(buffer.data_ptr() for buffer in buffers)
        assert isinstance(torch.zeros(3), FakeTensor)
