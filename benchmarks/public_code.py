"""What dynfix finds and mends in public code, against what torch.compile breaks there.

`python benchmarks/public_code.py FOLDER [CASE ...] [--fix] [--findings] [--jobs N] [--json FILE]`

FOLDER holds checkouts, one a repository, named `owner+name`; nothing is fetched. Each case of
public_cases.py builds a module of one repository and its inputs. The module runs in a process of
its own, under `torch._dynamo.explain`; a package that is not installed is replaced by a stand-in.
What counts as a break is the innermost line of the repository in a break's stack, also where the
break made Dynamo skip the whole frame. It is named where a finding of `dynfix --check` begins in
the same statement (of a compound statement: in its head). Findings come from text alone, over the
whole repository; where nothing in it says what a case compiles, they are counted once more with
`--entry` for what the case itself calls. `--findings` lists those that stand in functions that a
case ran and at which nothing broke: candidates for false findings.

With `--fix`, the files that a breaking case ran are fixed in a copy of the repository, by
`dynfix --unsafe-fixes --trace` with a script that builds and calls the module; then breaks are
counted again, and outputs compared with those of the original, in eager on one seed."""

import argparse
import ast
import contextlib
import importlib.abc
import importlib.machinery
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from unittest import mock

from public_cases import CASES, STUBBED
from public_more_cases import MORE

CASES = CASES | MORE


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports what is not installed, as modules of mocks."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in STUBBED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__version__ = "0.20.0"
        module.__getattr__ = lambda name: _stand_in(name)


