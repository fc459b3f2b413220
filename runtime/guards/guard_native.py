"""The native engine of the guards: built once in the background, checked against Python before it
is relied on, attached when ready.

Until it is there, or where it cannot be (no compiler, no Python.h, a torch whose tensors it does
not understand), the Python engine serves. `DYNFIX_NATIVE_GUARDS=0` keeps it away.
"""

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.autograd import forward_ad

from .. import build
from ..diagnostics import log
from ..gc_pause import gc_paused
from ..signals import reach_the_user
from ..torch_headers import torch_flags
from . import access_paths, guard_checks
from .guard_plan import GuardPlan, GuardStep
from .guard_state import forward_level
from .tensor_meta import TensorMeta

Match = Callable[[tuple[Any, ...], dict[str, Any]], "list[Any] | None"]

# Numbers as in native/guard_walk.h.
_STEPS: dict[type, int] = {
    access_paths.Arg: 0,
    access_paths.Kwarg: 1,
    access_paths.Obj: 2,
    access_paths.Attr: 3,
    access_paths.InstDict: 4,
    access_paths.Item: 5,
    access_paths.DictKey: 6,
    access_paths.Stored: 6,  # native code serves dicts alone, and no subclass: Python reads these
    access_paths.Referent: 6,
    access_paths.OnArray: 6,
    access_paths.AsTensor: 6,
    access_paths.Cell: 7,
    access_paths.TypeOf: 8,
}
_CHECKS: dict[type, int] = {
    guard_checks.Is: 0,
    guard_checks.TypeIs: 1,
    guard_checks.Equals: 2,
    guard_checks.Length: 3,
    guard_checks.Keys: 4,
    guard_checks.Missing: 5,
    guard_checks.ClassAttr: 6,
    guard_checks.Tensor: 7,
    guard_checks.HasKey: 8,
}
_PYTHON_CHECK = 9
_PATIENCE = 32  # matches in Python before building is worth its while,
_SECONDS = 0.1  # or seconds that they took: those of a whole training step take 10 ms each
_INDEXED = (access_paths.Arg, access_paths.Cell, access_paths.DictKey)
# Tensors with one of these are asked in Python: their sizes may be symbolic or answered by a
# subclass.
_ODD_KEYS = tuple(
    getattr(torch._C.DispatchKey, name)
    for name in (
        "Python",
        "Functionalize",
        "FuncTorchBatched",
        "FuncTorchGradWrapper",
        "FuncTorchDynamicLayerFrontMode",
    )
    if hasattr(torch._C.DispatchKey, name)
)


def _objects() -> dict[str, Any]:
    nn = torch.nn
    return {
        "object_getattribute": object.__dict__["__getattribute__"],
        "module_getattr": nn.Module.__dict__["__getattr__"],
        "list_getitem": nn.ModuleList.__dict__["__getitem__"],
        "list_len": nn.ModuleList.__dict__["__len__"],
        "list_index": nn.ModuleList.__dict__["_get_abs_string_index"],
        "sequential_getitem": nn.Sequential.__dict__["__getitem__"],
        "sequential_len": nn.Sequential.__dict__["__len__"],
        "sequential_index": nn.Sequential.__dict__["_get_item_by_idx"],
        "tensor_base": torch._C.TensorBase,
        "forward_ad": forward_ad.__dict__,
        "function_stack_at": torch._C._get_function_stack_at,
        "dispatch_stack_at": torch._C._get_dispatch_stack_at,
    }


def _samples() -> list[torch.Tensor]:
    """Tensors of many kinds, to compare what native code reads of them with what Python does."""
    base = torch.zeros(2, 3, 4)
    with torch.inference_mode():
        inference = torch.zeros(3)
    grown = torch.zeros(2, requires_grad=True)
    kinds = (
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.complex64,
    )
    return [
        base,
        base.transpose(0, 2),
        base[:, 1:, ::2],
        base.expand(5, 2, 3, 4),
        torch.zeros(()),
        torch.zeros(0, 3),
        torch.nn.Parameter(torch.zeros(2)),
        grown * 2,
        grown.detach(),
        inference,
        torch.zeros(2, dtype=torch.complex64).conj(),
        torch.zeros(2, 3, device="meta"),
        *(torch.zeros(1, dtype=kind) for kind in kinds),
    ]


def _agrees(native: ModuleType, tensor: torch.Tensor) -> bool:
    keys, _, device, requires_grad, sizes, strides = native.facts(tensor)
    meta = TensorMeta.of(tensor)
    seen = (keys, device, requires_grad, sizes, strides)
    return bool(seen == (meta.keys, str(meta.device), meta.requires_grad, meta.sizes, meta.strides))


