"""Building shared libraries: what is found, what is kept, what is said when it fails."""

import ctypes
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from dynfix.runtime import build, compilers
from dynfix.runtime.cache import disk_cache
from dynfix.runtime.errors import BuildError

if build.find_compiler() is None:
    pytest.skip("no C++ compiler here", allow_module_level=True)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    probed = build.probe_flags()  # from the cache of the run
    monkeypatch.setattr(build, "probe_flags", lambda: probed)
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path))
    return tmp_path


def answer(n):
    return f'extern "C" int answer() {{ return {n}; }}'


def call(path):
    return ctypes.CDLL(str(path)).answer()


def counting(monkeypatch):
    """Counts compiler runs."""
    runs, original = [], compilers.run
    monkeypatch.setattr(compilers, "run", lambda command: runs.append(command) or original(command))
    return runs


def test_build_and_find_again(folder, monkeypatch):
    runs = counting(monkeypatch)
    path = build.build_shared(answer(41), name="first kernel")
    assert call(path) == 41 and path.suffix == ".so" and path.is_relative_to(folder)
    assert build.build_shared(answer(41), name="first kernel") == path
    assert len(runs) == 1
    assert build.build_shared(answer(42), name="first kernel") != path
    assert build.build_shared(answer(41), flags=("-DX=1",), name="first kernel") != path
    assert len(runs) == 3


def test_a_damaged_library_is_built_again(folder, monkeypatch):
    path = build.build_shared(answer(5), name="k")
    path.write_bytes(path.read_bytes()[:100])
    runs = counting(monkeypatch)
    assert call(build.build_shared(answer(5), name="k")) == 5
    assert len(runs) == 1


def test_an_error_names_the_source_and_the_line(folder):
    with pytest.raises(BuildError) as raised:
        build.build_shared("int good;\nint bad = undeclared;", name="broken")
    message = str(raised.value)
    assert "broken.cpp:2" in message and "undeclared" in message
    path = message.split()[0]
    assert Path(path).read_text().endswith("undeclared;")
    with pytest.raises(BuildError):  # a failure is not remembered as a success
        build.build_shared("int good;\nint bad = undeclared;", name="broken")
    assert not list(folder.glob("work/*/*made*"))


@pytest.mark.parametrize("flag", ["-ffast-math", "-Ofast"])
def test_fast_math_is_refused(flag):
    with pytest.raises(BuildError, match="IEEE"):
        build.build_shared(answer(1), flags=(flag,), name="k")


def test_kernels_keep_denormals_and_nan(folder):
    source = (
        'extern "C" double half(double x) { return x / 2; } extern "C" int is_nan(double x) {'
        " return x != x; }"
    )
    library = ctypes.CDLL(str(build.build_shared(source, name="ieee")))
    library.half.restype, library.half.argtypes, library.is_nan.argtypes = (
        ctypes.c_double,
        [ctypes.c_double],
        [ctypes.c_double],
    )
    assert library.half(5e-324 * 4) == 1e-323
    assert library.is_nan(math.nan) == 1
    assert 5e-324 > 0


