"""Runs a feature file as it is and rewritten, and tells what an observer would see."""

import contextlib
import importlib.machinery
import importlib.util
import io
import itertools
import re
import sys
import types
from pathlib import Path

from dynfix.rewriter.instrument import emit
from plain_forms import Forms

FEATURES = Path(__file__).parent / "features"
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def path_of(name):
    """The feature file; the suffix keeps tools that know the oldest Python alone away from newer
    syntax."""
    return FEATURES / (f"{name}.py311" if name == "newer" else f"{name}.py")


def load(name):
    """A fresh module from a feature file."""
    loader = importlib.machinery.SourceFileLoader(f"features_{name}", str(path_of(name)))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def feature_names(module):
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, types.FunctionType)
        and value.__module__ == module.__name__
        and value.__code__.co_varnames[:1] == ("log",)
    ]


def rewrite_all(module, forms=Forms):
    """Every function and method of the module replaced by its rewritten self. Returns how many
    there were."""
    done = 0
    for holder in [
        module,
        *(
            v
            for v in vars(module).values()
            if isinstance(v, type) and v.__module__ == module.__name__
        ),
    ]:
        for name, value in list(vars(holder).items()):
            new = _rewritten(value, module, forms)
            if new is not None:
                setattr(holder, name, new)
                done += 1
    return done


def _rewritten(value, module, forms):
    if isinstance(value, types.FunctionType) and value.__globals__ is vars(module):
        return emit.rewrite(value, forms)
    if isinstance(value, classmethod | staticmethod):
        return type(value)(emit.rewrite(value.__func__, forms))
    if isinstance(value, property):
        parts = (
            part and emit.rewrite(part, forms) for part in (value.fget, value.fset, value.fdel)
        )
        return property(*parts)
    return None


def observe(fn, file):
    """Result, log, printed text, warnings' texts, exception with the lines of the user's own
    frames."""
    log, out = [], io.StringIO()
    result = error = lines = None
    with contextlib.redirect_stdout(out):
        try:
            result = fn(log)
        except Exception as raised:
            error = (type(raised).__name__, _plain(str(raised)), type(raised.__cause__).__name__)
            lines = user_lines(raised, file)
    return {
        "result": _plain(repr(result)),
        "log": _plain(repr(log)),
        "out": out.getvalue(),
        "error": error,
        "lines": lines,
    }


def user_lines(raised, file):
    """Line numbers of the frames in `file`. Lambdas are left out: the rewriter makes some."""
    frames = []
    tb = raised.__traceback__
    while tb is not None:
        if tb.tb_frame.f_code.co_filename == str(file) and tb.tb_frame.f_code.co_name not in (
            "<lambda>",
            "<listcomp>",
            "<genexpr>",
        ):
            frames.append(tb.tb_lineno)
        tb = tb.tb_next
    return [line for line, _ in itertools.groupby(frames)]


def _plain(text):
    return _ADDRESS.sub(" at 0x", text)
