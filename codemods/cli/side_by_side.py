"""Original and fixed code side by side: run in eager and compared, and their graph breaks counted.
Needs torch."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import logging
import os
import random
import sys
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...rewriter.source.source_file import SourceError, SourceFile
from ..analysis.findings import ERROR
from ..hoist.plan import planned
from ..rules import BY_CODE
from ..trace import trace_facts
from ..trace.tensor_traits import layout, near, samples, together
from . import check
from .file_writes import write
from .terminal import say, seen

if TYPE_CHECKING:
    from .settings import Settings


class VerifyError(Exception):
    """The factory cannot be found or does not give (callable, inputs)."""


def _torch() -> Any:
    """torch, loaded here and nowhere else in the codemods."""
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError:
        raise VerifyError("--verify needs torch: install dynfix[torch]") from None


def count_breaks(function: Any, inputs: Any, kwargs: Any = None) -> Any:
    """Graph breaks of one call of `function(*inputs)` under torch.compile with default settings:
    the larger of what `torch._dynamo.explain` and `torch._dynamo.utils.counters["graph_break"]`
    say, since each misses some; 1 where no graph came of it, for then the whole call ran in
    eager."""
    torch = _torch()
    kwargs = kwargs or {}
    dynamo = torch._dynamo
    with _silence():
        dynamo.reset()
        explained = dynamo.explain(function)(*inputs, **kwargs)
        dynamo.reset()
        dynamo.utils.counters.clear()
        torch.compile(function, backend="eager")(*inputs, **kwargs)
        counted = sum(dynamo.utils.counters["graph_break"].values())
        dynamo.reset()
    return max(explained.graph_break_count, counted, int(explained.graph_count == 0))


def one_graph(function: Any, inputs: Any) -> bool:
    """Whether `torch.compile(function, fullgraph=True)` takes one call."""
    torch = _torch()
    with _silence():
        torch._dynamo.reset()
        try:
            torch.compile(function, fullgraph=True, backend="eager")(*inputs)
        except Exception:  # Dynamo's, or one that its backend or the code itself raises
            return False
        finally:
            torch._dynamo.reset()
    return True


@contextlib.contextmanager
def _silence() -> Iterator[Any]:
    """Neither the code's own output nor Dynamo's log lines."""
    quiet = logging.getLogger().manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(quiet)


@dataclass
class Behaviour:
    """What one run did: leaves of the result, of the inputs and the buffers afterwards (`left`),
    which of their tensors are one or share memory, gradients by parameter name and input, text on
    stdout, the exception."""

    values: list = field(default_factory=list)
    left: dict = field(default_factory=dict)
    together: list = field(default_factory=list)
    gradients: dict = field(default_factory=dict)
    text: str = ""
    error: str = ""


def observe(make: Any, seed: Any) -> Any:
    """The Behaviour of `make()`'s callable on its inputs in eager, with every generator seeded."""
    torch = _torch()
    result, out = Behaviour(), io.StringIO()
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed)
        torch.manual_seed(seed)
        function, inputs = make()
        torch.manual_seed(seed + 1)
        try:
            value = function(*inputs)
            result.values = leaves(value)
            result.together = together(
                t for t in [*result.values, *leaves(inputs)] if isinstance(t, torch.Tensor)
            )
            _backward(torch, result)
        except Exception as error:
            result.error = f"{type(error).__name__}: {error}"
    result.text = out.getvalue()
    result.gradients = _gradients(torch, function, inputs)
    buffers = dict(module.named_buffers()) if (module := _module(torch, function)) else {}
    result.left = {f"input {i}": t for i, t in enumerate(leaves(inputs))}
    result.left.update({f"buffer {name}": t for name, t in buffers.items()})
    return result


def _module(torch: Any, function: Any) -> Any:
    """The module that is called, or whose method is; None where there is none."""
    owner = getattr(function, "__self__", None)
    found = function if isinstance(function, torch.nn.Module) else owner
    return found if isinstance(found, torch.nn.Module) else None


