"""Every module of torch's table, compiled and in eager: results, gradients of inputs and
parameters, buffers afterwards.

python -m tests.operators.modules [--dtype float32] [--dynamic] [--out found.jsonl] [names]
"""

import argparse
import copy
import functools
import json
import time
import warnings

import dynfix
import torch
from dynfix.runtime import diagnostics
from torch.utils._pytree import tree_map

from . import op_tables  # noqa: F401  (torch's tables need its stand-in for a missing package)
from .compare import CALLS, JUDGED, OPTIONS, copied, differences, no_worse, run, why_eager


@functools.cache
def modules():
    """Name -> ModuleInfo."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_modules import module_db
    return {info.name: info for info in module_db}


class _Called:
    """A module whose call is a function of its inputs and of its state."""

    def __init__(self, module, inputs, dtype=None, compiled=None):
        self.module = module if dtype is None else module.to(dtype)
        self.call, self.inputs, self.dtype = compiled or module, inputs, dtype

    def state(self):
        return [*self.module.parameters(), *self.module.buffers()]

    def run(self, turn, gradients):
        """(result, gradients, inputs and state afterwards) or the exception, and the inputs."""
        args = copied((self.inputs.args, self.inputs.kwargs))
        args = (*(tree_map(self._cast, args) if self.dtype else args), self.state())

        def called(args, kwargs, state):
            return self.call(*args, **kwargs)

        return run(called, args, turn, gradients), args

    def _cast(self, leaf):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf.detach().to(self.dtype).requires_grad_(leaf.requires_grad)
        return leaf


def compare(module, inputs, gradients, dynamic=None):
    """(what differs, why nothing was compiled) over `CALLS` calls with fresh inputs."""
    diagnostics.reset()
    module = copy.deepcopy(module)
    theirs, exact = _Called(copy.deepcopy(module), inputs), None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = copy.deepcopy(module)
        compiled = dynfix.compile(module, dynamic=dynamic, options=OPTIONS)
        ours = _Called(module, inputs, compiled=compiled)
        for turn in range(CALLS):
            (one, given), (two, other) = ours.run(turn, gradients), theirs.run(turn, gradients)
            found = [f"call {turn}: {text}" for text in differences(one, two, given, other)]
            if found or isinstance(two, Exception):
                break
    if found:
        wide = _Called(before, inputs, torch.float64)
        for number in range(turn + 1):
            exact, _ = wide.run(number, gradients)
        more = [
            [each.run(number, gradients)[0] for each in (ours, theirs, wide)]
            for number in range(CALLS, CALLS + JUDGED)
        ]
        found = [] if no_worse([(one, two, exact), *more]) else found
    return found, why_eager(compiled, caught, isinstance(two, Exception))


def check(name, dtype=torch.float32, training=True, dynamic=None, most=None, device="cpu"):
    """What differs for the samples of one module, and what was not compiled."""
    info = modules()[name]
    if dtype not in info.dtypes and dtype.is_floating_point is False:
        return None
    torch.manual_seed(0)
    given = info.module_inputs_func(
        info, device=device, dtype=dtype, requires_grad=True, training=training
    )
    found, eager = [], []
    for number, sample in enumerate(given[:most]):
        made = _made(info, sample, dtype, device).train(training)
        texts, why = compare(made, sample.forward_input, True, dynamic)
        found += [f"sample {number} {sample.desc}: {text}" for text in texts]
        eager += [why] if why else []
    return {"samples": len(given[:most]), "differences": found, "eager": sorted(set(eager))}


def _made(info, sample, dtype, device):
    torch.manual_seed(0)
    given = sample.constructor_input
    module = info.module_cls(*given.args, **given.kwargs).to(device, dtype)
    if info.is_lazy:
        module(*sample.forward_input.args, **sample.forward_input.kwargs)
    return module


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--most", type=int)
    parser.add_argument("--out", default="module_db.jsonl")
    given = parser.parse_args()
    with open(given.out, "a") as out:
        for name in given.names or modules():
            for training in (True, False) if modules()[name].train_and_eval_differ else (True,):
                start = time.monotonic()
                try:
                    dtype = getattr(torch, given.dtype)
                    made = check(name, dtype, training, given.dynamic or None, given.most)
                except Exception as error:
                    made = {"samples": 0, "differences": [], "error": f"{error!r}"[:300]}
                made = {"name": name, "training": training, **(made or {"samples": 0})}
                out.write(json.dumps({**made, "seconds": time.monotonic() - start}) + "\n")
                out.flush()
                torch._dynamo.reset()


if __name__ == "__main__":
    main()
