"""Prints inside forward."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)

    def forward(self, x):
        y = torch.relu(self.a(x))
        print("mean after a:", y.mean())
        y = self.b(y)
        print(f"max after b: {y.max():.3f}")
        return y


def make():
    """The module and its inputs: x of shape (4, 8), float32."""
    torch.manual_seed(0)
    return Model(), (torch.randn(4, 8),)
