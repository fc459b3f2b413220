"""From C++ source to a shared library in the cache: finds the compiler, probes what it can do,
builds, also several at once.

Flags are those of strict IEEE arithmetic: never -ffast-math, which flushes denormals in the whole
process that loads the library.
"""

import contextlib
import dataclasses
import functools
import importlib.machinery
import importlib.util
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from . import compilers
from .cache import disk_cache
from .cache.private_files import Folder
from .diagnostics import log
from .errors import BuildError, DynfixError
from .signals import reach_the_user

_SHARED = ("-std=c++17", "-shared", "-fPIC")
_KERNEL = (
    *("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"),
    "-fno-thread-jumps",  # which makes branches of minima and maxima, where vectors had been
)
# Of every kernel: integers wrap around; a * b + c rounds twice, as in eager; the widest vectors,
# which GCC leaves unused on many processors
_WIDE = ("-mprefer-vector-width=512",) if platform.machine() in ("x86_64", "AMD64") else ()
# GCC takes pow(x, 0.5) for sqrt(x), which is another number at -inf and -0.
_POWERS = ("-fno-builtin-pow", "-fno-builtin-powf")
FLAGS = ("-fwrapv", "-ffp-contract=off", *_POWERS, *_WIDE)
_FORBIDDEN = frozenset(
    ("-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-ffinite-math-only")
)
_NATIVE = Path(__file__).with_name("native")


T = TypeVar("T")


# ---- build or fall back: what is built late, or beside the user's program, is never needed


@contextlib.contextmanager
def building(what: str) -> Iterator[None]:
    """Whatever goes wrong in the block (a full disk, no memory, a library that cannot be loaded) is
    an error of this package, which callers know how to do without. What handlers of the user's
    raise passes."""
    with reach_the_user():
        try:
            yield
        except DynfixError:
            raise
        except Exception as error:
            raise BuildError(f"{what}: {type(error).__name__}: {error}") from error


def built_or(instead: T, what: str, build: Callable[[], T]) -> T:
    """What `build` makes, or `instead`, and a line in the log."""
    with reach_the_user():
        try:
            return build()
        except Exception as error:
            log.info("%s: %r", what, error)
    return instead


def begun(name: str, work: Callable[[], object], daemon: bool = True) -> threading.Thread | None:
    """A thread that does `work`; None where the process may have no more threads. A process that
    ends does not wait for a daemon's compiler."""
    thread = threading.Thread(target=work, name=name, daemon=daemon)

    def start() -> threading.Thread:
        thread.start()
        return thread

    return built_or(None, "no thread can be started", start)


# ---- the compiler


@dataclasses.dataclass(frozen=True)
class Compiler:
    """A C++ compiler: the command's words, and the first line of its --version."""

    command: tuple[str, ...]
    version: str


@dataclasses.dataclass(frozen=True)
class Probed:
    """What the compiler and the C library can do.

    flags: for kernels. vector_math: functions of libmvec ('expf', 'tanhf', …) that may be declared
    `__attribute__((simd("notinbranch"), const, nothrow))`. link: what stands at the end of the
    command.
    """

    flags: tuple[str, ...]
    openmp: bool
    vector_math: frozenset[str]
    link: tuple[str, ...]


def _version_of(command: tuple[str, ...]) -> str | None:
    try:
        asked = compilers.by_path([*command, "--version"])
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else None


@functools.lru_cache(maxsize=8)
def _search(chosen: str | None, path: str | None) -> Compiler | None:
    candidates = [tuple(shlex.split(chosen))] if chosen else []
    for command in (*candidates, ("g++",), ("clang++",), ("c++",)):
        version = _version_of(command)
        if version is not None:
            return Compiler(command, version)
    return None


def find_compiler() -> Compiler | None:
    """The first of $CXX, g++, clang++ and c++ that runs, or None."""
    return _search(os.environ.get("CXX"), os.environ.get("PATH"))


def _need_compiler() -> Compiler:
    found = find_compiler()
    if found is None:
        raise BuildError("no C++ compiler was found: install g++ or clang++, or set $CXX")
    return found


@functools.cache
def isa() -> str:
    """The instruction sets of this machine's processor and its C library's version, for cache
    keys."""
    libc = "-".join(platform.libc_ver())
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {libc}"
    wanted = ("flags", "Features", "model name", "CPU part")
    seen = {line.split(":")[0].strip(): line for line in lines if line.startswith(wanted)}
    return " ".join((platform.machine(), libc, *sorted(seen.values())))


