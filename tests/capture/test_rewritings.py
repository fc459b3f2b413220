"""What a tensor decides, recorded again as a choice in the graph: one graph for both outcomes where
nobody can tell, outcomes as before where somebody can."""

import ast
import builtins
import importlib.util
import itertools
import os
import sys
import textwrap

import dynfix
import pytest
import torch
from counting_graphs import Counting, outside
from dynfix.codemods.cli import check
from dynfix.codemods.cli.settings import Settings
from dynfix.codemods.trace import trace_facts, traced_run
from dynfix.rewriter.dynrun import emit_source
from dynfix.rewriter.instrument import emit
from dynfix.rewriter.source.source_file import SourceFile
from dynfix.rewriter.tracing_ops.operators import Forms
from rewriting_bodies import KEPT, PROVED, SAME_TEXT, SHELTERED

_numbers = itertools.count()
HEAD = """import torch
from torch import nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Linear(4, 4)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
"""
ONES, NEGATIVE = torch.ones(3, 4), -torch.ones(3, 4)


@pytest.fixture
def written(tmp_path):
    """A module with the given body of `forward`, from a file of its own."""

    def write(body):
        text = HEAD + textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8) + "\n"
        name = f"rewritten_{next(_numbers)}"
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module, text, str(path)

    yield write
    for name in [name for name in sys.modules if name.startswith("rewritten_")]:
        del sys.modules[name]


def both(module):
    """The model in eager and compiled, of equal parameters; the counting backend; the entry."""
    torch.manual_seed(0)
    eager, backend = module.Model(), Counting()
    mine = module.Model()
    mine.load_state_dict(eager.state_dict())
    return eager, dynfix.compile(mine, backend=backend), backend, mine


def grown(result, model):
    """Gradients of a result with respect to the parameters."""
    leaves = torch.utils._pytree.tree_leaves(result)
    leaves = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
    model.zero_grad()
    if leaves:
        sum(t.sum() for t in leaves).backward()
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def compared(module, inputs, grad):
    """Graphs and loose operators of the calls after the first, each compared with eager."""
    eager, compiled, backend, mine = both(module)
    ran = []
    with torch.set_grad_enabled(grad):
        for x in inputs:
            torch.manual_seed(7)
            want = eager(x)
            before = backend.calls
            torch.manual_seed(7)
            got, loose = outside(lambda x=x: compiled(x))
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)
            if grad:
                assert got.requires_grad == want.requires_grad
                torch.testing.assert_close(grown(got, mine), grown(want, eager), equal_nan=True)
            ran.append((backend.calls - before, loose))
    return ran[1:], compiled._dynfix_entry.recordings


def applied(recordings):
    return [change for recording in recordings for change in recording.rewritten]


def facts_of(text, path, monkeypatch):
    """What a traced run of both outcomes shows."""
    tracer = traced_run.FactCollector([os.path.realpath(path)])
    tracer.torch, tracer.depth = torch, 1
    monkeypatch.setattr(builtins, traced_run._SEE, tracer.see, raising=False)
    tree = tracer.instrument(ast.parse(text), os.path.realpath(path))
    names = {"__name__": "traced"}
    exec(compile(tree, path, "exec"), names)
    for x in (ONES, NEGATIVE):
        names["Model"]()(x)
    table = {(f, t): fact for (_, f, t), fact in tracer.facts.items() if fact is not None}
    return trace_facts.TraceFacts(table, [f for _, f in tracer.captured])


@pytest.mark.parametrize("body", SAME_TEXT.values(), ids=SAME_TEXT)
def test_the_compiler_records_what_the_codemod_writes(body, written, monkeypatch):
    module, text, path = written(body)
    ran, recordings = compared(module, (ONES, NEGATIVE, ONES, NEGATIVE), grad=True)
    assert ran == [(1, [])] * 3
    original = text
    for change in applied(recordings):
        assert text.count(change.before) == 1
        text = text.replace(change.before, change.after)
    facts = {os.path.realpath(path): facts_of(original, path, monkeypatch)}
    settings = Settings(unsafe_fixes=True, facts=facts, ignore=("DYN506",))
    fixed = check.fix(SourceFile(original, path), settings).source.text
    if "torch.compiler.is_compiling():" in fixed:  # two findings: one path for compiled code
        assert "torch.where(" in fixed
    else:
        assert fixed == text


@pytest.mark.parametrize("body", SHELTERED.values(), ids=SHELTERED)
def test_a_side_that_is_not_taken_gives_zero_gradients(body, written):
    inputs = (ONES, NEGATIVE, ONES * 0, torch.full((3, 4), float("inf")), ONES)
    ran, recordings = compared(written(body)[0], inputs, grad=True)
    assert ran == [(1, [])] * 4 and applied(recordings)


def test_a_number_that_the_dtype_has_not_is_not_proved(written):
    body = "y = x.half()\nif y.sum() > 0:\n    y = y.clamp(max=70000)\nreturn y + 1"
    eager, compiled, _, _ = both(written(body)[0])
    told = []
    for model in (eager, compiled, eager, compiled):
        try:
            told.append(model(NEGATIVE if len(told) < 2 else ONES).sum().item())
        except RuntimeError as error:
            told.append(str(error))
    assert told[0] == told[1] and told[2] == told[3]
    assert not applied(compiled._dynfix_entry.recordings)


