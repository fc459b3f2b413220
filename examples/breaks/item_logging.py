"""A value read on the host inside forward, kept for logging."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.last_mean = 0.0

    def forward(self, x):
        y = self.fc(x)
        m = y.mean().item()
        self.last_mean = m
        return torch.relu(y)


def make():
    """The module and its inputs: x of shape (4, 8), float32."""
    torch.manual_seed(0)
    return Model(), (torch.randn(4, 8),)
