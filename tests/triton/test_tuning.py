"""What the choice of a variant by time needs; the choice itself runs on a GPU only."""

import pytest
import torch

pytest.importorskip("triton")

from dynfix.lowering.targets.triton.triton_target import print_group
from dynfix.runtime.cache import disk_cache
from dynfix.runtime.gpu import tuning
from dynfix.runtime.gpu.launch_triton import memory_of
from kernel_examples import EXAMPLES
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


@pytest.mark.parametrize("make", EXAMPLES[:4], ids=lambda make: make.__name__)
def test_buffers_have_memory_while_fake_tensors_are_on(make):
    with FakeTensorMode():
        assert isinstance(torch.zeros(3), FakeTensor)
        for kernels in print_group(make()[0]).variants:
            buffers = memory_of(kernels[0], torch.device("cpu"))
            assert [buffer.numel() for buffer in buffers] == list(kernels[0].sizes)
            assert not any(isinstance(buffer, FakeTensor) for buffer in buffers)
            assert all(buffer.data_ptr() for buffer in buffers)
        assert isinstance(torch.zeros(3), FakeTensor)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_a_choice_is_measured_once(folder):
    assert tuning.choice(("kernel", "text"), 3, lambda: {0: 2.0, 2: 1.0}) == 2
    assert tuning.choice(("kernel", "text"), 3, lambda: 1 / 0) == 2
    assert tuning.choice(("kernel", "other"), 3, lambda: {0: 2.0, 1: 1.0}) == 1


@pytest.mark.parametrize("text", [b"7", b"-1", b"x", b""])
def test_a_choice_that_makes_no_sense_is_measured_again(folder, text):
    disk_cache.put(disk_cache.key(tuning.TOOL, "kernel"), ".choice", text)
    assert tuning.choice(("kernel",), 2, lambda: {0: 2.0, 1: 1.0}) == 1


def test_the_users_random_numbers_stay_as_they_are():
    before = torch.get_rng_state()
    made, ids = tuning.filled([(100, torch.bfloat16), (3, torch.int64)], torch.device("cpu"))
    assert torch.equal(before, torch.get_rng_state())
    assert made.unique().numel() > 50 and not ids.any()
