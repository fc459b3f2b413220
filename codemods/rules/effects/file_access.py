"""DYN306: files read or written in captured code."""

from ..call_rule import CallRule


class FileAccess(CallRule):
    """
    Opening, saving and loading files cannot be traced. Return the tensors and write them outside.
    """

    code = "DYN306"
    names = frozenset(
        [
            "open",
            "torch.save",
            "torch.load",
            "pickle.dump",
            "pickle.load",
            "numpy.save",
            "numpy.load",
        ]
    )
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    torch.save(x, "x.pt")
    return torch.relu(x)
"""
