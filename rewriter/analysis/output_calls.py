"""Calls that only tell something: prints, warnings and log calls."""

import ast

from .call_effects import LOGGERS
from .kinds import LOGGER
from .oracle import Oracle

LOG_METHODS = frozenset(
    """
    debug info warning warn error critical exception log warning_once info_once warning_advice
    """.split()
)


_PRINTS = frozenset("print pprint.pprint pprint.pp sys.stdout.write sys.stderr.write".split())


def is_print(node: ast.AST, oracle: Oracle) -> bool:
    """A call of `print`, or of what writes to the terminal as it does."""
    return isinstance(node, ast.Call) and oracle.resolve(node.func) in _PRINTS


def is_warning(node: ast.AST, oracle: Oracle) -> bool:
    return isinstance(node, ast.Call) and oracle.resolve(node.func) == "warnings.warn"


def is_log(node: ast.AST, oracle: Oracle) -> bool:
    """A call of a method of a logger, or of the logging module."""
    if (
        not isinstance(node, ast.Call)
        or not isinstance(node.func, ast.Attribute)
        or node.func.attr not in LOG_METHODS
    ):
        return False
    if oracle.kind(node.func.value).what == LOGGER:
        return True
    return (oracle.resolve(node.func) or "").startswith(LOGGERS)
