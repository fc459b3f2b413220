"""DYN402 to DYN405: code made, asked and copied at run time."""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING

from ..call_rule import CallRule

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext


class DynamicCode(CallRule):
    """
    `exec`, `eval` and `globals()` make code and names that no tracer sees before they run. Write
    the code out, or pass the value in.
    """

    code = "DYN402"
    names = frozenset(["exec", "eval", "globals", "compile"])
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    return x * globals()["SCALE"]


SCALE = 2
"""


class Introspection(CallRule):
    """
    Asking a function for its source, a C function for its signature, or a frame for its names, is
    work on Python objects that the tracer does not model. Ask once, when the model is made, and
    keep the answer.
    """

    code = "DYN403"
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
import torch.nn.functional as F


@torch.compile
def step(x: torch.Tensor):
    if "alpha" in inspect.signature(F.relu).parameters:
        return x
    return torch.relu(x)
"""

    def applies(self, node: ast.Call, context: FileContext) -> bool:
        """Of Python functions Dynamo knows the signature; C functions have none that it can ask."""
        name = context.resolve(node.func)
        if name not in ("inspect.signature", "inspect.getfullargspec"):
            return True
        asked = (context.resolve(node.args[0]) if node.args else None) or ""
        return asked.startswith("torch.") or hasattr(builtins, asked)


class CopiedTensor(CallRule):
    """
    Copying a tensor with the `copy` module is not traced. `t.clone()` (with `.detach()` where no
    gradient should flow) is an operator.
    """

    code = "DYN404"
    names = frozenset(["copy.copy", "copy.deepcopy"])
    before = """
import copy

import torch


@torch.compile
def step(x: torch.Tensor):
    return x + copy.copy(x)
"""

    def applies(self, node: ast.Call, context: FileContext) -> bool:
        return bool(node.args) and context.kind(node.args[0]).what in ("tensor", "tensors")


class ObjectIdentity(CallRule):
    """
    The address or the hash of a tensor is not the same from call to call, and means nothing inside
    a graph. Use a key of your own: a name, an index.
    """

    code = "DYN405"
    names = frozenset(["id", "hash"])
    before = """
import torch


@torch.compile
def step(x: torch.Tensor, seen: dict):
    return x * seen.get(id(x), 1)
"""

    def applies(self, node: ast.Call, context: FileContext) -> bool:
        return bool(node.args) and context.kind(node.args[0]).what in (
            "tensor",
            "tensors",
            "module",
        )
