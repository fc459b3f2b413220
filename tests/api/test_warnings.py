"""Warnings that torch gives in a program are told as in eager: of the same lines, as often. Those of
the work beside it are not told at all."""

import os
import re
import subprocess
import sys
import warnings

import dynfix
import pytest
import torch
import torch.nn.functional as F
from dynfix.runtime import diagnostics
from dynfix.runtime.warning_filters import suppress_warnings

MAIN = "import sys; from dynfix.rewriter.dynrun.main import main; sys.argv[0] = 'dynrun'; sys.exit(main())"
SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 4)
        self.attention = nn.MultiheadAttention(16, 2)

    def forward(self, x, mask, padding):
        y, _ = self.attention(x, x, x, key_padding_mask=padding, attn_mask=mask)
        z = F.softmax(self.layer(y))
        return F.mse_loss(z, z[:1]) + F.mse_loss(
            z, z[:1])

model = Model()
for step in range(6):
    loss = model(torch.randn(5, 3, 16), torch.zeros(5, 5), torch.zeros(3, 5).bool())
    for _ in range(2):
        F.softmax(torch.randn(3))
    loss.backward()
"""


@pytest.mark.parametrize(
    "more", [(), pytest.param(("--compile", "modules"), marks=pytest.mark.slow)]
)
def test_a_script_is_told_the_same(tmp_path, more):
    (tmp_path / "script.py").write_text(SCRIPT)
    told = []
    for start in ((), ("-c", MAIN, "--eager-calls", "1", *more)):
        done = subprocess.run(
            [sys.executable, *start, "script.py"],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        told.append(re.sub(r"(?m)^(dynrun:|W\d{4} ).*\n", "", done.stderr))
    assert "script.py:15: UserWarning" in told[0] and told[1] == told[0]


def test_a_warning_names_the_users_line():
    def program(x):
        return F.softmax(x) + 1

    compiled = dynfix.compile(program, backend="eager")
    places = []
    for function in (program, compiled):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function(torch.randn(3, 4))
        places.append({(each.filename, each.lineno) for each in caught})
    assert places[0] == places[1] == {(__file__, program.__code__.co_firstlineno + 1)}


def test_what_was_told_is_not_told_again():
    def say():
        warnings.warn("once", UserWarning, stacklevel=1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        say()
        with suppress_warnings(), warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("inside", UserWarning, stacklevel=1)
            diagnostics.warn_once("test", "ours", "here")
        say()
    assert [str(each.message) for each in caught] == ["once", "inside", "ours"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        with suppress_warnings():
            warnings.warn("inside", UserWarning, stacklevel=1)
        warnings.warn("outside", UserWarning, stacklevel=1)
    assert [str(each.message) for each in caught] == ["outside"]
