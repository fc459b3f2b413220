"""Runs a program in eager and compiled, each on its own copy of everything, and compares all that
an observer could see.

A case is a factory `make()`: it builds the program anew, so that closures, attributes and counters
are not shared. It returns a function, an `nn.Module`, or a `Case` that also says what else to
watch. A step is a tuple of arguments (a call), `call(*args, **kwargs)`, or a function of what
`make` returned that changes something between two calls.
"""

import contextlib
import copy
import dataclasses
import enum
import importlib.util
import io
import itertools
import logging
import re
import sys
import types
import warnings

import dynfix
import torch

_ADDRESS = re.compile(r"0x[0-9a-f]+")
_NOT_THE_USERS = re.compile(
    r"^dynfix|runs in eager|recompile_limit|Triggered internally|torch\.jit|Dynamo does not know"
)
_numbers = itertools.count()
_written = set()  # the modules that `module_from` has made


class Case(types.SimpleNamespace):
    """`fn`: what is compiled; `watch`: a function without arguments whose result is compared after
    every call; anything else is the test's own."""


@dataclasses.dataclass
class call:
    """One call with positional and keyword arguments."""

    args: tuple
    kwargs: dict

    def __init__(self, /, *args, **kwargs):
        self.args, self.kwargs = args, kwargs


# -- what an observer sees


class Describer:
    """Objects as nested tuples: exact types, values, which objects are one, which tensors share
    memory, and where."""

    def __init__(self):
        self._seen, self._storages, self._keep = {}, {}, []

    def __call__(self, obj):
        plain = (
            type(None),
            bool,
            int,
            float,
            complex,
            str,
            bytes,
            torch.dtype,
            torch.device,
            torch.Size,
            range,
            slice,
        )
        if type(obj) in plain or isinstance(
            obj, type | types.FunctionType | types.ModuleType | enum.Enum
        ):
            return (
                type(obj).__name__,
                (
                    _ADDRESS.sub("0x", repr(obj))
                    if not isinstance(obj, types.FunctionType)
                    else obj.__qualname__
                ),
            )
        if id(obj) in self._seen:
            return ("same as", self._seen[id(obj)])
        self._seen[id(obj)] = len(self._seen)
        self._keep.append(obj)
        return (
            self._tensor(obj)
            if isinstance(obj, torch.Tensor)
            else (type(obj).__name__, *self._parts(obj))
        )

    def _tensor(self, t):
        history = (t.requires_grad, t.is_leaf, t.is_inference())
        if t.layout != torch.strided:
            return Shown(
                type(t).__name__, t.dtype, tuple(t.shape), t.layout, history, t.detach().clone(), {}
            )
        memory = self._storages.setdefault(t.untyped_storage()._cdata, len(self._storages))
        place = (memory, t.storage_offset(), tuple(t.stride()))
        return Shown(
            type(t).__name__,
            t.dtype,
            tuple(t.shape),
            place,
            history,
            t.detach().clone(),
            {
                name: self(value)
                for name, value in getattr(t, "__dict__", {}).items()
                if name not in TORCHS_OWN
            },
        )

    def _parts(self, obj):
        if isinstance(obj, dict):
            yield tuple(
                (self(key), self(value))
                for key, value in dict.items(obj)
                if not callable(value)
                or isinstance(value, type | torch.nn.Module | types.MethodType)
            )
        elif isinstance(obj, list | tuple):
            yield tuple(map(self, obj))
        elif isinstance(obj, set | frozenset):
            yield tuple(sorted(map(repr, map(self, obj))))
        elif type(obj).__name__ in ("deque",):
            yield tuple(map(self, obj))
        elif isinstance(obj, BaseException):
            yield (str(obj), self(obj.args))
        elif isinstance(obj, types.MethodType):
            yield (obj.__func__.__qualname__, self(obj.__self__))
        attributes = {
            k: v for k, v in getattr(obj, "__dict__", {}).items() if not k.startswith("_dynfix")
        }
        if attributes:
            yield tuple(
                (name, self(value))
                for name, value in attributes.items()
                if not callable(value) or isinstance(value, torch.nn.Module)
            )
        for cls in type(obj).__mro__:
            for name in (
                [cls.__dict__.get("__slots__", ())]
                if isinstance(cls.__dict__.get("__slots__"), str)
                else cls.__dict__.get("__slots__", ())
            ):
                if hasattr(obj, name) and not name.startswith("_"):
                    yield (name, self(getattr(obj, name)))


