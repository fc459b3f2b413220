"""DYN408: context managers that Dynamo cannot enter."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.kinds import literal
from ....rewriter.source.spans import Refusal, Safety, hidden
from ...analysis.prior_bindings import prior_values
from ..base import Rule

if TYPE_CHECKING:
    from ....rewriter.source.spans import Fix
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_AROUND = frozenset(
    [
        "torch.random.fork_rng",
        "torch.backends.cudnn.flags",
        "torch.backends.mkldnn.flags",
        "torch.autograd.graph.saved_tensors_hooks",
        "torch.autograd.graph.save_on_cpu",
        "torch.autograd.graph.allow_mutation_on_saved_tensors",
        "torch.autograd.set_multithreading_enabled",
        "torch.sparse.check_sparse_tensor_invariants",
        "torch.jit.optimized_execution",
        "torch.utils.checkpoint.set_checkpoint_early_stop",
        "torch.utils.flop_counter.FlopCounterMode",
        "torch._dynamo.config.patch",
        "contextlib.closing",
        "contextlib.chdir",
        "decimal.localcontext",
        "tempfile.TemporaryDirectory",
        "tempfile.TemporaryFile",
        "tempfile.NamedTemporaryFile",
        "unittest.mock.patch",
        "unittest.mock.patch.object",
        "numpy.printoptions",
    ]
)
# Those that compiled code can do without: what it loses.
_WITHOUT = {
    "torch.autograd.set_detect_anomaly": "the compiled code does not look for anomalies",
    "torch.autograd.detect_anomaly": "the compiled code does not look for anomalies",
    "contextlib.redirect_stdout": "what compiled code prints is not redirected",
    "contextlib.redirect_stderr": "what compiled code prints is not redirected",
    "numpy.errstate": "compiled code does not heed NumPy's error settings",
}
_LOCKS = frozenset(
    f"{module}.{name}"
    for module in ("threading", "multiprocessing")
    for name in ("Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition")
)
_SDP = "torch.backends.cuda.sdp_kernel"
_BACKENDS = {
    "enable_flash": "FLASH_ATTENTION",
    "enable_math": "MATH",
    "enable_mem_efficient": "EFFICIENT_ATTENTION",
    "enable_cudnn": "CUDNN_ATTENTION",
}


class ContextManager(Rule):
    """
    Most context managers are traced: `torch.no_grad`, `autocast`, profilers,
    `warnings.catch_warnings`, functions under `contextlib.contextmanager` and classes of one's own.
    Some are not: locks, a device as the default one, flags of cuDNN, `fork_rng`, anomaly detection,
    hooks for saved tensors, redirected output. A break in a `with` cannot be resumed, so the whole
    function around it runs in eager. What compiled code can do without is entered in eager alone
    (`contextlib.nullcontext()` when compiled): unsafe, for the compiled code goes without; a lock
    that captured code also releases, asks or notifies is left. `sdp_kernel` has a successor that is
    traced: unsafe, for the original warns that it is deprecated.
    """

    code = "DYN408"
    safety = Safety.UNSAFE
    nodes = (ast.With,)
    before = """
import contextlib

import torch


@torch.compile
def step(x: torch.Tensor):
    with torch.autograd.set_detect_anomaly(True):
        return torch.relu(x)
"""
    after = """
import contextlib

import torch


