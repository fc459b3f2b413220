"""DYN306: files read or written in captured code."""

from ..call_rule import CallRule


class FileAccess(CallRule):
    """
    Opening, saving and loading files cannot be traced. Return the tensors and write them outside.
    """

    code, name, message = "DYN306", "file-access", "a file is read or written in compiled code"
    help = "return the tensors, and write them outside the compiled code"
    dynamo = ("GB0059",)
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
