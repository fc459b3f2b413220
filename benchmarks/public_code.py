"""Whether the findings name the lines at which torch.compile breaks the graph, on public code.

`python benchmarks/public_code.py FOLDER [CASE ...] [--findings] [--jobs N]`

FOLDER holds checkouts, one a repository, named `owner+name`; nothing is fetched. Each case of
public_cases.py builds a module of one repository and its inputs. The module runs in a process of
its own, under `torch._dynamo.explain`; a package that is not installed is replaced by a stand-in.
What counts as a break is the innermost line of the repository in a break's stack. It is named where
a finding of `dynfix --check` begins in the same statement (of a compound statement: in its head).
Findings come from text alone, over the whole repository. `--findings` lists those that stand in
functions that a case ran and at which nothing broke: candidates for false findings."""

import argparse
import ast
import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from unittest import mock

from public_cases import CASES, STUBBED


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports what is not installed, as modules of mocks."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in STUBBED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__getattr__ = lambda name: _stand_in(name)


def _stand_in(name):
    """A class, which may be inherited from, used as a decorator or called."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name[:1].isupper():
        return type(name, (), {})
    return mock.MagicMock(name=name)


def observed(folder, name):
    """The breaks and the functions that ran, of one case, in this process."""
    import torch

    repository, setup = CASES[name]
    root = os.path.realpath(os.path.join(folder, repository))
    sys.meta_path.append(StandIn())
    sys.path.insert(0, root)
    os.chdir(root)
    torch.manual_seed(0)
    values = {"root": root, "sys": sys, "torch": torch, "nn": torch.nn}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(setup, values)
        module, inputs = values["module"], values["inputs"]
        module(*inputs)  # what eager cannot run is no case
        run = _functions_of(root)
        sys.setprofile(run)
        module(*inputs)
        sys.setprofile(None)
        found = torch._dynamo.explain(module)(*inputs)
    lines = []
    for reason in found.break_reasons:
        inside = [f for f in reason.user_stack if os.path.realpath(f.filename).startswith(root)]
        if inside:
            path = os.path.relpath(os.path.realpath(inside[-1].filename), root)
            lines.append([path, inside[-1].lineno, str(reason.reason).strip().splitlines()[0]])
    ran = sorted([os.path.relpath(p, root), line] for p, line in run.seen)
    return {"breaks": lines, "ran": ran, "graphs": found.graph_count}


class _functions_of:
    """A profile function that notes the functions of a folder that ran."""

    def __init__(self, root):
        self.root, self.seen = root, set()

    def __call__(self, frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(self.root):
            self.seen.add((code.co_filename, code.co_firstlineno))


def in_a_process(folder, name, seconds):
    command = [sys.executable, __file__, folder, name, "--here"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"error": "out of time"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["?"])[-1][:200]}
    return json.loads(done.stdout.splitlines()[-1])


# Findings


def findings(root):
    """{path: [findings]} of `dynfix --check` on the text alone, and the seconds that it took."""
    command = [sys.executable, "-m", "dynfix", "--check", "--isolated", "--no-cache", root]
    start = time.perf_counter()
    command += ["--output-format", "json-lines"]
    done = subprocess.run(command, capture_output=True, text=True)
    took, found = time.perf_counter() - start, {}
    for line in done.stdout.splitlines():
        row = json.loads(line)
        path = row.get("filename") or row.get("path")
        found.setdefault(os.path.relpath(os.path.realpath(path), root), []).append(row)
    return found, took


def heads(tree):
    """(first, last) line of each statement's own text: of a compound one, up to its body."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            inner = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno
            yield node.lineno, max(node.lineno, inner)


@cache
def statements(path):
    """The spans of the statements of a file."""
    return sorted(heads(ast.parse(Path(path).read_bytes())))


def statement(path, line):
    """(first, last) line of the innermost statement at a line."""
    inside = [span for span in statements(path) if span[0] <= line <= span[1]]
    return min(inside, key=lambda s: s[1] - s[0], default=(line, line))


