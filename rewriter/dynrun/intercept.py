"""What `dynrun` puts into torch when the script loads it: compiled outermost module calls, and
`torch.compile`.

`nn.Module.__call__` itself is not replaced. Its code asks `self._compiled_call_impl` first, a class
attribute that is None; here it becomes a descriptor that answers with a compiled call for outermost
modules, and with None while anything is being captured. This module loads no torch either: it is
given torch by the import.
"""

import atexit
import functools
import importlib
import importlib.abc
import importlib.util
import itertools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, ValuesView
from dataclasses import is_dataclass
from types import ModuleType
from typing import Any

from ... import __getattr__ as public
from ...runtime import backends, diagnostics
from ...runtime.call_sampling import CallSampler
from ...runtime.environment.machine import MACHINE
from ...runtime.environment.torch_versions import too_old
from ...runtime.options import list_mode_options
from ...runtime.signals import reach_the_user
from ..capture import current
from ..frontend.background import SiteUse
from ..frontend.tracebacks import without_own_frames
from ..source.live_source import is_made_by_torch, runs_torchs_compiler
from .hook_backoff import Doze
from .session import Session

KEPT = 256  # modules remembered; the one unused for longest is forgotten first
ELEMENTS_LOOKED_AT = 64  # of a container that a module is called with
HOOK_SECONDS = 1.5e-5  # that the hook takes until a compiled module is called
LOOKED_AT = 8  # calls of a module, after which it is looked whether it stays in eager for good
MANY_SHAPES = 16  # calls, each of a new signature, after which a module is compiled all the same
MANY_MADE = 8  # modules of one class that were compiled and are gone: others stay in eager
_HOOK = "_compiled_call_impl"
WRAPPERS = ("torch.nn.parallel.", "torch.distributed.")


def install(session: Session, eager_calls: int) -> None:
    """Put the hooks into torch, now or when it is imported. `eager_calls`: see `ModuleCalls`."""

    def into(torch: Any, seconds: float | None = None) -> None:
        if trouble := too_old(torch.__version__):
            diagnostics.warn_once("torch version", trouble)
            return
        if session.background is not None and seconds is not None:
            session.background.torch_took(min(seconds, MACHINE.interpreter_seconds()))
        Hooks(session, eager_calls).__enter__()
        session.torch_is_there()

    if "torch" in sys.modules:
        into(sys.modules["torch"])
    else:
        sys.meta_path.insert(0, AfterImport("torch", into))


