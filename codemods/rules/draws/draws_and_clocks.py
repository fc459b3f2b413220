"""DYN701, DYN703, DYN704: random numbers from outside torch, clocks, seeds."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Fix, Safety
from ..call_rule import CallRule
from ..effects.compile_guards import guard
from ..effects.logging_slice import guarded_with_uses
from .random_draws import only_for_training, read_as_number, settled
from .torch_draws import drawn_by_torch, drawn_when_compiled

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext


_TRACED = ("random.randint", "random.randrange", "random.uniform")
# {NumPy's draw: how many arguments stand before the size}
_SIZE_AT = dict.fromkeys(["rand", "randn", "random", "random_sample", "standard_normal"], 0)
_SIZE_AT |= dict.fromkeys(["uniform", "normal", "randint"], 2)


class PythonRandom(CallRule):
    """
    Python's and NumPy's generators cannot be drawn from inside a graph, and a number drawn while
    tracing would be the same at every call. Draw with torch (`torch.rand`, `torch.randint`), on the
    device, or draw outside and pass the number in. A number that only training looks at
    (`self.training and p < self.layerdrop`) is not drawn where compiled code does not train:
    unsafe, for later draws of NumPy's generator give other numbers than in eager. One that decides
    a branch, or goes into arithmetic, is drawn by torch in compiled code, and as before in eager;
    where that has no form, by torch everywhere: unsafe, for its numbers are others.
    From torch 2.13 on, `random.randint`, `randrange` and `uniform` break the graph where their
    number is a size, an index or a bound, or decides a branch; and arrays of NumPy's draws do not.
    """

    code = "DYN701"
    safety = Safety.SAFE
    prefixes = ("random.", "numpy.random.")
    before = """
import random

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        if self.training and random.random() < 0.1:
            x = x * 0.5
        return torch.relu(x)
"""
    after = """
import random

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        if torch.compiler.is_compiling() and self.training and x.is_floating_point():
            x = torch.where(torch.rand(()) < 0.1, x * 0.5, x)
        elif self.training and random.random() < 0.1:
            x = x * 0.5
        return torch.relu(x)
"""

    def applies(self, node: ast.Call, context: FileContext) -> bool:
        return self.place(node, context) is not None and not settled(node, context)

    def place(self, node: ast.Call, context: FileContext) -> ast.expr | None:
        name = context.resolve(node.func) or ""
        if context.settings.targets_before("2.13"):
            return None if name == "random.Random" else node
        if name in _TRACED:
            return read_as_number(node, context)
        return None if name == "random.Random" or _is_array(node, name) else node

    def fix(self, node: ast.Call, context: FileContext) -> Fix | None:
        drawn = (context.resolve(node.func) or "").startswith("numpy.random.")
        built = only_for_training(node, context) if drawn else None
        return drawn_when_compiled(node, context) or built or drawn_by_torch(node, context)


def _is_array(node: ast.Call, name: str) -> bool:
    """Whether NumPy draws an array, which Dynamo takes for torch's own draw."""
    before = _SIZE_AT.get(name.removeprefix("numpy.random."))
    sized = any(k.arg == "size" for k in node.keywords)
    return before is not None and (sized or len(node.args) > before)


class Clock(CallRule):
    """
    Reading the clock breaks the graph, and measures nothing inside one: kernels run later than the
    Python code that launches them. Measure around the compiled call. Times that are only shown, or
    not even that, are taken in eager alone, as is a `time.sleep(...)` by itself: that is unsafe,
    for the compiled code does not wait.
    """

    code = "DYN703"
    safety = Safety.SAFE
    names = frozenset(
        [
            "time.time",
            "time.perf_counter",
            "time.monotonic",
            "time.process_time",
            "time.time_ns",
            "time.perf_counter_ns",
            "time.sleep",
        ]
    )
    before = """
import time

import torch


@torch.compile
def step(x: torch.Tensor):
    started = time.time()
    y = torch.relu(x)
    print("took", time.time() - started)
    return y
"""
    after = """
import time

import torch


@torch.compile
def step(x: torch.Tensor):
    if not torch.compiler.is_compiling():
        started = time.time()
    y = torch.relu(x)
    if not torch.compiler.is_compiling():
        print("took", time.time() - started)
    return y
"""

    def fix(self, node: ast.Call, context: FileContext) -> Any:
        statement = context.parent(node)
        if context.resolve(node.func) != "time.sleep":
            return guarded_with_uses(node, context)
        if not isinstance(statement, ast.Expr):
            return None
        built = guard([statement], context)
        why = "the compiled code does not wait"
        return replace(built, safety=Safety.UNSAFE, why=why) if isinstance(built, Fix) else built


class Seed(CallRule):
    """
    Setting the generator's seed is a side effect on global state that a graph cannot hold: it
    breaks there. Seed before the compiled code.
    """

    code = "DYN704"
    names = frozenset(
        [
            "torch.manual_seed",
            "torch.seed",
            "torch.random.manual_seed",
            "torch.cuda.manual_seed",
            "torch.cuda.manual_seed_all",
        ]
    )
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    torch.manual_seed(0)
    return x + torch.rand(1)
"""
