"""Attention below checkpoints: what draws no random numbers keeps no generator's state."""

import dynfix
import pytest
import torch
from dynfix.lowering.graph import common_subexpressions, seeded_calls
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

aten = torch.ops.aten
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default


def attention(*numbers, **named):
    """A graph of one call below a checkpoint."""
    graph = Graph()
    given = [graph.placeholder(name) for name in ("q", "k", "v")]
    node = graph.call_function(ATTENTION, (*given, *numbers), named)
    node.meta["recompute"] = torch.utils.checkpoint.CheckpointPolicy.PREFER_RECOMPUTE
    graph.output((node,))
    return GraphModule(torch.nn.Module(), graph), node


@pytest.mark.parametrize(
    "numbers, named, hidden",
    [
        ((), {}, True),
        ((0.0, True), {}, True),
        ((), {"dropout_p": 0.0}, True),
        ((0.5,), {}, False),
        ((), {"dropout_p": 0.5}, False),
    ],
)
def test_what_draws_nothing_is_hidden(numbers, named, hidden):
    gm, node = attention(*numbers, **named)
    seeded_calls.hide(gm)
    assert (node.target is not ATTENTION) == hidden
    assert hasattr(node.target, "tags") != hidden
    given = [torch.randn(1, 2, 3, 8) for _ in range(3)]
    if hidden:
        torch.testing.assert_close(
            node.target(*given, is_causal=True), ATTENTION(*given, 0.0, True)
        )
    seeded_calls.show([gm])
    assert node.target is ATTENTION


def test_what_no_checkpoint_runs_again_keeps_its_tags():
    gm, node = attention()
    del node.meta["recompute"]
    seeded_calls.hide(gm)
    assert node.target is ATTENTION


def test_results_of_a_call_with_a_generator_are_known():
    gm, node = attention(0.5)
    operator = torch._prims.rng_prims.graphsafe_run_with_rng_state
    with gm.graph.inserting_before(node):
        state = gm.graph.placeholder("state")
        made = gm.graph.call_function(operator, (ATTENTION, *node.args), {"rng_state": state})
    node.replace_all_uses_with(made)
    gm.graph.erase_node(node)
    with FakeTensorMode():
        for each in made.args[1:4]:
            each.meta["val"] = torch.randn(1, 2, 3, 8)
    seeded_calls.show([gm])
    assert [tuple(each.shape) for each in made.meta["val"]] == [(1, 2, 3, 8), (1, 2, 3)]


@pytest.mark.parametrize("hides", [True, False])
def test_attention_below_a_checkpoint_is_run_again(hides, monkeypatch, tmp_path):
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path))  # no program of an earlier run
    parts = []
    cut = common_subexpressions.min_cut_rematerialization_partition

    def noted(*args, **settings):
        parts.extend(made := cut(*args, **settings))
        return made

    monkeypatch.setattr(common_subexpressions, "min_cut_rematerialization_partition", noted)
    if not hides:  # as what else is tagged
        monkeypatch.setattr(seeded_calls, "hide", lambda joint: None)

    def block(q, k, v):
        return F.scaled_dot_product_attention(q.sin(), k, v, is_causal=True).sin().cos()

    def call(q, k, v):
        return checkpoint(block, q, k, v, use_reentrant=False).cos()

    compiled = dynfix.compile(call, fullgraph=True, dynamic=False)
    for _ in range(5):
        given = [torch.randn(1, 2, 16, 8, requires_grad=True) for _ in range(3)]
        got, want = (torch.autograd.grad(f(*given).sum(), given) for f in (compiled, call))
        torch.testing.assert_close(got, want)
    nodes = [node for part in parts for node in part.graph.nodes if node.op == "call_function"]
    assert sum(ATTENTION in (node.target, *node.args) for node in nodes) == 2
    assert any("rng_state" in str(node.target) for node in nodes) != hides
    assert all("val" in node.meta for node in nodes)
    (entry,) = compiled._dynfix_entry._dispatcher.entries
    assert not entry.failures