def test_threads_build_one_library_once_and_others_at_the_same_time(folder, monkeypatch):
    runs, paths = counting(monkeypatch), []
    threads = [
        threading.Thread(target=lambda n=n: paths.append(build.build_shared(answer(n), name="k")))
        for n in (1, 1, 1, 2, 3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 3 and len(set(paths)) == 3
    futures = [build.build_shared_later(answer(n), name="k") for n in range(4)]
    assert [call(future.result()) for future in futures] == [0, 1, 2, 3]


BUILDER = (
    'from dynfix.runtime import build; print(build.build_shared(\'extern "C" int answer() { return'
    " 7; }', name='k'))"
)


def test_processes_build_the_same_at_once(tmp_path):
    environment = {**os.environ, "DYNFIX_CACHE_DIR": str(tmp_path)}
    builders = [
        subprocess.Popen(
            [sys.executable, "-c", BUILDER], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    paths = {builder.communicate(timeout=120)[0].strip() for builder in builders}
    assert len(paths) == 1 and all(builder.returncode == 0 for builder in builders)
    assert call(paths.pop()) == 7


def test_probed_flags():
    probed = build.probe_flags()
    assert "-O3" in probed.flags and "-fno-math-errno" in probed.flags
    assert not {"-ffast-math", "-Ofast"} & set(probed.flags)
    assert probed.openmp == ("-fopenmp" in probed.flags)
    assert ("-lmvec" in probed.link) == bool(probed.vector_math)


@pytest.mark.skipif("expf" not in build.probe_flags().vector_math, reason="no libmvec here")
def test_vector_math_is_really_vectorised(folder):
    names = sorted(build.probe_flags().vector_math & {"expf", "exp", "logf", "powf"})
    path = build.build_shared(build._vector_source(names), name="vector")
    symbols = subprocess.run(
        ["nm", "-D", str(path)], capture_output=True, text=True, check=True
    ).stdout
    assert all(
        any(
            line.split()[-1].startswith("_ZGV") and f"_{name}" in line
            for line in symbols.splitlines()
        )
        for name in names
    )


def test_what_the_compiler_lacks_is_left_out(tmp_path, monkeypatch):
    """A compiler that refuses a flag, and a library without some functions."""
    wrapper = tmp_path / "c++"
    real = build.find_compiler().command[0]
    wrapper.write_text(
        "#!/bin/bash\n"
        'for word in "$@"; do\n'
        '  [ "$word" = -fopenmp ] && { echo "error: no -fopenmp" >&2; exit 1; }\n'
        '  [ "$word" = -lmvec ] && { echo "error: cannot find -lmvec" >&2; exit 1; }\n'
        f'done\nexec {real} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path / "cache"))
    probed = build.probe_flags()
    assert not probed.openmp and "-O3" in probed.flags
    assert probed.vector_math == frozenset() and probed.link == ("-lm",)
    assert call(build.build_shared(answer(3), name="k")) == 3


def test_the_probe_is_remembered(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path))
    build._probed.cache_clear()
    first = build.probe_flags()
    build._probed.cache_clear()
    runs = counting(monkeypatch)
    assert build.probe_flags() == first and not runs


def test_no_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert build.find_compiler() is None
    with pytest.raises(BuildError, match="no C\\+\\+ compiler was found: install"):
        build.build_shared(answer(1), name="k")


def test_cxx_is_asked_first_and_may_hold_words(tmp_path, monkeypatch):
    real = build.find_compiler().command[0]
    monkeypatch.setenv("CXX", f"env MARK=1 {real}")
    assert build.find_compiler().command == ("env", "MARK=1", real)
    monkeypatch.setenv("CXX", str(tmp_path / "nothing"))
    assert build.find_compiler() is not None  # a broken $CXX is passed over


def test_python_headers_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(build.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(BuildError, match=r"Python\.h is missing"):
        build.build_extension("guard")


def test_extension_roundtrip(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "_NATIVE", tmp_path)
    (tmp_path / "tiny.cpp").write_text(
        '#include "tiny.h"\nstatic PyModuleDef module = {PyModuleDef_HEAD_INIT, "tiny", nullptr,'
        " -1, nullptr};\nPyMODINIT_FUNC PyInit_tiny() { PyObject* m = PyModule_Create(&module);"
        ' PyModule_AddIntConstant(m, "x", X); return m; }'
    )
    (tmp_path / "tiny.h").write_text("#include <Python.h>\n#define X 1\n")
    assert build.find_extension("tiny") is None
    first = build.build_extension("tiny")
    assert build.load_extension("tiny", first).x == 1 and build.find_extension("tiny") == first
    (tmp_path / "tiny.h").write_text(
        "#include <Python.h>\n#define X 2\n"
    )  # a changed header is another extension
    assert build.load_extension("tiny", build.build_extension("tiny")).x == 2


def test_the_source_is_kept_beside_the_library(folder):
    path = build.build_shared(answer(9), name="k")
    assert path.with_suffix(".cpp").read_text() == answer(9)
    assert disk_cache.get(path.name.split(".")[0], ".k.cpp") is not None
