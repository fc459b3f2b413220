"""What `dynfix advise` predicts against what its fixes save: each script is run in a copy, each fix
that is offered is made alone in a copy of its own, and both run again, in turn.

`python benchmarks/advise.py [--nanogpt FOLDER] [--rounds N] [--out FILE.json]`; nanoGPT is
https://github.com/karpathy/nanoGPT, which runs with a small model on random data. Where no fix is
offered, what the advice asks for is done by arguments.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from start import as_installed

SCRIPTS = Path(__file__).parent / "scripts"
LEAST = 0.005  # of a step: what is predicted to save less is not tried
SMALL = """
dataset = "random"
device, dtype = "cpu", "float32"
n_layer, n_head, n_embd, block_size, batch_size = 2, 4, 128, 64, 8
gradient_accumulation_steps = 2
max_iters, eval_interval, eval_iters = 40, 20, 3
learning_rate, warmup_iters, lr_decay_iters = 1e-3, 5, 40
always_save_checkpoint = False
"""


class Subject(NamedTuple):
    """A script in a folder; `changed`: arguments that do what the advice asks for by hand."""

    name: str
    folder: Path
    command: list[str]
    changed: list[str] | None = None


def nanogpt(source: Path, folder: Path) -> Subject:
    """A copy with a small configuration and random data."""
    shutil.copytree(source, folder)
    (folder / "config/small.py").write_text(SMALL)
    data = folder / "data/random"
    data.mkdir()
    random.seed(0)
    for name, count in (("train", 200_000), ("val", 20_000)):
        tokens = (random.randrange(256) for _ in range(count))
        (data / f"{name}.bin").write_bytes(struct.pack(f"<{count}H", *tokens))
    return Subject("nanoGPT", folder, ["train.py", "config/small.py"], ["--eval_iters=0"])


def advice(command: list[str], folder: Path) -> dict[str, Any]:
    """One run's, as data."""
    with tempfile.TemporaryDirectory() as cache:  # what is compiled is compiled anew
        done = subprocess.run(
            [sys.executable, "-m", "dynfix", "advise", "--json", *command],
            cwd=folder,
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "DYNFIX_CACHE_DIR": cache},
        )
    if done.returncode:
        raise SystemExit(f"{command}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def fixed(subject: Subject, cost: dict[str, Any], folder: Path) -> Path:
    """A copy of the script's folder in which one fix is made."""
    shutil.copytree(subject.folder, folder)
    path = folder / Path(cost["file"]).relative_to(subject.folder)
    text = path.read_text()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for edit in reversed(cost["finding"]["fix"]["edits"]):
        first, last = (
            starts[at["row"] - 1] + at["column"] - 1
            for at in (edit["location"], edit["end_location"])
        )
        text = text[:first] + edit["content"] + text[last:]
    path.write_text(text)
    return folder


def compared(
    plain: tuple[list[str], Path], changed: tuple[list[str], Path], rounds: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What runs of both say, in turn."""
    before, after = [], []
    for _ in range(rounds):
        before.append(advice(*plain))
        after.append(advice(*changed))
    return before, after


def middle(runs: list[dict[str, Any]], name: str) -> float:
    return statistics.median(run["run"][name] for run in runs)


def rows(subject: Subject, rounds: int) -> list[dict[str, Any]]:
    """Of each fix that is offered, or of the change by hand: predicted and measured."""
    first = advice(subject.command, subject.folder)
    tried = [c for c in first["costs"] if (c["saves_ms"] or 0) >= LEAST * first["run"]["ms"]]
    found = []
    for rank, cost in enumerate(first["costs"], 1):
        if cost in tried:
            folder = fixed(subject, cost, subject.folder.parent / f"{subject.name}-{rank}")
            changed = subject.command, folder
        elif subject.changed and rank == 1:
            changed = [*subject.command, *subject.changed], subject.folder
        else:
            continue
        runs = compared((subject.command, subject.folder), changed, rounds)
        found.append(row(subject, rank, cost, *runs))
    return found


def row(subject: Subject, rank: int, cost: dict[str, Any], before: Any, after: Any) -> Any:
    same = [
        c
        for run in before
        for c in run["costs"]
        if (c["file"], c["line"], c["kind"]) == (cost["file"], cost["line"], cost["kind"])
    ]
    steps = before[0]["run"]["steps"]
    where = f"{Path(cost['file']).name}:{cost['line']}" if cost["file"] else cost["function"]
    once = statistics.median(c["parts"].get("compiling", 0.0) for c in same)
    each = statistics.median(c["ms"] for c in same) - once
    compiling = [middle(runs, "compile_seconds") for runs in (before, after)]
    return {
        "script": subject.name,
        "rank": rank,
        "cost": f"{cost['kind']} at {where}",
        "text": cost["text"],
        "fix": cost["finding"]["code"] if cost["saves_ms"] else " ".join(subject.changed or ()),
        "safety": cost["safety"],
        "step_ms": middle(before, "ms"),
        "step_ms_after": middle(after, "ms"),
        "predicted_ms": each,
        "measured_ms": middle(before, "ms") - middle(after, "ms"),
        "compile_s": compiling[0],
        "predicted_compile_s": once * steps / 1e3,
        "measured_compile_s": compiling[0] - compiling[1],
        "clock": before[0]["run"]["clock"],
        "all_ms": [[run["run"]["ms"] for run in runs] for runs in (before, after)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nanogpt", type=Path, help="a clone of it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    as_installed()
    found: list[dict[str, Any]] = []
    heads = "script|cost|fix|step, ms|predicted|measured|compiling, s|pred.|meas."
    table = Table(*heads.split("|"))
    with tempfile.TemporaryDirectory() as scratch:
        subjects = []
        for name in ("detection_loop", "hf_loop"):
            folder = Path(scratch, name)
            folder.mkdir()
            shutil.copy(SCRIPTS / f"{name}.py", folder)
            subjects.append(Subject(name, folder, [f"{name}.py"]))
        if arguments.nanogpt:
            subjects.append(nanogpt(arguments.nanogpt, Path(scratch, "nanogpt")))
        for subject in subjects:
            for each in rows(subject, arguments.rounds):
                found.append(each)
                print(json.dumps(each), flush=True)
    for each in found:
        numbers = ("step_ms", "predicted_ms", "measured_ms")
        seconds = ("compile_s", "predicted_compile_s", "measured_compile_s")
        shown = [f"{each[n]:.2f}" for n in numbers] + [f"{each[n]:.1f}" for n in seconds]
        table.add_row(each["script"], each["cost"], f"{each['fix']} ({each['safety']})", *shown)
    Console(width=150).print(table)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