def _backward(torch: Any, result: Any) -> None:
    """Backward of the sum of every differentiable floating-point output."""
    losses = [
        v.sum()
        for v in result.values
        if isinstance(v, torch.Tensor) and v.requires_grad and v.is_floating_point()
    ]
    if losses:
        sum(losses).backward()


def _gradients(torch: Any, function: Any, inputs: Any) -> Any:
    module = _module(torch, function)
    named = dict(module.named_parameters()) if module is not None else {}
    named.update(
        {f"input {i}": t for i, t in enumerate(leaves(inputs)) if isinstance(t, torch.Tensor)}
    )
    return {
        name: None if t.grad is None else t.grad.clone() for name, t in named.items() if t.is_leaf
    }


def leaves(value: Any) -> Any:
    """The tensors and plain values of nested tuples, lists, dicts and objects with a __dict__ of
    their own."""
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    return [value]


def differences(first: Any, second: Any, rounded: bool = False) -> Any:
    """What two Behaviours differ in, one line each; `rounded`: but for rounding and strides."""
    found = []
    if first.error != second.error:
        found.append(f"exception: {first.error or 'none'} / {second.error or 'none'}")
    if first.text != second.text:
        found.append(f"printed text: {first.text!r} / {second.text!r}")
    if len(first.values) != len(second.values):
        found.append(f"values: {len(first.values)} / {len(second.values)}")
    pairs = enumerate(zip(first.values, second.values, strict=False))
    found += [f"value {i}: {why}" for i, (a, b) in pairs for why in [_differ(a, b, rounded)] if why]
    for what, one, other in (
        ("gradient of ", first.gradients, second.gradients),
        ("", first.left, second.left),
    ):
        for name in one.keys() | other.keys():
            why = _differ(one.get(name), other.get(name), rounded)
            found += [f"{what}{name}: {why}"] if why else []
    if first.together != second.together and not found:
        found.append("other tensors are one, or share memory, of the results and inputs")
    return found


def _differ(first: Any, second: Any, rounded: bool) -> Any:
    torch = _torch()
    if type(first) is not type(second):
        return f"{type(first).__name__} / {type(second).__name__}"
    if not isinstance(first, torch.Tensor):
        return "" if first == second or repr(first) == repr(second) else f"{first!r} / {second!r}"
    about, other = (layout(t, not rounded) for t in (first, second))
    if about != other:
        return f"{about} / {other}"
    if rounded and first.is_floating_point():
        return "" if near(samples(first), samples(second)) else "other numbers"
    equal = torch.equal(torch.nan_to_num(first.detach()), torch.nan_to_num(second.detach()))
    same_nan = torch.equal(torch.isnan(first), torch.isnan(second))
    return "" if equal and same_nan else "other numbers"


# The command


def load_text(text: str, path: str, name: str) -> Any:
    """A module made of `text`, as if it stood at `path`."""
    module = types.ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    import linecache  # so that tools which read the source see this text

    shown = f"<{name}> {path}"
    linecache.cache[shown] = (len(text), None, text.splitlines(keepends=True), shown)
    exec(compile(text, shown, "exec"), module.__dict__)
    return module


def _target(spec: Any) -> Any:
    """(path of the module's file, name of its factory) of `MODULE:FACTORY`; MODULE may be a
    file."""
    module, _, factory = spec.rpartition(":")
    if not module:
        raise VerifyError(f"{spec!r} is not MODULE:FACTORY")
    if os.path.exists(module):
        return module, factory
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # of the package around it
        found = None
    if found is None or not found.origin:
        raise VerifyError(f"no module {module!r}")
    return found.origin, factory


def _factory(text: str, path: str, name: str, factory: Any) -> Any:
    module = load_text(text, path, name)
    if not hasattr(module, factory):
        raise VerifyError(f"{path} has no {factory!r}")
    return getattr(module, factory)


@dataclass
class Outcome:
    """`kept`: the source after taking back fixes that failed; `refused`: (finding, differences) of
    those."""

    source: object
    kept: object
    applied: tuple
    refused: list
    before: int
    after: int
    whole_before: bool
    whole_after: bool


