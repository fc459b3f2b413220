"""Graphs compiled and in eager: values, types, layouts, aliases, writes, gradients, errors."""

import contextlib
import dataclasses
import functools
import gc
import importlib.util
import itertools
import re
import tempfile
import warnings
from pathlib import Path

import dynfix
import torch
from dynfix.rewriter.frontend import compiled_function
from dynfix.runtime import diagnostics
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from .graphs import CALLS, widened
from .otherwise import (
    Apart,
    InTwoPasses,
    Rounded,
    is_tensor,
    most,
    overlapping,
    set_states,
    states,
    wide,
    wide_numbers,
)

MODE, OPTIONS = None, None  # of `dynfix.compile`
NOISE = 2.0
ROUNDINGS = 6  # runs of eager whose operators round otherwise
MORE = 48  # of them, where these do not explain an error
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
    """What one call did: results and gradients by graph, arguments afterwards, whether it drew
    numbers, or the error. rounding: the seed by which each operator rounds otherwise; start: the
    states of the generators, if not those of the turn."""

    def __init__(self, call, graphs, turn, double=False, noise=0.0, rounding=None, start=None):
        given = [list(g.make_inputs(turn, double, noise).values()) for g in graphs]
        self.results = self.gradients = [[] for _ in graphs]
        self.inputs, self.error = given, None
        torch.manual_seed(turn)
        if start is not None:
            set_states(*start)
        before = states()
        mode = wide_numbers() if double else contextlib.nullcontext()
        others = (
            InTwoPasses() if rounding is not None and rounding % 2 else contextlib.nullcontext()
        )
        try:
            with mode if rounding is None else Rounded(rounding), others:
                self.results = call(*itertools.chain(*given))
                self.gradients = self._gradients(graphs)
        except Exception as error:
            self.error = error
        pairs = zip(tree_leaves(before), tree_leaves(states()), strict=False)  # a GPU may wake
        self.drew = not all(torch.equal(*pair) for pair in pairs)

    def _gradients(self, graphs):
        """With the same seeds whatever other graphs there are."""
        roots, seeds, wanted = [], [], []
        for graph, results, inputs in zip(graphs, self.results, self.inputs, strict=True):
            generator = torch.Generator().manual_seed(7)
            own = [t for t in results if graph.gradients and t.requires_grad]
            seeds += [torch.randn(t.shape, generator=generator).to(t) for t in own]
            roots += own
            wanted.append([t for t in inputs if graph.gradients and t.requires_grad and t.is_leaf])
        flat = list(itertools.chain(*wanted))
        if not roots or not flat:
            return [[] for _ in graphs]
        found = iter(torch.autograd.grad(roots, flat, seeds, allow_unused=True))
        return [[next(found) for _ in part] for part in wanted]


