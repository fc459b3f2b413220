"""dynfix: a source-to-source rewriting compiler for PyTorch programs.

Every public name is loaded on first use, so that `import dynfix` needs no torch.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

# for type checkers alone: at run time the table below loads each name on first use
if TYPE_CHECKING:
    from .rewriter.api import (
        ExplainOutput,
        allow_in_graph,
        compile,
        disable,
        explain,
        graph_break,
        is_compiling,
        reset,
    )
    from .rewriter.config import config
    from .runtime.backends import list_backends, register_backend
    from .runtime.errors import (
        BuildError,
        DynfixError,
        GraphBreakError,
        LoweringError,
        OptionError,
        RecompileLimitError,
    )
    from .runtime.options import list_mode_options, list_options
    from .runtime.report import DynfixWarning

__version__ = "0.1.0"

_PUBLIC = {
    name: module
    for module, names in {
        "rewriter.api": (
            "compile explain ExplainOutput reset graph_break disable allow_in_graph is_compiling"
        ),
        "rewriter.config": "config",
        "rewriter.warmup": "warm_up",
        "runtime.backends": "list_backends register_backend",
        "runtime.options": "list_mode_options list_options",
        "runtime.errors": (
            "DynfixError GraphBreakError LoweringError BuildError OptionError RecompileLimitError"
        ),
        "runtime.report": "DynfixWarning",
    }.items()
    for name in names.split()
}
__all__ = [
    "BuildError",
    "DynfixError",
    "DynfixWarning",
    "ExplainOutput",
    "GraphBreakError",
    "LoweringError",
    "OptionError",
    "RecompileLimitError",
    "__version__",
    "allow_in_graph",
    "compile",
    "config",
    "disable",
    "explain",
    "graph_break",
    "is_compiling",
    "list_backends",
    "list_mode_options",
    "list_options",
    "register_backend",
    "reset",
]


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        try:
            return getattr(_import_module(f"{__name__}.{_PUBLIC[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            message = f"dynfix.{name} needs PyTorch: pip install 'dynfix[torch]'"
            raise ModuleNotFoundError(message, name="torch") from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
