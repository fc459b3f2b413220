"""DYN504 under masks that have fewer axes than the tensor, or whose shape is not known: the same
numbers, one graph."""

import pytest
import torch

from . import support

TEXT = (support.FIXTURES / "DYN504" / "axes.in.py").read_text()
CASES = {
    "Boxes": (torch.randn(5, 3), torch.tensor([[1.0, 1.0], [0, 0], [2, -3], [0.5, 0], [3, 3]]), 2),
    "Smooth": (torch.linspace(-3, 3, 8), torch.zeros(8), 2.5),
}


@pytest.mark.parametrize("name", CASES)
def test_masks_with_fewer_axes(name):
    made = []
    text = TEXT.replace("        out[rows.sum(-1) > 1] = x[rows.sum(-1) > 1]\n", "")
    text = text.replace("        other[other > scale] = other[other > scale] * 2\n", "")
    for source in (text, support.fixed(text, unsafe=True).source.text):
        space = {}
        exec(compile(source, "model.py", "exec"), space)
        made.append(space[name]())
    results = []
    for model in (made[0], made[1], torch.compile(made[1], backend="eager", fullgraph=True)):
        torch.manual_seed(0)
        results.append(model(*CASES[name]))
    torch.testing.assert_close(results[1:], results[:1] * 2, rtol=0, atol=0)
