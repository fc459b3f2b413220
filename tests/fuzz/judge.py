"""Graphs compiled and in eager: values, types, layouts, aliases, writes, gradients, errors."""

import gc
import importlib.util
import itertools
import tempfile
import warnings
from pathlib import Path

import dynfix
import torch
from dynfix.rewriter import frontend
from dynfix.runtime import report
from torch.nn import functional as F

from .graphs import CALLS, widened

NOISE = 2.0**-22
_numbers = itertools.count()
_folder = tempfile.TemporaryDirectory(prefix="dynfix-fuzz-", ignore_cleanup_errors=True)


def loaded(text):
    """The functions of a source text, which they need in a file."""
    file = Path(_folder.name, f"graphs{next(_numbers)}.py")
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    module.__dict__.update(torch=torch, F=F)
    spec.loader.exec_module(module)
    return module


def source(graphs):
    """One function `call` that runs all the graphs, each with inputs of its own."""
    parts, calls, names = [], [], []
    for number, graph in enumerate(graphs):
        own = [f"g{number}_{name}" for name, _ in graph.inputs]
        parts.append(graph.text(f"g{number}"))
        calls.append(f"g{number}({', '.join(own)})")
        names += own
    return "\n".join(parts) + f"\ndef call({', '.join(names)}):\n    return [{', '.join(calls)}]\n"


class Run:
    """What one call did: results and gradients by graph, arguments afterwards, or the error."""

    def __init__(self, call, graphs, turn, double=False, noise=0.0):
        given = [list(g.make_inputs(turn, double, noise).values()) for g in graphs]
        self.results = self.gradients = [[] for _ in graphs]
        self.inputs, self.error = given, None
        torch.manual_seed(turn)
        try:
            self.results = call(*itertools.chain(*given))
            self.gradients = self._gradients(graphs)
        except Exception as error:
            self.error = error

    def _gradients(self, graphs):
        roots, wanted = [], []
        for graph, results, inputs in zip(graphs, self.results, self.inputs, strict=True):
            roots += [t for t in results if graph.gradients and t.requires_grad]
            wanted.append([t for t in inputs if graph.gradients and t.requires_grad and t.is_leaf])
        flat = list(itertools.chain(*wanted))
        if not roots or not flat:
            return [[] for _ in graphs]
        generator = torch.Generator().manual_seed(7)
        seeds = [torch.randn(t.shape, generator=generator).to(t.dtype) for t in roots]
        found = iter(torch.autograd.grad(roots, flat, seeds, allow_unused=True))
        return [[next(found) for _ in part] for part in wanted]


