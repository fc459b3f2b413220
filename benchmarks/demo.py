"""The demonstration, as `tox -e demo` runs it: graph breaks before and after `dynfix`, and a script
under `dynrun`.

Exits with 1 if a sample's results change under safe fixes, or if a loss under dynrun is more than
1e-4 off eager's.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import step
import torch
from dynfix.codemods.cli.side_by_side import count_breaks
from interleave import interleaved, summary
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "examples" / "breaks"
SCRIPT = ROOT / "examples" / "train_text.py"
TOLERANCE = 1e-4
DYNFIX = "import sys; from dynfix.codemods.cli.command import main; sys.exit(main())"
DYNRUN = "import sys; from dynfix.rewriter.dynrun.main import main; sys.exit(main())"

console = Console(width=None if sys.stdout.isatty() else 80)
beside = Console(stderr=True, width=80)


@contextlib.contextmanager
def progress():
    """`tell(text)`: what is being done now, on stderr; one line that changes, on a terminal."""
    if not beside.is_terminal:
        yield lambda text: beside.print(text, highlight=False)
        return
    with beside.status("") as status:
        yield status.update


# -- graph breaks


def fixed_copies(folder):
    """Copies of the samples: as they are, after `dynfix`, after `dynfix --unsafe-fixes`."""
    for name, options in {"before": None, "safe": [], "unsafe": ["--unsafe-fixes"]}.items():
        shutil.copytree(SAMPLES, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        if options is not None:
            run_dynfix([*options, "-q", str(folder / name)])
    return folder


def run_dynfix(arguments):
    """0: all fixed, 1: findings are left. Anything else is a failure of the tool."""
    done = subprocess.run(
        [sys.executable, "-c", DYNFIX, *arguments], capture_output=True, text=True
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"dynfix failed:\n{done.stderr}")


def load(path):
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def result(path):
    """(breaks under torch.compile, what eager returns)."""
    module, inputs = load(path).make()
    breaks = count_breaks(module, inputs)
    module, inputs = load(path).make()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return breaks, module(*inputs)


def is_equal(one, other):
    try:
        torch.testing.assert_close(one, other)
    except AssertionError:
        return False
    return True


def breaks_page():
    """The table; whether every sample computes the same after safe fixes."""
    page = Table(
        title="Graph breaks under torch.compile, before and after dynfix's fixes",
        title_justify="left",
    )
    for heading in (
        "examples/breaks/",
        "before",
        "safe",
        "unsafe",
        "equal in eager",
    ):
        page.add_column(heading, justify="left" if heading.startswith("examples") else "right")
    ok, totals = True, [0, 0, 0]
    with tempfile.TemporaryDirectory() as scratch, progress() as tell:
        tell("fixing examples/breaks/")
        folder = fixed_copies(Path(scratch))
        samples = sorted(SAMPLES.glob("[a-z]*.py"))
        for number, sample in enumerate(samples, 1):
            tell(f"counting graph breaks: {number} of {len(samples)}, {sample.stem}")
            (before, wanted), *after = [
                result(folder / name / sample.name) for name in ("before", "safe", "unsafe")
            ]
            same = [is_equal(value, wanted) for _, value in after]
            counts = [before, *(breaks for breaks, _ in after)]
            totals = [a + b for a, b in zip(totals, counts, strict=True)]
            ok = ok and same[0]
            page.add_row(
                sample.stem,
                *map(str, counts),
                ", ".join("yes" if equal else "NO" for equal in same),
            )
    page.add_section()
    page.add_row("total", *map(str, totals), "")
    console.print(page)
    return ok


# -- a training script


def run_script(folder, name, command, arguments):
    """One run in a process of its own: losses, step seconds, wall seconds, what it wrote to
    stderr."""
    out = folder / f"{name}.json"
    caches = {"DYNFIX_CACHE_DIR": folder / "dynfix", "TORCHINDUCTOR_CACHE_DIR": folder / "inductor"}
    env = {**os.environ, **{key: str(value) for key, value in caches.items()}}
    start = time.perf_counter()
    sizes = [f"--steps={arguments.steps}", f"--threads={arguments.threads}", f"--json={out}"]
    done = subprocess.run(
        [sys.executable, *command, *sizes], env=env, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    return {
        **json.loads(out.read_text()),
        "wall": time.perf_counter() - start,
        "stderr": done.stderr,
    }


def run_all(folder, arguments):
    script = str(SCRIPT)
    dynrun = ["-c", DYNRUN, "--explain", "--eager-calls=1", script]
    commands = {"python": [script], "dynrun": dynrun, "torch.compile": [script, "--compile"]}
    if arguments.untimed:
        del commands["torch.compile"]
    runs = {}
    with progress() as tell:
        for name, command in commands.items():
            tell(f"training under {name} ({arguments.steps} steps, empty caches)")
            runs[name] = run_script(folder, name, command, arguments)
    return runs


def training_page(arguments):
    """The tables; whether dynrun's losses are those of eager."""
    with tempfile.TemporaryDirectory() as scratch:
        runs = run_all(Path(scratch), arguments)
        losses_table(runs)
        for line in runs["dynrun"]["stderr"].splitlines():
            console.print(f"  {line}", highlight=False, markup=False)
        if not arguments.untimed:
            cold_table(runs)
            times_table(scratch, arguments)
    return difference(runs, "dynrun") <= TOLERANCE


def times_table(scratch, arguments):
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(scratch) / "inductor")
    with progress() as tell:
        tell("timing steps in turn")
        made, first = step.steps(arguments)
        times = interleaved(made, arguments.rounds)
    title = f"One training step, in turn, warm caches, {arguments.threads} thread(s)"
    console.print(step.table(times, first, title))


def losses_table(runs):
    page = Table(
        title="examples/train_text.py: loss under " + ", ".join(runs),
        title_justify="left",
    )
    for heading in ("step", *runs):
        page.add_column(heading, justify="right")
    steps = len(runs["python"]["losses"])
    for at in sorted({*range(0, steps, max(1, steps // 5)), steps - 1}):
        page.add_row(str(at), *(f"{run['losses'][at]:.6f}" for run in runs.values()))
    page.add_section()
    page.add_row(
        "largest difference to python", *(f"{difference(runs, name):.1e}" for name in runs)
    )
    console.print(page)


def difference(runs, name):
    return max(
        abs(a - b) for a, b in zip(runs[name]["losses"], runs["python"]["losses"], strict=True)
    )


def cold_table(runs):
    """Compile seconds: what the steps of a run took beyond their number times the median step."""
    page = Table(title="The same three runs, empty caches", title_justify="left")
    for heading in ("", "median step", "compile, all steps", "whole process"):
        page.add_column(heading, justify="right" if heading else "left")
    for name, run in runs.items():
        times = summary(run["seconds"])
        compiling = sum(run["seconds"]) - len(run["seconds"]) * times.median
        page.add_row(
            name, f"{times.median * 1e3:.2f} ms", f"{compiling:.1f} s", f"{run['wall']:.1f} s"
        )
    console.print(page)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    step.add_sizes(parser)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--only", choices=["breaks", "training"])
    parser.add_argument(
        "--untimed", action="store_true", help="only what is checked: no times, no torch.compile"
    )
    parser.set_defaults(model="text")  # of `step`
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    versions = (
        f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores"
    )
    console.print(f"[bold]dynfix demonstration[/bold]: {versions}\n", highlight=False)
    ok = arguments.only == "training" or breaks_page()
    ok = (arguments.only == "breaks" or training_page(arguments)) and ok
    console.print("Results equal." if ok else "[bold red]Results differ.[/bold red]")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
