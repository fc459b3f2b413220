"""DYN110: reads that depend on a module's inputs alone, computed ahead of its captured call."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Safety
from ...hoist.companion_source import HELPER_TEXT
from ..base import Rule

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


class ReadAhead(Rule):
    """
    Some values that are read on the host depend on the inputs of the outermost module alone: image
    grids, lengths, masks that become indices. Read before the graph begins, they break nothing.

    With `--trace`, such reads (and shapes that depend on data) move into a companion function of
    the module's `forward`. It runs before the forward, outside the graph, and passes the values
    as a parameter through the functions between. It computes only what has no side effects, draws
    no random numbers and uses no parameter. Where it raises, or where the module runs inside
    another graph, the values are read where they were. They are constants of the graph, as sizes
    are: new values make Dynamo recompile. In eager nothing moves.

    Unsafe where the read is reached through other functions: one run showed which they are, and
    with which objects.
    """

    code = "DYN110"
    safety = Safety.SAFE
    nodes = (ast.Module,)
    whole_file = True
    shown = (("Model.forward", "Model.forward", "sizes.tolist()"),)
    before = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, sizes):
        parts = torch.split(x, sizes.tolist())
        return torch.stack([p.mean(0) for p in parts])
"""
    after = f"""
import torch
from torch import nn

{HELPER_TEXT.rstrip()}


class Model(nn.Module):
    def _forward_host_values(self, x, sizes):
        \"\"\"What `forward` reads on the host.\"\"\"
        host_values = {{}}
        host_values["sizes_tolist"] = sizes.tolist()
        return host_values

    @read_ahead(_forward_host_values)
    def forward(self, x, sizes, *, host_values=None):
        parts = torch.split(x, (
            host_values["sizes_tolist"]
            if host_values and "sizes_tolist" in host_values
            else sizes.tolist()
        ))
        return torch.stack([p.mean(0) for p in parts])
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        plan = context.facts.plan if context.facts else None
        if plan is not None and plan.text == context.source.text:
            yield from plan.findings
