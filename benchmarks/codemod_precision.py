"""How often the codemod is right about what is a tensor: its findings from text alone, against what
a run shows.

`python benchmarks/codemod_precision.py HARNESS.py LIBRARY SCRATCH [--models LIST.txt] [--minutes 7]
[--draw 100] [--seed 0]`

HARNESS.py builds tiny models (see codemod_census.py), LIBRARY is the folder of the installed
transformers. Models are taken in an order drawn at random from the library's own table of base
models (or from LIST.txt), those alone whose folder has a finding, and each is run in eager under
the tracer until the minutes are over. Findings are those of `dynfix --check --scope forward`,
without the trace. What a finding calls tensors are the outermost expressions in its span that the
inference holds to be tensors; it is confirmed where each of them that was evaluated was a tensor
(or None at times), and refuted where one was not. Expressions that were never evaluated are counted
apart, and so are findings that say nothing of a tensor (prints, log calls)."""

import argparse
import ast
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import codemod_census as census
from dynfix.codemods.analysis.captured_walk import Walk
from dynfix.codemods.analysis.file_context import FileContext
from dynfix.codemods.cli import check, runner
from dynfix.codemods.cli.settings import Settings
from dynfix.codemods.trace import trace_facts
from dynfix.rewriter.source.source_file import SourceFile

_SEEN = (ast.Call, ast.Compare, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Subscript)
ANSWERS = ("confirmed", "refuted", "several kinds", "not reached")


@dataclass(frozen=True)
class Claim:
    """A finding, the function it stands in, the texts of what it calls tensors, and of what is
    evaluated only where the finding's code runs."""

    finding: object
    function: str
    tensors: tuple
    whole: tuple


# What the findings say


def claims(path, settings):
    """The Claims of one file."""
    source = SourceFile.from_bytes(Path(path).read_bytes(), path)
    found = check.findings(source, settings)
    if not found:
        return []
    context = FileContext(source, settings)
    walk = Walk(context, {})
    for function in sorted(context.program.captured(settings.scope), key=lambda f: f.node.lineno):
        walk.function(function)
    return [claim for claim in (_claim(f, context) for f in found) if claim]


def _claim(finding, context):
    source, names = context.source, trace_facts.qualified(context.source.tree)
    start, end = (finding.line, finding.column), (finding.end_line, finding.end_column)
    for node in context.parents:
        if getattr(node, "lineno", 0) == finding.line and isinstance(node, (ast.expr, ast.stmt)):
            first = node.lineno, source.column(node.lineno, node.col_offset)
            if (first, (node.end_lineno, source.column(node.end_lineno, node.end_col_offset))) == (
                start,
                end,
            ):
                return Claim(
                    finding,
                    _around(node, context, names),
                    tuple(_tensors(node, context)),
                    tuple(_own(node)),
                )
    return None


def _around(node, context, names):
    """The qualified name of the innermost function, as a trace names it."""
    while node is not None and node not in names:
        node = context.parent(node)
    return names.get(node, "")


def _own(node):
    """The whole, where a trace sees such expressions; else what in it is more than a name, which
    stands elsewhere as well."""
    node = node.value if isinstance(node, ast.Expr) else node
    inner = [
        n
        for n in ast.walk(node)
        if isinstance(n, _SEEN) and any(isinstance(m, ast.Name) for m in ast.walk(n))
    ]
    return [ast.unparse(n) for n in ([node] if node in inner else inner)]


