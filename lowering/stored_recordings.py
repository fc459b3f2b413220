"""Recorded calls that an earlier process stored: their guards, programs and effects as data, so
that nothing is recorded again.

The key holds what no guard sees: versions, processor, modes, options, the code of the compiled
function, and functions of libraries that somebody replaced. What the call relied on besides is a
guard, or the digest of a live object (`runtime/package/recording_data`): where one differs, the
call is recorded, as if nothing were stored.
"""

import dataclasses
import functools
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..runtime.cache import disk_cache, entries
from ..runtime.cache.live_objects import Digests, class_name, is_of, replaced_functions
from ..runtime.cache.named_functions import Unnamed
from ..runtime.cache.plain_data import Unstorable
from ..runtime.cache.surroundings import of_call, of_gpus, of_process
from ..runtime.diagnostics import log
from ..runtime.gc_pause import gc_paused
from ..runtime.guards.guard import Guard, GuardSet, GuardState
from ..runtime.options import Options
from ..runtime.package.recording_data import RecordingDecoder
from ..runtime.programs.entry import CacheEntry, ReplayPlan
from ..runtime.programs.steps import Feed, GraphStep
from ..runtime.signals import reach_the_user
from .autograd.double_backward import Differentiable, StoredGraphModule
from .autograd.result_views import ResultOrigin
from .stored_graphs import function_of

FORMAT = "recording-1"
PART = ".recordings"
MOST = 8  # recordings under one key: the newest stay
_VARIABLES = (
    *("ATEN_", "CUBLAS", "CUDA", "CUDNN", "DYNFIX_", "GOMP_", "HF_", "HIP_", "KMP_", "LOCAL_RANK"),
    *("MKL", "NCCL", "NVIDIA_", "OMP_", "PYTHON", "PYTORCH", "RANK", "ROC", "TORCH"),
    *("TRANSFORMERS", "TRITON", "WORLD_SIZE"),
)
_WITHOUT_EFFECT = (
    "TORCHINDUCTOR_CACHE_DIR",
    "DYNFIX_CACHE_DIR",
    "DYNFIX_LOGS",
    "DYNFIX_VERIFY",
    "PYTHONUNBUFFERED",
)
Call = tuple[tuple[Any, ...], dict[str, Any]]


# ---- the key


def key_of(fn: Callable[..., Any], options: Options, call: Call) -> str | None:
    """What the recordings of such calls are stored under; None where none may be."""
    if options.backend != "native" or options.write_kernels or _is_distributed():
        return None
    try:
        given = of_process(), of_call(), _answers(), _surroundings(), _variables()
        asked = repr(dataclasses.replace(options, recompile_limit=1))
        form = [*map(_kind, call[0])], [(name, _kind(value)) for name, value in call[1].items()]
        code = Digests().of(fn), replaced_functions()
        return disk_cache.key(FORMAT, *given, *code, asked, repr(form))
    except (Unnamed, Unstorable) as reason:
        log.debug("recordings are not stored: %s", reason)
        return None


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _answers() -> str:
    """What torch answers throughout a process, which recordings take without a guard."""
    on_gpu = torch.version.cuda or torch.version.hip
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    gpus = (of_gpus(), torch.cuda.device_count(), device) if on_gpu else ()
    threads = torch.get_num_threads(), torch.get_num_interop_threads()
    return repr((gpus, threads, torch.is_anomaly_enabled()))


@functools.cache
def _surroundings() -> str:
    """The rewriter's files, and what is installed."""
    package = Path(__file__).parents[1]
    files = sorted((str(path), _stamp(path)) for path in (package / "rewriter").rglob("*.py"))
    installed = sorted(
        name
        for folder in dict.fromkeys(sys.path)
        if os.path.isdir(folder)
        for name in os.listdir(folder)
        if name.endswith((".dist-info", ".egg-info"))
    )
    return repr((files, installed, platform.uname(), sys.flags))


@functools.cache
def _variables() -> str:
    """Those that libraries read, before torch's own compiler sets some."""
    return repr(
        sorted(
            (name, value)
            for name, value in os.environ.items()
            if name.startswith(_VARIABLES) and name not in _WITHOUT_EFFECT
        )
    )


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def _kind(value: Any) -> str:
    if is_of(value, torch.Tensor):
        kinds = value.dtype, value.device.type, value.dim(), value.requires_grad
        return f"{class_name(type(value))} {kinds}"
    training = vars(value).get("training") if is_of(value, torch.nn.Module) else ""
    return f"{class_name(type(value))} {training}"


# ---- reading


@dataclasses.dataclass(eq=False)
class StoredRecording:
    """What another process recorded, as far as this one knows it: in the place of a `Recording`
    whose graphs are not here."""

    guard_set: GuardSet
    guards: tuple[Guard, ...]
    segments: tuple[Any, ...] = ()
    graphs: tuple[Any, ...] = ()
    sites: tuple[Any, ...] = ()
    rewritten: tuple[Any, ...] = ()
    compile_times: dict[str, float] = dataclasses.field(default_factory=dict)


