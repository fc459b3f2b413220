"""One form for all ways of writing a call of a function: what stands for its default is left out,
arguments stand by position as far as they can."""

import inspect
from typing import Any

Call = tuple[tuple[Any, ...], dict[str, Any]]
_NONE = inspect.Parameter.empty


def canonical(signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: Any) -> Call:
    """The call in that form. Raises the TypeError of a call that the function does not take."""
    if signature is None:
        return args, kwargs
    bound = signature.bind(*args, **kwargs)
    if any(signature.parameters[name].kind is _REST for name in bound.arguments):
        return bound.args, bound.kwargs
    positional, named, gap = [], dict[str, Any](), False
    for name, parameter in signature.parameters.items():
        value = bound.arguments.get(name, _NONE)
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            named.update({} if value is _NONE else value)
        elif value is _NONE or _is_default(value, parameter.default):
            gap = True
        elif gap or parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                return bound.args, bound.kwargs
            named[name] = value
        else:
            positional.append(value)
    return tuple(positional), named


_REST = inspect.Parameter.VAR_POSITIONAL


def _is_default(value: Any, default: Any) -> bool:
    if value is default:
        return True
    return type(value) in (int, float, str) and type(value) is type(default) and value == default


def form(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, tuple[str, ...]]:
    """What two calls have alike that one version can serve."""
    return len(args), tuple(kwargs)
