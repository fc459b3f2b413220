"""Gradients over the cases of a parity list: three calls of each case with gradients on, in eager
and compiled (graphs run as they are), outputs and gradients of parameters and inputs compared.

python benchmarks/parity_gradients.py FOLDER GENERATED LIST.json [FILE:INDEX ...]
FOLDER holds the corpus's load.py and run.py, GENERATED its modules. Prints one line a case that
differs, and the count.
"""

import json
import os
import sys
from typing import Any

import torch


def grown(result: Any, model: torch.nn.Module, given: Any) -> list[Any]:
    """Gradients of a result's float tensors with respect to parameters and inputs."""
    leaves = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
    leaves = [t for t in leaves if t.requires_grad and t.dtype.is_floating_point]
    targets = [p for p in model.parameters() if p.requires_grad]
    inputs = torch.utils._pytree.tree_leaves(given)
    targets += [t for t in inputs if isinstance(t, torch.Tensor) and t.requires_grad]
    if not leaves or not targets:
        return []
    total = sum((t * torch.linspace(0.5, 1, t.numel()).view(t.shape)).sum() for t in leaves)
    return list(torch.autograd.grad(total, targets, allow_unused=True))


def asking(given: Any) -> Any:
    """The inputs, with gradients asked of the float ones."""
    for tensor in torch.utils._pytree.tree_leaves(given):
        if isinstance(tensor, torch.Tensor) and tensor.dtype.is_floating_point:
            tensor.requires_grad_()
    return given


def judged(load: Any, run: Any, case: Any, compile: Any) -> str:
    """ "equal", "eager raises", or what differs first."""
    eager, model = load.build(case), load.build(case)
    model.load_state_dict(eager.state_dict())
    compiled = compile(model, backend=lambda gm, examples: gm)
    for turn, make in enumerate(run.variants(load, case)):
        given, again = make(), make()
        if given is None:
            continue
        for leave_grads in (asking, lambda x: x):
            try:
                load.seed(7)
                x = leave_grads(given)
                want = eager(*x[0], **x[1])
                wanted = grown(want, eager, x)
            except Exception:
                continue
            load.seed(7)
            y = leave_grads(again)
            got = compiled(*y[0], **y[1])
            try:
                close = {"rtol": 1e-4, "atol": 1e-4, "equal_nan": True}
                torch.testing.assert_close(got, want, **close)
                torch.testing.assert_close(grown(got, model, y), wanted, **close)
            except AssertionError as error:
                return f"call {turn + 1}: {str(error).splitlines()[0]}"
            except (TypeError, ValueError):  # objects that cannot be compared
                pass
            break
        else:
            if turn == 0:
                return "eager raises"
    return "equal"


def main() -> None:
    folder, generated, cases, *only = sys.argv[1:]
    sys.path.insert(0, folder)
    import dynfix
    import load

    import run

    load.prepare()
    torch.set_num_threads(1)
    counts: dict[str, int] = {}
    with open(cases, encoding="utf-8") as file:
        rows = [row for row in json.load(file) if row.get("ops")]
    for row in rows:
        name = f"{row['file']}:{row['idx']}"
        if only and name not in only:
            continue
        try:
            module, _ = load.load(os.path.join(generated, row["file"]))
            found = judged(load, run, module.TESTCASES[row["idx"]], dynfix.compile)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        kind = found if found in ("equal", "eager raises") else "other"
        counts[kind] = counts.get(kind, 0) + 1
        if kind == "other":
            print(f"{name} {row['cls']}: {found[:200]}", flush=True)
    print(counts)


if __name__ == "__main__":
    main()
