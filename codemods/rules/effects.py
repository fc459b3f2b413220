"""DYN303, DYN305: warnings and progress bars in captured code."""

import ast

from ..edit import Safety
from .base import Rule
from .calls import CallRule
from .guarded import guard, quiet

_BARS = frozenset(["tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.notebook.tqdm", "tqdm.trange", "tqdm.auto.trange"])


class Warn(Rule):
    """
    `warnings.warn` looks at the stack and at global filters. Dynamo leaves it out of the graph with a break or drops it,
    by version. Under `if not torch.compiler.is_compiling():` eager warns exactly as before, and the compiled code is
    silent, which is counted.
    """

    code, name, message = "DYN303", "warning", "a warning in compiled code"
    help = "warn outside the compiled code, or only when not torch.compiler.is_compiling()"
    safety = Safety.SAFE
    dynamo = ("GB0059",)
    nodes = (ast.Expr,)
    before = """
import warnings

import torch


@torch.compile
def step(x: torch.Tensor):
    warnings.warn("slow path")
    return torch.relu(x)
"""
    after = """
import warnings

import torch


@torch.compile
def step(x: torch.Tensor):
    if not torch.compiler.is_compiling():
        warnings.warn("slow path")
    return torch.relu(x)
"""

    def check(self, node, context):
        call = node.value
        if not isinstance(call, ast.Call) or context.resolve(call.func) != "warnings.warn":
            return
        if not all(quiet(a, context) for a in [*call.args, *(k.value for k in call.keywords)]):
            yield context.finding(
                self, node, kept="its arguments do more than read: muting them could change the result"
            )
            return
        built = guard([node], context, silent=1)
        fix, kept = (None, built) if isinstance(built, str) else (built, "")
        yield context.finding(self, node, fix=fix, kept=kept)


class ProgressBar(CallRule):
    """
    A progress bar reads the clock and writes to the terminal at every turn: the graph breaks there. Iterate over the
    plain iterable in compiled code, and show progress outside it.
    """

    code, name, message = "DYN305", "progress-bar", "a progress bar in compiled code"
    help = "iterate over the plain iterable, and show progress outside the compiled code"
    dynamo = ("GB0059",)
    names = _BARS
    before = """
import torch
from tqdm import tqdm


@torch.compile
def step(x: torch.Tensor):
    for _ in tqdm(range(3)):
        x = torch.relu(x) + 1
    return x
"""