@pytest.mark.parametrize("body", PROVED.values(), ids=PROVED)
def test_what_fakes_prove_is_one_graph_for_both_outcomes(body, written):
    ran, recordings = compared(written(body)[0], (ONES, NEGATIVE, ONES * 2), grad=False)
    assert ran == [(1, [])] * 2 and applied(recordings)


@pytest.mark.parametrize("body, grad", KEPT.values(), ids=KEPT)
def test_what_somebody_could_tell_stays_an_outcome(body, grad, written):
    module, _, _ = written(body)
    _, recordings = compared(module, (ONES, NEGATIVE, ONES, NEGATIVE), grad)
    assert not applied(recordings)


def test_the_object_that_eager_keeps_is_kept(written):
    module, _, _ = written("if x.sum() > 0:\n    x = x * 2\nreturn x")
    _, compiled, _, _ = both(module)
    for x in (ONES, NEGATIVE, NEGATIVE.clone(), ONES):
        assert (compiled(x) is x) == bool(x.sum() <= 0)


def test_a_call_with_effects_is_recorded_again_at_the_next(written, capsys):
    body = """
        y = torch.relu(x) + 1
        print("called")
        if y.sum() > 15:
            y = y + 2
        return y + 1
        """
    ran, recordings = compared(written(body)[0], (ONES, NEGATIVE, ONES, NEGATIVE), grad=False)
    assert ran[1:] == [(1, [])] * 2
    assert [change.code for change in applied(recordings)] == ["DYN201"]
    assert capsys.readouterr().out.count("called") == 8


def test_random_numbers_are_drawn_once(written):
    body = "y = x * 1\nif torch.rand(()) > 0.5:\n    y = y + 2\nreturn y + torch.rand(())"
    ran, recordings = compared(written(body)[0], (ONES, NEGATIVE, ONES), grad=False)
    assert ran == [(1, [])] * 2 and applied(recordings)
    eager, compiled, _, _ = both(written(body)[0])
    torch.manual_seed(3)
    want = [eager(ONES) for _ in range(8)]
    torch.manual_seed(3)
    torch.testing.assert_close([compiled(ONES) for _ in range(8)], want)


def test_errors_after_a_changed_line_name_the_users_line(written):
    body = """
        y = torch.relu(x) + 1
        if y.sum() > 15:
            y = y + 2
        print(y.shape)
        if x.dim() > 2:
            raise ValueError("too many axes")
        return y + 1
        """
    module, text, _ = written(body)
    _, compiled, _, _ = both(module)
    for x in (ONES, NEGATIVE):
        compiled(x)
    with pytest.raises(ValueError) as caught:
        compiled(torch.ones(2, 3, 4))
    line = caught.traceback[-1].lineno + 1
    assert "raise" in text.splitlines()[line - 1]


def test_lines_of_a_changed_function_are_those_of_the_file(written):
    body = """
        y = torch.relu(x) + 1
        if y.sum() > 15:
            y = y + 2

        return y.softmax(5)
        """
    module, text, path = written(body)
    changed = []
    emit.watchers.append(lambda fn, source: changed.append((fn, source)))
    try:
        _, compiled, _, _ = both(module)
        with pytest.raises(IndexError):
            compiled(ONES)
        fn, _ = changed[0]
        source = emit.live_source.find(fn)
        edited = source.text.replace("if y.sum() > 15:\n            y = y + 2", "y = y + 1")
        first = source.first_line
        lines = (*range(first, first + 3), *range(first + 4, first + 6))
        new = emit.rewrite(fn, Forms, source.changed(edited, lines))
        with pytest.raises(IndexError) as caught:
            new(module.Model(), ONES)
    finally:
        emit.watchers.pop()
    inside = [entry.lineno + 1 for entry in caught.traceback if str(entry.path) == path]
    assert "softmax" in text.splitlines()[inside[0] - 1]


def test_fullgraph_takes_what_a_pattern_takes_away(written):
    module, _, _ = written("y = torch.relu(x)\nif y.sum() > 1:\n    y = y + 1\nreturn y + 1")
    eager = module.Model()
    compiled = dynfix.compile(module.Model(), backend="eager", fullgraph=True)
    for x in (ONES, NEGATIVE):
        torch.testing.assert_close(compiled(x), eager(x))
    module, _, _ = written("if x.sum() > 1:\n    x = x + 1\nreturn x")
    with pytest.raises(dynfix.GraphBreakError, match="DYN201"):
        dynfix.compile(module.Model(), backend="eager", fullgraph=True)(ONES)


