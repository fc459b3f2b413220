"""Graph breaks of models of an installed library, before and after `dynfix` worked on a copy of it.

`python benchmarks/codemod_census.py HARNESS.py BREAKS.csv LIBRARY SCRATCH [--only A,B]
[--unsafe-fixes] [--trace]`

HARNESS.py offers `child(model, out_json, train)`, which builds a tiny model and its inputs by
`try_eager(model, candidates, log)` and writes what `torch._dynamo.explain` and the counters said.
BREAKS.csv names the models (column `model`); a text file, one a line. LIBRARY is the folder of the
installed package. It is copied, the copy is fixed, and every model is run in a process of its own
from either copy: outputs are compared in eager on the same seed, and breaks counted. With `--trace`
each model's run is traced first."""

import argparse
import csv
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

from codemod_corpus import digest, leaves, same


def harness(path):
    """The harness's module, told to keep the model and the inputs that it found."""
    spec = importlib.util.spec_from_file_location("census_harness", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found, try_eager = {}, module.try_eager

    def keep(model, candidates, log):
        inputs, mode = try_eager(model, candidates, log)
        if inputs is not None:
            found.update(model=model, inputs=inputs)
        return inputs, mode

    module.try_eager = keep
    return module, found


def child(arguments):
    """One model: the harness's findings, and a digest of its output in eager; with --eager the
    output alone."""
    import torch

    module, found = harness(arguments.harness)
    if arguments.eager:
        module.torch._dynamo.explain = _refuse
        module.time = types.SimpleNamespace(
            time=lambda: 0.0
        )  # a traced run is slower than what the harness waits for
    module.child(arguments.child, arguments.out, False)
    result = json.loads(Path(arguments.out).read_text())
    if found:
        torch._dynamo.reset()
        torch.manual_seed(0)
        with torch.no_grad():
            output = found["model"](**module.clone(found["inputs"]))
        result["did"] = [digest(torch, leaf) for leaf in leaves(torch, output)]
    Path(arguments.out).write_text(json.dumps(result, default=str))


def _refuse(*args, **kwargs):
    raise RuntimeError("not asked for")


def run(arguments, model, folder, out, command=()):
    """The findings on one model with the library from `folder`."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
    }
    here = [
        os.path.abspath(__file__),
        arguments.harness,
        "",
        "",
        "",
        "--child",
        model,
        "--out",
        str(out),
    ]
    out.unlink(missing_ok=True)
    try:
        done = subprocess.run(
            [sys.executable, *command, *here, *(["--eager"] if command else [])],
            env=env,
            capture_output=True,
            text=True,
            timeout=arguments.seconds,
        )
        died = (done.stderr.strip().splitlines() or [""])[-1] if done.returncode else ""
    except subprocess.TimeoutExpired:
        died = "out of time"
    found = json.loads(out.read_text()) if out.exists() else {}
    return {**found, "died": died}


def breaks(found):
    """The larger of the two counts; None where explain failed, or no graph was captured at all."""
    data = found.get("eval", {})
    if not data.get("graph_count"):
        return None
    return max(data["graph_break_count"], sum(data["counters"].values()))


def fix(arguments, scratch, models):
    """Fix the copy `after`, in one go or with what the traced models showed."""
    from dataclasses import replace

    from dynfix.codemods.cli import file_writes, runner
    from dynfix.codemods.cli.settings import Settings
    from dynfix.codemods.hoist.plan import planned
    from dynfix.codemods.trace import trace_facts

    target = scratch / "after"
    paths, _ = runner.files([str(target)], Settings(exclude=()))
    facts = {}
    for model in models if arguments.trace else ():
        listed, out = scratch / "paths.json", scratch / "facts" / f"{model}.json"
        out.parent.mkdir(exist_ok=True)
        listed.write_text(json.dumps([os.path.realpath(p) for p in paths]))
        if not out.exists():
            run(
                arguments,
                model,
                target,
                scratch / "traced.json",
                ["-m", "dynfix.codemods.trace.traced_run", str(listed), str(out)],
            )
        facts = merged(facts, json.loads(out.read_text()) if out.exists() else {})
    settings = Settings(unsafe_fixes=arguments.unsafe_fixes, exclude=(), cache=False, jobs=2)
    settings = replace(settings, facts=planned(trace_facts.load(facts), settings))
    applied = 0
    for result in runner.run(paths, settings, True):
        applied += len(result.applied)
        if result.raw is not None:
            file_writes.write(result.path, result.raw, result.read)
        if result.error:
            print(f"  {result.path}: {result.error}")
    print(f"{applied} fixes in {len(paths)} files", flush=True)


def merged(first, second):
    """What two runs showed, joined."""
    from dataclasses import astuple

    from dynfix.codemods.trace.trace_facts import Fact

    for path, entry in second.items():
        old = first.setdefault(path, {"facts": [], "captured": []})
        table = {(f, t): fact for f, t, fact in old["facts"]}
        for function, text, fact in entry["facts"]:
            known = table.get((function, text), fact)
            both = known and fact and Fact(*known).join(Fact(*fact))
            table[function, text] = fact if known == fact else (astuple(both) if both else None)
        old["facts"] = [[f, t, fact] for (f, t), fact in table.items()]
        old["captured"] = sorted({*old["captured"], *entry["captured"]})
        old["reads"] = [
            *old.get("reads", ()),
            *(r for r in entry["reads"] if r not in old.get("reads", ())),
        ]
        for root, ways in entry.get("roots", {}).items():
            old.setdefault("roots", {}).setdefault(root, []).extend(ways)
    return first


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("harness", "models", "library", "scratch"):
        parser.add_argument(name)
    parser.add_argument("--only", default="")
    parser.add_argument("--unsafe-fixes", action="store_true")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--seconds", type=float, default=150)
    for hidden in ("--child", "--out"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    parser.add_argument("--eager", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    return child(arguments) if arguments.child else compare(arguments)


def names(path):
    text = Path(path).read_text()
    return (
        list(dict.fromkeys(row["model"] for row in csv.DictReader(text.splitlines())))
        if path.endswith(".csv")
        else text.split()
    )


def compare(arguments):
    scratch, library = Path(arguments.scratch).resolve(), Path(arguments.library).resolve()
    models = arguments.only.split(",") if arguments.only else names(arguments.models)
    for side in ("before", "after"):
        if side == "after":
            shutil.rmtree(scratch / side, ignore_errors=True)
        if not (scratch / side).exists():
            shutil.copytree(
                library, scratch / side / library.name, ignore=shutil.ignore_patterns("__pycache__")
            )
    fix(arguments, scratch, models)
    whole = equal = 0
    for model in models:
        kept = scratch / f"before_{model}.json"
        before = (
            json.loads(kept.read_text())
            if kept.exists()
            else run(arguments, model, scratch / "before", kept)
        )
        after = run(arguments, model, scratch / "after", scratch / f"after_{model}.json")
        alike = bool(before.get("did")) and same(before.get("did"), after.get("did"))
        whole, equal = whole + (breaks(after) == 0), equal + alike
        state = after.get("eval", {}).get("error") or after["died"] or after.get("status", "")
        print(
            f"{model}: breaks {breaks(before)} -> {breaks(after)}, outputs"
            f" {'equal' if alike else 'DIFFER'} {str(state)[:150]}",
            flush=True,
        )
        for row in after.get("eval", {}).get("breaks", []):
            print(f"    {row['gbid']} {row['file']}:{row['line']} {row['code']}")
    print(f"{whole} of {len(models)} without breaks, {equal} with equal outputs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
