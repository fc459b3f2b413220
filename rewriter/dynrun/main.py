"""The command `dynrun script.py [args]`: run an unchanged script with its models compiled; also
`-m module`, `-c code` and `-` (standard input), as python has them, and `python -m dynfix.run`.

Calls of outermost `nn.Module`s, and functions given to `torch.compile`, go through
`dynfix.compile`. Everything else is as under `python`: `sys.argv`, `__main__`, `sys.path[0]`, the
exit status, the output and the tracebacks. This module loads no torch: the script does, and
`intercept` is installed at that moment.
"""

import argparse
import atexit
import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ... import __getattr__ as public  # the package's lazy table
from ...runtime.diagnostics import speak_with
from ...runtime.errors import OptionError
from ..frontend.build_process import BuildProcess
from . import as_python, step_source, summary
from . import worker_launch as launch
from .intercept import install
from .run_arguments import (
    check_fix,
    compile_arguments,
    interpreter_options,
    is_there,
    make_parser,
    split,
    what_runs,
)
from .session import Session

Fix = Callable[[list[str], list[Any]], None]
Advise = Callable[[list[str], Any, str, int | None], None]
_FAILED = "--lock: neither written nor compared: the script failed"


def main(
    argv: Sequence[str] | None = None, fix: Fix | None = None, advise: Advise | None = None
) -> int:
    """Run the command line. Returns 0; leaves by the script's own SystemExit or exception. `fix`
    takes the script and what its recordings rewrote, and does what `--fix` asks for; `advise` takes
    the script, its costs, and for whom to write them where."""
    parser = make_parser()
    if argv is None and (options := interpreter_options(sys.argv[1:], parser)):
        as_python.begin_again(options)
    as_python.end_as_python_does()
    own, script = split(sys.argv[1:] if argv is None else argv, parser)
    arguments = parser.parse_args(own)
    script = what_runs(script, parser)
    check_fix(arguments, script, parser)
    try:
        session = _session(arguments)
    except OptionError as error:
        parser.error(str(error))
    session.script = script
    if arguments.fix:
        if fix is None:
            parser.error("--fix needs the command dynrun, or python -m dynfix.run")
        session.keep = True
        command = list(script)
        _at_exit(lambda: fix(command, session.rewritten()))
    if arguments.advise:
        if advise is None:
            parser.error("--advise needs the command dynrun, or python -m dynfix.run")
        _advise_at_exit(session, arguments.advise, advise)
    if arguments.nproc_per_node is not None:
        script = launch.standalone(arguments.nproc_per_node, script)
    if launch.is_launcher(script):
        launch.let_workers_use(own)
        atexit.unregister(session.print_report)  # the workers have something to tell
        atexit.unregister(session.print_summary)
        session.lock = session.lock_check = ""
    elif arguments.profile:
        profiled: Any = public("ProfiledRun")
        profiled(summary.ranked(arguments.profile))
    if arguments.emit_source:
        emit_source: Any = public("emit_source")
        emit_source(arguments.emit_source)
    if not arguments.disable:
        _install(arguments, session, script)
    return _run(script, session)


def _run(script: list[str], session: Session) -> int:
    """The status of a script that ends well is what its lock says."""
    if not session.lock and not session.lock_check:
        as_python.run(script, session.stop)
        return 0
    try:
        as_python.run(script, session.stop)
    except SystemExit as left:
        if left.code not in (None, 0):
            summary.say_line(_FAILED)
            raise
    except BaseException:
        summary.say_line(_FAILED)
        raise
    return session.end_lock()


def _advise_at_exit(session: Session, asked: str, advise: Advise) -> None:
    """Where the advice is for programs, it has stdout for itself, and the script prints to
    stderr."""
    out, script = None, list(session.script)
    session.keep, session.advise = True, asked
    if "json" in asked.split(","):
        sys.stdout.flush()
        out = os.dup(1)
        os.dup2(2, 1)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)  # its lines among those of stderr

    def end() -> None:
        if is_there(script):
            sys.stdout.flush()
            advise(script, session.costs(), asked, out)

    _at_exit(end)


def _at_exit(end: Callable[[], object]) -> None:
    """Calls it when the script has ended, in the folder in which its name and its arguments hold:
    the script may have gone to another one."""
    folder = os.getcwd()

    def back() -> None:
        with contextlib.suppress(OSError):
            os.chdir(folder)
        end()

    atexit.register(back)


def _install(arguments: argparse.Namespace, session: Session, script: Sequence[str]) -> None:
    shown = arguments.explain or arguments.report or arguments.profile or arguments.advise
    locked = session.lock or session.lock_check
    first = shown or locked or arguments.verify or arguments.fix
    written = arguments.emit_source or arguments.write_kernels
    at_once = first or arguments.fullgraph or written
    if arguments.eager_calls is None and not at_once:
        builder = BuildProcess(arguments.build_after_exit) if arguments.build_process else None
        session.compile_in_background(arguments.overhead / 100, script, builder)
    default = 0 if first else 1
    speak_with(summary.say_line)
    calls = default if arguments.eager_calls is None else arguments.eager_calls
    if session.kinds in ("auto", "step"):
        step_source.install(session, calls)
    install(session, calls)


def _session(arguments: argparse.Namespace) -> Session:
    """Raises OptionError for an unknown backend, mode or option."""
    session = Session(arguments.explain, **compile_arguments(arguments))
    session.kinds, session.exclude = arguments.compile, tuple(arguments.exclude)
    session.verify = arguments.verify
    write, check = (os.environ.pop(name, "") for name in ("DYNFIX_LOCK", "DYNFIX_LOCK_CHECK"))
    session.write_kernels = arguments.write_kernels
    session.lock = _at(arguments.lock or write)
    session.lock_check = _at(arguments.lock_check or check)
    session.thorough = bool(arguments.verify or arguments.fix)
    if arguments.report:
        session.keep = True
        session.report = summary.ranked(arguments.report)
        atexit.register(session.write_report)
    if session.exclude:
        atexit.register(session.tell_what_was_not_met)
    if arguments.explain:
        atexit.register(session.print_report)
    elif not arguments.quiet and not arguments.disable and not arguments.advise:
        wanted = arguments.summary
        if wanted or (wanted is None and sys.stderr is not None and sys.stderr.isatty()):
            session.keep = True
            atexit.register(session.print_summary)
    return session


def _at(path: str) -> str:
    """A file of this process, wherever the script goes."""
    return summary.ranked(os.path.abspath(path)) if path else ""


if __name__ == "__main__":
    sys.exit(main())
