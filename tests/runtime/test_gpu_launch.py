"""The native launch of GPU kernels, with a driver that writes down what it is asked for."""

import ctypes
import gc
import subprocess
import sys

import pytest
import torch
from dynfix.runtime.gpu import launch_triton
from dynfix.runtime.gpu.native_launch import launch_types
from dynfix.runtime.gpu.triton_kernels import TritonGroup

DRIVER = """
long seen[64]; int calls = 0, device = 0, fails = 0;
int cuCtxGetDevice(int *into) { *into = device; return 0; }
int cuLaunchKernel(void *f, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned,
                   unsigned shared, void *stream, void **parameters, void **extra) {
  long *into = seen + 8 * calls++;
  into[0] = (long)f; into[1] = x; into[2] = threads; into[3] = shared; into[4] = (long)stream;
  into[5] = *(long *)parameters[0]; into[6] = *(long *)parameters[1]; into[7] = *(long *)parameters[3];
  return fails;
}
// as cuda.h has them
struct Attribute { int id; char pad[8 - sizeof(int)]; union { char pad[64]; int allowed; } value; };
struct Config {
  unsigned x, y, z, threads_x, threads_y, threads_z, shared;
  void *stream;
  Attribute *attributes;
  unsigned count;
};
int early = 0;
int cuLaunchKernelEx(const Config *how, void *f, void **parameters, void **extra) {
  const Attribute &one = how->attributes[0];
  early += how->count == 1 && one.id == 6 && one.value.allowed == 1;
  return cuLaunchKernel(f, how->x, how->y, how->z, how->threads_x, how->threads_y, how->threads_z,
                        how->shared, how->stream, parameters, extra);
}
"""


@pytest.fixture
def driver(tmp_path):
    source, library = tmp_path / "driver.cpp", tmp_path / "libdriver.so"
    source.write_text(f'extern "C" {{ {DRIVER} }}')
    made = subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], capture_output=True)
    if made.returncode or launch_types() is None:
        pytest.skip("no compiler")
    return ctypes.CDLL(str(library)), str(library)


def test_kernels_get_their_pointers_and_two_more(driver):
    library, path = driver
    a, b, c = torch.empty(8), torch.empty(8), torch.empty(8)
    kernels = [(77, 5, 128, 4096, False, (2, 0), ()), (78, 6, 64, 0, True, (1, 2), ())]
    launch = launch_types().Launch(kernels, 0, lambda device: 900 + device, None, path)
    launch(a, b.data_ptr(), c)
    seen = (ctypes.c_long * 16).in_dll(library, "seen")
    assert [*seen] == [
        *(77, 5, 128, 4096, 900, c.data_ptr(), a.data_ptr(), 0),
        *(78, 6, 64, 0, 900, b.data_ptr(), c.data_ptr(), 0),
    ]
    assert ctypes.c_int.in_dll(library, "early").value == 1  # the second


def test_numbers_come_after_the_pointers(driver):
    library, path = driver
    a = torch.empty(8)
    kernels = [(77, 5, 128, 0, False, (0,), (41, 2**40, -3))]
    launch_types().Launch(kernels, 0, lambda device: 0, None, path)(a)
    seen = (ctypes.c_long * 8).in_dll(library, "seen")
    assert [*seen][5:] == [a.data_ptr(), 41, -3]


def test_what_it_cannot_launch_goes_the_other_way(driver):
    library, path = driver
    others = []
    kernels = [(77, 5, 128, 0, False, (0, 1), ())]
    launch = launch_types().Launch(
        kernels, 0, lambda device: 0, lambda *given: others.append(given), path
    )
    x = torch.empty(8)
    launch(x, x[1:])
    assert len(others) == 1
    ctypes.c_int.in_dll(library, "device").value = 1
    launch(x, x)
    assert len(others) == 2 and ctypes.c_int.in_dll(library, "calls").value == 0
    with pytest.raises(TypeError):
        launch(x)


def test_an_error_of_the_driver_is_raised(driver):
    library, path = driver
    ctypes.c_int.in_dll(library, "fails").value = 700
    launch = launch_types().Launch(
        [(77, 5, 128, 0, True, (0, 0), ())], 0, lambda device: 0, None, path
    )
    with pytest.raises(RuntimeError, match="700"):
        launch(torch.empty(4))


def test_what_kernels_hand_each_other_lies_in_one_piece_of_memory(monkeypatch):
    """Three scratch buffers after two tensors, each at an address of its own."""
    seen, made = [], []

    def native(binaries, numbers, device, otherwise, version):
        return lambda *given: seen.append(given)

    class Kernel:
        class kernel:
            waits = False

        def with_programs(self, numbers):
            return "binary", 4

    def empty(size, *, dtype, device):
        assert device == torch.device("cuda", 0)
        made.append(original(size, dtype=dtype))
        return made[-1]

    original = torch.empty
    monkeypatch.setattr(launch_triton, "native_launch", native)
    monkeypatch.setattr(launch_triton.torch, "empty", empty)
    scratch = ((torch.float32, 5), (torch.float64, 70), (torch.int32, 1))
    group = TritonGroup("sum", ((),), scratch, "")
    launch = launch_triton._native(group, [(Kernel(), (0, 1))], 0, lambda *given: None)
    a, b = original(3), original(4)
    launch(a, b)
    ((first, second, *places),) = seen
    assert first is a and second is b and len(made) == 1
    start, end = made[0].data_ptr(), made[0].data_ptr() + made[0].nbytes
    ends = [
        place + size * dtype.itemsize for place, (dtype, size) in zip(places, scratch, strict=True)
    ]
    assert places[0] == start and ends[-1] <= end
    assert all(one <= two for one, two in zip(ends[:-1], places[1:], strict=True))
    assert all((place - start) % 16 == 0 for place in places)


def test_a_plan_is_made_once_for_each_set_of_sizes():
    plans, made, done = {}, [], []

    def plan(sizes):
        made.append(sizes)
        plans[sizes] = lambda *given: done.append((sizes, given))
        return plans[sizes]

    launch = launch_types().Sized(plans, plan, 2)
    for sizes in ((3, 5), (4, 5), (3, 5)):
        launch("x", "y", *sizes)
    assert made == [(3, 5), (4, 5)]
    assert done == [(sizes, ("x", "y")) for sizes in ((3, 5), (4, 5), (3, 5))]


def test_what_goes_wrong_is_raised_and_nothing_leaks():
    def plan(sizes):
        raise ValueError(sizes)

    launch, given = launch_types().Sized({}, plan, 1), object()
    before = sys.getrefcount(given)
    for _ in range(5):
        with pytest.raises(ValueError, match="7"):
            launch(given, 7)
        with pytest.raises(TypeError, match="wrong arguments"):
            launch()
        with pytest.raises(TypeError, match="wrong arguments"):
            launch(given, n=7)
        with pytest.raises(TypeError, match="unhashable"):
            launch(given, [])
    gc.collect()
    assert sys.getrefcount(given) == before