def verify(source: SourceFile, factory: Any, settings: Settings, seeds: Any = (0, 1, 2, 3)) -> Any:
    """Fix `source`, compare with the original on every seed, take back what differs, count breaks
    before and after."""
    fixed = check.fix(source, settings)
    original = _factory(source.text, source.path, "dynfix_original", factory)
    refused = []
    candidate, applied = fixed.source, fixed.applied
    whole = one_graph(*original())
    problems = _compare(original, candidate, factory, seeds, whole, rounds(applied))
    if problems:
        candidate, applied, refused = _one_by_one(source, original, factory, settings, seeds, whole)
    make = _factory(candidate.text, source.path, "dynfix_fixed", factory)
    before, after = count_breaks(*original()), count_breaks(*make())
    return Outcome(source, candidate, applied, refused, before, after, whole, one_graph(*make()))


def rounds(applied: Any) -> bool:
    """Whether some findings were fixed in a way that changes the last digits."""
    return any(BY_CODE[f.code].rounds for f in applied)


def _compare(
    original: Any, candidate: Any, factory: Any, seeds: Any, whole: bool, rounded: bool
) -> list[str]:
    """What differs after some fixes; the loss of the one graph that the original is counts."""
    make = _factory(candidate.text, candidate.path, "dynfix_fixed", factory)
    for seed in seeds:
        found = differences(observe(original, seed), observe(make, seed), rounded)
        if found:
            return found
    return ["it is not one graph any more"] if whole and not one_graph(*make()) else []


def _one_by_one(
    source: SourceFile, original: Any, factory: Any, settings: Settings, seeds: Any, whole: bool
) -> Any:
    """Fix by fix, keeping those after which the code still behaves as the original."""
    current, applied, refused, seen = source, [], [], set()
    while True:
        found = [f for f in check.findings(current, settings) if settings.wants(f)]
        todo = next((f for f in found if (f.code, f.fix.title, f.line) not in seen), None)
        if todo is None:
            return current, tuple(applied), refused
        changed = check.apply_fixes(current, [todo.fix])
        problems = (
            ["its fix does not parse"]
            if changed is None
            else _compare(original, changed, factory, seeds, whole, rounds([todo, *applied]))
        )
        if problems:
            seen.add((todo.code, todo.fix.title, todo.line))
            refused.append((todo, problems))
        else:
            current, applied = changed, [*applied, todo]


def command(options: Any, settings: Any) -> Any:
    """`--verify MODULE:FACTORY`: fix the module's file, verified; print the table; the exit
    code."""
    try:
        path, factory = _target(options.verify)
        if options.trace:
            settings = replace(
                settings, facts=planned(trace_facts.run(options.trace, [path]), settings)
            )
        with open(path, "rb") as stream:
            read = stream.read()
        source = SourceFile.from_bytes(read, path)
        outcome = verify(source, factory, settings)
    except (VerifyError, SourceError) as error:
        say(str(error))
        return 2
    _table(outcome)
    if not options.check and not options.diff and outcome.kept.text != source.text:
        write(path, outcome.kept.to_bytes(), read)
    left = [f for f in check.findings(outcome.kept, settings) if f.level == ERROR]
    return 1 if left or outcome.refused else 0


def _table(outcome: Any) -> None:
    print(seen(outcome.source.path))
    print(f"  fixes kept        {len(outcome.applied):>4}")
    print(f"  fixes taken back  {len(outcome.refused):>4}")
    print(f"  breaks before     {outcome.before:>4}")
    print(f"  breaks after      {outcome.after:>4}")
    whole = ["yes" if w else "no" for w in (outcome.whole_before, outcome.whole_after)]
    print(f"  one graph before  {whole[0]:>4}")
    print(f"  one graph after   {whole[1]:>4}")
    for finding, problems in outcome.refused:
        what = f"{finding.place}: {finding.code} {finding.fix.title}: {problems[0]}"
        print(f"  taken back {seen(what)}")
    if not outcome.refused and rounds(outcome.applied):
        print("  values and gradients are those of the original, up to rounding")
    elif not outcome.refused:
        print("  values, gradients, printed text and exceptions are those of the original")