def _notices(native: ModuleType) -> bool:
    """Whether the bytes of the global state change with the state, and come back."""

    def now() -> bytes:
        return bytes(native.state(forward_level()))

    before = now()
    contexts = (
        torch.set_grad_enabled(not torch.is_grad_enabled()),
        torch.inference_mode(not torch.is_inference_mode_enabled()),
        torch.autocast("cpu", enabled=not torch.is_autocast_enabled("cpu")),
        torch.device("meta"),
        torch._C.DisableTorchFunction(),
    )
    for context in contexts:
        with context:
            if now() == before:
                return False
    return now() == before


class _Probe:
    """An object whose attribute dict is watched."""


def _stores(probe: _Probe, turn: int) -> None:
    """Stores of the kinds that Python specialises once they are hot."""
    probe.x = turn  # type: ignore[attr-defined]
    probe.__dict__["y"] = turn
    probe.z = float(turn)  # type: ignore[attr-defined]


def _delete_and_restore(table: dict[str, Any]) -> None:
    table["y"] = table.pop("y")


def _counts_stores(native: ModuleType) -> bool:
    """Whether every store into a dict changes its version, also after Python has specialised the
    store."""
    probe, turns = _Probe(), 100
    probe.x = probe.z = None  # type: ignore[attr-defined]
    table = probe.__dict__
    changes: tuple[Callable[[int], object], ...] = (
        lambda turn: _stores(probe, turn),
        lambda turn: setattr(probe, "x", object()),
        lambda turn: table.update(x=turn),
        lambda turn: table.pop("x", None) or table.setdefault("x", object()),
        lambda turn: _delete_and_restore(table),
        lambda turn: table.popitem() and table.update(w=turn),
    )
    seen = {native.dict_version(table)}
    for turn in range(turns):
        for change in changes:
            change(turn)
            seen.add(native.dict_version(table))
    return len(seen) == turns * len(changes) + 1


def _self_test(native: ModuleType) -> str | None:
    """What native code reads wrongly, or None."""
    plain = torch.zeros(2)
    if not native.setup(plain, plain._cdata, _objects()):
        return "the layout of a tensor object is not understood"
    native.use_versions(_counts_stores(native))
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        wrong = [tensor for tensor in _samples() if not _agrees(native, tensor)]
    if wrong:
        return f"the metadata of {TensorMeta.of(wrong[0])} is read wrongly"
    return None if _notices(native) else "a change of the global state goes unnoticed"


def _load() -> ModuleType:
    """Build (or find) the extension and check it. Raises BuildError or ImportError."""
    native = build.load_extension("guard", build.build_extension("guard", **torch_flags()))
    trouble = _self_test(native)
    if trouble is not None:
        raise ImportError(f"native guards do not fit torch {torch.__version__}: {trouble}")
    return native


_scalar_types: dict[torch.dtype, int | None] = {}


def _scalar_type(native: ModuleType, dtype: torch.dtype) -> int | None:
    """torch's number of a dtype; None for one of which no tensor can be made."""
    if dtype not in _scalar_types:
        try:
            with torch._C.DisableTorchFunction():
                _scalar_types[dtype] = native.facts(torch.empty(0, dtype=dtype, device="cpu"))[1]
        except (RuntimeError, TypeError):
            _scalar_types[dtype] = None
    return _scalar_types[dtype]


def _tensor_facts(native: ModuleType, meta: TensorMeta) -> tuple[Any, ...] | None:
    """The facts of a plain strided tensor; None where Python must be asked."""
    keys, number = (
        torch._C.DispatchKeySet.from_raw_repr(meta.keys),
        _scalar_type(native, meta.dtype),
    )
    odd = (
        meta.strides is None
        or meta.layout is not torch.strided
        or any(keys.has(key) for key in _ODD_KEYS)
    )
    if odd or number is None:
        return None
    return (
        meta.keys,
        number,
        str(meta.device),
        meta.requires_grad,
        meta.sizes,
        meta.strides,
        meta.packed,
    )


def _lower_check(native: ModuleType, check: guard_checks.Check) -> tuple[Any, ...]:
    kind = _CHECKS.get(type(check), _PYTHON_CHECK)
    arg, extra = check.arg, None  # type: Any, Any
    if isinstance(check, guard_checks.Tensor):
        arg, extra = check.arg.cls, _tensor_facts(native, check.arg)
        kind = _PYTHON_CHECK if extra is None else kind
    elif isinstance(check, guard_checks.ClassAttr):
        extra = check.name
    elif isinstance(check, guard_checks.Length):
        extra = check.arg
    elif isinstance(check, guard_checks.HasKey):
        extra = int(check.present)
    return kind, arg, extra, check, arg is guard_checks.ABSENT


