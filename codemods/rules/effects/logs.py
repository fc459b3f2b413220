"""DYN302: logging in captured code."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.output_calls import is_log
from ....rewriter.source.spans import Safety
from ..base import Rule
from .prints import logging_finding

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


class Logging(Rule):
    """
    A logger takes locks, reads the clock and looks at the stack, and breaks the graph there. The
    fix guards it as DYN301 does a print: eager logs as before, compiled code is silent, and the
    calls that fall silent are counted.
    """

    code = "DYN302"
    safety = Safety.SAFE
    nodes = (ast.Expr, ast.Call)
    before = """
import logging

import torch

logger = logging.getLogger(__name__)


@torch.compile
def step(x: torch.Tensor):
    logger.info("mean: %s", x.mean())
    return torch.relu(x)
"""
    after = """
import logging

import torch

logger = logging.getLogger(__name__)


@torch.compile
def step(x: torch.Tensor):
    if not torch.compiler.is_compiling():
        logger.info("mean: %s", x.mean())
    return torch.relu(x)
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        yield from logging_finding(self, node, context, is_log)
