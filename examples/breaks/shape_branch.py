"""A branch on a size: not a break, but every new size is a new graph."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.narrow = nn.LazyLinear(4)
        self.wide = nn.LazyLinear(4)

    def forward(self, x):
        x = torch.relu(x)
        if x.shape[1] == 16:
            return self.narrow(x)
        else:
            return self.wide(x)


def make():
    """The module and its inputs: x of shape (4, 16), float32."""
    torch.manual_seed(0)
    model = Model()
    model.wide(torch.randn(1, 32))
    model.narrow(torch.randn(1, 16))
    return model, (torch.randn(4, 16),)