def _lower_step(native: ModuleType, step: GuardStep) -> tuple[Any, ...]:
    arg, index = step.path.arg, -1
    if isinstance(step.path, _INDEXED) or (
        isinstance(step.path, access_paths.Item) and type(arg) is int and 0 <= arg < 2**31
    ):
        index = arg
    lowered = tuple(_lower_check(native, check) for check in step.checks)
    return _STEPS[type(step.path)], step.base, arg, index, str(index), step.path, lowered


@gc_paused()
def lower(native: ModuleType, plan: GuardPlan) -> Match:
    """The native matcher of a plan."""
    steps = tuple(_lower_step(native, step) for step in plan.steps)
    made = native.Guards(
        plan,
        plan.state,
        plan.nargs,
        plan.kwnames,
        steps,
        plan.inputs,
        plan.distinct,
        plan.disjoint,
        plan.twins,
    )
    return made.match  # type: ignore[no-any-return]


def _enabled() -> bool:
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return bool(has_gil) and os.environ.get("DYNFIX_NATIVE_GUARDS", "1") != "0"


class _Engine:
    """The one native engine of the process: not asked for yet, being built, there, or given up."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None
        self.native: ModuleType | None = None
        self.failed = None if _enabled() else "switched off"
        self.patience: int | None = None
        self.seconds = 0.0
        self.waiting: weakref.WeakKeyDictionary[Any, GuardPlan] = weakref.WeakKeyDictionary()

    def attach(self, owner: Any, plan: GuardPlan) -> None:
        """Give `owner.match` a matcher: the native one, or the Python one until there is one."""
        with self.lock:
            if self.native is None and self.failed is None:
                self.waiting[owner] = plan
                owner.match = self._counted(plan.match)
                return
        owner.match = plan.match if self.native is None else self._lowered(self.native, plan)

    def _counted(self, match: Match) -> Match:
        def counted(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
            start = time.perf_counter()
            self._tick()
            found = match(args, kwargs)
            self.seconds += time.perf_counter() - start
            return found

        return counted

    def _tick(self) -> None:
        """Count a match in Python; after the first few, begin to load or build."""
        if self.thread is not None or self.failed is not None:
            return
        if self.patience is None:
            self.patience = self._first_patience()
        self.patience -= 1
        if self.patience < 0 or self.seconds > _SECONDS:
            with self.lock:
                self._start()

    def _first_patience(self) -> int:
        with reach_the_user():
            try:
                stored = build.find_extension("guard", **torch_flags()) is not None
                return 1 if stored else _PATIENCE
            except Exception as error:
                self._give_up(str(error))
        return _PATIENCE

    def _start(self) -> None:
        if self.thread is None and self.failed is None:
            # No daemon: a process that ends meanwhile waits for the compiler, once, and the next
            # one finds what it built.
            self.thread = build.begun("dynfix-guards", self._run, daemon=False)
            if self.thread is None:
                self.failed = "there is no thread"

    def _run(self) -> None:
        with reach_the_user():
            try:
                native = _load()
            except Exception as error:
                self._give_up(str(error))
                return
        with self.lock:
            self.native = native
            waiting = list(self.waiting.items())
            self.waiting.clear()
        for owner, plan in waiting:
            owner.match = self._lowered(native, plan)

    def _lowered(self, native: ModuleType, plan: GuardPlan) -> Match:
        try:
            return lower(native, plan)
        except (ValueError, TypeError, OverflowError) as error:
            log.info("one set of guards is checked in Python: %s", error)
            return plan.match

    def _give_up(self, reason: str) -> None:
        log.info("guards are checked in Python: %s", reason)
        with self.lock:
            self.failed = reason
            waiting = list(self.waiting.items())
            self.waiting.clear()
        for owner, plan in waiting:
            owner.match = plan.match

    def wait(self) -> ModuleType | None:
        with self.lock:
            if self.native is None:
                self._start()
            thread = self.thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        return self.native

    def load_here(self) -> None:
        with self.lock:
            if self.thread is not None or self.failed is not None:
                return
            self.thread = threading.current_thread()
        self._run()


_engine = _Engine()


def attach(owner: Any, plan: GuardPlan) -> None:
    """Set `owner.match`, now and again once the native engine is ready. owner: weakly
    referenceable, hashed by identity."""
    _engine.attach(owner, plan)


def load_here() -> None:
    """Load or build the native engine in the calling thread, unless another one does: a process
    that ends meanwhile need not wait."""
    _engine.load_here()


def wait() -> ModuleType | None:
    """The native engine, built now if need be and waited for; None if there is none here."""
    return _engine.wait()


def loaded() -> ModuleType | None:
    """The native engine, if it is there."""
    return _engine.native