def test_explain_and_the_break_say_what_patterns_did(written):
    module, _, path = written("y = torch.relu(x)\nif y.sum() > 1:\n    y = y + 1\nreturn y + 1")
    told = dynfix.explain(module.Model())(ONES)
    assert (told.graph_count, told.graph_break_count) == (1, 0)
    assert f"{path}:14: DYN201" in told.details() and "+         y = torch.where(" in told.details()
    module, _, _ = written("y = torch.relu(x)\nif y.sum() > 1:\n    y = y.sum()\nreturn y + 1")
    told = dynfix.explain(module.Model())(ONES)
    assert "not rewritten: the branches" in told.break_reasons[0].reason


def test_emitted_sources_show_what_patterns_made(written, tmp_path):
    folder = tmp_path / "out"
    emit_source.emit_source(str(folder))
    try:
        module, _, _ = written("y = torch.relu(x)\nif y.sum() > 1:\n    y = y + 1\nreturn y + 1")
        dynfix.compile(module.Model(), backend="eager")(ONES)
    finally:
        emit.watchers.pop()
    (changed,) = folder.glob("*changed.py")
    (recorded,) = folder.glob("*recorded.py")
    assert "y = torch.where(y.sum() > 1, y + 1, y)" in changed.read_text()
    assert "__df.call" in recorded.read_text()


@pytest.mark.parametrize(
    "body",
    [
        "return x.abs().sum() / (3 * max(1, x.sum().item()))",
        "return x * min(x.mean().item(), x.max().item(), 0.5)",
        "return x / max(2, (x > 0).sum().item())",
        "low, high = x.min().item(), x.max().item()\nreturn (x - low) / ((high - low + 1) / 255)",
    ],
    ids=["max", "min of three", "integers", "quotients"],
)
def test_arithmetic_on_read_numbers_stays_in_the_graph(body, written):
    inputs = (ONES, NEGATIVE, torch.full((3, 4), float("nan")), ONES * 0.01)
    eager, compiled, backend, _ = both(written(body)[0])
    for number, x in enumerate(inputs):
        before = backend.calls
        got, loose = outside(lambda x=x: compiled(x))
        torch.testing.assert_close(got, eager(x), equal_nan=True, rtol=0, atol=0)
        assert number == 0 or (backend.calls - before, loose) == (1, [])


def test_numbers_made_of_constants_decide_nothing(written):
    body = """
        half = int(torch.div(x.shape[1], 2))
        axes = torch.arange(0, 2).tolist()
        y = x * 2 if torch.tensor(3) > half else x * 3
        return y.sum(axes) + half
        """
    ran, recordings = compared(written(body)[0], (ONES, NEGATIVE), grad=False)
    assert ran == [(1, [])] and not recordings[0].sites
    body = "z = torch.zeros(2)\nz[0] = x.sum()\nreturn x * 2 if z.sum() > 0 else x * 3"
    _, recordings = compared(written(body)[0], (ONES, NEGATIVE), grad=False)


RAISING = {
    "assert": 'assert (x > -1).all() and (x < 9).all(), f"{x.min()}"\nreturn x * 2',
    "if": "y = x * 2\nif y.sum() < 0:\n    print('low')\n    raise ValueError('negative')\nreturn y + 1",
    "a message": "y = x * 2\nif y.sum() < 0:\n    print('low', y.sum().item())\nreturn y + 1",
    "not finite": """
        for turn in range(3):
            x = x.sqrt() + turn
            if torch.isnan(x).any():
                print("not a number in turn", turn)
                break
        return x
        """,
    "torch's checks": """
        torch._check_tensor_all(x * 2 < 9)
        y = x + 1
        torch._check_value(y.sum().item() > 0, lambda: f"{y.min()}")
        return y * 2
        """,
    "torch's own": "return torch.distributions.Normal(x, x).log_prob(x * 2)",
}


@pytest.mark.usefixtures("no_gpu_in_use")
@pytest.mark.parametrize("body", RAISING.values(), ids=RAISING)
def test_a_check_that_only_raises_or_tells_does_not_cut_the_graph(body, written, capsys):
    eager, compiled, backend, _ = both(written(body)[0])
    for number, x in enumerate((ONES, ONES * 2, NEGATIVE, ONES, ONES * 3)):
        told = []
        before = backend.calls
        for model in (eager, compiled):
            try:
                told.append(model(x))
            except (ValueError, AssertionError, RuntimeError) as error:
                told.append((type(error), str(error)))
            told.append(capsys.readouterr().out)
        if isinstance(told[0], torch.Tensor):
            torch.testing.assert_close(*told[::2], equal_nan=True)
        assert told[1] == told[3] and str(told[0]) == str(told[2])
        assert number in (0, 3) or backend.calls - before == 1
    assert not compiled._dynfix_entry.recordings[0].sites


def test_type_names_and_arrays_of_constants_decide_nothing(written):
    body = """
        if x.type() == "torch.FloatTensor":
            x = x + 1
        low = torch.tensor(3, dtype=x.dtype).numpy()
        return x * float(low)
        """
    ran, recordings = compared(written(body)[0], (ONES, NEGATIVE), grad=False)
    assert ran == [(1, [])] and not recordings[0].sites
    body = "t = torch.zeros(3, 4)\nt.numpy()[0] = 5\nreturn x + t"
    compared(written(body)[0], (ONES, NEGATIVE, ONES), grad=False)
