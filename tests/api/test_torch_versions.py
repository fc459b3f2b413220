"""A program with a torch that was never tested, or that is too old."""

import sys
import textwrap

import forked
import pytest

pytest.importorskip("torch")

START = """
import sys, warnings
import torch
torch.__version__ = {version!r}
warnings.simplefilter("always")
"""
USES = """
import dynfix
from dynfix.codemods.cli import command  # the codemod alone
print("imported", file=sys.stderr)
fn = dynfix.compile(torch.nn.Tanh(), backend="eager")
for _ in range(3):
    fn(torch.ones(2))
dynfix.reset()
fn(torch.ones(2))
dynfix.compile(torch.nn.ReLU(), backend="eager")(torch.ones(2))
print("done")
"""
SCRIPT = """
import torch
net = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    loss = net(torch.ones(1, 2)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done")
"""


def run(version, code, folder, *more):
    command = [sys.executable, "-c", START.format(version=version) + textwrap.dedent(code), *more]
    return forked.run(command, cwd=folder, capture_output=True, text=True)


def test_a_newer_one_is_warned_of_once_when_something_is_compiled(tmp_path):
    done = run("99.1.0", USES, tmp_path)
    before, after = done.stderr.split("imported\n")
    assert done.stdout == "done\n" and before == ""
    assert after.count("DynfixWarning") == 1 and after.count("99.1.0") == 1


def test_a_tested_one_is_not(tmp_path):
    done = run("2.11.0", USES, tmp_path)
    assert (done.stdout, done.stderr) == ("done\n", "imported\n")


def test_an_older_one_is_one_clear_error(tmp_path):
    done = run("2.10.0", USES, tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("ImportError: dynfix needs torch 2.11 or later")


@pytest.mark.parametrize(("version", "compiled"), [("2.10.0", False), ("99.1.0", True)])
def test_dynrun_says_it_in_a_line(tmp_path, version, compiled):
    (tmp_path / "script.py").write_text(SCRIPT)
    main = "from dynfix.rewriter.dynrun.main import main; sys.argv[0] = 'dynrun'; sys.exit(main())"
    options = ["--explain", "--backend", "eager", "script.py"]
    done = run(version, main, tmp_path, *options)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    lines = done.stderr.splitlines()
    assert sum(version in line for line in lines) == 1
    assert ("dynrun: 0 captured" in lines) is not compiled


def test_as_a_backend_of_torch_compile(tmp_path):
    code = """
    from dynfix.lowering.dynamo_backend import dynfix
    graph = torch.fx.symbolic_trace(torch.nn.Tanh())
    graph.graph.output_node().args = ([graph.graph.output_node().args[0]],)
    with torch.no_grad():
        dynfix(graph, [torch.ones(3)]), dynfix(graph, [torch.ones(3)])
    print("done")
    """
    done = run("99.1.0", code, tmp_path)
    assert done.stdout == "done\n" and done.stderr.count("99.1.0") == 1, done.stderr
    assert "ImportError: dynfix needs torch" in run("2.10.0", code, tmp_path).stderr
