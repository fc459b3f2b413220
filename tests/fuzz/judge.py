"""Graphs compiled and in eager: values, types, layouts, aliases, writes, gradients, errors."""

import contextlib
import functools
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
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from .graphs import CALLS, widened

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


_NORMS = "native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit".split()
_TO_WHOLE_NUMBERS = "floor ceil round trunc frac fmod remainder Tensor_mode Scalar_mode".split()


class _Rounded(TorchDispatchMode):
    """Moves what an operator of ATen takes and computes by some units in the last place, at random:
    a backward and a forward error. What only picks from its operands is exact, as are results that
    are whole numbers."""

    def __init__(self, seed):
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        args, kwargs = tree_map(_filled, (args, kwargs or {}))
        states, result = _states(), function(*args, **kwargs)
        schema = function._schema
        if any(each.alias_info is not None for each in (*schema.arguments, *schema.returns)):
            return result
        given = [t for t in tree_leaves((args, kwargs)) if _is_tensor(t)]
        made = [t for t in tree_leaves(result) if _is_tensor(t)]
        if any(t.is_meta for t in (*given, *made)):  # a decomposition that asks for shapes
            return result
        if not any(self._computed(t, given).any() for t in made if _is_inexact(t)):
            return result
        _set_states(*states)
        whole = any(part in function.__name__ for part in _TO_WHOLE_NUMBERS)
        args, kwargs = tree_map(functools.partial(self._moved, whole=whole), (args, kwargs))
        made = tree_map(self._moved, function(*args, **kwargs))
        packet = function.__name__.partition(".")[0]
        if packet == "gelu":  # `x / 2 + erf(...) * x / 2`
            return self._shifted(made, args[0])
        if packet in ("sum", "mean") and _is_float(args[0]) and made.numel():
            number = args[0].numel() / made.numel()
            size = _most(args[0]) * number ** (0.5 if packet == "sum" else -0.5)
            size = min(size, torch.finfo(made.dtype).max)
            return self._shifted(made, made.new_tensor(size))
        return (self._shifted(made[0], made[1] * made[2]), *made[1:]) if packet in _NORMS else made

    def _computed(self, result, given):
        """Its elements that are no operand's, but for the sign."""
        sizes = [_wide(t).abs().flatten() for t in given]
        return ~torch.isin(_wide(result).abs(), torch.cat(sizes)) if sizes else _NONE

    def _shifted(self, result, term):
        """The result of terms as large as this one, of which rounding leaves some, or nothing."""
        if not result.numel() or not term.numel():
            return result
        size = term.abs() if term.shape == result.shape else term.abs().max()
        size = size * torch.finfo(term.dtype).eps
        shift = size * torch.randn(result.shape, generator=self.generator).to(size.device)
        exact = torch.rand(result.shape, generator=self.generator).to(size.device) > 0.5
        left = (result + shift).to(result.dtype)
        return torch.where(exact & (result.abs() <= size), torch.zeros_like(left), left)

    def _moved(self, given, whole=True):
        """whole: whether whole numbers stay."""
        if _is_tensor(given) and given.is_complex():
            return torch.view_as_complex(
                self._moved(torch.view_as_real(given.resolve_conj()), whole)
            )
        if not _is_float(given):
            return given
        signs = torch.rand(given.shape, generator=self.generator).sub_(0.5).sign_().to(given.device)
        about, wide = torch.finfo(given.dtype), given.double()
        step = about.eps * (2 if given.dtype.itemsize > 2 else 0.5)
        # below the smallest normal number last places lie equally far apart
        size = wide.abs().clamp(about.tiny, about.max)
        moved = (wide + step * signs * size).to(given.dtype)
        return torch.where(given == given.round(), given, moved) if whole else moved


def _states():
    """Of the generators."""
    return (
        torch.get_rng_state(),
        torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    )


def _set_states(state, others):
    torch.set_rng_state(state)
    if others:
        torch.cuda.set_rng_state_all(others)


class _Apart(TorchDispatchMode):
    """Has operators read copies of what lies in the memory that they write."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        args, kwargs = tree_map(_filled, (args, kwargs or {}))
        named = dict(zip((each.name for each in function._schema.arguments), args, strict=False))
        named |= kwargs
        writes = {
            a.name for a in function._schema.arguments if a.alias_info and a.alias_info.is_write
        }
        written = [t for name in writes for t in tree_leaves(named.get(name)) if _is_tensor(t)]

        def apart(value):
            if _is_tensor(value) and any(_overlapping(value, other) for other in written):
                return value.clone()
            return value

        made = {k: v if k in writes else tree_map(apart, v) for k, v in named.items()}
        return function(**made) if written else function(*args, **kwargs)


class _InTwoPasses(TorchDispatchMode):
    """Has variances taken of differences to the mean: torch goes through the elements once, with
    an error that grows with their number."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        args, kwargs = tree_map(_filled, (args, kwargs or {}))
        packet = function.overloadpacket
        if packet not in _VARIANCES or function._overloadname != "correction":
            return function(*args, **kwargs)
        found, mean = _variance(*args, **kwargs)
        found = found.sqrt() if packet in _ROOTS else found
        return (found, mean) if packet in _VARIANCES[2:] else found


