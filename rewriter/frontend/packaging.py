"""Writing a compiled model to a file: its versions are recorded on examples, and everything that a
later call needs is put into a package (`runtime/package`), which `lowering/packages` loads."""

import contextlib
import dataclasses
import errno
import inspect
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ... import __version__
from ...lowering.packages import LoadedModel, load
from ...lowering.stored_graphs import StoredGraph
from ...runtime import build
from ...runtime.cache import disk_cache
from ...runtime.cache.named_functions import Unnamed
from ...runtime.cache.plain_data import Unstorable
from ...runtime.cache.program_data import libraries_of, library_path
from ...runtime.diagnostics import log
from ...runtime.errors import BuildError, DynfixError, PackageError
from ...runtime.options import Options
from ...runtime.package import archive, machine_code
from ...runtime.package.call_forms import Call, canonical, form
from ...runtime.programs.launch import LAUNCH
from ..capture.recording import Recording
from ..capture.segments import Segment
from . import segment_programs
from .compiled_function import CompiledFunction
from .packaged_call import PackagedCall
from .packaged_weights import PackagedWeights

Example = tuple[Any, ...]
Kept = dict[int, StoredGraph]  # by the identity of the segment


@dataclasses.dataclass(frozen=True)
class Packaged:
    """What is packaged: `fn`, which is given `owner` first (a module, the object of a method, or
    nothing); `original`: what the user calls."""

    fn: Callable[..., Any]
    owner: tuple[Any, ...]
    original: Any
    options: Options

    @property
    def module(self) -> torch.nn.Module | None:
        return self.original if isinstance(self.original, torch.nn.Module) else None

    @property
    def name(self) -> str:
        named = self.original if inspect.isroutine(self.original) else type(self.original)
        return str(getattr(named, "__qualname__", named))

    def signature(self) -> inspect.Signature | None:
        called = self.original if self.module is None else self.module.forward
        try:
            return inspect.signature(called)
        except (TypeError, ValueError):
            return None


def packaged_of(entry: Any, original: Any) -> Packaged:
    """What `compile` made of `original`, calls of which go to `entry`, as packages take it."""
    owner: tuple[Any, ...] = () if entry.fn is original else (original,)
    if inspect.ismethod(original):
        owner = (original.__self__,)
    return Packaged(entry.fn, owner, original, entry.options)


def write(
    packaged: Packaged,
    path: str | os.PathLike[str],
    examples: Sequence[Example],
    weights: str = "inside",
) -> str:
    """Package it; the digest of the file. Raises PackageError, OSError."""
    if weights not in ("inside", "separate"):
        raise PackageError(f"weights must be 'inside' or 'separate', not {weights!r}")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", folder)
    packaging = _Packaging(packaged, examples)
    with packaging.refusing():
        recorded = packaging.recorded()
        return packaging.write(os.fspath(path), recorded, weights == "separate")


def aot_compile(packaged: Packaged, example_inputs: tuple[Any, Any]) -> LoadedModel:
    """The model compiled for such a call alone, as it is loaded from a package."""
    with tempfile.TemporaryDirectory(prefix="dynfix-") as folder:
        path = os.path.join(folder, "model")
        write(packaged, path, [example_inputs])
        return load(path)