def _try(
    source: str, flags: Sequence[str], link: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Build `source` into nothing kept."""
    with (
        disk_cache.workspace() as work,
        disk_cache.made_in(work, "probe.cpp") as file,
        disk_cache.made_in(work, "probe.so") as made,
    ):
        work.create(file, source.encode())
        words = [*_need_compiler().command, *_SHARED, *flags]
        return compilers.run([*words, work.reach(file), "-o", work.reach(made), *link])


_UNARY = tuple(
    "cbrt exp exp2 exp10 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh"
    " acosh atanh erf erfc".split()
)
_BINARY = ("pow", "atan2", "hypot")


def _vector_source(names: Sequence[str]) -> str:
    lines = []
    for name in names:
        kind, stem = (
            ("float", name[:-1])
            if name.endswith("f") and name[:-1] in _UNARY + _BINARY
            else ("double", name)
        )
        two = stem in _BINARY
        parameters, call = (f"{kind}, {kind}", "(a[i], b[i])") if two else (kind, "(a[i])")
        lines.append(
            f'extern "C" __attribute__((simd("notinbranch"), const, nothrow)) {kind}'
            f" {name}({parameters});"
        )
        lines.append(
            f"void loop_{name}({kind}* a, {kind}* b) {{ for (int i = 0; i < 1024; i++) b[i] ="
            f" {name}{call}; }}"
        )
    return "\n".join(lines)


def _probe_vector_math(flags: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The libmvec functions that link, and the link flags: one link names all that are missing, a
    second proves the rest."""
    link = ("-Wl,--no-undefined", "-lmvec", "-lm")
    flags = (
        *flags,
        "-Werror=attributes",
    )  # a compiler without the simd attribute would call the scalar function
    names = tuple(stem + kind for stem in _UNARY + _BINARY for kind in ("f", ""))
    first = _try(_vector_source(names), flags, link)
    lacking = set(re.findall(r"undefined reference to [`']_ZGV\w+?_(\w+)'", first.stderr))
    names = tuple(name for name in names if name not in lacking)
    if first.returncode != 0 and _try(_vector_source(names), flags, link).returncode != 0:
        return (), ("-lm",)
    return names, ("-lmvec", "-lm")


def _accepted(wanted: Sequence[str]) -> list[str]:
    """The flags that the compiler takes: most compilers take all."""
    source, flags = "int f() { return 1; }", list[str]()
    if _try(source, wanted).returncode == 0:
        return [*wanted]
    for flag in wanted:
        if _try(source, [*flags, flag]).returncode == 0:
            flags.append(flag)
    return flags


def _probe() -> dict[str, list[str]]:
    flags = _accepted(_KERNEL)
    names, link = _probe_vector_math(flags)
    return {"flags": flags, "vector_math": list(names), "link": list(link)}


_probe_lock = threading.Lock()


@functools.lru_cache(maxsize=8)
def _probed(compiler: Compiler) -> Probed:
    name = disk_cache.key("probe-1", *_KERNEL, compiler.version, *compiler.command, isa())
    stored = disk_cache.read(name, ".json")
    found = json.loads(stored) if stored is not None else _probe()
    if stored is None:
        with contextlib.suppress(OSError):
            disk_cache.put(name, ".json", json.dumps(found).encode())
    flags = tuple(found["flags"])
    return Probed(flags, "-fopenmp" in flags, frozenset(found["vector_math"]), tuple(found["link"]))


def probe_flags() -> Probed:
    """What can be used here, remembered in the cache. Raises BuildError without a compiler."""
    with _probe_lock, building("the C++ compiler could not be tried"):
        return _probed(_need_compiler())


@dataclasses.dataclass(frozen=True)
class _Job:
    """One library to build. `link` stands after the source on the command line."""

    source: str
    name: str
    flags: tuple[str, ...]
    link: tuple[str, ...] = ()
    salt: tuple[str, ...] = ()

    def key(self, compiler: Compiler) -> str:
        salt = ("shared-1", compiler.version, *compiler.command, isa(), *self.salt)
        return disk_cache.key(
            *salt, "flags", *self.flags, "link", *self.link, "source", self.source
        )

    @property
    def stem(self) -> str:
        return "." + re.sub(r"\W+", "_", self.name)[:60]


_building: dict[str, threading.Lock] = {}
_building_lock = threading.Lock()


def _compile(job: _Job, key: str, compiler: Compiler) -> Path:
    with disk_cache.workspace() as work, disk_cache.made_in(work, "made.so") as made:
        source = disk_cache.put(key, job.stem + ".cpp", job.source.encode())
        words = [*compiler.command, *_SHARED, *job.flags]
        with Folder(str(source.parent)) as folder:
            place = folder.reach(source.name)
            done = compilers.run([*words, place, "-o", work.reach(made), *job.link])
        if done.returncode != 0:
            reason = compilers.failure(done).replace(place, str(source))
            raise BuildError(
                f"{source} could not be built by {shlex.join(compiler.command)}:\n{reason}"
            )
        return disk_cache.put(key, job.stem + ".so", work.read(made))


def _build(job: _Job) -> Path:
    bad = _FORBIDDEN.intersection(job.flags)
    if bad:
        raise BuildError(f"{', '.join(sorted(bad))}: kernels are built with IEEE arithmetic only")
    compiler = _need_compiler()
    key = job.key(compiler)
    with _building_lock:
        own = _building.setdefault(key, threading.Lock())
    with own, building(f"{job.name} could not be built"):
        # the same library asked for twice at once is built once
        return disk_cache.get(key, job.stem + ".so") or _compile(job, key, compiler)


def build_shared(source: str, *, flags: tuple[str, ...] = (), name: str) -> Path:
    """Build kernel source with the kernel flags and `flags` after them; the library's path in the
    cache.

    Raises BuildError, with the compiler's first error lines and the path of the source. Calls from
    several threads build in parallel.
    """
    probed = probe_flags()
    return _build(_Job(source, name, (*probed.flags, *flags), probed.link))


@functools.cache
def _pool() -> ThreadPoolExecutor:
    usable = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return ThreadPoolExecutor(usable, "dynfix-build", initializer=compilers.as_gentle_as_now())


def build_shared_later(source: str, *, flags: tuple[str, ...] = (), name: str) -> "Future[Path]":
    """`build_shared` on a pool of as many threads as this process may use processors."""
    limited = compilers.limited_as_now(build_shared)
    return _pool().submit(limited, source, flags=flags, name=name)


def _extension_job(
    name: str, flags: tuple[str, ...], link: tuple[str, ...], salt: tuple[str, ...]
) -> _Job:
    include = sysconfig.get_paths()["include"]
    if not Path(include, "Python.h").exists():
        version = sys.version.split()[0]
        raise BuildError(
            f"{include}/Python.h is missing: install the development headers of Python {version}"
        )
    headers = "".join(path.read_text() for path in sorted(_NATIVE.glob("*.h")))
    salt = (*salt, headers, sys.version, str(sysconfig.get_config_var("SOABI")))
    source = (_NATIVE / f"{name}.cpp").read_text()
    return _Job(source, name, ("-O2", f"-I{include}", f"-I{_NATIVE}", *flags), link, salt)


def find_extension(
    name: str,
    *,
    flags: tuple[str, ...] = (),
    link: tuple[str, ...] = (),
    salt: tuple[str, ...] = (),
) -> Path | None:
    """What `build_extension` built before, or None. Raises BuildError without compiler or
    Python.h."""
    job = _extension_job(name, flags, link, salt)
    return disk_cache.get(job.key(_need_compiler()), job.stem + ".so")


def build_extension(
    name: str,
    *,
    flags: tuple[str, ...] = (),
    link: tuple[str, ...] = (),
    salt: tuple[str, ...] = (),
) -> Path:
    """Build `runtime/native/<name>.cpp` as a CPython extension for this interpreter.

    salt: further parts of the cache key (versions of headers that the source includes). Raises
    BuildError without compiler or Python.h.
    """
    return _build(_extension_job(name, flags, link, salt))


_extensions: dict[tuple[str, Path], ModuleType] = {}


def load_extension(name: str, path: Path) -> ModuleType:
    """Import the extension built at `path` as `dynfix.runtime.native.<name>`, once: its types are
    compared. Raises ImportError, OSError."""
    full = f"{__package__}.native.{name}"
    if (full, path) in _extensions:
        return _extensions[full, path]
    with disk_cache.loading(path) as place:
        module = _imported(full, place)
    module.__file__ = str(path)
    log.debug("loaded %s from %s", full, path)
    return _extensions.setdefault((full, path), module)


def _imported(full: str, place: str) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(full, place)
    spec = importlib.util.spec_from_file_location(full, place, loader=loader)
    if spec is None:
        raise ImportError(f"{place} is no extension module", name=full)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


_provided: dict[str, ModuleType] = {}


def provide(name: str, place: str) -> None:
    """Have `built_extension` give the extension at `place`, so that nothing is built, unless there
    is one already. Raises ImportError."""
    full = f"{__package__}.native.{name}"
    if name not in _provided and not any(known == full for known, _ in _extensions):
        _provided[name] = _imported(full, place)


def built_extension(name: str, otherwise: str, **how: tuple[str, ...]) -> ModuleType | None:
    """The extension, loaded, and built if need be (`build_extension`); None where that fails, of
    which the log says what happens `otherwise`."""
    if name in _provided:
        return _provided[name]
    return built_or(None, otherwise, lambda: load_extension(name, build_extension(name, **how)))