def quietly(function, *args, **kwargs):
    """What the function gives, its warnings unseen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


def usable(graph):
    """Whether eager differentiates the graph in every call, or raises in one if it should."""
    call = loaded(source([graph])).call
    errors = [quietly(Run, call, [graph], turn).error for turn in range(CALLS)]
    return any(errors) if graph.raises else not any(errors)


def differences(graphs, dynamic, backend="native"):
    """(number of the graph, call, what differs) of graphs compiled together; and what `served` says
    of the function."""
    module = loaded(source(graphs))
    report.reset()
    torch._dynamo.reset()
    gc.collect()
    gc.freeze()  # what is left stays: to go through it again for each graph takes a third of all
    before = set(frontend._live)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = dynfix.compile(module.call, dynamic=dynamic, backend=backend)
        found = []
        for turn in range(CALLS):
            ours, theirs = Run(compiled, graphs, turn), Run(module.call, graphs, turn)
            found += [(n, turn, text) for n, text in _compared(ours, theirs, graphs, turn)]
            if found:
                break
    return found, served(compiled._dynfix_entry, set(frontend._live) - before)


def served(function, functions):
    """What served calls after the ones that were recorded: "whole", a program of the function;
    "parts", programs of parts that it was cut into; "eager"."""
    if _hits(function):
        return "whole"
    return "parts" if any(map(_hits, functions)) else "eager"


def _hits(function):
    return sum(entry.hits for entry in function._dispatcher.entries)


def _compared(ours, theirs, graphs, turn):
    if type(ours.error) is not type(theirs.error):
        yield -1, f"{_shown(ours.error)} instead of {_shown(theirs.error)}"
        return
    for number, graph in enumerate(graphs):
        judge = _Judge(graph, turn)
        parts = ("results", "gradients", "inputs")
        for part in parts[2:] if theirs.error else parts:
            yield from (
                (number, f"{part} {text}")
                for text in judge.lists(
                    part, getattr(ours, part)[number], getattr(theirs, part)[number]
                )
            )
        if theirs.error is None:
            one, two = (_shared(run.results[number], run.inputs[number]) for run in (ours, theirs))
            if one != two:
                yield number, f"aliases {one} instead of {two}"


def _shown(error):
    return "no error" if error is None else f"{type(error).__name__}: {str(error)[:200]}"


def _shared(results, inputs):
    """For each result the first input or earlier result whose memory it shares, and where."""
    seen, found = list(inputs), []
    for tensor in results:
        place = next((n for n, other in enumerate(seen) if _overlapping(tensor, other)), None)
        found.append((place, tensor.storage_offset() if place is not None else None))
        seen.append(tensor)
    return found


def _overlapping(a, b):
    pointer = a.untyped_storage().data_ptr()
    return pointer != 0 and pointer == b.untyped_storage().data_ptr()


class _Judge:
    """Compares one graph's tensors with eager's; float64 decides where bits differ."""

    def __init__(self, graph, turn):
        self.graph, self.turn = graph, turn
        self.known = {}

    def run(self, **how):
        key = tuple(how.items())
        if key not in self.known:
            text = source([self.graph])
            text = widened(text) if how.get("double") else text
            self.known[key] = Run(loaded(text).call, [self.graph], self.turn, **how)
        return self.known[key]

    def lists(self, part, ours, theirs):
        if len(ours) != len(theirs):
            yield f"{len(ours)} instead of {len(theirs)}"
            return
        for place, (one, two) in enumerate(zip(ours, theirs, strict=True)):
            if (one is None) != (two is None):
                yield f"{place}: {'None' if one is None else 'a tensor'}, unlike eager"
            elif one is not None:
                yield from (f"{place}: {text}" for text in self.tensors(part, place, one, two))

    def tensors(self, part, place, one, two):
        names = (
            ("dtype", "shape", "requires_grad", "is_leaf") if part != "gradients" else ("dtype",)
        )
        for name in (*names, "shape"):
            if _asked(one, name) != _asked(two, name):
                yield f"{name} {_asked(one, name)} instead of {_asked(two, name)}"
                return
        if part != "gradients" and two.numel() > 1 and _steps(one) != _steps(two):
            yield f"strides {one.stride()} instead of {two.stride()}"
        one, two = one.detach().resolve_conj(), two.detach().resolve_conj()
        if not torch.allclose(one, two, rtol=0, atol=0, equal_nan=True):
            yield from self.values(part, place, one, two)

    def values(self, part, place, one, two):
        if not (one.is_floating_point() or one.is_complex()):
            yield f"{int((one != two).sum())} of {one.numel()} elements differ"
            return
        if not torch.equal(one.isnan(), two.isnan()):
            yield "NaN in other places"
            return
        error, allowed = self.error(part, place, one, two)
        if not error <= allowed:
            yield f"error {error:.3g}, allowed {allowed:.3g}"

    def error(self, part, place, one, two):
        """Our largest error and what is allowed: twice eager's, or what an input's last bit
        makes."""
        wide = self.run(double=True)
        wide = getattr(wide, part)[0] if wide.error is None else []
        noisy = [self.run(noise=noise) for noise in (NOISE, -NOISE)]
        noisy = [getattr(run, part)[0][place] for run in noisy if run.error is None]
        exact = _wide(wide[place] if len(wide) > place and wide[place] is not None else two)
        if exact.shape != two.shape:
            exact = _wide(two)
        scale = _most(exact)
        step = torch.finfo(one.dtype).eps
        spread = max([_most(_wide(t.detach()) - _wide(two)) for t in noisy], default=0.0)
        allowed = 2 * _most(_wide(two) - exact) + spread + 4 * step * scale + 1e-30
        return _most(_wide(one) - exact), allowed


def _asked(tensor, name):
    """The attribute, or the kind of error: a view of a tensor that was written may not be asked."""
    try:
        return getattr(tensor, name)
    except RuntimeError as error:
        return type(error)


def _wide(tensor):
    tensor = tensor.detach().resolve_conj()
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _most(tensor):
    """The largest finite magnitude."""
    sizes = tensor.abs()
    sizes = sizes[sizes.isfinite()]
    return float(sizes.max()) if sizes.numel() else 0.0


def _steps(tensor):
    return [s for s, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]