def _stand_in(name):
    """A class, which may be inherited from, used as a decorator or called."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name[:1].isupper():
        return type(name, (), {})
    return mock.MagicMock(name=name)


def _bare(*names):
    """Makes packages importable without what their `__init__` would import."""
    for name in names:
        sys.modules[name] = package = types.ModuleType(name)
        places = [os.path.join(p, *name.split(".")) for p in sys.path]
        package.__path__ = [place for place in places if os.path.isdir(place)]
        parent, _, last = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], last, package)


def _bare_mock(name):
    for number in range(len(parts := name.split("."))):
        sys.modules[".".join(parts[: number + 1])] = mock.MagicMock()


def built(folder, name):
    """(the repository's folder, the module of a case, its inputs)."""
    import torch

    repository, setup = CASES[name]
    root = os.path.realpath(os.path.join(folder, repository))
    sys.meta_path.append(StandIn())
    sys.path.insert(0, root)
    os.chdir(root)
    torch.manual_seed(0)
    values = {"root": root, "base": os.path.dirname(root), "sys": sys, "types": types}
    values |= {"torch": torch, "nn": torch.nn, "mock": mock, "bare": _bare, "bare_mock": _bare_mock}
    exec(setup, values)
    return root, values["module"], values["inputs"]


def observed(folder, name, outputs=None):
    """The breaks and the functions that ran, of one case, in this process. `outputs`: where to save
    what eager returned."""
    import torch

    root, module, inputs = built(folder, name)
    torch.manual_seed(1)
    result = module(*inputs)  # what eager cannot run is no case
    if outputs:
        torch.save(_values(result), outputs)
    run = _functions_of(root)
    sys.setprofile(run)
    module(*inputs)
    sys.setprofile(None)
    broke = []
    with _breaks_noted(broke):
        found = torch._dynamo.explain(module)(*inputs)
    lines = []
    for stack, reason in broke:
        paths = [(f, os.path.realpath(f.filename)) for f in stack]
        inside = [f for f, p in paths if p.startswith(root + os.sep) and os.path.isfile(p)]
        path = os.path.relpath(os.path.realpath(inside[-1].filename), root) if inside else "?"
        line = inside[-1].lineno if inside else 0
        lines.append([path, line, reason.strip().splitlines()[0]])
    ran = sorted([os.path.relpath(p, root), line] for p, line in run.seen)
    entries = sorted({_entry(root, *place) for place in run.entries} - {None})
    return {"breaks": lines, "ran": ran, "graphs": found.graph_count, "entries": entries}


def _entry(root, path, line):
    """A function of a repository as `--entry` names it."""
    around = [
        node
        for node in ast.walk(ast.parse(Path(path).read_bytes()))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        and min([node.lineno, *(d.lineno for d in node.decorator_list)]) <= line <= node.end_lineno
    ]
    module = os.path.relpath(path, root).removesuffix(".py").replace(os.sep, ".")
    names = [node.name for node in sorted(around, key=lambda node: node.lineno)]
    return f"{module.removesuffix('.__init__')}:{'.'.join(names[:2])}" if names else None


@contextlib.contextmanager
def _breaks_noted(broke):
    """Appends (stack, reason) of each graph break; a break in a loop, for which Dynamo skips the
    frame, is in no `explain`."""
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase as Translator

    log, skip = Translator.log_graph_break, Translator.raise_loop_graph_break

    def noted(exc):
        broke.append((list(getattr(exc, "real_stack", None) or ()), str(exc)))

    def log_graph_break(self, code_options, reason, exc):
        noted(exc)
        return log(self, code_options, reason, exc)

    def raise_loop_graph_break(code, exc):
        noted(exc)
        return skip(code, exc)

    with (
        mock.patch.object(Translator, "log_graph_break", log_graph_break),
        mock.patch.object(
            Translator, "raise_loop_graph_break", staticmethod(raise_loop_graph_break)
        ),
    ):
        yield


def _values(result):
    """The tensors and numbers of an output, in order."""
    import torch
    from torch.utils import _pytree

    if hasattr(result, "__dataclass_fields__"):
        result = vars(result)
    kinds = torch.Tensor, int, float, bool, str
    return [v for v in _pytree.tree_leaves(result) if isinstance(v, kinds)]


class _functions_of:
    """A profile function that notes the functions of a folder that ran, and those that something
    else called."""

    def __init__(self, root):
        self.root, self.seen, self.entries = root, set(), set()

    def __call__(self, frame, event, _):
        code = frame.f_code
        place = code.co_filename, code.co_firstlineno
        if event == "call" and place[0].startswith(self.root) and place not in self.seen:
            self.seen.add(place)
            caller = frame.f_back
            while caller and not caller.f_code.co_filename.startswith(self.root):
                caller = caller.f_back
            if caller is None:
                self.entries.add(place)


def in_a_process(function, *args, seconds=300):
    """The result of a function, as JSON, in a copy of this process; an error in its place."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        _child(write, seconds, function, args)
    os.close(write)
    with open(read, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(answer) if answer else {"error": "out of time, or crashed"}


def _child(write, seconds, function, args):
    signal.alarm(seconds)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    try:
        answer = function(*args)
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}"[:200]}
    os.write(write, json.dumps(answer).encode())
    os._exit(0)


# Fixes


def fixed(folder, name, outcome, seconds):
    """What is left of the breaks of a case after fixes, in a copy of its repository."""
    with tempfile.TemporaryDirectory() as scratch:
        repository, _ = CASES[name]
        for other in os.listdir(folder):
            if other != repository:
                os.symlink(os.path.join(os.path.realpath(folder), other), f"{scratch}/{other}")
        shutil.copytree(
            f"{folder}/{repository}", f"{scratch}/{repository}", ignore=_large, symlinks=True
        )
        script = Path(scratch, "run_case.py")
        script.write_text(_SCRIPT.format(os.path.dirname(os.path.abspath(__file__)), scratch, name))
        files = sorted({f"{scratch}/{repository}/{path}" for path, _ in outcome["ran"]})
        command = [sys.executable, "-m", "dynfix", "--unsafe-fixes", "--isolated", "--no-cache"]
        command += ["-j", "1", "--trace", str(script), *files]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=seconds, cwd=scratch
            )
        except subprocess.TimeoutExpired:
            return {"error": "the fix ran out of time"}
        before, after = f"{scratch}/before", f"{scratch}/after"
        in_a_process(observed, folder, name, before)
        found = in_a_process(observed, scratch, name, after)
        if "error" not in found:
            found["equal"] = in_a_process(_equal, before, after)
        left = [row for row in done.stdout.splitlines() if ".py:" in row]
        return {**found, "output": left[-40:], "stderr": done.stderr[-500:]}


_SCRIPT = """import sys
sys.path.insert(0, {!r})
import public_code
root, module, inputs = public_code.built({!r}, {!r})
module(*inputs)
"""


def _large(folder, names):
    paths = [(n, os.path.join(folder, n)) for n in names]
    return {
        n for n, p in paths if n == ".git" or (os.path.isfile(p) and os.path.getsize(p) > 1 << 20)
    }


def _equal(before, after):
    """Whether two saved outputs are equal but for rounding."""
    import torch

    first, second = (torch.load(path) for path in (before, after))
    try:
        torch.testing.assert_close(first, second, equal_nan=True)
    except AssertionError as error:
        return str(error).replace("\n", " ")[:200]
    return True


# Findings


def findings(root, entries=()):
    """{path: [findings]} of `dynfix --check` on the text alone, and the seconds that it took."""
    command = [sys.executable, "-m", "dynfix", "--check", "--isolated", "--no-cache", root]
    start = time.perf_counter()
    command += ["--output-format", "json-lines"]
    command += [part for entry in entries for part in ("--entry", entry)]
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
            if not os.path.isfile(os.path.join(root, path)):
                continue  # of code that the case itself brings
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
    parser.add_argument("--fix", action="store_true")
    parser.add_argument("--findings", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--json", help="where outcomes are written; what is there is not run again")
    options = parser.parse_args()
    names = options.cases or list(CASES)
    _report(options, names, _outcomes(options, names))


def _outcomes(options, names):
    """{case: what was observed}."""
    import torch._dynamo  # noqa: F401 - once, ahead of the copies of this process

    file = Path(options.json) if options.json else None
    known = json.loads(file.read_text()) if file and file.exists() else {}
    lock = threading.Lock()

    def ask(name):
        if name not in known or "error" in known[name]:
            args = options.folder, name
            outcome = in_a_process(observed, *args, seconds=options.seconds)
        else:
            outcome = known[name]
        if options.fix and outcome.get("breaks") and "fixed" not in outcome:
            outcome["fixed"] = fixed(options.folder, name, outcome, options.seconds)
        with lock:
            known[name] = outcome
            if file:
                file.write_text(json.dumps(known, indent=0))

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(ask, names))
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
        entries = sorted({e for outcome in of for e in outcome.get("entries", ())})
        told = findings(root, entries)[0] if missed and entries else {}
        with_entries = compared(options.folder, repository, of, _joined(found, told))[0]
        totals.update(named=len(named), missed=len(missed), unbroken=len(unbroken))
        totals["with entries"] += len(with_entries)
        codes.update(r["code"] for rows in found.values() for r in rows)
        lines += sum(len(p.read_bytes().splitlines()) for p in Path(root).rglob("*.py"))
        seconds += took
        print(f"{repository}: {len(named)} of {len(named) + len(missed)} lines that break named")
        for (path, first, last), reason in sorted(missed.items()):
            known = "named with --entry" if (path, first, last) in with_entries else "missed"
            print(f"  {known} {path}:{first}: {reason[:110]}")
        quiet.update(code for _, _, code, _ in unbroken)
        for path, line, code, message in unbroken if options.findings else ():
            print(f"  nothing broke {path}:{line}: {code} {message[:100]}")
    all_lines = totals["named"] + totals["missed"]
    breaking = [n for n in ran if outcomes[n]["breaks"]]
    print(f"\n{len(ran)} modules ran, {len(breaking)} break; lines that break: {all_lines}")
    print(f"named: {totals['named']} ({totals['named'] / max(all_lines, 1):.0%})")
    share = totals["with entries"] / max(all_lines, 1)
    print(f"named where --entry says what is compiled: {totals['with entries']} ({share:.0%})")
    print(f"findings: {sum(codes.values())} {dict(codes.most_common())}")
    print(f"findings in functions that ran, at which nothing broke: {dict(quiet.most_common())}")
    print(f"{lines} lines in {seconds:.0f} s: {lines / max(seconds, 1e-9):.0f} lines/s")
    if options.fix:
        _report_fixes({n: outcomes[n]["fixed"] for n in breaking}, outcomes)


def _joined(found, others):
    return {path: [*found.get(path, ()), *others.get(path, ())] for path in {**found, **others}}


def _report_fixes(after, outcomes):
    """How many breaking modules are whole, equal and otherwise after the fixes."""
    print()
    kinds = Counter()
    for name, found in after.items():
        before = len(outcomes[name]["breaks"])
        if "error" in found:
            kind = f"does not run: {found['error']}"
        elif found["equal"] is not True:
            kind = f"other output: {found['equal']}"
        else:
            kind = "whole" if not found["breaks"] else f"{before} -> {len(found['breaks'])} breaks"
            kinds["more breaks"] += len(found["breaks"]) > before
        kinds[kind.split(":")[0] if "->" not in kind else "still breaks"] += 1
        print(f"{name}: {kind}")
        for path, line, reason in found.get("breaks", ()):
            print(f"  {path}:{line}: {reason[:100]}")
    print(f"after fixes, of {len(after)} that break: {dict(kinds)}")


if __name__ == "__main__":
    main()
