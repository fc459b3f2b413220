"""Every operator and module of torch's tables through `dynfix.compile`: one line of JSON each.

    python -m tests.operators.sweep --kinds float32,bfloat16 --jobs 16 --out found.jsonl [names]

Samples of an operator are compiled `TOGETHER` in one graph, and one by one where they differ or do
not compile. What stands in the file is left out, so that a second run goes on; a process that dies
is a line with "crash". `python -m tests.operators.sweep --show found.jsonl` sums it up.
"""

import argparse
import collections
import itertools
import json
import multiprocessing
import pathlib
import random
import signal
import time
import typing
from multiprocessing.connection import wait

import torch
from dynfix.lowering.targets.cpp import cpp_build

from . import modules
from .compare import compare
from .op_tables import operators, samples
from .programs import program

LIMIT = 120  # seconds for one operator
TOGETHER = 12
JOBS_A_PROCESS = 40  # a table's operators leave compiled code behind
GRACE = 5  # seconds for jobs under way when the time is over


class Kind(typing.NamedTuple):
    dtype: torch.dtype
    gradients: bool = True
    dynamic: bool | None = None
    inplace: bool = False
    is_module: bool = False


def _kinds():
    floats = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64)
    whole = (torch.int64, torch.int32, torch.uint8, torch.bool)
    kinds = {str(dtype).split(".")[1]: Kind(dtype) for dtype in floats}
    kinds |= {str(dtype).split(".")[1]: Kind(dtype, gradients=False) for dtype in whole}
    kinds |= {f"inplace_{name}": kind._replace(inplace=True) for name, kind in kinds.items()}
    kinds |= {f"symbolic_{name}": kind._replace(dynamic=True) for name, kind in kinds.items()}
    floating = {name: kind for name, kind in kinds.items() if kind.dtype in floats[:4]}
    for name, kind in floating.items():
        if not kind.inplace:
            kinds[f"modules_{name}"] = kind._replace(is_module=True)
    return kinds


KINDS = _kinds()


def check(name, dtype, most, gradients, dynamic=None, variant="function", device="cpu"):
    """What differs for the samples of one operator, and what was not compiled."""
    op = operators()[name]
    function = op.get_op() if variant == "function" else op.get_inplace()
    gradients = gradients and op.supports_autograd
    if function is None or dtype not in op.supported_dtypes(device):
        return None
    given = samples(op, dtype, most, gradients, device)
    made = {"samples": len(given), "differences": [], "eager": []}
    for first in range(0, len(given), TOGETHER):
        some = given[first : first + TOGETHER]
        found, eager = _check_some(function, some, first, gradients, dynamic)
        made["differences"] += found
        made["eager"] += eager
    return made if given else None


def _check_some(function, given, first, gradients, dynamic):
    together = compare(*program(function, given), gradients, dynamic)
    if not together.differences and not together.eager:
        return [], []
    ones = [compare(*program(function, [one]), gradients, dynamic) for one in given]
    found = [
        f"sample {first + n}: {text}" for n, one in enumerate(ones) for text in one.differences
    ]
    if not found and together.differences and not together.eager:
        found = [f"together: {text}" for text in together.differences]
    return found, [one.eager for one in ones if one.eager]


def _expire(number, frame):
    raise TimeoutError(f"took {LIMIT} s")


def _check_kind(kind, name, most, device):
    if kind.is_module:
        return modules.check(name, kind.dtype, True, kind.dynamic, most, device)
    variant = "inplace" if kind.inplace else "function"
    return check(name, kind.dtype, most, kind.gradients, kind.dynamic, variant, device)


def _serve(pipe, given):
    """A process: a job in, its finding out, until it is ended."""
    torch.set_num_threads(1)
    if given.light:
        cpp_build.FLAGS = (*cpp_build.FLAGS, "-O1")
    signal.signal(signal.SIGALRM, _expire)
    while True:
        kind, name = pipe.recv()
        start = time.monotonic()
        signal.alarm(LIMIT)
        try:
            made = _check_kind(KINDS[kind], name, given.most, given.device)
        except BaseException as error:
            made = {"samples": 0, "differences": [], "eager": [], "error": f"{error!r}"[:300]}
        signal.alarm(0)
        torch._dynamo.reset()
        seconds = round(time.monotonic() - start, 2)
        pipe.send({"kind": kind, "name": name, **(made or {"samples": 0}), "seconds": seconds})
        if given.device == "cuda":
            torch.cuda.synchronize()  # after an assertion on the device the process is of no use


