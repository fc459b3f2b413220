"""A run of a script with other texts in the place of some files:
`python -m dynfix.codemods.trace.checked_run TEXTS.json OUT.json SCRIPT ARGS…` writes what its
outermost modules gave, and which of them are one graph. Eager; every generator seeded. Needs
torch."""

from __future__ import annotations

import ast
import atexit
import builtins
import copy
import ctypes
import hashlib
import importlib
import json
import linecache
import logging
import os
import random
import sys
import warnings
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from typing import Any

from .tensor_traits import layout, together
from .traced_program import launch

_MAX_NOTED_CALLS = 10_000  # outermost calls, of which the results are noted
_HELD = 100  # outermost modules, of which it is noted what is left in them


class CheckedRun:
    """`values`: digests of the result of each outermost module call and of the tensors that it was
    given, as they are then, and which of them are one or share memory; `whole`: for each class of
    such modules, whether fullgraph=True takes its first call."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts, self.values, self.whole, self.depth = texts, [], {}, 0
        self.called: list[Any] = []
        self.torch = importlib.import_module("torch")
        self.compile_graph = self.torch.compile

    def install(self) -> None:
        torch = self.torch
        random.seed(0)
        torch.manual_seed(0)
        torch.compile = _as_it_is
        self.call = torch.nn.Module.__call__
        torch.nn.Module.__call__ = self.watching()
        self._replace_texts()

    def watching(self) -> Any:
        """What stands in the place of `Module.__call__`."""

        def called(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self.depth:
                return self.call(module, *args, **kwargs)
            self.depth += 1
            try:
                self._count(module, args, kwargs)
                result = self.call(module, *args, **kwargs)
            finally:
                self.depth -= 1
            if len(self.called) < _HELD and all(m is not module for m in self.called):
                self.called.append(module)
            if len(self.values) < _MAX_NOTED_CALLS:
                given = list(_tensors([args, kwargs], self.torch))
                every = [*_tensors(result, self.torch), *given]
                self.values.append([self.digest(result), together(every)])
                self.values.append([_tensor_digest(t, self.torch) for t in given])
            return result

        return called

    def _count(self, module: Any, args: Any, kwargs: Any) -> None:
        """Whether copies of the module and its inputs make one graph; leaves no trace."""
        torch, name = self.torch, type(module).__qualname__
        if name in self.whole:
            return
        torch.nn.Module.__call__, watching = self.call, torch.nn.Module.__call__
        quiet, state = logging.root.manager.disable, random.getstate()
        logging.disable(logging.CRITICAL)
        try:
            with torch.random.fork_rng(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                twin = copy.deepcopy(module)
                inputs, named = self.copied(args), self.copied(kwargs)
                self.compile_graph(twin, fullgraph=True, backend="eager")(*inputs, **named)
            self.whole[name] = True
        except Exception:  # of any sort: it is not one graph, or cannot be copied
            self.whole[name] = False
        finally:
            torch._dynamo.reset()
            torch.nn.Module.__call__ = watching
            random.setstate(state)
            logging.disable(quiet)

    def left(self) -> list[Any]:
        """What is left in the outermost modules: parameters, their gradients, buffers."""
        held = [t for m in self.called for t in (*m.parameters(), *m.buffers())]
        return [self.digest([t, t.grad if t.is_leaf else None]) for t in held]

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


def _as_it_is(model: Any = None, **options: Any) -> Any:
    """In the place of torch.compile: both runs are eager."""
    return model if model is not None else lambda function: function


def main(argv: list[str]) -> None:
    listed, out, *words = argv
    with open(listed, encoding="utf-8") as stream:
        run = CheckedRun(json.load(stream))
    run.install()

    def write() -> None:
        with open(out, "w", encoding="utf-8") as stream:
            json.dump({"values": [run.values, run.left()], "whole": run.whole}, stream)

    atexit.register(write)
    launch(words)


if __name__ == "__main__":
    main(sys.argv[1:])
