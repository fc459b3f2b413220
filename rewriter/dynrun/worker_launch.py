"""Worker processes of torchrun's launcher under `dynrun`: the launcher asks `$PYTHON_EXEC` for the
interpreter, and gets one that runs `dynfix.run`."""

import atexit
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

LAUNCHER = "torch.distributed.run"
_MODULES = (LAUNCHER, "torch.distributed.launch", "torchrun", "accelerate.commands.launch")
_SCRIPTS = ("torchrun", "accelerate")


def is_launcher(script: Sequence[str]) -> bool:
    """Whether what is run starts the processes that do the work, and does none itself."""
    if script[0] == "-m":
        return script[1] in _MODULES
    return os.path.basename(script[0]) in _SCRIPTS


def standalone(count: str, script: Sequence[str]) -> list[str]:
    """torchrun's command line for `count` processes of `script` on this machine alone."""
    return ["-m", LAUNCHER, "--standalone", f"--nproc-per-node={count}", *script]


def let_workers_use(options: Sequence[str]) -> None:
    """Set `$PYTHON_EXEC` to a launcher of `dynrun` with `options`, which goes with this process."""
    folder = tempfile.mkdtemp(prefix="dynrun-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, "python")
    path.write_text(_shell_script(_for_workers(options)))
    path.chmod(0o700)
    os.environ["PYTHON_EXEC"] = str(path)


def _for_workers(options: Sequence[str]) -> list[str]:
    """The options without the number of processes."""
    kept, skip = [], False
    for option in options:
        if skip or option.startswith("--nproc-per-node"):
            skip = not skip and option == "--nproc-per-node"
            continue
        kept.append(option)
    return kept


def _shell_script(options: Sequence[str]) -> str:
    """`python -u …` and `python …`, as the launcher calls it."""
    python = shlex.quote(sys.executable)
    run = shlex.join(["-m", "dynfix.run", *options])
    return (
        "#!/bin/sh\n"
        f'if [ "$1" = -u ]; then shift; exec {python} -u {run} "$@"; fi\n'
        f'exec {python} {run} "$@"\n'
    )
