"""The command `dynrun script.py [args]`: run an unchanged script with its models compiled; also
`-m module`, `-c code` and `-` (standard input), as python has them, and `python -m dynfix.run`.

Calls of outermost `nn.Module`s, and functions given to `torch.compile`, go through
`dynfix.compile`. Everything else is as under `python`: `sys.argv`, `__main__`, `sys.path[0]`, the
exit status, the output and the tracebacks. This module loads no torch: the script does, and
`intercept` is installed at that moment.
"""

import argparse
import atexit
import builtins
import io
import linecache
import os
import runpy
import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import BuiltinImporter, SourceFileLoader
from typing import Any

from .. import __version__
from ..runtime.errors import OptionError
from ..runtime.pacing import SHARE
from ..runtime.report import speak_with
from .running import emit_source
from .running import worker_launch as launch
from .running.intercept import install
from .running.session import Session
from .running.summary import say_line
from .running.tracebacks import without_own_frames


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dynrun",
        usage="dynrun [options] [script.py | -m module | -c code | -] [args]",
        description="Run an unchanged PyTorch script with its models captured and compiled.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--backend",
        default="native",
        metavar="NAME",
        help="native (default), eager, aot_eager, inductor",
    )
    add(
        "--mode",
        metavar="NAME",
        help="a mode of dynfix.compile, as reduce-overhead or max-autotune",
    )
    add(
        "--dynamic",
        action=argparse.BooleanOptionalAction,
        help="symbolic sizes from the start, or never",
    )
    add("--fullgraph", action="store_true", help="a graph break is an error")
    add(
        "--eager-calls",
        type=int,
        metavar="N",
        help="compile a module at once after N eager calls (--explain: 0; --fullgraph and"
        " --emit-source: 1), not beside the script where it pays",
    )
    add(
        "--overhead",
        type=float,
        default=100 * SHARE,
        metavar="PERCENT",
        help="how much of the run compiling may cost before it pays (%(default)g)",
    )
    add(
        "--emit-source",
        metavar="DIR",
        help="write the rewritten source of every captured function to DIR",
    )
    add(
        "--explain",
        action="store_true",
        help="print at exit, to stderr, what was captured and where it broke",
    )
    add(
        "--nproc-per-node",
        metavar="N",
        help="start N processes of the script through torchrun's launcher (or gpu, cpu, auto)",
    )
    add(
        "--summary",
        action=argparse.BooleanOptionalAction,
        help="say at the end, on stderr, what was compiled (default: only on a terminal)",
    )
    add("-q", "--quiet", action="store_true", help="no summary")
    add("--disable", action="store_true", help="run the script as it is")
    add("--version", action="version", version=f"dynrun {__version__}")
    return parser


def _split(argv: Sequence[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """Our own options, and the script (or `-m module`) with everything that follows it."""
    takes_value = {
        name for action in parser._actions if action.nargs is None for name in action.option_strings
    }
    at = 0
    while at < len(argv) and argv[at].startswith("-") and argv[at] not in ("-m", "-c", "-"):
        at += 2 if argv[at] in takes_value else 1
    return list(argv[:at]), list(argv[at:])


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script. Returns 0; leaves by the script's own SystemExit or
    exception."""
    parser = _parser()
    own, script = _split(sys.argv[1:] if argv is None else argv, parser)
    arguments = parser.parse_args(own)
    if not script or script in (["-m"], ["-c"]):
        parser.error("no script given")
    try:
        session = _session(arguments)
    except OptionError as error:
        parser.error(str(error))
    if arguments.nproc_per_node is not None:
        script = launch.standalone(arguments.nproc_per_node, script)
    if launch.is_launcher(script):
        launch.let_workers_use(own)
    if arguments.emit_source:
        emit_source.install(arguments.emit_source)
    if not arguments.disable:
        at_once = arguments.explain or arguments.fullgraph or arguments.emit_source
        if arguments.eager_calls is None and not at_once:
            session.compile_beside(arguments.overhead / 100, script)
        default = 0 if arguments.explain else 1
        speak_with(say_line)
        install(session, default if arguments.eager_calls is None else arguments.eager_calls)
    runs = {"-m": _run_module, "-c": _run_code, "-": _run_stdin}
    if script[0] in runs:
        _run_as_python_does(lambda: runs[script[0]](script[1:]))
    else:
        _run_as_python_does(lambda: _run_script(script))
    return 0


def _session(arguments: argparse.Namespace) -> Session:
    """Raises OptionError for an unknown backend or mode."""
    names = ("fullgraph", "dynamic", "backend", "mode")
    session = Session(arguments.explain, **{name: getattr(arguments, name) for name in names})
    if arguments.explain:
        atexit.register(session.print_report)
    elif not arguments.quiet and not arguments.disable:
        wanted = arguments.summary
        if wanted or (wanted is None and sys.stderr is not None and sys.stderr.isatty()):
            session.keep = True
            atexit.register(session.print_summary)
    return session


def _run_as_python_does(run: Callable[[], None]) -> None:
    """Show an uncaught exception without our frames, then let it end the process, as the
    interpreter would."""
    try:
        run()
    except SystemExit:
        raise
    except BaseException as error:
        without_own_frames(error)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.excepthook = lambda *shown: None
        raise


def _run_script(argv: list[str]) -> None:
    path = argv[0]
    sys.argv[:] = argv
    if os.path.isdir(path) or path.endswith((".zip", ".pyz")):
        sys.path[0] = os.path.abspath(path)
        _new_main()
        return runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined, no-any-return]
    full = os.path.abspath(path)
    code = _compiled_script(full)
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    exec(code, _new_main(__file__=full, __loader__=SourceFileLoader("__main__", full)))


def _compiled_script(path: str) -> types.CodeType:
    try:
        with io.open_code(path) as file:
            return compile(file.read(), path, "exec", dont_inherit=True)
    except OSError as error:
        print(
            f"dynrun: can't open file {path!r}: [Errno {error.errno}] {error.strerror}",
            file=sys.stderr,
        )
        raise SystemExit(2) from None


def _run_code(argv: list[str]) -> None:
    sys.argv[:] = ["-c", *argv[1:]]
    _run_text(argv[0], "<string>")


def _run_stdin(argv: list[str]) -> None:
    sys.argv[:] = ["-", *argv]
    _run_text(sys.stdin.read(), "<stdin>")


def _run_text(text: str, name: str) -> None:
    """Code without a file. Its lines are kept, so that its functions have a source to rewrite."""
    sys.path[0] = ""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    code = compile(text, name, "exec", dont_inherit=True)
    exec(code, _new_main(__loader__=BuiltinImporter))


def _run_module(argv: list[str]) -> None:
    sys.argv[:] = argv
    sys.path[0] = os.getcwd()
    _new_main()
    runpy._run_module_as_main(argv[0])  # type: ignore[attr-defined]


_own_main = sys.modules["__main__"]  # kept alive: the console script's frame still runs in it


def _new_main(**names: Any) -> dict[str, Any]:
    """A fresh `__main__`, as the interpreter makes it; its namespace."""
    main = types.ModuleType("__main__")
    main.__dict__.update(
        {"__annotations__": {}, "__builtins__": builtins, "__cached__": None, **names}
    )
    sys.modules["__main__"] = main
    return main.__dict__


if __name__ == "__main__":
    sys.exit(main())
