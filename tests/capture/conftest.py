"""The helpers of these tests lie beside them; a test that leaves torch changed for the next ones
fails itself."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


def _state_of_torch():
    module = torch.nn.modules.module
    hooks = {
        name: len(value)
        for name, value in vars(module).items()
        if name.startswith("_global_") and value
    }
    modes = (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_inference_mode_enabled(),
    )
    return (
        hooks,
        modes,
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_num_threads(),
    )


@pytest.fixture(autouse=True)
def torch_as_it_was():
    before = _state_of_torch()
    yield
    assert _state_of_torch() == before


@pytest.fixture
def no_gpu_in_use():
    """What a graph may assume where a wrong index does no harm."""
    if torch.cuda.is_initialized():
        pytest.skip("a GPU is in use: nothing is assumed")