class _Packaging:
    """One model on its way into a package."""

    def __init__(self, packaged: Packaged, examples: Sequence[Example]) -> None:
        self.owner, self.name, self.module = packaged.owner, packaged.name, packaged.module
        self.signature = packaged.signature()
        self.examples = [self._call(example) for example in examples]
        if not self.examples:
            raise PackageError("package() needs an example: examples=[((x,), {})]")
        limit = max(packaged.options.recompile_limit, 2 * len(self.examples))
        options = packaged.options.replace(fullgraph=True, recompile_limit=limit)
        if options.backend != "native":
            raise PackageError(f"programs of backend={options.backend!r} cannot be packaged")
        # each form of a call has its own: sizes move in one, and need not in another
        forms = dict.fromkeys(form(*call) for call in self.examples)
        self.compiled = {one: CompiledFunction(packaged.fn, options) for one in forms}
        self.kept: Kept = {}
        self.targets = machine_code.targets()

    def _call(self, example: Example) -> Call:
        args, kwargs = example if len(example) == 2 else (None, None)
        if not isinstance(args, tuple | list) or not isinstance(kwargs, dict):
            raise PackageError("an example is a pair of arguments: ((x,), {'mask': mask})")
        tensors = torch.utils._pytree.tree_leaves((args, kwargs))
        if any(isinstance(each, torch.Tensor) and each.requires_grad for each in tensors):
            raise PackageError("an example requires a gradient: packages give none, detach() it")
        return canonical(self.signature, tuple(args), kwargs)

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Why the model cannot be packaged, as one error."""
        try:
            yield
        except PackageError as error:
            raise PackageError(f"{self.name} cannot be packaged: {error}") from error
        except (DynfixError, Unstorable, Unnamed) as error:
            says = str(error).removeprefix("fullgraph=True, but ")
            raise PackageError(f"{self.name} cannot be packaged: {says}") from error

    def recorded(self) -> list[Any]:
        """The entries that serve the examples, when all have been recorded: (recording, plan,
        stored programs)."""
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
            _as_it_is(self.module),
            self._keeping(),
        ):
            for args, kwargs in self.examples * 2:  # a second call shows what the first changed
                self.compiled[form(args, kwargs)](*self.owner, *args, **kwargs)
            found = [self._serving(args, kwargs) for args, kwargs in self.examples]
        return list(dict.fromkeys(found))

    @contextlib.contextmanager
    def _keeping(self) -> Iterator[None]:
        def keep(segment: Segment, stored: StoredGraph) -> None:
            self.kept[id(segment)] = stored

        segment_programs.keepers.append(keep)
        try:
            yield
        finally:
            segment_programs.keepers.remove(keep)

    def _serving(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        entry = self.compiled[form(args, kwargs)].entry_for((*self.owner, *args), kwargs)
        if entry is None:
            raise PackageError(
                "a call with an example is compiled anew each time, or runs in eager"
            )
        return entry

    # ---- what is written

    def write(self, path: str, entries: list[Any], separate: bool) -> str:
        made = (one for compiled in self.compiled.values() for one in compiled.recordings)
        recordings = {id(one.guard_set): one for one in made if isinstance(one, Recording)}
        held = PackagedWeights(self.module, separate)
        parts: dict[str, Any] = {}
        calls = [
            PackagedCall(recordings[id(entry.guards)], self.owner, held, self.signature)
            for entry in entries
        ]
        _check_stores(calls)
        versions = []
        for number, (entry, call) in enumerate(zip(entries, calls, strict=True)):
            steps = [self._program(segment) for segment in call.recording.segments]
            parts[f"versions/{number}.json"] = call.data(entry.plan, steps)
            libraries = sorted({file for step in steps for file in _libraries(step)})
            versions.append({**call.described(), "kernels": libraries})
            parts |= self._kernels(libraries)
        parts[f"extensions/{LAUNCH}.so"] = build.build_extension(LAUNCH).read_bytes()
        manifest = {
            "model": self.name,
            "made_by": {
                "dynfix": __version__,
                "torch": torch.__version__,
                "python": machine_code.python(),
            },
            "targets": self.targets,
            "training": bool(self.module is not None and self.module.training),
            "signature": _signature_data(self.signature, calls[0]),
            "versions": versions,
            "weights": held.listed(),
        }
        return archive.write(path, manifest, {**parts, **held.parts()})

    def _kernels(self, libraries: list[str]) -> dict[str, bytes]:
        """The libraries for each target. What the compiler cannot do for one is left out."""
        found = {}
        for target in list(self.targets):
            for file in libraries:
                try:
                    path = _built_for(file, machine_code.flags_for(target["name"]))
                except BuildError as error:
                    log.info("no kernels for %s: %s", target["name"], error)
                    self.targets.remove(target)
                    break
                found[f"kernels/{target['name']}.{file}"] = path.read_bytes()
        return found

    def _program(self, segment: Segment) -> dict[str, Any] | None:
        """The stored program of a segment; None for an empty one."""
        if not segment.ops:
            return None
        stored = self.kept.get(id(segment))
        if stored is None or stored.data is None:
            why = None if stored is None else stored.refused
            lines = dict.fromkeys(filter(None, map(_line, segment.module.graph.nodes)))
            place = next(iter(lines), "a graph")
            open_graph = "sizes depend on data, or a write meets memory that tensors share"
            raise PackageError(f"{place}: {why or open_graph}")
        if any(meta.device.type != "cpu" for meta in segment.metas if hasattr(meta, "device")):
            raise PackageError("it has kernels for GPUs, packages are for CPUs")
        return {"program": stored.data, "origins": list(map(_short, stored.origins))}


def _built_for(file: str, flags: tuple[str, ...]) -> Path:
    """The library, or one of the same source for another processor. Raises BuildError."""
    if not flags:
        return library_path(file)
    key, name = file[:64], file[65:].removesuffix(".so")
    source = disk_cache.read(key, f".{name}.cpp")
    if source is None:
        raise BuildError(f"the source of {file} is not in the cache")
    return build.build_shared(source.decode(), flags=(*build.FLAGS, *flags), name=name)


def _libraries(step: dict[str, Any] | None) -> list[str]:
    programs = [] if step is None else step["program"]["programs"].values()
    return [file for program in programs for file in libraries_of(program)]


def _line(node: torch.fx.Node) -> str:
    return _short(node.meta.get("origin") or "")


def _short(origin: str) -> str:
    """`model.py:41` of a place with its folder and text."""
    head = origin.split(": ")[0]
    return head.rpartition(os.sep)[2].strip()


def _check_stores(calls: list[PackagedCall]) -> None:
    """Raises PackageError where calls of the versions leave different things in one place: which of
    them is there, a package cannot know."""
    seen: dict[Any, Any] = {}
    for call in calls:
        for place, (value, origin) in call.stores.items():
            before = seen.setdefault(place, value)
            tensors = isinstance(before, torch.Tensor) or isinstance(value, torch.Tensor)
            if before is not value and (tensors or before != value):
                raise PackageError(f"{origin}: calls store different values in {place[1]!r}")


@contextlib.contextmanager
def _as_it_is(module: torch.nn.Module | None) -> Iterator[None]:
    """Nothing requires a gradient meanwhile. What examples write into buffers is put back."""
    buffers = [] if module is None else list(module.buffers())
    before = [(each, each.detach().clone()) for each in buffers]
    parameters = [] if module is None else [p for p in module.parameters() if p.requires_grad]
    try:
        for parameter in parameters:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
        for each, was in before:
            if not torch.equal(each, was):
                each.copy_(was)


def _signature_data(signature: inspect.Signature | None, call: PackagedCall) -> Any:
    if signature is None:
        return None
    return [
        [name, one.kind.name, *([] if one.default is one.empty else [call.constant(one.default)])]
        for name, one in signature.parameters.items()
    ]
