"""Binaries that are kept: what is stored of them, and that only what the driver takes is used."""

import ctypes
import types

import pytest
import torch
from dynfix.runtime.cache import disk_cache
from dynfix.runtime.gpu import binary_store, native_launch

GPU = types.SimpleNamespace(name="A GPU", major=9, minor=0)
DEVICE = torch.device("cuda", 0)


class Driver:
    """Stands for the driver's library; `answers`: the status of a function that fails."""

    def __init__(self, **answers):
        self.answers, self.called = answers, []

    def __getattr__(self, name):
        def call(*args):
            self.called.append((name, args))
            if name == "cuModuleGetFunction":
                ctypes.cast(args[0], ctypes.POINTER(ctypes.c_void_p))[0] = 0x1234
            return self.answers.get(name, 0)

        return call

    def names(self):
        return [name for name, _ in self.called]


@pytest.fixture
def driver(monkeypatch, tmp_path):
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: GPU)
    made = Driver()
    monkeypatch.setattr(binary_store, "_driver", lambda: made)
    binary_store._context.cache_clear()
    return made


def binary(**changes):
    target = types.SimpleNamespace(backend="cuda", arch=90, warp_size=32)
    facts = {
        **{"name": "kernel", "target": target, "num_warps": 4, "num_ctas": 1, "shared": 1024},
        **{"global_scratch_size": 0, "profile_scratch_size": 0, "launch_cooperative_grid": False},
        **{"launch_pdl": False, "unused": object(), **changes},
    }
    return types.SimpleNamespace(metadata=types.SimpleNamespace(**facts), kernel=b"code")


def found(key):
    return binary_store.find(
        key, DEVICE, lambda: types.SimpleNamespace(run="run", packed_metadata=7)
    )


def test_a_kept_binary_is_loaded(driver):
    key = binary_store.key_of(DEVICE, "text")
    assert found(key) is None
    binary_store.keep(key, binary())
    loaded = found(key)
    assert loaded.function == 0x1234
    assert driver.called[-2][1][1] == b"code" and driver.called[-1][1][2] == b"kernel"
    assert native_launch._is_simple(loaded) and native_launch._shape(loaded) == (128, 1024)
    assert native_launch._starts_early(loaded)
    assert (loaded.run, loaded.packed_metadata) == ("run", 7)


def test_much_shared_memory_is_asked_for(driver):
    binary_store.keep("0" * 64, binary(shared=60000))
    found("0" * 64)
    name, (_, attribute, value) = driver.called[-1]
    assert (name, attribute, value) == ("cuFuncSetAttribute", 8, 60000)


@pytest.mark.parametrize(
    "name", ["cuModuleLoadData", "cuModuleGetFunction", "cuDevicePrimaryCtxRetain"]
)
def test_what_the_driver_refuses_is_built(driver, name):
    binary_store.keep("0" * 64, binary())
    driver.answers[name] = 209
    assert found("0" * 64) is None


def test_what_is_not_understood_is_not_kept(driver):
    binary_store.keep("0" * 64, binary(target=types.SimpleNamespace(backend="hip", arch="gfx942")))
    strange = binary()
    del strange.metadata.launch_pdl
    binary_store.keep("1" * 64, strange)
    assert found("0" * 64) is None and found("1" * 64) is None


def test_a_damaged_binary_is_built(driver):
    binary_store.keep("0" * 64, binary())
    path = disk_cache.path_for("0" * 64, ".cubin")
    path.write_bytes(b"other")
    assert found("0" * 64) is None


def test_keys_tell_devices_versions_and_kernels_apart(driver, monkeypatch):
    keys = {binary_store.key_of(DEVICE, "text", 4), binary_store.key_of(DEVICE, "text", 8)}
    monkeypatch.setattr(binary_store, "triton_version", lambda: "9.9")
    keys.add(binary_store.key_of(DEVICE, "text", 4))
    other = types.SimpleNamespace(name="Another", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: other)
    keys.add(binary_store.key_of(DEVICE, "text", 4))
    assert len(keys) == 4


def test_a_binary_of_this_process_is_loaded_without_triton(driver):
    """Triton's own launch is made only for what asks for it."""
    asked = []

    class Built(types.SimpleNamespace):
        @property
        def run(self):
            asked.append("run")
            return "run"

    made = Built(**vars(binary()), packed_metadata=7)
    loaded = binary_store.load(made, DEVICE)
    assert loaded.function == 0x1234 and loaded.metadata.shared == 1024 and not asked
    assert (loaded.run, loaded.packed_metadata) == ("run", 7)


@pytest.mark.parametrize("answers", ({"cuModuleLoadData": 209}, {"cuFuncSetAttribute": 1}))
def test_what_the_driver_refuses_is_left_to_triton(driver, answers):
    driver.answers = answers
    made = types.SimpleNamespace(**vars(binary(shared=60000)), run="run")
    assert binary_store.load(made, DEVICE) is made
