"""`explain`: what it counts, and that it prints like the tutorial's."""

import os

import dynfix
import pytest
import torch

X = torch.tensor([1.0, -2.0, 3.0])


def broken(x):
    y = x.sin() + 1
    dynfix.graph_break()
    return y * 2


def whole(x, *, k=1):
    return (x * k).relu()


def test_one_graph():
    out = dynfix.explain(whole)(X, k=3)
    assert isinstance(out, dynfix.ExplainOutput)
    assert (out.graph_count, out.graph_break_count, out.break_reasons) == (1, 0, [])
    assert out.op_count == sum(map(len, out.ops_per_graph)) == 2
    assert isinstance(out.graphs[0], torch.fx.GraphModule)


def test_a_break_is_counted_and_placed():
    out = dynfix.explain(broken)(X)
    assert (out.graph_count, out.graph_break_count, out.op_count) == (2, 1, 3)
    (reason,) = out.break_reasons
    (place,) = reason.user_stack
    assert os.path.samefile(place.filename, __file__) and place.line == "dynfix.graph_break()"
    assert "DYN000" in reason.reason


def test_it_prints_like_the_tutorials():
    text = dynfix.explain(broken)(X).details()
    lines = text.splitlines()
    assert lines[:4] == ["Graph Count: 2", "Graph Break Count: 1", "Op Count: 3", "Break Reasons:"]
    assert lines[4].strip() == "Break Reason 1:" and "dynfix.graph_break()" in text
    positions = [
        text.index(title)
        for title in ("Break Reasons:", "Ops per Graph:", "Out Guards:", "Compile Times:")
    ]
    assert positions == sorted(positions)


def test_it_is_a_page():
    net = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(60)))
    out = dynfix.explain(net)(X)
    lines = str(out).splitlines()
    assert lines[:3] == ["Graph Count: 1", "Graph Break Count: 0", "Op Count: 60"]
    assert "  60: linear (60)" in lines and len(lines) < 20 < len(out.details().splitlines())
    (place,) = [line for line in str(dynfix.explain(broken)(X)).splitlines() if "DYN000" in line]
    assert f"{os.path.basename(__file__)}:" in place


def test_older_form_warns():
    with pytest.warns(FutureWarning, match="explain"):
        assert dynfix.explain(whole, X).graph_count == 1


def test_modules_methods_and_compiled_ones():
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    for fn in (net, dynfix.compile(net), net.forward, dynfix.compile(whole)):
        assert dynfix.explain(fn)(X).graph_count == 1


def test_side_effects_happen_once():
    seen = []

    def fn(x):
        seen.append(1)
        return x + 1

    dynfix.explain(fn)(X)
    assert seen == [1]


def test_what_was_compiled_before_stays():
    built = []

    def backend(gm, example_inputs):
        built.append(gm)
        return gm

    compiled = dynfix.compile(whole, backend=backend)
    compiled(X)
    dynfix.explain(compiled)(X)
    compiled(X)
    assert len(built) == 1
