"""What a forward keeps for its backward."""

import pytest
import torch

from .harness import compiled

F = torch.nn.functional


@pytest.mark.parametrize("activation", [F.gelu, F.silu, torch.sigmoid], ids=lambda f: f.__name__)
def test_an_activation_keeps_its_input_alone(activation):
    """Not what its formula has between input and result, in float32."""
    gate, up = (torch.randn(40, 30, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    call = compiled(lambda gate, up: activation(gate) * up, gate, up)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda tensor: tensor):
        call(gate, up)
    assert sum(t.numel() * t.element_size() for t in kept) <= 2 * 40 * 30 * 2
