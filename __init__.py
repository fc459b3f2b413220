"""dynfix: a source-to-source rewriting compiler for PyTorch programs.

Every public name is loaded on first use, so that `import dynfix` needs no torch.
"""

from importlib import import_module as _import_module

# for type checkers alone: at run time the table below loads each name on first use. Not `typing`'s:
# under `python -m dynfix` that may still be a file of the folder at hand
TYPE_CHECKING = False
if TYPE_CHECKING:
    from .codemods.eager_operators import eager_op
    from .codemods.fixed_programs import captures_reads, read_ahead
    from .lowering.packages import load, load_compiled_function
    from .rewriter.dynrun.install import install
    from .rewriter.frontend.api import (
        ExplainOutput,
        allow_in_graph,
        disable,
        explain,
        graph_break,
        is_compiling,
        package,
        reset,
    )
    from .rewriter.frontend.compile_logs import set_logs
    from .rewriter.frontend.compiler_namespace import (
        assume_constant_result,
        cudagraph_mark_step_begin,
        cudagraph_mark_warmup_incomplete,
        get_default_backend,
        is_dynamo_compiling,
        is_exporting,
        mark_dynamic,
        mark_static,
        mark_unbacked,
        maybe_mark_dynamic,
        nested_compile_region,
        nonstrict_trace,
        set_default_backend,
        substitute_in_graph,
        wrap_numpy,
    )
    from .rewriter.frontend.compiling import compile
    from .rewriter.frontend.config import config
    from .rewriter.frontend.stances import set_stance
    from .rewriter.lock.lock_run import lock
    from .runtime.backends import list_backends, register_backend
    from .runtime.cache.cache_artifacts import load_cache_artifacts, save_cache_artifacts
    from .runtime.diagnostics import DynfixWarning
    from .runtime.errors import (
        BuildError,
        DynfixError,
        GraphBreakError,
        LoweringError,
        NoVersionError,
        OptionError,
        PackageError,
        RecompileError,
        RecompileLimitError,
    )
    from .runtime.options import list_mode_options, list_options

__version__ = "0.1.0"

_PUBLIC = {
    name: module
    for module, names in {
        "codemods.eager_operators": "eager_op",
        "codemods.fixed_programs": "captures_reads read_ahead",
        "rewriter.frontend.api": (
            "explain ExplainOutput reset graph_break disable allow_in_graph is_compiling package"
        ),
        "lowering.packages": "load load_compiled_function",
        "rewriter.frontend.compile_logs": "set_logs",
        "rewriter.frontend.compiling": "compile",
        "rewriter.frontend.config": "config",
        "rewriter.dynrun.install": "install",
        "rewriter.frontend.stances": "set_stance",
        "rewriter.lock.lock_run": "lock",
        "rewriter.frontend.compiler_namespace": (
            "assume_constant_result cudagraph_mark_step_begin cudagraph_mark_warmup_incomplete"
            " get_default_backend is_dynamo_compiling is_exporting mark_dynamic mark_static"
            " mark_unbacked maybe_mark_dynamic nested_compile_region nonstrict_trace"
            " set_default_backend substitute_in_graph wrap_numpy"
        ),
        "runtime.backends": "list_backends register_backend",
        "runtime.cache.cache_artifacts": "load_cache_artifacts save_cache_artifacts",
        "runtime.options": "list_mode_options list_options",
        "runtime.errors": (
            "DynfixError GraphBreakError LoweringError BuildError OptionError RecompileError"
            " RecompileLimitError PackageError NoVersionError"
        ),
        "runtime.diagnostics": "DynfixWarning",
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
    "NoVersionError",
    "OptionError",
    "PackageError",
    "RecompileError",
    "RecompileLimitError",
    "__version__",
    "allow_in_graph",
    "assume_constant_result",
    "captures_reads",
    "compile",
    "config",
    "cudagraph_mark_step_begin",
    "cudagraph_mark_warmup_incomplete",
    "disable",
    "eager_op",
    "explain",
    "get_default_backend",
    "graph_break",
    "install",
    "is_compiling",
    "is_dynamo_compiling",
    "is_exporting",
    "list_backends",
    "list_mode_options",
    "list_options",
    "load",
    "load_cache_artifacts",
    "load_compiled_function",
    "lock",
    "mark_dynamic",
    "mark_static",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "nested_compile_region",
    "nonstrict_trace",
    "package",
    "read_ahead",
    "register_backend",
    "reset",
    "save_cache_artifacts",
    "set_default_backend",
    "set_logs",
    "set_stance",
    "substitute_in_graph",
    "wrap_numpy",
]

_INTERNAL = {
    "warm_up": "rewriter.frontend.warmup",
    "verify_calls": "rewriter.dynrun.verified_calls",
    "fix_after_run": "codemods.cli.run_fixes",
    "advise_after_run": "codemods.cli.advise",
    "Collector": "rewriter.dynrun.report_data",
    "step_costs": "rewriter.dynrun.step_costs",
    "write_report": "rewriter.dynrun.report_page",
    "ProfiledRun": "rewriter.dynrun.trace_file",
    "begin_lock": "rewriter.lock.lock_run",
    "end_lock": "rewriter.lock.lock_run",
    "emit_source": "rewriter.dynrun.emit_source",
    "with_drivers": "rewriter.graph_breaks.step_driver",
    "OptimizedModule": "rewriter.dynrun.optimized_module",
    "step_function": "rewriter.dynrun.step_function",
    "compile_begun": "rewriter.frontend.compiling",
    "compiled_step": "rewriter.dynrun.step_function",
    "load_ipython_extension": "rewriter.dynrun.magics",
}

# Names of torch.compiler that are not here, and why.
_FILTERS = "every guard is checked: there are no guard filters"
_FILES = "dynfix.package writes a compiled model to a file"
_MISSING = {
    "keep_portable_guards_unsafe": _FILTERS,
    "keep_tensor_guards_unsafe": _FILTERS,
    "skip_all_guards_unsafe": _FILTERS,
    "skip_guard_on_all_nn_modules_unsafe": _FILTERS,
    "skip_guard_on_globals_unsafe": _FILTERS,
    "skip_guard_on_inbuilt_nn_modules_unsafe": _FILTERS,
    "PrecompileError": _FILES,
    "precompile": _FILES,
    "set_enable_guard_collectives": "ranks do not agree on recompiling: each decides for itself",
}


def __getattr__(name: str) -> object:
    if name in _MISSING:
        raise AttributeError(f"dynfix has no {name!r}: {_MISSING[name]} (docs/reference/api.md)")
    module = _PUBLIC.get(name) or _INTERNAL.get(name)
    if module is not None:
        try:
            return getattr(_import_module(f"{__name__}.{module}"), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            message = f"dynfix.{name} needs PyTorch: pip install 'dynfix[torch]'"
            raise ModuleNotFoundError(message, name="torch") from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "dynfix":  # and not a file that pytest collects
    _import_module("dynfix.rewriter.source.compiled_texts").keep()


def __dir__() -> list[str]:
    return sorted(__all__)