@torch.compile
def step(x: torch.Tensor):
    with contextlib.nullcontext() if torch.compiler.is_compiling() else torch.autograd.set_detect_anomaly(True):
        return torch.relu(x)
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        for item in node.items:
            yield from self._item(item, context)

    def _item(self, item: ast.withitem, context: FileContext) -> Iterator[Finding]:
        manager = item.context_expr
        name = context.resolve(manager.func) if isinstance(manager, ast.Call) else None
        lost = _WITHOUT.get(name) or (
            "the compiled code takes no lock" if _is_lock(manager, context) else ""
        )
        if name in _AROUND:
            yield context.finding(self, manager, f"`{name}` cannot be entered in a graph")
        elif _is_device(manager, name, context):
            message = "a device cannot be entered in a graph"
            yield context.finding(
                self, manager, message, help="name device= in the calls that make tensors"
            )
        elif lost or name == _SDP:
            shown = f"`{name}`" if name else "a lock"
            built = self._eager(item, lost, context) if lost else self._successor(item, context)
            yield context.finding(self, manager, f"{shown} cannot be entered in a graph", fix=built)

    def _eager(self, item: ast.withitem, why: str, context: FileContext) -> Fix | Refusal:
        """The Fix that enters it only when not compiling, or the Refusal."""
        found = context.torch(item.context_expr)
        own = context.module("contextlib", item.context_expr)
        if item.optional_vars is not None:
            return Refusal("what it gives is used")
        if _used(item.context_expr, context):
            return Refusal(
                "captured code uses the lock in another way, too, which may need it to be held"
            )
        if found is None or own is None:
            return hidden("torch", "contextlib")
        choice = f"contextlib.nullcontext() if {found[0]}.compiler.is_compiling() else "
        edit = context.replacement(item.context_expr, choice + context.shown(item.context_expr))
        imports = (*found[1], *own)
        return context.fix(
            "enter it in eager only", edit, safety=Safety.UNSAFE, why=why, imports=imports
        )

    def _successor(self, item: ast.withitem, context: FileContext) -> Fix | Refusal:
        """`sdpa_kernel` with the backends that `sdp_kernel` would let in."""
        call = item.context_expr
        found, chosen = context.torch(call), _backends(call)
        if item.optional_vars is not None:
            return Refusal("what it gives is used")
        if found is None or chosen is None:
            return hidden() if found is None else Refusal("its arguments are computed")
        module = f"{found[0]}.nn.attention"
        listed = ", ".join(f"{module}.SDPBackend.{b}" for b in chosen)
        edit = context.replacement(call, f"{module}.sdpa_kernel([{listed}])")
        why = "the original warns that it is deprecated; torch before 2.3 has no such function"
        return context.fix("use sdpa_kernel", edit, safety=Safety.UNSAFE, why=why, imports=found[1])


def _is_lock(node: ast.expr, context: FileContext) -> bool:
    if isinstance(node, ast.Call):
        return context.resolve(node.func) in _LOCKS
    values = prior_values(node, context)
    return bool(values) and all(
        isinstance(v, ast.Call) and context.names.resolve(v.func) in _LOCKS for v in values
    )


def _used(manager: ast.expr, context: FileContext) -> bool:
    """Whether the lock that `manager` names stands, in captured code, elsewhere than after `with`,
    or in another lock."""
    if isinstance(manager, ast.Call):
        return False
    managed = {
        id(i.context_expr)
        for t in (ast.With, ast.AsyncWith)
        for w in context.index.get(t, ())
        for i in w.items
    }
    locks = [n for n in context.index.get(ast.Call, ()) if context.names.resolve(n.func) in _LOCKS]
    captured = [f.node for f in context.program.captured(context.settings.scope)]
    parts = (n for root in [*captured, *locks] for n in ast.walk(root))
    return any(_called(n) == _called(manager) and id(n) not in managed for n in parts)


def _called(node: ast.AST) -> str | None:
    """The name by which a node reads a variable or an attribute."""
    loaded = isinstance(getattr(node, "ctx", None), ast.Load)
    return getattr(node, "id", None) or getattr(node, "attr", None) if loaded else None


def _is_device(node: ast.expr, name: str | None, context: FileContext) -> bool:
    own = (
        isinstance(node, ast.Attribute)
        and node.attr == "device"
        and context.kind(node.value).is_tensor
    )
    return own or name == "torch.device"


def _backends(call: Any) -> list[str] | None:
    """The backends that the literal arguments of `sdp_kernel` leave on, in the order in which it
    lists them."""
    if len(call.args) > len(_BACKENDS) or any(k.arg not in _BACKENDS for k in call.keywords):
        return None
    given = {
        **dict(zip(_BACKENDS, call.args, strict=False)),
        **{k.arg: k.value for k in call.keywords},
    }
    values = {name: literal(value) for name, value in given.items()}
    if not all(isinstance(v, bool) for v in values.values()):
        return None
    order = ("enable_flash", "enable_mem_efficient", "enable_math", "enable_cudnn")
    return [_BACKENDS[name] for name in order if values.get(name, True)]
