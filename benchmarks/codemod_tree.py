"""What `dynfix` does to a folder of real code: crashes, fixes, whether fixed files compile, a
second run, touched lines.

`python benchmarks/codemod_tree.py FOLDER [--unsafe-fixes] [--scope forward|compiled|all] [--jobs N]
[--list]`

Nothing is written. Every file is checked, fixed in memory, compiled, and fixed again. A changed
line counts as reported where it stands in a statement that a finding is in (findings that only an
earlier fix brings up are followed back to the original's lines); added imports are counted by
themselves; what is left is listed. The exit code is 1 where something crashed, did not compile or
changed twice."""

import argparse
import ast
import difflib
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from dynfix.codemods.cli import check, runner
from dynfix.codemods.cli.settings import Settings


@dataclass
class Row:
    """One file: `error` could not be read or parsed; `crash` is the tool's own; `elsewhere`:
    changed lines that no finding reports."""

    path: str
    error: str = ""
    crash: str = ""
    found: int = 0
    applied: Counter = field(default_factory=Counter)
    left: int = 0
    compiles: bool = True
    again: int = 0
    touched: int = 0
    imports: int = 0
    elsewhere: list = field(default_factory=list)


class Rounds:
    """Records the text before each round of fixes, and the fixes: in the place of
    `check.apply_fixes`."""

    def __init__(self):
        self.made, self.apply = [], check.apply_fixes

    def __call__(self, source, fixes):
        changed = self.apply(source, fixes)
        if changed is not None:
            self.made.append((source, list(fixes)))
        return changed


def examine(path, settings):
    """The Row of one file."""
    row = Row(path)
    try:
        with open(path, "rb") as stream:
            raw = stream.read()
        _examine(row, raw, settings)
    except Exception:
        row.crash = traceback.format_exc().strip()
    return row


def _examine(row, raw, settings):
    first = runner.handle(row.path, raw, settings, False)
    row.found = len(first.left)
    rounds = Rounds()
    check.apply_fixes = rounds
    try:
        result = runner.handle(row.path, raw, settings, True)
    finally:
        check.apply_fixes = rounds.apply
    if result.error:
        row.error = f"{result.error[1]}:{result.error[2]}: {result.error[0]}"
        return
    row.left = len(result.left)
    if result.raw is None:
        return
    row.applied = Counter(f.code for f in result.applied)
    row.compiles = _compiles(result.raw, row.path)
    again = runner.handle(row.path, result.raw, settings, True)
    row.again = len(again.applied) + (again.raw is not None) + (again.left != result.left)
    _lines(row, result, rounds.made)


def _compiles(raw, path):
    try:
        compile(raw, path, "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


# Which lines changed


def _lines(row, result, rounds):
    original, final = result.before.splitlines(), result.after.splitlines()
    reported = set()
    for source, fixes in rounds:
        spans = _statements(source, [f for f in result.applied if f.fix in fixes])
        reported |= _back(original, source.text.splitlines(), spans)
    for tag, a, b, c, d in _opcodes(original, final):
        new = final[c:d]
        imports = tag == "insert" and all(
            not line or line.startswith(("import ", "from ")) for line in new
        )
        row.touched += 0 if tag == "equal" else max(b - a, d - c)
        row.imports += (d - c) if imports else 0
        if tag != "equal" and not imports:
            lines = range(a, b) if a < b else ((a,) if a in reported else (a - 1,))
            row.elsewhere += [n + 1 for n in lines if n not in reported]


def _opcodes(first, second):
    """The differences, equal ends taken off first: they are most of the file."""
    head = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )
    tail, most = 0, min(len(first), len(second)) - head
    while tail < most and first[-1 - tail] == second[-1 - tail]:
        tail += 1
    inner = difflib.SequenceMatcher(
        None, first[head : len(first) - tail], second[head : len(second) - tail], autojunk=False
    )
    codes = [
        (tag, a + head, b + head, c + head, d + head) for tag, a, b, c, d in inner.get_opcodes()
    ]
    end, other = len(first) - tail, len(second) - tail
    return [("equal", 0, head, 0, head), *codes, ("equal", end, len(first), other, len(second))]


def _statements(source, findings):
    """The lines, from 0, of the innermost statements that the findings start in."""
    places = [(n.lineno, n.end_lineno) for n in ast.walk(source.tree) if isinstance(n, ast.stmt)]
    lines = set()
    for finding in findings:
        around = [(b - a, a, b) for a, b in places if a <= finding.line <= b]
        _, first, last = min(around, default=(0, finding.line, finding.end_line))
        lines.update(range(first - 1, max(last, finding.end_line)))
    return lines


def _back(original, now, lines):
    """The lines of the original that `lines` of a later text stand for."""
    found = set()
    for tag, a, b, c, d in _opcodes(original, now):
        if tag == "equal":
            found |= {a + n - c for n in lines if c <= n < d}
        elif any(c <= n < d for n in lines):
            found |= set(range(a, max(b, a + 1)))
    return found


# The report


def report(rows, seconds, listed):
    applied = sum((r.applied for r in rows), Counter())
    changed = [r for r in rows if r.applied]
    bad = [r for r in rows if r.crash or not r.compiles or r.again]
    print(
        f"{len(rows)} files in {seconds:.1f} s, {sum(bool(r.error) for r in rows)} not readable as"
        " Python"
    )
    print(f"crashes                    {sum(bool(r.crash) for r in rows)}")
    print(f"findings                   {sum(r.found for r in rows)}")
    print(
        f"fixed                      {applied.total()} in {len(changed)} files; left"
        f" {sum(r.left for r in rows)}"
    )
    print(f"fixed files that compile   {sum(r.compiles for r in changed)} of {len(changed)}")
    print(f"changed by a second run    {sum(bool(r.again) for r in changed)}")
    print(
        f"lines touched              {sum(r.touched for r in rows)}, of these imports"
        f" {sum(r.imports for r in rows)}"
    )
    print(
        f"  in no reported statement {sum(len(r.elsewhere) for r in rows)} in"
        f" {sum(bool(r.elsewhere) for r in rows)} files"
    )
    print("  " + ", ".join(f"{code} {n}" for code, n in applied.most_common()))
    for row in bad:
        what = row.crash or ("does not compile" if not row.compiles else "a second run changes it")
        print(f"{row.path}: {what}")
    for row in rows if listed else ():
        for line in row.elsewhere:
            print(f"{row.path}:{line}: touched, not reported")
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("--unsafe-fixes", action="store_true")
    parser.add_argument("--scope", default="forward")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument(
        "--list", action="store_true", help="name the lines that no finding reports"
    )
    options = parser.parse_args()
    settings = Settings(
        unsafe_fixes=options.unsafe_fixes, scope=options.scope, exclude=(), respect_gitignore=False
    )
    paths, _ = runner.files([options.folder], settings)
    start = time.perf_counter()
    with multiprocessing.Pool(options.jobs) as pool:
        rows = pool.map(partial(examine, settings=settings), paths, chunksize=4)
    return report(rows, time.perf_counter() - start, options.list)


if __name__ == "__main__":
    sys.exit(main())
