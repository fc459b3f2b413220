"""What `with` statements and calls do to the grad mode, as far as names tell."""

import ast
from typing import Any

_NEUTRAL = frozenset(
    """
    torch.autocast torch.amp.autocast torch.cuda.amp.autocast torch.cpu.amp.autocast
    torch.profiler.record_function torch.autograd.profiler.record_function torch.profiler.profile
    torch.cuda.stream torch.cuda.device torch.device contextlib.nullcontext open
    warnings.catch_warnings torch.nn.attention.sdpa_kernel torch.random.fork_rng
    """.split()
)
_MODES = frozenset(
    """
    torch.no_grad torch.enable_grad torch.inference_mode torch.set_grad_enabled
    torch.autograd.no_grad torch.autograd.enable_grad torch.autograd.set_grad_enabled
    torch.autograd.inference_mode
    """.split()
)
SWITCHES = frozenset(
    "set_grad_enabled _set_grad_enabled __enter__ enter_context push_context".split()
)


def _named(expression: Any, names: Any) -> Any:
    called = expression.func if isinstance(expression, ast.Call) else expression
    return names.resolve(called) or ""


def keeps_grad_mode(expression: Any, names: Any) -> bool:
    """Whether entering it surely leaves the grad mode as it is."""
    return _named(expression, names) in _NEUTRAL


def swallows_nothing(expression: Any, names: Any) -> bool:
    """Whether leaving it surely lets every exception through."""
    return _named(expression, names) in _NEUTRAL | _MODES


def switches(call: Any) -> bool:
    """Whether a call by its name alone may leave another grad mode behind."""
    name = getattr(call.func, "attr", None) or getattr(call.func, "id", "")
    return name in SWITCHES


def switching_functions(functions: Any, calls: Any) -> Any:
    """Names of the functions of a file that may leave another grad mode behind, by what they
    call."""
    if not any(map(switches, calls)):
        return set()
    made = {f.name: [n for n in ast.walk(f.node) if isinstance(n, ast.Call)] for f in functions}
    found, before = set(), None
    while found != before:
        before = set(found)
        found |= {n for n, cs in made.items() if any(switches(c) or _last(c) in found for c in cs)}
    return found


def _last(call: Any) -> Any:
    return getattr(call.func, "attr", None) or getattr(call.func, "id", "")
