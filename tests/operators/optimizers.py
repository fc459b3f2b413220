"""Every optimizer of torch's table: steps compiled and in eager, parameters and state compared.

python -m tests.operators.optimizers [names]
"""

import argparse
import functools
import sys
import time
import warnings

import dynfix
import torch
from dynfix.runtime import diagnostics

from . import op_tables  # noqa: F401  (torch's tables need its stand-in for a missing package)

STEPS = 7
SHAPES = ((4, 3), (3, 3), (5, 2))
# Reads its gradients' layout on the host, or calls back for the loss.
CLOSURES = ("LBFGS",)
SPARSE = ("SparseAdam",)


@functools.cache
def optimizers():
    """Name -> OptimizerInfo."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_optimizers import optim_db
    return {info.name: info for info in optim_db}


def variants(info):
    """(what it is, keyword arguments) of each of the table's inputs and implementations."""
    for given in info.optim_inputs_func(device="cpu"):
        ways = {"loop": {}} if not info.supported_impls else {"loop": {"foreach": False}}
        for way in ("foreach", "fused"):
            if way in info.supported_impls and not _refused(way, given.kwargs):
                ways[way] = {way: True}
        for way, more in ways.items():
            yield f"{given.desc}, {way}", {**given.kwargs, **more}


def _refused(way, kwargs):
    return way == "foreach" and isinstance(kwargs.get("lr"), torch.Tensor)


class _Trained:
    """Parameters, their optimizer, and gradients that are the same for each of a kind."""

    def __init__(self, info, kwargs):
        generator = torch.Generator().manual_seed(0)
        made = [torch.randn(shape, generator=generator) for shape in SHAPES]
        self.parameters = [torch.nn.Parameter(value) for value in made]
        kwargs = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
        self.optimizer = info.optim_cls(self.parameters, **kwargs)
        self.sparse = info.name in SPARSE
        self.closure = self.loss if info.name in CLOSURES else None

    def loss(self):
        self.optimizer.zero_grad()
        total = sum(((p - 0.1) ** 2).sum() for p in self.parameters)
        total.backward()
        return total

    def give(self, number):
        """The gradients of step `number`."""
        generator = torch.Generator().manual_seed(number)
        for parameter in self.parameters:
            grad = torch.randn(parameter.shape, generator=generator)
            parameter.grad = grad.to_sparse() if self.sparse else grad

    def state(self):
        held = [self.optimizer.state[p] for p in self.parameters]
        tensors = {f"p{n}": p.detach() for n, p in enumerate(self.parameters)}
        for number, entry in enumerate(held):
            tensors |= {f"{k} of p{number}": v for k, v in entry.items()}
        return tensors


def check(info, kwargs):
    """(what differs, calls that a program served) of one optimizer."""
    diagnostics.reset()
    ours, theirs = _Trained(info, kwargs), _Trained(info, kwargs)
    arguments = [] if ours.closure is None else [ours.closure]
    step = dynfix.compile(ours.optimizer.step)
    found = []
    for number in range(STEPS):
        for each in (ours, theirs):
            each.give(number)
            if number == STEPS - 2 and not isinstance(
                each.optimizer.param_groups[0]["lr"], torch.Tensor
            ):
                each.optimizer.param_groups[0]["lr"] *= 0.5
        step(*arguments)
        theirs.optimizer.step(*([theirs.closure] if arguments else []))
        found += [f"step {number}: {text}" for text in _differences(ours.state(), theirs.state())]
        if found:
            break
    entries = step._dynfix_entry._dispatcher.entries
    return found, sum(entry.hits for entry in entries)


def _differences(ours, theirs):
    if ours.keys() != theirs.keys():
        yield f"state {sorted(ours)} instead of {sorted(theirs)}"
        return
    for name, value in ours.items():
        other = theirs[name]
        if isinstance(other, torch.Tensor):
            try:
                torch.testing.assert_close(value, other)
            except AssertionError as error:
                yield f"{name}: {' '.join(str(error).split())[:150]}"
        elif isinstance(other, int | float) and value != other:
            yield f"{name}: {value} instead of {other}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    for name, info in optimizers().items():
        if given.names and name not in given.names:
            continue
        for what, kwargs in variants(info):
            start = time.process_time()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    found, served = check(info, kwargs)
                except Exception as error:
                    found, served = [f"{error!r}"[:300]], 0
            why = {str(w.message)[:160] for w in caught if "eager" in str(w.message)}
            seconds = time.process_time() - start
            print(f"{name}: {what}: {found or 'same'}, {served} served, {seconds:.1f} s", *why)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
