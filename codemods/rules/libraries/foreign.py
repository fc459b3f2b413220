"""DYN601: a call into code that cannot be traced, on a tensor's data."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..base import Rule

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_TRACED = frozenset(
    [
        "torch",
        "numpy",
        "math",
        "operator",
        "functools",
        "itertools",
        "collections",
        "typing",
        "typing_extensions",
        "einops",
        "logging",
        "warnings",
        "builtins",
        "abc",
        "copy",
        "contextlib",
        "dataclasses",
        "enum",
        "types",
        "transformers",
        "torchvision",
        "torchaudio",
        "timm",
        "dynfix",
        "inspect",
        "string",
        "random",
        "time",
        "re",
        "os",
        "sys",
    ]
)


class ForeignLibraryCall(Rule):
    """
    A tensor that leaves for a library in C, or for plain Python data (`json`, `scipy`, `PIL`,
    `cv2`, `pandas`), cannot be traced there. Wrap the call with `torch.library.custom_op` and give
    it a fake function that says what shape comes out, or, where it is made of torch calls alone,
    mark it with `torch.compiler.allow_in_graph`.
    """

    code = "DYN601"
    nodes = (ast.Call,)
    before = """
import json

import torch


@torch.compile
def step(x: torch.Tensor):
    text = json.dumps(x.tolist())
    return torch.relu(x) + len(text)
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        name = context.resolve(node.func)
        root = (name or "").split(".")[0]
        imported = root in context.names.aliases.values() or root in {
            a.split(".")[0] for a in context.names.aliases.values()
        }
        if not name or not imported or not root or root in _TRACED or name.startswith("."):
            return
        kinds = [context.kind(a) for a in node.args] + [
            context.kind(k.value) for k in node.keywords
        ]
        if any(k.is_tensor or k.host or k.what in ("tensors", "ndarray") for k in kinds):
            yield context.finding(
                self, node, f"a tensor goes into `{name}`, which cannot be traced"
            )
