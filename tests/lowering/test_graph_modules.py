"""Graph modules that make their text when it is asked for."""

import copy

import pytest
import torch
from dynfix.lowering.graph import graph_modules
from torch import fx


def traced():
    return fx.symbolic_trace(lambda x: x.relu() + 1).graph


def test_text_is_made_when_it_is_asked_for(monkeypatch):
    made, graph = [], traced()
    python_code = fx.Graph.python_code
    monkeypatch.setattr(
        fx.Graph, "python_code", lambda *args, **kw: made.append(1) or python_code(*args, **kw)
    )
    module = graph_modules.graph_module({}, graph)
    assert not made and isinstance(module, fx.GraphModule)
    assert "relu" in module.code and len(made) == 1


def negated(module):
    node = next(node for node in module.graph.nodes if node.target == "relu")
    node.target = "neg"
    module.recompile()


@pytest.mark.parametrize("as_called", [lambda gm: gm, graph_modules.forward_of])
def test_it_does_what_its_graph_says(as_called):
    module = graph_modules.graph_module({}, traced())
    x = torch.randn(4)
    torch.testing.assert_close(as_called(module)(x), x.relu() + 1, rtol=0, atol=0)
    other = copy.deepcopy(module)
    negated(module)
    torch.testing.assert_close(as_called(module)(x), 1 - x, rtol=0, atol=0)
    torch.testing.assert_close(as_called(other)(x), x.relu() + 1, rtol=0, atol=0)


def test_the_function_is_that_of_the_text():
    module = graph_modules.graph_module({}, traced())
    assert graph_modules.forward_of(module).__func__.__code__.co_name == "forward"
    plain = fx.GraphModule({}, traced())
    assert graph_modules.forward_of(plain) == plain.forward
