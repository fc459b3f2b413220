"""Every operator of torch's table through `dynfix.compile`: one line of JSON each.

    python -m tests.operators.sweep --most 4 --gradients --out found.jsonl [names]

Samples of an operator are compiled together, and one by one where they differ or do not compile.
"""

import argparse
import json
import multiprocessing
import signal
import time

import torch

from .compare import compare
from .op_tables import operators, samples
from .programs import program

LIMIT = 120  # seconds for one operator


def check(name, dtype, most, gradients, dynamic=None, variant="function"):
    """What differs for the samples of one operator, and what was not compiled."""
    op = operators()[name]
    function = op.get_op() if variant == "function" else op.get_inplace()
    gradients = gradients and op.supports_autograd
    if function is None or dtype not in op.supported_dtypes("cpu"):
        return None
    given = samples(op, dtype, most, gradients)
    if not given:
        return None
    together = compare(*program(function, given), gradients, dynamic)
    if not together.differences and not together.eager:
        return {"samples": len(given), "differences": [], "eager": []}
    ones = [compare(*program(function, [one]), gradients, dynamic) for one in given]
    found = [f"sample {n}: {text}" for n, one in enumerate(ones) for text in one.differences]
    if not found and together.differences and not together.eager:
        found = [f"together: {text}" for text in together.differences]
    eager = [one.eager for one in ones if one.eager]
    return {"samples": len(given), "differences": found, "eager": eager}


def _expire(number, frame):
    raise TimeoutError(f"took {LIMIT} s")


def _work(job):
    name, dtype, most, gradients, dynamic, variant = job
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _expire)
    signal.alarm(LIMIT)
    start = time.monotonic()
    try:
        made = check(name, dtype, most, gradients, dynamic, variant)
    except BaseException as error:
        made = {"samples": 0, "differences": [], "eager": [], "error": f"{error!r}"[:300]}
    signal.alarm(0)
    torch._dynamo.reset()
    return {"name": name, **(made or {"samples": 0}), "seconds": time.monotonic() - start}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--most", type=int, default=4)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--inplace", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", default="op_db.jsonl")
    given = parser.parse_args()
    variant = "inplace" if given.inplace else "function"
    dtype = getattr(torch, given.dtype)
    jobs = [
        (name, dtype, given.most, given.gradients, given.dynamic or None, variant)
        for name in given.names or operators()
    ]
    with multiprocessing.Pool(given.jobs, maxtasksperchild=40) as pool, open(given.out, "w") as out:
        for found in pool.imap_unordered(_work, jobs):
            out.write(json.dumps(found) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