_aten = torch.ops.aten
_VARIANCES = (_aten.var, _aten.std, _aten.var_mean, _aten.std_mean)
_ROOTS = (_aten.std, _aten.std_mean)


def _variance(given, dim=None, *, correction=None, keepdim=False):
    mean = given.mean(dim or None, keepdim=True)
    squares = (given - mean).abs().square().sum(dim or None, keepdim=keepdim)
    free = given.numel() / max(mean.numel(), 1) - (1 if correction is None else correction)
    return squares / max(free, 0), mean.reshape(squares.shape)


@contextlib.contextmanager
def _wide_numbers():
    """Variances as they are, and what is made of whole numbers in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _InTwoPasses():
            yield
    finally:
        torch.set_default_dtype(before)


_NONE = torch.tensor(False)


def _filled(value):
    """Not a tensor without memory, at which operators end the process below a mode."""
    zero = _is_tensor(value) and value._is_zerotensor()
    return torch.zeros(value.shape, dtype=value.dtype, device=value.device) if zero else value


def _is_tensor(value):
    return isinstance(value, torch.Tensor)


def _is_float(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_inexact(value):
    return _is_float(value) or (_is_tensor(value) and value.is_complex())


class Run:
    """What one call did: results and gradients by graph, arguments afterwards, or the error.
    rounding: the seed by which each operator rounds otherwise."""

    def __init__(self, call, graphs, turn, double=False, noise=0.0, rounding=None):
        given = [list(g.make_inputs(turn, double, noise).values()) for g in graphs]
        self.results = self.gradients = [[] for _ in graphs]
        self.inputs, self.error = given, None
        torch.manual_seed(turn)
        mode = _wide_numbers() if double else contextlib.nullcontext()
        try:
            with mode if rounding is None else _Rounded(rounding):
                self.results = call(*itertools.chain(*given))
                self.gradients = self._gradients(graphs)
        except Exception as error:
            self.error = error

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
    with _Apart():
        apart = [quietly(Run, call, [graph], turn) for turn in range(CALLS)]
    return not any(run.error for run in apart) and all(
        torch.allclose(one, two, 0, 0, equal_nan=True)
        for one, two in zip(_detached_in(apart), _detached_in(runs), strict=True)
    )


def _detached_in(runs):
    found = tree_leaves([(run.results, run.gradients, run.inputs) for run in runs])
    return [t.detach() for t in found if _is_tensor(t)]


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
        how = {"backend": backend, "mode": MODE, "options": OPTIONS}
        compiled = dynfix.compile(module.call, dynamic=dynamic, **how)
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
    if theirs.error:
        yield from _written_before_raising(ours, theirs, graphs, turn)
        return
    for number, graph in enumerate(graphs):
        judge = _Judge(graph, turn)
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
            untouched = one.shape == old.shape and torch.allclose(one, old, 0, 0, equal_nan=True)
            found = None if untouched else next(judge.tensors("inputs", place, one, two), None)
            if found:
                yield number, f"inputs {place} of a call that raises: {found}"


def _shown(error):
    return "no error" if error is None else f"{type(error).__name__}: {str(error)[:200]}"


def _shared(results, inputs):
    """For each result the first input or earlier result whose memory it shares, and where."""
    seen, found = list(inputs), []
    for tensor in results:
        place = next((n for n, other in enumerate(seen) if _overlapping(tensor, other)), None)
        start = 0 if place is None else tensor.storage_offset() - seen[place].storage_offset()
        found.append((place, start))
        seen.append(tensor)
    return found


def _overlapping(a, b):
    pointer = a.untyped_storage().data_ptr()
    return pointer != 0 and a.numel() and b.numel() and pointer == b.untyped_storage().data_ptr()


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
        if (
            (one.isnan() != two.isnan()) & ~_any((t.isnan() != two.isnan() for t in noisy), two)
        ).any():
            yield "NaN in other places"
            return
        error, allowed = self.error(part, place, one, two, noisy)
        if not error <= allowed:
            noisy = self.noisy(part, place, two, MORE)
            error, allowed = self.error(part, place, one, two, noisy)
        if not error <= allowed:
            yield f"error {error:.3g}, allowed {allowed:.3g}"

    def wide(self, part, place, two):
        """What float64 gives, if it gives it."""
        run = self.run(double=True)
        found = getattr(run, part)[0] if run.error is None else []
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
        exact = _wide(two if exact is None else exact)
        scale = _most(exact)
        step = torch.finfo(one.dtype).eps
        spread = max([_most(_wide(t) - _wide(two)) for t in noisy], default=0.0)
        theirs = _most(_wide(two) - exact)
        if one.dtype.itemsize >= exact.dtype.itemsize:
            theirs = max(theirs, spread)
        allowed = 2 * (theirs + spread) + 4 * step * scale + 1e-30
        return _most(_wide(one) - exact), allowed


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
