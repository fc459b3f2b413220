"""Public models through the compiler, counted from outside: graphs and operators outside them at
the second call, outputs against eager over three calls.

`python benchmarks/capture_census.py HARNESS.py MODELS FOLDER OUT.jsonl [--module dynfix]
[--native] [--only A,B] [--seconds 300] [--jobs 1]`

HARNESS.py builds tiny models and their inputs (see `codemod_census.py`); MODELS is a text file, one
name a line, or a CSV with a column `model`; FOLDER holds counting.py. Each model has a process of
its own. A model is whole when its second call runs one graph and no tensor operator outside it."""

import argparse
import concurrent.futures
import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from codemod_census import harness


def models(path: str) -> list[str]:
    if path.endswith(".csv"):
        with open(path, encoding="utf-8") as file:
            return list(dict.fromkeys(row["model"] for row in csv.DictReader(file)))
    return Path(path).read_text(encoding="utf-8").split()


def built(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]] | None:
    """The harness's tiny model and its inputs; None where it cannot be built."""
    module, found = harness(arguments.harness)
    module.torch._dynamo.explain = lambda *args, **kwargs: None
    module.child(arguments.child, os.devnull, False)
    return (module, found) if found else None


def other(inputs: Any) -> Any:
    """The inputs with other values where they are numbers that a model accepts any of."""
    import torch

    def changed(leaf: Any) -> Any:
        return -leaf if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    return torch.utils._pytree.tree_map(changed, inputs)


def child(arguments: argparse.Namespace) -> dict[str, Any]:
    import importlib

    import torch

    sys.path.insert(0, arguments.folder)
    import counting

    torch.set_num_threads(1)
    made = built(arguments)
    if made is None:
        return {"built": False}
    module, found = made
    model, inputs = found["model"], found["inputs"]
    backend = counting.Counting()
    options = {} if arguments.native else {"backend": backend}
    compiled = importlib.import_module(arguments.module).compile(model, **options)
    out: dict[str, Any] = {"built": True, "differs": []}
    with torch.no_grad():
        for turn in range(3):
            given = inputs if turn < 2 else other(inputs)
            torch.manual_seed(0)
            want = model(**module.clone(given))
            torch.manual_seed(0)
            before, start = backend.calls, time.process_time()
            given = module.clone(given)
            got, loose = counting.outside(lambda given=given: compiled(**given))
            if turn == 1:
                out.update(graphs=backend.calls - before, outside=len(loose), names=loose[:6])
            if not turn:
                out["first_s"] = round(time.process_time() - start, 1)
            try:
                torch.testing.assert_close(
                    dict(got), dict(want), rtol=1e-4, atol=1e-4, equal_nan=True
                )
            except AssertionError as error:
                out["differs"].append([turn, str(error)[:200]])
            except TypeError:  # an output that is no tensor
                pass
    return out


def process(arguments: argparse.Namespace, model: str) -> dict[str, Any]:
    given = [arguments.harness, arguments.models, arguments.folder, arguments.out]
    extra = ["--module", arguments.module, *(["--native"] if arguments.native else [])]
    command = [sys.executable, os.path.abspath(__file__), *given, *extra, "--child", model]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=arguments.seconds)
    except subprocess.TimeoutExpired:
        return {"model": model, "died": "out of time"}
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"built"')]
    if not lines:
        return {"model": model, "died": (done.stderr.strip().splitlines() or ["?"])[-1][:300]}
    return {"model": model, **json.loads(lines[-1])}


def verdict(row: dict[str, Any]) -> str:
    if not row.get("built"):
        return "not built" if "died" not in row else "died: " + row["died"]
    shape = f"{row['graphs']} graphs, {row['outside']} outside"
    whole = row["graphs"] == 1 and not row["outside"]
    return ("differs, " if row["differs"] else "") + ("one graph" if whole else shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("harness", "models", "folder", "out"):
        parser.add_argument(name)
    parser.add_argument("--module", default="dynfix")
    parser.add_argument("--native", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--child")
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(arguments)))
        return
    wanted = arguments.only.split(",") if arguments.only else models(arguments.models)
    rows = []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for row in pool.map(lambda model: process(arguments, model), wanted):
            rows.append(verdict(row))
            print(row["model"], verdict(row), row.get("differs") or "", flush=True)
            with open(arguments.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    print(f"one graph and equal: {rows.count('one graph')} of {len(rows)}")


if __name__ == "__main__":
    main()
