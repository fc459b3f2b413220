"""A Python loop that accumulates: unrolled while tracing, so it is one graph already."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        out = self.fc(x)
        for i in range(5):
            out = out + i
        return out


def make():
    """The module and its inputs: x of shape (4, 8), float32."""
    torch.manual_seed(0)
    return Model(), (torch.randn(4, 8),)
