"""Rules that know a call by its name: what no tracer can follow, with advice."""

import ast
from dataclasses import replace

from ...rewriter.edits.spans import Fix, Safety
from ..analysis.captured_walk import read_ahead
from ..analysis.implicit_ints import places
from .base import Rule
from .draws.random_draws import only_for_training, settled
from .effects.guarded import guard
from .host.host_read import told


class CallRule(Rule):
    """Speaks of a call whose full name is in `names`, or starts with one of `prefixes`; `{}` in the
    message is that name."""

    nodes = (ast.Call,)
    names: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    def check(self, node, context):
        name = context.resolve(node.func)
        if name is None or not (name in self.names or name.startswith(self.prefixes or ("\0",))):
            return
        if self.applies(node, context) and not told(node, context):
            yield context.finding(
                self, node, f"{self.message}: `{name}`", fix=self.fix(node, context)
            )

    def fix(self, node, context):
        """The Fix, where there is one."""
        return None

    def applies(self, node, context):
        """Whether this call is one of those meant."""
        return True


class PythonRandom(CallRule):
    """
    Python's and NumPy's generators cannot be drawn from inside a graph, and a number drawn while
    tracing would be the same at every call. Draw with torch (`torch.rand`, `torch.randint`), on the
    device, or draw outside and pass the number in. A number that only training looks at
    (`self.training and p < self.layerdrop`) is not drawn where compiled code does not train:
    unsafe, for later draws of NumPy's generator give other numbers than in eager.
    """

    code, name, message = "DYN701", "python-random", "a random number is drawn outside torch"
    help = "draw it with torch, or outside the compiled code"
    safety = Safety.UNSAFE
    dynamo = ("GB0033",)
    prefixes = ("random.", "numpy.random.")
    before = """
import numpy as np
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        p = np.random.uniform(0, 1)
        return x if self.training and p < 0.1 else torch.relu(x)
"""
    after = """
import numpy as np
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        p = np.random.uniform(0, 1) if self.training or not torch.compiler.is_compiling() else 0.0
        return x if self.training and p < 0.1 else torch.relu(x)
"""

    def applies(self, node, context):
        return not settled(node, context)

    def fix(self, node, context):
        drawn = (context.resolve(node.func) or "").startswith("numpy.random.")
        return only_for_training(node, context) if drawn else None


class Clock(CallRule):
    """
    Reading the clock breaks the graph, and measures nothing inside one: kernels run later than the
    Python code that launches them. Measure around the compiled call. A `time.sleep(...)` by itself
    can be kept for eager alone: unsafe, for the compiled code does not wait.
    """

    code, name, message = "DYN703", "clock", "the clock is read in compiled code"
    help = "measure around the compiled call"
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
    return torch.relu(x), time.time() - started
"""

    def fix(self, node, context):
        statement = context.parent(node)
        if context.resolve(node.func) != "time.sleep" or not isinstance(statement, ast.Expr):
            return None
        built = guard([statement], context)
        why = "the compiled code does not wait"
        return replace(built, safety=Safety.UNSAFE, why=why) if isinstance(built, Fix) else built


class Seed(CallRule):
    """
    Setting the generator's seed is a side effect on global state that a graph cannot hold: it
    breaks there. Seed before the compiled code.
    """

    code, name, message = "DYN704", "seed", "a generator is seeded in compiled code"
    help = "seed before the compiled code"
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


class Files(CallRule):
    """
    Opening, saving and loading files cannot be traced. Return the tensors and write them outside.
    """

    code, name, message = "DYN306", "file-access", "a file is read or written in compiled code"
    help = "return the tensors, and write them outside the compiled code"
    dynamo = ("GB0059",)
    names = frozenset(
        [
            "open",
            "torch.save",
            "torch.load",
            "pickle.dump",
            "pickle.load",
            "numpy.save",
            "numpy.load",
        ]
    )
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    torch.save(x, "x.pt")
    return torch.relu(x)
"""


class Dynamic(CallRule):
    """
    `exec`, `eval` and `globals()` make code and names that no tracer sees before they run. Write
    the code out, or pass the value in.
    """

    code, name, message = "DYN402", "dynamic-code", "code or names are made at run time"
    help = "write the code out, or pass the value in"
    dynamo = ("GB0059",)
    names = frozenset(["exec", "eval", "globals", "compile"])
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    return x * globals()["SCALE"]


