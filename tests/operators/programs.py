"""Samples as a program: a function of their tensors, with source in a file."""

import importlib.util
import itertools
import tempfile
from pathlib import Path

import torch

_numbers = itertools.count()


class _Text:
    """Python text of arguments; tensors become parameters, other objects constants."""

    def __init__(self):
        self.tensors, self.constants = [], {}

    def __call__(self, value):
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            return f"t{len(self.tensors) - 1}"
        if type(value) in (list, tuple):
            inside = "".join(self(item) + ", " for item in value)
            return f"[{inside}]" if type(value) is list else f"({inside})"
        if type(value) in (bool, int, str, type(None)):
            return repr(value)
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def call(self, args, kwargs):
        named = [f"{key}={self(value)}" for key, value in kwargs.items()]
        return f"f({', '.join([*map(self, args), *named])})"


def program(function, samples):
    """A function that calls `function` with each sample, and the samples' tensors, its
    arguments."""
    text = _Text()
    calls = [text.call((s.input, *s.args), s.kwargs) for s in samples]
    names = ", ".join(f"t{n}" for n in range(len(text.tensors)))
    lines = "".join(f"        {call},\n" for call in calls)
    folder = Path(tempfile.gettempdir()) / "dynfix_samples"
    folder.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".py", dir=folder, delete=False) as file:
        file.write(f"def call({names}):\n    return [\n{lines}    ]\n")
    spec = importlib.util.spec_from_file_location(f"samples{next(_numbers)}", file.name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.__dict__.update(text.constants, f=function)
    return module.call, text.tensors