class Hooks:
    """A context manager: inside, torch has the hooks. Loads torch when it is entered."""

    def __init__(self, session: Session, eager_calls: int) -> None:
        self.session, self._eager_calls = session, eager_calls
        self._calls: ModuleCalls | None = None
        self._before: Any = None

    def __enter__(self) -> None:
        torch: Any = importlib.import_module("torch")
        if self._calls is None:
            self._calls = ModuleCalls(torch, self.session, self._eager_calls)
        self._before = torch.compile, torch.nn.Module._compiled_call_impl
        torch.compile = torch_compile(torch.compile, self.session, self._calls)
        if self.session.steps is not None:
            self.session.steps.torch_is_there(_somebody_elses(torch))
        if self.session.kinds in ("auto", "modules"):
            torch.nn.Module._compiled_call_impl = self._calls

    def __exit__(self, *error: object) -> None:
        torch: Any = sys.modules["torch"]
        if self._calls is not None:
            self._calls.stay()
        torch.compile, torch.nn.Module._compiled_call_impl = self._before


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls `then(module, seconds)` once `name` has been imported, in so many seconds of processor
    time, and takes itself out. Who only asks whether there is such a module imports nothing."""

    def __init__(self, name: str, then: Callable[[ModuleType, float], None]) -> None:
        self.name, self.then = name, then

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            self._wrap(spec.loader)
        return spec

    def _wrap(self, loader: Any) -> None:
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            start = time.process_time()
            original(module)
            self.then(module, time.process_time() - start)

        loader.exec_module = exec_module


class ModuleHistory:
    """What is remembered of one module: the signatures that it was called with while eager, then
    its compiled entry."""

    def __init__(self, module: Any) -> None:
        self.ref = weakref.ref(module)
        self.signatures: list[Any] = []
        self.name = _name_of(module)
        self.entry: Any = None
        self.made: Any = None  # the entry, also where it is left by now
        self.excluded = False
        self.used = 0
        self.calls = 0
        self.seconds = 0.0

    def is_due(self, signature: Any, eager_calls: int) -> bool:
        """Whether to compile now: this signature was seen often enough, or many different ones
        were."""
        due = self.signatures.count(signature) >= eager_calls or len(self.signatures) >= MANY_SHAPES
        self.signatures.append(signature)
        return due

    def is_given_up(self) -> bool:
        """Whether it was compiled, and eager serves all the same."""
        return self.excluded and self.made is not None


class ModuleCalls:
    """The descriptor in the place of `nn.Module._compiled_call_impl`. It has no `__set__`, so
    `module.compile()` wins.

    A module is compiled after `eager_calls` eager calls of the same signature: one that is called
    once, or once with each of a few shapes, costs nothing.
    """

    def __init__(self, torch: Any, session: Session, eager_calls: int) -> None:
        self._session, self._eager_calls = session, eager_calls
        self._grad_enabled, self._tensor = torch.is_grad_enabled, torch.Tensor
        self._captured_already = (torch.jit.ScriptModule, torch.fx.GraphModule)
        self._somebody_elses = _somebody_elses(torch)
        self._known: dict[int, ModuleHistory] = {}
        self._made: dict[type, list[Any]] = {}  # references to the compiled modules of a class
        self._clock = itertools.count()
        self._lock = threading.Lock()
        self._thread = threading.local()
        background, call = session.background, torch.nn.Module._wrapped_call_impl.__code__
        self._watch: CallSampler | None = None
        self._doze: Doze | None = None
        if background is not None:
            self._watch = CallSampler(
                background.account, background.cost, call, background.is_expecting
            )
            background.uses.append(self.uses)
            self._doze = Doze(
                functools.partial(setattr, torch.nn.Module, _HOOK, None),
                functools.partial(setattr, torch.nn.Module, _HOOK, self),
                background.worker.ident,
            )
            self._watch.away = self._doze.rest
            atexit.register(self._doze.end)

    def __get__(self, module: Any, owner: Any = None) -> Any:
        thread = self._thread
        if module is None or getattr(thread, "busy", False):
            return None
        if getattr(thread, "given", 0) == id(module):
            thread.given = 0  # torch asks whether it is None, and then asks again for what to call
        elif (self._watch is not None and self._watch.sleeps()) or self._passes_by(module):
            return None
        else:
            thread.given = id(module)
        return functools.partial(self._call, module)

    def stay(self) -> None:
        """The descriptor is neither taken away nor put back by itself any more."""
        if self._doze is not None:
            self._doze.end()

    def exclude(self, module: Any) -> None:
        """Its own calls are compiled elsewhere, by an explicit `torch.compile`."""
        self._find(module).excluded = True

    def _passes_by(self, module: Any) -> bool:
        return (
            sys.gettrace() is not None  # a debugger, or coverage: it is to see every line
            or self._somebody_elses()
            or _is_wrapper(type(module))
        )

    def _call(self, module: Any, /, *args: Any, **kwargs: Any) -> Any:
        known = self._find(module)
        entry = self._entry(known, module, args, kwargs)
        self._thread.busy = True
        start = time.perf_counter()
        try:
            return (
                module._call_impl(*args, **kwargs)
                if entry is None
                else entry(module, *args, **kwargs)
            )
        except Exception as error:
            raise without_own_frames(error)  # noqa: B904, it is the same one
        finally:
            self._thread.busy = False
            known.calls += 1
            known.seconds += time.perf_counter() - start

    def _entry(
        self, known: "ModuleHistory", module: Any, args: Any, kwargs: Any
    ) -> Callable[..., Any] | None:
        """The compiled call, or None: this one runs eager, with everything inside it."""
        steps = self._session.steps
        if known.excluded or isinstance(module, self._captured_already):
            return None
        if steps is not None and steps.claims(module):
            return None
        if known.entry is None and self._is_no_model(module, (*args, *kwargs.values())):
            return None
        if known.entry is None and self._is_due(known, module, args, kwargs):
            with reach_the_user():
                known.entry = self._compiled(known, module)
        elif known.entry is not None and known.calls % LOOKED_AT == 0 and known.entry.is_eager():
            self._leave(known)
        return known.entry  # type: ignore[no-any-return]

    def uses(self) -> Iterator[SiteUse]:
        """The modules that were called so far."""
        share = 1.0 if self._watch is None else self._watch.share()
        for known in list(self._known.values()):
            if known.calls and known.name:
                looked = 1.0 if known.made is not None else share
                calls, seconds = int(known.calls / looked), known.seconds / looked
                yield SiteUse(known.name, calls, seconds, known.made, known.is_given_up())

    def _is_no_model(self, module: Any, given: tuple[Any, ...]) -> bool:
        """Whether the call is that of a transform of data: it takes no tensor, and has none."""
        return not self._has_tensor(given) and not next(_tensors_of(module), None)

    def _has_tensor(self, values: Iterable[Any], depth: int = 2) -> bool:
        for value in itertools.islice(values, ELEMENTS_LOOKED_AT):
            if isinstance(value, self._tensor):
                return True
            parts = getattr(value, "__dict__", {}).values() if is_dataclass(value) else value
            parts = parts.values() if isinstance(parts, Mapping) else parts
            nested = isinstance(parts, list | tuple | ValuesView)
            if depth and nested and self._has_tensor(parts, depth - 1):
                return True
        return False

    def _leave(self, known: "ModuleHistory") -> None:
        """Its calls stay in eager for good; where no other module's are compiled, nobody has to
        look at every call any more."""
        known.excluded, known.entry = True, None
        if self._watch is not None:
            self._watch.always = any(
                each.entry for each in list(self._known.values()) if each.ref() is not None
            )

    def _compiled(self, known: "ModuleHistory", module: Any) -> Callable[..., Any] | None:
        """None, and a message, where that failed, or where each call has a module of its own: the
        script goes on."""
        if self._is_made_anew(module):
            known.excluded = True
            return None
        try:
            entry = self._session.compile_calls(module)
        except Exception as error:
            known.excluded = True
            name, why = type(module).__qualname__, f"{type(error).__name__}: {error}"
            diagnostics.warn_once("internal", f"{name} runs in eager: it cannot be compiled: {why}")
            return None
        entry.background = self._session.background
        entry.seconds_to_reach = HOOK_SECONDS
        known.made = entry
        if self._watch is not None:
            self._watch.always = True
        return entry  # type: ignore[no-any-return]

    def _is_made_anew(self, module: Any) -> bool:
        """Whether the script makes modules of this class for a few calls each."""
        made = self._made.setdefault(type(module), [])
        if sum(each() is None for each in made) >= MANY_MADE:
            name = type(module).__qualname__
            diagnostics.warn_once(
                f"made-anew-{name}",
                f"{name} runs in eager: the script makes it again and again, and each one would be"
                " compiled; make it once",
            )
            return True
        made.append(weakref.ref(module))
        return False

    def _is_due(self, known: "ModuleHistory", module: Any, args: Any, kwargs: Any) -> bool:
        background = self._session.background
        if background is not None and self._watch is not None:
            return background.wants(
                _name_of(module), known.calls, known.seconds, self._watch.share()
            )
        session, name = self._session, type(module).__qualname__
        if session.steps is not None and not session.thorough:
            if not session.steps.pays_in_background(module, known.seconds):
                session.left[name] = known
                return False
            session.left.pop(name, None)
        return known.is_due(self._signature(module, args, kwargs), self._eager_calls)

    def _find(self, module: Any) -> ModuleHistory:
        known = self._known.get(id(module))
        if known is None or known.ref() is not module:
            known = self._remember(module)
        known.used = next(self._clock)
        return known

    def _remember(self, module: Any) -> ModuleHistory:
        with self._lock:
            if len(self._known) >= KEPT:
                del self._known[min(self._known, key=lambda key: self._known[key].used)]
            known = self._known[id(module)] = ModuleHistory(module)
            known.excluded = self._session.excludes(module)
        return known

    def _signature(self, module: Any, args: Any, kwargs: Any) -> Any:
        """Types, shapes and dtypes of the arguments, and the modes that choose the code that
        runs."""
        values = [
            (value.shape, value.dtype) if isinstance(value, self._tensor) else type(value)
            for value in args
        ]
        named = [
            (name, getattr(value, "shape", None), type(value)) for name, value in kwargs.items()
        ]
        return (*values, *named, module.training, self._grad_enabled())


def _tensors_of(module: Any) -> Iterator[Any]:
    """Its parameters and buffers."""
    yield from (True for _ in module.parameters())
    yield from (True for _ in module.buffers())


def _name_of(module: Any) -> str:
    cls = type(module)
    return f"{cls.__module__}.{cls.__qualname__}"


def _is_wrapper(cls: type) -> bool:
    """Whether calls only surround those of another module, which is the outermost one then.
    `fully_shard` changes a module's class, but its `forward` stays the user's."""
    forward = getattr(cls, "forward", None)
    return all(str(getattr(x, "__module__", "")).startswith(WRAPPERS) for x in (cls, forward))


def _somebody_elses(torch: Any) -> Callable[[], bool]:
    """Whether torch is in a state in which a module call belongs to somebody else: captured, traced
    or recomputed."""
    C, is_compiling = torch._C, torch.compiler.is_compiling
    in_backward, saved_hooks = (
        C._current_graph_task_id,
        C._autograd._top_saved_tensors_default_hooks,
    )
    dispatch_modes, functorch = C._len_torch_dispatch_stack, C._functorch.peek_interpreter_stack
    tracing, symbolic = C._get_tracing_state, torch.fx._symbolic_trace.is_fx_symbolic_tracing

    def somebody_elses() -> bool:
        return (
            current.recorder() is not None
            or is_compiling()
            or in_backward() != -1  # recomputed: it must save what the first run saved
            or saved_hooks(True) is not None
            or dispatch_modes() > 0
            or functorch() is not None
            or tracing() is not None
            or symbolic()
        )

    return somebody_elses


def torch_compile(
    original: Callable[..., Any], session: Session, calls: ModuleCalls
) -> Callable[..., Any]:
    """`torch.compile` as the script sees it. Backends that only torch knows are left to torch, and
    functions that only its compiler takes (flex_attention)."""

    @functools.wraps(original)
    def compile(model: Any = None, **arguments: Any) -> Any:
        if model is None:
            return functools.partial(compile, **arguments)
        torchs = runs_torchs_compiler(model) or is_made_by_torch(model)
        if torchs or not _is_known(arguments.get("backend")):
            if session.background is not None:
                session.background.give_up()  # Dynamo takes another thread's tracing for its own
            return original(model, **arguments)
        is_module = hasattr(model, "_compiled_call_impl")
        if is_module and type(model).__name__ == "OptimizedModule":
            model = getattr(model, "_orig_mod", model)  # it was compiled before
        kinds = session.kinds
        left_out = kinds == "step" or (kinds == "modules" and not is_module)
        if session.excludes(model) or left_out:
            compiled = original(model, disable=True)
        else:
            compiled = session.compile(model, **_translated(arguments))
        if not is_module or isinstance(model, type) or arguments.get("disable"):
            return compiled
        if hasattr(compiled, "_dynfix_entry"):
            calls.exclude(compiled._orig_mod)
            model = compiled._orig_mod
        around: Any = public("OptimizedModule")
        return around(model, compiled, arguments)

    return compile


def _is_known(backend: Any) -> bool:
    return backend is None or callable(backend) or backend in backends.known_here()


def _translated(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of torch.compile in our terms; `inductor`, its default, means whatever dynrun was
    asked to use."""
    same = ("fullgraph", "dynamic", "disable", "recompile_limit")
    kept: dict[str, Any] = {name: arguments[name] for name in same if name in arguments}
    backend, mode = arguments.get("backend"), arguments.get("mode")
    if backend not in (None, "inductor"):
        return {**kept, "backend": backend, "mode": mode, "options": arguments.get("options")}
    if arguments.get("options"):
        diagnostics.warn_once(
            "inductor-options",
            "options of torch.compile are Inductor's own: dynrun leaves them out",
        )
    return {**kept, "mode": mode} if mode in list_mode_options() else kept
