"""Large buffers: in whose memory they lie, and that who else holds it finds it as it was."""

import dynfix
import pytest
import torch
from dynfix.lowering import pipeline
from dynfix.runtime.programs import result_memory
from dynfix.runtime.programs.program import Alloc, Arena, Extern

F = torch.nn.functional
ROWS, WIDTH, CLASSES = 256, 64, 2048


@pytest.fixture(scope="module", autouse=True)
def native():
    result_memory.load()
    if result_memory._Engine.native is None:
        pytest.skip("no native memory here")


@pytest.fixture
def steps(monkeypatch):
    """The steps of the programs that are made, by program."""
    found, emit = {}, pipeline.emit

    def watched(unit, *args):
        program = emit(unit, *args)
        found.setdefault(unit.name, []).extend(program.steps)
        return program

    monkeypatch.setattr(pipeline, "emit", watched)
    return found


def loss(x, weight, labels):
    logits = x @ weight
    return F.cross_entropy(logits, labels), logits


def given(seed):
    torch.manual_seed(seed)
    x, weight = torch.randn(ROWS, WIDTH), torch.randn(WIDTH, CLASSES)
    return x.requires_grad_(), weight.requires_grad_(), torch.randint(CLASSES, (ROWS,))


def gradients(call, seed, **how):
    x, weight, labels = given(seed)
    made, logits = call(x, weight, labels)
    return torch.autograd.grad(made, (x, weight), **how), made, logits


def test_a_gradient_is_stored_where_the_activation_was(steps):
    compiled = dynfix.compile(loss)
    for seed in range(3):
        (ours, _, _), (theirs, _, _) = (gradients(call, seed) for call in (compiled, loss))
        torch.testing.assert_close(ours, theirs)
    asks = [step for step in steps["backward"] if isinstance(step, Alloc) and step.asks]
    assert [step.shape for step in asks] == [(ROWS, CLASSES)]
    assert not any(isinstance(step, Arena) and step.size > 1 << 20 for step in steps["backward"])


def test_results_that_a_user_kept_stay(steps):
    compiled = dynfix.compile(loss)
    for seed in range(3):
        _, _, ours = gradients(compiled, seed)
        x, weight, _ = given(seed)
        torch.testing.assert_close(ours, x @ weight)


def test_a_backward_that_runs_again_finds_what_was_saved():
    compiled = dynfix.compile(loss)
    for seed in range(3):
        x, weight, labels = given(seed)
        made, logits = compiled(x, weight, labels)
        del logits
        first = torch.autograd.grad(made, (x, weight), retain_graph=True)
        second = torch.autograd.grad(made, (x, weight))
        expected, _, _ = gradients(loss, seed)
        torch.testing.assert_close(first, expected)
        torch.testing.assert_close(second, expected)


def test_what_a_loop_makes_of_a_product_lies_where_the_product_was(steps):
    def fn(x, weight):
        return F.gelu(x @ weight) + 1, (x @ weight).softmax(-1)

    compiled = dynfix.compile(fn)
    with torch.no_grad():
        for seed in range(3):
            x, weight, _ = given(seed)
            torch.testing.assert_close(compiled(x, weight), fn(x, weight))
    made = [step for step in steps["inference"] if isinstance(step, Alloc)]
    products = [step for step in steps["inference"] if isinstance(step, Extern)]
    assert sum(bool(step.reuses) for step in made) >= 1 and products


def test_results_without_a_gradient_cost_no_zeros(monkeypatch):
    made = []
    zeros = result_memory.zeros
    monkeypatch.setattr(result_memory, "zeros", lambda *args: made.append(zeros(*args)) or made[-1])
    compiled = dynfix.compile(loss)
    gradients(compiled, 0)  # which compiles a backward, or loads one
    assert [tensor.shape for tensor in made] == [(ROWS, CLASSES)] * len(made)
    made.clear()
    for seed in (1, 2):
        gradients(compiled, seed)
    assert not made