# What AOTAutograd leaves on the outputs of a graph with symbolic sizes.
TORCHS_OWN = {"_dynamo_propagated_dynamic_indices", "_dynamo_weak_dynamic_indices"}


class Shown:
    """A tensor's description; equal if the metadata are, and the values bit by bit or within the
    tolerance of the comparison."""

    tolerance = None

    def __init__(self, *parts):
        *self.meta, self.values, self.attributes = parts

    def __eq__(self, other):
        return (
            isinstance(other, Shown)
            and (self.meta, self.attributes) == (other.meta, other.attributes)
            and self._close(other)
        )

    def _close(self, other):
        a, b = self.values, other.values
        if a.is_meta:
            return True
        if a.layout != torch.strided or a.is_quantized:
            return torch.equal(a.to_dense(), b.to_dense())
        if Shown.tolerance is None:
            return torch.equal(
                a.resolve_conj().resolve_neg().nan_to_num(nan=12345.0),
                b.resolve_conj().resolve_neg().nan_to_num(nan=12345.0),
            )
        return torch.allclose(a, b, *Shown.tolerance, equal_nan=True)

    def __repr__(self):
        return f"Tensor{(*self.meta, self.values.tolist(), self.attributes)}"


class _Records(logging.Handler):
    def __init__(self):
        super().__init__(level=0)
        self.records = []

    def emit(self, record):
        self.records.append((record.name, record.levelname, record.getMessage()))


@contextlib.contextmanager
def watched(seen):
    """Printed text, log records and the user's own warnings, into the dict `seen`."""
    out, handler, root = io.StringIO(), _Records(), logging.getLogger()
    level = root.level
    root.addHandler(handler), root.setLevel(logging.DEBUG)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            yield
    finally:
        root.removeHandler(handler), root.setLevel(level)
    seen["text"] = _ADDRESS.sub("0x", out.getvalue())
    seen["log"] = [record for record in handler.records if not record[0].startswith("dynfix")]
    seen["warnings"] = [
        str(w.message)
        for w in caught
        if not _NOT_THE_USERS.search(f"{w.category.__module__} {w.message}")
    ]


def leaves(obj, memo=None):
    """The leaf tensors that require a gradient in nested containers and objects."""
    memo = {} if memo is None else memo
    if id(obj) in memo:
        return []
    memo[id(obj)] = obj
    if isinstance(obj, types.ModuleType) and obj.__name__ not in _written:
        return []  # torch, which a test's own module imports, is no state of the test
    if isinstance(obj, torch.Tensor):
        return [obj] if obj.requires_grad and obj.is_leaf else []
    if isinstance(obj, dict):
        return [leaf for value in obj.values() for leaf in leaves(value, memo)]
    if isinstance(obj, list | tuple):
        return [leaf for value in obj for leaf in leaves(value, memo)]
    if isinstance(obj, torch.nn.Module):
        return [leaf for value in obj.parameters() for leaf in leaves(value, memo)]
    return [leaf for value in getattr(obj, "__dict__", {}).values() for leaf in leaves(value, memo)]


def floats(obj):
    """The float tensors with a history in a result."""
    if isinstance(obj, torch.Tensor):
        return [obj] if obj.grad_fn is not None and obj.dtype.is_floating_point else []
    if isinstance(obj, dict):
        return [t for value in obj.values() for t in floats(value)]
    if isinstance(obj, list | tuple):
        return [t for value in obj for t in floats(value)]
    return (
        [t for value in getattr(obj, "__dict__", {}).values() for t in floats(value)]
        if dataclasses.is_dataclass(obj)
        else []
    )


def observe(fn, step, made, watch, seed):
    """Everything visible of one call."""
    seen = {}
    torch.manual_seed(seed)
    result = error = None
    with watched(seen):
        try:
            result = fn(*step.args, **step.kwargs)
        except Exception as raised:
            error = raised
    seen["error"] = (
        None
        if error is None
        else (type(error).__name__, _ADDRESS.sub("0x", str(error)), type(error.__cause__).__name__)
    )
    seen["random"] = torch.get_rng_state().sum().item()
    seen["state"] = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu"),
    )
    seen["all"] = Describer()(
        [
            result,
            step.args,
            step.kwargs,
            watch() if watch else None,
            made if isinstance(made, torch.nn.Module) else None,
        ]
    )
    seen["grads"] = gradients(result, [step.args, step.kwargs, made, watch() if watch else None])
    return seen