def quietly(function, *args, **kwargs):
    """What the function gives, its warnings unseen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


def usable(graph):
    """Whether eager differentiates the graph in every call, or raises in one if it should; and
    whether that does not depend on the order in which elements are written that others read."""
    call = loaded(source([graph])).call
    runs = [quietly(Run, call, [graph], turn) for turn in range(CALLS)]
    if graph.raises or any(run.error for run in runs):
        return graph.raises and any(run.error for run in runs)
    with Apart():
        apart = [quietly(Run, call, [graph], turn) for turn in range(CALLS)]
    if any(run.error for run in apart):
        return False
    ones, others = _detached_in(apart), _detached_in(runs)
    return len(ones) == len(others) and all(map(_is_same, ones, others))


def _is_same(one, two):
    alike = one.dtype == two.dtype and one.shape == two.shape
    return alike and torch.allclose(one, two, 0, 0, equal_nan=True)


def _detached_in(runs):
    found = tree_leaves([(run.results, run.gradients, run.inputs) for run in runs])
    return [t.detach() for t in found if is_tensor(t)]


def differences(graphs, dynamic, backend="native"):
    """(number of the graph, call, what differs) of graphs compiled together; and what `served` says
    of the function."""
    module = loaded(source(graphs))
    diagnostics.reset()
    torch._dynamo.reset()
    gc.collect()
    gc.freeze()  # what is left stays: to go through it again for each graph takes a third of all
    before = set(compiled_function._live)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how = {"backend": backend, "mode": MODE, "options": OPTIONS}
        compiled = dynfix.compile(module.call, dynamic=dynamic, **how)
        found, eager = [], loaded(source(graphs))
        starts = _noted_starts(eager, graphs)
        for turn in range(CALLS):
            ours, theirs = Run(compiled, graphs, turn), Run(eager.call, graphs, turn)
            found += [(n, turn, text) for n, text in _compared(ours, theirs, graphs, turn, starts)]
            if found:
                break
    how = served(compiled._dynfix_entry, set(compiled_function._live) - before)
    if ours.error and not theirs.error and _is_of_another_branch(ours.error, how, graphs, turn):
        return [], how
    return found, how


_OF_BRANCHES = "has been modified by an inplace operation", "is not implemented"


def _is_of_another_branch(error, how, graphs, turn):
    """Whether eager says so of what a graph computes, had it to differentiate all of it. A backward
    goes to all that a program was given, also to what was made between two programs, or by an
    operator apart, and is not asked for."""
    written, underived = _OF_BRANCHES
    if not (underived in str(error) or (how != "whole" and written in str(error))):
        return False
    for graph in graphs:
        made = re.findall(r"^(?:with torch\.no_grad\(\): )?(v\d+)\b", "\n".join(graph.lines), re.M)
        whole = dataclasses.replace(graph, outputs=tuple(dict.fromkeys(made)))
        said = Run(loaded(source([whole])).call, [whole], turn).error
        if any(each in str(error) and each in str(said) for each in _OF_BRANCHES):
            return True
    return False


def _noted_starts(module, graphs):
    """The states of the generators with which each graph of the module began last."""
    starts = {}

    def noting(number, function):
        def noted(*inputs):
            starts[number] = states()
            return function(*inputs)

        return noted

    for number, _ in enumerate(graphs):
        name = f"g{number}"
        setattr(module, name, noting(number, getattr(module, name)))
    return starts


def served(function, functions):
    """What served calls after the ones that were recorded: "whole", a program of the function;
    "parts", programs of parts that it was cut into; "eager"."""
    if _hits(function):
        return "whole"
    return "parts" if any(map(_hits, functions)) else "eager"


def _hits(function):
    return sum(entry.hits for entry in function._dispatcher.entries)


def _compared(ours, theirs, graphs, turn, starts):
    if type(ours.error) is not type(theirs.error):
        yield -1, f"{_shown(ours.error)} instead of {_shown(theirs.error)}"
        return
    if theirs.error:
        yield from _written_before_raising(ours, theirs, graphs, turn)
        return
    for number, graph in enumerate(graphs):
        judge = _Judge(graph, turn, starts[number])
        for part in ("results", "gradients", "inputs"):
            yield from (
                (number, f"{part} {text}")
                for text in judge.lists(
                    part, getattr(ours, part)[number], getattr(theirs, part)[number]
                )
            )
        one, two = (_shared(run.results[number], run.inputs[number]) for run in (ours, theirs))
        if one != two:
            yield number, f"aliases {one} instead of {two}"


def _written_before_raising(ours, theirs, graphs, turn):
    """Where a call raised: its inputs hold what eager left in them, or what was given, since what
    may raise runs before the first write."""
    given = Run(lambda *inputs: [[] for _ in graphs], graphs, turn)
    for number, graph in enumerate(graphs):
        judge = _Judge(graph, turn)
        sides = (run.inputs[number] for run in (ours, theirs, given))
        for place, (one, two, old) in enumerate(zip(*sides, strict=True)):
            found = (
                None if _is_same(one, old) else next(judge.tensors("inputs", place, one, two), None)
            )
            if found:
                yield number, f"inputs {place} of a call that raises: {found}"


def _shown(error):
    return "no error" if error is None else f"{type(error).__name__}: {str(error)[:200]}"


def _shared(results, inputs):
    """For each result the first input or earlier result whose memory it shares, and where."""
    seen, found = list(inputs), []
    for tensor in results:
        place = next((n for n, other in enumerate(seen) if overlapping(tensor, other)), None)
        start = 0 if place is None else tensor.storage_offset() - seen[place].storage_offset()
        found.append((place, start))
        seen.append(tensor)
    return found


class _Judge:
    """Compares one graph's tensors with eager's; float64 decides where bits differ."""

    def __init__(self, graph, turn, start=None):
        self.graph, self.turn, self.start = graph, turn, start
        self.known = {}

    def run(self, **how):
        key = tuple(how.items())
        if key not in self.known:
            text = source([self.graph])
            text = widened(text) if how.get("double") else text
            call = loaded(text).call
            self.known[key] = Run(call, [self.graph], self.turn, start=self.start, **how)
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
            if _asked(one, name) != _asked(two, name) and _asked(two, name) is not RuntimeError:
                yield f"{name} {_asked(one, name)} instead of {_asked(two, name)}"
                return
        if part != "gradients" and two.numel() > 1 and _steps(one) != _steps(two):
            yield f"strides {one.stride()} instead of {two.stride()}"
        one, two = one.detach().resolve_conj(), two.detach().resolve_conj()
        if not torch.allclose(one, two, rtol=0, atol=0, equal_nan=True):
            yield from self.values(part, place, one, two)

    def values(self, part, place, one, two):
        noisy = self.noisy(part, place, two)
        if not (one.is_floating_point() or one.is_complex()):
            differ = (one != two) & ~_any((t != two for t in noisy), two)
            if differ.any():
                differ &= ~_any((t != two for t in self.noisy(part, place, two, MORE)), two)
                exact = self.wide(part, place, two)
                differ &= one != (two if exact is None else exact)
            if differ.any():
                yield f"{int(differ.sum())} of {one.numel()} elements differ"
            return
        for roundings in (ROUNDINGS, MORE):
            others = self.noisy(part, place, two, roundings)
            elsewhere = _any((t.isnan() != two.isnan() for t in others), two)
            if not ((one.isnan() != two.isnan()) & ~elsewhere).any():
                break
        else:
            yield "NaN in other places"
            return
        error, allowed = self.error(part, place, one, two, noisy)
        if not error <= allowed:
            noisy = self.noisy(part, place, two, MORE)
            error, allowed = self.error(part, place, one, two, noisy)
        if not error <= allowed:
            yield f"error {error:.3g}, allowed {allowed:.3g}"

    def wide(self, part, place, two):
        """What float64 gives, if it gives it, and draws no numbers: other ones."""
        run = self.run(double=True)
        found = getattr(run, part)[0] if run.error is None and not run.drew else []
        found = found[place] if len(found) > place else None
        return found if found is not None and found.shape == two.shape else None

    def noisy(self, part, place, two, roundings=ROUNDINGS):
        """Eager's tensor, had its inputs other last bits, or had its operators rounded otherwise."""
        runs = [self.run(noise=noise) for noise in (NOISE, -NOISE)]
        runs += [self.run(noise=NOISE, rounding=seed) for seed in range(roundings)]
        found = [getattr(run, part)[0][place] for run in runs if run.error is None]
        return [t.detach().resolve_conj() for t in found if t is not None and t.shape == two.shape]

    def error(self, part, place, one, two, noisy):
        """Our largest error and what is allowed: twice eager's, and twice what last bits make.
        Nothing is wider than float64: there eager is taken to err by as much as those, at least."""
        exact = self.wide(part, place, two)
        exact = wide(two if exact is None else exact)
        scale = most(exact)
        step = torch.finfo(one.dtype).eps
        spread = max([most(wide(t) - wide(two)) for t in noisy], default=0.0)
        theirs = most(wide(two) - exact)
        if one.dtype.itemsize >= exact.dtype.itemsize or self.run(double=True).drew:
            theirs = max(theirs, spread)
        allowed = 2 * (theirs + spread) + 4 * step * scale + 1e-30
        return most(wide(one) - exact), allowed


def _asked(tensor, name):
    """The attribute, or the kind of error: eager refuses to be asked for what is one of several
    views of a tensor that was written."""
    try:
        return getattr(tensor, name)
    except RuntimeError as error:
        return type(error)


def _any(masks, like):
    """Elements at which one of the masks holds."""
    none = torch.zeros((), dtype=torch.bool, device=like.device)
    return functools.reduce(torch.logical_or, masks, none)


def _steps(tensor):
    return [s for s, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]
