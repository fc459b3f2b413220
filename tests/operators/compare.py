"""One operator's samples, compiled and in eager: values, types, layouts, aliases, mutations,
gradients."""

import dataclasses
import types
import warnings

import dynfix
import torch
from dynfix.runtime import diagnostics
from torch.utils._pytree import tree_flatten, tree_map

CALLS = 3
JUDGED = 4  # more calls by which errors are judged: that of one call has luck in it
ROUNDING = 1e-6
OPTIONS = {"fallback_random": True}  # else kernels on GPUs draw numbers of their own


@dataclasses.dataclass
class Outcome:
    """differences: what is not as in eager. eager: why nothing was compiled, if so."""

    differences: list
    eager: str = ""


def copied(tree):
    """The arguments again, their tensors as leaves in the same layout."""

    def copy(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        made = leaf.detach().clone()
        if leaf.layout == torch.strided and made.stride() != leaf.stride():
            like = {"dtype": leaf.dtype, "device": leaf.device}
            made = torch.empty_strided(leaf.shape, leaf.stride(), **like)
            if leaf.numel():  # all of the memory, in which elements may overlap
                _memory(made).copy_(_memory(leaf.detach()))
        return made.requires_grad_(leaf.requires_grad)

    return tree_map(copy, tree)


def _memory(tensor):
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((last + 1,), (1,))


def tensors(tree):
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def run(function, args, seed, gradients):
    """(result, gradients, arguments afterwards) or the exception."""
    torch.manual_seed(seed)
    try:
        result = function(*args)
        grads = _gradients(result, args, seed) if gradients else []
    except Exception as error:
        return error
    return result, grads, tensors(args)


def _gradients(result, args, seed):
    used = [t for t in tensors(result) if t.requires_grad]
    wanted = [t for t in tensors(args) if t.requires_grad]
    if not used or not wanted:
        return []
    generator = torch.Generator().manual_seed(7 + seed)
    drawn = [torch.randn(t.shape, generator=generator).bfloat16() for t in used]  # any type's
    seeds = [seed.to(t.device, t.dtype) for seed, t in zip(drawn, used, strict=True)]
    return list(torch.autograd.grad(used, wanted, seeds, allow_unused=True))


def compare(function, args, gradients, dynamic=None):
    """`function(*args)` compiled against itself, `CALLS` times with fresh arguments."""
    diagnostics.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = dynfix.compile(function, dynamic=dynamic, options=OPTIONS)
        found = []
        for turn in range(CALLS):
            ours, theirs = copied(args), copied(args)
            one = run(compiled, ours, turn, gradients)
            two = run(function, theirs, turn, gradients)
            found += [f"call {turn}: {text}" for text in differences(one, two, ours, theirs)]
            if found or isinstance(two, Exception):
                break
    if found:
        seeds = (turn, *range(CALLS, CALLS + JUDGED))
        runs = [_three_runs(compiled, function, args, seed, gradients) for seed in seeds]
        found = [] if no_worse(runs) else found
    return Outcome(found, why_eager(compiled, caught, isinstance(two, Exception)))


def why_eager(compiled, caught, raises):
    """Why no later call was served by a Program."""
    texts = [str(w.message) for w in caught if "runs in eager" in str(w.message)]
    hits = sum(entry.hits for entry in compiled._dynfix_entry._dispatcher.entries)
    if texts or hits or raises:
        return " ".join(texts[0].split())[:300] if texts else ""
    return "no Program served a call"


def _three_runs(compiled, function, args, seed, gradients):
    """Compiled, in eager, and in float64."""
    exact = run(_in_doubles(function), tree_map(_doubled, copied(args)), seed, gradients)
    given = (run(f, copied(args), seed, gradients) for f in (compiled, function))
    return *given, exact


def _in_doubles(function):
    """The function with the floating dtypes that it names made float64."""
    if not isinstance(function, types.FunctionType):
        return function
    wide = {
        name: torch.float64
        for name, value in function.__globals__.items()
        if isinstance(value, torch.dtype) and value.is_floating_point
    }
    return types.FunctionType(
        function.__code__,
        {**function.__globals__, **wide},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


def _doubled(leaf):
    if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
        return leaf.detach().double().requires_grad_(leaf.requires_grad)
    return leaf


def differences(one, two, ours, theirs):
    if isinstance(one, Exception) or isinstance(two, Exception):
        if type(one) is not type(two):
            yield f"{_shown(one)} instead of {_shown(two)}"
        return
    for label, a, b in zip(("result", "gradient", "argument"), one, two, strict=True):
        yield from _tree_differences(label, a, b)
    if _shared(one[0], ours) != _shared(two[0], theirs):
        yield f"aliases {_shared(one[0], ours)} instead of {_shared(two[0], theirs)}"


def _shown(value):
    if isinstance(value, Exception):
        return f"{type(value).__name__}: {str(value)[:150]}"
    return "a result"


def _shared(result, args):
    """For each result the first argument or earlier result whose memory it shares."""
    seen = tensors(args)
    found = []
    for tensor in tensors(result):
        place = next((n for n, other in enumerate(seen) if _same_memory(tensor, other)), None)
        found.append(place)
        seen.append(tensor)
    return found


def _same_memory(a, b):
    if a.layout != torch.strided or b.layout != torch.strided:
        return False
    pointer = a.untyped_storage().data_ptr()
    return pointer != 0 and pointer == b.untyped_storage().data_ptr()


def _tree_differences(label, a, b):
    (flat, spec), (other, other_spec) = tree_flatten(a), tree_flatten(b)
    if spec != other_spec:
        yield f"{label} of structure {spec} instead of {other_spec}"
        return
    for number, (x, y) in enumerate(zip(flat, other, strict=True)):
        where = f"{label} {number}"
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            yield from (f"{where}: {text}" for text in _tensor_differences(x, y))
        elif type(x) is not type(y) or not (x == y or x != x):
            yield f"{where}: {x!r} instead of {y!r}"


def _tensor_differences(x, y):
    for name in ("dtype", "shape", "layout", "device", "requires_grad"):
        if getattr(x, name) != getattr(y, name):
            yield f"{name} {getattr(x, name)} instead of {getattr(y, name)}"
            return
    if not _steps_alike(x, y):
        yield f"strides {x.stride()} instead of {y.stride()}"
    try:
        torch.testing.assert_close(x, y, equal_nan=True)
    except AssertionError as error:
        yield " ".join(str(error).split())[:200]


def _steps_alike(x, y):
    if x.layout != torch.strided or x.numel() < 2 or x.stride() == y.stride():
        return True
    steps = zip(x.shape, x.stride(), y.stride(), strict=True)
    return all(size == 1 or a == b for size, a, b in steps)


def no_worse(runs):
    """Whether all that differs in the runs (compiled, eager, in float64) are values, none further
    from the float64 ones, over all runs, than twice eager's."""
    if any(isinstance(each, Exception) for run_ in runs for each in run_):
        return False
    rows = [[tensors(each) for each in run_] for run_ in runs]
    if len({len(found) for row in rows for found in row}) != 1:
        return False
    places = (zip(*row, strict=True) for row in rows)
    return all(_is_no_worse(triples) for triples in zip(*places, strict=True))


def _is_no_worse(triples):
    """Of one tensor, as each run gave it."""
    pairs, errors = [], []
    for ours, theirs, ideal in triples:
        alike = (ours.dtype, ours.shape, ours.requires_grad, ours.layout)
        if alike != (theirs.dtype, theirs.shape, theirs.requires_grad, theirs.layout):
            return False
        if not _steps_alike(ours, theirs):
            return False
        if not ours.is_floating_point():
            if not torch.equal(ours, theirs):
                return False
            continue
        if not _overflows_no_more(ours, theirs, ideal):
            return False
        if ours.numel():
            pairs.append((ours, theirs))
            errors.append(_errors(*_doubles(ours, theirs, ideal), torch.finfo(ours.dtype).eps))
    if all(torch.allclose(*pair, equal_nan=True) for pair in pairs):
        return True
    error, allowed, step = torch.tensor(errors).square().mean(0).sqrt()
    return bool(error <= 2 * allowed + step)


def _overflows_no_more(ours, theirs, ideal):
    """Whether ours are finite where eager's are, and elsewhere only where float64's are, too."""
    more = ours.isfinite() & ~theirs.isfinite()
    return not bool((theirs.isfinite() & ~ours.isfinite()).any()) and bool(
        ideal[more].isfinite().all()
    )


def _doubles(*tensors):
    return [tensor.detach().double() for tensor in tensors]


def _errors(ours, theirs, ideal, eps):
    """The largest errors, and what rounding once more would add."""
    scale = ideal.abs().nan_to_num(0, 0, 0).amax()
    error, allowed = ((x - ideal).abs().nan_to_num(0, 0, 0).amax() for x in (ours, theirs))
    return error, allowed, max(ROUNDING, eps / 2) * scale
