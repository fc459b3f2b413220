"""Programs of a file (`=== name`, `entry:`, `args:`, `---`, source) through the compiler, counted
from outside: one graph and nothing else at the second call, results equal over three calls.

python benchmarks/parity_programs.py FOLDER PROGRAMS.txt
FOLDER holds counting.py. Prints one line a program that is not one graph, or is wrong.
"""

import contextlib
import importlib.util
import io
import os
import random
import sys
import tempfile
from typing import Any

import numpy
import torch


def parsed(path: str) -> list[tuple[str, str, str, str]]:
    """(name, entry, arguments, source) of each program."""
    with open(path, encoding="utf-8") as file:
        parts = file.read().split("=== ")[1:]
    found = []
    for part in parts:
        head, source = part.split("\n---\n", 1)
        name, *fields = head.splitlines()
        given = dict(field.split(": ", 1) for field in fields if ": " in field)
        found.append((name, given["entry"], given["args"], source))
    return found


def loaded(folder: str, name: str, source: str) -> Any:
    path = os.path.join(folder, f"{name}.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def made(module: Any, text: str) -> Any:
    torch.manual_seed(0)
    return eval(text, {"torch": torch, **vars(module)})


def seed() -> None:
    torch.manual_seed(7)
    random.seed(7)
    numpy.random.seed(7)


def negated(args: Any) -> Any:
    """The arguments with other numbers."""
    change = lambda t: -t if isinstance(t, torch.Tensor) and t.is_floating_point() else t  # noqa: E731
    return torch.utils._pytree.tree_map(change, args)


def judged(module: Any, entry: str, args: str, counting: Any, compile: Any) -> str:
    eager, model, backend = made(module, entry), made(module, entry), counting.Counting()
    eager = getattr(eager, "_torchdynamo_orig_callable", eager)  # of @torch.compile
    compiled, kept = compile(model, backend=backend), ""
    for turn in range(3):
        x, y = made(module, args), made(module, args)
        x, y = (negated(x), negated(y)) if turn == 2 else (x, y)
        seed()
        try:
            want = eager(*x)
        except Exception:
            if not turn:
                raise
            continue
        before = backend.calls
        seed()
        got, loose = counting.outside(lambda y=y: compiled(*y))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)
        if turn == 1 and (backend.calls - before != 1 or loose):
            kept = f"{backend.calls - before} graphs, outside: {sorted(set(loose))[:4]}"
    return kept


def main() -> None:
    folder, programs = sys.argv[1:]
    sys.path.insert(0, folder)
    import counting
    import dynfix

    whole = every = 0
    with tempfile.TemporaryDirectory() as written:
        for name, entry, args, source in parsed(programs):
            every += 1
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    found = judged(
                        loaded(written, name, source), entry, args, counting, dynfix.compile
                    )
            except Exception as error:
                found = f"{type(error).__name__}: {str(error)[:100]}"
            whole += not found
            if found:
                print(f"{name}: {found}", flush=True)
    print(f"one graph: {whole} of {every}")


if __name__ == "__main__":
    main()
