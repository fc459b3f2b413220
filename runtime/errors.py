"""The errors that users meet. Each message says what, where (`file.py:41`) and how to mend it."""


class DynfixError(Exception):
    """Base of every error that dynfix raises on purpose."""


class OptionError(DynfixError, ValueError):
    """An unknown or ill-typed argument, option, mode or backend."""


class GraphBreakError(DynfixError):
    """`fullgraph=True` met something that cannot stay in one graph."""


class LoweringError(DynfixError):
    """A graph holds what a lowering, a schedule or a target cannot express."""


class BuildError(DynfixError):
    """Kernel source could not be built, or no compiler was found."""


class UnexpectedResult(DynfixError, RuntimeError):
    """A library call gave another tensor than its meta function had said."""


class LostResult(DynfixError, RuntimeError):
    """A call failed when it had written its inputs: to make it again in eager would write twice."""


class RecompileLimitError(DynfixError):
    """`fullgraph=True` met more variants of one function than `recompile_limit` allows."""


class RecompileError(DynfixError, RuntimeError):
    """The stance "fail_on_recompile" met a call that would be recorded."""


class PackageError(DynfixError, RuntimeError):
    """A model cannot be packaged, or a file is no package that can be loaded here."""


class NoVersionError(PackageError):
    """A call fails the guards of every version that a package holds."""


class WorkerStopped(BaseException):
    """Ends work beside the user's when the process ends. Nothing catches it by accident."""