Loaded = tuple[StoredRecording, CacheEntry]


class StoredRecordings:
    """Those of one function."""

    def __init__(self, fn: Callable[..., Any], options: Options) -> None:
        self._fn, self._options = fn, options
        self._used: set[str] = set()  # the texts of those that are loaded
        self._own: set[str] = set()  # keys under which this process stored
        self.key: str | None = None  # of the last call that was asked for

    @reach_the_user()
    @gc_paused()
    def load(self, args: tuple[Any, ...], kwargs: dict[str, Any], eager: Any) -> Loaded | None:
        """A stored recording that serves the call, or None."""
        self.key = key_of(self._fn, self._options, (args, kwargs))
        stored = None if self.key is None or self.key in self._own else entries.read(self.key, PART)
        for text in () if stored is None else stored.get("recordings", ()):
            if text in self._used:
                continue
            try:
                found = _loaded(json.loads(text), self._fn, (args, kwargs), eager)
            except Exception as reason:  # whatever is wrong with it, the call can be recorded
                log.debug("a stored recording does not serve: %r", reason)
                continue
            if found is not None:
                self._used.add(text)
                return found
        return None

    def store(self, key: str, data: dict[str, Any]) -> None:
        """Keep a recording for later processes. Raises what cannot be written as JSON."""
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
        stored = entries.read(key, PART) or {}
        others = [one for one in stored.get("recordings", ()) if one != text]
        self._own.add(key)
        entries.write(key, {"recordings": [*others, text][-MOST:]}, PART)


def _loaded(data: dict[str, Any], fn: Any, call: Call, eager: Any) -> Loaded | None:
    decoder = RecordingDecoder(data, fn, call)
    decode = decoder.decode
    if data["nargs"] != len(call[0]) or tuple(data["kwnames"]) != tuple(call[1]):
        return None
    guards = tuple(decoder.guard(*one) for one in data["guards"])
    guard_set = GuardSet(
        guards,
        [decoder.path(number) for number in data["inputs"]],
        data["nargs"],
        tuple(data["kwnames"]),
        disjoint=data["disjoint"],
        twins=data["twins"],
        state=GuardState.of(decode(data["state"])),
    )
    if guard_set.match(*call) is None:
        log.debug("a stored recording does not serve: %s", guard_set.explain(*call))
        return None
    holds = decode(data["holds"])
    plan = ReplayPlan(
        steps=tuple(map(_step, data["steps"])),
        outcomes=tuple((after, decode(r), decode(seen)) for after, r, seen in data["outcomes"]),
        effects=tuple(decoder.effect(*one) for one in data["effects"]),
        output=decode(data["output"]),
        aliases=tuple(map(tuple, data["aliases"])),
        distinct=tuple(map(tuple, data["distinct"])),
        fed=tuple(map(decode, data["fed"])),
        holds=None if holds is None else holds.function(),
        random=data["random"],
        devices=tuple(map(decode, data["devices"])),
    )
    entry = CacheEntry(guard_set, plan, eager)
    return (StoredRecording(guard_set, guards), entry) if entry.serves(*call) else None


def _step(data: dict[str, Any]) -> GraphStep:
    feeds = tuple(Feed(int(segment), int(index)) for segment, index in data["feeds"])
    program = None if data["program"] is None else _program(data["program"])
    return GraphStep(program, feeds, tuple(data["writes"]), tuple(data["histories"]))


def _program(data: dict[str, Any]) -> Differentiable:
    key = data["key"]
    stored = data["graph"] if key is None else entries.read(key)
    module = (
        disk_cache.read(data["module"], disk_cache.GRAPH, touched=True) if data["module"] else None
    )
    if stored is None or (data["module"] and module is None):
        raise Unstorable("a program that is not in the cache")
    graph = StoredGraphModule(
        module, data["inputs"], data["with_gradients"], data["uncounted"], data["random"]
    )
    made = [ResultOrigin(*one) for one in data["made"]]
    return Differentiable(function_of(stored, data["origins"]), graph, key, made)


def program_data(program: Any, origins: Sequence[str]) -> dict[str, Any]:
    """The program of a segment, as `_program` reads it. Raises Unstorable."""
    if not isinstance(program, Differentiable) or program.stored is None:
        raise Unstorable("a graph that runs as it is")
    stored, recorded, module = program.stored, program.graph, None
    if stored.data is None:
        raise Unstorable(f"a program: {stored.refused}")
    if recorded.with_gradients:
        graph = recorded.to_bytes()
        module = disk_cache.key("graph", graph)
        disk_cache.put(module, disk_cache.GRAPH, graph)
    return {
        "key": stored.key,
        "graph": stored.data if stored.key is None else None,
        "origins": [*origins],
        "module": module,
        "inputs": recorded.inputs,
        "with_gradients": [*recorded.with_gradients],
        "uncounted": [*recorded.uncounted],
        "random": recorded.random,
        "made": [[*one] for one in program.made],
    }
