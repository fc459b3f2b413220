"""What `torch.compile(module)` gives a script under dynrun: all that it shows is what torch's shows
under python."""

import os
import sys
import textwrap

import forked
import pytest

pytest.importorskip("torch")

MAIN = "import sys; from dynfix.rewriter.dynrun.main import main; sys.argv[0] = 'dynrun'; sys.exit(main())"
SHOWN = """
    import copy, io
    import torch
    from torch import nn
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 3), nn.Linear(3, 2)
            self.register_buffer("n", torch.zeros(()))
        def forward(self, x):
            self.n += 1
            return self.b(torch.relu(self.a(x)))
        def twice(self):
            return 2 * self.n
    torch.manual_seed(0)
    net = Net()
    compiled = torch.compile(net, backend="eager")
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    seen = []
    hook = compiled.register_forward_hook(lambda *_: seen.append(1))
    for step in range(5):
        loss = compiled(torch.ones(4, 2) * step).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 2:
            hook.remove()
        print(round(loss.item(), 4), len(seen))
    print(list(compiled.state_dict()), list(net.state_dict()))
    print([name for name, _ in compiled.named_parameters()])
    print([name for name, _ in compiled.named_modules()], [*dict(compiled.named_children())])
    print(type(compiled), compiled, isinstance(compiled, (Net, nn.Sequential)))
    print(isinstance(compiled, torch._dynamo.OptimizedModule), compiled._orig_mod is net)
    compiled.eval()
    print(net.training, compiled.train() is compiled, net.training)
    compiled.extra = 3
    print(net.extra, compiled.twice().item(), hasattr(compiled, "nothing"))
    del compiled.extra
    print(hasattr(net, "extra"), "twice" in dir(compiled))
    file = io.BytesIO()
    torch.save(compiled.state_dict(), file)
    file.seek(0)
    saved = torch.load(file)
    print(compiled.load_state_dict(saved), torch.compile(Net()).load_state_dict(saved))
    try:
        net.load_state_dict(saved)
    except RuntimeError as error:
        print(error)
    other = copy.deepcopy(compiled)
    print(type(other).__name__, other._orig_mod is net, [*other.state_dict()][:2])
    outer = nn.Sequential(compiled, nn.Tanh())
    for _ in range(3):
        print(outer(torch.ones(1, 2)).shape, [*outer.state_dict()][:2])
    compiled.to(torch.float64)
    print(net.a.weight.dtype, compiled(torch.ones(1, 2).double()).dtype)
    print(len(torch.compile(nn.Sequential(nn.ReLU(), nn.Tanh()), backend="eager")))
    try:
        len(compiled)
    except TypeError as error:
        print(error)
"""


def run(arguments, folder):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = forked.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With the script, and with what python printed."""
    folder = tmp_path_factory.mktemp("shown")
    (folder / "script.py").write_text(textwrap.dedent(SHOWN))
    (folder / "wanted").write_text(run(["script.py"], folder))
    return folder


@pytest.mark.parametrize(
    "options", [(), ("--eager-calls", "0"), ("--compile", "step"), ("--exclude", "Net")]
)
def test_it_shows_what_torchs_shows(folder, options):
    assert run(["-c", MAIN, *options, "script.py"], folder) == (folder / "wanted").read_text()


def test_a_saved_one_needs_nothing_of_ours(tmp_path):
    text = """
        import pickle, sys, torch
        net = torch.compile(torch.nn.Linear(2, 2), backend="eager")
        net(torch.ones(1, 2))
        with open("net.pkl", "wb") as file:
            pickle.dump(net, file)
    """
    read = """
        import pickle, sys
        with open("net.pkl", "rb") as file:
            net = pickle.load(file)
        print(type(net).__name__, list(net.state_dict()), "dynfix" in sys.modules)
    """
    for name, script in {"write.py": text, "read.py": read}.items():
        (tmp_path / name).write_text(textwrap.dedent(script))
    run(["-c", MAIN, "write.py"], tmp_path)
    assert run(["read.py"], tmp_path) == (
        "OptimizedModule ['_orig_mod.weight', '_orig_mod.bias'] False\n"
    )
