"""The command line of `dynrun`: its own options, and the script with everything that follows it."""

import argparse
import ast
import glob
import os
from collections.abc import Sequence
from typing import Any

from ... import __version__
from ...runtime.background_budget import SHARE

KINDS = ("auto", "modules", "step", "decorated")
ADVICE = ("full", "json", "trace")  # words of --advise
CALLS = 8  # of each graph that --verify compares, if it is not said
_DEVICES = ("cpu", "gpu", "auto")


def make_parser() -> argparse.ArgumentParser:
    """Of the options that stand before the script."""
    parser = argparse.ArgumentParser(
        prog="dynrun",
        usage="dynrun [options] [script.py | -m module | -c code | -] [args]",
        description="Run an unchanged PyTorch script with its models captured and compiled.",
        allow_abbrev=False,
        epilog="Options of the interpreter stand before the script, too: -b -B -d -E -O -s -u -v"
        " -W ARG -X OPT.",
    )
    _what(parser.add_argument_group("what is compiled, and how"))
    _when(parser.add_argument_group("when"))
    _shown(parser.add_argument_group("what is shown and written"))
    parser.add_argument(
        "--nproc-per-node",
        type=_processes,
        metavar="N",
        help="start N processes of the script through torchrun's launcher (or gpu, cpu, auto)",
    )
    parser.add_argument("--disable", action="store_true", help="run the script as it is")
    parser.add_argument("--version", action="version", version=f"dynrun {__version__}")
    return parser


def _what(group: Any) -> None:
    group.add_argument(
        "--compile",
        choices=KINDS,
        default="auto",
        help="step: training steps, from forward to update; modules: outermost modules; decorated:"
        " what the script gives to torch.compile; auto (default): all of them, a step before the"
        " modules in it",
    )
    group.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="NAME",
        help="leave modules of this class, or a function given to torch.compile, in eager, with"
        " what they call; also package.Name, and patterns as *Block (may be repeated)",
    )
    group.add_argument(
        "--backend",
        default="native",
        metavar="NAME",
        help="native (default), eager, aot_eager, inductor",
    )
    group.add_argument(
        "--mode",
        metavar="NAME",
        help="a mode of dynfix.compile, as reduce-overhead or max-autotune",
    )
    group.add_argument(
        "--options",
        action="append",
        type=_option,
        metavar="NAME=VALUE",
        help="an option of dynfix.compile, as recompile_limit=4 (may be repeated)",
    )
    group.add_argument(
        "--dynamic",
        action=argparse.BooleanOptionalAction,
        help="symbolic sizes from the start, or never",
    )
    group.add_argument("--fullgraph", action="store_true", help="a graph break is an error")


def _when(group: Any) -> None:
    group.add_argument(
        "--eager-calls",
        type=_count,
        metavar="N",
        help="compile a module at once after N eager calls (--advise, --explain, --fix, --lock,"
        " --profile, --report and --verify: 0; --fullgraph, --emit-source and --write-kernels: 1),"
        " not beside the script where it pays",
    )
    group.add_argument(
        "--overhead",
        type=_percent,
        default=100 * SHARE,
        metavar="PERCENT",
        help="how much of the run compiling may cost before it pays (%(default)g)",
    )
    group.add_argument(
        "--build-process",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="build kernels in a process of their own, at low priority (default), or in the"
        " script's",
    )
    group.add_argument(
        "--build-after-exit",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="let that process finish for the next run what it has begun when the script ends, for"
        " at most a minute (default), or end it with the script",
    )


def _shown(group: Any) -> None:
    group.add_argument(
        "--explain",
        action="store_true",
        help="print at exit, to stderr, what was captured and where it broke",
    )
    group.add_argument(
        "--verify",
        type=_calls,
        nargs="?",
        const=CALLS,
        default=0,
        metavar="N",
        help="make the first N calls (%(const)s) of each compiled graph in eager as well; the first"
        " difference ends the run with a repro.py. Write --verify=N",
    )
    group.add_argument(
        "--fix",
        action="store_true",
        help="after the run, show what was rewritten to make its graphs as a diff, run the script"
        " with it, and write it into the files",
    )
    group.add_argument(
        "--advise",
        type=_advice,
        nargs="?",
        const="full",
        metavar="WORDS",
        help="rank at exit what graph breaks, recompiles and host reads cost a step, with their"
        " fixes. Write --advise=json for programs, --advise=trace to run the script once more, in"
        " eager, for fixes that the text alone does not prove",
    )
    group.add_argument(
        "--emit-source",
        type=_folder,
        metavar="DIR",
        help="write the rewritten source of every captured function to DIR",
    )
    group.add_argument(
        "--write-kernels",
        type=_folder,
        metavar="DIR",
        help="write each kernel to DIR, to be read and edited; edited ones are used where they give"
        " what the original gives",
    )
    group.add_argument(
        "--report",
        type=_file,
        metavar="FILE.html",
        help="write a page with the source, its breaks, guards and kernels, the graphs and the"
        " timeline; it holds source code",
    )
    group.add_argument(
        "--lock",
        type=_file,
        metavar="FILE",
        help="write what was compiled: graphs, breaks, recompiles, guards and kernels, by the"
        " script's lines; equal runs write equal files",
    )
    group.add_argument(
        "--lock-check",
        type=_there,
        metavar="FILE",
        help="compare the run with such a file, and end with status 1 where a graph, a break, a"
        " recompile or a kernel changed",
    )
    group.add_argument(
        "--profile",
        type=_file,
        metavar="FILE.json",
        help="write what torch's profiler sees of the whole run, kernels under the names of their"
        " lines (for Perfetto or chrome://tracing; large for long runs)",
    )
    group.add_argument(
        "--summary",
        action=argparse.BooleanOptionalAction,
        help="say at the end, on stderr, what was compiled (default: only on a terminal)",
    )
    group.add_argument("-q", "--quiet", action="store_true", help="no summary")


