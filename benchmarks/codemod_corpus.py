"""What `dynfix` does to a corpus of modules: files fixed, outputs kept, graph breaks before and
after.

`python benchmarks/codemod_corpus.py FOLDER LIST.json LOADER.py [--only breaking|all] [--scratch
DIR]`

FOLDER holds the modules; LIST.json the cases, `{"file": …, "idx": …, "plain_breaks": …}` each;
LOADER.py offers `prepare()`, `load(path) -> (module with TESTCASES, …)`, `build(case)`,
`inputs(case)` and `seed(n)`. Every file is copied and fixed four times: safe fixes; all fixes; and,
for files with a case that breaks, either after its cases ran once under the tracer. A case
is equal when outputs, inputs afterwards and buffers are those of the original in eager, for the
given inputs and for other values, exceptions included. Breaks are the larger of
`torch._dynamo.explain`'s count and `counters["graph_break"]`, in eval mode without gradients; a
case is one graph when there are none and `fullgraph=True` takes it."""

import argparse
import collections
import contextlib
import hashlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

VARIANTS = ("safe", "safe traced", "unsafe", "traced")


def loader(path):
    """The module at LOADER.py."""
    spec = importlib.util.spec_from_file_location("corpus_loader", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The child: one file of one variant


def child(arguments):
    """Print one JSON line a case: breaks, and a digest of what it did in eager."""
    import torch

    load = loader(arguments.loader)
    load.prepare()
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(arguments.path).parent))
    with contextlib.redirect_stdout(io.StringIO()):
        module, _ = load.load(arguments.path)
    for index in json.loads(arguments.indices):
        case = module.TESTCASES[index]
        print("RUNS " + str(index), flush=True)
        row = {"idx": index, "cls": case[0].__name__}
        row["did"] = [observed(torch, load, case, turn) for turn in range(2)]
        if index in json.loads(arguments.breaking):
            row.update(broken(load, case))
        print("CASE " + json.dumps(row), flush=True)


def observed(torch, load, case, turn):
    """What one call did: leaves of result, inputs and buffers, or the exception."""
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            model = load.build(case)
            args, kwargs = load.inputs(case) if turn == 0 else others(torch, load, case)
            load.seed(7)
            result = model(*args, **kwargs)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"[:200]}
        parts = [result, args, kwargs, dict(model.named_buffers())]
        return {
            "text": out.getvalue()[:2000],
            "leaves": [digest(torch, leaf) for part in parts for leaf in leaves(torch, part)],
        }


def others(torch, load, case):
    args, kwargs = load.inputs(case)
    load.seed(99)
    pytree = torch.utils._pytree
    return pytree.tree_map(
        lambda t: (
            torch.rand_like(t) * 2 - 0.5
            if isinstance(t, torch.Tensor) and t.is_floating_point()
            else t
        ),
        (args, kwargs),
    )


def leaves(torch, value):
    return torch.utils._pytree.tree_leaves(value)


def digest(torch, leaf):
    """A tensor's type and some numbers that tell it from others, rounded in the last bits; a short
    text of what else there is."""
    if not isinstance(leaf, torch.Tensor):
        plain = isinstance(leaf, (int, float, str, bool, type(None)))
        return repr(leaf)[:200] if plain else type(leaf).__name__
    found = [str(leaf.dtype), list(leaf.shape), str(leaf.device)]
    data = leaf.detach()
    data = (data.real + data.imag if data.is_complex() else data).double().flatten()
    weights = torch.linspace(1, 2, data.numel(), dtype=torch.float64)
    finite = torch.nan_to_num(data, 0.0, 0.0, 0.0)
    return [
        *found,
        int(torch.isnan(data).sum()),
        int(torch.isinf(data).sum()),
        float((finite * weights).sum()),
        float(finite.abs().sum()),
    ]


def broken(load, case):
    """Breaks of one call, and Dynamo's reasons with the user's lines."""
    import torch
    from dynfix.codemods.cli.side_by_side import count_breaks

    with torch.no_grad():
        model, (args, kwargs) = load.build(case), load.inputs(case)
        load.seed(7)
        try:
            found = {
                "breaks": count_breaks(model, args, kwargs),
                "whole": whole(torch, model, args, kwargs),
            }
        except Exception as error:
            return {
                "breaks": None,
                "whole": False,
                "hard": f"{type(error).__name__}: {error}"[:300],
            }
        return {**found, "reasons": reasons(torch, model, args, kwargs) if found["breaks"] else []}


def whole(torch, model, args, kwargs):
    """Whether Dynamo takes the whole call as one graph: a frame that it skips altogether is no
    break to its counters."""
    torch._dynamo.reset()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            torch.compile(model, backend="eager", fullgraph=True)(*args, **kwargs)
    except Exception:
        return False
    return True


