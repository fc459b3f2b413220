"""A debugger stop that was left in forward."""

import os

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x):
        y = self.a(x)
        breakpoint()
        return torch.relu(y)


def make():
    """The module and its inputs: x of shape (4, 8), float32. The variable makes the stop go on by
    itself."""
    os.environ["PYTHONBREAKPOINT"] = "0"
    torch.manual_seed(0)
    return Model(), (torch.randn(4, 8),)
