"""f-strings and printed text while recording: text made of tensors' values is made again at every
later call."""

import contextlib
import re
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from ...runtime.errors import GraphBreakError
from ...runtime.programs.recipes import Apply, CannotRebuild, ConstRecipe, Recipe, RecipeMaker
from .. import catalogue
from ..capture.effects import SideEffect
from ..capture.guarded_kinds import is_constant
from ..capture.nested import concretize, plain_in, tensors_in
from ..capture.numbers import scalars
from ..capture.recording import leaf
from ..capture.trace import Recorder
from ..capture.values import history_of
from . import c_calls, items

_CONVERSIONS: dict[str | None, Callable[[Any], Any]] = {
    "r": repr,
    "s": str,
    "a": ascii,
    None: lambda value: value,
}


def formatted(value: Any, conversion: str | None, spec: str) -> str:
    """The text of one `{value!conversion:spec}`."""
    return format(_CONVERSIONS[conversion](value), spec)


def traced_format(rec: Recorder, value: Any, conversion: str | None, spec: Any) -> Any:
    """As `formatted`, with a recipe if the value or the spec comes from a tensor."""
    if not _is_traced(value) and not _is_traced(spec):
        c_calls.check(rec, ("__str__", "__repr__", "__format__"), value)
        items.guard_arguments(rec, (value,), {})
        return rec.once(formatted, (concretize(value), conversion, spec))
    recipe = Apply(
        formatted, (text_recipe(rec, value), ConstRecipe(conversion), text_recipe(rec, spec))
    )
    with rec.paused():
        text = formatted(scalars.plain(value), conversion, scalars.plain(spec))
    return scalars.traced(text, recipe)


def traced_join(pieces: tuple[str, ...]) -> Any:
    return scalars.apply(lambda *texts: "".join(texts), *pieces)


def traced_text(rec: Recorder, function: Callable[..., str], *values: Any) -> Any:
    """`function(*values)`, a text of these values as they are now."""
    recipe = Apply(function, tuple(text_recipe(rec, value) for value in values))
    try:
        with rec.paused():
            text = function(*plain_in(values))
    except Exception as error:  # of the values, or of their sizes
        with contextlib.suppress(GraphBreakError):
            rec.stop(catalogue.UNSUPPORTED, f"a text raised {type(error).__name__}")
        raise
    rec.must_work(recipe)  # `"%d" % nan` does not
    return scalars.traced(text, recipe)


def is_format(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this is `text.format(...)` of tensors' values."""
    bound = isinstance(function, types.BuiltinMethodType) and function.__name__ == "format"
    if not bound or not isinstance(function.__self__, str):
        return False
    return bool(tensors_in((args, kwargs))) or any(map(_is_traced, (*args, *kwargs.values())))


def traced_text_format(
    rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    names, count = tuple(kwargs), len(args)

    def run(text: str, *values: Any) -> str:
        return text.format(*values[:count], **dict(zip(names, values[count:], strict=True)))

    return traced_text(rec, run, function.__self__, *args, *kwargs.values())


def _is_traced(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or type(value) in scalars.TRACED


def text_recipe(rec: Recorder, value: Any) -> Recipe:
    """The recipe of a value as a print shows it now, whatever happens to it later."""
    if isinstance(value, torch.Tensor):
        return _tensor_recipe(rec, value)
    if type(value) in scalars.TRACED:
        return scalars.recipe_of(value)
    if is_constant(value) and not isinstance(value, torch.Size):
        return ConstRecipe(value)
    try:
        return RecipeMaker(lambda part: _shown_leaf(rec, part)).recipe(value)
    except CannotRebuild as error:
        rec.stop(catalogue.UNSUPPORTED, f"text of what cannot be made again: {error}")
        return ConstRecipe(value)


def _shown_leaf(rec: Recorder, value: Any) -> Recipe | None:
    """Tensors as they are now; objects from outside as they will be."""
    return _tensor_recipe(rec, value) if isinstance(value, torch.Tensor) else leaf(rec, value)


def _tensor_recipe(rec: Recorder, tensor: torch.Tensor) -> Recipe:
    with rec.paused():
        history = history_of(tensor)
    return Apply(lambda tensor: _shown(tensor, history), (rec.snapshot(tensor),))


def _shown(tensor: torch.Tensor, history: str) -> torch.Tensor:
    """A tensor that is shown as eager shows it: with the name of its own gradient function, not of
    the compiled one."""
    if not history:
        return tensor
    shown = tensor.as_subclass(_Shown)
    shown.history = history
    return shown


class _Shown(torch.Tensor):
    """A tensor as any other to who takes its value (`"%.2f" % t`, handlers of log records)."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    history: str

    def __repr__(self) -> str:  # type: ignore[override]
        text = repr(self.as_subclass(torch.Tensor))
        return re.sub(r"grad_fn=<[^>]*>", f"grad_fn=<{self.history}>", text)

    def __format__(self, spec: str) -> str:
        if self.dim() == 0:
            return format(self.item(), spec)
        return format(str(self), spec)


def _is_made(rec: Recorder, stream: Any) -> bool:
    """Whether the call made the stream: it is made again as it is at the end, with its text."""
    return rec.known.path_of(stream) is None and stream not in rec.streams


def show(
    rec: Recorder, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`print`, a log call, a warning: done now, and again at every later call, with the values of
    that call."""
    if function is print and _is_made(rec, kwargs.get("file") or sys.stdout):
        rec.stop(catalogue.UNSUPPORTED, "text is printed into an object that the call made")
    arguments = tuple(text_recipe(rec, value) for value in args)
    keywords = {name: text_recipe(rec, value) for name, value in kwargs.items()}
    rec.effects.append(SideEffect(function, arguments, keywords))
    with rec.paused():
        return rec.once(function, plain_in(args), plain_in(kwargs))
