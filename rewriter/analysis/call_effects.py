"""What calls may do beside giving their value: each fact once, and the policies by name that
patterns, rules and the planner of reads ask for."""

import ast
import enum

from ...lowering.opinfo import having
from .oracle import Oracle


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


class CallEffect(enum.Flag):
    """What a call may do; READS: a tensor's value on the host, STATE: of libraries, of autograd, or
    of the world outside, ANYTHING: nothing is known of what is called."""

    DRAWS = enum.auto()
    READS = enum.auto()
    WRITES = enum.auto()
    STATE = enum.auto()
    ANYTHING = enum.auto()


# Policies: what a call may do and still be one of that sort.
ONLY_COMPUTES = CallEffect(0)
MAY_DRAW = CallEffect.DRAWS
MAY_READ = CallEffect.READS  # it changes nothing, and gives the same whenever it is made
MAY_WRITE = CallEffect.READS | CallEffect.WRITES  # into what its own code made

DRAWS = having("draws")
_READS = _words("item tolist numpy")
_STATE = _words(
    """
    backward compile copyto fromfile load manual_seed memmap register_hook
    register_post_accumulate_grad_hook requires_grad_ retain_grad save seed tofile
    """
)
_CALLS = _words("apply_ cond map_ vmap while_loop")  # what they are given
_OF_STATE = ("torch.random.", "torch.cuda.", "torch.distributed.", "torch.utils.", "torch._")
LOGGERS = ("logging.", "loguru.logger.")
# Methods of lists, dicts, sets and deques.
CHANGES_CONTAINERS = _words(
    "append appendleft extend insert pop popitem remove clear update setdefault add discard sort"
    " reverse"
)

# What can be worked out of every tensor of a dtype: no content and no size makes it raise.
TOTAL_METHODS = _words("clone neg detach contiguous relu float double")
TOTAL_FUNCTIONS = _words(
    "torch.zeros_like torch.ones_like torch.relu torch.nn.functional.relu torch.clone"
)
TOTAL_REDUCTIONS = _words("sum any all")
TOTAL_TESTS = TOTAL_REDUCTIONS | _words("isnan isinf isfinite item")

# Builtins.
_NUMBERS = _words("abs bool divmod float int len max min pow round sum")
_CONTAINERS = _words("dict enumerate list map range reversed slice sorted tuple zip")
_TEXTS = _words("format repr str")
_OTHERS = _words(
    "all any filter frozenset getattr hasattr isinstance issubclass iter next set super type"
)
_IDENTITY = _words("hash id")
CONSTANT_BUILTINS = _NUMBERS | _CONTAINERS  # of constants they give constants
AHEAD_BUILTINS = _NUMBERS | _CONTAINERS | _TEXTS | _OTHERS  # give the same at another time
QUIET_BUILTINS = _NUMBERS | _TEXTS | _IDENTITY | _words("list sorted tuple type")  # can be left out
NEW_BUILTINS = (  # share no memory with what they are given
    _NUMBERS | _TEXTS | _IDENTITY | _words("all any hasattr isinstance print range type")
) - _words("max min")


def of_function(call: ast.Call, full: str) -> CallEffect:
    """What a call of the function `full` of torch, NumPy or `math` may do."""
    last = full.rpartition(".")[2]
    if not full.startswith(("torch.", "numpy.", "math.")):
        return CallEffect.ANYTHING
    asks = last.startswith("is_") or last == "device_count"
    found = _of_name(last)
    if full.startswith("numpy.random."):
        found |= CallEffect.DRAWS | CallEffect.STATE
    if last.startswith("set_") or (full.startswith(_OF_STATE) and not asks):
        found |= CallEffect.STATE
    return found | CallEffect.WRITES if any(k.arg == "out" for k in call.keywords) else found


def of_method(name: str) -> CallEffect:
    """What a call of a tensor's method may do."""
    return _of_name(name)


def _of_name(last: str) -> CallEffect:
    found = CallEffect.DRAWS if last in DRAWS else CallEffect(0)
    found |= CallEffect.READS if last in _READS else CallEffect(0)
    found |= CallEffect.STATE if last in _STATE else CallEffect(0)
    found |= CallEffect.ANYTHING if last in _CALLS else CallEffect(0)
    return found | CallEffect.WRITES if last.endswith("_") else found


def allows(policy: CallEffect, effects: CallEffect) -> bool:
    """Whether a call with these effects is one of the sort that a policy names."""
    return not effects & ~policy


def tensor_work(call: ast.Call, context: Oracle, policy: CallEffect) -> bool:
    """Whether a call surely is one of a function of torch or of a tensor's method, and a policy
    allows it."""
    full = context.resolve(call.func) or ""
    if isinstance(call.func, ast.Attribute) and context.kind(call.func.value).is_tensor:
        return allows(policy, of_method(call.func.attr))
    return full.startswith("torch.") and allows(policy, of_function(call, full))


def draws(node: ast.AST) -> bool:
    """Whether something in `node` may draw random numbers, by the names of what is called."""
    calls = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
    return any((getattr(f, "attr", "") or getattr(f, "id", "")) in DRAWS for f in calls)
