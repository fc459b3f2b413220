"""Text of tensors: the same in eager, in one graph when compiled, and the same there."""

import pytest

torch = pytest.importorskip("torch")

from dynfix.codemods.cli import side_by_side

from . import support

VALUES = {
    "int": [0, 7, -3, 123456789],
    "float": [0.0, 1.5, -2.25, 1e30, float("nan"), float("inf")],
}


def model(name, unsafe=True):
    text = (support.FIXTURES / f"DYN108/{name}.in.py").read_text()
    texts = text, support.fixed(text, unsafe=unsafe).source.text
    assert texts[0] != texts[1]
    for which, shown in zip(("original", "fixed"), texts, strict=True):
        torch.manual_seed(0)
        yield side_by_side.load_text(shown, f"{which}.py", which).Model()


@pytest.mark.parametrize("name", ["texts", "muted"])
def test_the_same_text_and_one_graph(name, capsys):
    original, fixed = model(name)
    x = torch.randn(3, 4)
    with torch.no_grad():
        want, told = original(x), capsys.readouterr().out
        assert str(fixed(x)) == str(want)
        assert capsys.readouterr().out == told
        torch._dynamo.reset()
        # older ones cannot store a text with a tensor on a module
        if torch.__version__ >= "2.13" or name != "texts":
            compiled = torch.compile(fixed, backend="eager", fullgraph=True)
            assert str(compiled(x)) == str(want)
        torch._dynamo.reset()
        assert side_by_side.count_breaks(original, (x,)) != 0


@pytest.mark.parametrize(
    "pattern", ["%.3f", "%f", "%8.2f", "%e", "%.2g", "%G", "%d", "%5d", "a {%%} %.1f %%"]
)
@pytest.mark.parametrize(
    ("kind", "dtype"), [("int", "long"), ("float", "double"), ("float", "float")]
)
def test_format_gives_what_percent_gives(pattern, kind, dtype):
    head = (
        f"import torch\n\n\n@torch.compile\ndef step(x: torch.Tensor):\n    t = x.{dtype}().sum()\n"
    )
    fixed = support.fixed(f'{head}    return "{pattern}" % t\n', unsafe=True).source.text
    refused = kind == "float" and "d" in pattern
    assert (".format(t)" in fixed) is not refused
    template = fixed.rsplit("return ", 1)[1]
    for value in VALUES[kind]:
        t = torch.tensor(value, dtype=getattr(torch, dtype))
        if not refused:
            assert eval(template, {"t": t}) == pattern % t


def test_a_later_write_shows_in_compiled_text():
    """What DYN108 tells of an f-string whose tensor is written to."""

    def step(x):
        y = x * 2
        text = f"{y}"
        y.add_(1)
        return text

    x = torch.ones(2)
    torch._dynamo.reset()
    assert torch.compile(step, backend="eager")(x) != step(x)
