"""A script, module, code or standard input run as `python` runs it: `__main__`, `sys.argv`,
`sys.path[0]`, exit status and traceback."""

import atexit
import builtins
import contextlib
import io
import linecache
import os
import runpy
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import BuiltinImporter, SourceFileLoader
from typing import Any, NoReturn

from ..frontend.tracebacks import without_own_frames

CodeOf = Callable[[bytes, str], types.CodeType | None]
_code_of: list[CodeOf] = []  # asked for the code of a script's text; None: Python's


def begin_again(places: Sequence[int]) -> NoReturn:
    """Start this command anew, with the words at these places of its arguments as the
    interpreter's options. Where a process cannot become another one, that is a child."""
    given = sys.argv[1:]
    before = sys.orig_argv[1 : len(sys.orig_argv) - len(given)]
    options = [given[at] for at in places]
    rest = [word for at, word in enumerate(given) if at not in places]
    words = [sys.executable, *options, *before, *rest]
    if os.name == "posix":
        os.execv(sys.executable, words)
    sys.exit(subprocess.call(words))


_interrupts: list[KeyboardInterrupt] = []  # the one that ended the script


def end_as_python_does() -> None:
    """Have an interrupted run end by the signal. To be called before anything else is registered
    for the end of the process: each `exec` of a text, as dataclasses do, has the interpreter forget
    the interrupt, and one that ends in another reminds it."""
    atexit.register(_remind_of_the_interrupt)


def _remind_of_the_interrupt() -> None:
    if _interrupts:
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def code_from(code_of: CodeOf) -> None:
    """Let `code_of(text, file)` compile what runs; it gives None for what Python shall compile."""
    _code_of[:] = [code_of]


def run(command: list[str], stop: Callable[[], None]) -> None:
    """Run `script.py args`, `-m module args`, `-c code args` or `- args`. Leaves by the script's
    own SystemExit or exception. `stop` ends what works beside the script."""
    runs = {"-m": _run_module, "-c": _run_code, "-": _run_stdin}
    if command[0] in runs:
        _as_python_does(lambda: runs[command[0]](command[1:]), stop)
    else:
        _as_python_does(lambda: _run_script(command), stop)


def _as_python_does(run: Callable[[], None], stop: Callable[[], None]) -> None:
    """Show an uncaught exception without our frames, then let it end the process, as the
    interpreter would."""
    try:
        run()
    except SystemExit:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            _interrupts.append(error)
            stop()
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
            return _compiled(file.read(), path)
    except OSError as error:
        print(
            f"dynrun: can't open file {path!r}: [Errno {error.errno}] {error.strerror}",
            file=sys.stderr,
        )
        raise SystemExit(2) from None


def _compiled(text: bytes, name: str) -> types.CodeType:
    changed = _code_of[0](text, name) if _code_of else None
    if changed is not None:
        return changed
    return compile(text, name, "exec", dont_inherit=True)


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
    exec(_compiled(text.encode(), name), _new_main(__loader__=BuiltinImporter))


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
