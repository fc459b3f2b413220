"""One run of `dynrun`: the arguments that everything is compiled with, and what was captured, for
the report."""

import atexit
import functools
import io
import os
import sys
import threading
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TextIO

from ... import __getattr__ as public
from ...runtime.background_budget import SHARE, Account
from ...runtime.cache.run_history import RunHistory
from ..frontend.background import Background
from ..frontend.build_process import BuildProcess, serve_builds
from ..frontend.config import make_options
from . import summary
from .step_calls import Steps

_OWN = str(Path(__file__).absolute().parents[1])


class Session:
    """Compiles with the arguments of the command line. Raises OptionError for unknown ones, before
    anything runs."""

    def __init__(self, keep: bool = False, **arguments: Any) -> None:
        self.keep, self.arguments = keep, arguments
        self.captured: list[tuple[str, Any]] = []
        self.background: Background | None = None
        self.kinds = "auto"  # of `--compile`
        self.steps: Steps | None = None  # where training steps are compiled
        self.exclude: tuple[str, ...] = ()
        self.report = ""  # the file of `--report`
        self.advise = ""  # the format of `--advise`
        self.write_kernels: str | None = None  # a folder
        self.lock = self.lock_check = ""  # the files of `--lock` and `--lock-check`
        self._root, self._is_noted = os.getcwd(), False
        self.script: Sequence[str] = ()
        self._collector: Any = None
        self.left: dict[str, Any] = {}  # modules whose calls outside of their step stayed in eager
        self.thorough = False  # whatever can be compiled is, whether or not that may pay
        self.verify = 0  # calls of each graph that are made in eager as well
        self._beginning, self._begun = threading.Lock(), False
        self._met: set[str] = set()  # the names in `exclude` that something had
        make_options(**arguments)

    def compile_in_background(
        self,
        share: float = SHARE,
        script: Sequence[str] = (),
        builder: BuildProcess | None = None,
    ) -> None:
        """From now on modules are compiled beside the calls that eager serves, and only where that
        pays. `share` of the run may be lost by that; `script`: the command that runs, whose earlier
        runs may tell what pays; `builder`: who builds kernels, if not this process."""
        if builder is not None:
            atexit.register(builder.end)  # after the worker's end, which was registered later
            serve_builds(builder)
        load = functools.partial(_load_compiler, builder)
        self.background = Background(load, Account(share=share))
        if script:
            self.background.history = RunHistory(script)
        self.background.start()

    def stop(self) -> None:
        """Nothing is compiled beside the script any more."""
        if self.background is not None:
            self.background.worker.stop()

    def compile(self, model: Any, **changes: Any) -> Any:
        """`dynfix.compile(model)` with the command line's arguments, except for `changes`."""
        compile: Any = public("compile")
        self._watch_graphs()
        if self.arguments.get("options") and "mode" in changes and "options" not in changes:
            del changes["mode"]  # a mode is a choice of options: the command line's stand
        self._keep_out(model)
        compiled = compile(model, **{**self.arguments, **changes})
        if hasattr(compiled, "_dynfix_entry"):
            self._keep(_name(model), compiled._dynfix_entry)
        return compiled

    def compile_calls(self, module: Any) -> Any:
        """What serves the module's calls that `nn.Module.__call__` has begun."""
        compile_begun: Any = public("compile_begun")
        self._watch_graphs()
        self._keep_out(module)
        entry = compile_begun(module, **self.arguments)
        self._keep(_name(module), entry)
        return entry

    def compile_step(self, fn: Any, place: str) -> Any:
        """The function of a training step that stands at `place`, compiled."""
        compiled_step: Any = public("compiled_step")
        self._watch_graphs()
        arguments = dict(self.arguments)
        if self.kinds != "step":
            arguments["fullgraph"] = False  # its modules can still be whole graphs
        entry = compiled_step(fn, **arguments)
        entry.background = self.background
        self._keep(f"training step ({place})", entry)
        return entry

    def _keep(self, name: str, entry: Any) -> None:
        if self.keep:
            self.captured.append((name, entry))
            if self._collector is not None:
                self._collector.watch(name, entry)

    def _watch_graphs(self) -> None:
        """Before the first compilation, on whichever thread: what `--verify` and `--report` have to
        see, and a script's own random numbers, also on GPUs, but where an option says otherwise."""
        with self._beginning:
            if not self._begun:
                config: Any = public("config")
                config.fallback_random = self._begun = True
            if self.verify:
                verify_calls: Any = public("verify_calls")
                verify_calls(self.verify)
                self.verify = 0
            if (self.report or self.advise) and self._collector is None:
                collector: Any = public("Collector")
                self._collector = collector()
                self._collector.install()
                if self.steps is not None:
                    self.steps.watch = self._collector.step

    def write_report(self) -> None:
        """At the end of the run. What fails is a line on stderr."""
        try:
            write: Any = public("write_report")
            write(self.report, self.script, self.captured, self._collector, self.costs())
            summary.say_line(f"--report: {self.report}")
        except (ImportError, OSError) as error:
            missing = isinstance(error, ImportError)
            why = "it needs jinja2: pip install jinja2" if missing else str(error)
            summary.say_line(f"--report: not written: {why}")

    def torch_is_there(self) -> None:
        """The script has loaded torch: what is compiled from now on is noted for a lock, and its
        kernels are written."""
        if self.write_kernels:
            config: Any = public("config")
            config.write_kernels = self.write_kernels
        if self.lock or self.lock_check:
            lock: Any = public("lock")
            lock.begin(self._root)
            self._is_noted = True

    def end_lock(self) -> int:
        """Write what was compiled, or compare it; the exit status."""
        if not self._is_noted:
            why = "compiling is off" if "torch" in sys.modules else "the script does not load torch"
            summary.say_line(f"--lock: nothing was compiled: {why}")
            return 2
        end_lock: Any = public("end_lock")
        return int(end_lock(self.lock, self.lock_check, summary.say_line))

    def costs(self) -> Any:
        """What the run's graph breaks, recompiles and host reads cost; None where nothing was
        compiled."""
        if self._collector is None:
            return None
        step_costs: Any = public("step_costs")
        return step_costs(self.captured, self._collector)

    def excludes(self, model: Any) -> bool:
        """Whether `--exclude` names this function, or the class of this module."""
        if not self.exclude:
            return False
        of = model if hasattr(model, "__code__") else type(model)
        name, module = of.__qualname__, of.__module__
        found = {
            wanted
            for wanted in self.exclude
            if any(fnmatchcase(each, wanted) for each in (of.__name__, name, f"{module}.{name}"))
        }
        self._met |= found
        return bool(found)

    def _keep_out(self, model: Any) -> None:
        """Modules inside `model` that are to stay in eager break its graph."""
        if self.exclude and hasattr(model, "modules"):
            disable: Any = public("disable")
            for inner in model.modules():
                if self.excludes(inner):
                    disable(type(inner).forward)

    def tell_what_was_not_met(self) -> None:
        """A name in `--exclude` that nothing had may be misspelt."""
        for name in self.exclude:
            if name not in self._met:
                summary.say_line(f"--exclude {name}: nothing that was compiled has this name")

    def rewritten(self) -> list[Any]:
        """What patterns changed in the functions that were captured."""
        return [c for _, entry in self.captured for r in entry.recordings for c in r.rewritten]

    def print_report(self, file: TextIO | None = None) -> None:
        """What was captured, and each place where it broke."""
        summary.say(summary.report(self.captured, self.left), file)

    def print_summary(self, file: TextIO | None = None) -> None:
        """A few lines at the end of a run."""
        import rich.console

        text = io.StringIO()
        out = file or sys.stderr
        console = rich.console.Console(
            file=text, force_terminal=out.isatty(), highlight=False, soft_wrap=True
        )
        console.print(summary.summary(self.captured, self.background))
        summary.say(text.getvalue(), file)


def _load_compiler(builder: BuildProcess | None, stored: bool) -> None:
    if builder is not None and not stored:
        builder.start()
    public("compile")
    warm_up: Any = public("warm_up")
    warm_up(rewrites=not stored, compiles=not stored and builder is None)


def _name(model: Any) -> str:
    """The qualified name of what is compiled, where it is defined and, of a module, where it is
    called."""
    code = getattr(getattr(type(model), "forward", model), "__code__", None)
    name = getattr(model, "__qualname__", type(model).__qualname__)
    module = getattr(model, "__module__", "")
    places = [] if code is None or _is_library(code.co_filename) else [_place(code)]
    caller = _caller()
    if not hasattr(model, "__code__") and caller:
        places.append(f"called at {caller}")
    shown = name if module == "__main__" or module.startswith("torch.") else f"{module}.{name}"
    return f"{shown} ({', '.join(places)})" if places else shown


def _place(code: Any) -> str:
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def _caller() -> str:
    """The line of the user's that is running."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if not _is_library(frame.f_code.co_filename):
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _is_library(file: str) -> bool:
    parts = Path(file).parts
    return file.startswith("<frozen") or "torch" in parts or file.startswith(_OWN)
