"""The programs of `programs/*.txt`, written to break the codemod: what each shows when it runs.

A case: `=== name`, `entry:`, `args:` (one call each), perhaps `post:` (run after the call), `crlf:`,
then `---` and the source."""

import contextlib
import io
import linecache
import logging
import random
import re
import sys
import types
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch

from .random_programs import one_value

FOLDER = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Case:
    name: str
    head: tuple
    source: str

    def all(self, key, default=()):
        return [v for k, v in self.head if k == key] or list(default)


def cases(kind):
    """The Cases of a file, in order."""
    found = []
    for chunk in re.split(r"(?m)^=== ", (FOLDER / f"{kind}.txt").read_text(encoding="utf-8"))[1:]:
        head, _, source = chunk.partition("\n---\n")
        name, *lines = head.split("\n")
        pairs = tuple(tuple(p.strip() for p in line.split(":", 1)) for line in lines if ":" in line)
        case = Case(name.strip(), pairs, source)
        text = source.replace("\n", "\r\n") if case.all("crlf") else source
        found.append(Case(case.name, pairs, text))
    return found


def calls(case):
    """(entry, arguments, whether inputs ask for gradients) of every call of a case."""
    modes = (False,) if case.all("nograd") else (False, True)
    return [
        (entry, args, grad)
        for entry in case.all("entry")
        for args in case.all("args", ["()"])
        for grad in modes
    ]


def shown(case, source, entry, args, grad):
    """A dict of all that one call shows in eager."""
    told, errors = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(errors)
    logging.getLogger().addHandler(handler)
    compile_ = torch.compile
    torch.compile = lambda model=None, **_: model if model is not None else lambda m: m
    try:
        with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(told):
            warnings.simplefilter("always")
            torch.set_warn_always(True)
            found = _called(case, source, entry, args, grad)
    finally:
        torch.compile = compile_
        torch.set_warn_always(False)
        logging.getLogger().removeHandler(handler)
    found["told"] = told.getvalue(), errors.getvalue()
    found["warned"] = sorted(str(w.message)[:100] for w in warned)
    return found


def _called(case, source, entry, args, grad):
    _seed(0)
    module = types.ModuleType(f"written_{case.name}")
    sys.modules[module.__name__] = module
    name = f"<{case.name}>"
    linecache.cache[name] = len(source), None, source.splitlines(True), name
    exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)
    space = {**vars(module), "torch": torch}
    call = eval(entry, space)
    _seed(1)
    given = eval(args, space)
    given = given if isinstance(given, tuple) else (given,)
    for tensor in given if grad else ():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            tensor.requires_grad_()
    _seed(2)
    found = _ran(case, call, given, module)
    found |= {f"global {k}": _values(v) for k, v in vars(module).items() if _plain(k, v)}
    found["drawn"] = torch.get_rng_state().sum().item(), random.getstate()[1][:3]
    return found


def _ran(case, call, given, module):
    found = {}
    try:
        out = call(*given)
        out = list(out) if isinstance(out, types.GeneratorType) else _awaited(out)
        for text in case.all("post"):
            exec(text, {"out": out, "args": given, "f": call, "torch": torch, "mod": module})
        found["out"] = _values(out)
        _backward(out)
    except Exception as error:
        found["error"] = type(error).__name__, str(error).split("\n")[0]
    if isinstance(call, torch.nn.Module):
        found["state"] = [_values([p, p.grad]) for p in call.parameters()]
        found["buffers"] = [_values(b) for b in call.buffers()]
        found["attributes"] = {k: _values(v) for k, v in vars(call).items() if k[0] != "_"}
    found["given"] = [_values([t, getattr(t, "grad", None)]) for t in given]
    return found


def _awaited(out):
    if not hasattr(out, "__await__"):
        return out
    import asyncio

    return asyncio.run(out)


def _backward(out):
    tensors = [t for t in _tensors(out) if t.requires_grad and t.is_floating_point()]
    if tensors:
        sum((t * 3).sum() for t in tensors).backward()


def _tensors(out):
    if isinstance(out, torch.Tensor):
        return [out] if out.layout == torch.strided else []
    parts = out.values() if isinstance(out, dict) else out
    return [t for p in parts for t in _tensors(p)] if isinstance(out, (list, tuple, dict)) else []


def _values(value):
    if isinstance(value, torch.Tensor):
        return one_value(value)
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [_values(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _values(v) for k, v in value.items()}
    return re.sub(r"0x[0-9a-f]+", "0x", repr(value))[:300]


def _plain(name, value):
    kinds = (types.ModuleType, type, types.FunctionType)
    return not name.startswith("__") and not isinstance(value, kinds)


def _seed(number):
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)