def _names(kind, device):
    if kind.is_module:
        taken = (torch.float16, torch.bfloat16)
        known = modules.modules().items()
        return [n for n, info in known if kind.dtype in info.dtypes or kind.dtype in taken]
    fits = {n: op for n, op in operators().items() if kind.dtype in op.supported_dtypes(device)}
    return [n for n, op in fits.items() if not kind.inplace or op.get_inplace() is not None]


def _jobs(given):
    """(kind, name) of all that is not in the file, kinds in their order, names mixed."""
    done = {(row["kind"], row["name"]) for row in _rows(given.out)}
    jobs = []
    for kind in given.kinds.split(","):
        names = [name for name in _names(KINDS[kind], given.device) if (kind, name) not in done]
        random.Random(0).shuffle(names)
        jobs += [(kind, name) for name in names if not given.names or name in given.names]
    return jobs


def _rows(path):
    found = pathlib.Path(path)
    return [json.loads(line) for line in found.read_text().splitlines()] if found.exists() else []


class _Workers:
    """Processes with the job that each is at."""

    def __init__(self, given):
        self.context = multiprocessing.get_context("fork" if given.device == "cpu" else "spawn")
        self.given, self.at = given, {}

    def give(self, job, pipe=None, process=None, count=0):
        if process is not None and count >= JOBS_A_PROCESS:
            process.kill()
            process = None
        if process is None:
            pipe, theirs = self.context.Pipe()
            process = self.context.Process(target=_serve, args=(theirs, self.given), daemon=True)
            process.start()
            theirs.close()
            count = 0
        pipe.send(job)
        self.at[pipe] = process, job, count + 1

    def ended(self, seconds):
        """(row, free worker) of each process that has something to say within the time."""
        for pipe in wait(list(self.at), timeout=max(seconds, 0.1)):
            process, job, count = self.at.pop(pipe)
            try:
                yield pipe.recv(), (pipe, process, count)
            except (EOFError, ConnectionError):
                process.join()
                made = {"kind": job[0], "name": job[1], "samples": 0}
                yield {**made, "crash": process.exitcode}, (None, None, 0)


def sweep(given):
    end = time.monotonic() + given.seconds
    jobs = _jobs(given)
    waiting, workers = iter(jobs), _Workers(given)
    print(len(jobs), "jobs", flush=True)
    for job in itertools.islice(waiting, given.jobs):
        workers.give(job)
    with open(given.out, "a") as out:
        while workers.at and time.monotonic() < end + GRACE:
            for row, free in workers.ended(end + GRACE - time.monotonic()):
                out.write(json.dumps(row) + "\n")
                out.flush()
                job = next(waiting, None) if time.monotonic() < end else None
                if job is not None:
                    workers.give(job, *free)
    for process, job, _ in workers.at.values():
        process.kill()
        print("cut off:", job)
    print(len(list(waiting)), "jobs left")


def show(path):
    """Counts by kind, then a line for each row that differs, fails or stays in eager."""
    counts, lines = collections.defaultdict(collections.Counter), []
    for row in _rows(path):
        state = next((s for s in ("crash", "error", "differences", "eager") if row.get(s)), "equal")
        counts[row["kind"]].update({state: 1, "operators": 1, "samples": row["samples"]})
        if state != "equal":
            found = row[state]
            lines.append(f"{row['kind']} {row['name']}: {state} {str(found)[:300]}")
    print(*(f"{kind}: {dict(count)}" for kind, count in counts.items()), sep="\n")
    print(*sorted(lines), sep="\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--kinds", default="float32", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--most", type=int, help="samples of an operator; all, if not given")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=86400)
    parser.add_argument("--light", action="store_true", help="kernels built with -O1")
    parser.add_argument("--out", default="op_db.jsonl")
    parser.add_argument("--show", metavar="FILE")
    given = parser.parse_args()
    show(given.show) if given.show else sweep(given)


if __name__ == "__main__":
    main()
