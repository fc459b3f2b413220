"""Loading a packaged model: its programs, guards and weights, without its source, a compiler, or
the rewriter."""

import contextlib
import inspect
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ..runtime import build
from ..runtime.cache.named_functions import Unnamed
from ..runtime.errors import NoVersionError, PackageError
from ..runtime.guards.guard import Guard, GuardSet, GuardState, Obj
from ..runtime.guards.guard import Path as AccessPath
from ..runtime.package import machine_code
from ..runtime.package.archive import Archive
from ..runtime.package.call_data import CallDecoder
from ..runtime.package.call_forms import canonical, form
from ..runtime.programs.dispatch import MISS, Dispatcher
from ..runtime.programs.entry import CacheEntry, ReplayPlan
from ..runtime.programs.launch import LAUNCH, Library
from ..runtime.programs.size_functions import ITSELF, SizeFunction
from ..runtime.programs.steps import Feed, GraphStep
from .stored_graphs import function_of

Weights = Mapping[str, torch.Tensor]


def load(
    path: str | os.PathLike[str],
    *,
    weights: Weights | None = None,
    fallback: Callable[..., Any] | None = None,
    digest: str | None = None,
) -> "LoadedModel":
    """The model that `package` wrote to `path`, as a function with the model's signature whose
    results have no gradients. It needs neither the model's source nor a compiler.

    `weights`: tensors by name, as of `state_dict()`, in place of the packaged ones, or where the
    package holds none. `fallback`: what serves calls that no version serves; by default they raise
    NoVersionError. `digest`: what `dynfix inspect` shows of the file that is expected. A package
    holds machine code: load only what you trust. Raises PackageError for a file that is damaged, or
    does not fit this machine, torch or these weights; OSError.
    """
    archive = Archive(path)
    if digest is not None and digest != archive.digest:
        raise PackageError(f"{archive.path} has the digest {archive.digest}, not {digest}")
    return _loaded(archive, weights, fallback)


def _loaded(
    archive: Archive, weights: Weights | None, fallback: Callable[..., Any] | None
) -> "LoadedModel":
    with _refusing(archive.path):
        _check_fits(archive)
        return LoadedModel(_Reader(archive, weights), fallback)


def load_compiled_function(
    file: BinaryIO,
    *,
    f_globals: dict[str, object] | None = None,
    external_data: dict[str, Any] | None = None,
) -> "LoadedModel":
    """What `aot_compile(...).save_compiled_function(path)` wrote, from the open file.
    `external_data`: weights by name, where it holds none; `f_globals` is not needed."""
    archive = Archive(str(getattr(file, "name", "a file")), file.read())
    return _loaded(archive, external_data, None)


def _check_fits(archive: Archive) -> None:
    made_by = archive.manifest["made_by"]
    if made_by["torch"] != torch.__version__:
        why = f"it was made with torch {made_by['torch']}, this is {torch.__version__}"
    else:
        _, why = machine_code.fitting(archive.manifest["targets"])
    if why:
        raise PackageError(f"{archive.path} does not fit here: {why}. Package the model again here")


@contextlib.contextmanager
def _refusing(path: str) -> Iterator[None]:
    """What was not written so by `package` is one error, whatever it leads to."""
    try:
        yield
    except (PackageError, MemoryError):
        raise
    except Unnamed as error:
        raise PackageError(f"{path} cannot be loaded by this dynfix: {error}") from error
    except (OSError, ImportError) as error:
        raise PackageError(f"the kernels of {path} cannot be loaded: {error}") from error
    except Exception as error:
        raise PackageError(f"{path} is damaged: {type(error).__name__}: {error}") from error