SCALE = 2
"""


class Signature(CallRule):
    """
    Asking a function for its signature, or a frame for its names, is work on Python objects that
    the tracer does not model. Ask once, when the model is made, and keep the answer.
    """

    code, name, message = "DYN403", "introspection", "code is inspected in compiled code"
    help = "ask when the model is made, and keep the answer"
    dynamo = ("GB0059",)
    names = frozenset(
        [
            "inspect.signature",
            "inspect.getsource",
            "inspect.getfullargspec",
            "inspect.stack",
            "inspect.currentframe",
            "sys._getframe",
            "locals",
            "vars",
        ]
    )
    before = """
import inspect

import torch


@torch.compile
def step(x: torch.Tensor):
    if "alpha" in inspect.signature(torch.relu).parameters:
        return x
    return torch.relu(x)
"""


class Identity(CallRule):
    """
    The address or the hash of a tensor is not the same from call to call, and means nothing inside
    a graph. Use a key of your own: a name, an index.
    """

    code, name, message = (
        "DYN405",
        "object-identity",
        "the identity of a tensor is used in compiled code",
    )
    help = "use a key of your own: a name, an index"
    dynamo = ("GB0059",)
    names = frozenset(["id", "hash"])
    before = """
import torch


@torch.compile
def step(x: torch.Tensor, seen: dict):
    return x * seen.get(id(x), 1)
"""

    def applies(self, node, context):
        return bool(node.args) and context.kind(node.args[0]).what in (
            "tensor",
            "tensors",
            "module",
        )


class DeepCopy(CallRule):
    """
    Copying a tensor with the `copy` module is not traced. `t.clone()` (with `.detach()` where no
    gradient should flow) is an operator.
    """

    code, name, message = "DYN404", "copied-tensor", "a tensor is copied with the copy module"
    help = "use .clone(), with .detach() where no gradient should flow"
    names = frozenset(["copy.copy", "copy.deepcopy"])
    before = """
import copy

import torch


@torch.compile
def step(x: torch.Tensor):
    return x + copy.copy(x)
"""

    def applies(self, node, context):
        return bool(node.args) and context.kind(node.args[0]).what in ("tensor", "tensors")


class TruthFunction(CallRule):
    """
    `torch.equal`, `torch.allclose` and `torch.is_nonzero` give a Python bool: the tensors are read
    on the host. `(a == b).all()` and `torch.isclose(a, b).all()` give a tensor, and `torch.where`
    takes it.
    """

    code, name, message = "DYN106", "truth-function", "a Python bool is made of tensors"
    help = "use (a == b).all() or torch.isclose(a, b).all(), which stay tensors"
    dynamo = ("GB0033",)
    names = frozenset(["torch.equal", "torch.allclose", "torch.is_nonzero"])
    methods = frozenset(["equal", "allclose", "is_nonzero"])
    before = """
import torch


@torch.compile
def step(x: torch.Tensor, y: torch.Tensor):
    if torch.equal(x, y):
        return x
    return x + y
"""

    def check(self, node, context):
        method = isinstance(node.func, ast.Attribute) and node.func.attr in self.methods
        if not method or not context.kind(node.func.value).is_tensor:
            yield from super().check(node, context)
        elif not told(node, context):
            yield context.finding(self, node, f"{self.message}: `.{node.func.attr}()`")


class ImplicitInt(Rule):
    """
    `range(t)`, `torch.arange(t)`, `x[:t]` and sizes made of a tensor read its value to get a Python
    int. Where the number is an input of the compiled code, pass it as an int; where it bounds the
    work, compute for the largest size and mask. Where it depends on inputs alone, a traced run
    shows it, and DYN110 reads it ahead.
    """

    code, name, message = "DYN105", "implicit-int", "a tensor is used as a Python int"
    help = "pass the number as an int, or work at the largest size with a mask"
    dynamo = ("GB0033", "GB0124")
    nodes = (ast.Call, ast.Subscript)
    takers = frozenset(["range", "torch.arange"])
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    return torch.arange((x > 0).sum()) + 1
"""

    def check(self, node, context):
        taken = isinstance(node, ast.Call) and context.resolve(node.func) in self.takers
        for number in node.args if taken else places(context.resolve, node):
            is_ahead = isinstance(number, ast.IfExp) and read_ahead(
                number.test
            )  # an int, but where it is not
            if context.kind(number).is_tensor and not is_ahead:
                yield context.finding(self, number)
