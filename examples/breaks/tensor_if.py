"""A branch on a tensor's value: half of the calls go one way, half the other."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Linear(8, 8)

    def forward(self, x):
        if torch.rand(1) > 0.5:
            return self.h(x) + 1
        else:
            return self.h(x) - 1


def make():
    """The module and its inputs: x of shape (4, 8), float32."""
    torch.manual_seed(0)
    return Model(), (torch.randn(4, 8),)