class _Reader:
    """What the parts of a package stand for."""

    def __init__(self, archive: Archive, weights: Weights | None) -> None:
        self.archive, self.path, manifest = archive, archive.path, archive.manifest
        self.name: str = manifest["model"]
        self._target, _ = machine_code.fitting(manifest["targets"])
        self._libraries: dict[str, Library] = {}
        self._storages: dict[str, torch.UntypedStorage] = {}
        listed = manifest["weights"]
        self._check_names(listed, weights)
        self._provide_launches()
        self.weights = [self._weight(one, weights) for one in listed]
        self.names = {name: i for i, one in enumerate(listed) for name in one["names"]}
        self.signature = signature_of(manifest["signature"])
        self.entries = [
            _Entry(*self._version(f"versions/{number}.json"), str(number + 1))
            for number in range(len(manifest["versions"]))
        ]

    def _provide_launches(self) -> None:
        """Kernels are launched natively where the package is for this Python; else by ctypes."""
        if self.archive.manifest["made_by"]["python"] == machine_code.python():
            with machine_code.loadable(self.archive.copied(f"extensions/{LAUNCH}.so")) as place:
                build.provide(LAUNCH, place)

    def _check_names(self, listed: list[Any], given: Weights | None) -> None:
        known = {name for one in listed for name in one["names"]}
        held = {name for one in listed if one["storage"] is not None for name in one["names"]}
        lacking = sorted(
            one["names"][0]
            for one in listed
            if one["storage"] is None and not any(name in (given or {}) for name in one["names"])
        )
        if lacking:
            shown = f"{', '.join(lacking[:3])}{' …' if len(lacking) > 3 else ''}"
            says = "load it with weights=..., a state_dict" if given is None else "they lack"
            raise PackageError(f"{self.path} holds no weights of its own: {says} ({shown})")
        if given is not None and not known & given.keys() - held and not known & given.keys():
            raise PackageError(f"no name in weights=... is one of {self.path}")

    def _weight(self, listed: dict[str, Any], given: Weights | None) -> torch.Tensor:
        dtype = CallDecoder([]).decode(["torch", listed["dtype"]])
        shape, strides = tuple(listed["shape"]), tuple(listed["strides"])
        name = next((name for name in listed["names"] if name in (given or {})), None)
        if given is None or name is None:
            return self._packaged(listed, dtype, shape, strides)
        found = given[name].detach()
        if found.dtype is not dtype or tuple(found.shape) != shape or found.device.type != "cpu":
            asked = f"{dtype} of shape {list(shape)} on the CPU"
            has = f"{found.dtype} of shape {list(found.shape)} on {found.device}"
            raise PackageError(f"weights[{name!r}] is {has}: {self.path} needs {asked}")
        if found.stride() == strides:
            return found
        return torch.empty_strided(shape, strides, dtype=dtype, device="cpu").copy_(found)

    def _packaged(
        self, listed: dict[str, Any], dtype: torch.dtype, shape: Any, strides: Any
    ) -> torch.Tensor:
        made = torch.empty(0, dtype=dtype, device="cpu")
        part = listed["storage"]
        if part not in self._storages:
            data = self.archive.mapped(part)
            whole = torch.frombuffer(data, dtype=torch.uint8) if len(data) else made
            self._storages[part] = whole.untyped_storage()
        return made.set_(self._storages[part], listed["offset"], shape, strides)

    def _library(self, file: str) -> Library:
        if file not in self._libraries:
            part = f"kernels/{self._target}.{file}"
            with machine_code.loadable(self.archive.copied(part)) as place:
                self._libraries[file] = Library(Path(file), place)
        return self._libraries[file]

    def _version(self, part: str) -> tuple[GuardSet, ReplayPlan, SizeFunction | None]:
        data = json.loads(self.archive.copied(part))
        decoder = CallDecoder(data["recipes"])
        decode = decoder.decode
        guards = [Guard(decode(path), decode(check), at) for path, check, at in data["guards"]]
        inputs = [self._input(one, decoder) for one in data["inputs"]]
        guard_set = GuardSet(
            guards,
            inputs,
            data["nargs"],
            tuple(data["kwnames"]),
            disjoint=data["disjoint"],
            twins=data["twins"],
            state=GuardState.of(decode(data["state"])),
        )
        holds = decode(data["holds"])
        plan = ReplayPlan(
            steps=tuple(map(self._step, data["steps"])),
            outcomes=tuple((after, decode(r), decode(seen)) for after, r, seen in data["outcomes"]),
            effects=(),
            output=decode(data["output"]),
            aliases=tuple(map(tuple, data["aliases"])),
            distinct=tuple(map(tuple, data["distinct"])),
            fed=tuple(map(decode, data["fed"])),
            holds=None if holds is None else holds.function(),
            random=data["random"],
            devices=(torch.device("cpu"),),
        )
        return guard_set, plan, holds

    def _input(self, data: list[Any], decoder: CallDecoder) -> AccessPath:
        if data[0] == "weight":
            return Obj(self.weights[data[1]], "a weight")
        if data[0] == "constant":
            return Obj(decoder.decode(data[1]), "a constant")
        return decoder.decode(data)  # type: ignore[no-any-return]

    def _step(self, data: dict[str, Any]) -> GraphStep:
        feeds = tuple(Feed(int(segment), int(index)) for segment, index in data["feeds"])
        program = data["program"]
        made = program and function_of(program, data["origins"], self._library)
        return GraphStep(made, feeds, tuple(data["writes"]), tuple(data["histories"]))


