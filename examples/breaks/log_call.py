"""Logging inside forward."""

import logging

import torch
from torch import nn

logger = logging.getLogger(__name__)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x):
        y = self.a(x)
        logger.warning("mean after a: %s", y.mean())
        return torch.relu(y)


def make():
    """The module and its inputs: x of shape (4, 8), float32."""
    torch.manual_seed(0)
    return Model(), (torch.randn(4, 8),)
