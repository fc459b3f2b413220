"""`%load_ext dynfix`: the cell magic `%%dynrun [options]`, for IPython and Jupyter."""

import shlex
from typing import Any

from ...runtime.diagnostics import speak_with
from ...runtime.errors import OptionError
from . import summary
from .intercept import Hooks
from .run_arguments import compile_arguments, make_parser
from .session import Session


class CellRunner:
    """Runs cells with outermost modules, and what is given to `torch.compile`, compiled. What one
    cell compiled serves the next with the same options."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._hooks: dict[str, Hooks] = {}

    def dynrun(self, line: str, cell: str) -> None:
        """%%dynrun [options]: run this cell with its models compiled, from the second call of the
        same shapes on. Options are those of the command dynrun that say what is compiled, and how;
        `--explain` says what was captured and where it broke."""
        hooks = self._known(line)
        seen = len(hooks.session.captured)
        with hooks:
            result = self._shell.run_cell(cell)
        if hooks.session.keep:
            summary.say(summary.report(hooks.session.captured[seen:]))
        if not result.success:
            raise CellFailed  # its own error was shown

    def _known(self, line: str) -> Hooks:
        if line not in self._hooks:
            try:
                self._hooks[line] = _hooks(_parsed(shlex.split(line)))
            except SystemExit:  # the parser has said why
                raise CellFailed from None
            except OptionError as error:
                raise CellFailed(f"dynrun: {error}") from None
        return self._hooks[line]


class CellFailed(Exception):
    """Whoever runs a notebook sees that the cell failed; shown is the message alone."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


_OF_A_CELL = {
    *("compile", "exclude", "backend", "mode", "options", "dynamic", "fullgraph"),
    *("eager_calls", "explain"),
}


def _parsed(words: list[str]) -> Any:
    """The options. Raises OptionError for those that only a run of a script has."""
    parser = make_parser()
    arguments = parser.parse_args(words)
    for name, value in vars(arguments).items():
        if name not in _OF_A_CELL and value != parser.get_default(name):
            raise OptionError(f"--{name.replace('_', '-')} is for scripts, not for a cell")
    return arguments


def _hooks(arguments: Any) -> Hooks:
    session = Session(arguments.explain, **compile_arguments(arguments))
    session.kinds, session.exclude = arguments.compile, tuple(arguments.exclude)
    default = 0 if arguments.explain else 1
    calls = default if arguments.eager_calls is None else arguments.eager_calls
    return Hooks(session, calls)


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext dynfix`."""
    speak_with(summary.say_line)
    shell.register_magic_function(CellRunner(shell).dynrun, "cell", "dynrun")
