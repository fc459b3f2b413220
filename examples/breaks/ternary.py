"""A conditional expression on a tensor's value."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)

    def forward(self, x):
        y = torch.relu(self.a(x))
        scale = y * 2 if y.mean() > 0.25 else y
        return self.a(scale) if scale.sum() > 0 else self.b(scale)


def make():
    """The module and its inputs: x of shape (4, 8), float32."""
    torch.manual_seed(0)
    return Model(), (torch.randn(4, 8),)