@cache
def functions(path):
    """{first line: last line} of the functions of a file."""
    found = {}
    for node in ast.walk(ast.parse(Path(path).read_bytes())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found[first] = node.end_lineno
    return found


def _line(row):
    return row.get("line") or row["location"]["row"]


def compared(folder, repository, outcomes, found):
    """(lines that broke and are named, those that are not, findings where a function ran and
    nothing broke)."""
    root = os.path.realpath(os.path.join(folder, repository))
    broke, ran = {}, set()
    for outcome in outcomes:
        for path, line, reason in outcome.get("breaks", ()):
            broke.setdefault((path, *statement(os.path.join(root, path), line)), reason)
        ran |= {tuple(place) for place in outcome.get("ran", ())}
    named, missed = {}, {}
    for (path, first, last), reason in broke.items():
        there = [r["code"] for r in found.get(path, ()) if first <= _line(r) <= last]
        (named if there else missed)[path, first, last] = ", ".join(there) or reason
    return named, missed, list(_unbroken(root, found, broke, ran))


def _unbroken(root, found, broke, ran):
    for path, rows in found.items():
        spans = functions(os.path.join(root, path))
        covered = [(f, spans[f]) for p, f in ran if p == path and f in spans]
        for row in rows:
            line = _line(row)
            first, last = statement(os.path.join(root, path), line)
            here = any(p == path and first <= f <= last for p, f, _ in broke)
            if not here and any(a <= line <= b for a, b in covered):
                yield path, line, row["code"], row["message"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--findings", action="store_true")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--kept", help="where breaks are kept from run to run (JSON)")
    options = parser.parse_args()
    if options.here:
        print(json.dumps(observed(options.folder, options.cases[0])))
        return
    names = options.cases or list(CASES)
    outcomes = _outcomes(options, names)
    _report(options, names, outcomes)


def _outcomes(options, names):
    kept = Path(options.kept) if options.kept else None
    known = json.loads(kept.read_text()) if kept and kept.exists() else {}
    todo = [n for n in names if n not in known or "error" in known[n]]
    with ThreadPoolExecutor(options.jobs) as pool:
        answers = pool.map(lambda n: in_a_process(options.folder, n, options.seconds), todo)
        for name, outcome in zip(todo, answers, strict=True):
            known[name] = outcome
            if kept:
                kept.write_text(json.dumps(known))
    return known


def _report(options, names, outcomes):
    ran = [n for n in names if "error" not in outcomes[n]]
    for name in names:
        if name not in ran:
            print(f"{name}: did not run: {outcomes[name]['error']}")
    totals, quiet, codes, lines, seconds = Counter(), Counter(), Counter(), 0, 0.0
    for repository in sorted({CASES[n][0] for n in ran}):
        root = os.path.realpath(os.path.join(options.folder, repository))
        found, took = findings(root)
        of = [outcomes[n] for n in ran if CASES[n][0] == repository]
        named, missed, unbroken = compared(options.folder, repository, of, found)
        totals.update(named=len(named), missed=len(missed), unbroken=len(unbroken))
        codes.update(r["code"] for rows in found.values() for r in rows)
        lines += sum(len(p.read_bytes().splitlines()) for p in Path(root).rglob("*.py"))
        seconds += took
        print(f"{repository}: {len(named)} of {len(named) + len(missed)} lines that break named")
        for (path, first, _), reason in sorted(missed.items()):
            print(f"  missed {path}:{first}: {reason[:110]}")
        quiet.update(code for _, _, code, _ in unbroken)
        for path, line, code, message in unbroken if options.findings else ():
            print(f"  nothing broke {path}:{line}: {code} {message[:100]}")
    all_lines = totals["named"] + totals["missed"]
    breaking = sum(bool(outcomes[n]["breaks"]) for n in ran)
    print(f"\n{len(ran)} modules ran, {breaking} break; lines that break: {all_lines}")
    print(f"named: {totals['named']} ({totals['named'] / max(all_lines, 1):.0%})")
    print(f"findings: {sum(codes.values())} {dict(codes.most_common())}")
    print(f"findings in functions that ran, at which nothing broke: {dict(quiet.most_common())}")
    print(f"{lines} lines in {seconds:.0f} s: {lines / max(seconds, 1e-9):.0f} lines/s")


if __name__ == "__main__":
    main()