class _Entry(CacheEntry):
    """One version. `number`: what messages call it."""

    def __init__(
        self, guards: GuardSet, plan: ReplayPlan, sizes: SizeFunction | None, number: str
    ) -> None:
        super().__init__(guards, plan, _no_eager)
        self.sizes, self.number, self.falls_back = sizes, number, False

    def _redone(self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.falls_back:
            return MISS
        raise error

    def why_not(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """What keeps it from serving the call."""
        plan = self.guards.plan
        if form(args, kwargs) != (plan.nargs, plan.kwnames):
            given = (*(f"args[{place}]" for place in range(plan.nargs)), *plan.kwnames)
            return f"it is for calls with {', '.join(given) or 'no arguments'}"
        failure = self.guards.explain(args, kwargs)
        if failure is not None:
            return str(failure)
        inputs = self.guards.match(args, kwargs) or []
        if self.sizes is not None and self.plan.holds is not None and not self.plan.holds(inputs):
            return self._sizes(inputs, self.sizes)
        return "other arguments are one object, or values differ that decided the way of the call"

    def _sizes(self, inputs: list[Any], sizes: SizeFunction) -> str:
        """The relations that do not hold, with what was read for them."""
        failed = [one for one in sizes.parts() if not one.function()(inputs)]
        sources = [path.source for path in self.guards.inputs]
        reads = {name: at for one in failed for name, at in one.reads.items()}
        given = [
            f"{name} = {sources[i]}.shape[{dim}] = {inputs[i].shape[dim]}"
            if dim != ITSELF
            else f"{name} = {sources[i]} = {inputs[i]}"
            for name, (i, dim) in reads.items()
        ]
        return f"expected {' and '.join(one.text for one in failed)}, given {', '.join(given)}"


def _no_eager(*args: Any, **kwargs: Any) -> Any:
    raise PackageError("a package has no eager code")


class LoadedModel:
    """A model that `load` gave: calls are served by the first of its versions whose guards hold.
    `weights`: its tensors by name, which calls read, and write where the model updates them.
    Threads may call at once."""

    def __init__(self, reader: _Reader, fallback: Callable[..., Any] | None) -> None:
        self.__name__ = self.__qualname__ = reader.name
        self.__signature__ = reader.signature
        self._archive, self.path, self.digest = reader.archive, reader.path, reader.archive.digest
        self.weights = {name: reader.weights[index] for name, index in reader.names.items()}
        self._signature, self._fallback = reader.signature, fallback
        self._versions = reader.entries
        for entry in reader.entries:
            entry.falls_back = fallback is not None
        self._dispatcher = Dispatcher(_missed, max(1, len(reader.entries)))
        for entry in reversed(reader.entries):
            self._dispatcher.add(entry)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        result = self._without_gradients(args, kwargs)
        if result is not MISS:
            return result
        if self._fallback is not None:
            return self._fallback(*args, **kwargs)
        raise NoVersionError(self._why_not(*canonical(self._signature, args, kwargs)))

    def _without_gradients(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.no_grad():
                return self._served(args, kwargs)
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self._served(args, kwargs)
        return self._served(args, kwargs)

    def _served(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self._dispatcher(args, kwargs)
        if result is MISS:
            again = canonical(self._signature, args, kwargs)
            if form(*again) != form(args, kwargs):
                return self._dispatcher(*again)
        return result

    def _why_not(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        with torch.inference_mode(False), torch.no_grad():
            found = [f"version {one.number}: {one.why_not(args, kwargs)}" for one in self._versions]
        named = list(self._signature.parameters) if self._signature is not None else []

        def name(match: re.Match[str]) -> str:
            place = int(match[1])
            return named[place] if place < len(named) else match[0]

        lines = (re.sub(r"\bargs\[(\d+)\]", name, line) for line in found)
        says = f"no version of {self.__name__} in {self.path} serves this call"
        return "\n  ".join((f"{says}:", *lines))

    def guard_check(self, *args: Any, **kwargs: Any) -> bool:
        """Whether a version serves such a call."""
        given = canonical(self._signature, args, kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return any(entry.serves(*given) for entry in self._versions)

    def save_compiled_function(self, path: str | os.PathLike[str]) -> None:
        """Write the package that it was loaded from to `path`."""
        self._archive.copy(path)

    def __repr__(self) -> str:
        return f"<{self.__name__} of {self.path}, {len(self._versions)} versions>"


def _missed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return MISS


def signature_of(data: Any) -> inspect.Signature | None:
    """A signature from a manifest; None where the model had none."""
    if data is None:
        return None
    kinds = {kind.name: kind for kind in type(inspect.Parameter("x", 0).kind)}  # type: ignore[arg-type]
    decode = CallDecoder([]).decode
    return inspect.Signature(
        [
            inspect.Parameter(name, kinds[kind], default=decode(default[0]))
            if default
            else inspect.Parameter(name, kinds[kind])
            for name, kind, *default in data
        ]
    )