def reasons(torch, model, args, kwargs):
    torch._dynamo.reset()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
        explained = torch._dynamo.explain(model)(*args, **kwargs)
        lines = [
            (r.reason.splitlines()[0][:90], r.user_stack[-1] if r.user_stack else None)
            for r in explained.break_reasons
        ]
        return [
            [text, f"{Path(f.filename).name}:{f.lineno} {f.line}" if f else ""] for text, f in lines
        ]
    return []


# The parent


def cases(path, limit):
    """{file: {index: whether it breaks}} of the list."""
    found = collections.defaultdict(dict)
    for row in json.loads(Path(path).read_text()):
        found[row["file"]][row["idx"]] = bool(row.get("plain_breaks"))
    return dict(list(found.items())[: limit or None])


def prepare(folder, scratch, files):
    """Copies of the files, one folder a variant."""
    for variant in ("before", *VARIANTS):
        shutil.rmtree(scratch / variant, ignore_errors=True)
        (scratch / variant).mkdir(parents=True)
        for name in files:
            shutil.copy(folder / name, scratch / variant / name)


def fix(arguments, scratch, variant, wanted):
    """Fix the copies of one variant; which rules fixed how much."""
    from dynfix.codemods.cli import check
    from dynfix.codemods.cli.settings import Settings
    from dynfix.codemods.hoist.plan import planned
    from dynfix.rewriter.source.source_file import SourceFile

    applied = collections.Counter()
    for name, indices in wanted.items():
        path = scratch / variant / name
        settings = Settings(unsafe_fixes=not variant.startswith("safe"))
        if variant.endswith("traced"):
            facts = learnt(arguments, scratch, name, indices, path)
            settings = replace(settings, facts=planned(facts, settings))
        source = SourceFile.from_bytes(path.read_bytes(), str(path))
        fixed = check.fix(source, settings)
        path.write_bytes(fixed.source.to_bytes())
        applied.update(f.code for f in fixed.applied)
    print(f"{variant}: {sum(applied.values())} fixes: {dict(sorted(applied.items()))}", flush=True)


def learnt(arguments, scratch, name, indices, path):
    """What the tracer saw of a file with a breaking case, told of the copy at `path`; kept between
    measurements."""
    from dynfix.codemods.trace import trace_facts

    breaking = [i for i, breaks in indices.items() if breaks]
    kept, original = scratch / "observed" / f"{name}.json", scratch / "before" / name
    if breaking and not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        here = [
            "",
            "",
            str(arguments.loader),
            "--path",
            str(original),
            "--indices",
            json.dumps(breaking),
            "--breaking",
            "[]",
        ]
        (kept.parent / "paths.json").write_text(json.dumps([os.path.realpath(original)]))
        command = [
            sys.executable,
            "-m",
            "dynfix.codemods.trace.traced_run",
            str(kept.parent / "paths.json"),
            str(kept),
        ]
        subprocess.run(
            [*command, os.path.abspath(__file__), *here],
            capture_output=True,
            timeout=arguments.seconds,
        )
    if not kept.exists():
        return {}
    shown = [json.dumps(os.path.realpath(p))[1:-1] for p in (original, path)]
    return trace_facts.load(json.loads(kept.read_text().replace(*shown)))


class Runs:
    """Runs of files, kept by content: a second measurement runs only what changed."""

    def __init__(self, arguments, scratch):
        self.arguments, self.file = arguments, scratch / "runs.json"
        self.known = json.loads(self.file.read_text()) if self.file.exists() else {}

    def rows(self, path, indices, breaking):
        """{index: row} of one file."""
        key = hashlib.sha256(path.read_bytes() + repr((indices, breaking)).encode()).hexdigest()
        rows = self.known.get(key) or self._run(path, indices, breaking)
        if any("lost" not in row for row in rows):
            self.known[key] = rows
            self.file.write_text(json.dumps(self.known))
        return {row["idx"]: row for row in rows}

    def again(self, path, indices):
        return self._run(path, indices, [])

    def _run(self, path, indices, breaking):
        a = self.arguments
        command = [
            sys.executable,
            os.path.abspath(__file__),
            "",
            "",
            str(a.loader),
            "--path",
            str(path),
        ]
        command += ["--indices", json.dumps(indices), "--breaking", json.dumps(breaking)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=a.seconds + 5 * len(indices) + 30 * len(breaking),
            )
            text, died = (
                done.stdout,
                (done.stderr.strip().splitlines() or [""])[-1] if done.returncode else "",
            )
        except subprocess.TimeoutExpired as late:
            text, died = (late.stdout or b"").decode(errors="replace"), "out of time"
        rows = [json.loads(line[5:]) for line in text.splitlines() if line.startswith("CASE ")]
        got = {row["idx"] for row in rows}
        return rows + [{"idx": i, "lost": died or "no row"} for i in indices if i not in got]


