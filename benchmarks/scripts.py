"""Whole scripts under python and under dynrun, in turn: processor and wall seconds of the process
and what it waited for, the exit status, and what was printed.

`python benchmarks/scripts.py [--rounds N] [--options "--overhead 4"] ["FILE.py --arg"]...` runs
those of `benchmarks/scripts/` unless files are given: twelve, one of them with two models. Of
several rounds the least is shown: what other processes do only ever adds. A script that ends with
status 77 lacks a package: it is run once each way, and its last line says which.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from start import as_installed

SCRIPTS = Path(__file__).parent / "scripts"
MORE = {"word_language_model": ["", " --model Transformer"]}  # arguments, besides none
SKIPPED = 77  # the exit status of a script that lacks a package
NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")


class Run(NamedTuple):
    """One process."""

    wall: float
    cpu: float
    status: int
    out: str


def run(command: list[str]) -> Run:
    """Run it to its end."""
    with tempfile.TemporaryFile("w+") as out:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        return Run(wall, used.ru_utime + used.ru_stime, process.returncode, out.read())


def agreement(python: Run, dynrun: Run) -> str:
    """Whether they printed the same, but for rounding in numbers with a point."""
    if python.status != dynrun.status:
        return f"exit status {python.status} and {dynrun.status}"
    if python.status == SKIPPED:
        return "skipped: " + python.out.strip().rpartition("\n")[2]
    status = f", exit status {python.status}" if python.status else ""
    if python.out == dynrun.out:
        return f"equal{status}"
    if NUMBER.sub("", python.out) != NUMBER.sub("", dynrun.out):
        return "DIFFERENT"
    pairs = zip(NUMBER.findall(python.out), NUMBER.findall(dynrun.out), strict=True)
    worst = max(abs(float(a) - float(b)) / (abs(float(a)) + 1e-3) for a, b in pairs)
    return f"numbers within {worst:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="*", default=list(_own_scripts()))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--options", default="", help="of dynrun")
    arguments = parser.parse_args()
    table = Table(
        *"script|python wall, s|dynrun|ratio|python CPU, s|dynrun|ratio|output".split("|")
    )
    as_installed()
    for script in arguments.scripts:
        command = shlex.split(script)
        ours = ["-m", "dynfix.run", *shlex.split(arguments.options)]
        runs: dict[str, list[Run]] = {"python": [], "dynrun": []}
        for number in range(arguments.rounds):
            both = [("python", []), ("dynrun", ours)]
            for name, before in both if number % 2 == 0 else both[::-1]:
                runs[name].append(run([sys.executable, *before, *command]))
            if any(each[-1].status == SKIPPED for each in runs.values()):
                break
        table.add_row(Path(command[0]).stem + " ".join(["", *command[1:]]), *_cells(runs))
        print(*(cell for cell in (script, *_cells(runs))), sep=" | ", file=sys.stderr, flush=True)
    Console(width=120).print(table)


def _own_scripts() -> Iterator[str]:
    for path in sorted(SCRIPTS.glob("*.py")):
        yield from (f"{shlex.quote(str(path))}{more}" for more in MORE.get(path.stem, [""]))


def _cells(runs: dict[str, list[Run]]) -> list[str]:
    cells = []
    for kind in ("wall", "cpu"):
        python, dynrun = (min(getattr(r, kind) for r in runs[n]) for n in ("python", "dynrun"))
        cells += [f"{python:.1f}", f"{dynrun:.1f}", f"{dynrun / python:.2f}"]
    pairs = zip(runs["python"], runs["dynrun"], strict=True)
    return [*cells, "; ".join(dict.fromkeys(agreement(*pair) for pair in pairs))]


if __name__ == "__main__":
    main()
