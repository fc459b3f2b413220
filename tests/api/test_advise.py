"""`dynfix advise` and `dynrun --advise`: costs by a clock that tests move, and the runs of the command."""

import json
import os
import sys
import textwrap

import forked
import pytest
from simulated import Simulated

torch = pytest.importorskip("torch")
import dynfix
from dynfix.codemods.cli import advise
from dynfix.lowering import stored_graphs
from dynfix.rewriter.dynrun import report_data, step_costs
from dynfix.rewriter.dynrun.report_data import Collector, TimeSpan
from dynfix.rewriter.dynrun.step_costs import Cost, StepCosts
from dynfix.rewriter.frontend import segment_programs

SCRIPT = """
    import sys, torch
    class Net(torch.nn.Module):
        def forward(self, x):
            y = torch.relu(x) + 1
            if y.sum().item() > 0:
                torch._dynamo.graph_break()
            return y * 2
    net = Net()
    for n in range(6):
        out = net(torch.full((4,), float(n)))
        print(out.mean().item())
    if "raise" in sys.argv:
        raise KeyError("the user's own")
"""


def run(arguments, folder):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = forked.run(
        [sys.executable, "-m", *arguments], cwd=folder, env=env, capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def collector():
    """One whose clock stands still; nothing of it is left in torch."""
    lists = segment_programs.observers, segment_programs.timers, stored_graphs.watchers
    before = [list(each) for each in lists]
    methods = {name: torch.Tensor.__dict__.get(name) for name in report_data.HOST_READS}
    machine = Simulated()
    made = Collector(machine)
    made.machine = machine
    made.install()
    yield made
    for each, was in zip(lists, before, strict=True):
        each[:] = was
    for name, method in methods.items():
        setattr(torch.Tensor, name, method) if method is not None else delattr(torch.Tensor, name)
    dynfix.reset()


def called(collector, fn, *calls, each=1.0, **options):
    """The costs of a function's calls; a graph takes `each` milliseconds, and the clock moves by
    half of one between two."""
    compiled = dynfix.compile(fn, backend="eager", **options)
    entry = compiled._dynfix_entry
    collector.watch("fn", entry)
    timer = segment_programs.timers.pop()

    def timed(segment, program):
        def takes(*tensors):
            collector.machine.work(each / 1e3)
            return program(*tensors)

        inner = timer(segment, takes)

        def later(*tensors):
            collector.machine.work(each / 2e3)
            return inner(*tensors)

        return later

    segment_programs.timers.append(timed)
    for args in calls:
        compiled(*args)
        collector.machine.work(each / 1e3)
    return step_costs.step_costs([("fn", entry)], collector)


def broken(x, names):
    y = x.sin()
    if y.sum().item() > 0:
        names.append("large")
    return y.cos()


def test_what_a_break_costs_is_the_time_between_graphs_and_one_more_graph(collector):
    costs = called(collector, broken, *[(torch.ones(3), []) for _ in range(8)])
    (cost,) = costs.costs
    assert (cost.kind, cost.text, cost.code) == ("graph break", "if y.sum().item() > 0:", "DYN101")
    assert cost.line == broken.__code__.co_firstlineno + 2 and cost.file == __file__
    assert cost.parts["between graphs"] == pytest.approx(0.5)
    assert cost.parts["one more graph"] == pytest.approx(1.0)
    assert cost.times == pytest.approx(1.0) and costs.ms == pytest.approx(4.0)
    assert costs.clock == "wall" and costs.counted <= costs.steps == 7


def whole(x):
    return x.sin().cos()


def test_a_function_without_breaks_costs_nothing(collector):
    costs = called(collector, whole, *[(torch.ones(3),)] * 5)
    assert costs.costs == [] and costs.ms > 0


def test_a_recompile_costs_what_compiling_took(collector):
    costs = called(
        collector, whole, *[(torch.ones(n),) for n in (3, 3, 4, 4, 3, 3, 3)], dynamic=False
    )
    (cost,) = costs.costs
    assert cost.kind == "recompile" and "has shape (4,) instead of (3,)" in cost.reason
    assert cost.once_ms == cost.ms > 0 == cost.each_ms
    assert cost.line == whole.__code__.co_firstlineno + 1


def cut(x):
    y = x.sin()
    open(os.devnull).close()
    return y.cos()


def test_a_break_at_which_a_function_was_cut(collector):
    costs = called(collector, cut, *[(torch.ones(3),)] * 10)
    (cost,) = costs.costs
    assert cost.line == cut.__code__.co_firstlineno + 2 and cost.code == "DYN601"
    assert cost.parts["between graphs"] == pytest.approx(0.5)


def decides(x, names):
    y = x.sin()
    if y.sum().item() > 0.5:
        names.append("large")
    return y.cos()


def test_another_way_counts_at_the_value_that_decided(collector):
    calls = [(torch.full((3,), v), []) for v in (1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0)]
    costs = called(collector, decides, *calls)
    assert {cost.line for cost in costs.costs} == {decides.__code__.co_firstlineno + 2}
    assert costs.costs[0].once_ms > 0


def reads(name, value):
    return {"item": value.item, "tolist": value.tolist, "int": lambda: int(value)}[name]()


@pytest.mark.parametrize("name", ["item", "tolist", "int"])
def test_reads_on_the_host_have_their_line(collector, name):
    assert reads(name, torch.tensor(3)) == 3
    (span,) = collector.spans
    assert span.kind == "read" and span.key[:2] == (__file__, reads.__code__.co_firstlineno + 1)


def test_a_print_is_one_read(collector):
    print(torch.tensor(3.0), bool(torch.tensor(1)), torch.tensor(2.0).item)
    assert [span.key[3] for span in collector.spans] == ["__bool__", "__format__"] or [
        span.key[3] for span in collector.spans
    ] == ["__bool__", "__repr__"]
    assert torch.Tensor.item is report_data.torch.Tensor.item  # as recorders meet it


def span(kind, key, start, seconds):
    return TimeSpan(kind, key, start, start + seconds)


def test_steps_are_updates_and_the_faster_half_without_a_recording_counts():
    spans = [span("step", "update", n, 0.5) for n in range(6)]
    spans += [span("call", "net", n / 2, 0.1) for n in range(12)]
    spans += [span("recording", "net", 0.2, 0.1)]
    name, steps = step_costs._steps(sorted(spans, key=lambda each: each.start))
    assert name == "update" and [step.seconds for step in steps] == [1.0] * 5
    sample = step_costs._sample(steps, spans)
    assert len(sample) == 2 and all(step.start >= 1 for step in sample)


def cost(ms, line=2, **changes):
    made = Cost(
        "graph break", changes.pop("file", ""), line, "t", "DYN101", "why", "move it", "net"
    )
    for part, each in {"between graphs": ms, **changes}.items():
        made.add(part, each)
    return made


def costs(*found, ms=10.0, why=""):
    return StepCosts("net", ms, 8, 4, "wall", 1.0, list(found), why)


def test_what_to_do_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "net.py"
    text = "import torch\n\n\ndef f(x: torch.Tensor):\n    a = x.sum().item()\n    return x * a\n"
    file.write_text(text)

    def first(*found, **how):
        these = costs(*found, **how)
        return advise._first(these, advise._advice(these.costs, []), ["net.py"])

    assert first(cost(0.01)).startswith("Nothing here is worth a change: it costs 0.01 of 10.00")
    assert (
        first(cost(3.0))
        == "First: net costs at most 3.00 of 10.00 ms a step, and has no fix: move it."
    )
    fixed = first(cost(4.0), cost(3.0, line=5, file=str(file), compiling=250.0))
    assert fixed.startswith("First: `dynfix --select DYN101 ") and fixed.endswith(
        " net.py` removes net.py:5, which saves about 3.00 of 10.00 ms a step and 2.0 s of compiling."
    )
    assert first(why="nothing ran twice") == "Nothing can be ranked: nothing ran twice."
    assert advise._first(None, [], []).startswith("Nothing was compiled")


def test_the_diff_of_a_fix(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\n\n\ndef f(x: torch.Tensor):\n    a = x.sum().item()\n    return x * a\n"
    )
    (found,) = advise._advice([cost(3.0, line=5, file=str(file))], [])
    assert "-    a = x.sum().item()\n" in found.diff and found.safety in ("safe", "unsafe")
    assert found.record["code"] == "DYN101" and found.record["fix"]["edits"]
    (kept,) = advise._advice([cost(3.0, line=5, file=torch.__file__)], [])
    assert kept.safety == "none" and kept.record is None


def test_a_command_line(tmp_path):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    command = ["dynfix", "advise", "--json", "--backend", "eager", "script.py", "raise"]
    status, out, error = run(command, tmp_path)
    data = json.loads(out)  # what the script prints is on stderr
    assert status == 1 and error.startswith("2.0\n4.0\n")
    assert error.endswith('KeyError: "the user\'s own"\n') and "rewriter" not in error
    (cost,) = [c for c in data["costs"] if c["kind"] == "graph break"]
    assert cost["line"] == 6 and cost["file"].endswith("script.py") and cost["ms"] > 0
    assert data["run"]["steps"] == 5 and data["script"] == ["script.py", "raise"]
    assert data["first"].startswith(("First: ", "Nothing here is worth"))


def test_advice_on_what_was_not_compiled(tmp_path):
    (tmp_path / "script.py").write_text("print('ran')")
    status, out, error = run(["dynfix.run", "--advise", "script.py"], tmp_path)
    assert (status, out) == (0, "ran\n")
    assert error == (
        "dynrun: Nothing was compiled: the script calls no module, training step or torch.compile.\n"
    )
    status, out, error = run(["dynfix", "advise", "none.py"], tmp_path)
    assert (status, out) == (2, "") and error.count("\n") == 1 and "can't open file" in error


def test_options_of_the_command(tmp_path):
    status, _, error = run(["dynfix", "advise", "--output-format", "xml", "s.py"], tmp_path)
    assert (
        status == 2
        and error == "dynfix: --output-format=xml: the advisor's formats are full and json\n"
    )
    status, _, error = run(["dynfix.run", "--advise=xml", "s.py"], tmp_path)
    assert status == 2 and "'xml' is not of full, json, trace" in error
    status, _, error = run(["dynfix", "advise"], tmp_path)
    assert status == 2 and "no script given" in error
