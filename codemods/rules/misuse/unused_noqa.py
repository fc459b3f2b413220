"""DYN900: suppressions that suppress nothing."""

from __future__ import annotations

from typing import Any

from ....rewriter.source.spans import Safety
from ..base import Rule


class UnusedNoqa(Rule):
    """
    A `# noqa: DYN…` comment names a rule that finds nothing on its line (any more). The next
    finding there would go unseen. Codes of rules that are switched off are not looked at, nor are
    those of other tools; the fix removes what is unused, and leaves the rest of the comment.
    """

    code = "DYN900"
    safety = Safety.SAFE
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    return torch.where(x.sum() > 0, x, -x)  # noqa: DYN201
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    return torch.where(x.sum() > 0, x, -x)
"""

    def check(self, node: Any, context: Any) -> tuple[()]:
        """Found where suppressions are counted: when all other rules have spoken."""
        return ()
