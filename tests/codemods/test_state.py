"""Counters and lists on modules: fixed code does the same in eager, call after call, and compiles
once."""

import pytest

torch = pytest.importorskip("torch")

from dynfix.codemods.cli import side_by_side

from . import support

CALLS = 12


def both(path):
    text = (support.FIXTURES / path).read_text()
    fixed = support.fixed(text, unsafe=True).source.text
    assert fixed != text
    models = []
    for name, shown in (("original", text), ("fixed", fixed)):
        torch.manual_seed(0)
        models.append(side_by_side.load_text(shown, f"{name}.py", name).Model())
    return models


def plain(value):
    """What an attribute holds, tensors as lists."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list) else value


def graphs(model):
    """How often `CALLS` calls compile."""
    made = []

    def backend(graph, inputs):
        made.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend)
    for _ in range(CALLS):
        compiled(torch.randn(3, 4))
    return len(made)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("path", "attributes"),
    [
        ("DYN307/guarded.in.py", ["calls", "seen"]),
        ("DYN307/buffers.in.py", ["calls", "rows"]),
        ("DYN308/lists.in.py", ["seen", "more", "groups", "pairs", "all"]),
    ],
)
def test_the_same_in_eager(path, attributes, training, capsys):
    told = []
    for model in (models := both(path)):
        model.train(training)
        results = [model(torch.full((3, 4), float(i))) for i in range(3)]
        sum(r.sum() for r in results).backward()
        held = [plain(getattr(model, name)) for name in attributes]
        told.append(
            [
                capsys.readouterr().out,
                plain(results),
                held,
                plain([p.grad for p in model.parameters()]),
            ]
        )
    assert told[0] == told[1]
    assert models[0].state_dict().keys() == models[1].state_dict().keys()


@pytest.mark.parametrize(
    "path", ["DYN307/guarded.in.py", "DYN307/buffers.in.py", "DYN308/lists.in.py"]
)
def test_compiled_once(path):
    original, fixed = both(path)
    limit = torch._dynamo.config.recompile_limit
    # which breaks before the graph
    assert graphs(original) >= limit or "print(" in (support.FIXTURES / path).read_text()
    assert graphs(fixed) == 1


def test_a_buffer_counts_when_compiled():
    original, fixed = both("DYN307/buffers.in.py")
    graphs(fixed)
    for _ in range(CALLS):
        original(torch.randn(3, 4))
    assert (int(fixed.calls), float(fixed.mean_rows())) == (original.calls, original.mean_rows())
    fixed.reset()
    assert fixed.calls == 0 and "calls" in dict(fixed.named_buffers())


def test_what_was_handed_out_stays():
    told = []
    for model in both("DYN307/handed_out.in.py"):
        counts = []
        for _ in range(3):
            model(torch.ones(3, 4))
            counts.append(model.count())
        told.append([int(c) for c in counts])
    assert told == [[1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize("name", ["Twice", "Inherits"])
def test_a_buffer_beside_a_class_attribute_raises(name):
    """Why DYN307 leaves these: `register_buffer` finds the name on the class."""
    text = (support.FIXTURES / "DYN307/kept.in.py").read_text()
    cls = getattr(side_by_side.load_text(text, "kept.py", "kept"), name)
    model = cls()
    model(torch.ones(3, 4))
    attr = {"Twice": "count", "Inherits": "total"}[name]
    assert getattr(model, attr) == 1
    with pytest.raises(KeyError, match="already exists"):
        model.register_buffer(attr, torch.tensor(0))


def test_integers_without_an_axis_meet_a_buffer_in_int64():
    """What DYN307 tells of dtypes; others stay as they are with a Python number."""
    count = torch.tensor(1)
    for dtype in (torch.bool, torch.int32, torch.int64, torch.float16, torch.float32):
        for shape in ((), (2,)):
            x = torch.ones(shape, dtype=dtype)
            same = (x + count).dtype == (x + 1).dtype
            assert same is not (dtype == torch.int32 and shape == ())


@pytest.mark.parametrize("path", ["DYN307/quiet_others.in.py", "DYN308/quiet_others.in.py"])
def test_what_is_quiet_compiles_a_few_times_at_most(path):
    """Except what code outside sets back before each call, or has no known kind."""
    text = (support.FIXTURES / path).read_text()
    for known in (
        "        self.start += 1\n",
        "        self.outside += 1\n",
        "        self.sink.append(x)\n",
        "        self.taken.append(x)\n",
    ):
        text = text.replace(known, "")
    model = side_by_side.load_text(text, "quiet.py", "quiet").Model(0)
    assert graphs(model) < torch._dynamo.config.recompile_limit


def test_number_buffers_and_counters_leave_each_other_alone():
    """DYN107 makes numbers of buffers that stay, DYN307 buffers of numbers that change."""
    documented = {}
    for code in ("DYN107", "DYN307"):
        (rule,) = [r for r in support.check.RULES if r.code == code]
        documented[code] = rule
    for code, other in (("DYN107", "DYN307"), ("DYN307", "DYN107")):
        result = support.fixed(documented[code].before, unsafe=True)
        assert {f.code for f in result.applied} == {code}
        assert other not in support.codes(result.source.text)
        assert not support.fixed(result.source.text, unsafe=True).applied
