"""Equal kernels are compiled once; many kernels in several files."""

import pytest
import torch
from dynfix.lowering.targets.cpp import cpp_build
from torch.nn import functional as F

from .harness import check, compiled


@pytest.fixture
def sources(monkeypatch):
    found = []
    for name in ("build_shared", "build_shared_later"):
        build = getattr(cpp_build, name)

        def note(text, build=build, **rest):
            found.append(text)
            return build(text, **rest)

        monkeypatch.setattr(cpp_build, name, note)
    return found


def kernels(sources):
    return sum(text.count('extern "C" int64_t kernel_') for text in sources)


def layers(count):
    def run(x, w):
        for _ in range(count):
            x = torch.softmax(F.layer_norm(x, (32,)) @ w, -1) @ w + x
        return x

    return run


def test_equal_layers_are_compiled_once(sources):
    args = torch.randn(16, 32), torch.randn(32, 32)
    check(layers(2), *args, rtol=1e-4, atol=1e-4)
    few = kernels(sources)
    sources.clear()
    check(layers(12), *args, rtol=1e-3, atol=1e-3)
    assert kernels(sources) <= few + 1, (few, sources)


def test_equal_batches_are_compiled_once(sources):
    def run(x, y, w):
        for _ in range(4):
            x, y = x @ w, y @ w
            x, y = torch.tanh(x), torch.tanh(y)
        return x, y

    check(run, torch.randn(16, 32), torch.randn(8, 32), torch.randn(32, 32))
    assert any("lengths[] = {512, 256}" in text for text in sources)
    assert kernels(sources) == 1, sources


def test_kernels_that_differ_in_a_constant_or_an_offset_are_two(sources):
    def run(x):
        a = (x[:, :8] + 1).sum(1)
        b = (x[:, 8:] + 1).sum(1)
        c = (x[:, 8:] + 2).sum(1)
        return a, b, c, torch.mm(x, x.t()), a.cumsum(0)

    check(run, torch.randn(16, 16))


def test_many_kernels_are_built_in_several_files(sources):
    def run(x, w):
        return [torch.tanh(x[:n] @ w) * n for n in range(2, 30)]

    x, w = torch.randn(40, 3), torch.randn(3, 5)
    call = compiled(run, x, w)
    assert len(sources) > 1
    for _ in range(3):
        for found, wanted in zip(call(x, w), run(x, w), strict=True):
            torch.testing.assert_close(found, wanted)


def test_a_compiler_that_crashes_in_a_file_is_asked_for_less(monkeypatch):
    from dynfix.runtime.errors import BuildError

    build, asked = cpp_build.build_shared, []

    def crash_once(text, *, flags=(), name):
        asked.append(flags)
        if "-O1" not in flags:
            raise BuildError("internal compiler error: in vect")
        return build(text, flags=flags, name=name)

    monkeypatch.setattr(cpp_build, "build_shared", crash_once)
    check(lambda x: x * 2 + 1, torch.randn(7, 9))
    assert "-O1" in asked[-1]
