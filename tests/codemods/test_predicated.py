"""Writes under a tensor's condition, run: the same numbers whether it holds or not, and one
graph."""

import importlib.util

import pytest
import torch

from . import support

FIXTURE = support.FIXTURES / "DYN201" / "predicated.in.py"
INPUTS = {
    "all bins": torch.tensor([0.5, 1.5, 2.5, 3.5]),
    "one bin": torch.tensor([0.1, 0.2, 0.3, 9.0]),
    "no bin": torch.tensor([-1.0, -2.0, 9.0, 10.0]),
}


def loaded(text, path):
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.covering
@pytest.mark.parametrize("momentum", [0, 0.5])
@pytest.mark.parametrize("name", INPUTS)
def test_writes_under_a_condition(name, momentum, tmp_path):
    text = FIXTURE.read_text()
    fixed = support.fixed(text, unsafe=True).source.text
    before, after = (
        loaded(t, tmp_path / f"{n}.py") for n, t in (("before", text), ("after", fixed))
    )
    x, kept = INPUTS[name], torch.tensor([1, 1, 1, 0])
    torch._dynamo.reset()
    eager, compiled = (after.Harmonized(momentum=momentum) for _ in range(2))
    made = before.Harmonized(momentum=momentum)
    for _ in range(2):
        want = made(x, kept)
        torch.testing.assert_close(eager(x, kept), want)
        torch.testing.assert_close(
            torch.compile(compiled, backend="eager", fullgraph=True)(x, kept), want
        )
        torch.testing.assert_close([eager.sums, compiled.sums], [made.sums] * 2)
