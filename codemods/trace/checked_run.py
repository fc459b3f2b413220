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
import statistics
import sys
import time
import types
import warnings
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from typing import Any

from .tensor_traits import layout, samples, together
from .traced_program import launch

_MAX_NOTED_CALLS = 10_000  # outermost calls, of which the results are noted
_HELD = 100  # outermost modules, of which it is noted what is left in them


class CheckedRun:
    """What is observed has the file of its outermost call: `values`, digests of the result of each
    such call and of the tensors that it was given, as they are then, and which of them are one or
    share memory; `printed`, what each file's calls print. `whole`: for each module class and
    function, whether fullgraph=True takes its first call, and `wrong`: where that gives other
    values. `rounded`: floats are noted as numbers, to be compared with a tolerance."""

    def __init__(
        self, texts: dict[str, str], counted: list[str] | None = None, rounded: bool = False
    ) -> None:
        self.counted, self.rounded = counted, rounded
        self.texts, self.values, self.whole, self.depth = texts, [], {}, 0
        self.wrong: list[str] = []
        self.breaks: dict[str, int] = {}
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
            compiled = self._count(made, args, kwargs)
            start = time.perf_counter()
            result = call(*args, **kwargs)
            taken = time.perf_counter() - start
            self.times.setdefault(_name_of(made), []).append(taken)
            if compiled is not None and not self._close(compiled[0], result):
                self.wrong.append(_name_of(made))
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

    def _count(self, made: Any, args: Any, kwargs: Any) -> Any:
        """[what copies of the module and its inputs give, compiled]; None where they do not make
        one graph, or were compiled before. Leaves no trace."""
        torch, name = self.torch, _name_of(made)
        uncounted = self.counted is not None and file_of(made) not in self.counted
        if name in self.whole or uncounted:
            return None
        torch.nn.Module.__call__, watching = self.call, torch.nn.Module.__call__
        quiet, state = logging.root.manager.disable, random.getstate()
        logging.disable(logging.CRITICAL)
        self.whole[name] = False
        try:
            with torch.random.fork_rng(), warnings.catch_warnings(), _silence():
                warnings.simplefilter("ignore")
                twin = made if isinstance(made, types.FunctionType) else copy.deepcopy(made)
                inputs, named = self.copied(args), self.copied(kwargs)
                compiled = self.compile_graph(twin, fullgraph=True, backend="eager")
                result = compiled(*inputs, **named)
            self.whole[name] = True
            return [result]
        except Exception:  # of any sort: it is not one graph, or cannot be copied
            if self.texts and self._raises(made, args, kwargs):
                self.wrong.append(name)
            graph_breaks = torch._dynamo.utils.counters["graph_break"].values()
            self.breaks[name] = max(1, sum(graph_breaks))
            return None
        finally:
            torch._dynamo.reset()
            torch.nn.Module.__call__ = watching
            random.setstate(state)
            logging.disable(quiet)

    def _raises(self, made: Any, args: Any, kwargs: Any) -> bool:
        """Whether compiled code, which may break its graph, raises where eager does not. Dynamo
        counts its breaks."""
        self.torch._dynamo.reset()
        self.torch._dynamo.utils.counters.clear()
        for compiled in (False, True):
            try:
                twin = made if isinstance(made, types.FunctionType) else copy.deepcopy(made)
                run = self.compile_graph(twin, backend="eager") if compiled else twin
                with self.torch.random.fork_rng(), _silence():
                    run(*self.copied(args), **self.copied(kwargs))
            except Exception:
                return compiled
        return False

    def _close(self, compiled: Any, result: Any) -> bool:
        """Whether the tensors of two results agree, but for rounding."""
        pairs = list(_tensors(compiled, self.torch)), list(_tensors(result, self.torch))
        try:
            self.torch.testing.assert_close(*pairs, equal_nan=True, rtol=1e-3, atol=1e-4)
        except AssertionError:
            return False
        return True

    def costs(self) -> dict[str, tuple[float, int]]:
        """Of each outermost module and function that was compiled, too: the milliseconds of a call
        in eager, the first one left out, and its graph breaks."""
        typical = {n: statistics.median(t[1:] or t) * 1000 for n, t in self.times.items()}
        broken = {n: 0 if whole else self.breaks.get(n, 1) for n, whole in self.whole.items()}
        return {n: (typical[n], number) for n, number in broken.items() if n in typical}

    def left(self) -> list[Any]:
        """What is left in the outermost modules: parameters, their gradients, buffers."""
        held = [(file_of(m), t) for m in self.called for t in (*m.parameters(), *m.buffers())]
        return [[file, self.digest([t, t.grad if t.is_leaf else None])] for file, t in held]

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
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part, torch)


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
            counted = {"values": [*run.values, *run.left()], "whole": run.whole, "wrong": run.wrong}
            json.dump({**counted, "printed": printed, "costs": run.costs()}, stream)

    atexit.register(write)
    launch(words)


if __name__ == "__main__":
    main(sys.argv[1:])
