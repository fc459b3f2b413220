"""Scripts with training steps, run as they are and with drivers."""

import builtins
import contextlib
import io
import linecache
import sys
import textwrap
import traceback
import types

import pytest
import torch
from dynfix.rewriter.dynrun.intercept import _somebody_elses
from dynfix.rewriter.dynrun.step_calls import Steps
from dynfix.rewriter.dynrun.step_function import compiled_step
from dynfix.rewriter.graph_breaks.step_driver import with_drivers
from dynfix.rewriter.graph_breaks.step_protocol import DRIVER
from dynfix.runtime.environment.machine import MACHINE

START = """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
X, Y = torch.randn(22, 6), torch.randint(0, 3, (22,))
"""


class Session:
    """Compiles a step after its first run, at once."""

    background = None

    def __init__(self):
        self.entries = {}

    def compile_step(self, fn, place):
        self.entries[place] = compiled_step(fn, backend="eager")
        return self.entries[place]

    def hits(self):
        return [sum(e.hits for e in each._dispatcher.entries) for each in self.entries.values()]


def executed(code, file):
    """What a script prints, and the last lines and places of its traceback."""
    main, before = types.ModuleType("__main__"), sys.modules["__main__"]
    sys.modules["__main__"], out, error = main, io.StringIO(), []
    try:
        with contextlib.redirect_stdout(out):
            exec(code, main.__dict__)
    except Exception as raised:
        own = [f for f in traceback.extract_tb(raised.__traceback__) if f.filename == file]
        error = [repr(raised), [(f.lineno, f.name) for f in own]]
        assert all(
            line.strip() for text in traceback.format_list(own) for line in text.split("\n")[:-1]
        )
    finally:
        sys.modules["__main__"] = before
    return out.getvalue(), error


@pytest.fixture
def equal(tmp_path):
    """`equal(text)` runs a script as it is and with drivers, both with the same end; gives the
    session."""

    def run(text, start=START, machine=MACHINE, eager_calls=1):
        file = str(tmp_path / "script.py")
        source = (start + textwrap.dedent(text)).encode()
        (tmp_path / "script.py").write_bytes(source)
        linecache.checkcache(file)
        wanted = executed(compile(source, file, "exec"), file)
        session = Session()
        steps = Steps(session, eager_calls, machine)
        steps.torch_is_there(_somebody_elses(torch))
        setattr(builtins, DRIVER, steps)
        code = with_drivers(source, file, steps.register)
        assert code is not None
        assert executed(code, file) == wanted
        return session

    yield run
    delattr(builtins, DRIVER)