def _tensors(node, context):
    if isinstance(node, ast.expr) and context.kind(node).is_tensor:
        yield ast.unparse(node)
        return
    for child in ast.iter_child_nodes(node):
        if not isinstance(
            child, (ast.Lambda, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
        ):
            yield from _tensors(child, context)


# What the runs show


def judge(claim, entry):
    """One of ANSWERS; for a claim without tensors "ran" or "did not run"."""
    facts = {text: fact for function, text, fact in entry["facts"] if function == claim.function}
    ran = any(text in facts for text in claim.whole)
    if not claim.tensors:
        return "ran" if ran else "did not run"
    seen = [facts[text] for text in claim.tensors if ran and text in facts]
    seen = [
        fact for fact in seen if fact is None or fact[0] != "none"
    ]  # None tells nothing of what else it may be
    if not seen:
        return "not reached"
    if None in seen:
        return "several kinds"
    return "confirmed" if all(fact[0] == "tensor" for fact in seen) else "refuted"


def table_of_models(library):
    """{class name: folder} of the base models, by the library's own tables."""
    tree = ast.parse((library / "models/auto/modeling_auto.py").read_text())
    for statement in tree.body:
        if (
            isinstance(statement, ast.Assign)
            and ast.unparse(statement.targets[0]) == "MODEL_MAPPING_NAMES"
        ):
            pairs = ast.literal_eval(statement.value.args[0])
            return {
                n: kind
                for kind, names in pairs
                for n in ([names] if isinstance(names, str) else names)
            }
    raise SystemExit("the library has no MODEL_MAPPING_NAMES")


def chosen(options, library, folders):
    """The models in the order in which they are run."""
    table = table_of_models(library)
    names = Path(options.models).read_text().split() if options.models else list(table)
    names = [n for n in names if n not in table or table[n].replace("-", "_") in folders]
    return random.Random(options.seed).sample(names, len(names))


def child(options):
    """In the traced process: the models named, one after the other, until the time is over; the
    names of those that ran."""
    module, found = census.harness(options.harness)
    module.torch._dynamo.explain = census._refuse
    signal.signal(signal.SIGALRM, _late)
    ran = []
    for model in options.child.split(","):
        found.clear()
        signal.alarm(int(min(options.seconds, max(1, options.until - time.time()))))
        try:
            module.child(model, options.out, False)
        except _Late:
            print(f"{model}: out of time", file=sys.stderr)
        finally:
            signal.alarm(0)
        ran += [model] if found else []
        if time.time() > options.until:
            break
    Path(options.out).write_text(json.dumps(ran))


class _Late(BaseException):
    """A model takes too long."""


def _late(signum, frame):
    raise _Late


def run(options, models, number, listed, scratch, until):
    """(the models that ran, their traced facts) of some models, in one process."""
    out, ran = scratch / f"facts_{number}.json", scratch / f"ran_{number}.json"
    trace = [
        sys.executable,
        "-m",
        "dynfix.codemods.trace.traced_run",
        str(listed),
        str(out),
        os.path.abspath(__file__),
    ]
    own = [
        options.harness,
        "-",
        "-",
        "--child",
        ",".join(models),
        "--out",
        str(ran),
        "--until",
        str(until),
    ]
    folders = [
        str(Path(options.library).resolve().parent),
        str(Path(__file__).parent),
        os.environ.get("PYTHONPATH", ""),
    ]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    if not (out.exists() and ran.exists()):
        done = subprocess.run(
            [*trace, *own, "--seconds", str(options.seconds)],
            env=env,
            capture_output=True,
            text=True,
        )
    if not (out.exists() and ran.exists()):
        print(
            f"models {models[0]} to {models[-1]}: {(done.stderr.strip().splitlines() or [''])[-1]}"
        )
        return [], {}
    return json.loads(ran.read_text()), json.loads(out.read_text())


# The report


def report(title, judged):
    counts = Counter(answer for _, answer in judged)
    reached = counts["confirmed"] + counts["refuted"] + counts["several kinds"]
    share = f" = {counts['confirmed'] / reached:.1%} of {reached} reached" if reached else ""
    print(f"{title}: " + ", ".join(f"{counts[a]} {a}" for a in ANSWERS) + share)


def by_code(judged):
    codes = sorted({c.finding.code for c, _ in judged})
    for code in codes:
        counts = Counter(answer for c, answer in judged if c.finding.code == code)
        print(f"  {code}  " + ", ".join(f"{n} {a}" for a, n in counts.most_common()))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("harness", "library", "scratch"):
        parser.add_argument(name)
    parser.add_argument("--models", default="")
    parser.add_argument("--minutes", type=float, default=7)
    parser.add_argument("--seconds", type=float, default=40, help="for one model")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--draw", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="name what was not confirmed")
    for hidden in ("--child", "--out"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    return child(options) if options.child else measure(options)


def measure(options):
    library, scratch = Path(options.library).resolve(), Path(options.scratch).resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    settings = Settings(exclude=(), scope="forward", respect_gitignore=False)
    paths, _ = runner.files([str(library)], settings)
    every = {path: found for path in paths if (found := claims(path, settings))}
    listed = scratch / "paths.json"
    listed.write_text(json.dumps([os.path.realpath(p) for p in every]))
    models = chosen(options, library, {Path(p).parent.name for p in every})
    facts, ran = observed(options, models, listed, scratch)
    print(
        f"{ran} models ran; findings of the {len(facts)} files of which something ran in a module's"
        " call"
    )
    compare(options, every, facts)


def observed(options, models, listed, scratch):
    """(the joined facts of the files of which something was captured, how many models ran)."""
    until, facts, ran = time.time() + 60 * options.minutes, {}, []
    parts = [models[i :: options.jobs] for i in range(options.jobs)]
    with ThreadPoolExecutor(options.jobs) as pool:
        for names, found in pool.map(
            lambda i: run(options, parts[i], i, listed, scratch, until), range(options.jobs)
        ):
            ran += names
            facts = census.merged(facts, {p: e for p, e in found.items() if e["captured"]})
    return facts, len(ran)


def compare(options, every, facts):
    judged = [
        (c, judge(c, facts[os.path.realpath(p)]))
        for p, cs in every.items()
        if os.path.realpath(p) in facts
        for c in cs
    ]
    tensors, silent = [j for j in judged if j[0].tensors], [j for j in judged if not j[0].tensors]
    drawn = random.Random(options.seed).sample(tensors, min(options.draw, len(tensors)))
    report(f"{len(drawn)} drawn at random", drawn)
    report(f"all {len(tensors)} that call something a tensor", tensors)
    by_code(tensors)
    ran = Counter(answer for _, answer in silent)
    print(
        f"{len(silent)} that call nothing a tensor: {ran['ran']} ran under a module's call,"
        f" {ran['did not run']} did not"
    )
    for claim, answer in tensors if options.list else ():
        if answer in ("refuted", "several kinds"):
            print(f"{answer}: {claim.finding.place} {claim.finding.code} {claim.tensors}")


if __name__ == "__main__":
    sys.exit(main())
