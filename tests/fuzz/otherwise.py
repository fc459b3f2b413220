"""Eager's calls computed otherwise: with operators that round differently, that read copies of what
they write, or in wider numbers."""

import contextlib
import functools

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_NORMS = "native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit".split()
_TO_WHOLE_NUMBERS = "floor ceil round trunc frac fmod remainder Tensor_mode Scalar_mode".split()


class Rounded(TorchDispatchMode):
    """Moves what an operator of ATen takes and computes by some units in the last place, at random:
    a backward and a forward error. What only picks from its operands is exact, as are results that
    are whole numbers; so are, for half of the seeds, operands that are zero, beside which some
    operators (`xlogy`) are not defined."""

    def __init__(self, seed):
        super().__init__()
        self.keeps_zeros = seed // 2 % 2 == 1
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        args, kwargs = tree_map(_filled, (args, kwargs or {}))
        written = [t for t in _written(function, args, kwargs) if _is_inexact(t)]
        before, old = states(), [t.clone() for t in written]
        result, schema = function(*args, **kwargs), function._schema
        if any(each.alias_info is not None for each in (*schema.arguments, *schema.returns)):
            if torch.Tag.inplace_view not in function.tags:
                others = [t for t in _operands(args, kwargs) if not any(t is w for w in written)]
                for tensor, held in zip(written, old, strict=True):
                    self._move_what_is_new(tensor, held, [*old, *others])
            return result
        given = [t for t in tree_leaves((args, kwargs)) if is_tensor(t)]
        made = [t for t in tree_leaves(result) if is_tensor(t)]
        if any(t.is_meta for t in (*given, *made)):  # a decomposition that asks for shapes
            return result
        if not any(self._computed(t, given).any() for t in made if _is_inexact(t)):
            return result
        set_states(*before)
        whole = any(part in function.__name__ for part in _TO_WHOLE_NUMBERS)
        args, kwargs = tree_map(functools.partial(self._moved, whole=whole), (args, kwargs))
        made = tree_map(self._moved, function(*args, **kwargs))
        packet = function.__name__.partition(".")[0]
        if packet == "gelu":  # `x / 2 + erf(...) * x / 2`
            return self._shifted(made, args[0])
        if packet == "gelu_backward":  # `1 / 2 + erf(...) / 2`, of which little may be left
            return self._shifted(made, args[0])
        if packet in ("sum", "mean") and _is_float(args[0]) and made.numel() * args[0].numel():
            number = args[0].numel() / made.numel()
            size = most(args[0]) * number ** (0.5 if packet == "sum" else -0.5)
            if made.dtype.itemsize > 4:  # float64 may be added up one after the other
                size = max(size, most(made) * number**0.5 / 16)
            size = min(size, torch.finfo(made.dtype).max)
            return self._shifted(made, made.new_tensor(size))
        if packet not in _NORMS:
            return made
        mean = made[1] * made[2]
        if mean.dtype.itemsize > 4 and mean.numel():  # of equal numbers, each rounds the same way
            mean = mean * max(args[0].numel() / mean.numel() / 16, 1)
        return (self._shifted(made[0], mean), *made[1:])

    def _move_what_is_new(self, written, held, given):
        """Not where it lies over itself."""
        if written.is_meta or torch._debug_has_internal_overlap(written) == 1:
            return
        given = [t if is_tensor(t) else written.new_tensor(t) for t in given]
        if self._computed(written, given).any():
            kept = written.shape == held.shape and written == held
            written.copy_(torch.where(torch.as_tensor(kept), written, self._moved(written)))

    def _computed(self, result, given):
        """Its elements that are no operand's, but for the sign."""
        sizes = [wide(t).abs().flatten().to(result.device) for t in given]
        return ~torch.isin(wide(result).abs(), torch.cat(sizes)) if sizes else _NONE

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
        if is_tensor(given) and given.is_complex():
            return torch.view_as_complex(
                self._moved(torch.view_as_real(given.resolve_conj()), whole)
            )
        if not _is_float(given):
            return given
        signs = torch.rand(given.shape, generator=self.generator).sub_(0.5).sign_().to(given.device)
        about, exact = torch.finfo(given.dtype), given.double()
        step = about.eps * (2 if given.dtype.itemsize > 2 else 0.5)
        # below the smallest normal number last places lie equally far apart
        size = exact.abs().clamp(about.tiny, about.max)
        moved = (exact + step * signs * size).to(given.dtype)
        kept = given == given.round() if whole else (given == 0) & self.keeps_zeros
        return torch.where(kept, given, moved)


def states():
    """Of the generators."""
    return (
        torch.get_rng_state(),
        torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    )


def set_states(state, others):
    torch.set_rng_state(state)
    if others:
        torch.cuda.set_rng_state_all(others)


class Apart(TorchDispatchMode):
    """Has operators read copies of what lies in the memory that they write."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        args, kwargs = tree_map(_filled, (args, kwargs or {}))
        named, writes = _named(function, args, kwargs), _writes(function)
        written = _written(function, args, kwargs)

        def apart(value):
            if is_tensor(value) and any(overlapping(value, other) for other in written):
                return value.clone()
            return value

        made = {k: v if k in writes else tree_map(apart, v) for k, v in named.items()}
        return function(**made) if written else function(*args, **kwargs)


def _operands(args, kwargs):
    return [x for x in tree_leaves((args, kwargs)) if is_tensor(x) or isinstance(x, float)]


def _named(function, args, kwargs):
    names = (each.name for each in function._schema.arguments)
    return dict(zip(names, args, strict=False)) | kwargs


def _writes(function):
    """The names of the arguments that the operator writes."""
    return {a.name for a in function._schema.arguments if a.alias_info and a.alias_info.is_write}


def _written(function, args, kwargs):
    named = _named(function, args, kwargs)
    found = [t for name in _writes(function) for t in tree_leaves(named.get(name))]
    return [t for t in found if is_tensor(t)]


class InTwoPasses(TorchDispatchMode):
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
def wide_numbers():
    """Variances as they are, and what is made of whole numbers in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with InTwoPasses():
            yield
    finally:
        torch.set_default_dtype(before)


_NONE = torch.tensor(False)


def _filled(value):
    """Not a tensor without memory, at which operators end the process below a mode."""
    zero = is_tensor(value) and value._is_zerotensor()
    return torch.zeros(value.shape, dtype=value.dtype, device=value.device) if zero else value


def is_tensor(value):
    return isinstance(value, torch.Tensor)


def _is_float(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_inexact(value):
    return _is_float(value) or (is_tensor(value) and value.is_complex())


def overlapping(a, b):
    pointer = a.untyped_storage().data_ptr()
    return pointer != 0 and a.numel() and b.numel() and pointer == b.untyped_storage().data_ptr()


def wide(tensor):
    tensor = tensor.detach().resolve_conj()
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def most(tensor):
    """The largest finite magnitude."""
    sizes = tensor.abs()
    sizes = sizes[sizes.isfinite()]
    return float(sizes.max()) if sizes.numel() else 0.0