def same(first, second, loosely=False):
    """Whether two digests are those of equal values: exact but for the last bits of sums;
    `loosely`: a Python number may have become a tensor of its value."""
    if isinstance(first, float) and isinstance(second, float):
        return abs(first - second) <= 1e-5 * max(1.0, abs(first), abs(second))
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(
            same(a, b, loosely) for a, b in zip(first, second, strict=True)
        )
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(
            same(first[k], second[k], loosely) for k in first
        )
    if loosely and isinstance(first, str) and isinstance(second, list) and len(second) == 7:
        with contextlib.suppress(ValueError):
            return same(float(first), float(second[5]))
    return first == second


def measure(arguments, scratch):
    """The rows of every case, before and after: breaks are counted for those that break, the others
    of a changed file are only compared in eager."""
    wanted, runs, result = cases(arguments.list, arguments.files), Runs(arguments, scratch), []
    for number, (name, indices) in enumerate(wanted.items(), 1):
        breaking = sorted(i for i, breaks in indices.items() if breaks)
        changed = len({(scratch / v / name).read_bytes() for v in ("before", *VARIANTS)}) > 1
        others = sorted(set(indices) - set(breaking)) if changed and arguments.only == "all" else []
        for group, counted in ((breaking, breaking), (others, [])):
            found = (
                {v: runs.rows(scratch / v / name, group, counted) for v in ("before", *VARIANTS)}
                if group
                else {}
            )
            for i in group:
                result.append(
                    {
                        "file": name,
                        "idx": i,
                        "breaking": i in breaking,
                        **{v: found[v][i] for v in found},
                    }
                )
        print(f"{number}/{len(wanted)} files", file=sys.stderr, flush=True)
    differ = [r for r in result if any(what_differs(r, v, loosely=True) for v in VARIANTS)]
    loose = [r for r in differ if unsteady(r, runs, scratch)]
    print(f"{len(loose)} cases left out, of which the original differs from itself")
    return [r for r in result if r not in loose]


def unsteady(row, runs, scratch):
    """Whether the original, run once more, differs from itself (uninitialised memory, time)."""
    again = {r["idx"]: r for r in runs.again(scratch / "before" / row["file"], [row["idx"]])}[
        row["idx"]
    ]
    return what_differs({"before": row["before"], "again": again}, "again") != ""


def report(result):
    breaking = [r for r in result if r["breaking"]]
    for variant in VARIANTS:
        good = [r for r in breaking if r[variant].get("breaks") == 0 and r[variant].get("whole")]
        differ = [r for r in result if what_differs(r, variant)]
        typed = [r for r in differ if not what_differs(r, variant, loosely=True)]
        before = sum(r["before"].get("breaks") or 0 for r in breaking)
        after = sum(r[variant].get("breaks") or 0 for r in breaking)
        print(
            f"{variant}: {len(good)} of {len(breaking)} breaking cases are one graph; breaks"
            f" {before} -> {after}; of {len(result)} cases {len(differ) - len(typed)} differ in"
            f" eager, {len(typed)} give a tensor for a Python number of the same value"
        )
        differ = [r for r in differ if r not in typed]
        for row in differ:
            print(f"  differs: {row['file']} #{row['idx']}: {what_differs(row, variant)}")
    remaining(breaking, VARIANTS[-1])


def what_differs(row, variant, loosely=False):
    before, after = row["before"], row[variant]
    if "lost" in before:
        return ""
    if "lost" in after:
        return after["lost"]
    for first, second in zip(before["did"], after["did"], strict=True):
        if not same(first, second, loosely):
            return f"{str(first)[:150]} / {str(second)[:150]}"
    return ""


def remaining(rows, variant):
    for row in rows:
        after = row[variant]
        if after.get("breaks") != 0 or not after.get("whole"):
            print(
                f"  left: {row['file']} #{row['idx']} {after.get('cls')}:"
                f" {row['before'].get('breaks')} -> {after.get('breaks')}"
                f" {after.get('hard') or after.get('lost') or ''}"
            )
            for reason in after.get("reasons", []):
                print(f"      {reason[0]} | {reason[1]}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("list")
    parser.add_argument("loader")
    parser.add_argument("--only", choices=["breaking", "all"], default="all")
    parser.add_argument("--files", type=int, default=0, help="at most so many files")
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--scratch", default="codemod_corpus")
    for hidden in ("--path", "--indices", "--breaking"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.path:
        return child(arguments)
    scratch = Path(arguments.scratch).resolve()
    prepare(Path(arguments.folder), scratch, cases(arguments.list, arguments.files))
    for variant in VARIANTS:
        fix(arguments, scratch, variant, cases(arguments.list, arguments.files))
    result = measure(arguments, scratch)
    (scratch / "result.json").write_text(json.dumps(result))
    report(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
