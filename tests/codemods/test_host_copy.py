"""NumPy on a tensor's copy: the torch form gives the same numbers, in one graph; what the rule says
of Dynamo holds."""

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")
traced = pytest.importorskip("torch._numpy")

from dynfix.codemods.cli import side_by_side
from dynfix.codemods.rules.host import host_copy

from . import support


def models():
    text = (support.FIXTURES / "DYN104/back.in.py").read_text()
    for name, shown in (
        ("original", text),
        ("fixed", support.fixed(text, unsafe=True).source.text),
    ):
        torch.manual_seed(0)
        yield side_by_side.load_text(shown, f"{name}.py", name).Model()


def test_the_same_numbers_and_gradients():
    original, fixed = models()
    for scale in (0.1, 1.0, 5.0):
        results = []
        for model in (original, fixed):
            x = (torch.arange(12.0).reshape(3, 4) * scale).requires_grad_()
            y = model(x)
            y.sum().backward()
            results.append((y.detach(), x.grad, torch.as_tensor(model.last)))
        torch.testing.assert_close(results[0], results[1])


def test_one_graph_is_left():
    original, fixed = models()
    x = torch.randn(3, 4)
    with torch.no_grad():
        assert side_by_side.count_breaks(original, (x,)) > 0
        torch._dynamo.reset()
        torch.testing.assert_close(
            torch.compile(fixed, backend="eager", fullgraph=True)(x), original(x)
        )
        assert side_by_side.count_breaks(fixed, (x,)) == 0


def test_the_functions_named_are_those_that_torch_lacks():
    names = [n for n in host_copy._UNTRACED if hasattr(numpy, n)]
    assert len(names) > 40
    assert not [n for n in names if hasattr(traced, n)]


@pytest.mark.parametrize(
    ("line", "breaks"),
    [
        ("np.sin(x.numpy())", False),
        ("np.asarray(x).shape[0]", False),
        ("x.cpu().numpy()", False),
        ("np.nanmean(x.numpy())", True),
        ("np.interp(x.numpy(), [0, 1], [0, 1])", True),
        ("x.cpu().numpy().tolist()", True),
        ("float(x.sum().numpy())", True),
        ("x.numpy().tobytes()", True),
        ("int(np.argmax(x.numpy()))", True),
    ],
)
def test_what_breaks_is_what_is_told_of(line, breaks):
    """The copy itself is told of, too: it breaks nothing, and leaves the device."""
    head = "import numpy as np\nimport torch\n\n\n@torch.compile\ndef step(x: torch.Tensor):\n"
    text = f"{head}    y = x * 2\n    return y, {line}\n"
    told = "DYN104" in support.codes(text)
    assert told is (breaks or ".cpu()" in line)
    step = side_by_side.load_text(text.replace("@torch.compile\n", ""), "step.py", "step").step
    with torch.no_grad():
        assert (side_by_side.count_breaks(step, (torch.randn(5),)) != 0) is breaks
