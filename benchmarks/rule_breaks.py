"""Graph breaks of each rule's documented example, before and after its fix, under torch.compile of
the installed torch: `python benchmarks/rule_breaks.py [CODE ...]` prints them and writes them, by
torch version, into the table that the linter's JSON and the tests read."""

import contextlib
import importlib.util
import inspect
import io
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
from dynfix.codemods.cli import side_by_side
from dynfix.codemods.rules import BY_CODE, RULES
from dynfix.codemods.rules.measured import PATH

SHAPES = (
    ((3,), torch.float32),
    ((4, 4), torch.float32),
    ((2, 3, 4), torch.float32),
    ((1,), torch.float32),
    ((3,), torch.int64),
    ((2, 2, 4, 4), torch.float32),
)
# Inputs, where a few shapes of floats are not what the example takes.
INPUTS = {
    "DYN201": lambda: (torch.rand(2, 8),),
    "DYN310": lambda: (torch.rand(3, requires_grad=True),),
    "DYN405": lambda: (torch.rand(3), {}),
    "DYN805": lambda: (torch.rand(2, 3, 8), torch.randint(0, 50, (2, 3))),
    "DYN804": lambda: (*(torch.rand(2, 4, 8) for _ in range(3)), torch.ones(4, 4)),
}
# About other things than a call: a run's facts, a comment, how torch.compile is used, other names.
WITHOUT = "DYN110 DYN304 DYN801 DYN802 DYN900 DYN901 DYN902 DYN903 DYN904".split()
ARGUMENTS = {"vocab_size": 50, "width": 8, "stride": 2}  # of constructors


def load(text):
    """The module of an example, with torch.compile as a mark alone."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "example.py")
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("example", path)
        module = importlib.util.module_from_spec(spec)
        compiled = torch.compile
        torch.compile = lambda f=None, *a, **k: (lambda g: g) if f is None else f
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                spec.loader.exec_module(module)
        finally:
            torch.compile = compiled
    return module


@contextlib.contextmanager
def elsewhere():
    """In a folder of its own: some examples write files."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)


def subject(module):
    """The module's last class of modules, made, or else its last function."""
    own = [v for v in vars(module).values() if getattr(v, "__module__", "") == module.__name__]
    classes = [v for v in own if inspect.isclass(v) and issubclass(v, torch.nn.Module)]
    if classes:
        torch.manual_seed(0)
        wanted = inspect.signature(classes[-1].__init__).parameters
        return classes[-1](**{n: ARGUMENTS[n] for n in wanted if n in ARGUMENTS})
    return [v for v in own if inspect.isfunction(v)][-1]


def inputs_for(code, module):
    """Inputs that the example runs with, or None."""
    if code in INPUTS:
        return INPUTS[code]()
    made = subject(module)
    function = made.forward if isinstance(made, torch.nn.Module) else made
    parameters = inspect.signature(function).parameters.values()
    wanted = [p for p in parameters if p.default is p.empty and p.kind == p.POSITIONAL_OR_KEYWORD]
    for shape, dtype in SHAPES:
        torch.manual_seed(0)
        args = tuple(torch.rand(shape).add(0.5).to(dtype) for _ in wanted)
        with contextlib.suppress(Exception), side_by_side._silence(), elsewhere():
            subject(module)(*args)
            return args
    return None


def breaks(code, text):
    """Graph breaks of an example; one where it raises when compiled alone; None where it cannot be
    run with plain tensors."""
    if code in WITHOUT:
        return None
    args = inputs_for(code, module := load(text))
    if args is None:
        return None
    try:
        with elsewhere():
            return side_by_side.count_breaks(subject(module), args)
    except Exception:
        return 1
    finally:
        torch._dynamo.reset()


def row(rule):
    """[breaks before, breaks after]; after is None where there is no fix."""
    return [breaks(rule.code, rule.before), breaks(rule.code, rule.after) if rule.after else None]


def main(codes):
    version = ".".join(torch.__version__.split(".")[:2])
    path = Path(PATH)
    table = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for rule in [BY_CODE[c] for c in codes] or RULES:
        table.setdefault(version, {})[rule.code] = row(rule)
        print(rule.code, *table[version][rule.code], flush=True)
    lines = (f'"{v}": {json.dumps(table[v], sort_keys=True)}' for v in sorted(table))
    path.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