def split(argv: Sequence[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """Our own options, and the script (or `-m module`) with everything that follows it."""
    takes_value = {*_takes_value(parser), *_WITH_VALUE}
    at = 0
    while at < len(argv) and argv[at].startswith("-") and argv[at] not in ("-m", "-c", "-"):
        at += 2 if argv[at] in takes_value else 1
    return list(argv[:at]), list(argv[at:])


_FLAGS = frozenset("bBdEOsuv")  # of the interpreter, which may stand together: -OO, -uB
_WITH_VALUE = ("-W", "-X")


def interpreter_options(argv: Sequence[str], parser: argparse.ArgumentParser) -> list[int]:
    """Where in a command line, before the script, options of the interpreter stand, with their
    values."""
    own, _ = split(argv, parser)
    takes_value, at = _takes_value(parser), 0
    found: list[int] = []
    while at < len(own):
        word = own[at]
        width = 2 if word in takes_value or word in _WITH_VALUE else 1
        if word[:2] in _WITH_VALUE or (word[:1] == "-" and word[1:] and {*word[1:]} <= _FLAGS):
            found += range(at, at + width)
        if found and found[-1] >= len(argv):
            parser.error(f"{word} needs a value")
        at += width
    return found


def _takes_value(parser: argparse.ArgumentParser) -> set[str]:
    options = (action for action in parser._actions if action.nargs is None)
    return {name for action in options for name in action.option_strings}


def what_runs(script: list[str], parser: argparse.ArgumentParser) -> list[str]:
    """The script, if there is one; else the parser's error."""
    missing = {"-m": "-m needs the name of a module", "-c": "-c needs code"}
    if not script:
        parser.error("no script given")
    if len(script) == 1 and script[0] in missing:
        parser.error(missing[script[0]])
    return script


def is_there(script: Sequence[str]) -> bool:
    """Whether there is something to run: a script that is missing says so itself."""
    return script[0].startswith("-") or os.path.exists(script[0])


def check_fix(arguments: argparse.Namespace, script: list[str], parser: Any) -> None:
    """The parser's error where `--fix` has no one script to change."""
    if arguments.fix and (script[0].startswith("-") or arguments.nproc_per_node is not None):
        parser.error("--fix takes a script, in one process: dynrun --fix script.py")


def compile_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keywords of `dynfix.compile` that the command line asks for."""
    names = ("fullgraph", "dynamic", "backend", "mode")
    chosen = {name: getattr(arguments, name) for name in names}
    return {**chosen, "options": dict(arguments.options) if arguments.options else None}


def _option(text: str) -> tuple[str, Any]:
    """`name=value`: the value is a Python literal, or a plain string."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, as recompile_limit=4")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, {"true": True, "false": False, "none": None}.get(value.lower(), value)


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of calls: use 0, 1, 2, …")
    return int(text)


def _calls(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of calls: use 1, 2, …")
    return int(text)


def _advice(text: str) -> str:
    if not {*text.split(",")} <= {*ADVICE}:
        raise argparse.ArgumentTypeError(f"{text!r} is not of {', '.join(ADVICE)}")
    return text


def _percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage: use 0 or more")
    return value


def _processes(text: str) -> str:
    if text in _DEVICES or (text.isdigit() and int(text) > 0):
        return text
    raise argparse.ArgumentTypeError(
        f"{text!r} is no number of processes: use 1, 2, … or one of {', '.join(_DEVICES)}"
    )


def _file(path: str) -> str:
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK) or os.path.isdir(path):
        raise argparse.ArgumentTypeError(f"{path} cannot be written")
    return os.path.abspath(path)


def _there(path: str) -> str:
    stem, ending = (glob.escape(part) for part in os.path.splitext(path))
    if not os.path.isfile(path) and not glob.glob(f"{stem}.rank*{ending}"):
        raise argparse.ArgumentTypeError(f"there is no file {path}: `--lock {path}` writes it")
    return os.path.abspath(path)


def _folder(path: str) -> str:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be made: {error.strerror}") from None
    if not os.access(path, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path} cannot be written")
    return os.path.abspath(path)