def gradients(result, places):
    outputs, inputs = floats(result), leaves(places)
    if not outputs or not inputs or torch.is_inference_mode_enabled():
        return None
    with torch.enable_grad():
        total = sum(
            (out * torch.arange(1, out.numel() + 1, dtype=out.dtype).view(out.shape)).sum()
            for out in outputs
        )
    try:
        return [Describer()(grad) for grad in torch.autograd.grad(total, inputs, allow_unused=True)]
    except RuntimeError as error:
        return str(error)[:60]


def same(make, *steps, backend="eager", tolerance=None, repeat=1, **options):
    """Compare eager and compiled over the steps. Returns the compiled function, for questions about
    its recordings."""
    eager, compiled = make(), make()
    fn_eager, made = getattr(eager, "fn", eager), getattr(compiled, "fn", compiled)
    dynfix.reset()
    fn = dynfix.compile(made, backend=backend, **options)
    Shown.tolerance = tolerance
    for number, step in enumerate([step for step in steps for _ in range(repeat)]):
        if isinstance(step, tuple):
            step = call(*step)
        if not isinstance(step, call):
            step(eager), step(compiled)
            continue
        expected = observe(fn_eager, step_of(step), eager, getattr(eager, "watch", None), number)
        got = observe(fn, step_of(step), compiled, getattr(compiled, "watch", None), number)
        for key in expected:
            assert got[key] == expected[key], (
                f"call {number}, {key}: {difference(got[key], expected[key])}"
            )
    Shown.tolerance = None
    return fn


def difference(got, expected, where=""):
    """Where two descriptions first differ."""
    if (
        isinstance(got, tuple | list)
        and isinstance(expected, tuple | list)
        and len(got) == len(expected)
    ):
        for index, (a, b) in enumerate(zip(got, expected, strict=True)):
            if a != b:
                return difference(
                    a, b, f"{where}.{got[0] if index and isinstance(got[0], str) else ''}[{index}]"
                )
    return f"at {where}\n  compiled: {got!r:.600}\n  eager:    {expected!r:.600}"


def step_of(step):
    """A copy of the step's arguments that keeps which of them are one, and views of one storage."""
    memo = {}
    return call(*_copied(step.args, memo), **_copied(step.kwargs, memo))


def _copied(obj, memo):
    if isinstance(obj, Fresh):
        return obj.make()
    if type(obj) in (list, tuple):
        if id(obj) not in memo:
            memo[id(obj)] = type(obj)(_copied(part, memo) for part in obj)
        return memo[id(obj)]
    if type(obj) is dict:
        if id(obj) not in memo:
            memo[id(obj)] = {key: _copied(part, memo) for key, part in obj.items()}
        return memo[id(obj)]
    return copy.deepcopy(obj, memo)


@dataclasses.dataclass
class Fresh:
    """An argument made anew for each side: an iterator, a view, an object that cannot be copied."""

    make: object


def recordings(fn):
    return fn._dynfix_entry.recordings


def one_graph(fn, count=None):
    """Every recording is one graph without breaks; `count`: how many recordings."""
    kept = recordings(fn)
    assert kept, "nothing was recorded"
    sites = [str(site) for recording in kept for site in recording.sites]
    assert not sites, sites
    assert all(len(recording.segments) == 1 for recording in kept)
    assert count is None or len(kept) == count, f"{len(kept)} recordings, not {count}"


def module_from(tmp_path, text, name=None):
    """A fresh Python module from text, in a file, so that its source is found."""
    name = name or f"case_{next(_numbers)}"
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _written.add(name)
    spec.loader.exec_module(module)
    return module


def tensor(*values, grad=False):
    return torch.tensor([float(v) for v in values], requires_grad=grad)


X = tensor(1, -2, 3)
Y = tensor(-4, 5, 0.5)
FOUR = [(X,), (Y,), (X,), (Y,)]


def rows(n, width=4):
    return torch.linspace(-2, 3, n * width).view(n, width)


def watching(body, **state):
    """A case over a function body(s, x), whose state `s` is watched."""

    def make():
        s = Case(**{name: value() if callable(value) else value for name, value in state.items()})
        return Case(fn=lambda x: body(s, x), watch=lambda: vars(s))

    return make
