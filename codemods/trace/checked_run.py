"""A run of a script with other texts in the place of some files:
`python -m dynfix.codemods.trace.checked_run TEXTS.json OUT.json SCRIPT ARGS…` writes what its
outermost modules gave, and which of them are one graph. Eager; every generator seeded. Needs
torch."""

from __future__ import annotations

import ast
import atexit
import builtins
import contextlib
import copy
import ctypes
import functools
import hashlib
import importlib
import inspect
import io
import json
import linecache
import logging
import os
import random
import re
import statistics
import sys
import time
import types
import warnings
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from typing import Any

from .. import fixed_programs
from .tensor_traits import layout, samples, together
from .traced_program import launch

_MAX_NOTED_CALLS = 10_000  # outermost calls, of which the results are noted
_HELD = 100  # outermost modules, of which it is noted what is left in them
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_CHECKS = 3  # calls of a module class or a function, which are compiled and compared


class CheckedRun:
    """What is observed has the file of its outermost call: `values`, digests of the result of each
    such call and of the tensors that it was given, as they are then, and which of them are one or
    share memory; `printed`, what each file's calls print. `breaks`: for each module class and
    function, 0 where fullgraph=True takes its first call, else one more than Dynamo notes graph
    breaks (of a frame that runs in eager it notes none; None: compiled code raises there, or would,
    did it not run in eager then); `wrong`: where compiled code gives other values or gradients,
    leaves another state, or raises alone; `changed`: what is not one graph and runs one of `texts`.
    `places`: the lines, from within, at which what is not one graph breaks.
    `rounded`: floats are noted as numbers, to be compared
    with a tolerance. `zeros`: a gradient of zeros is as good as none. `broken`: the names of which
    breaks are counted (None: all); of others that are not one graph, one is noted."""

    def __init__(
        self,
        texts: dict[str, str],
        counted: list[str] | None = None,
        rounded: bool = False,
        zeros: bool = False,
        broken: list[str] | None = None,
    ) -> None:
        self.counted, self.rounded, self.zeros, self.broken = counted, rounded, zeros, broken
        self.texts, self.values, self.breaks, self.depth = texts, [], {}, 0
        self.wrong: list[str] = []
        self.changed: set[str] = set()
        self.places: dict[str, list[tuple[str, int]]] = {}
        self.checks: dict[str, int] = {}
        self.times: dict[str, list[float]] = {}
        self.printed: dict[str, Any] = {}
        self.current = ""
        self.called: list[Any] = []
        self.torch = importlib.import_module("torch")
        self.compile_graph = self.torch.compile

    def install(self) -> None:
        torch = self.torch
        random.seed(0)
        torch.manual_seed(0)
        torch.compile = self._as_it_is
        self.call = torch.nn.Module.__call__
        torch.nn.Module.__call__ = self.watching()
        write = sys.stdout.write

        def counted(text: str) -> int:
            self.printed.setdefault(self.current, hashlib.sha256()).update(text.encode())
            return write(text)

        sys.stdout.write = counted
        self._replace_texts()

    def watching(self) -> Any:
        """What stands in the place of `Module.__call__`."""

        def called(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self.depth:
                return self.call(module, *args, **kwargs)
            result = self.outermost(module, functools.partial(self.call, module), args, kwargs)
            if len(self.called) < _HELD and all(m is not module for m in self.called):
                self.called.append(module)
            return result

        return called

    def outermost(self, made: Any, call: Any, args: Any, kwargs: Any) -> Any:
        """The result of an outermost call of a module or a compiled function; noted."""
        self.depth, self.current = 1, file_of(made)
        try:
            self._check(made, args, kwargs)
            start = time.perf_counter()
            result = call(*args, **kwargs)
            taken = time.perf_counter() - start
            self.times.setdefault(_name_of(made), []).append(taken)
        finally:
            self.depth, file, self.current = 0, self.current, ""
        if len(self.values) < _MAX_NOTED_CALLS:
            given = list(_tensors([args, kwargs], self.torch))
            every = [*_tensors(result, self.torch), *given]
            noted = [self.digest(result), together(every)]
            self.values.append([file, noted, [self.digest(t) for t in given]])
        return result

    def _as_it_is(self, model: Any = None, **options: Any) -> Any:
        """In the place of torch.compile: both runs are eager."""
        if model is None:
            return self._as_it_is
        if not isinstance(model, types.FunctionType):
            return model

        @functools.wraps(model)
        def called(*args: Any, **kwargs: Any) -> Any:
            if self.depth:
                return model(*args, **kwargs)
            return self.outermost(model, model, args, kwargs)

        return called

    def _check(self, made: Any, args: Any, kwargs: Any) -> None:
        """Compile a copy of what is called, for copies of what it is given, and compare with eager.
        Leaves no trace."""
        name = _name_of(made)
        uncounted = self.counted is not None and file_of(made) not in self.counted
        checked = self.checks.get(name, 0)
        if uncounted or checked == _CHECKS or self.breaks.get(name, 0) != 0:
            return
        self.checks[name] = checked + 1
        with self._unnoticed():
            if not checked:
                self._reset()
            try:
                compiled = self._outcome(made, args, kwargs, fullgraph=True, backend="eager")
            except Exception as error:  # of any sort: it is not one graph, or raises in eager, too
                self.places[name] = _places_of(error)
                if not self._raises(made, args, kwargs) or not checked:
                    self.breaks[name] = self._breaks(made, args, kwargs)
                return
            self.breaks[name] = 0
            if not self._close(compiled, self._outcome(made, args, kwargs)):
                self.wrong.append(name)

    def _reset(self) -> None:
        """Forget what was compiled. Guards are not timed, for which the processor's caches are
        flushed each time."""
        dynamo = self.torch._dynamo
        dynamo.reset()
        dynamo.guards.profile_guard_manager = lambda *args: 0.0

    @contextlib.contextmanager
    def _unnoticed(self) -> Iterator[None]:
        torch = self.torch
        torch.nn.Module.__call__, watching = self.call, torch.nn.Module.__call__
        disabled, state = logging.root.manager.disable, random.getstate()
        logging.disable(logging.CRITICAL)
        fixed_programs.SUPPRESS_ERRORS = False
        try:
            with warnings.catch_warnings(), _silence():
                warnings.simplefilter("ignore")
                yield
        finally:
            fixed_programs.SUPPRESS_ERRORS = True
            torch.nn.Module.__call__ = watching
            random.setstate(state)
            logging.disable(disabled)

    def _outcome(self, made: Any, args: Any, kwargs: Any, **options: Any) -> list[Any]:
        """What a call with copies gives, what it leaves in them, and the gradients; compiled where
        there are options."""
        twin = made if isinstance(made, types.FunctionType) else copy.deepcopy(made)
        run = self.compile_graph(twin, **options) if options else twin
        inputs, named, state = self.copied(args), self.copied(kwargs), random.getstate()
        try:
            with self.torch.random.fork_rng():
                result = run(*inputs, **named)
        finally:
            random.setstate(state)
        held = [] if twin is made else [*twin.parameters(), *twin.buffers()]
        held += _parts([inputs, named], self.torch)
        return [result, held, self._gradients(result, held)]

    def _gradients(self, result: Any, held: list[Any]) -> list[Any]:
        """Of a weighted sum of the results; of what gets none, zeros or an empty tensor."""
        torch = self.torch
        outs = [t for t in _tensors(result, torch) if t.requires_grad]
        leaves = [t for t in _tensors(held, torch) if t.requires_grad and t.is_leaf]
        if not outs or not leaves:
            return []
        sums = [(t * torch.linspace(0.5, 1, t.numel()).to(t).view(t.shape)).sum() for t in outs]
        try:
            found = torch.autograd.grad(sums, leaves, allow_unused=True)
        except RuntimeError:  # written over, or of complex numbers
            return []
        none = torch.zeros_like if self.zeros else lambda leaf: torch.empty(0)
        return [none(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]

    def _breaks(self, made: Any, args: Any, kwargs: Any) -> int | None:
        """What `breaks` notes of what is not one graph."""
        if self.broken is not None and _name_of(made) not in self.broken:
            return 1
        torch, graphs = self.torch, []

        def counted(graph: Any, inputs: Any) -> Any:
            graphs.append(graph)
            return graph.forward

        self._reset()
        reasons = torch._dynamo.utils.counters["graph_break"]
        reasons.clear()
        try:
            self._outcome(made, args, kwargs, backend=counted)
            return 1 + max(len(graphs) - 1, sum(reasons.values()))
        except Exception:
            if self.texts and not self._raises(made, args, kwargs):
                self.wrong.append(_name_of(made))
            return None

    def _raises(self, made: Any, args: Any, kwargs: Any) -> bool:
        """Whether eager raises, too; notes whether it runs what has another text."""
        files = set[str]()
        sys.setprofile(lambda frame, event, arg: files.add(frame.f_code.co_filename))
        try:
            self._outcome(made, args, kwargs)
        except Exception:
            return True
        finally:
            sys.setprofile(None)
            if any(os.path.realpath(f) in self.texts for f in files):
                self.changed.add(_name_of(made))
        return False

    def _close(self, compiled: Any, eager: Any) -> bool:
        """Whether the tensors and numbers of two outcomes agree, but for rounding. A tensor may
        stand for a number in compiled code."""
        first, second = list(_parts(compiled, self.torch)), list(_parts(eager, self.torch))
        if len(first) != len(second):
            return False
        for place, (one, other) in enumerate(zip(first, second, strict=True)):
            if type(one) is not type(other) and not isinstance(other, self.torch.Tensor):
                first[place] = one.item() if isinstance(one, self.torch.Tensor) else one
        try:
            self.torch.testing.assert_close(first, second, equal_nan=True, rtol=1e-3, atol=1e-4)
        except (AssertionError, TypeError, RuntimeError, ValueError):
            return False
        return True

    def costs(self) -> dict[str, tuple[float, int]]:
        """Of each outermost module and function that was compiled, too: the milliseconds of a call
        in eager, the first one left out, and its graph breaks."""
        typical = {n: statistics.median(t[1:] or t) * 1000 for n, t in self.times.items()}
        known = {n: number and max(1, number - 1) for n, number in self.breaks.items()}
        return {n: (typical[n], 1 if k is None else k) for n, k in known.items() if n in typical}

    def left(self) -> list[Any]:
        """What is left in the outermost modules: parameters, their gradients, buffers, attributes
        of their own."""
        held = [(file_of(m), t) for m in self.called for t in (*m.parameters(), *m.buffers())]
        found = [[file, self.digest([t, t.grad if t.is_leaf else None])] for file, t in held]
        own = ((m, {k: v for k, v in vars(m).items() if k[:1] != "_"}) for m in self.called)
        return [*found, *([file_of(m), self.digest(values)] for m, values in own)]

    def copied(self, value: Any) -> Any:
        """The tensors of nested containers copied; `copy.deepcopy` refuses those with a history."""
        if isinstance(value, self.torch.Tensor):
            return value.detach().clone().requires_grad_(value.requires_grad)
        if type(value) in (list, tuple):
            return type(value)(map(self.copied, value))
        if type(value) is dict:
            return {k: self.copied(v) for k, v in value.items()}
        return copy.deepcopy(value)

    def digest(self, value: Any) -> Any:
        """Equal for equal results: types, dtypes, shapes, bits."""
        if isinstance(value, self.torch.Tensor):
            if self.rounded and value.is_floating_point() and not value.is_sparse:
                return [layout(value, with_strides=False), *samples(value)]
            return _tensor_digest(value, self.torch)
        if isinstance(value, (list, tuple)):
            return [type(value).__name__, *map(self.digest, value)]
        if isinstance(value, dict):
            return {str(k): self.digest(v) for k, v in value.items()}
        plain = value is None or isinstance(value, (bool, int, float, str))
        return f"{type(value).__name__} {value!r}" if plain else type(value).__name__

    # Texts

    def _replace_texts(self) -> None:
        compile_, get_code, texts = builtins.compile, SourceFileLoader.get_code, self.texts

        def compiled(source: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
            path = os.path.realpath(filename) if isinstance(filename, str) else ""
            flags = args[1] if len(args) > 1 else kwargs.get("flags", 0)
            if path in texts and not flags & ast.PyCF_ONLY_AST:
                source = texts[path]
            return compile_(source, filename, *args, **kwargs)

        def fresh(loader: Any, fullname: Any) -> Any:
            """Not from the byte code on disk."""
            path = loader.get_filename(fullname)
            if os.path.realpath(path) in texts:
                return loader.source_to_code(loader.get_data(path), path)
            return get_code(loader, fullname)

        builtins.compile, SourceFileLoader.get_code = compiled, fresh
        for path, text in texts.items():
            linecache.cache[path] = len(text), None, text.splitlines(keepends=True), path


def _tensor_digest(value: Any, torch: Any) -> str:
    about = layout(value)
    try:
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        read = ctypes.string_at(flat.data_ptr(), flat.numel()) if flat.numel() else b""
        return f"{about} {hashlib.sha256(read).hexdigest()[:16]}"
    except RuntimeError:  # sparse, quantised, on no device
        return about


def _tensors(value: Any, torch: Any) -> Iterator[Any]:
    """The tensors of nested containers, in order."""
    return (p for p in _parts(value, torch) if isinstance(p, torch.Tensor))


def _parts(value: Any, torch: Any) -> Iterator[Any]:
    """The tensors and numbers of nested containers, in order."""
    if isinstance(value, (torch.Tensor, int, float)):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _parts(part, torch)


def _places_of(error: BaseException) -> list[tuple[str, int]]:
    """The lines of the traced code at which capturing it ended, from within."""
    found = [(f.filename, f.lineno) for f in getattr(error, "real_stack", None) or ()]
    if not found:
        user = str(error).rpartition("from user code:")[2]
        found = [(file, int(line)) for file, line in _FRAME.findall(user)]
    return [(os.path.realpath(file), line) for file, line in reversed(found)]


def file_of(made: Any) -> str:
    """The file of a module's class, or of a function."""
    function = made if isinstance(made, types.FunctionType) else type(made).forward
    code = getattr(inspect.unwrap(function), "__code__", None)
    return os.path.realpath(code.co_filename) if code else ""


def _name_of(made: Any) -> str:
    kind = made if isinstance(made, types.FunctionType) else type(made)
    return f"{file_of(made)}:{kind.__qualname__}"


def _silence() -> Any:
    return contextlib.redirect_stdout(io.StringIO())


def main(argv: list[str]) -> None:
    listed, out, *words = argv
    with open(listed, encoding="utf-8") as stream:
        run = CheckedRun(**json.load(stream))
    run.install()

    def write() -> None:
        with open(out, "w", encoding="utf-8") as stream:
            printed = {file: text.hexdigest() for file, text in run.printed.items()}
            counted = {
                "values": [*run.values, *run.left()],
                "breaks": run.breaks,
                "wrong": run.wrong,
                "changed": sorted(run.changed),
                "places": {n: p for n, p in run.places.items() if run.breaks.get(n) != 0},
            }
            json.dump({**counted, "printed": printed, "costs": run.costs()}, stream)

    atexit.register(write)
    launch(words)


if __name__ == "__main__":
    main(sys.argv[1:])
